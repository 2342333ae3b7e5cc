//! The shared role: many consumers of a group read the same partitions side by side, without order.
//!
//! In this mode ownership is per entry: the pending list says who has it. A consumer reads under a name of its own,
//! one that is never used again ([`consumer_of`]), and only it can settle what stands under that name. It
//! [extends](Shared::extend) what it has, in hand or merely ready, so that others see that it is at work; what it will
//! not get to it [gives back](Shared::give_back); and what stands under the name of a consumer that is dead, others
//! [claim](Shared::claim).

use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::error::Result;
use crate::leases::Lease;
use crate::log::{Fetched, Receipt, Settled, Settlement};
use crate::members::Member;
use crate::name::{GroupName, MAX_NAME_LEN, MemberId, TopicName};
use crate::topic::{Partition, TopicPartition};

/// A consumer's place in a group that shares partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMember {
    /// Of which topic.
    pub topic: TopicName,
    /// In which group.
    pub group: GroupName,
    /// The consumer's name: unique to one start of one instance. See [`consumer_of`].
    pub consumer: MemberId,
}

impl SharedMember {
    /// The partition with this number.
    #[must_use]
    pub fn partition(&self, partition: Partition) -> TopicPartition {
        TopicPartition { topic: self.topic.clone(), partition }
    }
}

/// The name under which a member reads: its id, and its incarnation unless the id ends with that. A restart under the
/// same id is another consumer. What names may not contain is replaced, and an id that is too long for both is cut.
#[must_use]
pub fn consumer_of(member: &Member) -> MemberId {
    let (id, incarnation) = (member.id.as_str(), member.incarnation.as_str());
    if !incarnation.is_empty() && id.ends_with(incarnation) {
        return member.id.clone();
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let word = incarnation.chars().map(|c| if allowed(c) { c } else { '_' });
    let word: String = word.take(MAX_NAME_LEN - 1).collect();
    let id = &id[..id.len().min(MAX_NAME_LEN - 1 - word.len())];
    MemberId::new(format!("{id}-{word}")).expect("allowed characters, 1 to 128 of them")
}

/// The result of one [`Shared::claim`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Claimed {
    /// What consumers died over, or were cut off with: one of these may be why. It is marked as pending.
    pub abandoned: Fetched,
    /// What consumers gave back and never began. It is marked as pending.
    pub given_back: Fetched,
    /// How many consumers were removed.
    pub removed: usize,
    /// When more may be there to claim, from now, as far as one look tells; `None` if nothing stands under the name of
    /// a consumer that is not alive.
    pub next: Option<Duration>,
}

/// Reads and settles in the name of one consumer among many.
#[async_trait]
pub trait Shared: Send + Sync {
    /// Opens a reader of these partitions, logs and retry logs alike. It starts with what is pending under the
    /// consumer's own name.
    ///
    /// # Errors
    /// Transient ones. The groups are first looked at by [`SharedReader::fetch`].
    async fn shared_reader(
        &self,
        seat: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>>;

    /// As [`Log::settle`](crate::Log::settle), for entries that are pending under the consumer's name. Those that are
    /// not (claimed by somebody, settled before) count as stale, and nothing is done.
    ///
    /// # Errors
    /// Transient ones, after which the batch can be sent again as it is.
    async fn settle_shared(
        &self,
        seat: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled>;

    /// Says that the consumer still has these entries: from now on nobody has touched them for no time at all. How
    /// often they were handed out does not change.
    ///
    /// Gives back those that it has not: claimed by somebody, settled, or deleted. Their handlers should end.
    ///
    /// # Errors
    /// Transient ones.
    async fn extend(
        &self,
        seat: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>>;

    /// Says that the consumer, which is about to leave the group, has not begun with these entries: once it is not
    /// alive, others can claim them at once. What is not under its name is left alone. It must not settle them any
    /// more, nor extend them.
    ///
    /// # Errors
    /// Transient ones. Without this call the entries are claimed later.
    async fn give_back(&self, seat: &SharedMember, partition: Partition, entries: &[Receipt]) -> Result<()>;

    /// Takes over up to `max` entries of one partition, fewer where they are large, from consumers that are not among `alive`, whatever mode they
    /// read in, if nobody has touched them for `idle`, or they were [given back](Self::give_back). The claimer itself is
    /// always alive. How often they were handed out grows by one.
    ///
    /// Unless `heard` [judges](Continuity::judges) only what was given back is taken, and nobody is removed: that an entry
    /// was not touched may be the server's absence.
    ///
    /// A consumer that is not alive and was not heard of for `idle` is removed once nothing stands under its name; never
    /// one with an entry.
    ///
    /// Ghosts among the result are off the pending list already.
    ///
    /// # Errors
    /// Transient ones, after which some entries may stand under the claimer's name, also such as were taken over before the
    /// answer with their bodies was lost: a new reader finds them. [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing);
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn claim(
        &self,
        seat: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        heard: &Continuity,
    ) -> Result<Claimed>;

    /// The same for a partition's owner, in the mode in which it has one: takes over what stands under any other name,
    /// left there by consumers that shared the partition, or by hand, and removes those names. A
    /// [reader](crate::Log::reader) that is opened after this finds the entries among what is pending.
    ///
    /// Gives back how many entries (up to `max`) were taken over. Without a `heard` that [judges](Continuity::judges) it
    /// takes only what was given back, as [`claim`](Self::claim).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if the lease is lost: nothing was done.
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing);
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn adopt(&self, lease: &Lease, idle: Duration, max: usize, heard: &Continuity) -> Result<usize>;
}

/// Reads many partitions in the name of one consumer.
#[async_trait]
pub trait SharedReader: Send {
    /// Reads up to `max` entries in all, fewer where they are large as [`Reader::fetch`](crate::Reader::fetch) does; waits up to `wait` if there are none. Of a partition there is at most one
    /// element in the answer. An empty answer means that the wait passed, not that the logs ended.
    ///
    /// First everything that is pending under the consumer's name is handed out, over as many calls as it takes, marked
    /// as such; from then on new entries, each to one consumer of the group. No call brings both. No partition and no
    /// source starves another.
    ///
    /// With `max` below twice the number of partitions a few more may come: one of each stream at most.
    ///
    /// Entries may have been handed out when an error comes back or this future is dropped. The reader then starts over
    /// with what is pending. So an entry that is still being handled can be handed out again **by the same reader**:
    /// the caller skips what it holds.
    ///
    /// # Errors
    /// [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing) when the group is gone on one of the partitions; see
    /// [`Catalog::restore_group`](crate::Catalog::restore_group), which does nothing where it is there.
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) when a key is not a stream. Transient ones.
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>>;
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
