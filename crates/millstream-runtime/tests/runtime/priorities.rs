//! Priorities: in which lane messages are, and which lane is next.

use std::time::Duration;

use crate::support::scenario::{Call, Running, Scenario};
use crate::support::*;
use millstream_core::{Envelope, ErrorKind, LimitKey, Outcome, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{
    Concurrency, Consumer, ConsumerBuilder, Delivery, Fairness, Limit, PRIORITY_HEADER, Priorities, Record,
    RetryOrder,
};
use tokio::time::{Instant, sleep};

const ONE: Topic<u64> = Topic::new("numbers").partitions(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Sends so many messages of a lane, on 20 keys that begin with its name.
async fn send(bench: &Bench, lane: &str, values: std::ops::Range<u64>) {
    let producer = bench.producer(ONE).await;
    let values: Vec<_> = values.collect();
    let record = |n| Record::new(n).key(format!("{lane}-{}", n % 20)).priority(lane);
    let sent = producer.send_all(values.iter().map(record)).await;
    assert!(sent.iter().all(Result::is_ok));
}

fn of(lane: &str) -> impl Fn(&Call) -> bool + '_ {
    move |call| call.key.as_deref().is_some_and(|key| key.starts_with(lane))
}

/// How many of these calls are of each lane.
fn shares(calls: &[Call]) -> [usize; 3] {
    ["high", "normal", "low"].map(|lane| calls.iter().filter(|call| of(lane)(call)).count())
}

async fn start(builder: ConsumerBuilder<u64>, course: &Scenario) -> Consumer {
    let course = course.clone();
    let started = builder.start(move |delivery: Delivery<u64>| {
        let running = course.begin(&delivery);
        async move {
            sleep(MS(5)).await;
            drop::<Running>(running);
        }
    });
    started.await.expect("started")
}

#[tokio::test(start_paused = true)]
async fn lanes_share_starts_by_weight_and_none_starves() {
    for concurrency in [Concurrency::PerKey(4), Concurrency::Unordered(4)] {
        let bench = bench();
        for lane in ["low", "normal", "high"] {
            send(&bench, lane, 0..1_000).await;
        }
        let course = Scenario::default();
        let builder = bench.consumer(ONE, "g").concurrency(concurrency).priorities(Priorities::default());
        let consumer = start(builder, &course).await;
        course.until(3_000).await;
        let calls = course.calls();
        // Before all were read some lanes were alone.
        let [high, normal, low] = shares(&calls[400..1_400]);
        assert!((590..=610).contains(&high) && (290..=310).contains(&normal), "{high} {normal} {low}");
        for (key, values) in course.by_key() {
            assert!(concurrency == Concurrency::Unordered(4) || values.is_sorted(), "{key}: {values:?}");
        }
        assert_eq!(course.at_once(|_| true), 4);
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_a_low_lane_delays_no_higher_one() {
    let bench = bench();
    let course = Scenario::default();
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(4))
        .priorities(Priorities::strict(["high", "normal", "low"], HOUR));
    let consumer = start(builder, &course).await;
    send(&bench, "low", 0..20_000).await;
    sleep(MS(200)).await;
    for n in 0..40 {
        let sent = Instant::now();
        send(&bench, "high", n..n + 1).await;
        let begun = || course.calls().iter().filter(|call| of("high")(call)).count() as u64 > n;
        eventually(begun, || format!("{n} did not begin")).await;
        assert!(sent.elapsed() <= MS(8), "{:?}", sent.elapsed());
    }
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn strict_lanes_pass_no_message_that_is_older_than_the_bound() {
    let bench = bench();
    let course = Scenario::default();
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(1))
        .priorities(Priorities::strict(["high", "normal", "low"], SECOND));
    let consumer = start(builder, &course).await;
    // The high lane alone wants twice of what one handler does.
    send(&bench, "low", 0..3).await;
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < 4 * SECOND {
        send(&bench, "high", sent..sent + 40).await;
        sent += 40;
        sleep(MS(100)).await;
    }
    course.until(usize::try_from(sent).expect("small") + 3).await;
    let calls = course.calls();
    let waited: Vec<_> = calls.iter().filter(|call| of("low")(call)).map(|call| call.began - began).collect();
    // What the high lane got in two seconds comes before them, which takes four.
    let in_time = |wait: &Duration| (3 * SECOND..=5 * SECOND).contains(wait);
    assert!(waited.len() == 3 && waited.iter().all(in_time), "{waited:?}");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retries_and_delayed_messages_keep_their_lane() {
    let bench = bench();
    let course = Scenario::default();
    let promoter = Promoter::new(&bench.backend, PromoterConfig::default());
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(1))
        .priorities(Priorities::strict(["high", "normal", "low"], HOUR))
        .upkeep(promoter);
    let of_calls = course.clone();
    let started = builder.start(move |delivery: Delivery<u64>| {
        let running = of_calls.begin(&delivery);
        async move {
            sleep(MS(5)).await;
            drop(running);
            let fails = delivery.key().is_some_and(|key| key == "retried") && delivery.attempt() == 1;
            if fails { Outcome::retry_after(MS(100), "not yet") } else { Outcome::Ack }
        }
    });
    let consumer = started.await.expect("started");
    let producer = bench.producer(ONE).await;
    producer.send(&1).key("retried").priority("high").await.expect("sent");
    producer.send(&2).key("delayed").delay(MS(100)).priority("low").priority("high").await.expect("sent");
    producer.send(&3).key("late").priority("low").delay(MS(100)).await.expect("sent");
    sleep(MS(50)).await;
    send(&bench, "normal", 0..200).await;
    course.until(204).await;
    let calls = course.calls();
    let place = |key: &str, attempt| {
        let found = calls.iter().position(|it| it.key.as_deref() == Some(key) && it.attempt == attempt);
        found.expect("handled")
    };
    assert!(place("retried", 2) < 60 && place("delayed", 1) < 60, "{:?}", course.order());
    assert_eq!(place("late", 1), 203);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn with_fairness_a_tenant_gains_nothing_by_its_lane() {
    let bench = bench();
    let producer = bench.producer(ONE).await;
    fn record<'a>(n: &'a u64, tenant: &str, lane: &str) -> Record<'a, u64> {
        Record::new(n).key(format!("{lane} {tenant} {n}")).header("tenant", tenant).priority(lane)
    }
    let values: Vec<u64> = (0..1_000).collect();
    let of_a = values.iter().map(|n| record(n, "a", "high"));
    let of_b = values.iter().map(|n| record(n, "b", if n % 2 == 0 { "low" } else { "high" }));
    for sent in [producer.send_all(of_a).await, producer.send_all(of_b).await] {
        assert!(sent.iter().all(Result::is_ok));
    }
    let course = Scenario::default();
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::PerKey(4))
        .fair_by(Fairness::by_header("tenant"))
        .priorities(Priorities::weighted([("high", 4), ("low", 1)]));
    let consumer = start(builder, &course).await;
    course.until(1_200).await;
    let calls = &course.calls()[600..1_100];
    let count = |with: &str| {
        calls.iter().filter(|call| call.key.as_deref().is_some_and(|it| it.starts_with(with))).count()
    };
    let (a, high, low) = (count("high a"), count("high b"), count("low b"));
    assert!(
        (240..=260).contains(&a) && (190..=210).contains(&high) && (45..=55).contains(&low),
        "{a} {high} {low}"
    );
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_limit_costs_its_lane_nothing() {
    let bench = bench();
    for lane in ["high", "normal", "low"] {
        send(&bench, lane, 0..600).await;
    }
    let course = Scenario::default();
    // The high lane has more to do than its limit allows, and its part goes to the others.
    let is_high = |m: &Envelope| m.headers.get(PRIORITY_HEADER).is_some_and(|it| it == "high");
    let limit = Limit::new("high", move |m| is_high(m).then(LimitKey::all));
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(8))
        .limit(limit.at_most(1))
        .priorities(Priorities::default());
    let consumer = start(builder, &course).await;
    course.until(1_000).await;
    let [high, normal, low] = shares(&course.calls()[200..600]);
    assert!((45..=60).contains(&high), "{high} of 400 with one of eight handlers");
    let share = normal as f64 / low as f64;
    assert!((2.7..=3.3).contains(&share), "{normal} {low}");
    assert_eq!(course.at_once(of("high")), 1);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_lanes_share_is_for_the_highest_first() {
    let bench = bench();
    let course = Scenario::default();
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(16))
        .limit(Limit::global("api").at_most(2))
        .priorities(Priorities::strict(["high", "normal", "low"], HOUR));
    let consumer = start(builder, &course).await;
    send(&bench, "low", 0..4_000).await;
    sleep(MS(200)).await;
    for n in 0..20 {
        let sent = Instant::now();
        send(&bench, "high", n..n + 1).await;
        let begun = || course.calls().iter().filter(|call| of("high")(call)).count() as u64 > n;
        eventually(begun, || format!("{n} did not begin")).await;
        // Eight ask, and two run at once.
        assert!(sent.elapsed() <= MS(40), "{:?}", sent.elapsed());
    }
    course.until(4_020).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lanes_that_contradict_themselves_are_refused() {
    let bench = bench();
    let build = || bench.consumer(ONE, "g").concurrency(Concurrency::PerKey(2));
    let cases = [
        (bench.consumer(ONE, "g").priorities(Priorities::default()), "fair_by and priorities go with"),
        (build().priorities(Priorities::weighted([("one", 1)])), "1 lanes, 2 to 5"),
        (build().priorities(Priorities::strict(["a", "b", "a"], HOUR)), "same name"),
        (build().priorities(Priorities::strict(["a", "b"], Duration::ZERO)), "ageing is 0ns"),
        (build().priorities(Priorities::weighted([("a", 1), ("b", 2)])), "no more than the one above"),
        (build().priorities(Priorities::weighted([("a", 1_001), ("", 0)])), "weight 1001"),
        (build().priorities(Priorities::default().otherwise("none")), "none of the lanes"),
        (build().priorities(Priorities::default().read_ahead(0)), "read_ahead is 0"),
    ];
    for (builder, why) in cases {
        let error = builder.start(async |_: Delivery<u64>| {}).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(why), "{error}");
    }
    let by_key = bench.consumer(ONE, "g").retry_order(RetryOrder::BlockKey).priorities(Priorities::default());
    by_key.start(async |_: Delivery<u64>| {}).await.expect("serial by key").shutdown().await;
}
