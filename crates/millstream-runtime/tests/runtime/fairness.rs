//! Fairness between tenants: who waits how long while one of them floods a topic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scenario::{Call, Running, Scenario, linked};
use crate::support::*;
use millstream_core::{Envelope, ErrorKind, LimitKey, MessageId, Outcome, Rate, Topic, TopicPartition};
use millstream_runtime::{
    Batch, Concurrency, Consumer, ConsumerBuilder, Delivery, Fairness, Limit, Record, RetryOrder, Sharing,
};
use tokio::time::{Instant, sleep};

const ONE: Topic<u64> = Topic::new("numbers").partitions(1);
const LARGE: Topic<String> = Topic::new("large").partitions(1);
const WIDE: Topic<u64> = Topic::new("numbers").partitions(4);
const SECOND: Duration = Duration::from_secs(1);

fn tenants() -> Fairness {
    Fairness::by_header("tenant")
}

/// Sends so many messages of a tenant, on 50 keys.
async fn send(bench: &Bench, topic: Topic<u64>, tenant: &str, values: std::ops::Range<u64>) {
    let producer = bench.producer(topic).await;
    let values: Vec<_> = values.collect();
    let record = |n| Record::new(n).key(format!("{tenant}-{}", n % 50)).header("tenant", tenant);
    let sent = producer.send_all(values.iter().map(record)).await;
    assert!(sent.iter().all(Result::is_ok));
}

fn of(tenant: &str) -> impl Fn(&Call) -> bool + '_ {
    move |call| call.key.as_deref().is_some_and(|key| key.starts_with(tenant))
}

fn by_tenant(delivery: &Delivery<u64>, tenant: &str) -> bool {
    delivery.headers().get("tenant").is_some_and(|it| it == tenant)
}

/// Starts a consumer whose handlers take `a` for messages of tenant `a`, and `others` for the rest.
async fn start(builder: ConsumerBuilder<u64>, course: &Scenario, a: Duration, others: Duration) -> Consumer {
    let course = course.clone();
    let started = builder.start(move |delivery: Delivery<u64>| {
        let running = course.begin(&delivery);
        let takes = if by_tenant(&delivery, "a") { a } else { others };
        async move {
            sleep(takes).await;
            drop::<Running>(running);
        }
    });
    started.await.expect("started")
}

/// Handler time of a tenant between two moments.
fn served(calls: &[Call], tenant: &str, from: Instant, to: Instant) -> f64 {
    let within = |call: &Call| {
        let ended = call.ended.unwrap_or(to).min(to);
        ended.saturating_duration_since(call.began.max(from)).as_secs_f64()
    };
    calls.iter().filter(|call| of(tenant)(call)).map(within).sum()
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_delays_no_other() {
    for concurrency in [Concurrency::PerKey(8), Concurrency::Unordered(8)] {
        let bench = bench();
        let course = Scenario::default();
        let builder = bench.consumer(ONE, "g").concurrency(concurrency).fair_by(tenants());
        let consumer = start(builder, &course, MS(5), MS(5)).await;
        send(&bench, ONE, "a", 0..20_000).await;
        let mut sent = BTreeMap::new();
        for n in 100_000..100_060 {
            sent.insert(n, Instant::now());
            send(&bench, ONE, "b", n..n + 1).await;
            sleep(MS(37)).await;
        }
        let waits: Vec<_> =
            course.calls().into_iter().filter(of("b")).map(|call| call.began - sent[&call.value]).collect();
        // To send takes 1 ms, and all handlers end together, every 5 ms.
        assert!(waits.len() >= 59 && waits.iter().all(|wait| *wait <= MS(7)), "{waits:?}");
        assert_eq!(course.at_once(|_| true), 8, "nobody waits while a handler is free");
        assert!(consumer.health().in_flight > 10_000, "what waits was read");
        for (key, values) in course.by_key() {
            let ordered = values.is_sorted_by_key(|(value, _)| *value);
            assert!(ordered || concurrency == Concurrency::Unordered(8), "{key}: {values:?}");
        }
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn time_is_shared_by_weight_and_not_by_count() {
    for (weight, takes) in [(3, 5), (1, 50), (3, 50)] {
        let bench = bench();
        send(&bench, WIDE, "a", 0..8_000).await;
        send(&bench, WIDE, "b", 100_000..108_000).await;
        let course = Scenario::default();
        let fairness = tenants().weight(move |tenant| if tenant == b"a" { weight } else { 1 });
        let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(4)).fair_by(fairness);
        let consumer = start(builder, &course, MS(takes), MS(5)).await;
        sleep(MS(200)).await;
        let from = Instant::now();
        sleep(SECOND).await;
        let to = Instant::now();
        let calls = course.calls();
        let share = served(&calls, "a", from, to) / served(&calls, "b", from, to);
        let expected = f64::from(weight);
        assert!((share / expected - 1.0).abs() < 0.05, "{share} and not {expected}, with {takes} ms");
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_read_ahead_than_may_be() {
    let bench = bench();
    send(&bench, ONE, "a", 0..5_000).await;
    send(&bench, ONE, "b", 100_000..100_001).await;
    let course = Scenario::default();
    let fairness = tenants().read_ahead(1_000);
    let builder = bench.consumer(ONE, "g").concurrency(Concurrency::PerKey(4)).prefetch(64).fair_by(fairness);
    let consumer = start(builder, &course, MS(5), MS(5)).await;
    let mut most = 0;
    while course.count() < 5_001 {
        most = most.max(consumer.health().in_flight);
        sleep(MS(5)).await;
    }
    assert!((1_000..=1_000 + 2 * 64).contains(&most), "{most}");
    let calls = course.calls();
    let before_b = calls.iter().position(of("b")).expect("b");
    assert!((3_800..4_200).contains(&before_b), "{before_b} came before it");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failed_messages_that_wait_in_place_cost_their_tenant() {
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(2)] {
        let bench = bench();
        send(&bench, ONE, "a", 0..400).await;
        send(&bench, ONE, "b", 100_000..100_400).await;
        let course = Scenario::default();
        let builder = bench
            .consumer(ONE, "g")
            .concurrency(concurrency)
            .retry_order(RetryOrder::BlockKey)
            .fair_by(tenants());
        let of_calls = course.clone();
        let started = builder.start(move |delivery: Delivery<u64>| {
            let running = of_calls.begin(&delivery);
            async move {
                sleep(MS(10)).await;
                drop(running);
                let fails = by_tenant(&delivery, "a") && delivery.attempt() < 3;
                if fails { Outcome::retry_after(MS(1), "not yet") } else { Outcome::Ack }
            }
        });
        let consumer = started.await.expect("started");
        let from = Instant::now();
        sleep(SECOND * 2).await;
        let calls = course.calls();
        let share = served(&calls, "a", from, Instant::now()) / served(&calls, "b", from, Instant::now());
        assert!((0.9..=1.1).contains(&share), "{share}");
        course.until(1_600).await;
        for (key, values) in course.by_key() {
            assert!(values.is_sorted(), "{key}: {values:?}");
        }
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_charged_once() {
    let bench = bench();
    send(&bench, ONE, "a", 0..2_000).await;
    send(&bench, ONE, "b", 100_000..102_000).await;
    let course = Scenario::default();
    let builder = bench.consumer(ONE, "g").concurrency(Concurrency::Unordered(4)).fair_by(tenants());
    let of_calls = course.clone();
    let started = builder.start_batch((20, MS(1)), move |batch: Batch<u64>| {
        let running: Vec<_> = batch.iter().map(|delivery| of_calls.begin(delivery)).collect();
        async move {
            sleep(MS(10)).await;
            drop(running);
            Ok::<(), millstream_core::BoxError>(())
        }
    });
    let consumer = started.await.expect("started");
    course.until(1_200).await;
    // Before the others were read it was alone.
    let a = course.calls().iter().take(1_200).skip(200).filter(|call| of("a")(call)).count();
    assert!((480..=520).contains(&a), "{a} of 1,000");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_limit_delays_no_other() {
    let bench = bench();
    let course = Scenario::default();
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(8))
        .limit(Limit::by_header("tenant", "tenant").at_most(2))
        .fair_by(tenants());
    let consumer = start(builder, &course, MS(5), MS(5)).await;
    send(&bench, ONE, "a", 0..3_000).await;
    sleep(MS(100)).await;
    let began = Instant::now();
    send(&bench, ONE, "b", 100_000..100_001).await;
    let has_begun = || course.calls().iter().any(of("b"));
    eventually(has_begun, || "b did not begin".into()).await;
    assert!(began.elapsed() <= MS(10), "{:?}", began.elapsed());
    course.until(3_001).await;
    assert_eq!(course.at_once(of("a")), 2);
    consumer.shutdown().await;
}

/// A limit of units and one of tokens that all tenants share, and beside them one for each user of a tenant.
#[tokio::test(start_paused = true)]
async fn tenants_share_a_limit_in_turns() {
    let users = |message: &Envelope| {
        let key = message.key.as_ref()?;
        Some(LimitKey::new([key]).expect("a key"))
    };
    let rate = Limit::new("api", |_| Some(LimitKey::all())).rate(Rate::per_second(400));
    let units = Limit::new("api", |_| Some(LimitKey::all())).at_most(2);
    for (limit, most) in [(units, MS(40)), (rate, MS(400))] {
        let bench = bench();
        let course = Scenario::default();
        let builder = bench
            .consumer(ONE, "g")
            .concurrency(Concurrency::Unordered(32))
            .limit(limit)
            .limit(Limit::new("user", users).at_most(1))
            .fair_by(tenants());
        let consumer = start(builder, &course, MS(5), MS(5)).await;
        send(&bench, ONE, "a", 0..4_000).await;
        sleep(MS(500)).await;
        for n in 100_000..100_020 {
            let sent = Instant::now();
            send(&bench, ONE, "b", n..n + 1).await;
            let begun = || course.calls().iter().any(|call| call.value == n);
            eventually(begun, || format!("{n} did not begin")).await;
            assert!(sent.elapsed() <= most, "{:?}", sent.elapsed());
        }
        // None is left behind, and what the limit allows is used.
        let (count, from) = (course.count(), Instant::now());
        sleep(SECOND).await;
        let begun = course.count() - count;
        assert!((380..=420).contains(&begun), "{begun} in {:?}", from.elapsed());
        course.until(4_020).await;
        consumer.shutdown().await;
    }
}

/// What one partition lets go while the only handler is with another one goes on.
#[tokio::test(start_paused = true)]
async fn partitions_that_share_a_handler_and_a_limit_go_on() {
    let bench = bench();
    send(&bench, WIDE, "a", 0..1_500).await;
    send(&bench, WIDE, "b", 100_000..100_300).await;
    let course = Scenario::default();
    let all = |name| Limit::new(name, |_| Some(LimitKey::all()));
    let builder = bench
        .consumer(WIDE, "g")
        .concurrency(Concurrency::Unordered(16))
        .max_handlers(1)
        .limit(all("one").at_most(12))
        .limit(all("other").rate(Rate::per_second(150)))
        .fair_by(tenants());
    let consumer = start(builder, &course, MS(5), MS(5)).await;
    course.until(1_800).await;
    assert_eq!(course.at_once(|_| true), 1);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_taken_over() {
    let bench = bench();
    let (link, builder) = linked(&bench, ONE);
    let build = |builder: ConsumerBuilder<u64>| {
        builder.concurrency(Concurrency::PerKey(8)).lease_ttl(SECOND).fair_by(tenants())
    };
    let (first, second) = (Scenario::default(), Scenario::default());
    let dead = start(build(builder), &first, MS(20), MS(20)).await;
    send(&bench, ONE, "a", 0..3_000).await;
    first.until(100).await;
    assert!(dead.health().in_flight > 2_000);
    link.cut();
    let (_other, builder) = linked(&bench, ONE);
    let consumer = start(build(builder), &second, MS(5), MS(5)).await;
    second.until(1).await;
    sleep(MS(100)).await;
    let began = Instant::now();
    send(&bench, ONE, "b", 100_000..100_001).await;
    eventually(|| second.calls().iter().any(of("b")), || "b did not begin".into()).await;
    assert!(began.elapsed() <= MS(10), "{:?}", began.elapsed());
    let missing = || {
        let mut all: Vec<_> = first.calls().into_iter().filter(|call| call.ended.is_some()).collect();
        all.extend(second.calls());
        (0..3_000).filter(|n| all.iter().all(|call| call.value != *n)).count()
    };
    eventually(|| missing() == 0, || format!("{} were not handled", missing())).await;
    for (key, values) in second.by_key() {
        assert!(values.is_sorted(), "{key}: {values:?}");
    }
    consumer.shutdown().await;
    drop(dead);
}

/// Sends payloads of 64 KiB with a number in front.
async fn send_large(bench: &Bench, tenant: &str, values: std::ops::Range<u64>) -> Vec<MessageId> {
    let producer = bench.producer(LARGE).await;
    let payload = |n| (n, format!("{n:06}{}", "x".repeat(64 << 10)));
    let payloads: Vec<(u64, String)> = values.map(payload).collect();
    let record =
        |(n, payload)| Record::new(payload).key(format!("{tenant}-{}", n % 50)).header("tenant", tenant);
    let sent = producer.send_all(payloads.iter().map(|(n, payload)| record((n, payload)))).await;
    sent.into_iter().map(|sent| sent.expect("sent").id).collect()
}

/// Handles large messages, each for 5 ms. Returns their numbers, and when they began.
async fn start_large(builder: ConsumerBuilder<String>) -> (Consumer, Arc<Mutex<Vec<(u64, Instant)>>>) {
    let seen: Arc<Mutex<Vec<_>>> = Arc::default();
    let noted = seen.clone();
    let started = builder.start(move |delivery: Delivery<String>| {
        assert!(delivery.payload.len() == (64 << 10) + 6 && delivery.headers().get("tenant").is_some());
        let number = delivery.payload[..6].parse().expect("a number");
        noted.lock().expect("lock").push((number, Instant::now()));
        sleep(MS(5))
    });
    (started.await.expect("started"), seen)
}

#[tokio::test(start_paused = true)]
async fn bodies_of_a_flood_wait_on_the_server() {
    let bench = bench();
    let builder = ConsumerBuilder::new(bench.backend.clone(), LARGE, "g", Arc::new(bench.told.clone()));
    let builder = builder.concurrency(Concurrency::PerKey(4)).fair_by(tenants());
    let (consumer, seen) = start_large(builder).await;
    // Of 37 MiB, 16 are in memory. Another client deletes some of those that wait.
    let ids = send_large(&bench, "a", 0..600).await;
    send_large(&bench, "c", 1_000..1_100).await;
    let place = TopicPartition::new("large".parse().expect("a name"), 0);
    let has_read = || consumer.health().in_flight >= 600;
    eventually(has_read, || "it was not read".into()).await;
    for n in [570, 571, 590] {
        assert!(bench.memory.operator().delete_entry(&place, ids[n]));
    }
    for n in 2_000..2_040 {
        let sent = Instant::now();
        send_large(&bench, "b", n..n + 1).await;
        let begun = || seen.lock().expect("lock").iter().find(|(number, _)| *number == n).map(|it| it.1);
        eventually(|| begun().is_some(), || format!("{n} did not begin")).await;
        assert!(begun().expect("begun") - sent <= MS(7), "{n}");
    }
    eventually(
        || seen.lock().expect("lock").len() == 737,
        || format!("{}", seen.lock().expect("lock").len()),
    )
    .await;
    let mut all: Vec<_> = seen.lock().expect("lock").iter().map(|(number, _)| *number).collect();
    for key in 0..50 {
        let of_key: Vec<_> = all.iter().filter(|n| **n < 600 && **n % 50 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 737);
    bench.told.wait_for("Ghosts").await;
    eventually(|| consumer.health().in_flight == 0, || format!("{} are left", consumer.health().in_flight))
        .await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn members_that_share_partitions_are_fair_with_what_they_have() {
    let bench = bench();
    send(&bench, ONE, "a", 0..200).await;
    send(&bench, ONE, "b", 100_000..100_200).await;
    let course = Scenario::default();
    let builder = bench
        .consumer(ONE, "g")
        .concurrency(Concurrency::Unordered(4))
        .sharing(Sharing::Shared)
        .prefetch(400)
        .fair_by(tenants());
    let consumer = start(builder, &course, MS(5), MS(5)).await;
    course.until(400).await;
    let a = course.calls().iter().take(200).filter(|call| of("a")(call)).count();
    assert!((80..=120).contains(&a), "{a} of the first 200");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn messages_without_a_tenant_are_one_more_and_panics_are_reported() {
    let bench = bench();
    let fairness = Fairness::new(|message: &Envelope| match message.headers.get("tenant") {
        Some(tenant) if tenant == "bad" => panic!("no tenant"),
        tenant => tenant.cloned(),
    })
    .weight(|tenant| if tenant == b"a" { panic!("no weight") } else { 0 });
    let course = Scenario::default();
    let builder = bench.consumer(ONE, "g").concurrency(Concurrency::Unordered(2)).fair_by(fairness);
    let consumer = start(builder, &course, MS(5), MS(5)).await;
    for tenant in ["a", "bad", "b"] {
        send(&bench, ONE, tenant, 0..20).await;
    }
    let producer = bench.producer(ONE).await;
    producer.send(&1).await.expect("sent");
    course.until(61).await;
    assert_eq!(bench.told.lines("Fairness"), 21);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn settings_that_contradict_each_other_are_refused() {
    let bench = bench();
    let serial = bench.consumer(ONE, "g").fair_by(tenants());
    let partition = serial.retry_order(RetryOrder::BlockPartition);
    let nothing =
        bench.consumer(ONE, "g").concurrency(Concurrency::PerKey(2)).fair_by(tenants().read_ahead(0));
    for (builder, why) in [
        (bench.consumer(ONE, "g").fair_by(tenants()), "fair_by and priorities go with"),
        (partition, "fair_by and priorities go with"),
        (nothing, "read_ahead is 0"),
    ] {
        let error = builder.start(async |_: Delivery<u64>| {}).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(why), "{error}");
    }
}
