//! The log role: append, fetch, settle, trim.
//!
//! A partition has one *log* that all groups read, and per group one *retry log* for messages that return to that group
//! alone: retries that are due and replayed dead letters. A group reads both; no other group reads its retry log.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::capability::unsupported;
use crate::catalog::Start;
use crate::dead_letters::Reason;
use crate::error::{Error, ErrorKind, Result};
use crate::history::History;
use crate::id::MessageId;
use crate::leases::Lease;
use crate::name::GroupName;
use crate::progress::{ProgressLine, ProgressReport};
use crate::results::{MessageResult, ResultId, StoredResult};
use crate::schedule::{Due, ScheduleId, Shard};
use crate::shared::SharedMember;
use crate::sorted::SortedSet;
use crate::steps::StepWait;
use crate::topic::{Partition, Retention, TopicPartition};
use crate::wire::Fields;

pub use crate::message::append::{Append, Appended, DedupIdentity, Identity, UniqueIdentity, unique_id_of};
pub use crate::message::dedup::{DedupId, Numbering, check_window};
pub use crate::message::durability::Durability;
pub use crate::message::receipt::{InPack, Receipt, Source};

/// Entry as a group's owner reads it. [`wire::decode`](crate::wire::decode) turns it into a message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The reference with which it is settled.
    pub receipt: Receipt,
    /// Number of times that it was handed out without being settled, this time included: 1 for a first reading.
    pub deliveries: u32,
    /// Its fields, byte for byte as they were appended.
    pub fields: Fields,
    /// Note that was stored for it when it was handed out before.
    pub note: Option<Note>,
}

impl Entry {
    /// Creates an entry without a note, as a backend returns it.
    #[must_use]
    pub fn new(receipt: Receipt, deliveries: u32, fields: Fields) -> Self {
        Self { receipt, deliveries, fields, note: None }
    }

    /// Returns the same entry with its note, if there is one.
    #[must_use]
    pub fn with_note(self, note: Option<Note>) -> Self {
        Self { note, ..self }
    }
}

/// Note on a pending entry, which an owner stores for itself and for the owners after it.
///
/// A note is deleted when its entry is settled. Where messages wait in their place (to keep their order), the attempt
/// count survives a takeover in it. It also serves to detect a message that kills processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Number of the next attempt; 0 if the note does not concern attempts.
    pub attempt: u32,
    /// Due time of that attempt. When a note is read, it is the time [left](Note::left), by the server's clock.
    pub due: Due,
    /// Number of unexplained ends of owners at which the entry was noted as begun, this one included; 0 if it is no
    /// poison candidate.
    pub suspicions: u32,
    /// Names of those that stored the note: without spaces and commas, oldest first, separated by `,`, at most 128 bytes.
    /// For a poison candidate: the [epochs](crate::Lease::epoch) of the leases under which it was begun.
    pub by: String,
    /// Error of the last attempt; cut to [`MAX_ERROR_LEN`](crate::wire::MAX_ERROR_LEN) bytes.
    pub error: String,
    /// Failures of the attempts before. The server adds the failure of attempt `attempt - 1` with `error`, unless the
    /// history [contains](History::tells_of) it.
    pub history: History,
}

impl Note {
    /// Returns the remaining wait of a note that was read.
    #[must_use]
    pub fn left(&self) -> Duration {
        match self.due {
            Due::In(left) => left,
            // A note that was read has no absolute time.
            Due::At(_) => Duration::ZERO,
        }
    }
}

/// Result of one [`Reader::fetch`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Fetched {
    /// The entries, those of each source in the order of their ids.
    pub entries: Vec<Entry>,
    /// Entries that were handed out before and whose fields have been trimmed or deleted since. Settle them as
    /// [`Settlement::Ack`], and emit [`Event::Ghosts`](crate::Event::Ghosts).
    pub ghosts: Vec<Receipt>,
    /// Whether the entries are from the pending list: handed out earlier, to this owner or a previous one. If this is set
    /// after a fetch of new entries, the reader has started over by itself, and may have read the list before some of
    /// these entries were settled. A caller that does not know which entries were settled since the call began opens
    /// another reader.
    pub pending: bool,
    /// Whether, since the previous call, something was scheduled at this partition that is due before everything that
    /// waited. A fetch that waits returns for it at once, without entries. A new reader does not know what the one before it reported: its
    /// first fetch reports if there ever was such a message.
    pub woken: bool,
    /// Positions from and to which the group was set back: its position was before entries of the log that this reader
    /// had handed out, since the server lost its latest writes in a fail-over or restart. Reported once. Not set after
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing), which the caller has received already.
    pub rewound: Option<(MessageId, MessageId)>,
    /// Whether a fail-over lost the end of the log or the retry log: the newest entry that this reader had handed out is
    /// gone, or its id belongs to another entry, and the group's position is before it. Entries that come next may have
    /// ids that were returned before. The caller must drop the messages in flight and release the lease: a settlement of
    /// one of them could take another message off the pending list. Nothing else was read.
    pub tail_lost: bool,
    /// Error of the first pack that this client cannot read, since its compression is not known or not built in
    /// ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)). Only of consumers that [share](crate::Shared) partitions: such packs stay
    /// pending under the consumer's name, and its reader takes no new entries from that log. A reader of one partition returns the error.
    pub unreadable: Option<Error>,
}

impl Fetched {
    /// Creates the empty result of a fetch that read the pending list.
    #[must_use]
    pub fn of_pending() -> Self {
        Self { pending: true, ..Self::default() }
    }
}

/// Settlement of an entry that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Done. It is never handed out again.
    Ack,
    /// Done, as [`Ack`](Self::Ack), with the result that the message asks for. It is stored in the same step, and only if the entry is pending: a
    /// settlement that is stale or fenced stores none. Which one stays of several says [`MessageResult::replaces`]. A backend without [`Capability::Results`](crate::Capability::Results) stores none.
    AckWith(Box<StoredResult>),
    /// Not settled yet: the entry stays pending, and the note replaces the previous one. The next reader of the pending
    /// list reads the note with the entry.
    Hold(Note),
    /// Hand it out again to this group, not before it is due.
    Retry {
        /// Due time, by the server's clock.
        due: Due,
        /// Number of the next attempt: the current number, if this one is not to be counted.
        attempt: u32,
        /// Id of the message's first entry, in the log.
        origin: MessageId,
        /// Error of the last attempt; empty if none has failed.
        error: String,
        /// Failures of the attempts before. The server adds the failure of attempt `attempt - 1` with `error`, unless the
        /// history [contains](History::tells_of) it.
        history: History,
        /// The wait for which its handler has handed it back. It is noted in the same step. If there is a signal for it, the message is due now, and
        /// otherwise when the wait ends that was noted first.
        wait: Option<Box<StepWait>>,
    },
    /// Do not hand it out again; keep it with the group's dead letters.
    DeadLetter {
        /// The reason.
        reason: Reason,
        /// Number of attempts that were made.
        attempts: u32,
        /// Id of the message's first entry, in the log.
        origin: MessageId,
        /// Error of the last attempt, or the reason why there was none.
        error: String,
        /// Failures of the attempts before. The server adds the failure of attempt `attempts` with `error`, unless the
        /// history [contains](History::tells_of) it.
        history: History,
        /// The result that the message asks for, stored as that of [`AckWith`](Self::AckWith).
        result: Option<Box<StoredResult>>,
    },
}

impl Settlement {
    /// Whether the message is done: nothing of its entry has to be kept.
    #[must_use]
    pub const fn is_ack(&self) -> bool {
        matches!(self, Self::Ack | Self::AckWith(_))
    }

    /// Returns the result that is stored with it.
    #[must_use]
    pub fn result(&self) -> Option<&StoredResult> {
        match self {
            Self::AckWith(result) | Self::DeadLetter { result: Some(result), .. } => Some(result),
            _ => None,
        }
    }
}

/// Result of a batch of settlements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Number of settlements that took effect. A [`Settlement::Hold`] of a pending entry counts.
    pub applied: usize,
    /// Number of entries that had been settled or deleted before (a lost reply, an operator): nothing was done again.
    pub stale: usize,
}

/// Result of [`Log::trim`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trimmed {
    /// Number of messages that were dropped.
    pub dropped: usize,
    /// Dropped messages that groups had not settled, in the order of the groups' names. Empty unless the retention is
    /// [lossy](crate::Retention::is_lossy).
    pub lost: Vec<Lost>,
    /// Whether it stopped before everything was dropped that could be: call again.
    pub more: bool,
    /// Whether nothing was done, since it was another client's [turn](UnleasedTrim::OncePerSecond).
    pub skipped: bool,
}

impl Trimmed {
    /// Creates the result of a trim that dropped this many messages, lost none, and has nothing left to drop.
    #[must_use]
    pub fn new(dropped: usize) -> Self {
        Self { dropped, ..Self::default() }
    }
}

/// Rule of a trim [without a lease](Log::trim_unleased).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnleasedTrim {
    /// Drops what the retention drops, unless a client has had its turn within the last second: for producers, of which there
    /// may be many.
    OncePerSecond(Retention),
    /// Drops what the retention drops: for operators.
    Now(Retention),
    /// Drops all entries below this id, **whether they were read or not**: for operators. The loss is counted per group.
    Below(MessageId),
}

impl UnleasedTrim {
    /// Whether it may drop entries that a group has not settled.
    #[must_use]
    pub const fn is_lossy(self) -> bool {
        match self {
            Self::OncePerSecond(retention) | Self::Now(retention) => retention.is_lossy(),
            Self::Below(_) => true,
        }
    }
}

/// Messages that one group lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The group.
    pub group: GroupName,
    /// Number of messages above its position: never handed out to it, or to be handed out again since the position was set
    /// back. Pending ones above the position count here and in `pending`.
    pub unread: u64,
    /// Number of messages that were handed out to it and not settled. A handler that has one can still complete it; it
    /// cannot be retried.
    pub pending: u64,
}

/// Returns the error of a send to a partition whose log has reached the bound of its topic.
#[must_use]
pub fn full(topic_partition: &TopicPartition, bound: u64) -> Error {
    let why = format!("{topic_partition} is full: it has {bound} entries or more");
    Error::new(ErrorKind::Backpressure, why).at(topic_partition)
}

/// Result of [`Log::append_measured`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Measured {
    /// One result per entry, as [`Log::append`] returns it.
    pub results: Vec<Result<Appended>>,
    /// Number of entries in each log.
    pub lengths: Vec<(TopicPartition, u64)>,
}

impl Measured {
    /// Creates a result as a backend returns it.
    #[must_use]
    pub fn new(results: Vec<Result<Appended>>, lengths: Vec<(TopicPartition, u64)>) -> Self {
        Self { results, lengths }
    }
}

/// Reads and writes the logs of partitions.
///
/// Required are [`append`](Log::append), [`reader`](Log::reader), [`settle`](Log::settle) and [`trim`](Log::trim).
///
/// [`append`](Log::append), [`append_measured`](Log::append_measured), [`appender`](Log::appender),
/// [`trim_unleased`](Log::trim_unleased) and [`lengths`](Log::lengths) need no lease. Everything else needs the partition's lease. Once another owner was granted
/// it, such a call fails with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) and has no effect.
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends entries, in the order of the batch within each partition, except those that are recognised by their
    /// [identity](Append::identity): these have the place of the first one. The identities of a batch are
    /// [of one kind](Append::kind_of); another batch is refused as a whole. Entries of one partition that are appended by batches one
    /// after the other are stored in this order. Where the topic has a [packing](crate::TopicSpec::packing), the backend may store
    /// entries that stand together as one; each has its own id and its own result in any case.
    ///
    /// Returns one result per entry. A failed entry does not keep the others from being appended. An entry without fields
    /// is refused with [`ErrorKind::Encode`](crate::ErrorKind::Encode), one with an identity that the backend does not know with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): [`Append::check_plain`]. The topic is not looked up: the first entry
    /// of a partition creates its log.
    ///
    /// A batch whose entries are all [repeatable](Identity::is_repeatable) can be sent again after
    /// [`ErrorKind::Unconfirmed`](crate::ErrorKind::Unconfirmed).
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>>;

    /// Opens an appender for one producer, whose entries have this durability before their results are returned.
    ///
    /// Returns `None` for [`Durability::Stored`] if this log has nothing better than one [`append`](Self::append) after the
    /// other, and for anything more if it does not support it: see
    /// [`Capability::Durability`](crate::Capability::Durability). Default: `None`.
    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        let _ = durability;
        None
    }

    /// Opens a reader for the partition and group of `lease`. It starts with the pending entries.
    ///
    /// # Errors
    /// Transient ones. The lease and the group are first checked by [`Reader::fetch`].
    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>>;

    /// Settles entries. Each settlement is atomic and done at most once: one that is sent again after a lost reply counts
    /// as stale. So does a retry or dead letter of an entry whose fields are gone: it leaves the pending list, and there
    /// is nothing to keep.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), or a transient error after which the batch can be sent again
    /// unchanged. [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) if an entry of the log is to be held,
    /// retried or kept and its group is gone: nothing is done for such entries, and the rest of the batch is settled. An
    /// ack in that case is stale as usual: there is nothing to lose.
    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled>;

    /// Moves the group's position in the log: reading continues with the first entry above `start`. Entries that are
    /// pending above that position leave the pending list, since they will be read again as new. Entries that are pending
    /// up to it leave it too, with their notes, since they are to be skipped. The retry log, parked retries and dead
    /// letters stay.
    ///
    /// The same step releases the lease. Entries come again under the ids that they had, and earlier settlements, also
    /// one that is still under way, must not apply to them. From then on the reader, the settlements and the release of
    /// this lease fail with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced); to continue, acquire it again. Unlike a
    /// [release](crate::Leases::release), this keeps the stored [ends](crate::Lease::ends) as they are: their cause stays
    /// open.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced); [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing):
    /// nothing was done, and the lease is unchanged. After a transient error the call can be repeated; if the first one
    /// took effect, the repetition fails with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see [`Capability::Seek`](crate::Capability::Seek).
    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        let _ = (lease, start);
        Err(unsupported("Log::seek"))
    }

    /// Drops entries of the log, the oldest first, according to `retention`. If that is not
    /// [lossy](crate::Retention::is_lossy), only entries that every group has settled are dropped: never one that is
    /// unread or pending in any group (both are checked: a position can be set back while something is pending), and none
    /// if there is no group. Pending entries that have been deleted neither keep anything nor count as lost. Each call
    /// does a bounded amount of work: see [`Trimmed::more`].
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), or a transient error.
    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed>;

    /// Drops entries of the log as [`trim`](Self::trim) does, without a lease: for producers of a topic that no consumer reads,
    /// and for operators. What groups have not settled is protected by the same rules. Each call does a bounded amount of work: see
    /// [`Trimmed::more`].
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::Denied`](crate::ErrorKind::Denied) for a producer without the right to trim.
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::UnleasedTrim`](crate::Capability::UnleasedTrim).
    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        let _ = (topic_partition, rule);
        Err(unsupported("Log::trim_unleased"))
    }

    /// Appends entries as [`append`](Self::append) does, and returns in the same request the number of entries in the log
    /// of each partition of the batch afterwards. A partition is left out if nothing was appended to it, since its length
    /// is then not known.
    ///
    /// Default: [`append`](Self::append), and then [`lengths`](Self::lengths) in a second request. No length is known
    /// if that fails.
    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let results = self.append(batch).await;
        let stored = batch.iter().zip(&results).filter(|(_, result)| result.is_ok());
        let stored: SortedSet<_> = stored.map(|(append, _)| append.topic_partition.clone()).collect();
        let lengths = self.lengths(&stored).await.unwrap_or_default();
        Measured { results, lengths: stored.into_iter().zip(lengths).collect() }
    }

    /// Returns the number of entries in the logs of these partitions, in their order.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Lengths`](crate::Capability::Lengths).
    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        let _ = partitions;
        Err(unsupported("Log::lengths"))
    }

    /// Returns the result of a message, waiting up to `wait` for it; `None` if there is none by then: it is not stored yet, or not kept any
    /// longer. Any number of callers can wait at the same time, and each gets it as often as it asks.
    ///
    /// # Errors
    /// Transient ones, after which the call can be repeated; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) and
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) for a key that holds something else.
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Results`](crate::Capability::Results).
    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        let _ = (id, wait);
        Err(unsupported("Log::result"))
    }

    /// Stores what the handler of a message says of its work, under the right by which it is handled. Of the lines of a message the newest
    /// [`MAX_LINES`](crate::progress::MAX_LINES) with a text stay, and the newest without one, for the time of the [request](ProgressReport::request) from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if the right is lost: nothing was stored. Transient ones, after which the lines may be
    /// stored. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Results`](crate::Capability::Results).
    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        let _ = (right, report);
        Err(unsupported("Log::report_progress"))
    }

    /// Returns the lines of a message above this [number](ProgressLine::number), oldest first; without one it waits up to `wait`. The lines of
    /// all groups that report are among each other. If the last number is below the given one, since the server has lost lines, all are
    /// returned.
    ///
    /// # Errors
    /// Those of [`result`](Self::result).
    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        let _ = (id, above, wait);
        Err(unsupported("Log::progress"))
    }
}

/// Right under which a message is handled: it is checked in the step that stores its progress.
#[derive(Clone, Debug)]
pub enum ProgressRight {
    /// The lease of its partition.
    Owner(Lease),
    /// Its entry is pending under the name of one consumer of many.
    Consumer {
        /// The consumer.
        member: Arc<SharedMember>,
        /// Partition of the entry.
        partition: Partition,
        /// The entry.
        receipt: Receipt,
    },
    /// The claim of a task.
    Worker {
        /// Shard of the task.
        shard: Shard,
        /// Id of the task.
        task: ScheduleId,
        /// Token of the claim.
        token: String,
    },
}

/// Appends batch after batch for one producer: the next one is sent before the previous one is answered.
///
/// Batches of one appender are stored in the order in which they were begun, within each partition. A batch that fails
/// keeps later ones from being stored only if it can be begun again, because the connection broke or the server takes nothing: then
/// those that were begun behind it fail too, so that no later one of its partition is stored before.
#[async_trait]
pub trait Appender: Send {
    /// Begins to append a batch, after those that were begun before. It makes progress only while
    /// [`finish`](Self::finish) is awaited. The [identities](Append::identity) of a batch are [of one kind](Append::kind_of). Those that
    /// [look first](Identity::looks_first), and all at an appender of more than
    /// [`Durability::Stored`](crate::Durability::Stored), may be refused with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported):
    /// they are for [`Log::append`](crate::Log::append).
    fn begin(&mut self, batch: Arc<Vec<Append>>);

    /// Returns the results of the oldest batch that was begun and not reported yet: one result per entry, as
    /// [`Log::append`](crate::Log::append) returns them. Without such a batch it returns an empty list at once.
    ///
    /// An entry that was stored, but did not reach the [`Durability`](crate::Durability) of the appender in time, has the error
    /// [`ErrorKind::Unconfirmed`](crate::ErrorKind::Unconfirmed). Where the server cannot give this durability at all,
    /// nothing is stored, and the error is [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    ///
    /// Dropping this future loses nothing: the next call continues.
    async fn finish(&mut self) -> Vec<Result<Appended>>;
}

/// Appender that [appends](Log::append) one batch after the other.
pub struct InTurn<L> {
    log: L,
    /// Batches that are not reported, oldest first.
    begun: VecDeque<Arc<Vec<Append>>>,
    /// The append of the oldest one, once it has begun.
    under_way: Option<UnderWay>,
    /// Whether one has failed that may be begun again, and was not behind all others.
    failed: bool,
}

type UnderWay = Pin<Box<dyn Future<Output = Vec<Result<Appended>>> + Send>>;

impl<L: Log + Clone + 'static> InTurn<L> {
    /// Creates an appender for this log.
    pub const fn new(log: L) -> Self {
        Self { log, begun: VecDeque::new(), under_way: None, failed: false }
    }
}

#[async_trait]
impl<L: Log + Clone + 'static> Appender for InTurn<L> {
    fn begin(&mut self, batch: Arc<Vec<Append>>) {
        self.begun.push_back(batch);
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        let Some(oldest) = self.begun.front() else { return Vec::new() };
        if self.failed {
            let error = Error::new(ErrorKind::Unavailable, "not sent, an earlier append failed");
            let results = oldest.iter().map(|_| Err(error.clone())).collect();
            self.begun.pop_front();
            self.failed = !self.begun.is_empty();
            return results;
        }
        let under_way = self.under_way.get_or_insert_with(|| {
            let (log, batch) = (self.log.clone(), oldest.clone());
            Box::pin(async move { log.append(&batch).await })
        });
        let results = under_way.await;
        self.under_way = None;
        self.begun.pop_front();
        let is_away = |result: &Result<_>| result.as_ref().is_err_and(Error::is_transient);
        self.failed = !self.begun.is_empty() && results.iter().any(is_away);
        results
    }
}

/// Reads one partition for one group, as the holder of its lease.
#[async_trait]
pub trait Reader: Send {
    /// Reads up to `max` entries, fewer where they are large; waits up to `wait` if there are none. With a `max` of 0
    /// nothing is read.
    ///
    /// The number of entries that it requests follows from the size of past ones, so that an answer has about
    /// [2 MiB](crate::pages::PAGE_BYTES). It requests at least one, and one answer is larger where entries have grown. After a lost or
    /// late answer it requests half as many.
    ///
    /// First it returns all pending entries, oldest first, over as many calls as it takes; after that new entries. An
    /// empty result means that the wait passed, not that the log ended. Neither source starves the other: with `max`
    /// above 1 each call reads both.
    ///
    /// Waiting has no effect on the server: dropping this future is safe. After a drop or an error the reader starts over
    /// with the pending entries, since a reply may have been lost. It may also start over by itself, and then sets
    /// [`Fetched::pending`]. So an entry that is still being handled can be returned again **by the same reader**: the
    /// caller skips entries that it has in flight, unless [`Fetched::tail_lost`] is set.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) when another owner has the lease: nothing was read.
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) when the group is gone; see
    /// [`Catalog::restore_group`](crate::Catalog::restore_group). [`ErrorKind::WrongType`](crate::ErrorKind::WrongType)
    /// when a key is not a stream. Transient ones.
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched>;

    /// Makes the next [`fetch`](Self::fetch) start over with the pending entries, as after an error.
    ///
    /// Unlike a new reader, this one still knows the newest entries that it has returned, and reports with
    /// [`Fetched::tail_lost`] if a fail-over has lost them meanwhile. A caller that wants to read the pending list again
    /// under the same lease therefore keeps its reader.
    fn start_over(&mut self);
}
