//! Mistakes of the shared role.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Continuity;
use millstream_core::log::{Entry, Fetched, Receipt, Settled, Settlement, Source};
use millstream_core::shared::{Claimed, Shared, SharedMember, SharedReader};
use millstream_core::{ErrorKind, Lease, MemberId, Partition, Result};

use super::reader::cut_large;
use super::{Broken, Mutant};

#[async_trait]
impl Shared for Broken {
    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        let mut partitions = partitions.to_vec();
        if self.is(Mutant::SharedReadsOnePartition) {
            partitions.truncate(1);
        }
        let inner = self.inner.shared()?.shared_reader(member, &partitions).await?;
        let (broken, member) = (self.clone(), member.clone());
        Ok(Box::new(BrokenSharedReader { broken, member, partitions, inner, fresh: true }))
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        if self.is(Mutant::SharedSettleUnchecked) {
            // Takes the entries away first, whoever holds them.
            self.steal(member, partition).await?;
            return self.inner.shared()?.settle_shared(member, partition, batch).await;
        }
        let mut told = batch.to_vec();
        match self.sabotage {
            Mutant::AcksForgotten => told.retain(|(_, settlement)| *settlement != Settlement::Ack),
            Mutant::SharedRetriesAcked => {
                for (_, settlement) in &mut told {
                    *settlement = Settlement::Ack;
                }
            }
            _ => {}
        }
        self.forget_results(&mut told);
        let mut settled = self.inner.shared()?.settle_shared(member, partition, &told).await?;
        match self.sabotage {
            Mutant::SettledAlways => settled = Settled { applied: batch.len(), stale: 0 },
            _ => settled.applied += batch.len() - told.len(),
        }
        Ok(settled)
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        match self.sabotage {
            Mutant::ExtendForgotten => Ok(Vec::new()),
            Mutant::ExtendSteals => {
                self.steal(member, partition).await?;
                self.inner.shared()?.extend(member, partition, entries).await
            }
            Mutant::ExtendAllOrNothing => {
                let lost = self.inner.shared()?.extend(member, partition, entries).await?;
                Ok(if lost.is_empty() { lost } else { entries.to_vec() })
            }
            Mutant::ExtendSilent => {
                self.inner.shared()?.extend(member, partition, entries).await?;
                Ok(Vec::new())
            }
            Mutant::ExtendCountsDeliveries => {
                let lost = self.inner.shared()?.extend(member, partition, entries).await?;
                self.inner
                    .shared()?
                    .shared_reader(member, &[partition])
                    .await?
                    .fetch(1_000, Duration::ZERO)
                    .await?;
                Ok(lost)
            }
            _ => self.inner.shared()?.extend(member, partition, entries).await,
        }
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        match self.sabotage {
            Mutant::GiveBackForgotten => Ok(()),
            Mutant::GiveBackUnchecked => {
                self.steal(member, partition).await?;
                self.inner.shared()?.give_back(member, partition, entries).await
            }
            _ => self.inner.shared()?.give_back(member, partition, entries).await,
        }
    }

    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<Claimed> {
        let (mut alive, mut idle, mut max) = (alive, idle, max);
        match self.sabotage {
            Mutant::ClaimsFromTheLiving => alive = &[],
            Mutant::ClaimsAtOnce => idle = Duration::ZERO,
            Mutant::ClaimsNothing => max = 0,
            Mutant::ClaimIgnoresMax => max = 100,
            _ => {}
        }
        let continuity = &self.continuity(continuity, idle);
        let mut claimed =
            match self.inner.shared()?.claim(member, partition, alive, idle, max, continuity).await {
                Err(error) if self.is(Mutant::LostGroupHidden) && error.kind() == ErrorKind::GroupMissing => {
                    return Ok(Claimed::default());
                }
                other => other?,
            };
        match self.sabotage {
            Mutant::ConsumersNeverRemoved => claimed.removed = 0,
            Mutant::RemovedWithEntries => {
                // Entries that others still hold are lost with them.
                let gone = self
                    .inner
                    .shared()?
                    .claim(member, partition, alive, Duration::ZERO, 100, continuity)
                    .await?;
                let receipts = gone.abandoned.entries.iter().chain(&gone.given_back.entries);
                let acks: Vec<_> = receipts.map(|entry| (entry.receipt, Settlement::Ack)).collect();
                self.inner.shared()?.settle_shared(member, partition, &acks).await?;
            }
            Mutant::ClaimDelivered => {
                let both = claimed.abandoned.entries.iter_mut().chain(&mut claimed.given_back.entries);
                both.for_each(|entry| entry.deliveries = 1);
            }
            Mutant::LargePagesCut => cut_large(&mut claimed.abandoned.entries),
            Mutant::ClaimLosesNotes => {
                claimed.abandoned.entries.iter_mut().for_each(|entry| entry.note = None);
            }
            Mutant::GivenBackIsAbandoned => {
                let given_back = std::mem::take(&mut claimed.given_back);
                claimed.abandoned.entries.extend(given_back.entries);
            }
            Mutant::ClaimNextUnknown => claimed.next = None,
            Mutant::GhostsHidden => claimed.abandoned.ghosts.clear(),
            _ => {}
        }
        Ok(claimed)
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize> {
        let continuity = &self.continuity(continuity, idle);
        match self.sabotage {
            Mutant::AdoptForgotten => Ok(0),
            Mutant::AdoptsAtOnce => self.inner.shared()?.adopt(lease, Duration::ZERO, max, continuity).await,
            Mutant::FenceIgnoredOnAdopt => {
                let lease = self.unfenced(Mutant::FenceIgnoredOnAdopt, lease);
                self.inner.shared()?.adopt(&lease, idle, max, continuity).await
            }
            _ => self.inner.shared()?.adopt(lease, idle, max, continuity).await,
        }
    }
}

impl Broken {
    /// Returns the time since which the claimer's calls are reported as answered.
    fn continuity(&self, continuity: &Continuity, idle: Duration) -> Continuity {
        match self.sabotage {
            Mutant::JudgesAtOnce => Continuity::assured(),
            Mutant::NeverJudges => Continuity::new(idle),
            _ => continuity.clone(),
        }
    }

    /// Takes all entries from the other members, dead or alive.
    async fn steal(&self, member: &SharedMember, partition: Partition) -> Result<()> {
        self.inner
            .shared()?
            .claim(member, partition, &[], Duration::ZERO, 1_000, &Continuity::assured())
            .await
            .map(drop)
    }
}

struct BrokenSharedReader {
    broken: Broken,
    member: SharedMember,
    partitions: Vec<Partition>,
    inner: Box<dyn SharedReader>,
    fresh: bool,
}

type Read = Vec<(Partition, Fetched)>;

#[async_trait]
impl SharedReader for BrokenSharedReader {
    async fn ready(&mut self, wait: Duration) -> Result<bool> {
        self.inner.ready(wait).await
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Read> {
        let fresh = std::mem::replace(&mut self.fresh, false);
        let mut max = max;
        match self.broken.sabotage {
            Mutant::SharedMaxIgnored => max += 10,
            Mutant::SharedSkipsItsOwn if fresh => {
                while self.inner.fetch(1_000, Duration::ZERO).await?.iter().any(|(_, it)| it.pending) {}
            }
            Mutant::SharedSeesOthers if fresh => {
                for partition in &self.partitions {
                    self.broken.steal(&self.member, *partition).await?;
                }
            }
            Mutant::SharedWaitIgnored => return self.inner.fetch(max, Duration::ZERO).await,
            Mutant::SharedWakesLate => {
                tokio::time::sleep(wait).await;
                return self.inner.fetch(max, Duration::ZERO).await;
            }
            _ => {}
        }
        let read = self.inner.fetch(max, wait).await;
        match (self.broken.sabotage, read) {
            (Mutant::LostGroupHidden, Err(error)) if error.kind() == ErrorKind::GroupMissing => {
                Ok(Vec::new())
            }
            (Mutant::SharedPendingUnmarked, Ok(mut read)) => {
                read.iter_mut().for_each(|(_, fetched)| fetched.pending = false);
                Ok(read)
            }
            (Mutant::SharedPartitionsMixed, Ok(read)) => {
                let first = self.partitions.first().copied().unwrap_or_default();
                let mut one = BTreeMap::<Partition, Fetched>::new();
                for (_, fetched) in read {
                    one.entry(first).or_default().entries.extend(fetched.entries);
                }
                Ok(one.into_iter().collect())
            }
            (Mutant::SharedRetriesUnread, Ok(mut read)) => {
                let of_log = |entry: &Entry| entry.receipt.source == Source::Log;
                read.iter_mut().for_each(|(_, fetched)| fetched.entries.retain(of_log));
                read.retain(|(_, fetched)| !fetched.entries.is_empty());
                Ok(read)
            }
            (_, read) => read,
        }
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Read> {
        self.inner.fetch_beside(max, full).await
    }
}
