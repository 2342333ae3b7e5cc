//! Escapes text for terminals, so that the content of a message cannot control them.

use std::borrow::Cow;
use std::fmt::Write;

use crate::human;

/// Formats bytes as one line: bytes that are not text, line ends and control characters are written as `\n` or
/// `\x1b`. A backslash of the text itself is doubled, so that the two are distinct.
pub(crate) fn line(bytes: &[u8]) -> String {
    escaped(bytes, |c| c == '\\' || is_control(c))
}

/// Formats text for a terminal in the same way, with its line ends and tabs kept.
pub(crate) fn text(bytes: &[u8]) -> String {
    escaped(bytes, |c| is_control(c) && c != '\n' && c != '\t')
}

/// Escapes control characters in a line of JSON as `\u009b`. They occur in strings only, where that is equivalent.
pub(crate) fn json(line: &str) -> Cow<'_, str> {
    if !line.contains(is_control) {
        return Cow::Borrowed(line);
    }
    let mut safe = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if is_control(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String never fails.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// The maximum number of characters of a text in a table.
pub(crate) const SHOWN: usize = 400;

/// Returns the start of a payload, as one line.
pub(crate) fn short(payload: &[u8]) -> String {
    cut(&line(payload))
}

/// Returns the start of a long text, and the length of the rest.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}… ({} more)", &text[..at], human::bytes((text.len() - at) as u64)),
    }
}

/// Whether a character moves the cursor, changes colours or titles, ends a line, or reverses the direction of text.
pub(crate) fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

fn escaped(bytes: &[u8], is_escaped: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                _ if !is_escaped(c) => safe.push(c),
                '\n' => safe.push_str("\\n"),
                '\r' => safe.push_str("\\r"),
                '\t' => safe.push_str("\\t"),
                '\\' => safe.push_str("\\\\"),
                // Writing to a String never fails.
                c if c.is_ascii() => drop(write!(safe, "\\x{:02x}", u32::from(c))),
                c => drop(write!(safe, "\\u{{{:x}}}", u32::from(c))),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_message_reaches_a_terminal_as_a_command() {
        let nasty = "red \x1b[31m title \x1b]0;x\x07 c1 \u{9b}2J bidi \u{202e}abc\u{2066} del \x7f line \u{2028} nul \0\r\n\t\\é";
        let safe = line(nasty.as_bytes());
        assert!(!safe.contains(is_control), "{safe}");
        let expected = r"red \x1b[31m title \x1b]0;x\x07 c1 \u{9b}2J bidi \u{202e}abc\u{2066} del \x7f line \u{2028} nul \x00\r\n\t\\é";
        assert_eq!(safe, expected);
        assert_eq!(line(b"\xff\xfe ok \xc3"), r"\xff\xfe ok \xc3");
        assert_eq!(text(b"a\tb\nc\\\x1b\r"), "a\tb\nc\\\\x1b\\r");
    }

    #[test]
    fn json_means_the_same_and_tells_a_terminal_nothing() {
        let value = serde_json::json!({"a": "\u{9b}2J\u{202e}\x7f\x1bé\u{10ffff}"});
        let text = value.to_string();
        let safe = json(&text);
        assert!(!safe.contains(is_control), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), value);
        assert_eq!(json("{\"a\":1}"), "{\"a\":1}");
    }
}
