//! The recurring role: what is scheduled again and again.
//!
//! A backend keeps what recurs, and when it is due next; it does not know what its rule means. Who finds it due works
//! out the occurrences and [fires](Recurring::fire) them: the step that schedules them is the one that sets the next
//! time, and only if that was not done before. So many instances fire each occurrence once, without a leader.

use async_trait::async_trait;

use crate::error::Result;
use crate::schedule::{OnConflict, Place, Placed, ScheduleId};
use crate::wire::Fields;

/// The most that [`Recurring::due`] gives back.
pub const MAX_DUE: usize = 100;

/// The most occurrences that one [`Recurring::fire`] schedules.
pub const MAX_FIRES: usize = 100;

/// Something that recurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// Its id: unique at its place among what recurs there.
    pub id: ScheduleId,
    /// When it recurs, and what of missed times: text that `millstream-delay` understands, at most 1,024 bytes without
    /// line breaks.
    pub rule: String,
    /// The message that is scheduled each time.
    pub fields: Fields,
    /// When it is due next: milliseconds since 1970 by the server's clock; `None` if never again.
    pub next: Option<u64>,
    /// Whether it is paused: then it is not due.
    pub paused: bool,
}

/// What is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueRecurrences {
    /// The server's time: milliseconds since 1970.
    pub now: u64,
    /// What is due and not paused, by due time.
    pub recurrences: Vec<Recurrence>,
}

/// Keeps what recurs.
#[async_trait]
pub trait Recurring: Send + Sync {
    /// Keeps something that recurs. A repeated call with [`OnConflict::Keep`] does no harm; with
    /// [`OnConflict::Replace`] rule, message and next time are replaced, but one that is paused stays paused, and one that
    /// is not goes on: so a pause of somebody else is not undone by who deploys.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists); [`ErrorKind::Backpressure`](crate::ErrorKind::Backpressure);
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed>;

    /// Forgets it. What it has scheduled already stays. Gives back whether it was there.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool>;

    /// Pauses it (`None`), or lets it go on with `next` as its next time. Gives back whether it is there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<u64>) -> Result<bool>;

    /// One that recurs, paused or over or not; `None` if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>>;

    /// What recurs, by id, behind `after`; up to `limit`, at most [`MAX_DUE`].
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>>;

    /// What is due, at most [`MAX_DUE`], and the server's time.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    async fn due(&self, place: &Place) -> Result<DueRecurrences>;

    /// The server's clock: milliseconds since 1970. Nothing is changed, whatever is due.
    ///
    /// # Errors
    /// Transient ones.
    async fn now(&self) -> Result<u64>;

    /// Schedules the message of a recurrence at each of `fires` (milliseconds since 1970, at most [`MAX_FIRES`]) and
    /// sets its next time, in one step; if it is not paused and is still due at `expected`, else nothing is done: false.
    /// The id of each is `<id>@<time>`; one that waits already under it is kept. With `next` as `None` it never recurs
    /// again, but is kept.
    ///
    /// # Errors
    /// As [`put`](Self::put). After a lost reply, ask again what is due.
    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[u64],
        expected: u64,
        next: Option<u64>,
    ) -> Result<bool>;
}
