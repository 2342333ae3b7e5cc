//! What is known of a dead letter while it is handled, and the outcomes that its handler may return.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::event::LetterWork;
use millstream_core::wire;
use millstream_core::{BoxError, Converted, DeadLetter, Envelope, IntoOutcome, Outcome};

/// What only a dead letter has, while it is handled.
#[derive(Debug)]
pub struct LetterFacts {
    pub(crate) dead: DeadLetter,
    /// Whether its handler was called: layers may answer without it.
    pub(crate) called: AtomicBool,
    /// Why its payload cannot be read, if something before the codec found that.
    unreadable: Mutex<Option<BoxError>>,
    /// What its handler decided, whatever layers make of it.
    pub(crate) decided: Mutex<Option<DeadLetterOutcome>>,
}

impl LetterFacts {
    /// Creates what is known of a letter before it is handled. `unreadable`: it is no message.
    pub(crate) fn new(dead: DeadLetter, unreadable: Option<BoxError>) -> Self {
        let (called, unreadable, decided) =
            (AtomicBool::new(false), Mutex::new(unreadable), Mutex::default());
        Self { dead, called, unreadable, decided }
    }

    /// Whether its handler was called.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    pub(crate) fn unreadable(&self) -> std::sync::MutexGuard<'_, Option<BoxError>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Outcome of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterOutcome {
    /// Deletes the letter for good.
    Delete,
    /// Sends the message back to its group, and to no other, as a first attempt.
    Replay,
    /// Does the same with another message. Fields of the entry that do not belong to the message are dropped.
    ReplayAs(Envelope),
    /// Keeps the letter. It is handled again after `leave_for`.
    Leave,
    /// Keeps the letter. It is handled again after this time.
    LeaveFor(Duration),
}

/// Types that a handler of dead letters may return.
#[diagnostic::on_unimplemented(
    message = "a handler of dead letters cannot return `{Self}`",
    label = "not a dead letter's outcome",
    note = "return `DeadLetterOutcome`, `Outcome`, `Result<DeadLetterOutcome, E>` or `Result<(), E>`, where `E` is an error type, \
            `String` or `anyhow::Error`"
)]
pub trait IntoDeadLetterOutcome {
    /// Converts the value into an outcome.
    ///
    /// # Errors
    /// The error of the handler: then the letter is left.
    fn into_outcome(self) -> Result<DeadLetterOutcome, BoxError>;
}

impl IntoDeadLetterOutcome for DeadLetterOutcome {
    fn into_outcome(self) -> Result<DeadLetterOutcome, BoxError> {
        Ok(self)
    }
}

/// What a handler with [parts of a message](crate::extract) returns.
impl<O: IntoOutcome> IntoDeadLetterOutcome for Converted<O> {
    fn into_outcome(self) -> Result<DeadLetterOutcome, BoxError> {
        IntoDeadLetterOutcome::into_outcome(IntoOutcome::into_outcome(self))
    }
}

/// What a handler of messages returns: one that is acknowledged deletes the letter, one that is snoozed leaves it for this time, and
/// any other fails.
impl IntoDeadLetterOutcome for Outcome {
    fn into_outcome(self) -> Result<DeadLetterOutcome, BoxError> {
        match self {
            Self::Ack | Self::Reply(_) => Ok(DeadLetterOutcome::Delete),
            Self::Snooze(time) => Ok(DeadLetterOutcome::LeaveFor(time)),
            Self::Retry(error)
            | Self::RetryAfter(_, error)
            | Self::RetryAt(_, error)
            | Self::DeadLetter(error) => Err(error),
            other => Err(format!("unknown outcome {other:?}").into()),
        }
    }
}

/// `Ok` deletes the letter.
impl<E: Into<BoxError>> IntoDeadLetterOutcome for Result<(), E> {
    fn into_outcome(self) -> Result<DeadLetterOutcome, BoxError> {
        self.map(|()| DeadLetterOutcome::Delete).map_err(Into::into)
    }
}

impl<E: Into<BoxError>> IntoDeadLetterOutcome for Result<DeadLetterOutcome, E> {
    fn into_outcome(self) -> Result<DeadLetterOutcome, BoxError> {
        self.map_err(Into::into)
    }
}

impl DeadLetterOutcome {
    /// Returns the action for the store.
    pub fn deed(&self, leave_for: Duration) -> millstream_core::DeadLetterAction {
        use millstream_core::DeadLetterAction;
        match self {
            Self::Delete => DeadLetterAction::Purge,
            Self::Replay => DeadLetterAction::Replay,
            Self::ReplayAs(envelope) => DeadLetterAction::ReplayAs(wire::encode(envelope)),
            Self::Leave => DeadLetterAction::Leave(leave_for),
            Self::LeaveFor(time) => DeadLetterAction::Leave(*time),
        }
    }

    /// Returns the kind of work for observers. `None` if the letter stays.
    pub fn work(&self) -> Option<LetterWork> {
        match self {
            Self::Delete => Some(LetterWork::Purge),
            Self::Replay | Self::ReplayAs(_) => Some(LetterWork::Replay),
            Self::Leave | Self::LeaveFor(_) => None,
        }
    }
}
