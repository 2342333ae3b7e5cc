//! Outcomes: the results that a handler, or the check before it, can return for a message.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use serde::Serialize;

use crate::error::BoxError;
use crate::results::Reply;
use crate::timestamp::Timestamp;

/// Result of a handler for the message that it was given.
///
/// Most handlers return `Result<(), E>`: `Ok` is [`Outcome::Ack`], `Err` is [`Outcome::Retry`].
#[non_exhaustive]
pub enum Outcome {
    /// Done.
    Ack,
    /// Done, with a reply: it is stored with the settlement if the message asks for its [result](crate::results).
    Reply(Reply),
    /// Failed: the retry policy decides when the message is retried, or gives it up.
    Retry(BoxError),
    /// Failed: retried after this time. It counts as an attempt, and the policy's last attempt is the last.
    RetryAfter(Duration, BoxError),
    /// Failed: retried at this time, by the server's clock; at once if it is past. It counts as an attempt, and the
    /// policy's last attempt is the last.
    RetryAt(Timestamp, BoxError),
    /// Not now: redelivered after this time as the same attempt. This is no failure: no attempt is used, no error is
    /// recorded and the policy is not called, so a message can be postponed for ever. With no time, a handler that always
    /// returns this is called as fast as the server answers.
    Snooze(Duration),
    /// Never retried: it becomes a dead letter.
    DeadLetter(BoxError),
}

impl Outcome {
    /// Returns [`Outcome::Reply`] with a value as JSON: done, and this is the reply.
    #[must_use]
    pub fn reply(value: &impl Serialize) -> Self {
        Self::Reply(Reply::json(value))
    }

    /// Whether the message is done: [`Outcome::Ack`] or [`Outcome::Reply`].
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Ack | Self::Reply(_))
    }

    /// Returns [`Outcome::Retry`]: failed with `error`, and the retry policy decides.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(error.into())
    }

    /// Returns [`Outcome::RetryAfter`]: failed with `error`, retried after `delay`.
    pub fn retry_after(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self::RetryAfter(delay, error.into())
    }

    /// Returns [`Outcome::RetryAt`]: failed with `error`, retried at `time` by the server's clock: a [`Timestamp`], or a
    /// [`SystemTime`](std::time::SystemTime), which is rounded up to a whole millisecond.
    pub fn retry_at(time: impl Into<Timestamp>, error: impl Into<BoxError>) -> Self {
        Self::RetryAt(time.into(), error.into())
    }

    /// Returns [`Outcome::RetryAfter`] with no delay: failed with `error`, retried at once, behind messages that wait
    /// already.
    pub fn requeue(error: impl Into<BoxError>) -> Self {
        Self::RetryAfter(Duration::ZERO, error.into())
    }

    /// Returns [`Outcome::Snooze`]: not now, redelivered after `delay` as the same attempt.
    #[must_use]
    pub fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// Returns [`Outcome::DeadLetter`]: never retried, because of `error`.
    pub fn dead_letter(error: impl Into<BoxError>) -> Self {
        Self::DeadLetter(error.into())
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack => f.write_str("Ack"),
            Self::Reply(reply) => reply.fmt(f),
            Self::Retry(error) => write!(f, "Retry({error})"),
            Self::RetryAfter(delay, error) => write!(f, "RetryAfter({delay:?}, {error})"),
            Self::RetryAt(time, error) => write!(f, "RetryAt({time:?}, {error})"),
            Self::Snooze(delay) => write!(f, "Snooze({delay:?})"),
            Self::DeadLetter(error) => write!(f, "DeadLetter({error})"),
        }
    }
}

/// Return types that a handler may have.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not an outcome",
    note = "return `()`, an `Outcome`, a `Reply`, `Result<(), E>`, `Result<Outcome, E>` or `Result<Reply, E>`, where `E` is an \
            error type, `String` or `anyhow::Error`"
)]
pub trait IntoOutcome {
    /// Whether a handler that returns this is there to reply: then its group also stores the result of a message that failed, or was
    /// handled without its handler.
    const REPLIES: bool = false;

    /// Converts the value to its outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for Reply {
    const REPLIES: bool = true;

    fn into_outcome(self) -> Outcome {
        Outcome::Reply(self)
    }
}

impl<E: Into<BoxError>> IntoOutcome for Result<Reply, E> {
    const REPLIES: bool = true;

    fn into_outcome(self) -> Outcome {
        self.map_or_else(Outcome::retry, Outcome::Reply)
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Ack
    }
}

impl<E: Into<BoxError>> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(()) => Outcome::Ack,
            Err(error) => Outcome::retry(error),
        }
    }
}

impl<E: Into<BoxError>> IntoOutcome for Result<Outcome, E> {
    fn into_outcome(self) -> Outcome {
        self.unwrap_or_else(Outcome::retry)
    }
}

/// Outcome of a value of type `O`, which was converted already. Wrappers of handlers return it, so that it is still known whether the
/// handler inside is there to [reply](IntoOutcome::REPLIES). Derefs to the outcome.
pub struct Converted<O> {
    outcome: Outcome,
    of: PhantomData<fn() -> O>,
}

impl<O: IntoOutcome> Converted<O> {
    /// Converts a value.
    pub fn new(value: O) -> Self {
        Self::from(value.into_outcome())
    }
}

impl<O> From<Outcome> for Converted<O> {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, of: PhantomData }
    }
}

impl<O: IntoOutcome> IntoOutcome for Converted<O> {
    const REPLIES: bool = O::REPLIES;

    fn into_outcome(self) -> Outcome {
        self.outcome
    }
}

impl<O> Deref for Converted<O> {
    type Target = Outcome;

    fn deref(&self) -> &Outcome {
        &self.outcome
    }
}

impl<O> fmt::Debug for Converted<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcome.fmt(f)
    }
}

/// Result of a batch handler.
#[derive(Debug)]
pub enum BatchOutcome {
    /// One outcome for all messages.
    All(Outcome),
    /// One outcome per message, in the order of the batch. If the number of outcomes differs from the number of messages,
    /// all messages have failed.
    Each(Vec<Outcome>),
    /// An outcome of their own for some messages, and one outcome for all others.
    Except {
        /// One element per message, in the order of the batch; `None` for a message that has the outcome of the others. If the
        /// number of elements differs from the number of messages, all messages have failed.
        own: Vec<Option<Outcome>>,
        /// Outcome of all messages without one of their own.
        others: Outcome,
    },
}

/// Types that a batch handler may return.
#[diagnostic::on_unimplemented(
    message = "a batch handler cannot return `{Self}`",
    label = "not an outcome of a batch",
    note = "return for all `()`, an `Outcome`, `Result<(), E>` or `Result<Outcome, E>`; or for each a `Vec` of these, \
            or a `Result<Vec<_>, E>`, where `E` is an error type, `String` or `anyhow::Error`"
)]
pub trait IntoBatchOutcome {
    /// Converts the value into an outcome.
    fn into_batch_outcome(self) -> BatchOutcome;
}

impl IntoBatchOutcome for BatchOutcome {
    fn into_batch_outcome(self) -> BatchOutcome {
        self
    }
}

impl IntoBatchOutcome for Outcome {
    fn into_batch_outcome(self) -> BatchOutcome {
        BatchOutcome::All(self)
    }
}

impl IntoBatchOutcome for () {
    fn into_batch_outcome(self) -> BatchOutcome {
        BatchOutcome::All(Outcome::Ack)
    }
}

impl<R: IntoBatchOutcome, E: Into<BoxError>> IntoBatchOutcome for Result<R, E> {
    fn into_batch_outcome(self) -> BatchOutcome {
        match self {
            Ok(said) => said.into_batch_outcome(),
            Err(error) => BatchOutcome::All(Outcome::retry(error)),
        }
    }
}

impl<O: IntoOutcome> IntoBatchOutcome for Vec<O> {
    fn into_batch_outcome(self) -> BatchOutcome {
        BatchOutcome::Each(self.into_iter().map(IntoOutcome::into_outcome).collect())
    }
}

/// Result of a check of a message or task that may have been handled before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Check {
    /// Runs the handler.
    Run,
    /// Settles it as done, without calling the handler.
    Complete,
    /// Snoozes it: it comes back after this time, and is checked again then. No attempt is used.
    Snooze(Duration),
    /// Gives it up, for this reason.
    DeadLetter(String),
}

/// Return types that a check may have: a [`Check`], or a `Result` of one, whose error is a failed attempt.
#[diagnostic::on_unimplemented(
    message = "a check cannot return `{Self}`",
    label = "not the result of a check",
    note = "return a `Check` or `Result<Check, E>`, where `E` is an error type, `String` or `anyhow::Error`"
)]
pub trait IntoCheck {
    /// Converts the value to a check.
    ///
    /// # Errors
    /// The reason why it could not be checked.
    fn into_check(self) -> Result<Check, BoxError>;
}

impl IntoCheck for Check {
    fn into_check(self) -> Result<Check, BoxError> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> IntoCheck for Result<Check, E> {
    fn into_check(self) -> Result<Check, BoxError> {
        self.map_err(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ok_acks_and_err_retries() {
        assert!(matches!(().into_outcome(), Outcome::Ack));
        assert!(matches!(Ok::<(), String>(()).into_outcome(), Outcome::Ack));
        assert!(matches!(Err::<(), _>("no").into_outcome(), Outcome::Retry(_)));
        let said: Result<Outcome, BoxError> = Ok(Outcome::dead_letter("no"));
        assert!(matches!(said.into_outcome(), Outcome::DeadLetter(_)));
    }
}
