//! The schedule role: messages that are due later.
//!
//! Scheduled messages wait at a [`Place`]. At a topic's partition, [`promote`](Schedule::promote) moves them into its
//! log, for all groups. At a shard of a delay queue, workers [claim](crate::Tasks::claim) them.
//!
//! Retries wait here as well: [`Settlement::Retry`](crate::Settlement) parks a message in the same step that takes it off
//! the pending list, and `promote` moves due messages into the group's retry log. No other group sees those.
//!
//! The server's clock decides what is due. Due times are whole milliseconds, rounded up: nothing is early.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::capability::unsupported;
use crate::error::Result;
use crate::id::MessageId;
pub use crate::id::{MAX_ID_LEN, ScheduleId};
use crate::leases::Lease;
use crate::name::GroupName;
pub use crate::partition::{Place, Shard};
use crate::timestamp::Timestamp;
use crate::topic::TopicPartition;
use crate::wire::Fields;

/// The most messages that one call to [`Schedule::promote`] moves: 1,000 would block a Redis server for 5–8 ms.
pub const MAX_PROMOTE: usize = 200;

/// The most messages of one page of [`Schedule::scheduled`].
pub const MAX_PAGE: usize = 1_000;

/// Due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long after the server receives the request. More than [`Due::FAR`] counts as [`Due::FAR`].
    In(Duration),
    /// At a time by the server's clock. A past time is due at once.
    At(Timestamp),
}

/// Due at once.
impl Default for Due {
    fn default() -> Self {
        Self::NOW
    }
}

impl Due {
    /// The longest delay: 100 years. Larger numbers would not be exact in a sorted set's score.
    pub const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// Due at once.
    pub const NOW: Self = Self::In(Duration::ZERO);

    /// Returns the due time, given the current time of the server in microseconds since 1970, which is finer than a
    /// [`Timestamp`]. A delay is rounded up, and a time that is further away than [`Due::FAR`] is brought forward to it.
    #[must_use]
    pub fn timestamp(self, now_micros: u64) -> Timestamp {
        match self {
            Self::In(delay) => {
                let micros =
                    u64::try_from(delay.min(Self::FAR).as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
                Timestamp::from_millis(now_micros.saturating_add(micros).div_ceil(1_000))
            }
            Self::At(at) => at.min(Timestamp::from_millis(now_micros / 1_000).saturating_add(Self::FAR)),
        }
    }
}

/// Rounds up to a whole millisecond. The time is compared with the server's clock.
impl From<SystemTime> for Due {
    fn from(time: SystemTime) -> Self {
        Self::At(time.into())
    }
}

impl From<Timestamp> for Due {
    fn from(time: Timestamp) -> Self {
        Self::At(time)
    }
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Self {
        Self::In(delay)
    }
}

/// Action if a message with the same id waits already. A message that is being worked on (in a delay queue) counts too,
/// and can be neither replaced nor kept from running. A message of a topic that has moved to its log does not wait any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The existing one stays as it is. So scheduling again after a lost reply has no effect as long as the first one
    /// waits (or, in a delay queue, is worked on); after that it creates a second one.
    #[default]
    Keep,
    /// The new one replaces it, with its body and due time.
    Replace,
    /// Fails with [`ErrorKind::Exists`](crate::ErrorKind::Exists).
    Reject,
    /// The new one replaces it and postpones it: it is due at the later of both due times. So a message that is sent again
    /// and again with a delay is due once that delay has passed since the last time. Fails with [`ErrorKind::Exists`](crate::ErrorKind::Exists) if
    /// the existing one is being worked on: otherwise the newest body would be lost. Of a recurring rule the same as
    /// [`Replace`](Self::Replace).
    Debounce,
    /// The new one replaces its body, and the due time of the existing one stays. So a message that is sent again and again
    /// is due at its first due time, with the last body. Fails with [`ErrorKind::Exists`](crate::ErrorKind::Exists) if the existing one is being
    /// worked on. Of a recurring rule the same as [`Replace`](Self::Replace).
    KeepLast,
}

/// Message to be scheduled.
#[derive(Clone, Debug)]
pub struct Scheduling {
    /// The place where it waits.
    pub place: Place,
    /// The id.
    pub id: ScheduleId,
    /// The due time.
    pub due: Due,
    /// The message, in the form that [`wire::encode`](crate::wire::encode) writes.
    pub fields: Fields,
    /// Action if a message with this id waits already.
    pub on_conflict: OnConflict,
}

/// Result of a scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placed {
    /// The message waits.
    New,
    /// The message waits and has replaced the one that waited under this id.
    Replaced,
    /// A message with this id waits already (or is worked on), and stays as it is.
    Kept,
    /// A task with this id was completed, and its id is [in use](crate::tasks::Verdict::CompleteFor) since: nothing was
    /// scheduled. Only in delay queues. [`OnConflict::Reject`] fails with [`ErrorKind::Exists`](crate::ErrorKind::Exists) instead.
    Done,
}

/// Scheduled message that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// Its id.
    pub id: ScheduleId,
    /// Due time.
    pub due: Timestamp,
    /// The message. Empty if its body has been deleted.
    pub fields: Fields,
}

impl Scheduled {
    /// Creates a message as a backend returns it.
    #[must_use]
    pub fn new(id: ScheduleId, due: Timestamp, fields: Fields) -> Self {
        Self { id, due, fields }
    }
}

/// Number of messages that wait at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// All messages.
    pub total: u64,
    /// Messages that are due.
    pub overdue: u64,
    /// Due time of the first one, by the server's clock; `None` if there is none, or it is not known.
    pub first: Option<Timestamp>,
}

impl Waiting {
    /// Creates these numbers, without the time of the first one.
    #[must_use]
    pub const fn new(total: u64, overdue: u64) -> Self {
        Self { total, overdue, first: None }
    }

    /// Returns the numbers of two places together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let first = self.first.into_iter().chain(other.first).min();
        Self { total: self.total + other.total, overdue: self.overdue + other.overdue, first }
    }
}

/// What is to become of a retry that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAction {
    /// It is due now. One that is due already stays as it is.
    Release,
    /// It becomes a dead letter, with the reason [`Killed`](crate::Reason::Killed) and the error of its last attempt.
    Kill,
}

/// State of a place as a caller has seen it: returned by [`Schedule::wait`], and passed to its next call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(pub String);

/// Result of one promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promoted {
    /// Number of messages that became readable.
    pub moved: usize,
    /// Number of messages that had lost their body. Each retry among them is recorded as a dead letter
    /// ([`Reason::Orphan`](crate::Reason::Orphan)). A delayed message, which no group has seen, is recorded only by this
    /// number and the event that is made from it.
    pub orphans: usize,
    /// Time from now until the next one is due; zero if it is due already, `None` if nothing waits. Recurring schedules
    /// count.
    pub next: Option<Duration>,
    /// Whether a recurring schedule is due: see [`Recurring`](crate::Recurring).
    pub recurring: bool,
}

/// Keeps messages until they are due.
///
/// Required are [`schedule`](Schedule::schedule), [`cancel`](Schedule::cancel), [`promote`](Schedule::promote) and
/// [`now`](Schedule::now). A backend without [`Tasks`](crate::Tasks) refuses a [`Place::Shard`] with
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
#[async_trait]
pub trait Schedule: Send + Sync {
    /// Schedules messages. Returns one result for each; a failed one does not keep the others from being scheduled. After
    /// a lost reply all of them may be sent again with [`OnConflict::Keep`] or `Replace`: messages that still wait are
    /// not duplicated, but messages that were promoted or claimed meanwhile are scheduled once more.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) for a conflict under [`OnConflict::Reject`]; [`ErrorKind::Backpressure`](crate::ErrorKind::Backpressure) for a server that
    /// is out of memory; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones. A message without fields is refused with
    /// [`ErrorKind::Encode`](crate::ErrorKind::Encode). The topic is not looked up.
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>>;

    /// Removes messages that still wait. Returns for each whether it was removed: when two requests race for one message
    /// (another cancel, a promotion, a claim), exactly one wins.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>>;

    /// Changes the due time of messages that still wait; [`Due::NOW`] makes them due now. Returns for each whether it
    /// still waited.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Reschedule`](crate::Capability::Reschedule).
    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        let _ = (place, ids, due);
        Err(unsupported("Schedule::reschedule"))
    }

    /// Returns a message that waits; `None` if none with this id does. Default: reads the pages of
    /// [`scheduled`](Self::scheduled) until it is found.
    ///
    /// # Errors
    /// As [`scheduled`](Self::scheduled).
    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        let mut after = None;
        loop {
            let page = self.scheduled(place, after, MAX_PAGE).await?;
            after = page.last().map(|last| (last.due, last.id.clone()));
            if after.is_none() {
                return Ok(None);
            }
            if let Some(found) = page.into_iter().find(|scheduled| scheduled.id == *id) {
                return Ok(Some(found));
            }
        }
    }

    /// Returns up to `limit` (at most [`MAX_PAGE`]) waiting messages in the order of due times, those of one millisecond
    /// in the order of ids. The page starts after `after`, the due time and id of the last message of the previous page.
    /// Late pages take no longer than early ones.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::ListScheduled`](crate::Capability::ListScheduled).
    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        let _ = (place, after, limit);
        Err(unsupported("Schedule::scheduled"))
    }

    /// Returns the number of messages that wait, and the number of those that are due. Default: counts them on the pages
    /// of [`scheduled`](Self::scheduled).
    ///
    /// # Errors
    /// As [`scheduled`](Self::scheduled).
    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        let (now, mut waiting, mut after) = (self.now().await?, Waiting::default(), None);
        loop {
            let page = self.scheduled(place, after, MAX_PAGE).await?;
            waiting.first = waiting.first.or(page.first().map(|scheduled| scheduled.due));
            waiting.total += page.len() as u64;
            waiting.overdue += page.iter().filter(|scheduled| scheduled.due <= now).count() as u64;
            after = page.last().map(|last| (last.due, last.id.clone()));
            if after.is_none() {
                return Ok(waiting);
            }
        }
    }

    /// Moves due messages to where they are read, in the order of their due times: up to `limit` (at most
    /// [`MAX_PROMOTE`]) retries of the lease's group, and up to `limit` delayed messages of its partition. The server's
    /// clock decides what is due. Two concurrent promoters move each message once.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), or a transient error; messages that were moved stay moved.
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted>;

    /// Releases retries of a group that wait, or gives them up; `origins` are the ids of the messages in the partition's log.
    /// Returns for each whether it waited: when two requests race for one retry (another one of these, a promotion), exactly
    /// one wins. A retry that has lost its body becomes a dead letter as [`promote`](Self::promote) makes it.
    ///
    /// # Errors
    /// Transient ones, after which some of them may have been changed; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see [`Capability::SettleRetries`](crate::Capability::SettleRetries).
    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        let _ = (topic_partition, group, origins, action);
        Err(unsupported("Schedule::settle_retries"))
    }

    /// Moves only the delayed messages of a partition, as `promote` does: for callers that own no lease. Retries stay.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); messages that were moved stay moved. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by
    /// default: see [`Capability::PromoteDelayed`](crate::Capability::PromoteDelayed).
    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        let _ = (topic_partition, limit);
        Err(unsupported("Schedule::promote_delayed"))
    }

    /// Waits, up to `timeout`, for a message to be scheduled at a partition that is due before everything that waited
    /// there. Returns the state to pass to the next call; with [`Seen::default`] it returns that state at once. Changes
    /// between two calls are not missed. Owners need not wait: [`Reader::fetch`](crate::Reader::fetch) reports such a
    /// message to them.
    ///
    /// # Errors
    /// Transient ones. A wake-up may be lost (a fail-over): the caller should also return without one after a while.
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see [`Capability::PromoteDelayed`](crate::Capability::PromoteDelayed).
    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        let _ = (topic_partition, seen, timeout);
        Err(unsupported("Schedule::wait"))
    }

    /// Returns the server's time, by which messages are due. Nothing is changed, whatever is due.
    ///
    /// If several servers share the places, it is the time of any of them: see [`now_at`](Self::now_at).
    ///
    /// # Errors
    /// Transient ones.
    async fn now(&self) -> Result<Timestamp>;

    /// Returns the time of the server that stores this place: by its clock the messages there are due, also those that wait
    /// in their place for their next attempt. By default all places have the clock of [`now`](Self::now).
    ///
    /// # Errors
    /// Transient ones.
    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        let _ = place;
        self.now().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at_ms(ms: u64) -> Due {
        Due::At(Timestamp::from_millis(ms))
    }

    #[test]
    fn a_delay_is_rounded_up_and_never_early() {
        let at = 1_700_000_000_000_000;
        assert_eq!(Due::NOW.timestamp(at).as_millis(), at / 1_000);
        assert_eq!(Due::NOW.timestamp(at + 1).as_millis(), at / 1_000 + 1);
        assert_eq!(Due::In(Duration::from_nanos(1)).timestamp(at).as_millis(), at / 1_000 + 1);
        assert_eq!(Due::In(Duration::from_millis(5)).timestamp(at + 999).as_millis(), at / 1_000 + 6);
        assert_eq!(at_ms(7).timestamp(at).as_millis(), 7, "past: due at once");
        let far = at / 1_000 + Due::FAR.as_millis() as u64;
        assert_eq!(Due::In(Duration::MAX).timestamp(at).as_millis(), far);
        assert_eq!(at_ms(u64::MAX).timestamp(at).as_millis(), far);
    }

    #[test]
    fn a_time_is_rounded_up() {
        assert_eq!(Due::from(UNIX_EPOCH + Duration::from_micros(1_001)), at_ms(2));
        assert_eq!(Due::from(UNIX_EPOCH + Duration::from_millis(5)), at_ms(5));
        assert_eq!(Due::from(UNIX_EPOCH - Duration::from_secs(1)), at_ms(0));
    }
}
