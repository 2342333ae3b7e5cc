//! The inspect role: reads stored data without owning it.
//!
//! Nothing here needs a lease, and nothing here changes anything: operators inspect a queue while consumers run. Every
//! answer is bounded, in items and in bytes: longer lists come in pages.

use std::time::Duration;

use async_trait::async_trait;

use crate::catalog::{GroupState, PartitionSurvey, Pin};
use crate::error::{Error, Result};
use crate::history::History;
use crate::id::MessageId;
use crate::leases::Holder;
use crate::log::{Note, Source};
use crate::name::{GroupName, TopicName};
use crate::schedule::Waiting;
use crate::timestamp::Timestamp;
use crate::topic::{Partition, TopicPartition, TopicSpec};
use crate::wire::Fields;

/// The most items of one page.
pub const MAX_PAGE: usize = 1_000;

/// Approximate size limit of one page, in bytes: it ends behind the item that reaches this.
pub const MAX_PAGE_BYTES: usize = 4 << 20;

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Whether there may be more items behind the last one.
    pub more: bool,
    /// Why a part of what is stored of the items, such as notes, is missing in them: its key cannot be read. Default: `None`.
    pub unreadable: Option<String>,
}

impl<T> Page<T> {
    /// Creates a page as a backend returns it.
    #[must_use]
    pub const fn new(items: Vec<T>, more: bool) -> Self {
        Self { items, more, unreadable: None }
    }

    /// Creates an empty page, with nothing behind it.
    #[must_use]
    pub const fn empty() -> Self {
        Self { items: Vec::new(), more: false, unreadable: None }
    }
}

/// Stream of a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stream {
    /// The log, which all groups read.
    Log,
    /// A group's retry log, with the messages that return to it.
    Retry(GroupName),
}

/// Range of entries of a stream, with its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Lower bound, exclusive.
    pub after: MessageId,
    /// Upper bound, exclusive.
    pub before: MessageId,
    /// Whether the largest id comes first. The next page is then below the last entry of this one.
    pub newest_first: bool,
}

impl Range {
    /// All entries, oldest first.
    pub const ALL: Self = Self { after: MessageId::ZERO, before: MessageId::MAX, newest_first: false };

    /// Returns the range behind an entry: the last one of the previous page.
    #[must_use]
    pub const fn behind(self, last: MessageId) -> Self {
        if self.newest_first { Self { before: last, ..self } } else { Self { after: last, ..self } }
    }

    /// Whether the range can contain no id.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.after.next() >= self.before
    }
}

/// Entry as it is stored in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Its id.
    pub id: MessageId,
    /// Its fields, byte for byte. [`wire::decode`](crate::wire::decode) reads them.
    pub fields: Fields,
}

impl Stored {
    /// Creates an entry as a backend returns it.
    #[must_use]
    pub fn new(id: MessageId, fields: Fields) -> Self {
        Self { id, fields }
    }
}

/// Entry that was handed out and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its id in the stream that it was read from.
    pub id: MessageId,
    /// Name under which it is pending. Where a partition has an owner that is one fixed word, whichever member the owner
    /// is; see [`Inspect::owners`].
    pub consumer: String,
    /// Idle time: time since it was last handed out or extended.
    pub idle: Duration,
    /// The same as the time at which that was, by the server's clock: it does not change while the entry is left alone.
    pub delivered: Timestamp,
    /// Number of times that it was handed out.
    pub deliveries: u64,
    /// Note that is stored for it.
    pub note: Option<Note>,
}

/// Retry that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The id of the message in its partition's log.
    pub origin: MessageId,
    /// Due time by the server's clock.
    pub due: Timestamp,
    /// Number of the next attempt; 0 if the body is gone.
    pub attempt: u32,
    /// Error of the last attempt.
    pub error: String,
    /// Failures of all attempts.
    pub history: History,
    /// The original entry; empty if its body has been deleted.
    pub body: Fields,
}

/// Ownership of a partition for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ownership {
    /// The partition.
    pub partition: Partition,
    /// The owner, with its epoch and the time until its lease expires; `None` if the partition is free.
    pub holder: Option<Holder>,
    /// Ttl of the last grant; `None` if there never was one.
    pub ttl: Option<Duration>,
    /// Number of owners before the last one that ended in a row without releasing it: they died, or were cut off.
    pub ends: usize,
    /// Why it is not known who owns the partition: lease or fence cannot be read. The other fields are then those of a free
    /// one. Default: `None`.
    pub unreadable: Option<String>,
}

impl Ownership {
    /// Creates the record of a partition that never had an owner.
    #[must_use]
    pub fn free(partition: Partition) -> Self {
        Self { partition, holder: None, ttl: None, ends: 0, unreadable: None }
    }
}

/// Name under which a group reads entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The stream.
    pub source: Source,
    /// The name.
    pub consumer: String,
    /// Number of entries that are pending under it.
    pub pending: u64,
    /// Time since its last request.
    pub idle: Duration,
    /// Time since it last received an entry; `None` if it never did, or that is not known.
    pub inactive: Option<Duration>,
}

/// Server that a backend runs on. Values that could not be read are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Server {
    /// Its address; `None` where there is one server. Default: `None`.
    pub address: Option<String>,
    /// Why it could not be asked; then nothing else is known but its address. Default: `None`.
    pub away: Option<String>,
    /// The product: `redis`, `valkey` or `memory`.
    pub kind: String,
    /// Its version.
    pub version: Option<String>,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: Option<String>,
    /// `master` or `replica`.
    pub role: Option<String>,
    /// Number of connected replicas.
    pub replicas: Option<u64>,
    /// Whether a cluster reports that it is complete.
    pub cluster_ok: Option<bool>,
    /// Time since the server started.
    pub uptime: Option<Duration>,
    /// Milliseconds that the server's clock is ahead of the local one; negative if it is behind. Exact up to half a round
    /// trip.
    pub ahead_ms: Option<i64>,
    /// Time of a round trip: the median of several.
    pub latency: Option<Duration>,
    /// Used memory, in bytes.
    pub used_memory: Option<u64>,
    /// Memory limit, in bytes; 0 for no limit.
    pub max_memory: Option<u64>,
    /// Eviction policy that applies at the memory limit.
    pub eviction: Option<String>,
    /// Number of keys that it has evicted so far.
    pub evicted: Option<u64>,
    /// Number of connections, and their limit.
    pub clients: Option<(u64, u64)>,
    /// Whether data is written to the disk: the results of the last snapshot and of the append-only file.
    pub disk_ok: Option<bool>,
    /// Settings with which messages can be lost.
    pub risks: Vec<Risk>,
    /// Why it refuses to write now, in its own words; `None` if it does not. Default: `None`.
    pub refuses: Option<String>,
    /// Required commands that this user may not use.
    pub denied: Vec<String>,
    /// Required commands that it does not have: renamed, or left out by who runs it.
    pub missing: Vec<String>,
    /// Optional features that the server has.
    pub features: Vec<String>,
    /// Values that could not be read, with the reasons.
    pub unknown: Vec<String>,
}

/// Setting with which messages can be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Risk {
    /// Name of the setting on the server.
    pub setting: String,
    /// Its value.
    pub value: String,
    /// The possible loss, and the recommended value.
    pub reason: String,
}

/// Structure that takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Structure {
    /// The log, with the pending lists of all groups.
    Log,
    /// A group's retry log.
    RetryLog,
    /// A group's parked retries.
    Parked,
    /// Notes on pending entries.
    Notes,
    /// A group's dead letters.
    DeadLetters,
    /// Lease and fence.
    Lease,
    /// Scheduled messages.
    Delayed,
    /// Recurring schedules.
    Recurring,
}

impl Structure {
    /// Returns the structure as a fixed snake-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::RetryLog => "retry_log",
            Self::Parked => "parked",
            Self::Notes => "notes",
            Self::DeadLetters => "dead_letters",
            Self::Lease => "lease",
            Self::Delayed => "delayed",
            Self::Recurring => "recurring",
        }
    }
}

/// Memory use of one structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The partition.
    pub partition: Partition,
    /// The group, for a structure that belongs to one.
    pub group: Option<GroupName>,
    /// The structure.
    pub structure: Structure,
    /// Number of its entries, messages or fields.
    pub items: u64,
    /// Number of bytes, as the server estimates it from samples.
    pub bytes: u64,
    /// Why its items could not be counted: a key has a wrong type. Its bytes are counted nevertheless.
    pub unreadable: Option<String>,
}

/// What of a topic is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverviewQuery {
    /// The only group that is read, whether the topic's list has it or not. Default: all groups in that list.
    pub group: Option<GroupName>,
    /// Whether owners are read. Default: no.
    pub owners: bool,
    /// Whether it is read which groups keep entries from being dropped; entries may have to be counted for it. Default: no.
    pub pins: bool,
}

impl OverviewQuery {
    /// Returns the query of this group only.
    #[must_use]
    pub fn of(self, group: GroupName) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Returns the query with the groups that keep entries.
    #[must_use]
    pub fn with_pins(self) -> Self {
        Self { pins: true, ..self }
    }

    /// Returns the query with the owners of partitions.
    #[must_use]
    pub fn with_owners(self) -> Self {
        Self { owners: true, ..self }
    }
}

/// State of the log of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogState {
    /// Number of entries.
    pub length: u64,
    /// Id of the oldest entry; `None` if there is none, or if the backend does not claim
    /// [`Capability::Inspect`](crate::Capability::Inspect).
    pub first: Option<MessageId>,
    /// Id of the newest entry; `None` as for the oldest.
    pub last: Option<MessageId>,
}

impl LogState {
    /// Creates the state of a log of this many entries, with its oldest and its newest.
    #[must_use]
    pub const fn new(length: u64, first: Option<MessageId>, last: Option<MessageId>) -> Self {
        Self { length, first, last }
    }
}

/// State of a topic. The parts are read shortly after each other, not at one moment.
///
/// A part that cannot be read, such as a key of a wrong type, has its error in its place. No error in here is transient.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Overview {
    /// Topic as stored.
    pub topic: TopicSpec,
    /// State of the log of each partition, in the order of partitions.
    pub logs: Vec<Result<LogState>>,
    /// Delayed messages of each partition, in the order of partitions.
    pub delayed: Vec<Result<Waiting>>,
    /// State of each group, by name.
    pub groups: Vec<GroupOverview>,
    /// Group that keeps the most entries, of each partition where one does; `None` if that was not asked for.
    pub pins: Option<Result<Vec<Pin>>>,
    /// Error of reading the list of groups: then the topic may have groups that are not in `groups`.
    pub unlisted: Option<Error>,
}

impl Overview {
    /// Creates the overview of a topic without partitions and groups, for a backend to fill.
    #[must_use]
    pub fn new(topic: TopicSpec) -> Self {
        Self { topic, logs: Vec::new(), delayed: Vec::new(), groups: Vec::new(), pins: None, unlisted: None }
    }

    /// Returns the number of delayed messages of the topic, or the first error of reading it.
    ///
    /// # Errors
    /// That error.
    pub fn waiting(&self) -> Result<Waiting> {
        let mut sum = Waiting::default();
        for waiting in &self.delayed {
            sum = sum.and(waiting.clone()?);
        }
        Ok(sum)
    }
}

/// State of a group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupOverview {
    /// The group.
    pub group: GroupName,
    /// State of each partition, in the order of partitions.
    pub partitions: Result<Vec<PartitionSurvey>>,
    /// Number of live members.
    pub members: Result<usize>,
    /// State of the group as a whole.
    pub state: Result<GroupState>,
    /// Ownership of each partition, in the order of partitions; `None` if it was not asked for.
    pub owners: Option<Result<Vec<Ownership>>>,
}

impl GroupOverview {
    /// Creates the overview of a group.
    #[must_use]
    pub fn new(
        group: GroupName,
        partitions: Result<Vec<PartitionSurvey>>,
        members: Result<usize>,
        state: Result<GroupState>,
        owners: Option<Result<Vec<Ownership>>>,
    ) -> Self {
        Self { group, partitions, members, state, owners }
    }
}

/// Reads stored data, and changes nothing.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Returns up to `limit` (at most [`MAX_PAGE`]) entries of a stream, of about [`MAX_PAGE_BYTES`] in total. There may
    /// be more [behind](Range::behind) the last one.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn entries(
        &self,
        topic_partition: &TopicPartition,
        stream: &Stream,
        range: Range,
        limit: usize,
    ) -> Result<Page<Stored>>;

    /// Returns up to `limit` (at most [`MAX_PAGE`]) entries with an id above `after` that were handed out to the group
    /// and not settled, in the order of ids. Returns none if there is no such group. Where notes cannot be read, the entries
    /// are without them, and the page [says so](Page::unreadable).
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    async fn pending(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        source: Source,
        after: MessageId,
        limit: usize,
    ) -> Result<Page<Pending>>;

    /// Returns up to `limit` (at most [`MAX_PAGE`]) waiting retries of the group, in the order of due times. The page
    /// starts after `after`, the due time and origin of the last retry of the previous page.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    async fn parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: Option<(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Page<Parked>>;

    /// Returns the ownership of each partition for the group, in the order of partitions. Where lease or fence have a wrong
    /// type, it is [not known](Ownership::unreadable).
    ///
    /// # Errors
    /// Transient ones.
    async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>>;

    /// Returns the state of these topics, in their order, in a few requests for all of them. Default: `None`, and then
    /// [`Backend::overview`](crate::Backend::overview) asks the roles for one part after the other. What both return is the
    /// same.
    ///
    /// # Errors
    /// Those of [`Backend::overview`](crate::Backend::overview).
    async fn overview(&self, topics: &[TopicName], query: &OverviewQuery) -> Option<Vec<Result<Overview>>> {
        let _ = (topics, query);
        None
    }

    /// Returns the names under which the group reads a partition, those of the log first, in the order of names.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    async fn consumers(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>>;

    /// Returns what is known of the server, as far as this user may read it.
    ///
    /// # Errors
    /// Transient ones.
    async fn server(&self) -> Result<Server>;

    /// Returns the state of each server that has part of the data: of the primaries of a cluster, in the order of their
    /// addresses. One that gives no answer is among them, as [`away`](Server::away). Default: [`server`](Self::server)
    /// alone.
    ///
    /// # Errors
    /// Transient ones, if no server can be asked.
    async fn servers(&self) -> Result<Vec<Server>> {
        Ok(vec![self.server().await?])
    }

    /// Returns the memory use of these partitions, with the data of these groups. Structures that do not exist are left
    /// out. The items of a structure with a key of a wrong type are [not known](Usage::unreadable).
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the server does not
    /// report it.
    async fn usage(&self, partitions: &[TopicPartition], groups: &[GroupName]) -> Result<Vec<Usage>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_on_behind_the_last_entry_in_both_directions() {
        let id = |ms| MessageId::new(ms, 0);
        let forward = Range::ALL.behind(id(5));
        assert_eq!((forward.after, forward.before), (id(5), MessageId::MAX));
        let backward = Range { newest_first: true, ..Range::ALL }.behind(id(5));
        assert_eq!((backward.after, backward.before), (MessageId::ZERO, id(5)));
        assert!(!forward.is_empty() && !backward.is_empty());
    }

    #[test]
    fn a_range_without_room_is_empty() {
        let id = |seq| MessageId::new(7, seq);
        for (after, before, empty) in [(1, 1, true), (1, 2, true), (1, 3, false), (3, 1, true)] {
            let range = Range { after: id(after), before: id(before), newest_first: false };
            assert_eq!(range.is_empty(), empty, "{after} {before}");
        }
        assert!(Range::ALL.behind(MessageId::MAX).is_empty());
    }
}
