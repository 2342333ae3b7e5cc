//! The cancels role: messages and tasks that are cancelled from outside, while they wait or are handled.
//!
//! What waits to be retried or claimed is removed in one step. For anything else there is a *mark*: whoever may begin the message reads the marks
//! first, begins nothing that has one, and says so in the mark. So a mark that is [answered](CancelMark::is_answered) holds for all later
//! owners too. A mark that is not answered promises nothing: the handler may run.

use std::time::Duration;

use async_trait::async_trait;

use crate::batches::BatchId;
use crate::error::{Error, ErrorKind, Result};
use crate::log::ProgressRight;
use crate::results::StoredResult;

pub use crate::partition::WorkPlace;

/// Most marks of one place. Beyond 1,000, those that are a week old go; but not those of messages that are still to be read.
pub const MAX_MARKS: usize = 10_000;

impl WorkPlace {
    /// Returns the error of a place that has [`MAX_MARKS`].
    #[must_use]
    pub fn full(&self) -> Error {
        let why = format!("{self} has {MAX_MARKS} marks of cancelled messages: nobody has answered them");
        Error::new(ErrorKind::Backpressure, why)
    }
}

/// What is known of a message or task that was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CancelMark {
    /// Nobody has answered. Its handler may run.
    Asked,
    /// It had not been read, and no handler will begin: whoever reads it settles it.
    Ahead,
    /// Its handler had not begun, or not for this attempt, and will not.
    Cancelled,
    /// It was handed out before, to an owner that lost its right. No handler will begin, but that one may still run.
    Withdrawn,
    /// Its handler has ended after it was asked to, and it is not handled again. If it was handed out before, it is
    /// [`Withdrawn`](Self::Withdrawn).
    Stopped,
}

impl CancelMark {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Asked, Self::Ahead, Self::Cancelled, Self::Withdrawn, Self::Stopped];

    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Ahead => "ahead",
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
            Self::Stopped => "stopped",
        }
    }

    /// Reads the word. `None` for any other.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }

    /// Whether it says what becomes of the message.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        !matches!(self, Self::Asked)
    }

    /// Whether it replaces an earlier one: an answer stays, but for that of a message that was not read.
    #[must_use]
    pub const fn replaces(self, earlier: Self) -> bool {
        matches!((earlier, self), (Self::Asked, _) | (Self::Ahead, Self::Cancelled))
    }
}

/// What is known of a message or task by who cancels it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelRequest {
    /// Number under which a task asks for its result: no other task with this id is meant.
    pub number: Option<u128>,
    /// Whether it was seen where it waits, as a retry that is parked or a task: then it is removed there. Otherwise it stays, without a mark.
    pub removes: bool,
    /// The result that is stored if it is removed.
    pub result: Option<StoredResult>,
}

/// Message or task with a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Id of the message's entry in the log, or of the task.
    pub id: String,
    /// The mark.
    pub mark: CancelMark,
    /// Token of the claim that a task has, which may have ended since; empty of a message. Another claim is of another attempt, or of another
    /// task with this id.
    pub claim: String,
}

/// The marks of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelMarks {
    /// Number of messages and batches that were marked so far: another one after each.
    pub version: u64,
    /// All marks.
    pub marks: Vec<Marked>,
    /// Batches whose members are all cancelled there, those that come later too.
    pub batches: Vec<BatchId>,
}

/// Cancels messages and tasks.
#[async_trait]
pub trait Cancels: Send + Sync {
    /// Cancels one message or task, and returns its mark:
    ///
    /// - A retry that is parked, or a task that waits, is removed if the request says so, and its result is stored in the same step:
    ///   [`Cancelled`](CancelMark::Cancelled).
    /// - A message that its group has not read, while the last lease of the partition was released, gets the mark [`Ahead`](CancelMark::Ahead).
    /// - A task that is not there has no mark: `None`. One that waits since its worker lost it is [`Withdrawn`](CancelMark::Withdrawn).
    /// - Anything else has the mark that it had, or is [`Asked`](CancelMark::Asked) for. This is the mark too of a message that is nowhere: only
    ///   who looks for it finds that.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if the place has [`MAX_MARKS`]; [`ErrorKind::GroupMissing`] if the group is not on the log.
    async fn cancel(
        &self,
        place: &WorkPlace,
        id: &str,
        request: &CancelRequest,
    ) -> Result<Option<CancelMark>>;

    /// Cancels all members of a batch at a place, those that come there later too: none of them begins, and handlers that run are asked to stop.
    /// Who settles one leaves its [note](crate::Batches), which is the answer. It stays for [`KEPT_OPEN`](crate::batches::KEPT_OPEN).
    ///
    /// # Errors
    /// Those of the server.
    async fn cancel_batch(&self, place: &WorkPlace, batch: &BatchId) -> Result<()>;

    /// Returns the mark of one message or task. While it is [`Asked`](CancelMark::Asked) for, waits for an answer for up to `wait`.
    ///
    /// # Errors
    /// Those of the server.
    async fn mark(&self, place: &WorkPlace, id: &str, wait: Duration) -> Result<Option<CancelMark>>;

    /// Removes the mark of a message that was settled before somebody saw it. One that is answered stays.
    ///
    /// # Errors
    /// Those of the server.
    async fn forget(&self, place: &WorkPlace, id: &str) -> Result<()>;

    /// Returns the marks of a place if their [version](CancelMarks::version) is another one; waits up to `wait` for that. `None` if it did not
    /// change.
    ///
    /// # Errors
    /// Those of the server.
    async fn marks(&self, place: &WorkPlace, version: u64, wait: Duration) -> Result<Option<CancelMarks>>;

    /// Notes that a place has [many readers](crate::Shared), none of which owns it: from then on no message gets the mark
    /// [`Ahead`](CancelMark::Ahead). Each reader notes it before it reads.
    ///
    /// # Errors
    /// Those of the server.
    async fn share(&self, place: &WorkPlace) -> Result<()>;

    /// Answers for a message or task, under the right by which it is handled. Returns the mark that it has then: another one if that
    /// [stays](CancelMark::replaces), or if [`Ahead`](CancelMark::Ahead) is said by who has no lease of the partition, or of what the group has read.
    /// `None` if it has none: then it was not cancelled, and is handled. Whoever drops a message calls this before.
    ///
    /// A task is removed, and `result` stored in the same step; a message is settled by its owner, after this.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if the right is lost.
    async fn answer(
        &self,
        right: &ProgressRight,
        id: &str,
        mark: CancelMark,
        result: Option<&StoredResult>,
    ) -> Result<Option<CancelMark>>;
}
