//! The error type of all crates: a kind for code to match on, transience for retry loops, a message and a source for
//! people.

use std::error::Error as StdError;
use std::fmt;

/// Result of every fallible function of Millstream.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Boxed error, as handlers and codecs return it.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// Kind of an error, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A topic, group or namespace name breaks the rule of [`crate::name`].
    InvalidName,
    /// A configuration contradicts itself; [`Error::problems`] lists everything that is wrong with it.
    InvalidConfig,
    /// A payload, key or header is over a limit of [`crate::Limits`].
    TooLarge,
    /// A codec could not turn a value into bytes.
    Encode,
    /// A codec could not turn bytes into a value, or an entry is not a message.
    Decode,
    /// The topic, group, entry or resource does not exist.
    NotFound,
    /// Something with this id exists already, and the caller did not want to replace it.
    Exists,
    /// A key holds a type that is not ours: something else uses the same key.
    WrongType,
    /// The lease was lost: another owner has been granted the resource since. Nothing was done.
    Fenced,
    /// A member is not in its group any more: it was dropped, or the server lost its record. It may join again.
    NotMember,
    /// The consumer group vanished from a partition (destroyed, or the stream deleted).
    GroupMissing,
    /// The topic or group was deleted on purpose: whatever worked on it ends, and does not create it again.
    Deleted,
    /// The server is out of memory or a local buffer stayed full: slow down and try again.
    Backpressure,
    /// The server could not be reached or cannot serve now. The request certainly had no effect.
    Unavailable,
    /// The connection was cut or timed out after the request went out: it may or may not have taken effect.
    Unconfirmed,
    /// The server refuses these credentials, this command or these keys.
    Denied,
    /// The server lacks a command or capability that is needed.
    Unsupported,
    /// The producer or consumer was closed.
    Closed,
    /// The server sent an answer that the protocol does not allow.
    Protocol,
}

impl ErrorKind {
    /// Returns the kind as a fixed snake-case word, for metrics labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidName => "invalid_name",
            Self::InvalidConfig => "invalid_config",
            Self::TooLarge => "too_large",
            Self::Encode => "encode",
            Self::Decode => "decode",
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::WrongType => "wrong_type",
            Self::Fenced => "fenced",
            Self::NotMember => "not_member",
            Self::GroupMissing => "group_missing",
            Self::Deleted => "deleted",
            Self::Backpressure => "backpressure",
            Self::Unavailable => "unavailable",
            Self::Unconfirmed => "unconfirmed",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Closed => "closed",
            Self::Protocol => "protocol",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Error of Millstream.
///
/// `Display` is one line; `Debug` is the full report with the source. Neither ever prints a payload.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    problems: Vec<String>,
    source: Option<BoxError>,
}

impl Error {
    /// Creates an error of `kind`. The message is lower case and without a full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), problems: Vec::new(), source: None }))
    }

    /// Returns the same error with `source` as its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the same error with the operation that failed in front of its message: `append to orders/3: …`.
    #[must_use]
    pub fn during(mut self, operation: impl fmt::Display) -> Self {
        self.0.message = format!("{operation}: {}", self.0.message);
        self
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns everything that is wrong with a configuration; empty for every other kind.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.0.problems
    }

    /// Whether the same request may succeed later without any change to it.
    ///
    /// Loops continue after a transient error and back off; callers may retry. After [`ErrorKind::Unconfirmed`] a retry
    /// can do the work twice.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Backpressure | ErrorKind::Unavailable | ErrorKind::Unconfirmed)
    }

    /// Returns a copy for another receiver of the same failure. The source is flattened into the message.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let message = match &self.0.source {
            Some(source) => format!("{}: {source}", self.0.message),
            None => self.0.message.clone(),
        };
        Self(Box::new(Inner { kind: self.0.kind, message, problems: self.0.problems.clone(), source: None }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Collects everything that is wrong with a configuration, so that one error reports all of it.
///
/// ```
/// use millstream_core::error::Problems;
///
/// let mut problems = Problems::new("consumer");
/// problems.require(false, || "the lease ttl is 0 s, at least 100 ms are needed".into());
/// problems.require(false, || "prefetch is 0, at least 1 is needed".into());
/// let error = problems.finish().unwrap_err();
/// assert_eq!(error.problems().len(), 2);
/// assert!(error.to_string().starts_with("invalid consumer: 2 problems: the lease ttl"));
/// ```
#[derive(Debug)]
pub struct Problems {
    what: &'static str,
    found: Vec<String>,
}

impl Problems {
    /// Starts a list for `what` ("producer", "consumer", …).
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, found: Vec::new() }
    }

    /// Adds a problem unless `holds`.
    pub fn require(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.found.push(problem());
        }
    }

    /// Returns the value of a check that succeeded, or adds the error of one that failed and returns `None`.
    pub fn take<T>(&mut self, checked: Result<T>) -> Option<T> {
        match checked {
            Ok(value) => Some(value),
            Err(error) if error.problems().is_empty() => {
                self.found.push(error.to_string());
                None
            }
            Err(error) => {
                self.found.extend_from_slice(error.problems());
                None
            }
        }
    }

    /// Returns `Ok` if no problem was added.
    ///
    /// # Errors
    /// One [`ErrorKind::InvalidConfig`] that lists every problem.
    pub fn finish(self) -> Result<()> {
        if self.found.is_empty() {
            return Ok(());
        }
        let count = self.found.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        let message = format!("invalid {}: {count} {noun}: {}", self.what, self.found.join("; "));
        let mut error = Error::new(ErrorKind::InvalidConfig, message);
        error.0.problems = self.found;
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_by_itself_is_transient() {
        let transient = [ErrorKind::Backpressure, ErrorKind::Unavailable, ErrorKind::Unconfirmed];
        for kind in transient {
            assert!(Error::new(kind, "x").is_transient(), "{kind}");
        }
        for kind in [ErrorKind::Fenced, ErrorKind::WrongType, ErrorKind::Denied, ErrorKind::GroupMissing] {
            assert!(!Error::new(kind, "x").is_transient(), "{kind}");
        }
    }

    #[test]
    fn the_source_and_the_operation_are_kept() {
        let error = Error::new(ErrorKind::Unavailable, "connection refused")
            .with_source(std::io::Error::other("os says no"))
            .during("append");
        assert_eq!(error.to_string(), "append: connection refused");
        assert_eq!(StdError::source(&error).expect("a source").to_string(), "os says no");
        assert_eq!(error.duplicate().to_string(), "append: connection refused: os says no");
    }
}
