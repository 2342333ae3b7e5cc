//! The error type of all crates: a kind for code to match on, transience for retry loops, a message and a source for
//! people.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

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

/// Error of Millstream. One pointer wide, and cheap to clone: clones share everything, also the source.
///
/// `Display` is one line: the operations that failed, from the outermost to the innermost, and the message, as in `append to
/// orders/3: connection refused`. `Debug` is the full report with the source. Neither ever prints a payload.
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{message}", Operations(.operations))]
struct Inner {
    kind: ErrorKind,
    message: String,
    /// Innermost first.
    operations: Vec<String>,
    location: Option<Location>,
    problems: Vec<String>,
    source: Option<Source>,
}

/// A source that clones of an error share. It is no error itself, but dereferences to one, so that
/// [`source`](StdError::source) returns the original error, which can be downcast.
#[derive(Clone, Debug)]
struct Source(Arc<dyn StdError + Send + Sync + 'static>);

impl Deref for Source {
    type Target = dyn StdError + Send + Sync + 'static;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// Topic or partition that an error concerns. Made of the name of a topic, or of a
/// [`TopicPartition`](crate::TopicPartition).
#[derive(Clone, Debug)]
pub struct Location {
    // Plain values: names are checked with the error, so the error cannot depend on names.
    pub(crate) topic: Arc<str>,
    pub(crate) partition: Option<u32>,
}

/// Formats operations as the beginning of a line.
struct Operations<'a>(&'a [String]);

impl fmt::Display for Operations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().rev().try_for_each(|operation| write!(f, "{operation}: "))
    }
}

impl Error {
    /// Creates an error of `kind`. The message is lower case and without a full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (message, operations, problems) = (message.into(), Vec::new(), Vec::new());
        Self(Arc::new(Inner { kind, message, operations, location: None, problems, source: None }))
    }

    /// Returns the same error with `source` as its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.inner().source = Some(Source(Arc::from(source.into())));
        self
    }

    /// Returns the same error with the operation that failed: `append to orders/3`. One that is added later is the outer
    /// one.
    #[must_use]
    pub fn during(mut self, operation: impl fmt::Display) -> Self {
        self.inner().operations.push(operation.to_string());
        self
    }

    /// Returns the same error with the topic or partition that it concerns, unless it has one already:
    /// `error.at(&topic_partition)`, `error.at(&topic_name)`.
    #[must_use]
    pub fn at(mut self, location: impl Into<Location>) -> Self {
        if self.0.location.is_none() {
            self.inner().location = Some(location.into());
        }
        self
    }

    /// Clones share one allocation, so an error that has clones is copied before it is changed.
    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without the operations.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the outermost operation that failed, if it is known: `append to orders/3`.
    #[must_use]
    pub fn operation(&self) -> Option<&str> {
        self.operations().next()
    }

    /// Returns the operations that failed, from the outermost to the innermost.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.0.operations.iter().rev().map(String::as_str)
    }

    /// Returns the name of the topic that it concerns, if it is known.
    #[must_use]
    pub fn topic(&self) -> Option<&str> {
        self.0.location.as_ref().map(|location| &*location.topic)
    }

    /// Returns the number of the partition of [`topic`](Self::topic) that it concerns, if it is known.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        self.0.location.as_ref()?.partition
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
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, message, operations: _, location: _, problems: _, source } = &*self.0;
        let mut out = f.debug_struct("Error");
        out.field("kind", kind);
        if let Some(operation) = self.operation() {
            out.field("operation", &operation);
        }
        if self.0.operations.len() > 1 {
            let inner: Vec<_> = self.operations().skip(1).collect();
            out.field("within", &inner);
        }
        if let Some(topic) = self.topic() {
            out.field("topic", &topic);
        }
        if let Some(partition) = self.partition() {
            out.field("partition", &partition);
        }
        out.field("message", message);
        if let Some(source) = source {
            out.field("source", &source.0);
        }
        out.finish()
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
        error.inner().problems = self.found;
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::TopicName;
    use crate::topic::TopicPartition;

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
    fn the_source_and_the_operations_are_kept_by_clones() {
        let error = Error::new(ErrorKind::Unavailable, "connection refused")
            .with_source(std::io::Error::other("os says no"))
            .during("script append")
            .during("append to orders/3");
        for error in [error.clone(), error] {
            assert_eq!(error.to_string(), "append to orders/3: script append: connection refused");
            assert_eq!(error.message(), "connection refused");
            assert_eq!(error.operation(), Some("append to orders/3"));
            assert_eq!(error.operations().collect::<Vec<_>>(), ["append to orders/3", "script append"]);
            let source = StdError::source(&error).expect("a source");
            assert_eq!(source.to_string(), "os says no");
            assert!(source.downcast_ref::<std::io::Error>().is_some(), "the original error: {source:?}");
        }
    }

    #[test]
    fn a_clone_is_changed_alone() {
        let error = Error::new(ErrorKind::Fenced, "lost");
        let other = error.clone().during("settle").at(&TopicPartition::new(name("orders"), 3));
        assert_eq!((error.to_string(), error.operation(), error.topic()), ("lost".into(), None, None));
        assert_eq!(other.to_string(), "settle: lost");
    }

    #[test]
    fn the_first_place_stays() {
        let inner = TopicPartition::new(name("orders"), 3);
        let error = Error::new(ErrorKind::Fenced, "lost").at(&inner);
        let error = error.at(&TopicPartition::new(name("bills"), 9)).at(&name("bills"));
        assert_eq!((error.topic(), error.partition()), (Some("orders"), Some(3)));
        let error = Error::new(ErrorKind::NotFound, "gone").at(&inner.topic).at(&inner);
        assert_eq!((error.topic(), error.partition()), (Some("orders"), None), "of the whole topic");
        assert_eq!(error.to_string(), "gone", "places are fields, not text");
    }

    #[test]
    fn a_result_is_as_small_as_a_pointer() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    fn name(name: &str) -> TopicName {
        name.parse().expect("a name")
    }
}
