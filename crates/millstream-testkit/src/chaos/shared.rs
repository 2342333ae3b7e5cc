//! Chaos for the shared role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Continuity;
use millstream_core::log::{Fetched, Receipt, Settled, Settlement};
use millstream_core::pages::PageSizer;
use millstream_core::shared::{Claimed, Shared, SharedMember, SharedReader};
use millstream_core::{Lease, MemberId, Partition, Result};
use tokio::time::Instant;

use super::Client;
use super::faults::Role;
use super::reading::{arrive, cut_off, size};
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Shared for Client {
    fn portions(&self, partitions: &[Partition]) -> Vec<Vec<Partition>> {
        let together = || vec![partitions.to_vec()];
        self.0.backend.shared().map_or_else(|_| together(), |shared| shared.portions(partitions))
    }

    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        let opened = call!(self, Log, shared?.shared_reader(member, partitions;))?;
        let (client, member, partitions) = (self.clone(), member.clone(), partitions.to_vec());
        Ok(Box::new(ChaosReader {
            client,
            member,
            partitions,
            inner: Some(opened),
            pages: PageSizer::default(),
        }))
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        // Written out, since the macro passes the copied arguments before the plain ones.
        let (inner, member, batch) = (self.0.backend.shared()?.clone(), member.clone(), batch.to_vec());
        let request = async move { inner.settle_shared(&member, partition, &batch).await };
        self.call(Role::Log, request, Err).await
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        let (inner, member, entries) = (self.0.backend.shared()?.clone(), member.clone(), entries.to_vec());
        let request = async move { inner.extend(&member, partition, &entries).await };
        self.call(Role::Log, request, Err).await
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        let (inner, member, entries) = (self.0.backend.shared()?.clone(), member.clone(), entries.to_vec());
        let request = async move { inner.give_back(&member, partition, &entries).await };
        self.call(Role::Log, request, Err).await
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
        let (inner, member, alive) = (self.0.backend.shared()?.clone(), member.clone(), alive.to_vec());
        let continuity = continuity.clone();
        let request = async move { inner.claim(&member, partition, &alive, idle, max, &continuity).await };
        let bytes = |claimed: &Result<Claimed>| {
            claimed.as_ref().map_or(0, |claimed| size(&claimed.abandoned) + size(&claimed.given_back))
        };
        self.call_for(Role::Log, request, Err, bytes).await
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize> {
        let continuity = continuity.clone();
        call!(self, Log, shared?.adopt(lease; idle, max, &continuity))
    }
}

/// A reader behind an unreliable connection. Like the reader of a single partition, it starts over after an error and
/// after a dropped fetch.
struct ChaosReader {
    client: Client,
    member: SharedMember,
    partitions: Vec<Partition>,
    inner: Option<Box<dyn SharedReader>>,
    pages: PageSizer,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SharedReader for ChaosReader {
    async fn ready(&mut self, wait: Duration) -> Result<bool> {
        match &mut self.inner {
            Some(inner) => inner.ready(wait).await,
            None => Ok(true),
        }
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>> {
        self.read(max, wait, None).await
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Vec<(Partition, Fetched)>> {
        self.read(max, Duration::ZERO, Some(full)).await
    }
}

impl ChaosReader {
    async fn read(
        &mut self,
        max: usize,
        wait: Duration,
        full: Option<&[Partition]>,
    ) -> Result<Vec<(Partition, Fetched)>> {
        let inner = self.inner.take();
        if inner.is_none() {
            self.pages.lost();
        }
        let max = self.pages.count(max);
        let plan = self.client.plan(Role::Reader);
        arrive(&self.client, &plan).await?;
        let mut inner = match inner {
            Some(inner) => inner,
            None => self.client.0.backend.shared()?.shared_reader(&self.member, &self.partitions).await?,
        };
        let read = tokio::select! {
            biased;
            read = self.client.signed(request(&mut *inner, max, wait, full)) => read?,
            () = self.client.until_cut(&plan) => return Err(cut_off(&self.client).await),
        };
        let bytes = read.iter().map(|(_, fetched)| size(fetched)).sum();
        let (entries, began) = (read.iter().map(|(_, it)| it.entries.len()).sum(), Instant::now());
        self.client.receive(&plan, bytes).await?;
        self.pages.came(entries, usize::try_from(bytes).unwrap_or(usize::MAX), began.elapsed());
        self.inner = Some(inner);
        Ok(read)
    }
}

async fn request(
    reader: &mut dyn SharedReader,
    max: usize,
    wait: Duration,
    full: Option<&[Partition]>,
) -> Result<Vec<(Partition, Fetched)>> {
    match full {
        Some(full) => reader.fetch_beside(max, full).await,
        None => reader.fetch(max, wait).await,
    }
}
