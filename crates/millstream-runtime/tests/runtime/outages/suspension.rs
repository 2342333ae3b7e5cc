//! Suspended machines: a consumer whose lease expired meanwhile begins nothing, and notifies its handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::*;
use async_trait::async_trait;
use millstream_core::leases::{Acquired, Holder};
use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Version, Watch};
use millstream_core::{Backend, Continuity, GroupName, Lease, Leases, Members, Resource, Result, TopicName};
use millstream_memory::SuspendableClock;
use millstream_runtime::{Concurrency, Consumer, ConsumerBuilder, Delivery, Sharing};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(10);

/// A server whose clock is so many milliseconds ahead of what it was.
struct Ahead(Arc<dyn Members>, Arc<AtomicU64>);

#[async_trait]
impl Members for Ahead {
    async fn heartbeat(
        &self,
        t: &TopicName,
        g: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        let mut pulse = self.0.heartbeat(t, g, member, joining).await?;
        pulse.now = pulse.now.saturating_add(Duration::from_millis(self.1.load(Ordering::Acquire)));
        Ok(pulse)
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        self.0.leave(topic, group, member).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        self.0.roster(topic, group).await
    }

    async fn publish(&self, t: &TopicName, g: &GroupName, v: Version, own: &Assignment) -> Result<bool> {
        self.0.publish(t, g, v, own).await
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        self.0.watch(topic, group).await
    }
}

/// A server that answers no renewals for a while, as after a laptop was opened.
struct Mute(Arc<dyn Leases>, Arc<AtomicBool>);

#[async_trait]
impl Leases for Mute {
    async fn acquire(
        &self,
        of: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        self.0.acquire(of, owner, nonce, ttl, continuity).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        if self.1.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.0.release(lease).await
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        self.0.withdraw_end(lease).await
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        self.0.holder(resource).await
    }
}

/// A consumer whose handler of message 0 ends when it is cancelled.
async fn started(bench: &Bench, backend: Backend, sharing: Sharing) -> Consumer {
    produce(bench, 2).await;
    let consumer = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(bench.told.clone()));
    let consumer = consumer.lease_ttl(TTL).sharing(sharing).concurrency(Concurrency::Unordered(1));
    let handler = async |delivery: Delivery<u64>| {
        if delivery.payload == 0 {
            delivery.cancelled().await;
        }
    };
    let consumer = consumer.start(handler).await.expect("started");
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(consumer.report().acked, 0, "it is not told while all is well");
    consumer
}

async fn goes_on(bench: &Bench, consumer: Consumer, since: Instant, within: Duration) {
    eventually(|| consumer.report().acked == 2, || format!("{:?}", consumer.report())).await;
    assert!(since.elapsed() <= within, "told, and renewed, after {:?}", since.elapsed());
    assert_eq!(bench.told.lines("LeaseLost"), 0);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handlers_of_a_machine_that_was_suspended_are_told_and_the_next_wait_for_a_renewal() {
    let (bench, machine, mute) = (bench(), SuspendableClock::new(), Arc::new(AtomicBool::new(false)));
    let leases = Arc::new(Mute(bench.backend.leases().clone(), mute.clone()));
    let backend = bench.backend.clone().with_leases(leases);
    let backend = backend.with_boot_clock(machine.clone());
    let consumer = started(&bench, backend, Sharing::Exclusive).await;
    mute.store(true, Ordering::Release);
    machine.suspend(60 * SECOND);
    // Its timers have not moved: it is noticed at the next look, twice a second.
    tokio::time::sleep(SECOND).await;
    assert_eq!(consumer.report().acked, 1, "it was told");
    tokio::time::sleep(TTL / 4).await;
    assert_eq!(consumer.report().acked, 1, "and the next does not begin");
    mute.store(false, Ordering::Release);
    goes_on(&bench, consumer, Instant::now(), TTL / 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_only_the_server_has_seen_is_found_at_the_next_heartbeat() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let (bench, ahead) = (bench(), Arc::new(AtomicU64::new(0)));
        let members = Arc::new(Ahead(bench.backend.members().clone(), ahead.clone()));
        let consumer = started(&bench, bench.backend.clone().with_members(members), sharing).await;
        // So little is within the margin of a lease, however often it happens.
        for _ in 0..3 {
            ahead.fetch_add(400, Ordering::AcqRel);
            tokio::time::sleep(TTL / 2).await;
        }
        assert_eq!(consumer.report().acked, 0);
        ahead.fetch_add(60_000, Ordering::AcqRel);
        goes_on(&bench, consumer, Instant::now(), TTL / 3 + SECOND).await;
    }
}
