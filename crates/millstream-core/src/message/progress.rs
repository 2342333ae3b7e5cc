//! Progress of messages: what a handler says of its work while that lasts, for whoever sent the message.
//!
//! It belongs to the [result](crate::results) that the message asks for, under the same number: of a message that asks for none, nothing is
//! stored.

use std::fmt;
use std::time::Duration;

use crate::results::ResultRequest;
use crate::timestamp::Timestamp;
use crate::wire;

/// Number of lines with a text that stay of a message, the newest.
pub const MAX_LINES: usize = 100;

/// How long the lines of a handler are kept from the last one on, at least: it may be silent for a while.
pub const KEPT_AT_LEAST: Duration = Duration::from_secs(3_600);

/// How exactly a fraction is kept: four decimals.
const DECIMALS: f64 = 10_000.0;

/// One line of what a handler said.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProgressLine {
    /// Its number among the lines of the message, from 1 on.
    pub number: u64,
    /// When it was stored, by the server's clock.
    pub at: Timestamp,
    /// Number of the attempt.
    pub attempt: u32,
    /// How much of the work was done by then, from 0 to 1 with four decimals; `None` if the handler has not said so in this attempt.
    pub fraction: Option<f64>,
    /// The text, at most [`MAX_ERROR_LEN`](wire::MAX_ERROR_LEN) bytes; empty if only the fraction changed.
    pub text: String,
}

impl ProgressLine {
    /// Creates a line as a backend returns it.
    #[must_use]
    pub fn new(number: u64, at: Timestamp, attempt: u32, NewLine { fraction, text }: NewLine) -> Self {
        Self { number, at, attempt, fraction, text }
    }

    /// Returns the form in which a store keeps it: number, milliseconds since 1970, attempt, fraction or `-`, and text, with spaces between.
    #[must_use]
    pub fn to_wire(&self) -> String {
        let Self { number, at, attempt, fraction, text } = self;
        let fraction = fraction.map_or_else(|| "-".to_owned(), |it| it.to_string());
        format!("{number} {} {attempt} {fraction} {text}", at.as_millis())
    }

    /// Reads that form; `None` for another one.
    #[must_use]
    pub fn from_wire(stored: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(stored);
        let mut words = text.splitn(5, ' ');
        let (number, ms, attempt) = (words.next()?, words.next()?, words.next()?);
        let (fraction, text) = (words.next()?.parse().ok(), words.next()?);
        let at = Timestamp::from_millis(ms.parse().ok()?);
        Some(Self::new(number.parse().ok()?, at, attempt.parse().ok()?, NewLine::new(fraction, text)))
    }
}

/// `40.0 % page 12 of 30`: the fraction in per cent, and the text.
impl fmt::Display for ProgressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fraction) = self.fraction {
            write!(f, "{:.1} % ", fraction * 100.0)?;
        }
        f.write_str(&self.text)
    }
}

/// Line that is to be stored.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NewLine {
    /// See [`ProgressLine::fraction`].
    pub fraction: Option<f64>,
    /// See [`ProgressLine::text`].
    pub text: String,
}

impl NewLine {
    /// Creates a line. What is no fraction counts as none, one outside of 0 to 1 as the nearest, and a longer text is cut.
    #[must_use]
    pub fn new(fraction: Option<f64>, text: &str) -> Self {
        let fraction = fraction.filter(|it| !it.is_nan()).map(|it| it.clamp(0.0, 1.0));
        let rounded = fraction.map(|it| (it * DECIMALS).round() / DECIMALS);
        Self { fraction: rounded, text: wire::cut(text).to_owned() }
    }

    /// Whether it takes the place of a line before it: both have no text, and only say how far the work is.
    #[must_use]
    pub fn replaces(&self, before: &ProgressLine) -> bool {
        self.text.is_empty() && before.text.is_empty()
    }
}

/// What a handler has said since the last time.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    /// The request of the message for its result.
    pub request: ResultRequest,
    /// Number of the attempt.
    pub attempt: u32,
    /// The lines, at most [`MAX_LINES`].
    pub lines: Vec<NewLine>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_between_0_and_1_with_four_decimals() {
        let kept = |fraction: f64| NewLine::new(Some(fraction), "").fraction;
        assert_eq!(kept(0.123_456), Some(0.1235));
        assert_eq!([kept(-1.0), kept(f64::INFINITY), kept(f64::NAN)], [Some(0.0), Some(1.0), None]);
    }

    #[test]
    fn a_text_is_cut_and_only_lines_without_one_are_replaced() {
        let long = NewLine::new(None, &"ä".repeat(1_000));
        assert_eq!(long.text.len(), wire::MAX_ERROR_LEN);
        let at = Timestamp::from_millis(5);
        let line = |text: &str| ProgressLine::new(7, at, 1, NewLine::new(Some(0.5), text));
        let replaces = |text: &str, before: &str| NewLine::new(None, text).replaces(&line(before));
        let all = [replaces("", ""), replaces("", "a"), replaces("a", ""), replaces("a", "a")];
        assert_eq!(all, [true, false, false, false]);
        assert_eq!(line("page 12").to_string(), "50.0 % page 12");
        assert_eq!(line("page 12").to_wire(), "7 5 1 0.5 page 12");
        for text in ["", "page 12", " a  b\n"] {
            assert_eq!(ProgressLine::from_wire(line(text).to_wire().as_bytes()), Some(line(text)));
        }
        let unknown = ProgressLine { fraction: None, ..line("a") };
        assert_eq!(ProgressLine::from_wire(unknown.to_wire().as_bytes()), Some(unknown));
        for other in ["", "1 2 3", "x 5 1 0.5 a", "7 5 1 0.5"] {
            assert_eq!(ProgressLine::from_wire(other.as_bytes()), None, "{other}");
        }
    }
}
