//! The recurring role: messages that are scheduled repeatedly.
//!
//! A backend stores recurring schedules and their next due times; it does not interpret their rules. A worker that finds
//! one due computes the occurrences and [fires](Recurring::fire) them. The step that schedules them also sets the next
//! due time, and only if no other worker has done so before. So many instances fire each occurrence once, without a
//! leader.

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{MAX_ID_LEN, OnConflict, Place, Placed, ScheduleId};
use crate::timestamp::Timestamp;
use crate::wire::Fields;

/// The most schedules that [`Recurring::due`] returns.
pub const MAX_DUE: usize = 100;

/// The most occurrences that one [`Recurring::fire`] schedules.
pub const MAX_FIRES: usize = 100;

/// Maximum length of a rule, in bytes.
const MAX_RULE_LEN: usize = 1_024;
/// Length of the suffix of each occurrence behind the id: `@` and a time.
const SUFFIX: usize = 21;

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

impl Recurrence {
    /// Checks what is stored: an id of at most 235 bytes, since a time follows it in the ids of occurrences, a rule of one line, and
    /// a message. Backends call this with each [`put`](Recurring::put).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], [`ErrorKind::InvalidConfig`] or [`ErrorKind::Encode`].
    pub fn check(&self) -> Result<()> {
        let Self { id, rule, fields, .. } = self;
        let error = |kind, why: String| Err(Error::new(kind, why));
        if id.as_str().len() + SUFFIX > MAX_ID_LEN {
            let most = MAX_ID_LEN - SUFFIX;
            return error(
                ErrorKind::InvalidName,
                format!("schedule id {id} is too long to recur, at most {most} bytes are allowed"),
            );
        }
        if rule.len() > MAX_RULE_LEN || rule.contains(['\n', '\r']) {
            let why = format!("the rule {rule:?} is not up to {MAX_RULE_LEN} bytes without line breaks");
            return error(ErrorKind::InvalidConfig, why);
        }
        if fields.is_empty() {
            return error(ErrorKind::Encode, format!("recurring message {id} has no fields"));
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let recurrence = |len: usize, rule: &str| Recurrence {
            id: ScheduleId::new("x".repeat(len)).expect("an id"),
            rule: rule.to_owned(),
            fields: vec![("payload".into(), "x".into())],
            next: None,
            paused: false,
        };
        let longest = recurrence(MAX_ID_LEN - SUFFIX, "every 5m");
        longest.check().expect("fits");
        ScheduleId::new(format!("{}@{}", longest.id, u64::MAX)).expect("so do those it schedules");
        let kind = |wrong: &Recurrence| wrong.check().expect_err("wrong").kind();
        assert_eq!(kind(&recurrence(MAX_ID_LEN - SUFFIX + 1, "every 5m")), ErrorKind::InvalidName);
        for rule in ["a\nb", &"x".repeat(MAX_RULE_LEN + 1)] {
            assert_eq!(kind(&recurrence(1, rule)), ErrorKind::InvalidConfig);
        }
        assert_eq!(kind(&Recurrence { fields: Vec::new(), ..longest }), ErrorKind::Encode);
    }
}
