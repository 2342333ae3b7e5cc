//! Mistakes of the shared role.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Continuity;
use millstream_core::log::{Entry, Fetched, Receipt, Settled, Settlement, Source};
use millstream_core::shared::{Claimed, Seat, Shared, SharedReader};
use millstream_core::{ErrorKind, Lease, MemberId, Partition, Result};

use super::reader::cut_large;
use super::{Broken, Sabotage};

#[async_trait]
impl Shared for Broken {
    async fn shared_reader(&self, seat: &Seat, partitions: &[Partition]) -> Result<Box<dyn SharedReader>> {
        let mut partitions = partitions.to_vec();
        if self.is(Sabotage::SharedReadsOnePartition) {
            partitions.truncate(1);
        }
        let inner = self.inner.shared.shared_reader(seat, &partitions).await?;
        let (broken, seat) = (self.clone(), seat.clone());
        Ok(Box::new(BrokenReader { broken, seat, partitions, inner, fresh: true }))
    }

    async fn settle_shared(
        &self,
        seat: &Seat,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        if self.is(Sabotage::SharedSettleUnchecked) {
            // Whoever has them: they are taken away first.
            self.steal(seat, partition).await?;
            return self.inner.shared.settle_shared(seat, partition, batch).await;
        }
        let mut told = batch.to_vec();
        match self.sabotage {
            Sabotage::AcksForgotten => told.retain(|(_, settlement)| *settlement != Settlement::Ack),
            Sabotage::SharedRetriesAcked => {
                for (_, settlement) in &mut told {
                    *settlement = Settlement::Ack;
                }
            }
            _ => {}
        }
        let mut settled = self.inner.shared.settle_shared(seat, partition, &told).await?;
        match self.sabotage {
            Sabotage::SettledAlways => settled = Settled { applied: batch.len(), stale: 0 },
            _ => settled.applied += batch.len() - told.len(),
        }
        Ok(settled)
    }

    async fn extend(&self, seat: &Seat, partition: Partition, entries: &[Receipt]) -> Result<Vec<Receipt>> {
        match self.sabotage {
            Sabotage::ExtendForgotten => Ok(Vec::new()),
            Sabotage::ExtendSteals => {
                self.steal(seat, partition).await?;
                self.inner.shared.extend(seat, partition, entries).await
            }
            Sabotage::ExtendAllOrNothing => {
                let lost = self.inner.shared.extend(seat, partition, entries).await?;
                Ok(if lost.is_empty() { lost } else { entries.to_vec() })
            }
            Sabotage::ExtendSilent => {
                self.inner.shared.extend(seat, partition, entries).await?;
                Ok(Vec::new())
            }
            Sabotage::ExtendCountsDeliveries => {
                let lost = self.inner.shared.extend(seat, partition, entries).await?;
                self.inner
                    .shared
                    .shared_reader(seat, &[partition])
                    .await?
                    .fetch(1_000, Duration::ZERO)
                    .await?;
                Ok(lost)
            }
            _ => self.inner.shared.extend(seat, partition, entries).await,
        }
    }

    async fn give_back(&self, seat: &Seat, partition: Partition, entries: &[Receipt]) -> Result<()> {
        match self.sabotage {
            Sabotage::GiveBackForgotten => Ok(()),
            Sabotage::GiveBackUnchecked => {
                self.steal(seat, partition).await?;
                self.inner.shared.give_back(seat, partition, entries).await
            }
            _ => self.inner.shared.give_back(seat, partition, entries).await,
        }
    }

    async fn claim(
        &self,
        seat: &Seat,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        heard: &Continuity,
    ) -> Result<Claimed> {
        let (mut alive, mut idle, mut max) = (alive, idle, max);
        match self.sabotage {
            Sabotage::ClaimsFromTheLiving => alive = &[],
            Sabotage::ClaimsAtOnce => idle = Duration::ZERO,
            Sabotage::ClaimsNothing => max = 0,
            Sabotage::ClaimIgnoresMax => max = 100,
            _ => {}
        }
        let heard = &self.heard(heard, idle);
        let mut claimed = match self.inner.shared.claim(seat, partition, alive, idle, max, heard).await {
            Err(error) if self.is(Sabotage::LostGroupHidden) && error.kind() == ErrorKind::GroupMissing => {
                return Ok(Claimed::default());
            }
            other => other?,
        };
        match self.sabotage {
            Sabotage::ConsumersNeverRemoved => claimed.removed = 0,
            Sabotage::RemovedWithEntries => {
                // What others still have goes with them.
                let gone =
                    self.inner.shared.claim(seat, partition, alive, Duration::ZERO, 100, heard).await?;
                let receipts = gone.abandoned.entries.iter().chain(&gone.given_back.entries);
                let acks: Vec<_> = receipts.map(|entry| (entry.receipt, Settlement::Ack)).collect();
                self.inner.shared.settle_shared(seat, partition, &acks).await?;
            }
            Sabotage::ClaimDelivered => {
                let both = claimed.abandoned.entries.iter_mut().chain(&mut claimed.given_back.entries);
                both.for_each(|entry| entry.deliveries = 1);
            }
            Sabotage::LargePagesCut => cut_large(&mut claimed.abandoned.entries),
            Sabotage::ClaimLosesNotes => {
                claimed.abandoned.entries.iter_mut().for_each(|entry| entry.note = None);
            }
            Sabotage::GivenBackIsAbandoned => {
                let given_back = std::mem::take(&mut claimed.given_back);
                claimed.abandoned.entries.extend(given_back.entries);
            }
            Sabotage::ClaimNextUnknown => claimed.next = None,
            Sabotage::GhostsHidden => claimed.abandoned.ghosts.clear(),
            _ => {}
        }
        Ok(claimed)
    }

    async fn adopt(&self, lease: &Lease, idle: Duration, max: usize, heard: &Continuity) -> Result<usize> {
        let heard = &self.heard(heard, idle);
        match self.sabotage {
            Sabotage::AdoptForgotten => Ok(0),
            Sabotage::AdoptsAtOnce => self.inner.shared.adopt(lease, Duration::ZERO, max, heard).await,
            Sabotage::FenceIgnoredOnAdopt => {
                let lease = self.unfenced(Sabotage::FenceIgnoredOnAdopt, lease);
                self.inner.shared.adopt(&lease, idle, max, heard).await
            }
            _ => self.inner.shared.adopt(lease, idle, max, heard).await,
        }
    }
}

impl Broken {
    /// Since when the claimer is said to have been answered.
    fn heard(&self, heard: &Continuity, idle: Duration) -> Continuity {
        match self.sabotage {
            Sabotage::JudgesAtOnce => Continuity::assured(),
            Sabotage::NeverJudges => Continuity::new(idle),
            _ => heard.clone(),
        }
    }

    /// Takes everything that others have, dead or alive.
    async fn steal(&self, seat: &Seat, partition: Partition) -> Result<()> {
        self.inner
            .shared
            .claim(seat, partition, &[], Duration::ZERO, 1_000, &Continuity::assured())
            .await
            .map(drop)
    }
}

struct BrokenReader {
    broken: Broken,
    seat: Seat,
    partitions: Vec<Partition>,
    inner: Box<dyn SharedReader>,
    fresh: bool,
}

type Read = Vec<(Partition, Fetched)>;

#[async_trait]
impl SharedReader for BrokenReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Read> {
        let fresh = std::mem::replace(&mut self.fresh, false);
        let mut max = max;
        match self.broken.sabotage {
            Sabotage::SharedMaxIgnored => max += 10,
            Sabotage::SharedSkipsItsOwn if fresh => {
                while self.inner.fetch(1_000, Duration::ZERO).await?.iter().any(|(_, it)| it.pending) {}
            }
            Sabotage::SharedSeesOthers if fresh => {
                for partition in &self.partitions {
                    self.broken.steal(&self.seat, *partition).await?;
                }
            }
            Sabotage::SharedWaitIgnored => return self.inner.fetch(max, Duration::ZERO).await,
            Sabotage::SharedWakesLate => {
                tokio::time::sleep(wait).await;
                return self.inner.fetch(max, Duration::ZERO).await;
            }
            _ => {}
        }
        let read = self.inner.fetch(max, wait).await;
        match (self.broken.sabotage, read) {
            (Sabotage::LostGroupHidden, Err(error)) if error.kind() == ErrorKind::GroupMissing => {
                Ok(Vec::new())
            }
            (Sabotage::SharedPendingUnmarked, Ok(mut read)) => {
                read.iter_mut().for_each(|(_, fetched)| fetched.pending = false);
                Ok(read)
            }
            (Sabotage::SharedPartitionsMixed, Ok(read)) => {
                let first = self.partitions.first().copied().unwrap_or_default();
                let mut one = BTreeMap::<Partition, Fetched>::new();
                for (_, fetched) in read {
                    one.entry(first).or_default().entries.extend(fetched.entries);
                }
                Ok(one.into_iter().collect())
            }
            (Sabotage::SharedRetriesUnread, Ok(mut read)) => {
                let of_log = |entry: &Entry| entry.receipt.source == Source::Log;
                read.iter_mut().for_each(|(_, fetched)| fetched.entries.retain(of_log));
                read.retain(|(_, fetched)| !fetched.entries.is_empty());
                Ok(read)
            }
            (_, read) => read,
        }
    }
}
