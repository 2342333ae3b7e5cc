//! Text that people see: whatever stands in a message, a terminal is told nothing by it.

use std::borrow::Cow;
use std::fmt::Write;

use crate::human;

/// Bytes as one line: what is no text, ends a line or tells a terminal something is written as `\n` or `\x1b`. A
/// backslash of the text itself is doubled, so that the two are told apart.
pub(crate) fn line(bytes: &[u8]) -> String {
    escaped(bytes, |c| c == '\\' || is_control(c))
}

/// The same of text that may have several lines and tabs, for a terminal.
pub(crate) fn text(bytes: &[u8]) -> String {
    escaped(bytes, |c| is_control(c) && c != '\n' && c != '\t')
}

/// A line of JSON, with what a terminal could take for something else as `\u009b`: these stand in strings only, where
/// that means the same.
pub(crate) fn json(line: &str) -> Cow<'_, str> {
    if !line.contains(is_control) {
        return Cow::Borrowed(line);
    }
    let mut safe = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if is_control(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A String takes everything.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// How many characters of a text a table shows.
pub(crate) const SHOWN: usize = 400;

/// The start of a payload, as one line.
pub(crate) fn short(payload: &[u8]) -> String {
    cut(&line(payload))
}

/// The start of a long text, and how much more there is.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}… ({} more)", &text[..at], human::bytes((text.len() - at) as u64)),
    }
}

/// What moves the cursor, changes colours or titles, ends a line, or turns the direction of text round.
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
                // A String takes everything.
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
