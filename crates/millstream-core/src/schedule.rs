//! The schedule role: what is due later.
//!
//! Messages that were scheduled wait at a [`Place`]: a topic's partition, from where [`promote`](Schedule::promote)
//! moves them into its log, for all groups; or a shard of a delay queue, from where workers
//! [claim](crate::Tasks::claim) them.
//!
//! Retries wait here as well: [`Settlement::Retry`](crate::Settlement) parks them in the same step in which it takes
//! them off the pending list, and `promote` moves what is due into the group's retry log. Nobody else sees those.
//!
//! The server's clock decides what is due. Due times are whole milliseconds, rounded up: nothing is early.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::leases::Lease;
use crate::name::QueueName;
use crate::topic::TopicPartition;
use crate::wire::Fields;

/// The most that one call to [`Schedule::promote`] moves: 1,000 would block a Redis server for 5–8 ms.
pub const MAX_PROMOTE: usize = 200;

/// The most messages that one page of [`Schedule::scheduled`] has.
pub const MAX_PAGE: usize = 1_000;

/// The longest id of a scheduled message, in bytes.
pub const MAX_ID_LEN: usize = 256;

/// One of the parts that a delay queue is spread over. What must change together is in one of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    /// The queue.
    pub queue: QueueName,
    /// Which one, from 0.
    pub shard: u32,
}

impl Shard {
    /// Shard `shard` of `queue`.
    #[must_use]
    pub fn new(queue: QueueName, shard: u32) -> Self {
        Self { queue, shard }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.queue, self.shard)
    }
}

/// Where scheduled messages wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A partition of a topic: they go to its log.
    Partition(TopicPartition),
    /// A shard of a delay queue: workers claim them.
    Shard(Shard),
}

impl From<TopicPartition> for Place {
    fn from(topic_partition: TopicPartition) -> Self {
        Self::Partition(topic_partition)
    }
}

impl From<Shard> for Place {
    fn from(shard: Shard) -> Self {
        Self::Shard(shard)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(topic_partition) => topic_partition.fmt(f),
            Self::Shard(shard) => shard.fmt(f),
        }
    }
}

/// The id of a scheduled message: the caller's or one of ours. 1 to [`MAX_ID_LEN`] bytes without control characters;
/// unique at its [`Place`] as long as the message waits there (or, in a delay queue, is worked on).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleId(Arc<str>);

impl ScheduleId {
    /// Checks an id.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn new(id: impl AsRef<str>) -> Result<Self> {
        let id = id.as_ref();
        let error = |why: String| Err(Error::new(ErrorKind::InvalidName, format!("schedule id {why}")));
        if id.is_empty() {
            return error("is empty".into());
        }
        if id.len() > MAX_ID_LEN {
            return error(format!("is {} bytes long, at most {MAX_ID_LEN} are allowed", id.len()));
        }
        if id.chars().any(char::is_control) {
            return error(format!("{id:?} contains a control character"));
        }
        Ok(Self(id.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for ScheduleId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for ScheduleId {
    type Err = Error;
    fn from_str(id: &str) -> Result<Self> {
        Self::new(id)
    }
}

/// When something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// So long from when the server hears of it. More than [`Due::FAR`] is that.
    In(Duration),
    /// At a time: milliseconds since 1970, by the server's clock. One that is past is due at once.
    At(u64),
}

/// At once.
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

    /// The time that this is if it is `now` (both in milliseconds since 1970); a delay is rounded up.
    #[must_use]
    pub fn millis(self, now_micros: u64) -> u64 {
        let far = Self::FAR.as_millis() as u64;
        match self {
            Self::In(delay) => {
                let micros =
                    u64::try_from(delay.min(Self::FAR).as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
                now_micros.saturating_add(micros).div_ceil(1_000)
            }
            Self::At(at) => at.min((now_micros / 1_000).saturating_add(far)),
        }
    }
}

/// Rounded up to a whole millisecond. The server's clock decides when it is that time.
impl From<SystemTime> for Due {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::At(u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Self {
        Self::In(delay)
    }
}

/// What to do if something with this id waits already. What is being worked on (in a delay queue) counts too, and can
/// neither be replaced nor be kept from running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// It stays as it is. So scheduling again after a lost reply does no harm as long as the first one waits (or, in a
    /// delay queue, is worked on); after that it is a second one.
    #[default]
    Keep,
    /// The new one takes its place, with its body and due time.
    Replace,
    /// [`ErrorKind::Exists`].
    Reject,
}

/// One message to be scheduled.
#[derive(Clone, Debug)]
pub struct Scheduling {
    /// Where.
    pub place: Place,
    /// Under which id.
    pub id: ScheduleId,
    /// For when.
    pub due: Due,
    /// The message, as [`wire::encode`](crate::wire::encode) writes it.
    pub fields: Fields,
    /// If one with this id waits already.
    pub on_conflict: OnConflict,
}

/// What became of a scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It waits.
    New,
    /// It waits in place of the one that waited under this id.
    Replaced,
    /// One with this id waits already (or is worked on), and stays as it is.
    Kept,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Its id.
    pub id: ScheduleId,
    /// When it is due: milliseconds since 1970 by the server's clock.
    pub due: u64,
    /// The message. Empty if somebody deleted it.
    pub fields: Fields,
}

/// How many wait at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// All of them.
    pub total: u64,
    /// Those of them that are due.
    pub overdue: u64,
}

/// Which state of a place somebody has seen: given back by [`Schedule::wait`], and to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(pub String);

/// The result of one promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promoted {
    /// How many messages became readable.
    pub moved: usize,
    /// How many had lost their body. An entry among the dead letters tells of each retry
    /// ([`Reason::Orphan`](crate::Reason::Orphan)); of a delayed message, which no group has seen, this number does, and
    /// the event that is made from it.
    pub orphans: usize,
    /// When the next one is due, from now; zero if it is due already, `None` if nothing waits. What recurs counts.
    pub next: Option<Duration>,
    /// Whether something that recurs is due: see [`Recurring`](crate::Recurring).
    pub recurring: bool,
}

/// Keeps messages until they are due.
#[async_trait]
pub trait Schedule: Send + Sync {
    /// Schedules messages. The answer has one result for each; a failed one does not keep the others from waiting.
    /// After a lost reply all of them may be sent again with [`OnConflict::Keep`] or `Replace`: what still waits is not
    /// doubled, but what has gone its way meanwhile is scheduled once more.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] for a conflict that was to be rejected; [`ErrorKind::Backpressure`] for a server without
    /// memory; [`ErrorKind::WrongType`]; transient ones. A message without fields is refused.
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>>;

    /// Takes messages out that still wait. Gives back, for each, whether it did: of two that race for one (another
    /// cancel, a promotion, a claim) exactly one wins.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>>;

    /// Gives messages that still wait another due time; [`Due::NOW`] lets them go now. Gives back, for each, whether it
    /// still waited.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>>;

    /// A message that waits; `None` if none with this id does.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>>;

    /// Up to `limit` (at most [`MAX_PAGE`]) messages that wait, by due time, those of one millisecond by id; behind
    /// `after`, the due time and id of the last one of the page before. It takes no longer for late pages.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(u64, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>>;

    /// How many wait, and how many of them are due.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    async fn waiting(&self, place: &Place) -> Result<Waiting>;

    /// Moves up to `limit` (at most [`MAX_PROMOTE`]) retries of the lease's group, and up to `limit` delayed messages of
    /// its partition, that are due by the server's clock to where they are read, in the order of their due times. Two
    /// promoters at once move each message once.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`], or a transient error; what was moved stays moved.
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted>;

    /// Moves delayed messages of a partition alone, as `promote` does: for those who own nothing. Retries are not
    /// touched.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]; what was moved stays moved.
    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted>;

    /// Waits, up to `timeout`, for a message to be scheduled at a partition that is due before all that waited there.
    /// Gives back what to pass next; with [`Seen::default`] it gives that back at once. What came between two calls is
    /// not missed. Owners need not wait: [`Reader::fetch`](crate::Reader::fetch) tells them.
    ///
    /// # Errors
    /// Transient ones. A wake-up may be lost (a fail-over): come back on your own after a while.
    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_and_never_early() {
        let at = 1_700_000_000_000_000;
        assert_eq!(Due::NOW.millis(at), at / 1_000);
        assert_eq!(Due::NOW.millis(at + 1), at / 1_000 + 1);
        assert_eq!(Due::In(Duration::from_nanos(1)).millis(at), at / 1_000 + 1);
        assert_eq!(Due::In(Duration::from_millis(5)).millis(at + 999), at / 1_000 + 6);
        assert_eq!(Due::At(7).millis(at), 7, "past: due at once");
        let far = at / 1_000 + Due::FAR.as_millis() as u64;
        assert_eq!(Due::In(Duration::MAX).millis(at), far);
        assert_eq!(Due::At(u64::MAX).millis(at), far);
    }

    #[test]
    fn a_time_is_rounded_up() {
        assert_eq!(Due::from(UNIX_EPOCH + Duration::from_micros(1_001)), Due::At(2));
        assert_eq!(Due::from(UNIX_EPOCH + Duration::from_millis(5)), Due::At(5));
        assert_eq!(Due::from(UNIX_EPOCH - Duration::from_secs(1)), Due::At(0));
    }

    #[test]
    fn an_id_is_checked() {
        assert!(ScheduleId::new("order 42: refund, ünïcode").is_ok());
        for bad in ["".to_owned(), "a\nb".into(), "\0".into(), "x".repeat(MAX_ID_LEN + 1)] {
            assert_eq!(ScheduleId::new(&bad).expect_err("bad").kind(), ErrorKind::InvalidName, "{bad:?}");
        }
    }
}
