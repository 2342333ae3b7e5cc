//! Messages that are sent now and read later.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Bench, MS, NUMBERS, Seen, bench, note, until};
use millstream_core::schedule::Placed;
use millstream_core::{ErrorKind, Timestamp, Topic};
use millstream_runtime::{DelayedMessages, Delivery, Record};
use tokio::time::Instant;

const SPREAD: Topic<u64> = Topic::new("spread").partitions(4);

async fn waiting(bench: &Bench, topic: &str) -> DelayedMessages {
    let topic = bench.backend.catalog().topic(&topic.parse().expect("name")).await.expect("a topic");
    DelayedMessages::new(bench.backend.clone(), topic)
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_reaches_every_group_not_early_and_hardly_late() {
    let bench = bench();
    let started = Instant::now();
    let (first, second) = (Seen::default(), Seen::default());
    let mut consumers = Vec::new();
    for (group, seen) in [("first", &first), ("second", &second)] {
        let seen = seen.clone();
        let consumer = bench.consumer(NUMBERS, group).start(move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        });
        consumers.push(consumer.await.expect("started"));
    }
    let producer = bench.producer(NUMBERS).await;
    let delayed = producer.send(&7).delay(MS(500)).key("k").header("h", "v").await.expect("sent");
    assert_eq!(delayed.placed, Placed::New);
    until(&first, 1).await;
    until(&second, 1).await;
    let took = started.elapsed();
    assert!((MS(500)..MS(520)).contains(&took), "{took:?}");
    assert_eq!(*first.lock().expect("lock"), [(7, 1)]);
    for consumer in consumers {
        assert_eq!(consumer.shutdown().await.acked, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_message_wakes_a_consumer_that_sleeps_for_a_later_one() {
    let bench = bench();
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    };
    let consumer = bench.consumer(NUMBERS, "group").start(handler).await.expect("started");
    let producer = bench.producer(NUMBERS).await;
    producer.send(&2).delay(Duration::from_secs(3600)).await.expect("sent");
    tokio::time::sleep(Duration::from_secs(100)).await;
    let sent = Instant::now();
    producer.send(&1).delay(MS(2_000)).await.expect("sent");
    until(&seen, 1).await;
    let took = sent.elapsed();
    assert!((MS(2_000)..MS(2_020)).contains(&took), "the promoter sleeps 30 s by itself: {took:?}");
    assert_eq!(waiting(&bench, "numbers").await.count().await.expect("counted").total, 1);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_time_that_is_past_is_now() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    producer.send(&1).at(UNIX_EPOCH).await.expect("sent");
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    };
    let consumer = bench.consumer(NUMBERS, "group").start(handler).await.expect("started");
    until(&seen, 1).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_is_kept_replaced_or_rejected() {
    let bench = bench();
    let producer = bench.producer(SPREAD).await;
    let hour = Duration::from_secs(3600);
    let first = producer.send(&1).delay(hour).id("job").await.expect("sent");
    let kept = producer.send(&2).delay(hour).id("job").await.expect("sent");
    assert_eq!((kept.placed, kept.partition), (Placed::Kept, first.partition), "the id names the partition");
    let refused = producer.send(&3).delay(hour).id("job").reject().await.expect_err("it waits");
    assert_eq!(refused.kind(), ErrorKind::Exists);
    let spread = waiting(&bench, "spread").await;
    let payload = async || {
        let message = spread.get("job").await.expect("got").expect("it waits");
        String::from_utf8(message.envelope.expect("a message").payload.to_vec()).expect("JSON")
    };
    assert_eq!(payload().await, "1");
    let replaced = producer.send(&4).delay(2 * hour).id("job").replace().await.expect("sent");
    assert_eq!(replaced.placed, Placed::Replaced);
    assert_eq!(payload().await, "4");
    assert_eq!(spread.count().await.expect("counted").total, 1);
    let error = producer.send(&1).delay(hour).id("a\nb").await.expect_err("no id");
    assert_eq!(error.kind(), ErrorKind::InvalidName);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_cancelled_rescheduled_and_promoted_by_its_id_alone() {
    let bench = bench();
    let producer = bench.producer(SPREAD).await;
    let hour = Duration::from_secs(3600);
    for (key, id) in [("a", "one"), ("b", "two"), ("c", "three")] {
        producer.send(&1).key(key).delay(hour).id(id).await.expect("sent");
    }
    let spread = waiting(&bench, "spread").await;
    assert!(spread.cancel("one").await.expect("asked"));
    assert!(!spread.cancel("one").await.expect("asked"), "only once");
    assert!(!spread.reschedule("one", MS(1)).await.expect("asked"), "it does not come back");
    let later = SystemTime::now() + 48 * hour;
    assert!(spread.reschedule("two", later).await.expect("asked"));
    assert!(spread.run_now("three").await.expect("asked"));
    assert_eq!(spread.count().await.expect("counted").total, 2);
    assert!(spread.get("one").await.expect("got").is_none());
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    };
    let consumer = bench.consumer(SPREAD, "group").start(handler).await.expect("started");
    until(&seen, 1).await;
    assert_eq!(spread.count().await.expect("counted").total, 1, "two waits on");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn pages_go_over_all_partitions_by_due_time_and_leave_nothing_out() {
    let bench = bench();
    let producer = bench.producer(SPREAD).await;
    // Many of one time, and an id that two partitions have.
    let at = |n: u64| UNIX_EPOCH + Duration::from_secs(4_000_000_000) + Duration::from_secs(n / 10);
    let values: Vec<u64> = (0..95).collect();
    let records = values.iter().map(|n| Record::new(n).key(n.to_le_bytes()).at(at(*n)).id(format!("id {n}")));
    assert!(producer.send_all_delayed(records).await.iter().all(Result::is_ok));
    for partition in [0, 1, 3] {
        let twin = Record::new(&1_000).partition(partition).at(at(50)).id("id 55");
        producer.send_all_delayed([twin]).await.remove(0).expect("sent");
    }
    let spread = waiting(&bench, "spread").await;
    for size in [1, 7, 100] {
        let mut seen: Vec<(Timestamp, String, u32)> = Vec::new();
        let mut last = None;
        loop {
            let page = spread.list(last.as_ref(), size).await.expect("listed");
            seen.extend(page.iter().map(|it| (it.due, it.id.to_string(), it.topic_partition.partition.0)));
            let Some(end) = page.into_iter().next_back() else { break };
            last = Some(end);
        }
        assert!(seen.is_sorted(), "by due time, then id: {seen:?}");
        let mut each = BTreeMap::new();
        seen.iter().for_each(|one| *each.entry(one).or_insert(0) += 1);
        assert!(each.values().all(|times| *times == 1), "each once: {each:?}");
        let total = spread.count().await.expect("counted").total;
        assert_eq!(seen.len() as u64, total, "with pages of {size}");
    }
}

#[tokio::test(start_paused = true)]
async fn delayed_sends_of_many_tasks_share_requests_and_end_with_the_producer() {
    let bench = bench();
    let producer = bench.producer(SPREAD).await;
    let sends = (0..64u64).map(|n| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&n).delay(MS(60_000)).await.expect("sent") })
    });
    for send in sends.collect::<Vec<_>>() {
        send.await.expect("no panic");
    }
    let batches = bench.told.lines("Delayed");
    assert!(batches <= 4, "{batches} requests for 64 messages");
    producer.close().await;
    let error = producer.send(&1).delay(MS(1)).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// As many sends as one likes are one message: read when it has been quiet for a while, or at the time of the first.
#[tokio::test(start_paused = true)]
async fn sends_under_one_id_are_debounced_or_the_last_is_kept() {
    for (debounce, expected) in [(true, MS(1_000 + 9 * 400)), (false, MS(1_000))] {
        let bench = bench();
        let seen = Seen::default();
        let handler = seen.clone();
        let consumer = bench.consumer(NUMBERS, "group").start(move |delivery: Delivery<u64>| {
            note(&handler, &delivery);
            async {}
        });
        let consumer = consumer.await.expect("started");
        let producer = bench.producer(NUMBERS).await;
        let began = Instant::now();
        let send = async |value: u64| {
            let sent = producer.send(&value).delay(MS(1_000));
            if debounce { sent.debounce("user-7").await } else { sent.keep_last("user-7").await }
        };
        let mut placed = Vec::new();
        for value in 0..10 {
            if debounce || value < 3 {
                tokio::time::sleep_until(began + MS(400) * value).await;
                placed.push(send(u64::from(value)).await.expect("sent").placed);
            }
        }
        assert_eq!(placed[0], Placed::New);
        assert!(placed[1..].iter().all(|placed| *placed == Placed::Replaced), "{placed:?}");
        until(&seen, 1).await;
        let took = began.elapsed();
        assert!((expected..expected + MS(20)).contains(&took), "{took:?} instead of {expected:?}");
        let last = if debounce { 9 } else { 2 };
        assert_eq!(*seen.lock().expect("lock"), [(last, 1)]);
        // It is in the log: the next one is another message.
        assert_eq!(send(11).await.expect("sent").placed, Placed::New);
        until(&seen, 2).await;
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn under_an_empty_id_nothing_is_debounced() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    for record in [Record::new(&1).delay(MS(1)).debounce(""), Record::new(&1).delay(MS(1)).keep_last("")] {
        let error = producer.send_all_delayed([record]).await.remove(0).expect_err("no id");
        assert_eq!(error.kind(), ErrorKind::InvalidName);
    }
    assert_eq!(waiting(&bench, "numbers").await.count().await.expect("counted").total, 0);
}
