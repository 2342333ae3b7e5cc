//! Limits when instances die, stop or are paused, when the server is away or forgets, and when operators change the rules.

use std::sync::Arc;
use std::time::Duration;

use super::{SECOND, WIDE, all_free, of, send, start, tenant};
use crate::support::scenario::{Scenario, linked};
use crate::support::*;
use millstream_core::{Capability, ErrorKind, LimitBound, LimitKey, Outcome, Topic};
use millstream_runtime::{Concurrency, ConsumerBuilder, Delivery, Limit, RetryOrder};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn what_a_dead_instance_had_is_free_within_its_ttl_and_a_second() {
    let bench = bench();
    const OTHER: Topic<u64> = Topic::new("others");
    send(&bench, NUMBERS, 1, &["a"]).await;
    let (one, two) = (Scenario::default(), Scenario::default());
    let ttl = SECOND * 6;
    let (link, builder) = linked(&bench, NUMBERS);
    let dead = start(builder.lease_ttl(ttl).limit(tenant()), &one, SECOND * 3_600).await;
    one.until(1).await;
    let builder = bench.consumer(OTHER, "g").lease_ttl(ttl).limit(tenant());
    let alive = start(builder, &two, SECOND).await;
    // Whoever has been answered for a ttl may judge.
    send(&bench, OTHER, 1, &["a"]).await;
    sleep(ttl * 2).await;
    assert_eq!(two.count(), 0, "the other one lives");
    link.cut();
    let cut = Instant::now();
    two.until(1).await;
    assert!(cut.elapsed() <= ttl + SECOND, "{:?}", cut.elapsed());
    alive.shutdown().await;
    dead.shutdown_within(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn who_was_stopped_for_longer_is_told_and_what_it_did_does_not_count() {
    let bench = bench();
    const OTHER: Topic<u64> = Topic::new("others");
    send(&bench, NUMBERS, 1, &["a"]).await;
    let (one, two) = (Scenario::default(), Scenario::default());
    let ttl = SECOND * 6;
    let (link, builder) = linked(&bench, NUMBERS);
    let (course, told) = (one.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let noted = told.clone();
    let stopped = builder.lease_ttl(ttl).limit(tenant()).start(move |delivery: Delivery<u64>| {
        let (running, noted) = (course.begin(&delivery), noted.clone());
        async move {
            delivery.cancelled().await;
            noted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            drop(running);
        }
    });
    let stopped = stopped.await.expect("started");
    one.until(1).await;
    let alive = start(bench.consumer(OTHER, "g").lease_ttl(ttl).limit(tenant()), &two, SECOND * 30).await;
    send(&bench, OTHER, 1, &["a"]).await;
    sleep(ttl * 2).await;
    link.freeze();
    two.until(1).await;
    assert_eq!(told.load(std::sync::atomic::Ordering::Relaxed), 1, "before another one begins");
    link.thaw();
    // It is handled again, when the other one is done: what came of it before does not count.
    one.until(2).await;
    assert_eq!(two.at_once(|_| true) + one.at_once(|call| call.ended.is_none()), 2);
    let second = one.calls().pop().expect("a call");
    assert!(two.calls()[0].ended.is_some_and(|ended| ended <= second.began), "not beside the other one");
    assert_eq!(second.attempt, 1, "it is no attempt");
    alive.shutdown().await;
    stopped.shutdown_within(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_two_ttls_loses_nothing_and_leaks_nothing() {
    let bench = bench();
    send(&bench, WIDE, 60, &["a", "b"]).await;
    let ttl = SECOND * 6;
    let course = Scenario::default();
    let mut both = Vec::new();
    for _ in 0..2 {
        let (link, builder) = linked(&bench, WIDE);
        let builder = builder.lease_ttl(ttl).concurrency(Concurrency::Unordered(4)).limit(tenant());
        both.push((link, start(builder, &course, SECOND).await));
    }
    course.until(10).await;
    for away in [ttl / 2, ttl, ttl * 2] {
        both.iter().for_each(|(link, _)| link.away.store(true, std::sync::atomic::Ordering::Relaxed));
        sleep(away).await;
        both.iter().for_each(|(link, _)| link.away.store(false, std::sync::atomic::Ordering::Relaxed));
        let before = course.count();
        eventually(|| course.count() >= 56 || course.count() > before + 4, || "it goes on".into()).await;
    }
    let all = || (0..60).all(|n| course.calls().iter().any(|call| call.value == n && call.ended.is_some()));
    eventually(all, || format!("{:?}", course.order())).await;
    for tenant in ["a", "b"] {
        assert_eq!(course.at_once(of(tenant)), 1);
    }
    for (_, consumer) in both {
        consumer.shutdown().await;
    }
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn rules_of_operators_are_seen_at_once_and_stay() {
    let bench = bench();
    send(&bench, WIDE, 60, &["a"]).await;
    let permits = bench.backend.permits().expect("permits").clone();
    let course = Scenario::default();
    let builder = || bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(8)).limit(tenant());
    let consumer = start(builder(), &course, SECOND).await;
    course.until(2).await;
    permits
        .set_limit_rule(&"tenant".parse().expect("a pattern"), Some(LimitBound::AtMost(4)))
        .await
        .expect("set");
    sleep(SECOND).await;
    let now = || course.calls().iter().filter(|call| call.ended.is_none()).count();
    eventually(|| now() == 4, || format!("{} at once", now())).await;
    assert_eq!(course.at_once(|_| true), 4);
    permits
        .set_limit_rule(&"tenant:a".parse().expect("a pattern"), Some(LimitBound::AtMost(0)))
        .await
        .expect("set");
    sleep(SECOND * 2).await;
    assert_eq!(now(), 0, "closed");
    let before = course.count();
    sleep(SECOND * 600).await;
    assert_eq!(course.count(), before);
    consumer.shutdown().await;
    // A program that starts sets nothing back.
    let consumer = start(builder().limit(Limit::global("all").at_most(9)), &course, SECOND).await;
    sleep(SECOND * 600).await;
    assert_eq!(course.count(), before);
    permits.set_limit_rule(&"tenant:a".parse().expect("a pattern"), None).await.expect("set");
    course.until(60).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn paused_and_stopped_consumers_have_nothing_in_hand() {
    let bench = bench();
    send(&bench, WIDE, 40, &["a"]).await;
    let course = Scenario::default();
    let builder = || bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(4)).limit(tenant());
    let consumer = start(builder(), &course, MS(100)).await;
    course.until(5).await;
    consumer.pause();
    all_free(&bench).await;
    let before = course.count();
    consumer.resume();
    course.until(before + 5).await;
    consumer.shutdown().await;
    all_free(&bench).await;
    let consumer = start(builder(), &course, MS(100)).await;
    course.until(40).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_told_at_the_start() {
    let bench = bench();
    for limits in [vec![Limit::global("a b")], vec![Limit::global("a"), Limit::by_key("a")]] {
        let builder = limits.into_iter().fold(bench.consumer(NUMBERS, "g"), ConsumerBuilder::limit);
        let error = builder.start(async |_: Delivery<u64>| {}).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let without = bench.backend.clone().without(Capability::Permits);
    let builder = ConsumerBuilder::new(without, NUMBERS, "g", Arc::new(bench.told.clone()));
    let limit = Limit::new("tenant", |_| LimitKey::new(["a", "b"]).ok());
    let error = builder.limit(limit).start(async |_: Delivery<u64>| {}).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_forgot_of_who_waits_is_told_again() {
    let bench = bench();
    send(&bench, NUMBERS, 1, &["a"]).await;
    let course = Scenario::default();
    let ttl = SECOND * 6;
    let limited = |topic| bench.consumer(topic, "g").lease_ttl(ttl).limit(tenant());
    let consumer = start(limited(NUMBERS), &course, SECOND * 30).await;
    course.until(1).await;
    // As a fail-over that lost the last writes.
    let earlier = bench.memory.operator().snapshot();
    const OTHER: Topic<u64> = Topic::new("others");
    send(&bench, OTHER, 1, &["a"]).await;
    let waits = Scenario::default();
    let other = start(limited(OTHER), &waits, MS(1)).await;
    sleep(SECOND * 10).await;
    assert_eq!(waits.count(), 0);
    bench.memory.operator().restore(&earlier);
    send(&bench, OTHER, 1, &["a"]).await;
    waits.until(1).await;
    consumer.shutdown().await;
    other.shutdown().await;
    all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_retry_and_for_units_keeps_the_order_and_stops_nobody() {
    const OTHER: Topic<u64> = Topic::new("others");
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(1)] {
        let bench = bench();
        send(&bench, NUMBERS, 30, &["a", "b"]).await;
        let course = Scenario::default();
        let builder = bench.consumer(NUMBERS, "g").concurrency(concurrency).retry_order(RetryOrder::BlockKey);
        let noted = course.clone();
        let one = builder.limit(Limit::global("all")).start(move |delivery: Delivery<u64>| {
            drop(noted.begin(&delivery));
            let fails = delivery.attempt() == 1 && delivery.payload.is_multiple_of(4);
            async move { if fails { Outcome::retry_after(MS(30), "no") } else { Outcome::Ack } }
        });
        let one = one.await.expect("started");
        // Another one takes the only unit again and again.
        let other = Scenario::default();
        let two = start(bench.consumer(OTHER, "g").limit(Limit::global("all")), &other, MS(20)).await;
        send(&bench, OTHER, 30, &["a"]).await;
        let all = || course.order().iter().filter(|(n, attempt)| n % 4 != 0 || *attempt == 2).count() == 30;
        eventually(all, || format!("{concurrency:?}: {:?}", course.order())).await;
        other.until(30).await;
        for (key, calls) in course.by_key() {
            assert!(calls.is_sorted(), "{concurrency:?}, {key}: {calls:?}");
        }
        one.shutdown().await;
        two.shutdown().await;
        all_free(&bench).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_much_to_do_leaves_others_their_turn() {
    const OTHER: Topic<u64> = Topic::new("others");
    let bench = bench();
    send(&bench, WIDE, 400, &["a"]).await;
    let (busy, rare) = (Scenario::default(), Scenario::default());
    let limited = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(8)).limit(tenant());
    let first = start(limited, &busy, MS(10)).await;
    let second = start(bench.consumer(OTHER, "g").limit(tenant()), &rare, MS(10)).await;
    busy.until(20).await;
    let begun = busy.count();
    send(&bench, OTHER, 5, &["a"]).await;
    rare.until(5).await;
    let others = busy.count() - begun;
    assert!(others < 100, "{others} others were handled before five");
    first.shutdown().await;
    second.shutdown().await;
}
