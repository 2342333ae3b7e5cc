//! The recurring role: messages that are scheduled repeatedly.
//!
//! A backend stores recurring schedules and their next due times; it does not interpret their rules. A worker that finds
//! one due computes the occurrences and [fires](Recurring::fire) them. The step that schedules them also sets the next
//! due time, and only if no other worker has done so before. So many instances fire each occurrence once, without a
//! leader.

use async_trait::async_trait;

use crate::error::Result;
use crate::schedule::{OnConflict, Place, Placed, ScheduleId};
use crate::timestamp::Timestamp;
use crate::wire::Fields;

/// The most schedules that [`Recurring::due`] returns.
pub const MAX_DUE: usize = 100;

/// The most occurrences that one [`Recurring::fire`] schedules.
pub const MAX_FIRES: usize = 100;

/// Recurring schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// Id: unique among the recurring schedules of its place.
    pub id: ScheduleId,
    /// Rule for its occurrences, and the policy for missed runs: text that `millstream-delay` parses, at most 1,024 bytes
    /// without line breaks.
    pub rule: String,
    /// Message that is scheduled for each occurrence.
    pub fields: Fields,
    /// Next due time by the server's clock; `None` if it will not fire again.
    pub next: Option<Timestamp>,
    /// Whether it is paused: a paused schedule is not due.
    pub paused: bool,
}

/// Recurring schedules that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DueRecurrences {
    /// Time of the server.
    pub now: Timestamp,
    /// Schedules that are due and not paused, in the order of their due times.
    pub recurrences: Vec<Recurrence>,
}

impl DueRecurrences {
    /// Creates a result as a backend returns it.
    #[must_use]
    pub fn new(now: Timestamp, recurrences: Vec<Recurrence>) -> Self {
        Self { now, recurrences }
    }
}

/// Keeps recurring schedules.
#[async_trait]
pub trait Recurring: Send + Sync {
    /// Stores a recurring schedule. A repeated call with [`OnConflict::Keep`] has no effect. With [`OnConflict::Replace`]
    /// rule, message and next due time are replaced; a schedule that is paused stays paused, and one that is not stays
    /// active, so that a deployment does not undo an operator's pause.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists); [`ErrorKind::Backpressure`](crate::ErrorKind::Backpressure);
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed>;

    /// Deletes a recurring schedule. Messages that it has scheduled already stay. Returns whether it existed.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool>;

    /// Pauses a recurring schedule (`None`), or resumes it with `next` as its next due time. Returns whether it exists.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool>;

    /// Returns a recurring schedule, whether it is paused, has ended or is active; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>>;

    /// Returns the recurring schedules after `after`, in the order of ids; up to `limit`, at most [`MAX_DUE`].
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>>;

    /// Returns the schedules that are due, at most [`MAX_DUE`], and the server's time.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn due(&self, place: &Place) -> Result<DueRecurrences>;

    /// Schedules the message of a recurrence at each of `fires` (at most [`MAX_FIRES`], oldest first) and sets its next
    /// due time, in one step. Returns the number of times that are done; `None` if it is paused, or not due at
    /// `expected` any more: then nothing is done. The id of each message is `<id>@<milliseconds since 1970>`; a message
    /// that waits already under it is kept. With `next` as `None` it does not fire again, but is kept.
    ///
    /// With large messages a backend may take several steps: after each it is due at the first time that is left. If
    /// another caller goes on from there, or it is paused, fewer times are done.
    ///
    /// # Errors
    /// As [`put`](Self::put). After a lost reply, call [`due`](Self::due) again.
    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>>;
}
