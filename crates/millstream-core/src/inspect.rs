//! The inspect role: looking at what is there without owning it.
//!
//! Nothing here needs a lease, and nothing here changes anything: operators look while consumers run. Every answer is
//! bounded, in items and in bytes: what is larger comes in pages.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::history::History;
use crate::id::MessageId;
use crate::leases::Holder;
use crate::log::{Note, Source};
use crate::name::GroupName;
use crate::topic::{Partition, TopicPartition, TopicSpec};
use crate::wire::Fields;

/// The most items that one page has.
pub const MAX_PAGE: usize = 1_000;

/// About the most bytes of one page: it ends behind the item that reaches this.
pub const MAX_PAGE_BYTES: usize = 4 << 20;

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Whether there may be more behind the last one.
    pub more: bool,
}

impl<T> Page<T> {
    /// Nothing, and nothing behind it.
    #[must_use]
    pub const fn empty() -> Self {
        Self { items: Vec::new(), more: false }
    }
}

/// A stream of a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stream {
    /// The log: what all groups read.
    Log,
    /// A group's retry log: what comes back to it.
    Retry(GroupName),
}

/// Which entries of a stream, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Above this id.
    pub after: MessageId,
    /// Below this id.
    pub before: MessageId,
    /// The largest id first. The next page is then below the last one of this.
    pub newest_first: bool,
}

impl Range {
    /// All of them, oldest first.
    pub const ALL: Self = Self { after: MessageId::ZERO, before: MessageId::MAX, newest_first: false };

    /// What comes behind an entry of the page before.
    #[must_use]
    pub const fn behind(self, last: MessageId) -> Self {
        if self.newest_first { Self { before: last, ..self } } else { Self { after: last, ..self } }
    }

    /// Whether no id can be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.after.next() >= self.before
    }
}

/// An entry as it stands in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its id.
    pub id: MessageId,
    /// Its fields, byte for byte. [`wire::decode`](crate::wire::decode) reads them.
    pub fields: Fields,
}

/// An entry that was handed out and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its id in the stream that it was read from.
    pub id: MessageId,
    /// Under whose name it stands. Where a partition has an owner that is one fixed word, whoever owns it; see
    /// [`Inspect::owners`].
    pub consumer: String,
    /// For how long nobody has touched it.
    pub idle: Duration,
    /// How often it was handed out.
    pub deliveries: u64,
    /// What was noted of it.
    pub note: Option<Note>,
}

/// A retry that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The id of the message in its partition's log.
    pub origin: MessageId,
    /// When it is due: milliseconds since 1970 by the server's clock.
    pub due: u64,
    /// The number of the attempt that comes next; 0 if the body is gone.
    pub attempt: u32,
    /// What the last attempt failed with.
    pub error: String,
    /// What all attempts failed with.
    pub history: History,
    /// The original entry; empty if somebody deleted it.
    pub body: Fields,
}

/// Who has a partition for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The partition.
    pub partition: Partition,
    /// Who has it, with its epoch and what is left of the lease; `None` if it is free.
    pub holder: Option<Holder>,
    /// For how long its last grant was; `None` if there never was one.
    pub ttl: Option<Duration>,
    /// How many owners before that one ended in a row without giving it back: they died, or were cut off.
    pub ends: usize,
}

/// A name under which entries are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Of which stream.
    pub source: Source,
    /// The name.
    pub consumer: String,
    /// How many entries stand under it.
    pub pending: u64,
    /// How long ago it was last heard of.
    pub idle: Duration,
    /// How long ago it last got an entry; `None` if it never did, or that is not known.
    pub inactive: Option<Duration>,
}

/// What a backend runs on. What could not be asked for is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Server {
    /// The product: `redis`, `valkey` or `memory`.
    pub kind: String,
    /// Its version.
    pub version: Option<String>,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: Option<String>,
    /// `master` or `replica`.
    pub role: Option<String>,
    /// Replicas that are connected.
    pub replicas: Option<u64>,
    /// Whether a cluster says that it is whole.
    pub cluster_ok: Option<bool>,
    /// For how long it runs.
    pub uptime: Option<Duration>,
    /// How far the server's clock is ahead of ours, in milliseconds; behind it if negative. Exact up to half a round
    /// trip.
    pub ahead_ms: Option<i64>,
    /// A round trip: the middle one of several.
    pub latency: Option<Duration>,
    /// Bytes in use.
    pub used_memory: Option<u64>,
    /// The most bytes that it may use; 0 for no limit.
    pub max_memory: Option<u64>,
    /// What it does when they are used up.
    pub eviction: Option<String>,
    /// Keys that it has evicted so far.
    pub evicted: Option<u64>,
    /// Connections, and the most that there may be.
    pub clients: Option<(u64, u64)>,
    /// Whether what is written gets to the disk: the last snapshot and the append-only file as they ended.
    pub disk_ok: Option<bool>,
    /// Settings with which messages can be lost.
    pub risks: Vec<Risk>,
    /// Commands that this user may not use, and that are needed.
    pub denied: Vec<String>,
    /// What the server can do beyond what is needed.
    pub features: Vec<String>,
    /// What could not be asked for, and why not.
    pub unknown: Vec<String>,
}

/// A setting with which messages can be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Risk {
    /// The setting, by the server's name for it.
    pub setting: String,
    /// Its value.
    pub value: String,
    /// What can happen, and what to set instead.
    pub reason: String,
}

/// What takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Structure {
    /// The log, with the pending lists of all groups.
    Log,
    /// A group's retry log.
    RetryLog,
    /// A group's parked retries.
    Parked,
    /// What was noted of pending entries.
    Notes,
    /// A group's dead letters.
    DeadLetters,
    /// Lease and fence.
    Lease,
    /// Scheduled messages.
    Delayed,
    /// What recurs.
    Recurring,
}

impl Structure {
    /// As a fixed snake-case word.
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

/// How much of the memory one structure takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The partition.
    pub partition: Partition,
    /// The group, for what is a group's.
    pub group: Option<GroupName>,
    /// What it is.
    pub structure: Structure,
    /// How many entries, messages or fields it has.
    pub items: u64,
    /// How many bytes, as the server estimates it from samples.
    pub bytes: u64,
}

/// Looks, and changes nothing.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Up to `limit` (at most [`MAX_PAGE`]) entries of a stream, and about [`MAX_PAGE_BYTES`].
    /// [`Range::behind`] the last one there may be more.
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

    /// Up to `limit` (at most [`MAX_PAGE`]) entries with an id above `after` that were handed out to the group and not
    /// settled, in the order of ids. None if there is no such group.
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

    /// Up to `limit` (at most [`MAX_PAGE`]) retries of the group that wait, by due time, behind `after`: due time and
    /// origin of the last one of the page before.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    async fn parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: Option<(u64, MessageId)>,
        limit: usize,
    ) -> Result<Page<Parked>>;

    /// Who has each partition for the group, in the order of partitions.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>>;

    /// The names under which the group reads a partition, those of the log first, by name.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    async fn consumers(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>>;

    /// What this runs on, as far as it may be asked.
    ///
    /// # Errors
    /// Transient ones.
    async fn server(&self) -> Result<Server>;

    /// What these partitions take, with what is kept there for these groups. Structures that are not there are left
    /// out.
    ///
    /// # Errors
    /// As [`entries`](Self::entries); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it cannot be told.
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
