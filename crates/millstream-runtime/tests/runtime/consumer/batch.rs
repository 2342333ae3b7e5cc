//! Batch handlers: what comes together, what is said of it, and what the order rules make of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scenario::*;
use crate::support::*;
use bytes::Bytes;
use millstream_core::log::Append;
use millstream_core::policy::{ByError, Fixed, Never};
use millstream_core::{Outcome, Reason};
use millstream_runtime::{Batch, Concurrency, RetryOrder};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

type Batches = Arc<Mutex<Vec<Vec<(u64, u32)>>>>;

fn remember(batches: &Batches, batch: &Batch<u64>) {
    let values = batch.iter().map(|delivery| (delivery.payload, delivery.attempt())).collect();
    batches.lock().expect("lock").push(values);
}

fn seen(batches: &Batches) -> Vec<Vec<(u64, u32)>> {
    batches.lock().expect("lock").clone()
}

fn first(values: impl IntoIterator<Item = u64>) -> Vec<(u64, u32)> {
    values.into_iter().map(|n| (n, 1)).collect()
}

async fn numbers(bench: &Bench, values: std::ops::Range<u64>) {
    send(bench, &values.map(|n| ("", n)).collect::<Vec<_>>()).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_full_or_has_waited_long_enough() {
    let bench = bench();
    numbers(&bench, 0..25).await;
    let (batches, times) = (Batches::default(), Arc::new(Mutex::new(Vec::new())));
    let consumer = bench.consumer(NUMBERS, "g").start_batch((10, SECOND), {
        let (batches, times) = (batches.clone(), times.clone());
        move |batch: Batch<u64>| {
            remember(&batches, &batch);
            times.lock().expect("lock").push(Instant::now());
            async {}
        }
    });
    let started = Instant::now();
    let consumer = consumer.await.expect("started");
    eventually(|| consumer.report().acked == 20, || "two full ones".into()).await;
    assert!(started.elapsed() < MS(100), "full ones wait for nothing");
    tokio::time::sleep(MS(500)).await;
    numbers(&bench, 25..28).await;
    eventually(|| consumer.report().acked == 28, || "all".into()).await;
    assert_eq!(seen(&batches), [first(0..10), first(10..20), first(20..28)]);
    let last = times.lock().expect("lock")[2] - started;
    assert!((SECOND..SECOND + MS(50)).contains(&last), "counted from its first message: {last:?}");
    numbers(&bench, 28..30).await;
    tokio::time::sleep(MS(100)).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (28, 2), "what is not full yet is not begun");
}

#[tokio::test(start_paused = true)]
async fn one_outcome_goes_for_all_and_policies_see_the_handlers_own_error() {
    let bench = bench();
    numbers(&bench, 0..6).await;
    let batches = Batches::default();
    let policy = ByError::otherwise(Fixed::new(MS(10)).attempts(2)).on::<std::num::ParseIntError>(Never);
    let consumer = bench.consumer(NUMBERS, "g").retry(policy).start_batch((3, MS(50)), {
        let batches = batches.clone();
        move |batch: Batch<u64>| {
            remember(&batches, &batch);
            let said = match batch[0].payload {
                0 => "x".parse::<u64>().map(drop).map_err(millstream_core::BoxError::from),
                _ if batch[0].attempt() == 1 => Err("busy".into()),
                _ => Ok(()),
            };
            async { said }
        }
    });
    let consumer = consumer.await.expect("started");
    eventually(|| consumer.report().acked == 3, || format!("{:?}", seen(&batches))).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.dead, report.retried), (3, 3));
    assert_eq!(seen(&batches), [first(0..3), first(3..6), vec![(3, 2), (4, 2), (5, 2)]]);
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    assert!(letters.iter().all(|letter| letter.reason == Reason::Exhausted && letter.attempts == 1));
}

#[tokio::test(start_paused = true)]
async fn each_can_have_its_own_outcome_and_a_wrong_number_fails_all() {
    let bench = bench();
    numbers(&bench, 0..8).await;
    let batches = Batches::default();
    let consumer =
        bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(10)).attempts(2)).start_batch((4, MS(50)), {
            let batches = batches.clone();
            move |batch: Batch<u64>| {
                remember(&batches, &batch);
                let mut outcomes: Vec<Outcome> = batch
                    .iter()
                    .map(|number| match number.payload % 4 {
                        1 => Outcome::retry("no"),
                        2 => Outcome::dead_letter("never"),
                        _ => Outcome::Ack,
                    })
                    .collect();
                if batch[0].payload == 4 {
                    outcomes.pop();
                }
                async { outcomes }
            }
        });
    let consumer = consumer.await.expect("started");
    // 1 fails twice, 2 is refused; 4 to 7 fail together, and what comes of them then depends on whom they meet.
    eventually(|| bench.told.lines("handled: Dead") >= 3, || format!("{:?}", seen(&batches))).await;
    tokio::time::sleep(SECOND).await;
    consumer.shutdown().await;
    assert_eq!(seen(&batches)[..2], [first(0..4), first(4..8)]);
    let letters = dead(&bench, "g").await.list(20).await.expect("listed");
    let errors: Vec<_> = letters.iter().map(|letter| letter.error.as_str()).collect();
    assert!(errors.contains(&"never") && errors.contains(&"no"), "{errors:?}");
    assert_eq!(stats(&bench).await.pending, 0);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_number_of_outcomes_is_told() {
    let bench = bench();
    numbers(&bench, 0..3).await;
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry(Never)
        .start_batch((3, SECOND), |_: Batch<u64>| async { vec![Ok::<(), String>(())] })
        .await
        .expect("started");
    eventually(|| consumer.report().dead == 3, || "all".into()).await;
    consumer.shutdown().await;
    let letters = dead(&bench, "g").await.list(20).await.expect("listed");
    for letter in letters {
        assert_eq!(letter.error, "the handler gave 1 outcomes for 3 messages");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_left_out_and_panics_and_timeouts_fail_all() {
    let bench = bench();
    numbers(&bench, 0..2).await;
    let field = |name: &'static str, value: &'static str| (Bytes::from(name), Bytes::from(value));
    let entries = [vec![field("payload", "no number")], vec![field("else", "1")]];
    let appends = entries.map(|fields| Append::new(partition(), fields));
    assert!(bench.backend.log().append(&appends).await.iter().all(Result::is_ok));
    numbers(&bench, 2..5).await;
    let batches = Batches::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .handler_timeout(SECOND)
        .retry(Fixed::new(MS(10)).attempts(3))
        .start_batch((7, MS(50)), {
            let batches = batches.clone();
            move |batch: Batch<u64>| {
                remember(&batches, &batch);
                async move {
                    match batch[0].attempt() {
                        1 => panic!("unlucky"),
                        2 => tokio::time::sleep(5 * SECOND).await,
                        _ => {}
                    }
                    let last: Vec<_> = batch.into_iter().map(|n| n.last_error().map(str::to_owned)).collect();
                    assert_eq!(last, vec![Some("handler timed out after 1s".to_owned()); 5]);
                }
            }
        })
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 5, || format!("{:?}", seen(&batches))).await;
    assert_eq!(seen(&batches)[0], first(0..5));
    let report = consumer.shutdown().await;
    assert_eq!((report.dead, report.retried), (2, 10));
    let letters = dead(&bench, "g").await.list(20).await.expect("listed");
    let reasons: Vec<_> = letters.iter().map(|letter| letter.reason.as_str()).collect();
    assert_eq!(reasons, ["undecodable", "malformed"]);
}

#[tokio::test(start_paused = true)]
async fn where_keys_have_an_order_no_two_of_one_are_in_one_batch() {
    for (concurrency, order) in [
        (Concurrency::PerKey(2), RetryOrder::Skip),
        (Concurrency::PerKey(2), RetryOrder::BlockKey),
        (Concurrency::Serial, RetryOrder::BlockKey),
    ] {
        let bench = bench();
        let keys = ["a", "b", "c", ""];
        send(&bench, &(0..40).map(|n| (keys[n as usize % 4], n)).collect::<Vec<_>>()).await;
        let (course, batches) = (Scenario::default(), Batches::default());
        let consumer = bench
            .consumer(NUMBERS, "g")
            .concurrency(concurrency)
            .retry_order(order)
            .start_batch((8, MS(20)), {
                let (course, batches) = (course.clone(), batches.clone());
                move |batch: Batch<u64>| {
                    remember(&batches, &batch);
                    let running: Vec<_> = batch.iter().map(|delivery| course.begin(delivery)).collect();
                    async move {
                        tokio::time::sleep(MS(10)).await;
                        drop(running);
                    }
                }
            })
            .await
            .expect("started");
        eventually(|| consumer.report().acked == 40, || format!("{:?}", seen(&batches))).await;
        for key in ["a", "b", "c"] {
            assert_eq!(course.at_once(|call| call.key.as_deref() == Some(key)), 1, "{concurrency:?}");
            assert!(course.by_key()[key].is_sorted());
        }
        assert!(seen(&batches).iter().any(|batch| batch.len() > 3), "{:?}", seen(&batches));
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_failed_in_a_batch_waits_in_its_place_and_comes_back_in_order() {
    let bench = bench();
    send(&bench, &(0..6).map(|n| ("a", n)).collect::<Vec<_>>()).await;
    let batches = Batches::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry_order(RetryOrder::BlockPartition)
        .retry(Fixed::new(SECOND))
        .start_batch((4, MS(20)), {
            let batches = batches.clone();
            move |batch: Batch<u64>| {
                remember(&batches, &batch);
                let fails = |n: &millstream_runtime::Delivery<u64>| {
                    n.payload % 2 == 1 && n.payload < 4 && n.attempt() < 3
                };
                let said: Vec<_> = batch.iter().map(|n| if fails(n) { Err("no") } else { Ok(()) }).collect();
                async { said }
            }
        })
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 6, || format!("{:?}", seen(&batches))).await;
    let again = |attempt| vec![(1, attempt), (3, attempt), (4, 1), (5, 1)];
    assert_eq!(seen(&batches), [first(0..4), again(2), vec![(1, 3), (3, 3)]]);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn poison_candidates_come_alone() {
    let bench = bench();
    numbers(&bench, 0..12).await;
    let batches = Batches::default();
    let mut processes = Vec::new();
    for _ in 0..6 {
        let (link, builder) = linked(&bench, NUMBERS);
        let handler = {
            let (batches, link) = (batches.clone(), link.clone());
            move |batch: Batch<u64>| {
                remember(&batches, &batch);
                let link = link.clone();
                async move {
                    if batch.iter().any(|number| number.payload == 5) {
                        link.cut();
                        for_ever().await;
                    }
                }
            }
        };
        let builder = builder.lease_ttl(2 * SECOND).shutdown_timeout(MS(10)).prefetch(8);
        processes.push((link, builder.start_batch((4, MS(10)), handler).await.expect("started")));
        tokio::time::sleep(10 * SECOND).await;
    }
    let five: Vec<_> = seen(&batches).into_iter().filter(|batch| batch.contains(&(5, 1))).collect();
    assert_eq!(five, [first(4..8), first(4..8), first([5]), first([5])]);
    let among = |batch: &Vec<(u64, u32)>| batch.iter().any(|(number, _)| (4..8).contains(number));
    let candidates: Vec<_> = seen(&batches).into_iter().filter(among).skip(2).collect();
    assert!(candidates.iter().all(|batch| batch.len() == 1), "{candidates:?}");
    numbers(&bench, 20..24).await;
    eventually(|| seen(&batches).last() == Some(&first(20..24)), || "and then together as before".into())
        .await;
    tokio::time::sleep(SECOND).await;
    let stats = stats(&bench).await;
    assert_eq!((stats.pending, stats.dead), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn it_can_be_run_until_something() {
    let bench = bench();
    numbers(&bench, 0..10).await;
    let stop = Arc::new(tokio::sync::Notify::new());
    let handler = {
        let stop = stop.clone();
        move |batch: Batch<u64>| {
            let stop = stop.clone();
            async move {
                if batch.last().is_some_and(|last| last.payload == 9) {
                    stop.notify_one();
                }
            }
        }
    };
    let consumer = bench.consumer(NUMBERS, "g");
    let report = consumer.run_batch_until(stop.notified(), (5, SECOND), handler).await.expect("ran");
    assert_eq!(report.acked, 10);
}
