//! Text of the queue as it is shown: no character of it can reverse, hide or control what stands around it.

use std::fmt::{self, Write as _};

/// Text that is safe to show to people. Only its constructors make one, so every string on a page goes through them; the
/// template escapes it for HTML.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(String);

/// Longest text of a cell, in characters: longer ones are cut.
const LONGEST: usize = 240;

/// Returns whether a character changes what stands around it, or is invisible.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{180e}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
        )
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Number of marks that may stand on one letter: as many as languages use.
const MARKS: usize = 4;

/// Returns whether a character is drawn on the one before it.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{591}'..='\u{5bd}' | '\u{610}'..='\u{61a}' | '\u{64b}'..='\u{65f}')
        || matches!(c, '\u{6d6}'..='\u{6ed}' | '\u{e31}' | '\u{e34}'..='\u{e3a}' | '\u{e47}'..='\u{e4e}' | '\u{eb1}' | '\u{eb4}'..='\u{ece}')
        || matches!(c, '\u{f71}'..='\u{f84}' | '\u{f8d}'..='\u{fbc}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}')
        || matches!(c, '\u{20d0}'..='\u{20ff}' | '\u{302a}'..='\u{302f}' | '\u{3099}' | '\u{309a}' | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}')
}

fn push(out: &mut String, c: char, keep: &[char]) {
    // A pile of marks would be drawn over the lines above and below.
    let is_piled = || is_mark(c) && out.chars().rev().take(MARKS).filter(|it| is_mark(*it)).count() == MARKS;
    if (is_hidden(c) && !keep.contains(&c)) || is_piled() {
        // Writing to a string does not fail.
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    } else {
        out.push(c);
    }
}

impl Text {
    /// Returns a text of one line.
    pub(crate) fn line(text: &str) -> Self {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            push(&mut out, c, &[]);
        }
        Self(out)
    }

    /// Returns the first characters of a text as one line.
    pub(crate) fn short(text: &str) -> Self {
        let mut out = String::new();
        for (at, c) in text.chars().enumerate() {
            if at == LONGEST {
                out.push('…');
                break;
            }
            push(&mut out, c, &[]);
        }
        Self(out)
    }

    /// Returns a text of several lines, with its tabs.
    pub(crate) fn block(text: &str) -> Self {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            push(&mut out, c, &['\n', '\t']);
        }
        Self(out)
    }

    /// Returns bytes as one line: as text if they are UTF-8, otherwise with escapes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::short(text),
            Err(_) => Self::short(&bytes.escape_ascii().to_string()),
        }
    }

    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::line(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::line(&text)
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Self::line(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_hide_or_turn_text_are_shown_as_escapes() {
        assert_eq!(Text::line("a\u{202e}b").as_str(), "a\\u{202e}b");
        assert_eq!(Text::line("\u{1b}[31m\u{9b}2J\n").as_str(), "\\u{1b}[31m\\u{9b}2J\\u{a}");
        assert_eq!(Text::block("a\n\tb\r").as_str(), "a\n\tb\\u{d}");
        assert_eq!(Text::line("zero\u{200b}width").as_str(), "zero\\u{200b}width");
        assert_eq!(Text::line("grüße 水 🦀").as_str(), "grüße 水 🦀");
        assert_eq!(Text::line("ệ กี่ क्षि").as_str(), "ệ กี่ क्षि", "marks of languages");
        let piled = Text::line(&format!("a{}b", "\u{301}".repeat(9)));
        assert_eq!(piled.as_str(), "a\u{301}\u{301}\u{301}\u{301}\\u{301}\u{301}\u{301}\u{301}\u{301}b");
    }

    #[test]
    fn long_text_is_cut_and_bytes_are_escaped() {
        assert_eq!(Text::short(&"x".repeat(1_000)).as_str().chars().count(), LONGEST + 1);
        assert_eq!(Text::of_bytes(b"\xff\x00a").as_str(), "\\xff\\x00a");
    }
}
