//! The log role: append, fetch, settle, trim.
//!
//! A partition has one *log* that all groups read, and per group one *retry log* for what comes back to that
//! group alone: retries that are due and replayed dead letters. A group reads both; nobody else sees the second.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::catalog::Start;
use crate::dead_letters::Reason;
use crate::error::Result;
use crate::history::History;
use crate::id::MessageId;
use crate::leases::Lease;
use crate::name::GroupName;
use crate::schedule::Due;
use crate::topic::{Retention, TopicPartition};
use crate::wire::Fields;

/// Which of a partition's two streams an entry was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The partition's log: new messages, for every group.
    Log,
    /// The group's own retry log.
    Retry,
}

/// Names an entry that was handed out, so that it can be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// Where the entry was read.
    pub source: Source,
    /// Its id there.
    pub id: MessageId,
}

/// One entry to be appended.
#[derive(Clone, Debug)]
pub struct Append {
    /// Where to.
    pub topic_partition: TopicPartition,
    /// The entry, as [`wire::encode`](crate::wire::encode) writes it.
    pub fields: Fields,
}

/// An entry as a group's owner reads it. [`wire::decode`](crate::wire::decode) turns it into a message.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What settles it.
    pub receipt: Receipt,
    /// How often it was handed out without being settled, this time included: 1 for a first reading.
    pub deliveries: u32,
    /// Its fields, byte for byte as they were appended.
    pub fields: Fields,
    /// What was noted of it when it was handed out before.
    pub note: Option<Note>,
}

/// What an owner notes of a pending entry, for itself and for the owners after it.
///
/// A note goes when its entry is settled. It is how an attempt count survives a takeover where messages wait in
/// their place (to keep their order), and how a message that kills processes is found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The number of the attempt that comes next; 0 if nothing is said of attempts.
    pub attempt: u32,
    /// When it may be made. Read back as what is [left](Note::left) to wait, by the server's clock.
    pub due: Due,
    /// At how many unexplained ends of owners it was noted as begun, this time included; 0 if it is no poison candidate.
    pub suspicions: u32,
    /// Who noted this: names without spaces and commas, oldest first, with `,` between them, at most 128 bytes. Of a poison
    /// candidate the [epochs](crate::Lease::epoch) of the leases under which it began.
    pub by: String,
    /// What the last attempt failed with; cut to [`MAX_ERROR_LEN`](crate::wire::MAX_ERROR_LEN) bytes.
    pub error: String,
    /// What the attempts before failed with. The server adds the failure of attempt `attempt - 1` with `error`, unless
    /// this [tells of](History::tells_of) it.
    pub history: History,
}

impl Note {
    /// How long there is left to wait, in a note that was read.
    #[must_use]
    pub fn left(&self) -> Duration {
        match self.due {
            Due::In(left) => left,
            // Not what is read back.
            Due::At(_) => Duration::ZERO,
        }
    }
}

/// The result of one [`Reader::fetch`].
#[derive(Debug, Default)]
pub struct Fetched {
    /// What was read, each source in the order of its ids.
    pub entries: Vec<Entry>,
    /// Entries that were handed out before and whose fields are gone since: trimmed or deleted by somebody.
    /// Settle them as [`Settlement::Ack`], and tell.
    pub ghosts: Vec<Receipt>,
    /// Whether this came from the pending list: entries handed out earlier, to this owner or one before. After entries
    /// that are new it says that the reader has started over by itself, and may have looked before some of this was
    /// settled: who does not know what was settled since the call began opens another reader.
    pub pending: bool,
    /// Whether something was scheduled at this partition, since the call before, that is due before all that waited.
    pub woken: bool,
    /// The group stood before what this reader had handed out of the log: the server lost the end of what it had told,
    /// in a fail-over or restart. From where, and to where; told once. Not set after
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing): that the caller knows of.
    pub rewound: Option<(MessageId, MessageId)>,
    /// The newest entry that this reader had handed out is not on the server any more, or another one stands under its id,
    /// and the group stands before it: a fail-over lost the end of the log or the retry log, and what comes next may have
    /// the ids that were returned. Messages in flight have to be dropped, and the lease to be given back: a settlement of it
    /// could take another message off the list. Nothing else was read.
    pub tail_lost: bool,
}

/// What the log is told of an entry that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Done. It is never handed out again.
    Ack,
    /// Not settled yet: it stays pending, and this is noted in place of what was noted before. Whoever reads the
    /// pending list next reads the note with the entry.
    Hold(Note),
    /// Hand it out again to this group, not before it is due.
    Retry {
        /// When, by the server's clock.
        due: Due,
        /// The number of the attempt that comes next: the one that it had if this is to use none.
        attempt: u32,
        /// The id of the first entry in the log.
        origin: MessageId,
        /// What the last attempt failed with; empty if none has.
        error: String,
        /// What the attempts before failed with. The server adds the failure of attempt `attempt - 1` with `error`,
        /// unless this [tells of](History::tells_of) it.
        history: History,
    },
    /// Do not hand it out again; keep it with the group's dead letters.
    DeadLetter {
        /// Why.
        reason: Reason,
        /// How many attempts were made.
        attempts: u32,
        /// The id of the first entry in the log.
        origin: MessageId,
        /// What the last attempt failed with, or why there was none.
        error: String,
        /// What the attempts before failed with. The server adds the failure of attempt `attempts` with `error`, unless
        /// this [tells of](History::tells_of) it.
        history: History,
    },
}

/// What became of a batch of settlements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// How many took effect. A [`Settlement::Hold`] of a pending entry does.
    pub applied: usize,
    /// How many had been settled or deleted before (a lost reply, an operator): nothing was done again.
    pub stale: usize,
}

/// The answer to [`Log::trim`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// How many entries were dropped.
    pub dropped: usize,
    /// Whose they were, as far as a group had not settled them; in the order of names. Empty unless the retention is
    /// [lossy](crate::Retention::is_lossy).
    pub lost: Vec<Lost>,
    /// Whether it stopped before everything was dropped that could be: ask again.
    pub more: bool,
}

/// What a group lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Which group.
    pub group: GroupName,
    /// Entries above its position: never handed out to it, or to be handed out again since the position was set back. What
    /// is pending there counts as both.
    pub unread: u64,
    /// Entries that were handed out to it and not settled. Whoever has one in hand can still end with it; it cannot be
    /// tried again.
    pub pending: u64,
}

/// The answer to [`Log::append_measured`].
#[derive(Debug)]
pub struct Measured {
    /// One result per entry, as of [`Log::append`].
    pub results: Vec<Result<MessageId>>,
    /// How many entries each log has.
    pub lengths: Vec<(TopicPartition, u64)>,
}

/// Reads and writes the logs of partitions.
///
/// Everything but [`append`](Log::append) needs the partition's lease and fails with
/// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), with no effect, once somebody else was granted it.
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends entries, in the order of the batch within each partition.
    ///
    /// The answer has one result per entry. A failed entry does not keep the others from being appended. An entry
    /// without fields is refused.
    async fn append(&self, batch: &[Append]) -> Vec<Result<MessageId>>;

    /// Opens what a producer appends with, if this log has something better than one [`append`](Self::append) after the
    /// other, which is what `None` means: the default.
    fn appender(&self) -> Option<Box<dyn Appender>> {
        None
    }

    /// Opens a reader for the partition and group of `lease`. It starts with what is pending.
    ///
    /// # Errors
    /// Transient ones. The lease and the group are first looked at by [`Reader::fetch`].
    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>>;

    /// Tells the log what became of entries. Each settlement is atomic, and done at most once: sent again
    /// after a lost reply it counts as stale. So does a retry or dead letter of an entry whose fields are gone:
    /// it leaves the pending list, and there is nothing to keep.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), or a transient error after which the batch can be
    /// sent again as it is. [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) if an entry of the log is to be
    /// held, retried or kept and its group is gone: nothing is done for such entries, whatever else is in the batch is
    /// settled. An ack that comes so late is stale as ever: there is nothing to lose.
    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled>;

    /// Moves the group's position in the log: reading goes on with the first entry above `start`. What is pending
    /// above that position is forgotten, since it will be read again as new; so is what is pending up to it, with its
    /// notes, since it is to be skipped. The retry log, what is parked and the dead letters stay.
    ///
    /// The lease is given back in the same step: entries come again under the ids that they had, and what was said of them
    /// before, also a settlement that is still under way, must not count for them. So its reader, its settlements and its
    /// release fail with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) from then on; whoever goes on acquires it anew.
    /// Unlike a [release](crate::Leases::release) that leaves open whether the owner before was found to be abandoned.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced); [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing):
    /// nothing was done, and the lease is as it was. After a transient error it can be asked again; if it was done, the
    /// answer to that is [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
    async fn seek(&self, lease: &Lease, start: Start) -> Result<()>;

    /// Drops entries of the log, the oldest first, as `retention` says. If that is not
    /// [lossy](crate::Retention::is_lossy), only such that every group has settled; never one that is unread or pending
    /// in any (both: a position can be set back while something is pending), and without a group none. What is pending and
    /// was deleted by somebody neither keeps anything nor counts as lost. Does a bounded amount of work: see [`Trimmed::more`].
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), or a transient error.
    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed>;

    /// [`append`](Self::append), and how many entries the log of each partition of the batch has behind it, in one
    /// request. A partition whose length cannot be told, as nothing was appended, is left out.
    async fn append_measured(&self, batch: &[Append]) -> Measured;

    /// How many entries the logs of these partitions have, in their order.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>>;
}

/// Appends batch after batch for one producer: the next one is under way before the one before is answered.
///
/// What one appender appends is stored in the order in which it was begun, within each partition. A batch that fails
/// keeps those behind it from being stored only if the connection broke.
#[async_trait]
pub trait Appender: Send {
    /// Begins to append a batch, behind those that were begun before. Goes on only while [`finish`](Self::finish) is
    /// awaited.
    fn begin(&mut self, batch: Arc<Vec<Append>>);

    /// What became of the oldest batch that was begun and is not told of yet: one result per entry, as of
    /// [`Log::append`]. Without such a batch, nothing at once.
    ///
    /// Dropping this future loses nothing: the next one goes on.
    async fn finish(&mut self) -> Vec<Result<MessageId>>;
}

/// Reads one partition for one group, as the holder of its lease.
#[async_trait]
pub trait Reader: Send {
    /// Reads up to `max` entries, fewer where they are large; waits up to `wait` if there are none.
    ///
    /// How many it asks for follows from what they have weighed so far, so that an answer takes about a second on a link
    /// of 10 MB/s: at least one, and one answer is larger where entries have grown. After an answer that was lost, or
    /// late, it asks for half as many.
    ///
    /// First everything pending is handed out, oldest first, over as many calls as it takes; from then on new
    /// entries. An empty result means that the wait passed, not that the log ended. Neither source starves the
    /// other: with `max` above 1 each call reads both.
    ///
    /// Waiting has no effect on the server: dropping this future is safe. After a drop or an error the reader
    /// starts over with what is pending, since a reply may have been lost; it may do so by itself, and
    /// [says so](Fetched::pending). So an entry that is still being
    /// handled can be handed out again **by the same reader**: the caller skips what it holds, unless it is told of a
    /// [lost tail](Fetched::tail_lost).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) when the lease is somebody else's: nothing was read.
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) when the group is gone; see
    /// [`Catalog::restore_group`](crate::Catalog::restore_group).
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) when a key is not a stream. Transient ones.
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched>;
}
