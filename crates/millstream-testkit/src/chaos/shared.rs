//! Chaos for the shared role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::{Fetched, Receipt, Settled, Settlement};
use millstream_core::shared::{Claimed, Seat, Shared, SharedReader};
use millstream_core::{Lease, MemberId, Partition, Result};

use super::Client;
use super::faults::Role;
use super::reading::{arrive, cut_off};
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Shared for Client {
    async fn shared_reader(&self, seat: &Seat, partitions: &[Partition]) -> Result<Box<dyn SharedReader>> {
        let opened = call!(self, Log, shared.shared_reader(seat, partitions;))?;
        let (client, seat, partitions) = (self.clone(), seat.clone(), partitions.to_vec());
        Ok(Box::new(ChaosReader { client, seat, partitions, inner: Some(opened) }))
    }

    async fn settle_shared(
        &self,
        seat: &Seat,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        // The macro passes copies first.
        let (inner, seat, batch) = (self.0.backend.shared.clone(), seat.clone(), batch.to_vec());
        let request = async move { inner.settle_shared(&seat, partition, &batch).await };
        self.call(Role::Log, request, Err).await
    }

    async fn extend(&self, seat: &Seat, partition: Partition, entries: &[Receipt]) -> Result<Vec<Receipt>> {
        let (inner, seat, entries) = (self.0.backend.shared.clone(), seat.clone(), entries.to_vec());
        let request = async move { inner.extend(&seat, partition, &entries).await };
        self.call(Role::Log, request, Err).await
    }

    async fn give_back(&self, seat: &Seat, partition: Partition, entries: &[Receipt]) -> Result<()> {
        let (inner, seat, entries) = (self.0.backend.shared.clone(), seat.clone(), entries.to_vec());
        let request = async move { inner.give_back(&seat, partition, &entries).await };
        self.call(Role::Log, request, Err).await
    }

    async fn claim(
        &self,
        seat: &Seat,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
    ) -> Result<Claimed> {
        let (inner, seat, alive) = (self.0.backend.shared.clone(), seat.clone(), alive.to_vec());
        let request = async move { inner.claim(&seat, partition, &alive, idle, max).await };
        self.call(Role::Log, request, Err).await
    }

    async fn adopt(&self, lease: &Lease, idle: Duration, max: usize) -> Result<usize> {
        call!(self, Log, shared.adopt(lease; idle, max))
    }
}

/// A reader behind a bad connection. As the one of a single partition, it starts over after an error and after a fetch
/// that was dropped.
struct ChaosReader {
    client: Client,
    seat: Seat,
    partitions: Vec<Partition>,
    inner: Option<Box<dyn SharedReader>>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SharedReader for ChaosReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>> {
        let inner = self.inner.take();
        let plan = self.client.plan(Role::Reader);
        arrive(&self.client, &plan).await?;
        let mut inner = match inner {
            Some(inner) => inner,
            None => self.client.0.backend.shared.shared_reader(&self.seat, &self.partitions).await?,
        };
        let read = tokio::select! {
            biased;
            read = inner.fetch(max, wait) => read?,
            () = self.client.until_cut(&plan) => return Err(cut_off(&self.client).await),
        };
        self.client.receive(&plan).await?;
        self.inner = Some(inner);
        Ok(read)
    }
}
