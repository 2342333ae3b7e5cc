//! The steps role: what handlers of messages and tasks have done so far, stored under the right by which they are handled.
//!
//! The steps of a message are beside it for each group, and go with it: with the settlement that ends it they are gone, and a dead letter has them in its
//! [header](crate::steps::STEPS_HEADER).

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::log::ProgressRight;
use crate::timestamp::Timestamp;

pub use crate::message::steps::{
    MAX_STEP_NAME, MAX_STEPS, OF_MEMBERS, STEPS_HEADER, StepKind, StepRecord, StepWait, WorkId, check_name,
    check_signal, too_large,
};

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Signalled {
    /// It is stored, and the message that waits for it is due now.
    Woken,
    /// It is stored. Nobody waits for it yet: whoever does finds it.
    Stored,
    /// One of this name is there already, which stays. A call that is repeated after a lost answer has this too.
    Known,
    /// The wait for it was over: nothing was stored.
    Late,
    /// There is no such message or task: nothing was stored.
    Gone,
}

impl Signalled {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Stored => "stored",
            Self::Known => "known",
            Self::Late => "late",
            Self::Gone => "gone",
        }
    }
}

/// Stores what handlers have done.
#[async_trait]
pub trait Steps: Send + Sync {
    /// Returns what is stored of a message or task, and the time by the server's clock. Steps in the header of the message are not among them.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) for what is none of ours; transient ones.
    async fn read(&self, id: &WorkId) -> Result<(Timestamp, Vec<StepRecord>)>;

    /// Adds records to what is stored of a message or task, under the right by which it is handled. `id` is that of the message's entry in the log, or of the
    /// task. Without records it only says whether the right is still there.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if the right is lost, [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) above [`MAX_STEPS`]:
    /// nothing was stored. After a transient error they may be stored, and the call can be repeated.
    async fn store(&self, right: &ProgressRight, id: &str, records: &[StepRecord]) -> Result<()>;

    /// Signals a message or task: the wait for a signal of this name ends. It may come before the wait.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) for a name, [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) above [`MAX_STEPS`],
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) if the group is not on the log; transient ones, after which the call can be
    /// repeated.
    async fn signal(&self, id: &WorkId, name: &str, value: Bytes) -> Result<Signalled>;
}
