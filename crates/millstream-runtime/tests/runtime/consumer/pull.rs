//! Pulling: messages that one asks for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::scenario::*;
use crate::support::*;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{ErrorKind, Reason, Resource};
use millstream_runtime::{Concurrency, RetryOrder};

const SECOND: Duration = Duration::from_secs(1);

async fn numbers(bench: &Bench, values: std::ops::Range<u64>) {
    send(bench, &values.map(|n| ("a", n)).collect::<Vec<_>>()).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_is_settled_as_its_holder_says() {
    let bench = bench();
    numbers(&bench, 0..5).await;
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(SECOND).attempts(2));
    let puller = consumer.retry_order(RetryOrder::BlockPartition).pull().await.expect("started");
    let mut seen = Vec::new();
    for _ in 0..8 {
        let number = puller.next().await.expect("a message");
        seen.push((number.payload, number.attempt(), number.last_error().map(str::to_owned)));
        match (number.payload, number.attempt()) {
            (1, 1) => number.retry("busy"),
            (2, 1) => number.retry_after(5 * SECOND, "later"),
            (3, _) => number.dead_letter("never"),
            (4, 1) => drop(number),
            _ => number.ack(),
        }
    }
    let last = |error: &str| Some(error.to_owned());
    let expected = [
        (0, 1, None),
        (1, 1, None),
        (1, 2, last("busy")),
        (2, 1, None),
        (2, 2, last("later")),
        (3, 1, None),
        (4, 1, None),
        (4, 2, last("dropped without an outcome")),
    ];
    assert_eq!(seen, expected);
    eventually(|| puller.report().acked == 4, || format!("{:?}", puller.report())).await;
    let report = puller.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead, report.handed_back), (4, 3, 1, 0));
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert_eq!((&letters[0].reason, letters[0].error.as_str()), (&Reason::Rejected, "never"));
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_there_is_nothing_more_and_what_was_not_pulled_is_handed_back() {
    let bench = bench();
    numbers(&bench, 0..10).await;
    let puller = bench.consumer(NUMBERS, "g").concurrency(Concurrency::Unordered(4)).pull().await;
    let puller = Arc::new(puller.expect("started"));
    let held = puller.next().await.expect("a message");
    tokio::time::sleep(MS(100)).await;
    let waiting = tokio::spawn({
        let puller = puller.clone();
        async move {
            let second = puller.next().await.expect("offered");
            second.ack();
            // Asks for as long as there is something.
            while let Some(next) = puller.next().await {
                assert!(next.payload < 5, "no more than four at once");
                std::mem::forget(next);
            }
        }
    });
    tokio::time::sleep(MS(1)).await;
    puller.stop();
    waiting.await.expect("it ends");
    assert!(puller.next().await.is_none());
    held.ack();
    let puller = Arc::into_inner(puller).expect("nobody else has it");
    let started = tokio::time::Instant::now();
    let report = tokio::time::timeout(120 * SECOND, puller.shutdown()).await.expect("it ends");
    assert!(started.elapsed() <= 31 * SECOND);
    assert_eq!(report.acked, 2, "{report:?}");
    assert_eq!((report.retried, report.handed_back), (0, 8), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_asking_keeps_no_shutdown_waiting() {
    let bench = bench();
    numbers(&bench, 0..10).await;
    let puller = bench.consumer(NUMBERS, "g").pull().await.expect("started");
    tokio::time::sleep(SECOND).await;
    let started = tokio::time::Instant::now();
    let report = puller.shutdown().await;
    assert_eq!((report.acked, report.retried, report.handed_back), (0, 0, 10));
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    let puller = bench.consumer(NUMBERS, "g").pull().await.expect("started");
    drop(puller);
    let next = bench.consumer(NUMBERS, "g").pull().await.expect("started");
    assert_eq!(next.next().await.expect("the first one").payload, 0);
}

#[tokio::test(start_paused = true)]
async fn several_tasks_share_the_work_in_the_order_of_keys() {
    let bench = bench();
    send(&bench, &(0..100).map(|n| (["a", "b", "c", "d"][n as usize % 4], n)).collect::<Vec<_>>()).await;
    let puller = bench.consumer(NUMBERS, "g").concurrency(Concurrency::PerKey(8)).pull().await;
    let (puller, course) = (Arc::new(puller.expect("started")), Scenario::default());
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (puller, course) = (puller.clone(), course.clone());
            tokio::spawn(async move {
                while let Some(number) = puller.next().await {
                    let running = course.begin(&number);
                    tokio::time::sleep(MS(5)).await;
                    drop(running);
                    number.ack();
                }
            })
        })
        .collect();
    eventually(|| puller.report().acked == 100, || format!("{:?}", puller.report())).await;
    puller.stop();
    for task in tasks {
        task.await.expect("it ends");
    }
    assert_eq!(course.at_once(|_| true), 3);
    let values: BTreeSet<_> = course.calls().iter().map(|call| call.value).collect();
    assert_eq!((values.len(), course.count()), (100, 100));
    for (key, calls) in course.by_key() {
        assert!(calls.is_sorted(), "{key}: {calls:?}");
    }
    Arc::into_inner(puller).expect("nobody else has it").shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn extending_tells_whether_it_is_still_ours() {
    let bench = bench();
    numbers(&bench, 0..2).await;
    let (link, builder) = linked(&bench, NUMBERS);
    let puller = builder.lease_ttl(2 * SECOND).shutdown_timeout(MS(10)).pull().await.expect("started");
    let number = puller.next().await.expect("a message");
    assert!(!number.is_cancelled());
    number.extend().await.expect("ours");
    let resource = Resource::partition(partition(), "g".parse().expect("name"));
    bench.memory.operator().expire_lease(&resource);
    bench
        .backend
        .leases()
        .acquire(&resource, "other", "n", 60 * SECOND, &millstream_core::Continuity::assured())
        .await
        .expect("taken");
    assert_eq!(number.extend().await.expect_err("lost").kind(), ErrorKind::Fenced);
    assert!(number.is_cancelled());
    number.cancelled().await;
    number.ack();
    link.cut();
    let report = puller.shutdown().await;
    assert_eq!(stats(&bench).await.pending, 2, "it came too late: {report:?}");
}

#[tokio::test(start_paused = true)]
async fn the_timeout_counts_from_the_pull() {
    let bench = bench();
    numbers(&bench, 0..2).await;
    let puller =
        bench.consumer(NUMBERS, "g").handler_timeout(SECOND).retry(Never).pull().await.expect("started");
    tokio::time::sleep(10 * SECOND).await;
    let in_time = puller.next().await.expect("a message");
    tokio::time::sleep(MS(900)).await;
    in_time.ack();
    let too_late = puller.next().await.expect("a message");
    tokio::time::sleep(MS(1_100)).await;
    too_late.ack();
    eventually(|| puller.report().dead == 1, || format!("{:?}", puller.report())).await;
    assert_eq!(puller.shutdown().await.acked, 1);
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert_eq!(letters[0].error, "handler timed out after 1s");
}
