//! Parameters of a request: each is bounded before it is used.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::failure::Failure;

/// Longest parameter that is a search text or a name, in bytes.
const LONGEST: usize = 1_024;

/// Fields of a form, or of a query.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn new(fields: Vec<(String, String)>) -> Self {
        Self(fields)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all names and values as they were sent, in their order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns all values as they were sent, in their order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, value)| value.as_str())
    }

    /// Returns the first value of this name as it was sent.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns a value that is not empty.
    ///
    /// # Errors
    /// A text that is too long.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Failure> {
        match self.raw(name).filter(|text| !text.is_empty()) {
            Some(text) if text.len() > LONGEST => {
                Err(Failure::invalid(format!("{name} is longer than {LONGEST} bytes")).of(name))
            }
            text => Ok(text),
        }
    }

    /// Returns a value of a type.
    ///
    /// # Errors
    /// A value that is none.
    pub(crate) fn parsed<T: FromStr<Err: fmt::Display>>(&self, name: &str) -> Result<Option<T>, Failure> {
        let parse = |text: &str| {
            let bad = |error| Failure::invalid(format!("{name} {text:?}: {error}")).of(name);
            text.trim().parse().map_err(bad)
        };
        self.text(name)?.map(parse).transpose()
    }

    /// Returns a value that must be given.
    ///
    /// # Errors
    /// A missing value, or one that is none.
    pub(crate) fn needed<T: FromStr<Err: fmt::Display>>(&self, name: &str) -> Result<T, Failure> {
        self.parsed(name)?.ok_or_else(|| Failure::invalid(format!("{name} is missing")).of(name))
    }

    /// Fails unless the confirmation is what the form asked for: a name, or a number, which may have separators.
    ///
    /// # Errors
    /// Another text.
    pub(crate) fn confirmed(&self, expected: &str) -> Result<(), Failure> {
        let typed = self.text("confirm")?.unwrap_or_default().trim();
        if typed == expected || typed.replace([',', ' '], "") == expected {
            return Ok(());
        }
        Err(Failure::invalid(format!("nothing was changed: type {expected} to confirm")).of("confirm"))
    }

    /// Returns a number within bounds: one that is outside, or none, becomes the nearest, or the default.
    pub(crate) fn clamped(&self, name: &str, bounds: RangeInclusive<u64>, default: u64) -> u64 {
        let text = self.raw(name).unwrap_or_default().trim();
        let number = match text.parse::<u64>() {
            Ok(number) => number,
            Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => u64::MAX,
            Err(_) => default,
        };
        number.clamp(*bounds.start(), *bounds.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(value: &str) -> Params {
        Params::new(vec![("n".into(), value.into())])
    }

    #[test]
    fn numbers_are_clamped() {
        for (text, expected) in [
            ("7", 7),
            ("0", 1),
            ("999999999999999999999999999", 100),
            ("-1", 20),
            ("x", 20),
            ("", 20),
            (" 8 ", 8),
        ] {
            assert_eq!(params(text).clamped("n", 1..=100, 20), expected, "{text:?}");
        }
        assert_eq!(params("7").clamped("other", 1..=100, 20), 20);
    }

    #[test]
    fn texts_are_bounded() {
        assert!(params(&"x".repeat(LONGEST + 1)).text("n").is_err());
        assert_eq!(params("").text("n").expect("fits"), None);
        assert!(params("a/b").parsed::<millstream::TopicName>("n").is_err());
        assert!(params("").needed::<millstream::TopicName>("n").is_err());
    }
}
