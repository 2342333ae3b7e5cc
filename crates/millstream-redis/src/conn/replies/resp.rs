//! RESP2 parser for connections of our own: finds the end of each reply and reads its values.
//!
//! No announced length is trusted: allocations are bounded by the bytes that have arrived.

use millstream_core::error::Result;

use crate::conn::replies::cursor::Cursor;
use crate::error::unexpected;

/// Maximum length of a line, such as an error, in bytes. The lines of the server are shorter.
const MAX_LINE: usize = 64 << 10;
/// Maximum length of a string in bytes: the server's own limit.
const MAX_STRING: usize = 512 << 20;
/// Maximum number of values in an array.
const MAX_ARRAY: usize = 1 << 30;
/// Maximum length of a number in bytes, with its sign: that of `i64::MIN`. It bounds what is scanned again when more bytes
/// of an unfinished number arrive.
const MAX_NUMBER: usize = 20;

/// Head of an array, or a complete value of any other type.
#[derive(Debug, PartialEq)]
pub(crate) enum Head<'a> {
    /// Simple string: `OK`, `QUEUED`.
    Line(&'a [u8]),
    /// Whole line of an error as received, with its `-` and line end.
    Error(&'a [u8]),
    Int(i64),
    Text(&'a [u8]),
    Nil,
    /// Number of values that follow.
    Array(usize),
}

pub(crate) enum Step<'a> {
    /// A head, and the position of the next one.
    Head(Head<'a>, usize),
    /// Minimum number of bytes that have not arrived yet.
    Missing(usize),
}

/// Reads the head that begins at `at`.
pub(crate) fn step(bytes: &[u8], at: usize) -> Result<Step<'_>> {
    let Some((kind, rest)) = bytes.get(at..).and_then(<[u8]>::split_first) else {
        return Ok(Step::Missing(1));
    };
    let head = match kind {
        b'$' | b'*' | b':' => {
            let Some((n, digits)) = number(rest)? else { return Ok(Step::Missing(1)) };
            let next = at + 1 + digits;
            match (kind, usize::try_from(n)) {
                (b':', _) => (Head::Int(n), next),
                // A negative length stands for nil, of a string as well as of an array.
                (_, Err(_)) => (Head::Nil, next),
                (b'*', Ok(len)) if len <= MAX_ARRAY => (Head::Array(len), next),
                (b'$', Ok(len)) if len <= MAX_STRING => {
                    let (text, end) = (next + len, next + len + 2);
                    if end > bytes.len() {
                        return Ok(Step::Missing(end - bytes.len()));
                    }
                    if &bytes[text..end] != b"\r\n" {
                        return Err(unexpected("a string without an end"));
                    }
                    (Head::Text(&bytes[next..text]), end)
                }
                _ => return Err(unexpected(format_args!("a length of {n}"))),
            }
        }
        b'+' | b'-' => {
            let rest = &rest[..rest.len().min(MAX_LINE)];
            let Some(len) = rest.windows(2).position(|end| end == b"\r\n") else {
                return if rest.len() < MAX_LINE {
                    Ok(Step::Missing(1))
                } else {
                    Err(unexpected("a line without an end"))
                };
            };
            let next = at + 1 + len + 2;
            let head = if *kind == b'+' { Head::Line(&rest[..len]) } else { Head::Error(&bytes[at..next]) };
            (head, next)
        }
        kind => return Err(unexpected(format_args!("a value of the kind {:?}", char::from(*kind)))),
    };
    Ok(Step::Head(head.0, head.1))
}

/// Parses a number up to its line end and returns it with the length of both. Returns `None` if the line end has not
/// arrived.
fn number(bytes: &[u8]) -> Result<Option<(i64, usize)>> {
    let minus = bytes.first() == Some(&b'-');
    let mut n = 0i64;
    let mut at = usize::from(minus);
    loop {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'0'..=b'9') if at == MAX_NUMBER => return Err(unexpected("a number that is too long")),
            Some(digit @ b'0'..=b'9') => {
                let digit = i64::from(digit - b'0');
                let next = n.checked_mul(10).and_then(|n| n.checked_add(if minus { -digit } else { digit }));
                n = next.ok_or_else(|| unexpected("a number that is too large"))?;
                at += 1;
            }
            Some(b'\r') if at > usize::from(minus) => {
                return match bytes.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((n, at + 2))),
                    Some(_) => Err(unexpected("a number without an end")),
                };
            }
            Some(_) => return Err(unexpected("no number where one belongs")),
        }
    }
}

/// Finds the ends of replies in bytes that arrive in pieces, and scans nothing twice.
#[derive(Default)]
pub(crate) struct Scanner {
    /// Position up to which the bytes are scanned.
    at: usize,
    /// Number of values that the current reply still needs.
    open: u64,
    ends: Vec<usize>,
    wanted: usize,
}

impl Scanner {
    /// Begins a new request with this number of replies.
    pub(crate) fn begin(&mut self, replies: usize) {
        self.ends.clear();
        (self.at, self.open, self.wanted) = (0, 1, replies);
    }

    /// Continues the scan; `bytes` has everything received since [`begin`](Self::begin). Returns 0 if all replies are
    /// complete, otherwise the minimum number of missing bytes. Bytes behind the last reply are an error.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Result<usize> {
        match self.scan_first(bytes)? {
            0 if bytes.len() > self.at => {
                let more = bytes.len() - self.at;
                Err(unexpected(format_args!("{more} bytes without a request")))
            }
            missing => Ok(missing),
        }
    }

    /// Continues the scan like [`scan`](Self::scan), but accepts bytes behind the last reply. They begin at
    /// [`end`](Self::end).
    pub(crate) fn scan_first(&mut self, bytes: &[u8]) -> Result<usize> {
        while self.ends.len() < self.wanted {
            match step(bytes, self.at)? {
                Step::Missing(missing) => return Ok(missing),
                Step::Head(head, next) => {
                    // An array counts as one value itself, and needs `len` more.
                    if let Head::Array(len) = head {
                        self.open = self.open.saturating_add(len as u64);
                    }
                    (self.at, self.open) = (next, self.open - 1);
                }
            }
            if self.open == 0 {
                self.ends.push(self.at);
                self.open = 1;
            }
        }
        Ok(0)
    }

    /// Position up to which the bytes are scanned: the end of the replies once all have arrived.
    pub(crate) fn end(&self) -> usize {
        self.at
    }

    /// Iterates over the replies that were found in these bytes.
    pub(crate) fn replies<'a>(&'a self, bytes: &'a [u8]) -> Replies<'a> {
        Replies { bytes, at: 0, ends: self.ends.iter() }
    }
}

/// The replies to one request, in order.
pub(crate) struct Replies<'a> {
    bytes: &'a [u8],
    at: usize,
    ends: std::slice::Iter<'a, usize>,
}

impl<'a> Replies<'a> {
    pub(crate) fn next(&mut self) -> Result<Cursor<'a>> {
        let end = self.ends.next().ok_or_else(|| unexpected("too few replies"))?;
        let bytes = self.bytes.get(self.at..*end).unwrap_or_default();
        self.at = *end;
        Ok(Cursor::new(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds bytes in pieces and returns the number of replies found.
    fn scan(bytes: &[u8], wanted: usize, pieces: &[usize]) -> Result<Vec<Vec<u8>>> {
        let mut scanner = Scanner::default();
        scanner.begin(wanted);
        let (mut come, mut pieces) = (0, pieces.iter().cycle());
        loop {
            let missing = scanner.scan(&bytes[..come])?;
            assert!(scanner.ends.capacity() <= 4 * wanted.max(4));
            if missing == 0 || come == bytes.len() {
                let mut replies = scanner.replies(bytes);
                return (0..scanner.ends.len())
                    .map(|_| replies.next().map(|one| one.bytes().to_vec()))
                    .collect();
            }
            come = bytes.len().min(come + pieces.next().expect("endless").max(&1));
        }
    }

    const REPLIES: [&[u8]; 9] = [
        b"+OK\r\n",
        b"-ERR no\rsuch thing\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n$9\r\n",
        b"*0\r\n",
        b"*2\r\n*2\r\n$1\r\na\r\n*1\r\n*0\r\n+x\r\n",
    ];

    #[test]
    fn a_number_without_an_end_is_an_error_after_its_longest_form() {
        for begin in [":", "$", "*", ":-", "$-", "*-"] {
            let endless = format!("{begin}{}", "0".repeat(MAX_NUMBER + 1));
            let mut scanner = Scanner::default();
            scanner.begin(1);
            assert!(scanner.scan(endless.as_bytes()).is_err(), "{endless}");
        }
        let least = format!(":{}\r\n", i64::MIN);
        assert_eq!(least.len(), ":\r\n".len() + MAX_NUMBER);
        assert_eq!(scan(least.as_bytes(), 1, &[1]).expect("a number"), [least.into_bytes()]);
    }

    #[test]
    fn what_is_no_reply_is_an_error_at_once() {
        let garbage: [&[u8]; 12] = [
            b"?",
            b"%1\r\n",
            b"$x",
            b"$-",
            b"$\r\n",
            b"$1\r\nabc",
            b"$1\rx",
            b"*99999999999999999999",
            b"*1073741825\r\n",
            b"$536870913\r\n",
            b":9223372036854775808",
            b"+OK\r\n+more\r\n",
        ];
        for bytes in garbage {
            let mut scanner = Scanner::default();
            scanner.begin(1);
            // `$-` alone may still become `$-1`.
            let bytes = if bytes == b"$-" { b"$-\r\n" } else { bytes };
            assert!(scanner.scan(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
        let mut endless = vec![b'+'];
        endless.resize(MAX_LINE + 2, b'x');
        let mut scanner = Scanner::default();
        scanner.begin(1);
        assert!(scanner.scan(&endless).is_err());
    }

    proptest! {
        #[test]
        fn replies_end_where_they_end_however_they_come(
            chosen in proptest::collection::vec(0..REPLIES.len(), 1..8),
            pieces in proptest::collection::vec(1usize..9, 1..5),
        ) {
            let replies: Vec<Vec<u8>> = chosen.iter().map(|at| REPLIES[*at].to_vec()).collect();
            let found = scan(&replies.concat(), replies.len(), &pieces).expect("replies");
            prop_assert_eq!(found, replies);
        }

        #[test]
        fn garbage_is_an_error_or_waited_for(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), proptest::sample::select(&b"+-:$*0123\r\n"[..])],
                0..60,
            ),
            wanted in 1usize..4,
            pieces in proptest::collection::vec(1usize..9, 1..5),
        ) {
            let bit_by_bit = scan(&bytes, wanted, &pieces);
            let at_once = scan(&bytes, wanted, &[bytes.len()]);
            if let (Ok(a), Ok(b)) = (&bit_by_bit, &at_once) {
                prop_assert_eq!(a, b);
            }
        }
    }
}
