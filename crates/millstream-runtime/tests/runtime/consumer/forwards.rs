//! Handlers that send: what they send for a delivery is there once, however often the delivery comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::policy::Fixed;
use millstream_core::{DeadLetterRetention, ErrorKind, Outcome, Topic};
use millstream_runtime::Delivery;

use crate::support::*;

const BILLS: Topic<u64> = Topic::new("bills").partitions(3);
const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test(start_paused = true)]
async fn two_sends_of_each_handler_are_stored_once_over_failures_and_replays() {
    let bench = bench();
    produce(&bench, 20).await;
    let bills = bench.producing(BILLS).dedup_window(2 * DAY).await.expect("a producer");
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(10)).attempts(3)).sends_to(&bills, None);
    let calls = Arc::<Mutex<BTreeMap<u64, u32>>>::default();
    let consumer = consumer.start(move |number: Delivery<u64>| {
        let (bills, calls) = (bills.clone(), calls.clone());
        async move {
            for nth in 0..2 {
                let bill = number.payload * 10 + u64::from(nth);
                bills.send(&bill).once_for(&number, nth).await?;
            }
            // Every third one is a dead letter at first, the others fail once after they have sent.
            let fails = if number.payload.is_multiple_of(3) { 3 } else { 1 };
            let call =
                *calls.lock().expect("lock").entry(number.payload).and_modify(|it| *it += 1).or_insert(1);
            Ok::<_, millstream_core::Error>(if call <= fails {
                Outcome::retry("after the send")
            } else {
                Outcome::Ack
            })
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let letters = dead(&bench, "g").await;
    assert_eq!(letters.count().await.expect("counted"), 7);
    letters.replay_all().await.expect("replayed");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;

    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    };
    let other = bench.consumer(BILLS, "g").start(handler).await.expect("started");
    other.wait_idle().await.expect("idle");
    other.shutdown().await;
    let mut bills: Vec<u64> = seen.lock().expect("lock").iter().map(|(bill, _)| *bill).collect();
    bills.sort_unstable();
    let expected: Vec<u64> = (0..20).flat_map(|number| [number * 10, number * 10 + 1]).collect();
    assert_eq!(bills, expected);
}

#[tokio::test(start_paused = true)]
async fn a_window_that_is_too_short_is_refused_when_the_consumer_starts() {
    let bench = bench();
    let handler = async |_: Delivery<u64>| {};
    let short = bench.producer(BILLS).await;
    let why = bench.consumer(NUMBERS, "g").sends_to(&short, None).start(handler).await.expect_err("refused");
    assert_eq!(why.kind(), ErrorKind::InvalidConfig);
    assert!(why.to_string().contains("dedup_window of the producer for bills"), "{why}");
    // Three minutes of retries fit into five; dead letters are never replayed.
    let never = Some(Duration::ZERO);
    bench
        .consumer(NUMBERS, "g")
        .sends_to(&short, never)
        .start(handler)
        .await
        .expect("started")
        .shutdown()
        .await;
    // What is stored counts, and not what the program says.
    let keeps = DeadLetterRetention::age(3 * DAY);
    let admin = millstream_admin::Admin::new(bench.backend.clone());
    let change = millstream_core::TopicChange::new().dead_letter_retention(keeps);
    admin.alter_topic(&"numbers".parse().expect("a name"), &change).await.expect("altered");
    let longer = bench.producing(BILLS).dedup_window(2 * DAY).await.expect("a producer");
    let why = bench.consumer(NUMBERS, "g").sends_to(&longer, None).start(handler).await.expect_err("refused");
    assert!(why.to_string().contains("topic numbers keeps"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn ids_name_the_delivery_and_fit_whatever_the_names_are() {
    let bench = bench();
    let bills = bench.producer(BILLS).await;
    let long = "n".repeat(128);
    let of = |topic: &str, group: &str, partition, nth: u32| {
        let delivery =
            millstream_runtime::test::delivery(7_u64).topic(topic).group(group).partition(partition).build();
        assert_eq!(delivery.topic_partition().partition.0, partition);
        let bills = bills.clone();
        async move { bills.send(&7).key("k").once_for(&delivery, nth).await.expect("sent").is_duplicate }
    };
    for (topic, group, partition, nth) in [
        ("a", "b", 0, 0),
        ("a", "b", 0, 1),
        ("a", "b", 1, 0),
        ("a", "c", 0, 0),
        ("c", "b", 0, 0),
        (&long, &long, 16_383, u32::MAX),
    ] {
        assert!(!of(topic, group, partition, nth).await, "{topic} {group} {partition} {nth}");
        assert!(of(topic, group, partition, nth).await, "the same again");
    }
}
