//! A dead letter as a handler receives it, and the outcomes that a handler may return.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_core::event::LetterWork;
use millstream_core::panics::decode;
use millstream_core::wire;
use millstream_core::{BoxError, Codec, DeadLetter, Envelope, Limits};

/// A dead letter as a handler receives it.
pub struct Letter<T> {
    /// The payload, or the error of decoding it: undecodable messages become dead letters, too.
    pub payload: Result<T, BoxError>,
    /// The letter, with its original entry byte for byte. [`DeadLetter::envelope`] returns key and headers.
    pub dead: DeadLetter,
}

/// Without the payload: it may be a secret.
impl<T> fmt::Debug for Letter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letter")
            .field("is_decoded", &self.payload.is_ok())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

impl<T> Letter<T> {
    pub(super) fn read(dead: DeadLetter, codec: &dyn Codec<T>) -> Self {
        let payload = dead.envelope(&Limits::NONE).map_err(BoxError::from);
        Self { payload: payload.and_then(|envelope| decode(codec, &envelope.payload)), dead }
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
    /// Keeps the letter. It is handled again after [`leave_for`](super::DeadLetterConfig::leave_for).
    Leave,
    /// Keeps the letter. It is handled again after this time.
    LeaveFor(Duration),
}

/// Types that a handler of dead letters may return.
#[diagnostic::on_unimplemented(
    message = "a handler of dead letters cannot return `{Self}`",
    label = "not a dead letter's outcome",
    note = "return `DeadLetterOutcome`, `Result<DeadLetterOutcome, E>` or `Result<(), E>`, where `E` is an error type, \
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

/// Counts of a dead-letter consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterReport {
    /// Letters that were deleted.
    pub deleted: u64,
    /// Letters that went back to their group.
    pub replayed: u64,
    /// Letters that were left, for whatever reason.
    pub left: u64,
    /// Letters, among those that were left, whose handler failed or panicked.
    pub failed: u64,
    /// Letters that another client had claimed when their handler ended: the outcome came too late.
    pub lost: u64,
    /// Rounds over all partitions that found no letter to handle.
    pub idle: u64,
}

/// The counters behind a [`DeadLetterReport`].
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) deleted: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) left: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) idle: AtomicU64,
    /// Letters that were passed to the handler.
    pub(super) begun: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> DeadLetterReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeadLetterReport {
            deleted: read(&self.deleted),
            replayed: read(&self.replayed),
            left: read(&self.left),
            failed: read(&self.failed),
            lost: read(&self.lost),
            idle: read(&self.idle),
        }
    }
}

impl DeadLetterOutcome {
    /// Returns the action for the store.
    pub(super) fn deed(&self, leave_for: Duration) -> millstream_core::DeadLetterAction {
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
    pub(super) fn work(&self) -> Option<LetterWork> {
        match self {
            Self::Delete => Some(LetterWork::Purge),
            Self::Replay | Self::ReplayAs(_) => Some(LetterWork::Replay),
            Self::Leave | Self::LeaveFor(_) => None,
        }
    }
}
