//! How a consumer says that it is, and what happened to it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::scenario::{Scenario, for_ever, linked};
use crate::support::*;
use millstream_core::Topic;
use millstream_runtime::{Consumer, ConsumerEvent, ConsumerState, Delivery, Health};
use tokio::time::{sleep, timeout};

const WIDE: Topic<u64> = Topic::new("numbers").partitions(3);

async fn idle(bench: &Bench) -> Consumer {
    bench.consumer(WIDE, "g").start(|_: Delivery<u64>| async {}).await.expect("started")
}

async fn until(consumer: &Consumer, holds: impl Fn(&Health) -> bool) -> Health {
    eventually(|| holds(&consumer.health()), || format!("{:#?}", consumer.health())).await;
    consumer.health()
}

fn owns_all(health: &Health) -> bool {
    health.topics[0].owned.len() == 3
}

#[tokio::test(start_paused = true)]
async fn it_tells_what_it_does_and_what_it_owns() {
    let bench = bench();
    produce(&bench, 5).await;
    let course = Scenario::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            let running = course.begin(&delivery);
            async move {
                sleep(Duration::from_secs(10)).await;
                drop(running);
            }
        }
    });
    let consumer = consumer.await.expect("started");
    let health = consumer.health();
    assert_eq!(health.state, ConsumerState::Joining);
    assert!(health.is_live() && !health.is_ready());
    course.until(1).await;
    let health = consumer.health();
    assert_eq!((health.state, health.in_flight, health.running_handlers), (ConsumerState::Running, 5, 1));
    let topic = &health.topics[0];
    assert_eq!((topic.topic.as_str(), topic.members, topic.owned.len()), ("numbers", 1, 1));
    assert_eq!(topic.assigned.as_deref(), Some(&topic.owned[..]));
    assert!(health.is_live() && health.is_ready());
    for operation in ["heartbeat", "renew", "fetch", "settle", "promote", "trim"] {
        assert!(health.loops.iter().any(|each| each.operation == operation), "{operation}: {health:#?}");
    }

    consumer.pause_partition(&partition());
    assert_eq!(consumer.health().topics[0].paused, health.topics[0].owned);
    consumer.pause();
    let health = consumer.health();
    assert_eq!(health.state, ConsumerState::Paused);
    assert!(health.is_live() && health.is_ready(), "a pause is no trouble");
    course.until(1).await;
    sleep(Duration::from_secs(3_600)).await;
    let health = consumer.health();
    assert_eq!((health.in_flight, health.running_handlers), (4, 0));
    assert!(health.is_live() && health.is_ready(), "however long it lasts: {health:#?}");

    let mut events = consumer.events();
    let shutdown = tokio::spawn(consumer.shutdown());
    while !matches!(events.next().await, None | Some(ConsumerEvent::Ended)) {}
    assert_eq!(shutdown.await.expect("no panic").acked, 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_consumer_and_one_with_a_slow_handler_are_live() {
    let bench = bench();
    produce(&bench, 500).await;
    let consumer = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| for_ever()).await.expect("started");
    let other = bench.consumer(NUMBERS, "idle");
    let other = other.start(|_: Delivery<u64>| async {}).await.expect("started");
    for _ in 0..60 {
        sleep(Duration::from_secs(60)).await;
        for health in [consumer.health(), other.health()] {
            assert!(health.is_live() && health.is_ready(), "{health:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_told_and_leaves_it_live_but_not_ready() {
    let bench = bench();
    let (link, builder) = linked(&bench, WIDE);
    let consumer = builder.start(|_: Delivery<u64>| async {}).await.expect("started");
    until(&consumer, owns_all).await;
    link.away.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    let health = consumer.health();
    assert!(health.is_ready(), "it may pass");
    let (heartbeat, failure) =
        health.failing().find(|(each, _)| each.operation == "heartbeat").expect("heartbeats fail");
    assert!(failure.error.contains("told to fail") && failure.lasts > Duration::ZERO, "{failure:?}");
    assert!(heartbeat.last_progress <= Duration::from_secs(4), "it tries again: {heartbeat:?}");
    sleep(Duration::from_secs(3_600)).await;
    let health = consumer.health();
    assert!(health.is_live() && !health.is_ready(), "{health:#?}");
    link.away.store(false, Ordering::Relaxed);
    let health = until(&consumer, |health| health.failing().count() == 0 && owns_all(health)).await;
    assert!(health.is_live() && health.is_ready());
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_is_not_live() {
    let bench = bench();
    let (link, builder) = linked(&bench, NUMBERS);
    let course = Scenario::default();
    let consumer = builder.start({
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            drop(course.begin(&delivery));
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    produce(&bench, 1).await;
    course.until(1).await;
    // A request that no timeout ends.
    link.hang("settle");
    produce(&bench, 1).await;
    course.until(2).await;
    sleep(Duration::from_secs(50)).await;
    assert!(consumer.health().is_live());
    sleep(Duration::from_secs(15)).await;
    let health = consumer.health();
    let stalled: Vec<_> =
        health.loops.iter().filter(|each| each.stalled).map(|each| each.operation).collect();
    assert_eq!((health.is_live(), &stalled[..]), (false, &["settle"][..]), "{health:#?}");
}

#[tokio::test(start_paused = true)]
async fn one_whose_id_is_taken_says_so_and_is_not_live() {
    let bench = bench();
    let first = bench.consumer(NUMBERS, "g").member_id("one");
    let first = first.start(|_: Delivery<u64>| async {}).await.expect("started");
    let mut events = first.events();
    until(&first, |health| health.state == ConsumerState::Running).await;
    let second = bench.consumer(NUMBERS, "g").member_id("one");
    let second = second.start(|_: Delivery<u64>| async {}).await.expect("started");
    first.ended().await;
    let health = first.health();
    assert_eq!(health.state, ConsumerState::Fenced);
    assert!(!health.is_live() && !health.is_ready());
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(event);
    }
    assert!(told.iter().any(|event| matches!(event, ConsumerEvent::MemberFenced { .. })), "{told:?}");
    assert_eq!(told.last(), Some(&ConsumerEvent::Ended));
    assert_eq!(events.next().await, None);
    assert_eq!(timeout(MS(1), first.events().next()).await, Ok(None), "also for who comes too late");
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn events_come_in_order_and_are_about_the_consumer_not_about_messages() {
    let bench = bench();
    let consumer = idle(&bench).await;
    let mut events = consumer.events();
    until(&consumer, owns_all).await;
    produce(&bench, 10).await;
    bench.told.wait_for("Settled").await;
    consumer.pause();
    consumer.resume();
    bench.memory.operator().destroy_group(&partition(), &"g".parse().expect("name"));
    bench.told.wait_for("GroupRestored").await;
    let shutdown = tokio::spawn(consumer.shutdown());
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(event);
    }
    let assigned = |event: &ConsumerEvent| matches!(event, ConsumerEvent::Assigned { epoch: 1.., .. });
    assert!(matches!(told[0], ConsumerEvent::Rebalanced { members: 1, partitions: 3, .. }), "{told:?}");
    assert!(told[1..4].iter().all(assigned), "{told:?}");
    assert_eq!(told[4], ConsumerEvent::Paused { topic_partition: None });
    assert_eq!(told[5], ConsumerEvent::Resumed { topic_partition: None });
    assert!(matches!(told[6], ConsumerEvent::GroupRestored { .. }), "{told:?}");
    assert!(told[7..10].iter().all(|event| matches!(event, ConsumerEvent::Revoked { .. })), "{told:?}");
    assert_eq!(told[10..], [ConsumerEvent::Ended]);
    shutdown.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_to_listen_is_told_how_much_was_missed() {
    let bench = bench();
    let consumer = idle(&bench).await;
    until(&consumer, owns_all).await;
    let mut events = consumer.events();
    for _ in 0..600 {
        consumer.pause();
        consumer.resume();
    }
    assert_eq!(events.next().await, Some(ConsumerEvent::Lagged(1_200 - 1_024)));
    assert_eq!(events.next().await, Some(ConsumerEvent::Paused { topic_partition: None }));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_lost_in_a_failover_is_told() {
    let bench = bench();
    let consumer = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    let mut events = consumer.events();
    produce(&bench, 2).await;
    eventually(|| consumer.report().acked == 2, || "two".into()).await;
    let snapshot = bench.memory.operator().snapshot();
    let lost = produce(&bench, 2).await;
    eventually(|| consumer.report().acked == 4, || "four".into()).await;
    bench.memory.operator().restore(&snapshot);
    let (from, to) = loop {
        let event = events.next().await.expect("it is told");
        if let ConsumerEvent::TailLost { topic_partition, from, to } = event {
            assert_eq!(topic_partition, partition());
            break (from, to);
        }
    };
    assert!(from == lost[1] && to < lost[0], "{from} {to}");
    consumer.shutdown().await;
    assert_eq!(bench.told.lines("TailLost"), 1);
}
