//! A group that is destroyed while handlers run: what they fail at is handled again, whatever the reader is doing.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use millstream_core::policy::Fixed;
use millstream_core::{ErrorKind, Outcome, Start};
use millstream_runtime::{Concurrency, ConsumerBuilder, Delivery, RetryOrder, Sharing};
use tokio::sync::Semaphore;

/// Handles ten messages whose fourth fails the first time it is handled, after the group was destroyed. All
/// messages are in flight by then, so that the reader cannot detect it. Returns the calls of the handler.
async fn destroyed_under(
    bench: &Bench,
    settings: impl FnOnce(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>,
    failure: fn() -> Outcome,
) -> Vec<(u64, u32)> {
    produce(bench, 10).await;
    let seen = Seen::default();
    let go_on = Arc::new(Semaphore::new(0));
    let builder = settings(bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(100)).attempts(9)).prefetch(1));
    let handler = {
        let (seen, go_on) = (seen.clone(), go_on.clone());
        move |delivery: Delivery<u64>| {
            let first = !seen.lock().expect("lock").iter().any(|(value, _)| *value == delivery.payload);
            note(&seen, &delivery);
            let (fails, go_on) = (delivery.payload == 3 && first, go_on.clone());
            async move {
                if !fails {
                    return Outcome::Ack;
                }
                go_on.acquire().await.expect("open").forget();
                failure()
            }
        }
    };
    let consumer = builder.start(handler).await.expect("started");
    until(&seen, 4).await;
    assert!(bench.memory.operator().destroy_group(&partition(), &"g".parse().expect("name")));
    go_on.add_permits(1);

    until(&seen, 11).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    consumer.shutdown().await;
    seen.lock().expect("lock").clone()
}

fn calls_of(calls: &[(u64, u32)], value: u64) -> Vec<u32> {
    calls.iter().filter(|(of, _)| *of == value).map(|(_, attempt)| *attempt).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_retried_is_handled_again() {
    let bench = bench();
    let calls = destroyed_under(&bench, |builder| builder, || Outcome::retry("no")).await;
    assert_eq!(calls_of(&calls, 3), [1, 1], "read again as new: the retry had nowhere to go");
    assert!((0..10).all(|value| !calls_of(&calls, value).is_empty()), "{calls:?}");
    assert_eq!(bench.told.lines("GroupRestored"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_given_up_is_handled_again() {
    let bench = bench();
    let calls = destroyed_under(&bench, |builder| builder, || Outcome::dead_letter("no")).await;
    assert_eq!(calls_of(&calls, 3), [1, 1]);
    assert!((0..10).all(|value| !calls_of(&calls, value).is_empty()), "{calls:?}");
    assert_eq!(dead(&bench, "g").await.count().await.expect("counted"), 0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_its_place_keeps_its_place_and_its_attempt() {
    let bench = bench();
    let settings = |builder: ConsumerBuilder<u64>| builder.retry_order(RetryOrder::BlockPartition);
    let calls = destroyed_under(&bench, settings, || Outcome::retry("no")).await;
    // Once more afterwards: the ack came before the group had read it again.
    assert_eq!(calls_of(&calls, 3), [1, 2, 1]);
    let mut order: Vec<u64> = calls.iter().map(|(value, _)| *value).collect();
    order.dedup();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
}

/// Somebody else creates the group again in time, so that the settlement finds it, and nothing pending; and it is
/// destroyed once more before the reader has come by.
#[tokio::test(start_paused = true)]
async fn what_was_stale_because_the_group_was_new_is_handled_again() {
    let bench = bench();
    produce(&bench, 4).await;
    let (tp, group) = (partition(), "g".parse().expect("name"));
    let seen = Seen::default();
    let go_on = Arc::new(Semaphore::new(0));
    let consumer = bench.consumer(NUMBERS, "g").prefetch(1).start({
        let (seen, go_on) = (seen.clone(), go_on.clone());
        move |delivery: Delivery<u64>| {
            let fails = delivery.payload == 3 && count(&seen) == 3;
            note(&seen, &delivery);
            let go_on = go_on.clone();
            async move {
                if !fails {
                    return Outcome::Ack;
                }
                go_on.acquire().await.expect("open").forget();
                Outcome::dead_letter("no")
            }
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 4).await;
    assert!(bench.memory.operator().destroy_group(&tp, &group));
    let topic = bench.backend.catalog().topic(&tp.topic).await.expect("a topic");
    bench.backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created again");
    bench.log.fetch_failures.lock().expect("lock").push_back(ErrorKind::Unavailable);
    go_on.add_permits(1);
    bench.told.wait_for("Failing { operation: \"fetch\"").await;
    assert!(bench.memory.operator().destroy_group(&tp, &group));
    until(&seen, 5).await;
    consumer.shutdown().await;
    let calls = seen.lock().expect("lock").clone();
    assert_eq!(calls_of(&calls, 3), [1, 1], "{calls:?}");
}

/// Nobody ran when it was destroyed, so nobody knows what it had settled.
#[tokio::test(start_paused = true)]
async fn a_known_group_starts_with_the_oldest_entry_wherever_new_ones_start() {
    let bench = bench();
    for shared in [false, true] {
        let group = if shared { "shared" } else { "exclusive" };
        let seen = Seen::default();
        let start = async || {
            let seen = seen.clone();
            let mut builder = bench.consumer(NUMBERS, group).start_from(Start::Latest);
            if shared {
                builder = builder.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(2));
            }
            let handler = move |delivery: Delivery<u64>| {
                note(&seen, &delivery);
                async {}
            };
            builder.start(handler).await.expect("started")
        };
        start().await.shutdown().await;
        let told = bench.told.lines("GroupRestored");
        produce(&bench, 10).await;
        assert!(bench.memory.operator().destroy_group(&partition(), &group.parse().expect("name")));
        let consumer = start().await;
        until(&seen, 10).await;
        consumer.shutdown().await;
        let restored: Vec<_> =
            bench.told.all().into_iter().filter(|line| line.contains("GroupRestored")).skip(told).collect();
        assert!(restored.len() == 1 && restored[0].contains("MessageId { ms: 0, seq: 0 }"), "{restored:?}");
    }
}
