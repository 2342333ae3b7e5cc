//! A backend of one's own: it keeps a copy of every message that is stored, and passes everything else on to another backend.
//!
//! ```sh
//! cargo run -p examples-backend --example backend
//! cargo run -p examples-backend --example backend -- --url redis://127.0.0.1
//! ```
//!
//! It has the five required roles, each with its required operations. A backend on another store implements the same ones. The
//! conformance suite of `millstream-testkit` then says whether they do what their documentation demands, and whether what is left
//! out fails as it must. Optional roles and operations can follow one by one: `docs/guides/extend.md`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use millstream::crates::core::capability::unsupported;
use millstream::crates::core::catalog::{Catalog, GroupCreated, Start};
use millstream::crates::core::leases::{Acquired, Holder, Leases};
use millstream::crates::core::log::{Append, Appended, Log, Reader, Receipt, Settled, Settlement, Trimmed};
use millstream::crates::core::members::{
    Assignment, GroupMembers, HeartbeatReply, Member, Members, Version, Watch,
};
use millstream::crates::core::schedule::{Place, Placed, Promoted, Schedule, ScheduleId, Scheduling};
use millstream::crates::core::{Backend, Continuity, Lease, Resource, Result as RoleResult};
use millstream::{
    Delivery, GroupName, MessageId, Millstream, Retention, Timestamp, Topic, TopicName, TopicPartition,
    TopicSpec,
};
use millstream_testkit::Harness;

/// Cases of the suite that run at once.
const AT_ONCE: usize = 32;

/// Passes everything on, and keeps what was appended.
struct Archiving {
    inner: Backend,
    archive: Arc<Archive>,
}

#[derive(Default)]
struct Archive(Mutex<Vec<(TopicPartition, MessageId)>>);

impl Archive {
    fn of(&self, topic: &str) -> usize {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().filter(|(partition, _)| partition.topic.as_str() == topic).count()
    }
}

#[async_trait]
impl Log for Archiving {
    async fn append(&self, batch: &[Append]) -> Vec<RoleResult<Appended>> {
        // Dedup ids and unique ids are optional, and not supported here.
        if let Some(error) = batch.iter().find_map(|append| append.check_plain().err()) {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        let results = self.inner.log().append(batch).await;
        let stored = batch.iter().zip(&results).filter_map(|(append, result)| {
            let stored = result.as_ref().ok()?;
            Some((append.topic_partition.clone(), stored.id))
        });
        self.archive.0.lock().unwrap_or_else(PoisonError::into_inner).extend(stored);
        results
    }

    async fn reader(&self, lease: &Lease) -> RoleResult<Box<dyn Reader>> {
        self.inner.log().reader(lease).await
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> RoleResult<Settled> {
        self.inner.log().settle(lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> RoleResult<Trimmed> {
        self.inner.log().trim(lease, retention).await
    }
}

#[async_trait]
impl Leases for Archiving {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> RoleResult<Acquired> {
        Ok(match self.inner.leases().acquire(resource, owner, nonce, ttl, continuity).await? {
            // Ends are not claimed.
            Acquired::Granted(lease) => Acquired::Granted(lease.after_ends(Vec::new())),
            held => held,
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<RoleResult<()>> {
        self.inner.leases().renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> RoleResult<()> {
        self.inner.leases().release(lease).await
    }

    async fn holder(&self, resource: &Resource) -> RoleResult<Option<Holder>> {
        self.inner.leases().holder(resource).await
    }
}

fn partition(place: &Place) -> RoleResult<()> {
    match place {
        Place::Partition(_) => Ok(()),
        Place::Shard(_) => Err(unsupported("a shard of a delay queue")),
    }
}

#[async_trait]
impl Schedule for Archiving {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<RoleResult<Placed>> {
        // In one request, as they came: due times that count from now would differ by what the requests take.
        let ours = |scheduling: &&Scheduling| partition(&scheduling.place).is_ok();
        let ours: Vec<Scheduling> = batch.iter().filter(ours).cloned().collect();
        let mut placed = self.inner.schedule().schedule(&ours).await.into_iter();
        let result = |scheduling: &Scheduling| {
            partition(&scheduling.place)?;
            placed.next().expect("a result for each")
        };
        batch.iter().map(result).collect()
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> RoleResult<Vec<bool>> {
        partition(place)?;
        self.inner.schedule().cancel(place, ids).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> RoleResult<Promoted> {
        self.inner.schedule().promote(lease, limit).await
    }

    async fn now(&self) -> RoleResult<Timestamp> {
        self.inner.schedule().now().await
    }
}

#[async_trait]
impl Catalog for Archiving {
    async fn create_topic(&self, spec: &TopicSpec) -> RoleResult<TopicSpec> {
        self.inner.catalog().create_topic(spec).await
    }

    async fn topic(&self, name: &TopicName) -> RoleResult<TopicSpec> {
        self.inner.catalog().topic(name).await
    }

    async fn topics(&self) -> RoleResult<Vec<TopicName>> {
        self.inner.catalog().topics().await
    }

    async fn delete_topic(&self, name: &TopicName) -> RoleResult<bool> {
        self.inner.catalog().delete_topic(name).await
    }

    async fn create_group(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
        start: Start,
    ) -> RoleResult<GroupCreated> {
        self.inner.catalog().create_group(topic, group, start).await
    }

    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> RoleResult<bool> {
        self.inner.catalog().delete_group(topic, group).await
    }

    async fn groups(&self, topic: &TopicName) -> RoleResult<Vec<GroupName>> {
        self.inner.catalog().groups(topic).await
    }
}

#[async_trait]
impl Members for Archiving {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> RoleResult<HeartbeatReply> {
        self.inner.members().heartbeat(topic, group, member, joining).await
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> RoleResult<()> {
        self.inner.members().leave(topic, group, member).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> RoleResult<GroupMembers> {
        self.inner.members().roster(topic, group).await
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> RoleResult<bool> {
        self.inner.members().publish(topic, group, version, assignment).await
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> RoleResult<Box<dyn Watch>> {
        self.inner.members().watch(topic, group).await
    }
}

/// States what it supports: the required roles alone. Everything else fails as `ErrorKind::Unsupported`, which the suite verifies.
fn archiving(inner: &Backend, archive: &Arc<Archive>) -> Backend {
    let backend = Backend::minimal(Archiving { inner: inner.clone(), archive: archive.clone() });
    // Leases of a backend in this process are renewed by the clock of the runtime.
    if inner.is_in_process() { backend.in_process() } else { backend }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: backend [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let inner = Millstream::at(url).namespace(format!("backend-{run}")).await?;
    let archive = Arc::new(Archive::default());
    let backend = archiving(inner.backend(), &archive);

    // A case creates topics of its own, so many run at once. Those that need an operator delete data behind the backend's back.
    let report = millstream_testkit::run(&Harness::new(backend.clone()), AT_ONCE, "").await;
    ensure!(report.is_ok(), "{report}");
    println!("{} cases of the conformance suite passed", report.passed);
    ensure!(report.passed > 100, "hardly any case was run");

    // Producers and consumers work on it.
    const ORDERS: Topic<u32> = Topic::new("orders").partitions(2);
    let mq = Millstream::over(backend);
    let orders = mq.producer(ORDERS).await?;
    for order in 0..100 {
        orders.send(&order).key(order.to_string()).await?;
    }
    // What needs more says so: `consumer.wait_idle()` would be `ErrorKind::Unsupported` without `Catalog::stats`.
    let (handled, mut orders) = tokio::sync::mpsc::unbounded_channel();
    let handle = move |order: Delivery<u32>| {
        let _ = handled.send(order.payload);
        async {}
    };
    let consumer = mq.consumer(ORDERS, "billing").start(handle).await?;
    for _ in 0..100 {
        tokio::time::timeout(Duration::from_secs(30), orders.recv()).await?;
    }
    let (handled, archived) = (consumer.shutdown().await.acked, archive.of("orders"));
    println!("{handled} orders handled, {archived} archived");
    ensure!((handled, archived) == (100, 100), "100 were sent");
    Ok(())
}
