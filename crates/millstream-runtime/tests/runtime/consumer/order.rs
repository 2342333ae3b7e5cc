//! Order through retries: what waits behind a failed message, what does not, and what survives a change of owner.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use crate::support::scenario::*;
use crate::support::*;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{Outcome, Reason};
use millstream_runtime::{Concurrency, Delivery, RetryOrder};

const SECOND: Duration = Duration::from_secs(1);
const AB: [(&str, u64); 6] = [("a", 0), ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("", 5)];

/// Fails on this value, up to this attempt.
fn failing(
    course: &Scenario,
    value: u64,
    up_to: u32,
) -> impl Fn(Delivery<u64>) -> std::future::Ready<Result<(), String>> + use<> {
    let course = course.clone();
    move |delivery| {
        drop(course.begin(&delivery));
        let fails = delivery.payload == value && delivery.attempt() <= up_to;
        let said = if fails { Err(format!("no {}", delivery.attempt())) } else { Ok(()) };
        assert_eq!(delivery.last_error().is_some(), delivery.attempt() > 1);
        std::future::ready(said)
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_the_key_of_a_failed_message_waits_and_the_rest_overtakes() {
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(4)] {
        let bench = bench();
        send(&bench, &AB).await;
        let course = Scenario::default();
        let consumer = bench
            .consumer(NUMBERS, "g")
            .concurrency(concurrency)
            .retry_order(RetryOrder::BlockKey)
            .retry(Fixed::new(SECOND).attempts(5))
            .start(failing(&course, 0, 2))
            .await
            .expect("started");
        eventually(|| consumer.report().acked == 6, || format!("{:?}", course.order())).await;
        let expected = [(0, 1), (2, 1), (4, 1), (5, 1), (0, 2), (0, 3), (1, 1), (3, 1)];
        if concurrency == Concurrency::Serial {
            assert_eq!(course.order(), expected);
        }
        let keys = course.by_key();
        assert_eq!(keys["a"], [(0, 1), (0, 2), (0, 3), (1, 1), (3, 1)]);
        assert_eq!(keys["b"], [(2, 1), (4, 1)]);
        let tries: Vec<_> =
            course.calls().iter().filter(|call| call.value == 0).map(|call| call.began).collect();
        for pair in tries.windows(2) {
            let waited = pair[1] - pair[0];
            assert!((SECOND..SECOND + MS(20)).contains(&waited), "{waited:?}");
        }
        let others = course
            .calls()
            .iter()
            .filter(|call| [2, 4, 5].contains(&call.value))
            .all(|call| call.began < tries[1]);
        assert!(others, "they have not waited: {:?}", course.calls());
        let report = consumer.shutdown().await;
        assert_eq!((report.retried, report.handed_back), (2, 0));
        assert_eq!(stats(&bench).await.pending, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_partition_can_wait() {
    let bench = bench();
    send(&bench, &AB).await;
    let course = Scenario::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry_order(RetryOrder::BlockPartition)
        .retry(Fixed::new(SECOND).attempts(5))
        .start(failing(&course, 1, 2))
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 6, || format!("{:?}", course.order())).await;
    let expected = [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (4, 1), (5, 1)];
    assert_eq!(course.order(), expected);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_lane_goes_on_when_a_message_is_given_up_and_wishes_are_kept() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1), ("a", 2), ("a", 3)]).await;
    let course = Scenario::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .concurrency(Concurrency::PerKey(4))
        .retry_order(RetryOrder::BlockKey)
        .retry(Fixed::new(SECOND).attempts(2))
        .start({
            let course = course.clone();
            move |delivery: Delivery<u64>| {
                drop(course.begin(&delivery));
                let said = match (delivery.payload, delivery.attempt()) {
                    (0, _) => Outcome::retry("no"),
                    (1, _) => Outcome::dead_letter("never"),
                    (2, 1) => Outcome::retry_after(7 * SECOND, "busy"),
                    _ => Outcome::Ack,
                };
                async { said }
            }
        })
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 2, || format!("{:?}", course.order())).await;
    assert_eq!(course.order(), [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (3, 1)]);
    let calls = course.calls();
    let wished = calls[4].began - calls[3].began;
    assert!((7 * SECOND..7 * SECOND + MS(20)).contains(&wished), "{wished:?}");
    consumer.shutdown().await;
    let letters = dead(&bench, "g").await.list(10).await.expect("listed");
    let letters: Vec<_> = letters.into_iter().map(|letter| (letter.reason, letter.attempts)).collect();
    assert_eq!(letters, [(Reason::Exhausted, 2), (Reason::Rejected, 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_its_place_until_a_time_waits_by_the_clock_of_its_node() {
    let bench = bench();
    let now = bench.backend.schedule().now().await.expect("a time");
    let then = UNIX_EPOCH + MS(now.as_millis()) + 5 * SECOND;
    let course = Scenario::default();
    let (link, consumer) = linked(&bench, NUMBERS);
    link.other_clock_ahead.store(60_000, Ordering::SeqCst);
    let seen = course.clone();
    let consumer = consumer.retry_order(RetryOrder::BlockKey).start(move |delivery: Delivery<u64>| {
        drop(seen.begin(&delivery));
        std::future::ready(match delivery.attempt() {
            1 => Outcome::retry_at(then, "not yet"),
            _ => Outcome::Ack,
        })
    });
    let consumer = consumer.await.expect("started");
    // By now the consumer knows the time.
    tokio::time::sleep(SECOND).await;
    send(&bench, &AB[..1]).await;
    course.until(2).await;
    let waited = course.calls()[1].began - course.calls()[0].began;
    assert!((3 * SECOND..5 * SECOND).contains(&waited), "{waited:?}");
    consumer.shutdown().await;
}

/// The attempt that failed with the first owner, and the next one with the second.
async fn change_owner(orderly: bool, concurrency: Concurrency, order: RetryOrder) {
    let bench = bench();
    send(&bench, &AB).await;
    let (first, second) = (Scenario::default(), Scenario::default());
    let (link, one) = linked(&bench, NUMBERS);
    let set = |builder: millstream_runtime::ConsumerBuilder<u64>| {
        builder.concurrency(concurrency).retry_order(order).retry(Fixed::new(60 * SECOND).attempts(5))
    };
    let one = set(one).start(failing(&first, 0, 1)).await.expect("started");
    let others = if order == RetryOrder::BlockKey { 4 } else { 1 };
    first.until(others).await;
    tokio::time::sleep(MS(100)).await;
    let failed_at = first.calls()[0].began;
    if orderly {
        one.shutdown().await;
    } else {
        link.cut();
        drop(one);
    }
    let two = set(bench.consumer(NUMBERS, "g")).start(failing(&second, 0, 2)).await.expect("started");
    second.until(1).await;
    let retried_at = second.calls()[0].began;
    assert_eq!(second.order()[0], (0, 2), "the attempt is not forgotten");
    let waited = retried_at - failed_at;
    assert!(
        (60 * SECOND..61 * SECOND).contains(&waited),
        "not early, and not the whole time again: {waited:?}"
    );
    eventually(|| two.report().acked == 7 - others as u64, || format!("{:?}", second.order())).await;
    assert_eq!(second.by_key()["a"], [(0, 2), (0, 3), (1, 1), (3, 1)]);
    assert_eq!(two.shutdown().await.retried, 1);
    assert_eq!(stats(&bench).await.pending, 0);
}

#[tokio::test(start_paused = true)]
async fn the_next_owner_goes_on_with_the_attempt_its_wait_and_its_order() {
    for orderly in [true, false] {
        change_owner(orderly, Concurrency::Serial, RetryOrder::BlockKey).await;
        change_owner(orderly, Concurrency::PerKey(4), RetryOrder::BlockKey).await;
        change_owner(orderly, Concurrency::Serial, RetryOrder::BlockPartition).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_its_place_takes_no_room_from_the_rest_up_to_a_bound() {
    let bench = bench();
    let mut messages = vec![("a", 0)];
    messages.extend((1..60).map(|n| ("a", n)));
    messages.extend((60..70).map(|n| ("b", n)));
    messages.extend((70..200).map(|n| ("a", n)));
    messages.push(("b", 200));
    send(&bench, &messages).await;
    let course = Scenario::default();
    let mended = Arc::new(AtomicBool::new(false));
    let consumer = bench
        .consumer(NUMBERS, "g")
        .concurrency(Concurrency::PerKey(2))
        .retry_order(RetryOrder::BlockKey)
        .retry(Fixed::new(10 * SECOND).attempts(50))
        .prefetch(8)
        .max_blocked(100)
        .start({
            let (course, mended) = (course.clone(), mended.clone());
            move |delivery: Delivery<u64>| {
                drop(course.begin(&delivery));
                let fails = delivery.payload == 0 && !mended.load(Ordering::Relaxed);
                async move { if fails { Err("no") } else { Ok(()) } }
            }
        })
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 10, || format!("{:?}", course.order())).await;
    tokio::time::sleep(5 * SECOND).await;
    let pending = stats(&bench).await.pending;
    assert!((100..=108).contains(&pending), "no more than that is read: {pending}");
    assert_eq!(consumer.report().acked, 10, "so the last one of b waits, too");
    mended.store(true, Ordering::Relaxed);
    eventually(|| consumer.report().acked == 201, || format!("{:?}", consumer.report())).await;
    let values: Vec<u64> = course.by_key()["a"].iter().filter(|(n, _)| *n > 0).map(|(n, _)| *n).collect();
    assert!(values.is_sorted() && values.len() == 189);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_note_that_cannot_be_written_is_tried_again_and_waited_for() {
    let bench = bench();
    send(&bench, &[("a", 0), ("a", 1)]).await;
    let course = Scenario::default();
    let settles = bench.log.clone();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry_order(RetryOrder::BlockKey)
        .retry(Fixed::new(MS(1)).attempts(5))
        .start({
            let fails = failing(&course, 0, 2);
            move |delivery: Delivery<u64>| {
                if delivery.attempt() == 1 && delivery.payload == 0 {
                    let kinds = [millstream_core::ErrorKind::Unavailable; 4];
                    settles.settle_failures.lock().expect("lock").extend(kinds);
                }
                fails(delivery)
            }
        })
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 2, || format!("{:?}", course.order())).await;
    assert_eq!(course.order(), [(0, 1), (0, 2), (0, 3), (1, 1)]);
    let calls = course.calls();
    assert!(calls[1].began - calls[0].began >= MS(100), "four pauses were made before");
    assert_eq!(bench.told.lines("Recovered { operation: \"settle\""), 1);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_its_place_is_ours_and_not_taken_for_new_when_pending_is_read_again() {
    let bench = bench();
    send(&bench, &AB).await;
    let course = Scenario::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .retry_order(RetryOrder::BlockKey)
        .retry(Fixed::new(5 * SECOND).attempts(5))
        .start(failing(&course, 0, 2))
        .await
        .expect("started");
    course.until(4).await;
    tokio::time::sleep(MS(100)).await;
    bench.log.fetch_failures.lock().expect("lock").push_back(millstream_core::ErrorKind::Unconfirmed);
    send(&bench, &[("b", 6)]).await;
    bench.told.wait_for("Recovered { operation: \"fetch\"").await;
    eventually(|| consumer.report().acked == 7, || format!("{:?}", course.order())).await;
    assert_eq!(course.by_key()["a"], [(0, 1), (0, 2), (0, 3), (1, 1), (3, 1)]);
    assert_eq!(course.count(), 9, "{:?}", course.order());
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn replayed_dead_letters_take_their_lane() {
    let bench = bench();
    send(&bench, &[("a", 0), ("b", 1)]).await;
    let broken =
        bench.consumer(NUMBERS, "g").retry(Never).start(|_: Delivery<u64>| async { Err::<(), _>("no") });
    let broken = broken.await.expect("started");
    eventually(|| broken.report().dead == 2, || "both".into()).await;
    broken.shutdown().await;
    assert_eq!(dead(&bench, "g").await.replay_all().await.expect("replayed"), 2);
    send(&bench, &[("a", 2), ("b", 3)]).await;
    let course = Scenario::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .concurrency(Concurrency::PerKey(4))
        .retry_order(RetryOrder::BlockKey)
        .retry(Fixed::new(SECOND).attempts(5))
        .start(failing(&course, 0, 2))
        .await
        .expect("started");
    eventually(|| consumer.report().acked == 4, || format!("{:?}", course.order())).await;
    let keys = course.by_key();
    assert_eq!(keys["a"], [(0, 1), (0, 2), (0, 3), (2, 1)]);
    assert_eq!(keys["b"], [(1, 1), (3, 1)]);
    consumer.shutdown().await;
    assert_eq!(stats(&bench).await.pending, 0);
}

#[tokio::test(start_paused = true)]
async fn who_lets_others_overtake_parks_what_another_order_left_waiting() {
    let bench = bench();
    send(&bench, &AB).await;
    let (first, second) = (Scenario::default(), Scenario::default());
    let blocking = bench
        .consumer(NUMBERS, "g")
        .retry_order(RetryOrder::BlockPartition)
        .retry(Fixed::new(60 * SECOND))
        .start(failing(&first, 0, 1))
        .await
        .expect("started");
    first.until(1).await;
    tokio::time::sleep(SECOND).await;
    blocking.shutdown().await;
    let consumer = bench.consumer(NUMBERS, "g").start(failing(&second, 0, 1)).await.expect("started");
    eventually(|| consumer.report().acked == 6, || format!("{:?}", second.order())).await;
    assert_eq!(second.order(), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (0, 2)]);
    let waited = second.calls()[5].began - first.calls()[0].began;
    assert!((60 * SECOND..61 * SECOND).contains(&waited), "{waited:?}");
    consumer.shutdown().await;
}

/// Failures at random, owners that die at random: every key in order, nothing lost.
#[tokio::test(start_paused = true)]
async fn keys_keep_their_order_through_failures_and_deaths() {
    fastrand::seed(7);
    let bench = bench();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let messages: Vec<_> = (0..400).map(|n| (keys[n as usize % keys.len()], n)).collect();
    send(&bench, &messages).await;
    // What was acknowledged, as far as handlers know; repetitions are possible after a death.
    let done: Arc<Mutex<BTreeMap<String, Vec<u64>>>> = Arc::default();
    let mut owners = 0;
    while stats(&bench).await.pending > 0 || stats(&bench).await.lag != Some(0) {
        let (link, consumer) = linked(&bench, NUMBERS);
        let handled = Arc::new(AtomicUsize::new(0));
        let consumer = consumer
            .concurrency(Concurrency::PerKey(5))
            .retry_order(RetryOrder::BlockKey)
            .retry(Fixed::new(MS(30)).attempts(1_000))
            .prefetch(20)
            .crash_limit(1_000)
            .lease_ttl(SECOND)
            .shutdown_timeout(MS(10))
            .start({
                let (done, handled, link) = (done.clone(), handled.clone(), link.clone());
                move |delivery: Delivery<u64>| {
                    let (done, handled, link) = (done.clone(), handled.clone(), link.clone());
                    async move {
                        tokio::time::sleep(MS(fastrand::u64(1..10))).await;
                        if fastrand::u32(..4) == 0 {
                            return Err("no");
                        }
                        if handled.fetch_add(1, Ordering::Relaxed) == 60 {
                            link.cut();
                            for_ever().await;
                        }
                        let key = String::from_utf8_lossy(delivery.key().expect("a key")).into_owned();
                        done.lock().expect("lock").entry(key).or_default().push(delivery.payload);
                        Ok(())
                    }
                }
            })
            .await
            .expect("started");
        tokio::time::sleep(20 * SECOND).await;
        link.cut();
        drop(consumer);
        tokio::time::sleep(2 * SECOND).await;
        owners += 1;
        assert!(owners < 50, "{:?}", stats(&bench).await);
    }
    assert!(owners > 5, "{owners} owners");
    let done = done.lock().expect("lock").clone();
    for (key, values) in done {
        // Repetitions are possible. But none is done for the first time after a later one.
        let mut firsts: Vec<u64> = Vec::new();
        for value in values {
            if !firsts.contains(&value) {
                firsts.push(value);
            }
        }
        assert!(firsts.is_sorted() && firsts.len() == 50, "{key}: {firsts:?}");
    }
}
