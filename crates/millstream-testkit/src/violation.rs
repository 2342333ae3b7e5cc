//! Violations: what a case returns when a backend breaks a rule.

use std::fmt;

use millstream_core::{Error, ErrorKind};

/// The result of a case.
pub type Verdict = Result<(), Violation>;

/// A behaviour of a backend that its role does not allow.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation(String);

impl Violation {
    /// Creates a violation from a message: the observed behaviour, and the expected one.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats as `Display` does, since a failing test prints the debug form.
impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

impl From<Error> for Violation {
    fn from(error: Error) -> Self {
        Self(format!("unexpected error of kind {}: {error}", error.kind()))
    }
}

/// Returns a violation with this message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::violation::Violation::new(format!($($message)+)));
        }
    };
}

/// Returns a violation with both values unless they are equal.
macro_rules! equal {
    ($found:expr, $expected:expr, $($what:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                $crate::violation::ensure!(
                    *found == *expected,
                    "{}: {found:?}, expected {expected:?}",
                    format_args!($($what)+)
                );
            }
        }
    };
}

pub(crate) use {ensure, equal};

/// Returns a violation unless `result` is an error of `kind`.
pub(crate) fn refused<T>(result: Result<T, Error>, kind: ErrorKind, what: &str) -> Verdict {
    match result {
        Ok(_) => Err(Violation::new(format!("{what} succeeded, expected an error of kind {kind}"))),
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => {
            Err(Violation::new(format!("{what} failed as {} ({error}), expected {kind}", error.kind())))
        }
    }
}
