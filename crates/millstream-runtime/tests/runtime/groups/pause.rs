//! A group that is paused as a whole: all its members hold, and who comes later, until somebody says otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use millstream_core::{GroupName, TopicName};
use millstream_runtime::{Concurrency, Consumer, ConsumerBuilder, ConsumerState, Delivery, Sharing};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(9);

type Mode = fn(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>;

/// With owners, and without.
const MODES: [Mode; 2] =
    [|builder| builder, |builder| builder.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(4))];

fn names() -> (TopicName, GroupName) {
    ("numbers".parse().expect("name"), "g".parse().expect("name"))
}

async fn pause(bench: &Bench, paused: bool) {
    let (topic, group) = names();
    assert!(bench.backend.catalog().set_paused(&topic, &group, paused).await.expect("an answer"));
}

async fn start(bench: &Bench, mode: Mode, seen: &Seen) -> Consumer {
    let noted = seen.clone();
    let builder = mode(bench.consumer(NUMBERS, "g").lease_ttl(TTL));
    let started = builder.start(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async {}
    });
    started.await.expect("started")
}

#[tokio::test(start_paused = true)]
async fn all_members_hold_at_once_and_go_on_at_once() {
    for mode in MODES {
        let bench = bench();
        produce(&bench, 10).await;
        let seen = Seen::default();
        let (one, two) = (start(&bench, mode, &seen).await, start(&bench, mode, &seen).await);
        until(&seen, 10).await;
        // Both wait for changes by now.
        sleep(TTL).await;
        pause(&bench, true).await;
        let both = |state| {
            let (one, two) = (&one, &two);
            // Each receives it within a fraction of a second.
            eventually(
                move || [one, two].iter().all(|it| it.health().state == state),
                move || format!("{state:?}"),
            )
        };
        both(ConsumerState::Paused).await;
        for consumer in [&one, &two] {
            let health = consumer.health();
            assert!(health.topics[0].group_paused && health.is_ready() && health.is_live());
            consumer.resume();
        }
        produce(&bench, 10).await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(count(&seen), 10, "an end of a local pause does not end that of the group");
        assert_eq!(bench.told.lines("GroupPaused"), 2);
        assert_eq!(bench.told.lines("LeaseLost"), 0);
        let resumed = Instant::now();
        pause(&bench, false).await;
        until(&seen, 20).await;
        assert!(resumed.elapsed() < MS(500), "{:?}", resumed.elapsed());
        both(ConsumerState::Running).await;
        one.shutdown().await;
        two.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_to_a_paused_group_takes_nothing() {
    for mode in MODES {
        let bench = bench();
        produce(&bench, 10).await;
        let seen = Seen::default();
        start(&bench, mode, &seen).await.shutdown().await;
        produce(&bench, 10).await;
        let before = count(&seen);
        pause(&bench, true).await;
        let consumer = start(&bench, mode, &seen).await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(count(&seen), before, "nothing is taken");
        pause(&bench, false).await;
        until(&seen, 20).await;
        consumer.shutdown().await;
    }
}

/// One holds without the other.
#[tokio::test(start_paused = true)]
async fn a_local_pause_outlives_that_of_the_group() {
    let bench = bench();
    produce(&bench, 1).await;
    let seen = Seen::default();
    let consumer = start(&bench, MODES[0], &seen).await;
    until(&seen, 1).await;
    sleep(TTL).await;
    pause(&bench, true).await;
    sleep(TTL).await;
    consumer.pause();
    pause(&bench, false).await;
    produce(&bench, 10).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(count(&seen), 1);
    assert!(!consumer.health().topics[0].group_paused);
    assert_eq!(consumer.health().state, ConsumerState::Paused);
    consumer.resume();
    until(&seen, 11).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_runs_ends_and_is_settled() {
    let bench = bench();
    produce(&bench, 4).await;
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = bench.consumer(NUMBERS, "g").lease_ttl(TTL);
    let consumer = builder.start(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async { sleep(Duration::from_secs(30)).await }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 1).await;
    sleep(Duration::from_secs(20)).await;
    pause(&bench, true).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!((count(&seen), consumer.report().acked), (1, 1));
    pause(&bench, false).await;
    until(&seen, 4).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_waited_for_is_known_to_all_that_can_know_it() {
    for mode in MODES {
        let bench = bench();
        let seen = Seen::default();
        let (one, two) = (start(&bench, mode, &seen).await, start(&bench, mode, &seen).await);
        produce(&bench, 1).await;
        until(&seen, 1).await;
        let ((topic, group), admin) = (names(), millstream_admin::Admin::new(bench.backend.clone()));
        let waits = admin.pause_group_and_wait(&topic, &group, 10 * TTL).await.expect("paused");
        assert_eq!(waits, []);
        for consumer in [&one, &two] {
            assert!(consumer.health().topics[0].group_paused);
        }
        produce(&bench, 5).await;
        sleep(3 * TTL).await;
        assert_eq!(count(&seen), 1, "nothing starts");
        admin.resume_group(&topic, &group).await.expect("resumed");
        until(&seen, 6).await;
        one.shutdown().await;
        two.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_paused_is_quiet_when_its_pause_returns() {
    for mode in MODES {
        let bench = bench();
        let (running, seen) = (Arc::new(AtomicUsize::new(0)), Seen::default());
        let handler = {
            let (running, seen) = (running.clone(), seen.clone());
            move |delivery: Delivery<u64>| {
                let (running, seen) = (running.clone(), seen.clone());
                async move {
                    running.fetch_add(1, Ordering::SeqCst);
                    sleep(MS(3)).await;
                    note(&seen, &delivery);
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        let builder = mode(bench.consumer(NUMBERS, "g").lease_ttl(TTL));
        let consumer = builder.start(handler).await.expect("started");
        produce(&bench, 60).await;
        until(&seen, 5).await;
        consumer.pause_and_wait().await;
        let (quiet, ended) = (running.load(Ordering::SeqCst), count(&seen));
        assert_eq!(quiet, 0);
        sleep(3 * TTL).await;
        assert_eq!((running.load(Ordering::SeqCst), count(&seen)), (0, ended), "and stays so");
        assert!(ended < 60, "it was paused in the middle");
        consumer.resume();
        until(&seen, 60).await;
        consumer.shutdown().await;
    }
}
