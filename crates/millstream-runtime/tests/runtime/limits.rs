//! Limits on how much is handled at once, across partitions, consumers and topics.

mod breakers;
mod faults;
mod letters;
mod rates;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scenario::{Scenario, linked};
use crate::support::*;
use millstream_core::permits::PermitState;
use millstream_core::{Rate, Topic};
use millstream_runtime::{
    Batch, CancelReason, Concurrency, Consumer, ConsumerBuilder, Delivery, Limit, RetryOrder, Sharing,
};
use tokio::time::{Instant, sleep};

const WIDE: Topic<u64> = Topic::new("numbers").partitions(4);
const SECOND: Duration = Duration::from_secs(1);

/// Messages of `tenants` in turn, each with the key of its tenant.
async fn send(bench: &Bench, topic: Topic<u64>, count: u64, tenants: &[&str]) {
    let producer = bench.producer(topic).await;
    for n in 0..count {
        let tenant = tenants[(n as usize) % tenants.len()];
        let key = format!("{tenant}-{}", n % 3);
        producer.send(&n).key(key).header("tenant", tenant).await.expect("sent");
    }
}

fn tenant() -> Limit {
    Limit::by_header("tenant", "tenant")
}

/// Starts a consumer whose handlers take this long.
async fn start(builder: ConsumerBuilder<u64>, course: &Scenario, takes: Duration) -> Consumer {
    let course = course.clone();
    let started = builder.start(move |delivery: Delivery<u64>| {
        let running = course.begin(&delivery);
        async move {
            sleep(takes).await;
            drop(running);
        }
    });
    started.await.expect("started")
}

async fn usage(bench: &Bench) -> Vec<PermitState> {
    bench.backend.permits().expect("permits").usage(0, 1_000).await.expect("usage").keys
}

fn of(tenant: &str) -> impl Fn(&crate::support::scenario::Call) -> bool + '_ {
    move |call| call.key.as_deref().is_some_and(|key| key.starts_with(tenant))
}

/// Waits until nothing is in use any more.
async fn all_free(bench: &Bench) {
    for _ in 0..10_000 {
        if usage(bench).await.is_empty() {
            return;
        }
        sleep(MS(1)).await;
    }
    panic!("units that nobody uses: {:?}", usage(bench).await);
}

#[tokio::test(start_paused = true)]
async fn a_key_has_no_more_at_once_and_others_go_on() {
    let bench = bench();
    send(&bench, WIDE, 60, &["a", "a", "a", "b"]).await;
    let course = Scenario::default();
    let builder =
        bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(16)).limit(tenant().at_most(2));
    let begun = Instant::now();
    let consumer = start(builder, &course, SECOND).await;
    course.until(60).await;
    assert_eq!(course.at_once(of("a")), 2);
    assert_eq!(course.at_once(of("b")), 2);
    // 45 of the one, two at once.
    let took = begun.elapsed();
    assert!((SECOND * 22..SECOND * 24).contains(&took), "{took:?}");
    let last = course.calls().iter().filter(|call| of("b")(call)).map(|call| call.began).max();
    assert!(last.is_some_and(|last| last - begun < SECOND * 9), "they do not wait for others");
    sleep(SECOND * 2).await;
    all_free(&bench).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn it_counts_across_instances_groups_and_topics() {
    let bench = bench();
    const OTHER: Topic<u64> = Topic::new("others").partitions(2);
    send(&bench, WIDE, 30, &["a"]).await;
    send(&bench, OTHER, 10, &["a"]).await;
    let course = Scenario::default();
    let mut consumers = Vec::new();
    for (topic, group) in [(WIDE, "g"), (WIDE, "g"), (WIDE, "h"), (OTHER, "g")] {
        let builder =
            bench.consumer(topic, group).concurrency(Concurrency::PerKey(8)).limit(tenant().at_most(3));
        consumers.push(start(builder, &course, MS(100)).await);
    }
    course.until(70).await;
    assert_eq!(course.at_once(|_| true), 3);
    sleep(SECOND).await;
    all_free(&bench).await;
    for consumer in consumers {
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn instances_take_turns_and_a_slot_goes_to_another_at_once() {
    let bench = bench();
    send(&bench, WIDE, 200, &["a"]).await;
    let (one, two) = (Scenario::default(), Scenario::default());
    let limited = || bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(8)).limit(tenant());
    let first = start(limited(), &one, MS(10)).await;
    let second = start(limited(), &two, MS(10)).await;
    let begun = Instant::now();
    eventually(|| one.count() + two.count() >= 200, || format!("{} {}", one.count(), two.count())).await;
    // 200 one after the other, with nothing in between but what the joining of the second one costs.
    assert!(begun.elapsed() < SECOND * 3, "{:?}", begun.elapsed());
    assert!(one.count() > 60 && two.count() > 60, "{} and {}", one.count(), two.count());
    let mut calls = one.calls();
    calls.extend(two.calls());
    calls.sort_by_key(|call| call.began);
    assert!(calls.windows(2).all(|pair| pair[0].ended.is_some_and(|ended| ended <= pair[1].began)));
    first.shutdown().await;
    second.shutdown().await;
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn the_order_of_a_key_is_kept() {
    for (concurrency, retry_order) in [
        (Concurrency::Serial, RetryOrder::Skip),
        (Concurrency::Serial, RetryOrder::BlockKey),
        (Concurrency::PerKey(8), RetryOrder::Skip),
        (Concurrency::PerKey(8), RetryOrder::BlockKey),
    ] {
        let bench = bench();
        send(&bench, WIDE, 60, &["a", "b"]).await;
        let course = Scenario::default();
        let builder = bench.consumer(WIDE, "g").concurrency(concurrency).retry_order(retry_order);
        let builder = builder.limit(tenant().at_most(2)).limit(Limit::global("all").at_most(3));
        let consumer = start(builder, &course, MS(50)).await;
        course.until(60).await;
        assert!(course.at_once(|_| true) <= 3 && course.at_once(of("a")) <= 2);
        for (key, calls) in course.by_key() {
            assert!(calls.is_sorted(), "{concurrency:?} {retry_order:?}, {key}: {calls:?}");
        }
        consumer.shutdown().await;
        all_free(&bench).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_counts_and_what_is_over_the_limit_can_be_dropped() {
    let bench = bench();
    send(&bench, WIDE, 20, &["a"]).await;
    let course = Scenario::default();
    let dear = Limit::global("dear").at_most(5).cost(|_| 2);
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(8)).limit(dear);
    let consumer = start(builder, &course, MS(50)).await;
    course.until(20).await;
    assert_eq!(course.at_once(|_| true), 2, "two of five, at two each");
    consumer.shutdown().await;

    for (group, concurrency) in [("drops", Concurrency::Unordered(8)), ("serial", Concurrency::Serial)] {
        let course = Scenario::default();
        let before = bench.told.lines("over the limit tenant:a");
        let builder = bench.consumer(WIDE, group).concurrency(concurrency).limit(tenant().or_drop());
        let consumer = start(builder, &course, SECOND * 3_600).await;
        send(&bench, WIDE, 20, &["a"]).await;
        // One at a time, the partition of the one that runs goes no further: it has 14 of them, or 6.
        bench.told.wait_for_lines("over the limit tenant:a", before + 6).await;
        assert_eq!(course.count(), 1);
        consumer.shutdown_within(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn batches_have_units_for_each_message() {
    let bench = bench();
    send(&bench, WIDE, 40, &["a", "b"]).await;
    let seen: Arc<std::sync::Mutex<Vec<Vec<String>>>> = Arc::default();
    let noted = seen.clone();
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(4)).limit(tenant().at_most(3));
    let batch = (10, MS(20));
    let consumer = builder.start_batch(batch, move |batch: Batch<u64>| {
        let keys = batch
            .iter()
            .map(|it| String::from_utf8_lossy(it.headers().get("tenant").expect("a tenant")).into_owned());
        noted.lock().expect("lock").push(keys.collect());
        async {
            sleep(MS(100)).await;
            Ok::<(), millstream_core::BoxError>(())
        }
    });
    let consumer = consumer.await.expect("started");
    eventually(|| seen.lock().expect("lock").iter().map(Vec::len).sum::<usize>() == 40, || "all".into())
        .await;
    for batch in &*seen.lock().expect("lock") {
        for tenant in ["a", "b"] {
            assert!(batch.iter().filter(|key| *key == tenant).count() <= 3, "{batch:?}");
        }
    }
    consumer.shutdown().await;
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_that_wait_ask_for_nothing() {
    let bench = bench();
    send(&bench, NUMBERS, 10_000, &["a"]).await;
    let course = Scenario::default();
    let (link, builder) = linked(&bench, NUMBERS);
    let builder = builder.concurrency(Concurrency::Unordered(64)).max_blocked(20_000).limit(tenant());
    let consumer = start(builder, &course, SECOND * 3_600).await;
    course.until(1).await;
    let waits = || consumer.health().topics.iter().map(|topic| topic.in_flight).sum::<usize>();
    eventually(|| waits() == 10_000, || format!("{} are read", waits())).await;
    eventually(
        || consumer.health().waiting.iter().any(|(_, waiting)| *waiting >= 9_990),
        || "they wait".into(),
    )
    .await;
    sleep(SECOND * 60).await;
    link.calls();
    sleep(SECOND * 600).await;
    let calls = link.calls();
    let of_limits = ["exchange", "called", "renew permits"].map(|what| calls.get(what).copied().unwrap_or(0));
    // Once in six ttls the first of them is asked for again, in case that the server has lost it. A wait for calls takes two ttls.
    assert!(of_limits[0] <= 12 && of_limits[1] <= 32, "{calls:?}");
    assert!(of_limits[2] <= 600 / 3 + 20, "{calls:?}");
    consumer.shutdown_within(Duration::ZERO).await;
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn reading_stops_where_too_many_wait_and_goes_on() {
    let bench = bench();
    send(&bench, NUMBERS, 100, &["a"]).await;
    let course = Scenario::default();
    let builder =
        bench.consumer(NUMBERS, "g").concurrency(Concurrency::Unordered(4)).prefetch(8).max_blocked(10);
    let consumer = start(builder.limit(tenant()), &course, MS(10)).await;
    let mut most = 0;
    while course.count() < 100 {
        most = most.max(consumer.health().topics.iter().map(|topic| topic.in_flight).sum::<usize>());
        sleep(MS(5)).await;
    }
    assert!((10..=20).contains(&most), "{most} were read and not settled");
    consumer.shutdown().await;
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_under_no_limit_asks_nothing() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    for n in 0..20 {
        producer.send(&n).await.expect("sent");
    }
    let course = Scenario::default();
    let (link, builder) = linked(&bench, NUMBERS);
    let consumer = start(builder.limit(tenant()), &course, MS(1)).await;
    course.until(20).await;
    let calls = link.calls();
    assert!(
        ["exchange", "renew permits", "called"].iter().all(|what| !calls.contains_key(what)),
        "{calls:?}"
    );
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shared_mode_has_limits_too() {
    let bench = bench();
    send(&bench, WIDE, 40, &["a", "b"]).await;
    let course = Scenario::default();
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let builder =
            bench.consumer(WIDE, "g").sharing(Sharing::Shared).concurrency(Concurrency::Unordered(8));
        consumers.push(start(builder.limit(tenant().at_most(2)), &course, MS(100)).await);
    }
    let all = || (0..40).all(|n| course.calls().iter().any(|call| call.value == n && call.ended.is_some()));
    eventually(all, || format!("{:?}", course.order())).await;
    assert!(course.at_once(of("a")) <= 2 && course.at_once(of("b")) <= 2);
    for consumer in consumers {
        consumer.shutdown().await;
    }
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn partitions_that_share_handlers_go_on_with_units_of_the_same_keys() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        for at_once in [1, 2, 3] {
            let bench = bench();
            send(&bench, WIDE, 120, &["a", "b", "c"]).await;
            let course = Scenario::default();
            let builder = bench.consumer(WIDE, "g").sharing(sharing).max_handlers(at_once).prefetch(16);
            let builder = match sharing {
                Sharing::Shared => builder.concurrency(Concurrency::Unordered(at_once)),
                _ => builder.concurrency(Concurrency::Unordered(4)),
            };
            let begun = Instant::now();
            let consumer = start(builder.limit(tenant()), &course, MS(10)).await;
            let all = || {
                (0..120).all(|n| course.calls().iter().any(|call| call.value == n && call.ended.is_some()))
            };
            eventually(all, || format!("{sharing:?} {at_once}: {} of 120", course.count())).await;
            // 120 of 10 ms, so many at once, and never long without one.
            assert!(begun.elapsed() < SECOND * 4, "{sharing:?} {at_once}: {:?}", begun.elapsed());
            assert!(course.at_once(|_| true) <= at_once && course.at_once(of("a")) <= 1);
            consumer.shutdown().await;
            all_free(&bench).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_could_not_be_used_go_to_other_instances() {
    let bench = bench();
    const OTHER: Topic<u64> = Topic::new("others");
    let tenants: Vec<String> = (0..40).map(|n| format!("t{n}")).collect();
    let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
    send(&bench, NUMBERS, 40, &tenants).await;
    send(&bench, OTHER, 40, &tenants).await;
    let (one, two) = (Scenario::default(), Scenario::default());
    // It handles one message an hour, and has room for no other.
    let slow = bench.consumer(NUMBERS, "g").concurrency(Concurrency::PerKey(1)).limit(tenant());
    let slow = start(slow, &one, SECOND * 3_600).await;
    one.until(1).await;
    let quick = bench.consumer(OTHER, "g").concurrency(Concurrency::PerKey(8)).limit(tenant());
    let quick = start(quick, &two, MS(10)).await;
    two.until(39).await;
    assert_eq!(one.count(), 1);
    quick.shutdown().await;
    slow.shutdown_within(Duration::ZERO).await;
}

/// One index for each customer: what comes later is what counts.
#[tokio::test(start_paused = true)]
async fn a_newer_message_cancels_the_one_that_runs() {
    let bench = bench();
    // Two consumers, which share the limit as two processes do.
    let (cancelled, done): (Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>) = Default::default();
    let mut consumers = Vec::new();
    for group in ["one", "two"] {
        let (cancelled, done) = (cancelled.clone(), done.clone());
        let builder = bench
            .consumer(NUMBERS, group)
            .concurrency(Concurrency::Unordered(8))
            .limit(Limit::by_header("customer", "customer").at_most(1).or_cancel());
        let started = builder.start(move |delivery: Delivery<u64>| {
            let (cancelled, done) = (cancelled.clone(), done.clone());
            async move {
                let (value, group) = (delivery.payload, delivery.group().to_string());
                tokio::select! {
                    () = delivery.cancelled() => {
                        assert_eq!(delivery.cancel_reason(), Some(CancelReason::Superseded));
                        cancelled.lock().expect("lock").push((group, value, delivery.attempt()));
                        Err("out of date")
                    }
                    () = sleep(Duration::from_secs(10)) => {
                        assert_eq!(delivery.cancel_reason(), None);
                        done.lock().expect("lock").push((group, value));
                        Ok(())
                    }
                }
            }
        });
        consumers.push(started.await.expect("started"));
    }
    let producer = bench.producer(NUMBERS).await;
    for n in 0..6 {
        producer.send(&n).header("customer", "acme").await.expect("sent");
        producer.send(&(100 + n)).header("customer", "other").await.expect("sent");
        sleep(Duration::from_millis(500)).await;
    }
    eventually(|| done.lock().expect("lock").len() >= 2, || format!("{done:?} {cancelled:?}")).await;
    sleep(Duration::from_secs(60)).await;
    // Of each customer, one message of one of the groups ran to its end, and it is the last one.
    let mut done = done.lock().expect("lock").clone();
    done.sort_by_key(|it| it.1);
    assert_eq!(done.iter().map(|it| it.1).collect::<Vec<_>>(), [5, 105], "{done:?}");
    let mut all = cancelled.lock().expect("lock").clone();
    assert!(all.len() >= 10, "{all:?}");
    assert!(all.iter().all(|it| it.2 == 1), "none is retried: {all:?}");
    let handled = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), handled, "none runs twice");
    for consumer in consumers {
        assert_eq!(consumer.health().in_flight, 0);
        consumer.shutdown().await;
    }
    for group in ["one", "two"] {
        let letters = dead(&bench, group).await.list(Default::default()).await.expect("a list");
        assert!(letters.is_empty(), "{letters:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_cancel_the_wrong_one_is_refused() {
    let bench = bench();
    let one = || Limit::global("one").or_cancel();
    let refused = [
        (vec![one().at_most(2)], "or_cancel goes with at_most(1)"),
        (vec![one().cost(|_| 2)], "or_cancel goes with at_most(1)"),
        (vec![one().or_drop()], "or_cancel goes with at_most(1)"),
        (vec![one().rate(Rate::per_second(1))], "or_cancel goes with at_most(1)"),
        (vec![Limit::global("other"), one()], "or_cancel goes with no other limit of units"),
    ];
    let build =
        |limits: Vec<Limit>| limits.into_iter().fold(bench.consumer(NUMBERS, "g"), ConsumerBuilder::limit);
    for (limits, why) in refused {
        let error = build(limits).start(async |_: Delivery<u64>| {}).await.expect_err("refused");
        assert!(error.to_string().contains(why), "{error}");
    }
    let beside = build(vec![one(), Limit::global("rate").rate(Rate::per_second(1))]);
    beside.start(async |_: Delivery<u64>| {}).await.expect("a rate may stand beside it").shutdown().await;
}
