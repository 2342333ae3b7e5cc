//! Where a backend of one's own begins: the signatures of all required operations, none of which is written.
//! `docs/guides/extend.md` says in which order to replace the bodies.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::capability::unsupported;
use millstream_core::catalog::{Catalog, GroupCreated, Start};
use millstream_core::leases::{Acquired, Holder, Leases};
use millstream_core::log::{Append, Appended, Log, Reader, Receipt, Settled, Settlement, Trimmed};
use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Members, Version, Watch};
use millstream_core::schedule::{Place, Placed, Promoted, Schedule, ScheduleId, Scheduling};
use millstream_core::{
    Continuity, GroupName, Lease, Resource, Result, Retention, Timestamp, TopicName, TopicSpec,
};

pub(crate) struct Unwritten;

#[async_trait]
impl Log for Unwritten {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        batch.iter().map(|_| Err(unsupported("Log::append"))).collect()
    }

    async fn reader(&self, _lease: &Lease) -> Result<Box<dyn Reader>> {
        Err(unsupported("Log::reader"))
    }

    async fn settle(&self, _lease: &Lease, _batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        Err(unsupported("Log::settle"))
    }

    async fn trim(&self, _lease: &Lease, _retention: Retention) -> Result<Trimmed> {
        Err(unsupported("Log::trim"))
    }
}

#[async_trait]
impl Leases for Unwritten {
    async fn acquire(
        &self,
        _resource: &Resource,
        _owner: &str,
        _nonce: &str,
        _ttl: Duration,
        _continuity: &Continuity,
    ) -> Result<Acquired> {
        Err(unsupported("Leases::acquire"))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        leases.iter().map(|_| Err(unsupported("Leases::renew"))).collect()
    }

    async fn release(&self, _lease: &Lease) -> Result<()> {
        Err(unsupported("Leases::release"))
    }

    async fn holder(&self, _resource: &Resource) -> Result<Option<Holder>> {
        Err(unsupported("Leases::holder"))
    }
}

#[async_trait]
impl Schedule for Unwritten {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        batch.iter().map(|_| Err(unsupported("Schedule::schedule"))).collect()
    }

    async fn cancel(&self, _place: &Place, _ids: &[ScheduleId]) -> Result<Vec<bool>> {
        Err(unsupported("Schedule::cancel"))
    }

    async fn promote(&self, _lease: &Lease, _limit: usize) -> Result<Promoted> {
        Err(unsupported("Schedule::promote"))
    }

    async fn now(&self) -> Result<Timestamp> {
        Err(unsupported("Schedule::now"))
    }
}

#[async_trait]
impl Catalog for Unwritten {
    async fn create_topic(&self, _spec: &TopicSpec) -> Result<TopicSpec> {
        Err(unsupported("Catalog::create_topic"))
    }

    async fn topic(&self, _name: &TopicName) -> Result<TopicSpec> {
        Err(unsupported("Catalog::topic"))
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        Err(unsupported("Catalog::topics"))
    }

    async fn delete_topic(&self, _name: &TopicName) -> Result<bool> {
        Err(unsupported("Catalog::delete_topic"))
    }

    async fn create_group(
        &self,
        _topic: &TopicSpec,
        _group: &GroupName,
        _start: Start,
    ) -> Result<GroupCreated> {
        Err(unsupported("Catalog::create_group"))
    }

    async fn delete_group(&self, _topic: &TopicName, _group: &GroupName) -> Result<bool> {
        Err(unsupported("Catalog::delete_group"))
    }

    async fn groups(&self, _topic: &TopicName) -> Result<Vec<GroupName>> {
        Err(unsupported("Catalog::groups"))
    }
}

#[async_trait]
impl Members for Unwritten {
    async fn heartbeat(
        &self,
        _topic: &TopicName,
        _group: &GroupName,
        _member: &Member,
        _joining: bool,
    ) -> Result<HeartbeatReply> {
        Err(unsupported("Members::heartbeat"))
    }

    async fn leave(&self, _topic: &TopicName, _group: &GroupName, _member: &Member) -> Result<()> {
        Err(unsupported("Members::leave"))
    }

    async fn roster(&self, _topic: &TopicName, _group: &GroupName) -> Result<GroupMembers> {
        Err(unsupported("Members::roster"))
    }

    async fn publish(
        &self,
        _topic: &TopicName,
        _group: &GroupName,
        _version: Version,
        _assignment: &Assignment,
    ) -> Result<bool> {
        Err(unsupported("Members::publish"))
    }

    async fn watch(&self, _topic: &TopicName, _group: &GroupName) -> Result<Box<dyn Watch>> {
        Err(unsupported("Members::watch"))
    }
}
