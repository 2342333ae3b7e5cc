//! The consumer: one message's life, and what may go wrong in it.

pub(crate) mod batch;
pub(crate) mod checks;
pub(crate) mod dispatch;
pub(crate) mod faults;
pub(crate) mod forwards;
pub(crate) mod idempotent;
pub(crate) mod layers;
pub(crate) mod order;
pub(crate) mod panics;
pub(crate) mod policies;
pub(crate) mod pull;
pub(crate) mod retries;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use bytes::Bytes;
use millstream_core::catalog::Start;
use millstream_core::log::Append;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{ErrorKind, Outcome, Reason, Topic};
use millstream_runtime::{Concurrency, ConsumerConfig, Delivery, Sharing};

#[tokio::test(start_paused = true)]
async fn messages_are_handled_once_in_order_and_leave_nothing_behind() {
    let bench = bench();
    produce(&bench, 1_000).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 1_000).await;
    bench.told.wait_for("Trimmed").await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (1_000, 0));
    let want: Vec<_> = (0..1_000).map(|n| (n, 1)).collect();
    assert_eq!(*seen.lock().expect("lock"), want);
    let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let stats = bench.backend.catalog().stats(&topic, &"g".parse().expect("name")).await.expect("stats");
    assert_eq!((stats[0].pending, stats[0].lag, stats[0].dead), (0, Some(0), 0));
    assert!(stats[0].length < 1_000, "consumed entries are dropped");
}

/// A handler that blocks its thread must not hold up the acknowledgement of one that took its time before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_slow_handler_said_does_not_wait_for_one_that_blocks() {
    let bench = bench();
    produce(&bench, 2).await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let consumer = bench.consumer(NUMBERS, "g").start(move |delivery: Delivery<u64>| {
        let number = delivery.payload;
        started.send(number).expect("the test lives");
        if number == 0 {
            // Busy, and never pending: as a handler that computes.
            let until = std::time::Instant::now() + MS(5);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
        } else {
            // Until the test has seen the first one settled.
            let settled = released.lock().expect("lock").recv_timeout(MS(10_000));
            settled.expect("the first one is settled while this one blocks");
        }
        async {}
    });
    let consumer = consumer.await.expect("started");
    assert_eq!(starts.recv().await, Some(0));
    assert_eq!(starts.recv().await, Some(1));
    bench.told.wait_for("Settled {").await;
    release.send(()).expect("the handler waits");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_comes_back_after_its_delay_and_ends_with_the_dead() {
    let bench = bench();
    produce(&bench, 1).await;
    let times = Arc::new(Mutex::new(Vec::new()));
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry(Fixed::new(MS(700)).attempts(3))
        .start({
            let times = times.clone();
            move |delivery: Delivery<u64>| {
                let last = delivery.last_error().map(str::to_owned);
                times.lock().expect("lock").push((tokio::time::Instant::now(), delivery.attempt(), last));
                async move { Err::<(), _>(format!("no {}", delivery.attempt())) }
            }
        })
        .await
        .expect("started");
    bench.told.wait_for("handled: Dead").await;
    let report = consumer.shutdown().await;
    assert_eq!((report.retried, report.dead), (2, 1));
    let times = times.lock().expect("lock").clone();
    let attempts: Vec<_> = times.iter().map(|(_, attempt, last)| (*attempt, last.as_deref())).collect();
    assert_eq!(attempts, [(1, None), (2, Some("no 1")), (3, Some("no 2"))]);
    for pair in times.windows(2) {
        let after = pair[1].0 - pair[0].0;
        assert!(after >= MS(700) && after < MS(720), "{after:?}");
    }
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((&letter.reason, letter.attempts, letter.error.as_str()), (&Reason::Exhausted, 3, "no 3"));
    assert_eq!(letter.topic_partition, partition());
}

#[tokio::test(start_paused = true)]
async fn a_replayed_dead_letter_is_a_first_attempt_for_its_group_alone() {
    let bench = bench();
    produce(&bench, 3).await;
    let fixed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (seen, other) = (Seen::default(), Seen::default());
    let failing = bench.consumer(NUMBERS, "g").retry(Never).start({
        let (seen, fixed) = (seen.clone(), fixed.clone());
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            let ok = fixed.load(Ordering::Relaxed);
            async move { if ok { Outcome::Ack } else { Outcome::dead_letter("broken") } }
        }
    });
    let failing = failing.await.expect("started");
    let healthy = bench.consumer(NUMBERS, "other").start({
        let other = other.clone();
        move |delivery: Delivery<u64>| {
            note(&other, &delivery);
            async {}
        }
    });
    let healthy = healthy.await.expect("started");
    until(&seen, 3).await;
    until(&other, 3).await;
    let queue = dead(&bench, "g").await;
    for _ in 0..1_000 {
        if queue.count().await.expect("counted") == 3 {
            break;
        }
        tokio::time::sleep(MS(1)).await;
    }
    fixed.store(true, Ordering::Relaxed);
    assert_eq!(queue.replay_all().await.expect("replayed"), 3);
    until(&seen, 6).await;
    assert_eq!(queue.count().await.expect("counted"), 0);
    assert_eq!(failing.shutdown().await.acked, 3);
    assert_eq!(healthy.shutdown().await.acked, 3);
    assert_eq!(count(&other), 3, "the other group sees no retry and no replay");
    let seen = seen.lock().expect("lock").clone();
    assert_eq!(seen[3..], [(0, 1), (1, 1), (2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_attempt_and_harms_nobody_else() {
    let bench = bench();
    produce(&bench, 20).await;
    let seen = Seen::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry(Fixed::new(MS(1)).attempts(2))
        .start({
            let seen = seen.clone();
            move |delivery: Delivery<u64>| {
                note(&seen, &delivery);
                let n = delivery.payload;
                async move { assert!(n % 10 != 3, "unlucky {n}") }
            }
        })
        .await
        .expect("started");
    until(&seen, 22).await;
    for _ in 0..2 {
        bench.told.wait_for("handled: Dead").await;
    }
    eventually(|| bench.told.lines("handled: Dead") == 2, || "two dead".into()).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (18, 2, 2));
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert_eq!(letters[0].error, "handler panicked: unlucky 3");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_goes_to_the_dead_with_its_bytes() {
    let bench = bench();
    produce(&bench, 1).await;
    let field = |name: &'static str, value: &[u8]| (Bytes::from(name), Bytes::copy_from_slice(value));
    let entries = [
        vec![field("payload", b"not a number")],
        vec![field("something", b"else")],
        vec![field("payload", b"1"), field("payload", b"2")],
        vec![field("payload", &vec![b'1'; (1 << 20) + 1])],
        vec![],
    ];
    let appends = entries.clone().map(|fields| Append::new(partition(), fields));
    let appended = bench.backend.log().append(&appends).await;
    let stored = appended.iter().filter(|id| id.is_ok()).count();
    let consumer = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    eventually(|| bench.told.lines("handled: Dead") == stored, || format!("{stored} dead")).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead), (1, stored as u64));
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    let reasons: Vec<_> = letters.iter().map(|letter| (letter.reason.as_str(), letter.attempts)).collect();
    assert_eq!(reasons[0], ("undecodable", 0));
    assert!(reasons[1..].iter().all(|reason| *reason == ("malformed", 0)), "{reasons:?}");
    for (letter, entry) in letters.iter().zip(&entries) {
        assert_eq!(&letter.body, entry);
    }
    assert_eq!(letters[2].error, "field payload stands twice");
}

#[tokio::test(start_paused = true)]
async fn never_more_is_read_than_there_is_room_for() {
    let bench = bench();
    produce(&bench, 100).await;
    let running = Arc::new(AtomicUsize::new(0));
    let seen = Seen::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .prefetch(8)
        .start({
            let (running, seen) = (running.clone(), seen.clone());
            move |delivery: Delivery<u64>| {
                let (running, seen) = (running.clone(), seen.clone());
                async move {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    tokio::time::sleep(MS(5)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    note(&seen, &delivery);
                }
            }
        })
        .await
        .expect("started");
    let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
    while count(&seen) < 100 {
        let stats = bench.backend.catalog().stats(&topic, &"g".parse().expect("name")).await.expect("stats");
        assert!(stats[0].pending <= 8, "{stats:?}");
        tokio::time::sleep(MS(3)).await;
    }
    assert!(*bench.log.largest_fetch.lock().expect("lock") <= 8);
    assert_eq!(consumer.shutdown().await.acked, 100);
}

/// Times are added to the clock: the longest ones must not overflow it, and longer ones are refused.
#[tokio::test(start_paused = true)]
async fn a_lease_lasts_up_to_a_day_and_a_name_is_kept_up_to_a_month() {
    let day = Duration::from_secs(86_400);
    for (ttl, rejoin, allowed) in [
        (day, day, true),
        (day, 30 * day, true),
        (day + Duration::from_nanos(1), 30 * day, false),
        (day, 30 * day + Duration::from_nanos(1), false),
        (Duration::MAX, Duration::MAX, false),
    ] {
        let bench = bench();
        let mut config = ConsumerConfig::default();
        (config.lease_ttl, config.rejoin_timeout) = (ttl, rejoin);
        config.member_id = Some("one".parse().expect("a name"));
        let builder = bench.consumer(Topic::<u64>::new("numbers"), "g").config(config);
        match builder.start(|_: Delivery<u64>| async {}).await {
            Ok(consumer) => {
                assert!(allowed, "{ttl:?}, {rejoin:?}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                consumer.shutdown().await;
            }
            Err(error) => {
                assert!(!allowed && error.kind() == ErrorKind::InvalidConfig, "{error}");
                let named =
                    |problem: &String| problem.contains("lease_ttl") || problem.contains("rejoin_timeout");
                assert!(error.problems().iter().all(named), "{error}");
            }
        }
    }
}

/// The reader would send one request after the other, and time would not pass.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_a_busy_loop_is_refused() {
    for (wait, allowed) in
        [(Duration::ZERO, false), (Duration::from_nanos(1), false), (MS(9), false), (MS(10), true)]
    {
        let bench = bench();
        let mut config = ConsumerConfig::default();
        config.max_wait = wait;
        let started = bench.consumer(Topic::<u64>::new("numbers"), "g").config(config);
        match started.start(|_: Delivery<u64>| async {}).await {
            Ok(consumer) => {
                assert!(allowed, "{wait:?}");
                tokio::time::sleep(MS(100)).await;
                consumer.shutdown().await;
            }
            Err(error) => assert!(!allowed && error.to_string().contains("max_wait"), "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_wrong_is_said_at_once() {
    let bench = bench();
    let error = bench
        .consumer(Topic::<u64>::new("bad name").partitions(0), "bad:group")
        .lease_ttl(MS(1))
        .prefetch(0)
        .label("a\nb")
        .upkeep(millstream_delay::Promoter::new(
            &bench.backend,
            millstream_delay::PromoterConfig::default().with_limit(0),
        ))
        .start(|_: Delivery<u64>| async {})
        .await
        .expect_err("invalid");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(error.problems().len(), 7, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_group_can_start_with_what_comes_next() {
    let bench = bench();
    produce(&bench, 5).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "late").start_from(Start::Latest).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    let producer = bench.producer(NUMBERS).await;
    producer.send(&99).await.expect("sent");
    until(&seen, 1).await;
    consumer.shutdown().await;
    assert_eq!(*seen.lock().expect("lock"), [(99, 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_span_that_a_message_was_sent_in_is_told_on_every_attempt() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let traced = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    producer.send(&1).header("traceparent", traced).header("tracestate", "a=1").await.expect("sent");
    producer.send(&2).await.expect("sent");
    producer.send(&3).header("traceparent", "nonsense").await.expect("sent");
    let traces = Arc::new(Mutex::new(Vec::new()));
    let told = traces.clone();
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(10)).attempts(2));
    let consumer = consumer.start(move |delivery: Delivery<u64>| {
        let trace = delivery.trace().map(|sent| (sent.to_string(), sent.state));
        told.lock().expect("lock").push((delivery.payload, delivery.attempt(), trace));
        let again = delivery.attempt() == 1 && delivery.payload == 1;
        async move { if again { Outcome::retry("once") } else { Outcome::Ack } }
    });
    let consumer = consumer.await.expect("started");
    while traces.lock().expect("lock").len() < 4 {
        tokio::time::sleep(MS(1)).await;
    }
    consumer.shutdown().await;
    let mut traces = traces.lock().expect("lock").clone();
    traces.sort();
    let sent = Some((traced.to_owned(), "a=1".to_owned()));
    assert_eq!(traces, [(1, 1, sent.clone()), (1, 2, sent), (2, 1, None), (3, 1, None)]);
}

/// Nobody else may come by for long, and new groups would get what was handled.
#[tokio::test(start_paused = true)]
async fn what_was_settled_last_is_dropped_before_a_partition_is_given_back() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let bench = bench();
        let mut builder = bench.consumer(NUMBERS, "g").sharing(sharing);
        if sharing == Sharing::Shared {
            builder = builder.concurrency(Concurrency::Unordered(2));
        }
        let consumer = builder.start(|_: Delivery<u64>| async {}).await.expect("started");
        let topic = bench.backend.catalog().topic(&partition().topic).await.expect("a topic");
        let stats = async || {
            let group = "g".parse().expect("name");
            bench.backend.catalog().stats(&topic, &group).await.expect("stats").remove(0)
        };
        bench.told.wait_for("Assigned").await;
        // It trims when it begins, and then not for a while.
        tokio::time::sleep(MS(10)).await;
        let started = tokio::time::Instant::now();
        produce(&bench, 10).await;
        while stats().await.lag != Some(0) || stats().await.pending > 0 {
            tokio::time::sleep(MS(1)).await;
        }
        assert!(started.elapsed() < MS(200), "no sooner than anybody trims");
        assert_eq!(stats().await.length, 10, "{sharing:?}: trimmed already");
        consumer.shutdown().await;
        assert_eq!(stats().await.length, 0, "{sharing:?}: what is settled stays");
    }
}
