//! The recorder for shared partitions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::{Fetched, Receipt, Settled, Settlement};
use millstream_core::shared::{Claimed, Shared, SharedMember, SharedReader};
use millstream_core::{Lease, MemberId, Partition, Result};

use super::recorder::{Notes, Recorder};
use super::story::Share;
use super::{Event, Handing};
use crate::caller;

fn share(member: &SharedMember, partition: Partition) -> Share {
    (member.partition(partition), member.group.clone())
}

impl Notes {
    /// Records which process received the entries.
    fn handed(&self, share: &Share, fetched: &Fetched, how: Handing) {
        self.read(share, fetched);
        let Some(to) = caller::name() else { return };
        for entry in &fetched.entries {
            if let Some(origin) = self.origin(share, entry.receipt) {
                self.history.record(Event::Handed { origin, to: to.clone(), how });
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Shared for Recorder {
    fn portions(&self, partitions: &[Partition]) -> Vec<Vec<Partition>> {
        let together = || vec![partitions.to_vec()];
        self.0.inner.shared().map_or_else(|_| together(), |shared| shared.portions(partitions))
    }

    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        let inner = self.0.inner.shared()?.shared_reader(member, partitions).await?;
        Ok(Box::new(RecordedReader { notes: self.0.clone(), member: member.clone(), inner }))
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        let settled = self.0.inner.shared()?.settle_shared(member, partition, batch).await?;
        self.0.settled(&share(member, partition), batch, settled);
        Ok(settled)
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        self.0.inner.shared()?.extend(member, partition, entries).await
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        self.0.inner.shared()?.give_back(member, partition, entries).await
    }

    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &millstream_core::Continuity,
    ) -> Result<Claimed> {
        let claimed = self.0.inner.shared()?.claim(member, partition, alive, idle, max, continuity).await?;
        let share = share(member, partition);
        self.0.handed(&share, &claimed.abandoned, Handing::Claimed);
        self.0.handed(&share, &claimed.given_back, Handing::GivenBack);
        Ok(claimed)
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &millstream_core::Continuity,
    ) -> Result<usize> {
        self.0.inner.shared()?.adopt(lease, idle, max, continuity).await
    }
}

struct RecordedReader {
    notes: Arc<Notes>,
    member: SharedMember,
    inner: Box<dyn SharedReader>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SharedReader for RecordedReader {
    async fn ready(&mut self, wait: Duration) -> Result<bool> {
        self.inner.ready(wait).await
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>> {
        let read = self.inner.fetch(max, wait).await?;
        Ok(self.note(read))
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Vec<(Partition, Fetched)>> {
        let read = self.inner.fetch_beside(max, full).await?;
        Ok(self.note(read))
    }
}

impl RecordedReader {
    fn note(&self, read: Vec<(Partition, Fetched)>) -> Vec<(Partition, Fetched)> {
        for (partition, fetched) in &read {
            self.notes.handed(&share(&self.member, *partition), fetched, Handing::Read);
        }
        read
    }
}
