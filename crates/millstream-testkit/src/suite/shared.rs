//! The shared role: many consumers of one group that read the same partitions.

mod cancelling;
mod claiming;
mod holding_on;
mod noting;
pub(super) mod packs;
mod reading;
mod stepping;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::select_all;
use millstream_core::catalog::Start;
use millstream_core::log::{Entry, Fetched, Receipt, Settled};
use millstream_core::shared::{Claimed, SharedMember, SharedReader};
use millstream_core::{
    Continuity, GroupName, MemberId, MessageId, Partition, Settlement, TopicPartition, TopicSpec,
};

use tokio::time::Instant;

use super::suite;
use crate::case::{Case, Verdict, Violation, ensure};
use crate::harness::{Harness, QUIET};

pub(super) fn cases() -> Vec<Case> {
    [
        reading::cases(),
        holding_on::cases(),
        claiming::cases(),
        cancelling::cases(),
        noting::cases(),
        stepping::cases(),
    ]
    .concat()
}

/// One of many consumers, with a reader.
struct Sharer {
    member: SharedMember,
    /// One for each portion of the partitions.
    readers: Vec<Box<dyn SharedReader>>,
    partitions: Vec<Partition>,
    harness: Harness,
}

/// Creates a group with these consumers on a new topic.
async fn sharers<const N: usize>(
    h: &Harness,
    partitions: u32,
    names: [&str; N],
) -> Result<(TopicSpec, [Sharer; N]), Violation> {
    let topic = h.topic(partitions).await?;
    h.backend.catalog().create_group(&topic, &GroupName::new("group")?, Start::Earliest).await?;
    let mut sharers = Vec::new();
    for name in names {
        sharers.push(Sharer::join(h, &topic, name).await?);
    }
    Ok((topic, sharers.try_into().map_err(|_| Violation::new("as many as names"))?))
}

impl Sharer {
    async fn join(h: &Harness, topic: &TopicSpec, name: &str) -> Result<Self, Violation> {
        let consumer = MemberId::new(name)?;
        let member = SharedMember::new(topic.name.clone(), GroupName::new("group")?, consumer);
        let partitions: Vec<_> = (0..topic.partitions).map(Partition).collect();
        let mut sharer = Self { member, readers: Vec::new(), partitions, harness: h.clone() };
        sharer.reopen().await?;
        Ok(sharer)
    }

    async fn reopen(&mut self) -> Verdict {
        let shared = self.harness.backend.shared()?.clone();
        self.readers.clear();
        for portion in shared.portions(&self.partitions) {
            self.readers.push(shared.shared_reader(&self.member, &portion).await?);
        }
        Ok(())
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>, Violation> {
        Ok(self.read(max, wait).await?)
    }

    /// Reads what the next reader that has something finds; waits up to `wait` if none has.
    async fn read(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> millstream_core::Result<Vec<(Partition, Fetched)>> {
        let until = Instant::now() + wait;
        let left = || until.saturating_duration_since(Instant::now());
        if let [reader] = &mut self.readers[..] {
            // One call ends with the last pending entry, one takes new entries, and one follows a wait.
            for _ in 0..3 {
                if !reader.ready(left()).await? {
                    break;
                }
                let read = reader.fetch(max, left()).await?;
                if !read.is_empty() || max == 0 || left().is_zero() {
                    return Ok(read);
                }
            }
            return Ok(Vec::new());
        }
        loop {
            self.readers.rotate_left(1);
            for reader in &mut self.readers {
                while max > 0 && reader.ready(Duration::ZERO).await? {
                    let read = reader.fetch(max, Duration::ZERO).await?;
                    if !read.is_empty() {
                        return Ok(read);
                    }
                }
            }
            let left = left();
            if max == 0 || left.is_zero() {
                return Ok(Vec::new());
            }
            let waits = self.readers.iter_mut().map(|reader| reader.ready(left));
            select_all(waits).await.0?;
        }
    }

    /// Fetches until `count` entries have arrived. Returns each with its partition and whether it was delivered
    /// before.
    async fn take_all(&mut self, count: usize) -> Result<Vec<(Partition, bool, Entry)>, Violation> {
        let mut deadline = self.harness.wait_for(&format!("{count} entries to be handed out"));
        let mut taken = Vec::new();
        while taken.len() < count {
            let read = self.fetch(count - taken.len(), QUIET).await?;
            if read.is_empty() {
                deadline.pause().await?;
            }
            for (partition, fetched) in read {
                let pending = fetched.pending;
                taken.extend(fetched.entries.into_iter().map(|entry| (partition, pending, entry)));
            }
        }
        Ok(taken)
    }

    /// Same as [`take_all`](Self::take_all), for a topic with one partition.
    async fn take(&mut self, count: usize) -> Result<Vec<Entry>, Violation> {
        Ok(self.take_all(count).await?.into_iter().map(|(_, _, entry)| entry).collect())
    }

    async fn nothing(&mut self, why: &str) -> Verdict {
        let read = self.fetch(100, QUIET).await?;
        ensure!(read.is_empty(), "handed out ({why}): {read:?}");
        Ok(())
    }

    async fn settle(&mut self, receipts: &[Receipt], settlement: &Settlement) -> Result<Settled, Violation> {
        let batch: Vec<_> = receipts.iter().map(|receipt| (*receipt, settlement.clone())).collect();
        Ok(self.harness.backend.shared()?.settle_shared(&self.member, Partition(0), &batch).await?)
    }

    async fn acks(&mut self, receipts: &[Receipt]) -> Verdict {
        let settled = self.settle(receipts, &Settlement::Ack).await?;
        let expected = Settled { applied: receipts.len(), stale: 0 };
        ensure!(settled == expected, "settled {settled:?}, expected {expected:?}");
        Ok(())
    }

    async fn extend(&mut self, receipts: &[Receipt]) -> Result<BTreeSet<Receipt>, Violation> {
        let lost = self.harness.backend.shared()?.extend(&self.member, Partition(0), receipts).await?;
        Ok(lost.into_iter().collect())
    }

    async fn claim(&mut self, alive: &[&str], idle: Duration, max: usize) -> Result<Claimed, Violation> {
        self.claim_with(alive, (idle, max), &Continuity::assured()).await
    }

    /// Claims with this record of answered calls.
    async fn claim_with(
        &mut self,
        alive: &[&str],
        (idle, max): (Duration, usize),
        continuity: &Continuity,
    ) -> Result<Claimed, Violation> {
        let alive: Vec<_> = alive.iter().map(MemberId::new).collect::<Result<_, _>>()?;
        let shared = self.harness.backend.shared()?;
        Ok(shared.claim(&self.member, Partition(0), &alive, idle, max, continuity).await?)
    }

    /// Claims until `count` abandoned entries have arrived.
    async fn claims(
        &mut self,
        alive: &[&str],
        idle: Duration,
        count: usize,
    ) -> Result<Vec<Entry>, Violation> {
        let mut deadline = self.harness.wait_for(&format!("{count} entries to be claimed"));
        let mut entries = Vec::new();
        loop {
            let claimed = self.claim(alive, idle, count - entries.len()).await?;
            let given_back = claimed.given_back.entries;
            ensure!(given_back.is_empty(), "nobody gave back {given_back:?}");
            ensure!(claimed.abandoned.entries.is_empty() || claimed.abandoned.pending, "it looks like new");
            entries.extend(claimed.abandoned.entries);
            if entries.len() >= count {
                return Ok(entries);
            }
            deadline.pause().await?;
        }
    }
}

fn only(topic: &TopicSpec) -> TopicPartition {
    TopicPartition::new(topic.name.clone(), 0)
}

fn receipts(entries: &[Entry]) -> Vec<Receipt> {
    entries.iter().map(|entry| entry.receipt).collect()
}

fn ids(entries: &[Entry]) -> BTreeSet<MessageId> {
    entries.iter().map(|entry| entry.receipt.id).collect()
}
