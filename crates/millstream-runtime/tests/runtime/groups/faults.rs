//! Groups of instances when things go wrong: death, lost requests, an outage of membership.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::group::group;
use crate::support::*;
use millstream_core::event::Ignore;
use millstream_core::{Backend, Outcome, Resource, Topic, TopicPartition};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery};
use millstream_testkit::chaos::Chaos;
use mutants::{Broken, Mutant};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);

fn ttl(builder: ConsumerBuilder<u64>) -> ConsumerBuilder<u64> {
    builder.lease_ttl(TTL)
}

#[tokio::test(start_paused = true)]
async fn a_dead_instance_is_replaced_within_its_ttl_and_half_a_second() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let group = group(12);
        let (a, b) = (group.join("a", MS(2), ttl).await, group.join("b", MS(2), ttl).await);
        let c = group.join("c", MS(2), ttl).await;
        group.balanced(&[4, 4, 4]).await;
        let load = group.load().await;
        tokio::time::sleep(SECOND + MS(seed * 97)).await;
        let kept = [group.history.of("a"), group.history.of("c")];
        group.history.moves();
        let died = tokio::time::Instant::now();
        b.link.cut();
        group.history.dead("b");
        group.balanced(&[6, 6]).await;
        let took = died.elapsed();
        assert!(took <= TTL + MS(500), "seed {seed}: {took:?}");
        assert!(took > TTL / 2, "seed {seed}: a lease was taken from the living: {took:?}");
        assert_eq!(group.history.moves(), 4);
        assert!(kept[0].is_subset(&group.history.of("a")) && kept[1].is_subset(&group.history.of("c")));
        let sent = load.stop().await;
        let seen = || group.distinct() as u64 >= sent;
        eventually(seen, || format!("{sent}, of {}", group.distinct())).await;
        assert!(group.count() as u64 - sent <= 4, "only what the dead one had begun comes twice");
        a.leave().await;
        c.leave().await;
        drop(b);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_renewal_does_no_harm() {
    let group = group(3);
    let a = group.join("a", MS(2), ttl).await;
    let b = group.join("b", MS(2), ttl).await;
    group.balanced(&[2, 1]).await;
    let load = group.load().await;
    for _ in 0..5 {
        a.link.lose_renewals.store(1, Ordering::Relaxed);
        tokio::time::sleep(TTL).await;
        assert_eq!(a.link.lose_renewals.load(Ordering::Relaxed), 0);
    }
    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    assert_eq!(group.told.lines("LeaseLost"), 0);
    assert!(group.told.lines("Failing { operation: \"renew\"") >= 5, "but it is told");
    a.leave().await;
    b.leave().await;
    group.assert_once_in_order(sent);
}

#[tokio::test(start_paused = true)]
async fn a_lost_grant_is_asked_for_again_and_granted_again() {
    let group = group(5);
    let (name, told) = ("a", group.told.clone());
    group.backend.catalog().topics().await.expect("a backend");
    let blocker = group.join("z", MS(0), ttl).await;
    group.balanced(&[5]).await;
    let a =
        group.join(name, MS(0), |builder| builder.rejoin_timeout(60 * SECOND).lease_ttl(60 * SECOND)).await;
    a.link.lose_grants.store(2, Ordering::Relaxed);
    group.balanced(&[3, 2]).await;
    assert_eq!(a.link.lose_grants.load(Ordering::Relaxed), 0);
    assert!(told.lines("Failing { operation: \"acquire\"") >= 2);
    assert!(group.history.gap() < 5 * SECOND, "not after the ttl of the lost grant");
    a.leave().await;
    blocker.leave().await;
}

#[tokio::test(start_paused = true)]
async fn who_owns_goes_on_while_membership_fails() {
    let group = group(6);
    let (a, b) = (group.join("a", MS(2), ttl).await, group.join("b", MS(2), ttl).await);
    group.balanced(&[3, 3]).await;
    tokio::time::sleep(SECOND).await;
    let (load, owners) = (group.load().await, group.history.owners());
    group.history.moves();
    for instance in [&a, &b] {
        instance.link.members_fail.store(true, Ordering::Relaxed);
    }
    tokio::time::sleep(10 * TTL).await;
    assert!(group.told.lines("Failing { operation: \"heartbeat\"") >= 20);
    assert_eq!((group.history.owners(), group.history.moves()), (owners.clone(), 0));
    for instance in [&a, &b] {
        instance.link.members_fail.store(false, Ordering::Relaxed);
    }
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(group.told.lines("Recovered { operation: \"heartbeat\""), 2);
    assert_eq!((group.history.owners(), group.history.moves()), (owners, 0), "nobody was accused");
    let sent = load.stop().await;
    eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
    a.link.members_fail.store(true, Ordering::Relaxed);
    let started = tokio::time::Instant::now();
    a.leave().await;
    assert!(started.elapsed() <= 2 * SECOND, "leaving does not wait for what fails: {:?}", started.elapsed());
    group.balanced(&[6]).await;
    b.leave().await;
    group.assert_once_in_order(sent);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lost_by_mistake_is_taken_again() {
    let group = group(2);
    let a = group.join("a", MS(0), ttl).await;
    group.balanced(&[2]).await;
    // The stranger will not give it back: only who has been answered for a ttl takes it from him.
    tokio::time::sleep(2 * TTL).await;
    let resource = Resource::partition(
        TopicPartition::new("orders".parse().expect("name"), 1),
        "g".parse().expect("name"),
    );
    group.memory.operator().expire_lease(&resource);
    let leases = group.backend.leases();
    leases
        .acquire(&resource, "a stranger", "nonce", SECOND, &millstream_core::Continuity::assured())
        .await
        .expect("acquired");
    group.told.wait_for("LeaseLost").await;
    group.balanced(&[2]).await;
    assert!(group.history.gap() <= SECOND + MS(100));
    a.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_when_its_lease_cannot_be_relied_on_and_before_another_begins() {
    let group = group(1);
    let begun = Arc::new(AtomicUsize::new(0));
    let waits = |name: &str| {
        let (link, backend) = crate::support::link::link(&group.backend);
        let observer = group.history.observer(name, group.told.clone());
        let begun = begun.clone();
        let consumer = ConsumerBuilder::new(backend, group.topic.clone(), "g", Arc::new(observer));
        let consumer = consumer.lease_ttl(TTL).start(move |delivery: Delivery<u64>| {
            let begun = begun.clone();
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                delivery.cancelled().await;
                begun.fetch_sub(1, Ordering::Relaxed);
            }
        });
        async move { (link, consumer.await.expect("started")) }
    };
    let (link, a) = waits("a").await;
    let (_, b) = waits("b").await;
    group.balanced(&[1]).await;
    let owner = group.history.owners()[&0].clone();
    let load = group.load().await;
    eventually(|| begun.load(Ordering::Relaxed) == 1, || "one has begun".into()).await;
    tokio::time::sleep(20 * SECOND).await;
    load.stop().await;
    assert_eq!((owner.as_str(), begun.load(Ordering::Relaxed)), ("a", 1), "it was renewed all the time");
    let cut = tokio::time::Instant::now();
    link.cut();
    eventually(|| begun.load(Ordering::Relaxed) == 0, || "it is notified".into()).await;
    let told = cut.elapsed();
    assert!(told >= TTL * 4 / 5 - TTL / 3 - MS(1) && told <= TTL * 4 / 5 + MS(1), "{told:?}");
    assert_eq!(group.history.owners()[&0], "a", "before the lease ends");
    eventually(|| begun.load(Ordering::Relaxed) == 1, || "the other begins".into()).await;
    assert_eq!(group.history.of("b").len(), 1);
    drop((a, b));
}

/// The server may have carried the request out as soon as it was sent.
#[tokio::test(start_paused = true)]
async fn behind_a_slow_link_a_handler_is_told_by_the_time_of_the_last_request_and_not_of_its_answer() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let group = group(1);
        let (link, backend) = crate::support::link::link(&group.backend);
        // Less than a request may take.
        link.latency.store(TTL.as_millis() as u64 / 12, Ordering::Relaxed);
        let (begun, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let builder = ConsumerBuilder::new(backend, group.topic.clone(), "g", Arc::new(group.told.clone()));
        let consumer = builder.lease_ttl(TTL).start({
            let (begun, told) = (begun.clone(), told.clone());
            move |delivery: Delivery<u64>| {
                let told = told.clone();
                begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    delivery.cancelled().await;
                    told.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let consumer = consumer.await.expect("started");
        group.load().await.stop().await;
        eventually(|| begun.load(Ordering::Relaxed) == 1, || "it has begun".into()).await;
        tokio::time::sleep(5 * TTL + TTL.mul_f64(fastrand::f64())).await;
        assert_eq!(told.load(Ordering::Relaxed), 0, "seed {seed}: it is renewed all the time");
        link.cut();
        eventually(|| told.load(Ordering::Relaxed) == 1, || "it is notified".into()).await;
        let took = link.last_answered("renew").expect("renewed").elapsed();
        assert!(took <= TTL * 4 / 5 + MS(2), "seed {seed}: {took:?} after the last request");
        drop(consumer);
    }
}

/// The same for the request that was granted the lease, before any renewal.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_granted_late_counts_from_its_request() {
    let mut checked = 0;
    for seed in 0..20 {
        fastrand::seed(seed);
        let group = group(1);
        let (link, backend) = crate::support::link::link(&group.backend);
        link.latency.store(TTL.as_millis() as u64 / 12, Ordering::Relaxed);
        group.load().await.stop().await;
        let (begun, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let builder = ConsumerBuilder::new(backend, group.topic.clone(), "g", Arc::new(group.told.clone()));
        let consumer = builder.lease_ttl(TTL).start({
            let (begun, told) = (begun.clone(), told.clone());
            move |delivery: Delivery<u64>| {
                let (begun, told) = (begun.clone(), told.clone());
                async move {
                    begun.fetch_add(1, Ordering::Relaxed);
                    delivery.cancelled().await;
                    told.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let consumer = consumer.await.expect("started");
        eventually(|| group.told.lines("Assigned") == 1, || "it is assigned".into()).await;
        // What follows is quick, so that the handler begins before the first renewal.
        link.latency.store(0, Ordering::Relaxed);
        eventually(|| begun.load(Ordering::Relaxed) == 1, || "it has begun".into()).await;
        link.cut();
        // The pauses between renewals are drawn: one in ten falls between the grant and the first read.
        if link.last_answered("renew").is_some() {
            continue;
        }
        eventually(|| told.load(Ordering::Relaxed) == 1, || "it is notified".into()).await;
        let took = link.last_answered("acquire").expect("granted").elapsed();
        assert!(took <= TTL * 4 / 5 + MS(2), "seed {seed}: {took:?} after the request");
        checked += 1;
        drop(consumer);
    }
    assert!(checked >= 5, "{checked} of 20 were not renewed before the cut");
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_nobody_is_accused() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let group = group(4);
        let (a, b) = (group.join("a", MS(2), ttl).await, group.join("b", MS(2), ttl).await);
        group.balanced(&[2, 2]).await;
        tokio::time::sleep(SECOND).await;
        let owners = group.history.owners();
        group.history.moves();
        // As after an outage that is longer than any ttl: the heartbeats of all arrive again at about the same time.
        for instance in [&a, &b] {
            instance.link.members_fail.store(true, Ordering::Relaxed);
            instance.link.lose_renewals.store(usize::MAX, Ordering::Relaxed);
        }
        tokio::time::sleep(5 * TTL).await;
        for instance in [&a, &b] {
            instance.link.members_fail.store(false, Ordering::Relaxed);
            instance.link.lose_renewals.store(0, Ordering::Relaxed);
        }
        let load = group.load().await;
        tokio::time::sleep(2 * TTL).await;
        let sent = load.stop().await;
        eventually(|| group.count() as u64 >= sent, || format!("{sent}, of {}", group.count())).await;
        assert_eq!((group.history.owners(), group.history.moves()), (owners, 0), "seed {seed}");
        a.leave().await;
        b.leave().await;
        group.assert_once_in_order(sent);
    }
}

/// A server that answers "published" and keeps nothing, as a broken proxy or a lost write would.
#[tokio::test(start_paused = true)]
async fn an_assignment_that_does_not_show_is_not_decided_again_at_once() {
    let calls = async |mutant: Option<Mutant>| {
        let memory = MemoryBackend::new();
        let backend = match mutant {
            Some(mutant) => Backend::from(Broken::new(memory, mutant)).in_process(),
            None => Backend::from(memory),
        };
        let client = Chaos::new(backend, 1).client();
        let topic = Topic::<u64>::new("t").partitions(3);
        client.backend().catalog().create_topic(&topic.spec().expect("valid")).await.expect("created");
        let consumer = ConsumerBuilder::new(client.backend(), topic, "g", Arc::new(Ignore)).lease_ttl(TTL);
        let running = consumer.start(async |_: Delivery<u64>| Outcome::Ack).await.expect("started");
        tokio::time::sleep(SECOND * 60).await;
        let calls = client.tally().calls;
        running.shutdown().await;
        calls
    };
    let (calm, forgotten) = (calls(None).await, calls(Some(Mutant::PublishForgotten)).await);
    assert!(forgotten < calm * 4, "{forgotten} requests where {calm} are the rule");
}
