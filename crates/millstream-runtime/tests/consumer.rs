//! The consumer: one message's life, and what may go wrong in it.
#![allow(missing_docs)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::catalog::Start;
use millstream_core::log::Append;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{ErrorKind, MessageId, Outcome, Reason, Topic, TopicPartition};
use millstream_runtime::{DeadLetterQueue, Delivery, Record};
use support::{Bench, MS, bench, eventually};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);

type Seen = Arc<Mutex<Vec<(u64, u32)>>>;

async fn produce(bench: &Bench, count: u64) -> Vec<MessageId> {
    let producer = bench.producer(NUMBERS).await;
    let values: Vec<u64> = (0..count).collect();
    let sent = producer.send_all(values.iter().map(|n| Record::new(n).key(n.to_le_bytes()))).await;
    sent.into_iter().map(|sent| sent.expect("sent").id).collect()
}

fn note(seen: &Seen, delivery: &Delivery<u64>) {
    seen.lock().expect("lock").push((**delivery, delivery.attempt()));
}

fn count(seen: &Seen) -> usize {
    seen.lock().expect("lock").len()
}

async fn until(seen: &Seen, n: usize) {
    eventually(|| count(seen) >= n, || format!("{n} seen, of {:?}", seen.lock().expect("lock"))).await;
}

async fn dead(bench: &Bench, group: &str) -> DeadLetterQueue {
    let topic = bench.backend.catalog.topic(&"numbers".parse().expect("name")).await.expect("a topic");
    DeadLetterQueue::new(bench.backend.clone(), topic, group.parse().expect("name"))
}

fn partition() -> TopicPartition {
    TopicPartition::new("numbers".parse().expect("name"), 0)
}

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
    let topic = bench.backend.catalog.topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let stats = bench.backend.catalog.stats(&topic, &"g".parse().expect("name")).await.expect("stats");
    assert_eq!((stats[0].pending, stats[0].lag, stats[0].dead), (0, Some(0), 0));
    assert!(stats[0].length < 1_000, "consumed entries are dropped");
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
                let n = *delivery;
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
    let appends = entries.clone().map(|fields| Append { topic_partition: partition(), fields });
    let appended = bench.backend.log.append(&appends).await;
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
    let topic = bench.backend.catalog.topic(&"numbers".parse().expect("name")).await.expect("a topic");
    while count(&seen) < 100 {
        let stats = bench.backend.catalog.stats(&topic, &"g".parse().expect("name")).await.expect("stats");
        assert!(stats[0].pending <= 8, "{stats:?}");
        tokio::time::sleep(MS(3)).await;
    }
    assert!(*bench.log.largest_fetch.lock().expect("lock") <= 8);
    assert_eq!(consumer.shutdown().await.acked, 100);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_server_end_nothing_and_use_no_attempt() {
    let bench = bench();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unconfirmed, ErrorKind::Denied, ErrorKind::Protocol];
    bench.log.fetch_failures.lock().expect("lock").extend(kinds);
    bench.log.settle_failures.lock().expect("lock").extend(kinds);
    *bench.log.lose_settle_replies.lock().expect("lock") = 2;
    produce(&bench, 50).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 50).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (50, 0));
    let want: Vec<_> = (0..50).map(|n| (n, 1)).collect();
    assert_eq!(*seen.lock().expect("lock"), want, "each once, as a first attempt, in order");
    for operation in ["fetch", "settle"] {
        assert!(bench.told.lines(&format!("Failing {{ operation: \"{operation}\"")) >= 3, "{operation}");
        assert!(bench.told.lines(&format!("Recovered {{ operation: \"{operation}\"")) >= 1, "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_stored_is_kept_and_does_not_hold_up_the_others() {
    let bench = bench();
    *bench.log.dead_letters_fail.lock().expect("lock") = Some(ErrorKind::WrongType);
    produce(&bench, 10).await;
    let seen = Seen::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .start({
            let seen = seen.clone();
            move |delivery: Delivery<u64>| {
                note(&seen, &delivery);
                let n = *delivery;
                async move { if n == 4 { Outcome::dead_letter("bad") } else { Outcome::Ack } }
            }
        })
        .await
        .expect("started");
    until(&seen, 10).await;
    let topic = bench.backend.catalog.topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let group = "g".parse().expect("name");
    loop {
        let stats = bench.backend.catalog.stats(&topic, &group).await.expect("stats");
        if stats[0].pending == 1 {
            break;
        }
        tokio::time::sleep(MS(10)).await;
    }
    *bench.log.dead_letters_fail.lock().expect("lock") = None;
    bench.told.wait_for("Recovered { operation: \"settle\"").await;
    consumer.shutdown().await;
    assert_eq!(dead(&bench, "g").await.count().await.expect("counted"), 1);
    assert_eq!(count(&seen), 10);
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_a_handler_end_and_hands_back_the_rest() {
    let bench = bench();
    produce(&bench, 10).await;
    let seen = Seen::default();
    let slow = |seen: &Seen| {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            let seen = seen.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                note(&seen, &delivery);
            }
        }
    };
    let first = bench.consumer(NUMBERS, "g").start(slow(&seen)).await.expect("started");
    until(&seen, 2).await;
    let started = tokio::time::Instant::now();
    let report = first.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (3, 7), "the one that had started ended");
    assert!(started.elapsed() <= Duration::from_secs(6), "and nothing else was waited for");
    let second = bench.consumer(NUMBERS, "g").start(slow(&seen)).await.expect("started");
    until(&seen, 10).await;
    assert_eq!(second.shutdown().await.acked, 7);
    let want: Vec<_> = (0..10).map(|n| (n, 1)).collect();
    assert_eq!(*seen.lock().expect("lock"), want);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_end_is_given_up_after_the_timeout() {
    let bench = bench();
    produce(&bench, 1).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").shutdown_timeout(Duration::from_secs(3)).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            std::future::pending::<()>()
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 1).await;
    let started = tokio::time::Instant::now();
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (0, 1));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(bench.told.lines("Revoked"), 1, "the partition is given back all the same");
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_stands_by_and_takes_over_when_the_first_stops_renewing() {
    let bench = bench();
    produce(&bench, 5).await;
    let seen = Seen::default();
    let (first, second) = (Seen::default(), seen.clone());
    let stuck = bench.consumer(NUMBERS, "g").start({
        let first = first.clone();
        move |delivery: Delivery<u64>| {
            note(&first, &delivery);
            std::future::pending::<()>()
        }
    });
    let stuck = stuck.await.expect("started");
    until(&first, 1).await;
    let standby = bench.consumer(NUMBERS, "g").start(move |delivery: Delivery<u64>| {
        note(&second, &delivery);
        async {}
    });
    let standby = standby.await.expect("started");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(count(&seen), 0, "a slow handler is not a dead one");
    let resource = millstream_core::Resource::partition(partition(), "g".parse().expect("name"));
    bench.memory.operator().expire_lease(&resource);
    until(&seen, 5).await;
    bench.told.wait_for("LeaseLost").await;
    assert_eq!(standby.shutdown().await.acked, 5);
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_destroyed_group_is_restored_where_it_was_and_told() {
    let bench = bench();
    produce(&bench, 10).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 10).await;
    bench.told.wait_for("Settled").await;
    eventually(|| bench.told.all().iter().filter(|l| l.contains("Settled")).count() > 0, String::new).await;
    tokio::time::sleep(MS(100)).await;
    bench.memory.operator().destroy_group(&partition(), &"g".parse().expect("name"));
    bench.told.wait_for("GroupRestored").await;
    produce(&bench, 10).await;
    until(&seen, 20).await;
    assert_eq!(consumer.shutdown().await.acked, 20, "nothing twice");
    bench.memory.operator().delete_log(&partition());
    let consumer = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    produce(&bench, 3).await;
    eventually(|| consumer.report().acked == 3, || "three more".into()).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_pending_entries_are_told_and_leave_the_list() {
    let bench = bench();
    let ids = produce(&bench, 3).await;
    let seen = Seen::default();
    let stuck = bench.consumer(NUMBERS, "g").shutdown_timeout(MS(10)).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            std::future::pending::<()>()
        }
    });
    let stuck = stuck.await.expect("started");
    until(&seen, 1).await;
    assert_eq!(stuck.shutdown().await.handed_back, 3);
    let topic = bench.backend.catalog.topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let group = "g".parse().expect("name");
    for id in &ids[..2] {
        assert!(bench.memory.operator().delete_entry(&partition(), *id));
    }
    let rest = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    bench.told.wait_for("Ghosts").await;
    eventually(|| rest.report().acked == 1, || "one is left".into()).await;
    rest.shutdown().await;
    let stats = bench.backend.catalog.stats(&topic, &group).await.expect("stats");
    assert_eq!(stats[0].pending, 0);
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
            bench.backend.schedule.clone(),
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
