//! The shared role: many consumers of a group read the same partitions concurrently, without order.
//!
//! In this mode ownership is per entry: the pending list holds the owner of each. A consumer reads under a name of its
//! own that is never used again ([`consumer_of`]), and only it can settle the entries that are pending under that name.
//! It [extends](Shared::extend) its entries, whether their handlers run or have not started, so that others see that it
//! is alive. It [gives back](Shared::give_back) entries that it will not handle. Others [claim](Shared::claim) the
//! entries of a consumer that is dead.
//!
//! A pack is one entry: it is extended, given back and claimed with each of its messages, which are settled one by one.

use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::error::Result;
use crate::leases::Lease;
use crate::log::{Fetched, Receipt, Settled, Settlement};
use crate::members::Member;
use crate::name::{GroupName, MAX_NAME_LEN, MemberId, TopicName};
use crate::topic::{Partition, TopicPartition};

/// Consumer in a group that shares partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedMember {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// Name of the consumer: unique to one start of one instance. See [`consumer_of`].
    pub consumer: MemberId,
}

impl SharedMember {
    /// Creates the consumer of a group.
    #[must_use]
    pub fn new(topic: TopicName, group: GroupName, consumer: MemberId) -> Self {
        Self { topic, group, consumer }
    }

    /// Returns the partition with this number.
    #[must_use]
    pub fn partition(&self, partition: Partition) -> TopicPartition {
        TopicPartition { topic: self.topic.clone(), partition }
    }
}

/// Returns the name under which a member reads: its id, then its incarnation unless the id ends with it. A restart under
/// the same id is another consumer. Characters that a name may not contain are replaced, and an id that is too long for
/// both is cut.
#[must_use]
pub fn consumer_of(member: &Member) -> MemberId {
    let (id, incarnation) = (member.id.as_str(), member.incarnation.as_str());
    if !incarnation.is_empty() && id.ends_with(incarnation) {
        return member.id.clone();
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let word = incarnation.chars().map(|c| if allowed(c) { c } else { '_' });
    let word: String = word.take(MAX_NAME_LEN - 1).collect();
    // The incarnation makes the name unique, so the id is cut rather than the incarnation. 1 is the `-` between them.
    let id = &id[..id.len().min(MAX_NAME_LEN - 1 - word.len())];
    MemberId::new(format!("{id}-{word}")).expect("allowed characters, 1 to 128 of them")
}

/// Result of one [`Shared::claim`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Claimed {
    /// Entries of consumers that died or were cut off: one of these entries may be the cause. Marked as pending.
    pub abandoned: Fetched,
    /// Entries that consumers gave back and never began. Marked as pending.
    pub given_back: Fetched,
    /// Number of consumers that were removed.
    pub removed: usize,
    /// Time from now until there may be more to claim, as far as this call can tell; `None` if no entry is pending under
    /// the name of a consumer that is not alive.
    pub next: Option<Duration>,
}

/// Reads and settles on behalf of one consumer among many.
#[async_trait]
pub trait Shared: Send + Sync {
    /// Returns in which portions these partitions are read, each by a reader of its own. What fails in one portion, or
    /// gives no answer, keeps nobody from reading the others. Default: all partitions in one.
    fn portions(&self, partitions: &[Partition]) -> Vec<Vec<Partition>> {
        vec![partitions.to_vec()]
    }

    /// Opens a reader of the logs and retry logs of the partitions of one [portion](Self::portions). It starts with the
    /// entries that are pending under the consumer's own name.
    ///
    /// # Errors
    /// Transient ones. [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for partitions of several portions. The
    /// groups are first checked by [`SharedReader::fetch`].
    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>>;

    /// Settles entries that are pending under the consumer's name, as [`Log::settle`](crate::Log::settle) does. Entries
    /// that are not (claimed by another consumer, settled before) count as stale, and nothing is done.
    ///
    /// # Errors
    /// Transient ones, after which the batch can be sent again as it is.
    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled>;

    /// Resets the idle time of these entries to zero, since the consumer still has them. Their number of deliveries does
    /// not change.
    ///
    /// Returns the entries that the consumer no longer has: claimed by another consumer, settled, or deleted. Their
    /// handlers should end.
    ///
    /// # Errors
    /// Transient ones.
    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>>;

    /// Marks entries as not begun by the consumer, which is about to leave the group: once it is not alive, others can
    /// claim them at once. Entries that are not under its name are left alone. Afterwards the consumer must not settle or
    /// extend them.
    ///
    /// # Errors
    /// Transient ones. Without this call the entries are claimed only after their idle time.
    async fn give_back(&self, member: &SharedMember, partition: Partition, entries: &[Receipt])
    -> Result<()>;

    /// Takes over up to `max` entries of one partition, and the rest of the last pack; fewer where they are large; from consumers
    /// that are not among `alive`, whatever mode they read in. An entry qualifies if its idle time is at least `idle`, or if it was [given
    /// back](Self::give_back). The claimer itself always counts as alive. The number of deliveries of each entry grows by
    /// one. With a `max` of 0 nothing is taken, and consumers are removed all the same.
    ///
    /// Unless `continuity` [judges](Continuity::judges), only entries that were given back are taken, and no consumer is
    /// removed: an idle time may have grown because the server was unreachable.
    ///
    /// A consumer that is not alive and has sent no request for `idle` is removed once no entry is pending under its name,
    /// and never before.
    ///
    /// Ghosts in the result are off the pending list already.
    ///
    /// # Errors
    /// Transient ones, after which some entries may be pending under the claimer's name, also entries that were taken
    /// over before the answer with their bodies was lost: a new reader finds them.
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing);
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<Claimed>;

    /// Takes over entries for the owner of a partition, in the mode in which partitions have owners: entries that are
    /// pending under any other name, left there by consumers that shared the partition, or by hand. It removes those
    /// names. A [reader](crate::Log::reader) that is opened after this finds the entries among the pending ones.
    ///
    /// Returns the number of entries (up to `max`) that were taken over. Unless `continuity` [judges](Continuity::judges),
    /// only entries that were given back are taken, as in [`claim`](Self::claim).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if the lease is lost: nothing was done.
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing);
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize>;
}

/// Reads many partitions on behalf of one consumer.
#[async_trait]
pub trait SharedReader: Send {
    /// Waits until there may be something to read, up to `wait`, and takes nothing. So many readers can wait at a time,
    /// and the caller decides how many entries to take when one of them returns. Returns whether there may be something.
    /// Dropping the future has no effect.
    ///
    /// Default: true at once, for a reader that waits in [`fetch`](Self::fetch).
    ///
    /// # Errors
    /// Transient ones.
    async fn ready(&mut self, wait: Duration) -> Result<bool> {
        let _ = wait;
        Ok(true)
    }

    /// Reads up to `max` entries in total, and the rest of the last pack; fewer where they are large as
    /// [`Reader::fetch`](crate::Reader::fetch) does; waits up to `wait` if there are none, unless [`ready`](Self::ready) does the waiting. The answer has at most one element per partition. An empty answer means that
    /// the wait passed, not that the logs ended.
    ///
    /// First it returns all entries that are pending under the consumer's name, over as many calls as it takes, marked as
    /// pending; after that new entries, each to one consumer of the group. No call returns both. No partition and no
    /// source starves another.
    ///
    /// With `max` below twice the number of partitions a few more may be returned: at most one of each stream.
    ///
    /// Entries may have been handed out when an error is returned or this future is dropped. The reader then starts over
    /// with the pending entries. So an entry that is still being handled can be returned again **by the same reader**:
    /// the caller skips entries that it has in flight.
    ///
    /// # Errors
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) when the group is gone on one of the partitions; see
    /// [`Catalog::restore_group`](crate::Catalog::restore_group), which does nothing where the group exists.
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) when a key is not a stream. Transient ones.
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>>;

    /// Reads as [`fetch`](Self::fetch) does, without waiting, but no new entries of the logs of the partitions in `full`: of those
    /// only the retry logs. For a consumer that holds a pack of each of them which takes more room than it has, and goes on with
    /// other messages meanwhile.
    ///
    /// Default: nothing, so that such a consumer reads on when it has room again.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Vec<(Partition, Fetched)>> {
        let _ = (max, full);
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_another_consumer_and_any_incarnation_makes_a_name() {
        let name = |id: &str, incarnation: &str| {
            let id = MemberId::new(id).expect("a name");
            consumer_of(&Member::new(id, incarnation, Duration::from_secs(1))).to_string()
        };
        assert_eq!(name("pod-1", "ab12"), "pod-1-ab12");
        assert_eq!(name("consumer-ab12", "ab12"), "consumer-ab12", "it says so already");
        assert_eq!(name("pod-1", "ü:{x}"), "pod-1-___x_");
        assert_eq!(name("pod", ""), "pod-");
        let (long, word) = ("p".repeat(128), "w".repeat(128));
        assert_eq!(name(&long, "ab12"), format!("{}-ab12", "p".repeat(123)));
        assert_eq!(name("pod", &word), format!("-{}", "w".repeat(127)));
        assert_ne!(name(&long, "ab12"), name(&long, "ab13"));
    }
}
