//! Several handlers of one partition at once: which, how many, and how they end.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::support::scenario::*;
use crate::support::*;
use millstream_core::policy::{Decision, Failure, FailureKind, Fixed};
use millstream_core::{Resource, RetryPolicy, Topic};
use millstream_runtime::{Concurrency, Delivery};

const SECOND: Duration = Duration::from_secs(1);

fn keyed(keys: u64, count: u64) -> Vec<(String, u64)> {
    (0..count).map(|n| (format!("k{}", n % keys), n)).collect()
}

async fn send_keyed(bench: &Bench, keys: u64, count: u64) {
    let messages = keyed(keys, count);
    let messages: Vec<_> = messages.iter().map(|(key, n)| (key.as_str(), *n)).collect();
    send(bench, &messages).await;
}

#[tokio::test(start_paused = true)]
async fn keys_run_side_by_side_and_each_in_its_order() {
    let bench = bench();
    send_keyed(&bench, 10, 300).await;
    let course = Scenario::default();
    let consumer = bench.consumer(NUMBERS, "g").concurrency(Concurrency::PerKey(8)).prefetch(64).start({
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            let running = course.begin(&delivery);
            async move {
                tokio::time::sleep(MS(fastrand::u64(1..20))).await;
                drop(running);
            }
        }
    });
    let consumer = consumer.await.expect("started");
    eventually(|| consumer.report().acked == 300, || format!("{:?}", consumer.report())).await;
    for (key, calls) in course.by_key() {
        assert!(calls.is_sorted() && calls.len() == 30, "{key}: {calls:?}");
        assert_eq!(course.at_once(|call| call.key.as_deref() == Some(&key)), 1);
    }
    assert_eq!(course.at_once(|_| true), 8);
    assert_eq!(consumer.shutdown().await.handed_back, 0);
}

#[tokio::test(start_paused = true)]
async fn without_order_or_without_keys_as_many_run_as_may() {
    for concurrency in [Concurrency::Unordered(16), Concurrency::PerKey(16)] {
        let bench = bench();
        let key = if concurrency == Concurrency::Unordered(16) { "same" } else { "" };
        send(&bench, &(0..200).map(|n| (key, n)).collect::<Vec<_>>()).await;
        let course = Scenario::default();
        let consumer = bench.consumer(NUMBERS, "g").concurrency(concurrency).start({
            let course = course.clone();
            move |delivery: Delivery<u64>| {
                let running = course.begin(&delivery);
                async move {
                    tokio::time::sleep(MS(10)).await;
                    drop(running);
                }
            }
        });
        let consumer = consumer.await.expect("started");
        let started = tokio::time::Instant::now();
        eventually(|| consumer.report().acked == 200, || "all".into()).await;
        assert_eq!(course.at_once(|_| true), 16);
        assert!(started.elapsed() <= MS(200), "13 rounds of 10 ms, not {:?}", started.elapsed());
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_over_all_partitions_is_kept_and_they_take_turns() {
    let bench = bench();
    let topic: Topic<u64> = Topic::new("numbers").partitions(3);
    let producer = bench.producer(topic.clone()).await;
    let values: Vec<u64> = (0..300).collect();
    let records = values.iter().map(|n| millstream_runtime::Record::new(n).partition((n % 3) as u32));
    assert!(producer.send_all(records).await.iter().all(Result::is_ok));
    let course = Scenario::default();
    let consumer =
        bench.consumer(topic, "g").concurrency(Concurrency::Unordered(10)).max_handlers(4).start({
            let course = course.clone();
            move |delivery: Delivery<u64>| {
                let running = course.begin(&delivery);
                async move {
                    tokio::time::sleep(MS(10)).await;
                    drop(running);
                }
            }
        });
    let consumer = consumer.await.expect("started");
    eventually(|| consumer.report().acked == 300, || "all".into()).await;
    assert_eq!(course.at_once(|_| true), 4);
    // From when all three had begun up to when the first was done with.
    let calls = course.calls();
    let turns: String = calls.iter().map(|call| call.partition.to_string()).collect();
    for window in calls[30..230].windows(12) {
        for partition in 0..3 {
            let of = window.iter().filter(|call| call.partition == partition).count();
            assert!((2..=6).contains(&of), "{of} of 12 for {partition} in {turns}");
        }
    }
    consumer.shutdown().await;
}

/// The partition that is released waits for a permit at that time, and for its slow handler for long after.
#[tokio::test(start_paused = true)]
async fn a_partition_that_is_released_takes_no_permit_from_the_others() {
    let bench = bench();
    let topic: Topic<u64> = Topic::new("numbers").partitions(2);
    let producer = bench.producer(topic.clone()).await;
    let course = Scenario::default();
    let builder = bench.consumer(topic.clone(), "g").concurrency(Concurrency::Unordered(2)).max_handlers(2);
    let consumer = builder.shutdown_timeout(500 * SECOND).start({
        let course = course.clone();
        move |delivery: Delivery<u64>| {
            let running = course.begin(&delivery);
            async move {
                tokio::time::sleep(delivery.payload as u32 * SECOND).await;
                drop(running);
            }
        }
    });
    let consumer = consumer.await.expect("started");
    // Both permits are taken, and another message of the first partition waits for one.
    for (takes, partition) in [(300, 0), (20, 1), (1, 0)] {
        producer.send(&takes).partition(partition).await.expect("sent");
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(course.calls().len(), 2);
    let other = bench.consumer(topic, "g").pin([0]).start(|_: Delivery<u64>| async {});
    let other = tokio::spawn(async move { other.await.expect("started") });
    tokio::time::sleep(5 * SECOND).await;
    for _ in 0..5 {
        producer.send(&2).partition(1).await.expect("sent");
    }
    let started = tokio::time::Instant::now();
    eventually(|| consumer.report().acked >= 6, || format!("{:?}", course.calls())).await;
    assert!(
        started.elapsed() < 60 * SECOND,
        "long before the slow handler has ended: {:?}",
        started.elapsed()
    );
    other.await.expect("no panic").shutdown().await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn at_the_end_those_that_run_may_end_and_are_given_up_after_the_timeout() {
    let bench = bench();
    send_keyed(&bench, 20, 20).await;
    let course = Scenario::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .concurrency(Concurrency::PerKey(4))
        .shutdown_timeout(5 * SECOND)
        .start({
            let course = course.clone();
            move |delivery: Delivery<u64>| {
                let running = course.begin(&delivery);
                async move {
                    let takes = if delivery.payload == 0 { 1_000_000 } else { 2 };
                    tokio::time::sleep(takes * SECOND).await;
                    drop(running);
                }
            }
        })
        .await
        .expect("started");
    course.until(4).await;
    let started = tokio::time::Instant::now();
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (3, 17), "three ended in time");
    assert!(started.elapsed() < 6 * SECOND, "{:?}", started.elapsed());
    assert_eq!(course.count(), 4, "and no other began");
    eventually(|| course.calls()[0].ended.is_some(), || "dropped".into()).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_lease_nothing_begins_and_those_that_run_are_told() {
    let bench = bench();
    send_keyed(&bench, 20, 20).await;
    let (course, told) = (Scenario::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let (link, first) = linked(&bench, NUMBERS);
    let first = first.concurrency(Concurrency::PerKey(4)).shutdown_timeout(MS(100)).start({
        let (course, told) = (course.clone(), told.clone());
        move |delivery: Delivery<u64>| {
            let (running, told) = (course.begin(&delivery), told.clone());
            async move {
                assert!(!delivery.is_cancelled());
                delivery.cancelled().await;
                assert!(delivery.is_cancelled());
                told.lock().expect("lock").insert(delivery.payload);
                drop(running);
            }
        }
    });
    let first = first.await.expect("started");
    course.until(4).await;
    let began = tokio::time::Instant::now();
    link.cut();
    eventually(|| told.lock().expect("lock").len() == 4, || "all are told".into()).await;
    assert!(began.elapsed() <= 8 * SECOND, "before anybody else can have it: {:?}", began.elapsed());
    let seen = Seen::default();
    let second = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let second = second.await.expect("started");
    until(&seen, 20).await;
    assert_eq!(course.count(), 4);
    assert_eq!(second.shutdown().await.acked, 20, "what they said came too late");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_that_cost_nothing_handlers_that_begin_are_not_told_of_it() {
    let bench = bench();
    send_keyed(&bench, 2, 2).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let (link, builder) = linked(&bench, NUMBERS);
    let consumer = builder.lease_ttl(3 * SECOND).start({
        let told = told.clone();
        move |delivery: Delivery<u64>| {
            let told = told.clone();
            async move {
                let began_so = delivery.is_cancelled();
                tokio::time::sleep(4 * SECOND).await;
                told.lock().expect("lock").push((delivery.payload, began_so, delivery.is_cancelled()));
            }
        }
    });
    let consumer = consumer.await.expect("started");
    tokio::time::sleep(MS(10)).await;
    // For longer than the lease can be relied on; but nobody else wants it.
    link.lose_renewals.store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
    tokio::time::sleep(MS(3_500)).await;
    link.lose_renewals.store(0, std::sync::atomic::Ordering::Relaxed);
    eventually(|| consumer.report().acked == 2, || format!("{:?}", told.lock().expect("lock"))).await;
    assert_eq!(*told.lock().expect("lock"), [(0, false, true), (1, false, false)]);
    consumer.shutdown().await;
    assert_eq!(stats(&bench).await.pending, 0, "it was ours all the time");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_is_dropped_and_has_failed() {
    #[derive(Debug)]
    struct Once(Arc<Mutex<Vec<FailureKind>>>);
    impl RetryPolicy for Once {
        fn decide(&self, failure: &Failure<'_>) -> Decision {
            self.0.lock().expect("lock").push(failure.kind);
            if failure.attempt > 1 { Decision::GiveUp } else { Decision::RetryAfter(MS(10)) }
        }
    }
    for concurrency in [Concurrency::Serial, Concurrency::Unordered(4)] {
        let bench = bench();
        send_keyed(&bench, 4, 4).await;
        let (course, kinds) = (Scenario::default(), Arc::new(Mutex::new(Vec::new())));
        let consumer = bench
            .consumer(NUMBERS, "g")
            .concurrency(concurrency)
            .retry(Once(kinds.clone()))
            .handler_timeout(SECOND)
            .start({
                let course = course.clone();
                move |delivery: Delivery<u64>| {
                    let running = course.begin(&delivery);
                    async move {
                        tokio::time::sleep(if delivery.payload == 2 { 60 * SECOND } else { MS(900) }).await;
                        drop(running);
                    }
                }
            })
            .await
            .expect("started");
        bench.told.wait_for("handled: Dead").await;
        let report = consumer.shutdown().await;
        assert_eq!((report.acked, report.retried, report.dead), (3, 1, 1));
        assert_eq!(*kinds.lock().expect("lock"), [FailureKind::Timeout; 2]);
        for call in course.calls().iter().filter(|call| call.value == 2) {
            assert_eq!(call.ended.expect("dropped") - call.began, SECOND);
        }
        let letters = dead(&bench, "g").await.list(10).await.expect("listed");
        assert_eq!(letters[0].error, "handler timed out after 1s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_beside_others_is_a_failed_attempt_of_its_message_alone() {
    let bench = bench();
    send_keyed(&bench, 50, 50).await;
    let consumer = bench
        .consumer(NUMBERS, "g")
        .concurrency(Concurrency::PerKey(8))
        .retry(Fixed::new(MS(1)).attempts(2))
        .start(|delivery: Delivery<u64>| async move { assert!(delivery.payload % 10 != 3, "unlucky") })
        .await
        .expect("started");
    eventually(|| consumer.report().dead == 5, || format!("{:?}", consumer.report())).await;
    eventually(|| consumer.report().acked == 45, || format!("{:?}", consumer.report())).await;
    assert_eq!(consumer.shutdown().await.retried, 5);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_does_not_stop_the_partition() {
    #[derive(Debug)]
    struct Broken(Mutex<u32>);
    impl RetryPolicy for Broken {
        fn decide(&self, _: &Failure<'_>) -> Decision {
            let mut calls = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *calls += 1;
            assert!(*calls > 2, "broken");
            Decision::RetryAfter(MS(1))
        }
    }
    let bench = bench();
    send_keyed(&bench, 1, 3).await;
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry(Broken(Mutex::new(0)))
        .start(|delivery: Delivery<u64>| async move {
            if delivery.attempt() == 1 && delivery.payload == 1 { Err("no") } else { Ok(()) }
        })
        .await
        .expect("started");
    eventually(|| consumer.report().acked >= 3, || format!("{:?}", consumer.report())).await;
    consumer.shutdown().await;
    assert_eq!(stats(&bench).await.pending, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn handlers_of_one_partition_use_several_threads() {
    let bench = bench();
    send_keyed(&bench, 3, 3).await;
    // Only together can they pass.
    let barrier = Arc::new(Barrier::new(3));
    let consumer = bench.consumer(NUMBERS, "g").concurrency(Concurrency::PerKey(3)).start({
        move |_: Delivery<u64>| {
            let barrier = barrier.clone();
            async move {
                barrier.wait();
            }
        }
    });
    let consumer = consumer.await.expect("started");
    eventually(|| consumer.report().acked == 3, || "all three".into()).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_go_together_is_said() {
    use millstream_runtime::RetryOrder;
    let bench = bench();
    let builder = bench
        .consumer(NUMBERS, "g")
        .concurrency(Concurrency::Unordered(0))
        .retry_order(RetryOrder::BlockKey)
        .max_handlers(0)
        .max_blocked(0)
        .handler_timeout(Duration::ZERO)
        .crash_limit(1);
    let error = builder.start_batch((0, MS(1)), |_| async {}).await.expect_err("invalid");
    assert_eq!(error.problems().len(), 7, "{error}");
    let resource = Resource::partition(partition(), "g".parse().expect("name"));
    assert!(bench.backend.leases().holder(&resource).await.expect("holder").is_none());
}

/// As the guide says: a topic for urgent work with a consumer of its own.
#[tokio::test(start_paused = true)]
async fn urgent_messages_with_a_consumer_of_their_own_wait_for_no_ordinary_one() {
    let bench = bench();
    produce(&bench, 200).await;
    let stuck = Arc::new(tokio::sync::Semaphore::new(0));
    let holds = stuck.clone();
    let ordinary = bench.consumer(NUMBERS, "g").max_handlers(1).start(move |_: Delivery<u64>| {
        let holds = holds.clone();
        async move { holds.acquire().await.expect("open").forget() }
    });
    let ordinary = ordinary.await.expect("started");
    const URGENT: Topic<u64> = Topic::new("urgent").partitions(1);
    let seen = Seen::default();
    let noted = seen.clone();
    let urgent = bench.consumer(URGENT, "g").max_handlers(1).start(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async {}
    });
    let urgent = urgent.await.expect("started");
    let producer = bench.producer(URGENT).await;
    for number in 0..50 {
        producer.send(&number).await.expect("sent");
    }
    urgent.wait_idle().await.expect("idle");
    assert_eq!((count(&seen), ordinary.report().acked), (50, 0));
    urgent.shutdown().await;
    stuck.add_permits(200);
    ordinary.wait_idle().await.expect("idle");
    ordinary.shutdown().await;
}
