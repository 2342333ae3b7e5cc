//! A backend with the required operations alone. Each is passed on to the memory backend; everything else is left to the
//! defaults of the roles.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::capability::unsupported;
use millstream_core::catalog::{Catalog, GroupCreated, Start};
use millstream_core::leases::{Acquired, Holder, Leases};
use millstream_core::log::{Append, Appended, Log, Reader, Receipt, Settled, Settlement, Trimmed};
use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Members, Version, Watch};
use millstream_core::schedule::{Place, Placed, Promoted, Schedule, ScheduleId, Scheduled, Scheduling};
use millstream_core::{
    Backend, Continuity, GroupName, Lease, Resource, Result, Retention, Timestamp, TopicName, TopicPartition,
    TopicSpec,
};
use millstream_memory::MemoryBackend;

pub(crate) struct Minimal(pub(crate) MemoryBackend);

impl From<Minimal> for Backend {
    fn from(minimal: Minimal) -> Self {
        Self::minimal(minimal).in_process()
    }
}

#[async_trait]
impl Log for Minimal {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        match batch.iter().find_map(|append| append.check_plain().err()) {
            Some(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            None => self.0.append(batch).await,
        }
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        self.0.reader(lease).await
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        Log::settle(&self.0, lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.0.trim(lease, retention).await
    }
}

#[async_trait]
impl Leases for Minimal {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        Ok(match self.0.acquire(resource, owner, nonce, ttl, continuity).await? {
            // Ends are not claimed.
            Acquired::Granted(lease) => Acquired::Granted(lease.after_ends(Vec::new())),
            held => held,
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.0.release(lease).await
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        self.0.holder(resource).await
    }
}

fn partition(place: &Place) -> Result<()> {
    match place {
        Place::Partition(_) => Ok(()),
        Place::Shard(_) => Err(unsupported("a shard of a delay queue")),
    }
}

#[async_trait]
impl Schedule for Minimal {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        let mut results = Vec::new();
        for scheduling in batch {
            results.push(match partition(&scheduling.place) {
                Ok(()) => self.0.schedule(std::slice::from_ref(scheduling)).await.remove(0),
                Err(error) => Err(error),
            });
        }
        results
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        partition(place)?;
        self.0.cancel(place, ids).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        self.0.promote(lease, limit).await
    }

    async fn now(&self) -> Result<Timestamp> {
        Schedule::now(&self.0).await
    }
}

#[async_trait]
impl Catalog for Minimal {
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        self.0.create_topic(spec).await
    }

    async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        self.0.topic(name).await
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        self.0.topics().await
    }

    async fn delete_topic(&self, name: &TopicName) -> Result<bool> {
        self.0.delete_topic(name).await
    }

    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated> {
        self.0.create_group(topic, group, start).await
    }

    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        self.0.delete_group(topic, group).await
    }

    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        self.0.groups(topic).await
    }
}

#[async_trait]
impl Members for Minimal {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        self.0.heartbeat(topic, group, member, joining).await
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        self.0.leave(topic, group, member).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        self.0.roster(topic, group).await
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        self.0.publish(topic, group, version, assignment).await
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        self.0.watch(topic, group).await
    }
}

/// The same, with one operation more in two roles, over which the defaults of others are built: `lengths` under
/// `append_measured`, `scheduled` under `get` and `waiting`.
pub(crate) struct Counting(pub(crate) Minimal);

impl From<MemoryBackend> for Counting {
    fn from(memory: MemoryBackend) -> Self {
        Self(Minimal(memory))
    }
}

#[async_trait]
impl Log for Counting {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        self.0.append(batch).await
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        self.0.reader(lease).await
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.0.settle(lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.0.trim(lease, retention).await
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.0.0.lengths(partitions).await
    }
}

#[async_trait]
impl Schedule for Counting {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        self.0.schedule(batch).await
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.0.cancel(place, ids).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        self.0.promote(lease, limit).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.0.now().await
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        self.0.0.scheduled(place, after, limit).await
    }
}
