//! Fingerprints of error texts: errors that differ only in variable parts have the same one.

use std::fmt;
use std::iter::Peekable;
use std::str::{CharIndices, FromStr};

use crate::error::{Error, ErrorKind, Result};
use crate::partitioner::jump::mix;

/// Maximum number of bytes of an error text that are read.
const MAX_READ: usize = 2_048;

/// Maximum number of characters of a [`pattern`].
pub const MAX_PATTERN: usize = 200;

/// Maximum number of digits of a code that stays in a pattern: HTTP and SQL states, error numbers and exit codes are
/// shorter.
const MAX_CODE: usize = 5;

/// Words after which a short number is a code and stays: two errors with different codes are different errors.
const CODES: [&str; 8] = ["code", "status", "errno", "sqlstate", "signal", "error", "http", "state"];

/// Fingerprint of an error text: a hash of its [`pattern`], written as 16 hexadecimal digits.
///
/// It is the same in all processes, and may change with a version that recognises variable parts better. So it is meant
/// to select what was listed a moment ago, not to be stored.
///
/// ```
/// use millstream_core::fingerprint::Fingerprint;
///
/// let one = Fingerprint::of("no customer 4711: timed out after 1.5s");
/// assert_eq!(one, Fingerprint::of("no customer 12: timed out after 300ms"));
/// assert_ne!(one, Fingerprint::of("no customer 4711: refused"));
/// assert_eq!(one.to_string().parse().ok(), Some(one));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Returns the fingerprint of an error text.
    #[must_use]
    pub fn of(error: &str) -> Self {
        Self::of_pattern(&pattern(error))
    }

    /// Returns the fingerprint of errors with this [`pattern`].
    #[must_use]
    pub fn of_pattern(pattern: &str) -> Self {
        Self(mix(pattern.as_bytes()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parsed = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        parsed.map(Self).ok_or_else(|| {
            let message = format!("{text:?} is no fingerprint: it has 16 hexadecimal digits");
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }
}

/// Returns an error text without its variable parts, at most [`MAX_PATTERN`] characters long: numbers become `<n>`,
/// hexadecimal numbers `<hex>`, UUIDs `<uuid>`, quoted strings `<str>`, absolute paths `<path>`, URLs `<url>`, network and
/// e-mail addresses `<addr>`, times `<time>`, and other identifiers that mix letters and digits `<id>`.
///
/// Numbers of up to five digits after words like `code`, `status` or `errno` stay, and so do error codes like `E0425`.
/// White space and control characters become single spaces.
#[must_use]
pub fn pattern(error: &str) -> String {
    let mut scanner = Scanner::new(head(error));
    scanner.run();
    scanner.out.truncate(scanner.out.trim_end().len());
    scanner.out
}

/// Returns the part of a text that is read.
fn head(text: &str) -> &str {
    let mut end = text.len().min(MAX_READ);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads a text and writes its pattern.
struct Scanner<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
    out: String,
    /// Number of characters in `out`.
    written: usize,
    /// Whether a number that follows is a code.
    expects_code: bool,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            rest: text.char_indices().peekable(),
            out: String::new(),
            written: 0,
            expects_code: false,
        }
    }

    fn run(&mut self) {
        // At the beginning of a word a quote opens a string, within one it is an apostrophe.
        let mut begins = true;
        while let Some(&(at, c)) = self.rest.peek() {
            if self.written >= MAX_PATTERN {
                break;
            }
            if c.is_whitespace() || c.is_control() {
                self.rest.next();
                if !self.out.is_empty() && !self.out.ends_with(' ') {
                    self.push(" ");
                }
                begins = true;
            } else if let Some(end) = quoted(self.text, at, begins) {
                self.push("<str>");
                self.skip_to(end);
                begins = false;
            } else if is_separator(c) {
                self.rest.next();
                self.push(c.encode_utf8(&mut [0; 4]));
                begins = true;
            } else {
                let end =
                    self.text[at..].find(|c: char| c.is_whitespace() || c.is_control() || is_separator(c));
                let end = end.map_or(self.text.len(), |len| at + len);
                self.word(&self.text[at..end]);
                self.skip_to(end);
                begins = false;
            }
        }
    }

    fn skip_to(&mut self, end: usize) {
        while self.rest.next_if(|(at, _)| *at < end).is_some() {}
    }

    fn push(&mut self, text: &str) {
        for c in text.chars().take(MAX_PATTERN - self.written) {
            self.out.push(c);
            self.written += 1;
        }
    }

    /// Writes a word: text without white space, brackets and other separators.
    fn word(&mut self, word: &str) {
        // Punctuation at the end belongs to the sentence.
        let bare = word.trim_end_matches([':', '.', '!', '?']);
        let tail = &word[bare.len()..];
        if bare.len() <= 8 && bare.starts_with("HTTP/") {
            // `HTTP/1.1 404`: the version is in front of the code.
            self.push(word);
            self.expects_code = true;
            return;
        }
        match whole(bare) {
            Some(kind) => {
                self.push(kind);
                self.expects_code = false;
            }
            None => match path_end(bare) {
                Some(end) => {
                    self.push("<path>");
                    self.expects_code = false;
                    self.parts(&bare[end..]);
                }
                None => self.parts(bare),
            },
        }
        self.push(tail);
    }

    /// Writes the parts of a word: its letters and digits, and the punctuation between them.
    fn parts(&mut self, word: &str) {
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            if !first.is_alphanumeric() {
                self.push(&rest[..first.len_utf8()]);
                rest = &rest[first.len_utf8()..];
                continue;
            }
            let len = part_len(rest);
            let (part, after) = rest.split_at(len);
            let is_code = std::mem::take(&mut self.expects_code)
                && part.len() <= MAX_CODE
                && part.bytes().all(|byte| byte.is_ascii_digit());
            if is_code {
                self.push(part);
            } else {
                self.part(part);
            }
            let lower = part.to_ascii_lowercase();
            self.expects_code = CODES.contains(&lower.as_str());
            rest = after;
        }
    }

    /// Writes letters and digits without punctuation in between.
    fn part(&mut self, part: &str) {
        let digits = part.bytes().filter(u8::is_ascii_digit).count();
        let is_hex = || part.len() >= 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let has_prefix = part
            .strip_prefix("0x")
            .is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if has_prefix {
            self.push("<hex>");
        } else if digits == 0 || is_error_code(part) {
            self.push(part);
        } else if is_amount(part) {
            self.push("<n>");
        } else if is_hex() {
            self.push("<hex>");
        } else if runs(part) > 3 {
            self.push("<id>");
        } else {
            // `order42`, `2nd`: the letters stay.
            let mut in_digits = false;
            for c in part.chars() {
                if !c.is_ascii_digit() {
                    self.push(c.encode_utf8(&mut [0; 4]));
                } else if !in_digits {
                    self.push("<n>");
                }
                in_digits = c.is_ascii_digit();
            }
        }
    }
}

/// Characters that end a word.
fn is_separator(c: char) -> bool {
    matches!(c, '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | '=' | '|' | '"' | '\'' | '`')
}

/// Returns the end of a quoted string that begins here.
fn quoted(text: &str, at: usize, begins: bool) -> Option<usize> {
    let mut chars = text[at..].chars();
    let open = chars.next()?;
    let close = match open {
        '"' | '`' => open,
        '\'' if begins => open,
        '„' => '“',
        '“' => '”',
        '‘' => '’',
        '«' => '»',
        _ => return None,
    };
    let (mut end, mut escaped) = (at + open.len_utf8(), false);
    while let Some(c) = chars.next() {
        end += c.len_utf8();
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == close {
            // An apostrophe within quotes is followed by a letter: 'it's gone'.
            let is_apostrophe = c == '\'' && chars.clone().next().is_some_and(char::is_alphanumeric);
            if !is_apostrophe {
                return Some(end);
            }
        }
    }
    None
}

/// Returns the placeholder of a word that is one variable as a whole.
fn whole(word: &str) -> Option<&'static str> {
    if is_uuid(word) {
        Some("<uuid>")
    } else if word.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()) {
        Some("<url>")
    } else if is_address(word) {
        Some("<addr>")
    } else if is_date(word) {
        Some("<time>")
    } else {
        None
    }
}

fn is_uuid(word: &str) -> bool {
    let mut groups = word.split('-');
    [8, 4, 4, 4, 12].iter().all(|len| {
        groups
            .next()
            .is_some_and(|group| group.len() == *len && group.bytes().all(|it| it.is_ascii_hexdigit()))
    }) && groups.next().is_none()
}

/// Whether it is a network address, with or without a port, or an e-mail address.
fn is_address(word: &str) -> bool {
    let is_mail = word
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && host.contains('.') && !host.contains('@'));
    is_mail || is_v4(word) || is_v6(word)
}

/// Whether it is an IPv4 address. Version numbers, like `1.2.3`, have another number of parts.
fn is_v4(word: &str) -> bool {
    let (host, port) = word.split_once(':').unwrap_or((word, "0"));
    let is_number = |part: &str, most: u32| {
        part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u32>().is_ok_and(|it| it <= most)
    };
    host.split('.').count() == 4
        && host.split('.').all(|part| is_number(part, 255))
        && is_number(port, 65_535)
}

/// Whether it is an IPv6 address. A path in code, like `a::b`, has no digits.
fn is_v6(word: &str) -> bool {
    let is_group = |group: &str| group.len() <= 4 && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (groups, gaps) = (word.split(':').count(), word.matches("::").count());
    (3..=8).contains(&groups)
        && word.split(':').all(is_group)
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && (gaps == 1 || gaps == 0 && groups == 8)
}

/// Whether it begins like `2026-01-31` and goes on like a time.
fn is_date(word: &str) -> bool {
    let bytes = word.as_bytes();
    let shape =
        |from: usize, to: usize| bytes.get(from..to).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    shape(0, 4)
        && bytes.get(4) == Some(&b'-')
        && shape(5, 7)
        && bytes.get(7) == Some(&b'-')
        && shape(8, 10)
        && bytes.get(10..).is_some_and(|rest| rest.iter().all(|it| b"0123456789T:.+-Z".contains(it)))
}

/// Returns the end of an absolute path (`/a/b`, `./a`, `~/a`, `C:\a`) at the beginning of a word: a line number may follow.
fn path_end(word: &str) -> Option<usize> {
    let rooted = ["./", "../", "~/"].iter().any(|lead| word.starts_with(lead));
    let absolute =
        word.starts_with('/') && word[1..].starts_with(|c: char| c.is_alphanumeric() || ".~_-".contains(c));
    let bytes = word.as_bytes();
    let drive = bytes.len() > 3 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' && bytes[2] == b'\\';
    if drive {
        return Some(word[2..].find(':').map_or(word.len(), |at| at + 2));
    }
    (rooted || absolute).then(|| word.find(':').unwrap_or(word.len()))
}

/// Returns the length of letters and digits at the beginning, with the points and commas of a number (`1.5`, `1,000`).
fn part_len(text: &str) -> usize {
    let mut end = 0;
    let mut chars = text.chars().peekable();
    let mut only_digits = true;
    while let Some(c) = chars.next() {
        let in_number = c == '.' && only_digits && end > 0 && chars.peek().is_some_and(char::is_ascii_digit);
        if !c.is_alphanumeric() && !in_number {
            break;
        }
        only_digits &= c.is_ascii_digit() || in_number;
        end += c.len_utf8();
    }
    end
}

/// Whether it is a number, with or without a unit of time or size: `7`, `1.5s`, `300ms`, `12kB`.
fn is_amount(part: &str) -> bool {
    let unit = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    unit.len() < part.len()
        && [
            "", "ns", "us", "µs", "μs", "ms", "s", "m", "h", "d", "B", "kB", "KB", "KiB", "MB", "MiB", "GB",
            "GiB",
        ]
        .contains(&unit)
}

/// Whether it is an error code: two to five digits behind capital letters, `E0425`, `P2002`.
fn is_error_code(part: &str) -> bool {
    let digits = part.trim_start_matches(|c: char| c.is_ascii_uppercase());
    digits.len() < part.len()
        && (2..=MAX_CODE).contains(&digits.len())
        && part.len() - digits.len() <= 4
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the number of runs of digits and of other characters.
fn runs(part: &str) -> usize {
    let kinds: Vec<bool> = part.chars().map(|c| c.is_ascii_digit()).collect();
    kinds.chunk_by(|a, b| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts as libraries and programs write them.
    const REAL: &[(&str, &str)] = &[
        ("", ""),
        ("timed out", "timed out"),
        ("timed out after 1.5s", "timed out after <n>"),
        ("timed out after 300ms", "timed out after <n>"),
        ("deadline has elapsed", "deadline has elapsed"),
        ("no customer 4711 (order #12,345)", "no customer <n> (order #<n>,<n>)"),
        ("Connection refused (os error 111)", "Connection refused (os error 111)"),
        (
            "error connecting to 10.0.3.17:5432: Connection reset by peer (os error 104)",
            "error connecting to <addr>: Connection reset by peer (os error 104)",
        ),
        ("connect to [::1]:6379 failed", "connect to [<addr>]:<n> failed"),
        ("could not connect to fe80::1ff:fe23:4567:890a", "could not connect to <addr>"),
        (
            "error sending request for url (https://api.example.com/v1/charges/ch_3Nx): operation timed out",
            "error sending request for url (<url>): operation timed out",
        ),
        ("HTTP status 503 Service Unavailable", "HTTP status 503 Service Unavailable"),
        ("HTTP/1.1 404 Not Found", "HTTP/1.1 404 Not Found"),
        ("unexpected status code: 429", "unexpected status code: 429"),
        (
            "the command ended with exit code 65: no such order 12",
            "the command ended with exit code 65: no such order <n>",
        ),
        ("the command was killed by signal 9", "the command was killed by signal 9"),
        (
            "duplicate key value violates unique constraint \"users_email_key\" DETAIL: Key (email)=(a.b@example.com) already exists.",
            "duplicate key value violates unique constraint <str> DETAIL: Key (email)=(<addr>) already exists.",
        ),
        ("SQLSTATE 23505: unique_violation", "SQLSTATE 23505: unique_violation"),
        ("ORA00942: table or view does not exist", "ORA00942: table or view does not exist"),
        (
            "invalid type: string \"abc\", expected u64 at line 1 column 17",
            "invalid type: string <str>, expected u<n> at line <n> column <n>",
        ),
        ("missing field `amount` at line 3 column 5", "missing field <str> at line <n> column <n>"),
        (
            "thread 'tokio-runtime-worker' panicked at src/handlers/mail.rs:42:7:\nindex out of bounds: the len is 3 but the index is 7",
            "thread <str> panicked at src/handlers/mail.rs:<n>:<n>: index out of bounds: the len is <n> but the index is <n>",
        ),
        ("No such file or directory: /var/spool/out/2026-01-31.pdf", "No such file or directory: <path>"),
        ("cannot open ./cache/a.db:17: locked", "cannot open <path>:<n>: locked"),
        (r"cannot open C:\temp\a.txt: denied", "cannot open <path>: denied"),
        ("user 550e8400-e29b-41d4-a716-446655440000 not found", "user <uuid> not found"),
        ("object 0x7ffd3a2c at 0x1f", "object <hex> at <hex>"),
        ("blob 9f86d081884c7d65 is gone", "blob <hex> is gone"),
        ("charge ch_3NxAbc12Qz7 failed", "charge ch_<id> failed"),
        ("token expired at 2026-01-31T12:00:00.123Z", "token expired at <time>"),
        ("it can't be done, it's closed", "it can't be done, it's closed"),
        ("field 'it's' is missing", "field <str> is missing"),
        ("unclosed \"quote and 5", "unclosed \"quote and <n>"),
        ("Kunde „Müller“ fehlt: größe 5", "Kunde <str> fehlt: größe <n>"),
        ("  spaces\t\tand\r\nlines \u{1b}[31m ", "spaces and lines [<n>"),
        ("message 1700000000000-0 of orders/3", "message <n>-<n> of orders/<n>"),
        ("either and/or both, 50% of a::b::C", "either and/or both, <n>% of a::b::C"),
        ("version 1.2.3.4000 of core::fmt at 12:30:45", "version <n> of core::fmt at <n>:<n>:<n>"),
    ];

    #[test]
    fn real_errors_lose_what_varies() {
        for (error, expected) in REAL {
            assert_eq!(pattern(error), *expected, "{error:?}");
        }
    }

    #[test]
    fn errors_of_one_cause_have_one_fingerprint_and_others_have_another() {
        let same = [
            [
                "order 17 of user 550e8400-e29b-41d4-a716-446655440000: timeout after 30s",
                "order 4 of user 6ba7b810-9dad-11d1-80b4-00c04fd430c8: timeout after 250ms",
            ],
            ["cannot read '/tmp/a': gone", "cannot read \"x y\": gone"],
            ["no route to 10.0.0.1:80", "no route to 192.168.7.9"],
        ];
        for [one, other] in same {
            assert_eq!(Fingerprint::of(one), Fingerprint::of(other), "{one} / {other}");
        }
        let different = [
            ["exit code 65", "exit code 66"],
            ["HTTP status 503", "HTTP status 404"],
            ["error E0425", "error E0308"],
            ["refused", "timed out"],
            ["", "0"],
        ];
        for [one, other] in different {
            assert_ne!(Fingerprint::of(one), Fingerprint::of(other), "{one} / {other}");
        }
    }

    #[test]
    fn a_fingerprint_is_the_same_in_all_processes_and_parses() {
        let print = Fingerprint::of("timed out after 5s");
        assert_eq!(print, Fingerprint::of_pattern("timed out after <n>"));
        assert_eq!(print.to_string().parse().ok(), Some(print));
        for wrong in ["", "5", "0123456789abcdeg", "+123456789abcdef", "0123456789abcdef0"] {
            let error = wrong.parse::<Fingerprint>().expect_err(wrong);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{wrong}");
        }
    }

    #[test]
    fn a_pattern_is_bounded_however_long_the_error() {
        let long = "é1 ".repeat(1 << 20);
        let started = pattern(&long);
        assert!(started.chars().count() <= MAX_PATTERN, "{started}");
        assert_eq!(Fingerprint::of(&long), Fingerprint::of(&format!("{long} and more")));
        assert!(pattern(&"x".repeat(1 << 20)).len() <= MAX_PATTERN);
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(error in "\\PC{0,300}", noise in any::<Vec<u8>>()) {
            for text in [error, String::from_utf8_lossy(&noise).into_owned()] {
                let found = pattern(&text);
                prop_assert!(found.chars().count() <= MAX_PATTERN);
                prop_assert!(!found.contains(char::is_control));
            }
        }

        #[test]
        fn a_number_does_not_matter(one in 0_u64.., other in 0_u64..) {
            let of = |number| Fingerprint::of(&format!("order {number} is late"));
            prop_assert_eq!(of(one), of(other));
        }
    }
}
