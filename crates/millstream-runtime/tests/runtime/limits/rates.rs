//! Rates: how many messages of a key begin in a time, across consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{SECOND, WIDE, all_free, of, send, start, tenant};
use crate::support::scenario::{Call, Scenario, linked};
use crate::support::*;
use millstream_core::{LimitBound, Outcome, Rate, Topic};
use millstream_runtime::{Concurrency, Delivery, Limit};
use tokio::time::{Instant, sleep};

fn in_all(rate: Rate) -> Limit {
    Limit::global("in-all").rate(rate)
}

/// Returns the most calls that began in any window of this length, and the fewest in whole windows one after the other.
fn windows(calls: &[Call], length: Duration) -> (usize, usize) {
    let mut times: Vec<_> = calls.iter().map(|call| call.began).collect();
    times.sort_unstable();
    let Some(first) = times.first().copied() else { return (0, 0) };
    let within = |from: Instant| times.iter().filter(|at| (from..from + length).contains(at)).count();
    let most = times.iter().map(|from| within(*from)).max().unwrap_or(0);
    let last = times.last().copied().unwrap_or(first);
    let whole = (0..).map(|n| first + length * n).take_while(|from| *from + length <= last);
    (most, whole.map(within).min().unwrap_or(0))
}

#[tokio::test(start_paused = true)]
async fn so_many_begin_in_a_time_across_instances_and_topics() {
    const OTHER: Topic<u64> = Topic::new("others").partitions(2);
    let bench = bench();
    send(&bench, WIDE, 400, &["a"]).await;
    send(&bench, OTHER, 200, &["a"]).await;
    let course = Scenario::default();
    let mut consumers = Vec::new();
    for (topic, group) in [(WIDE, "g"), (WIDE, "g"), (OTHER, "g")] {
        let builder = bench.consumer(topic, group).concurrency(Concurrency::Unordered(32));
        consumers.push(start(builder.limit(in_all(Rate::per_second(100))), &course, MS(3)).await);
    }
    course.until(600).await;
    let (most, fewest) = windows(&course.calls(), SECOND);
    // What may be late is 5 of them.
    assert!(most <= 106 && fewest >= 97, "{fewest} to {most} in a second");
    for consumer in consumers {
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_rate_has_no_units() {
    let bench = bench();
    send(&bench, WIDE, 12, &["a", "b"]).await;
    let course = Scenario::default();
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(16));
    let slow = Limit::by_header("slow", "tenant").rate(Rate::per_minute(1));
    let consumer = start(builder.limit(tenant().at_most(3)).limit(slow), &course, SECOND).await;
    course.until(2).await;
    sleep(SECOND * 5).await;
    all_free(&bench).await;
    assert_eq!((course.count(), consumer.health().waiting.iter().map(|it| it.1).sum::<usize>()), (2, 10));
    sleep(SECOND * 300).await;
    course.until(12).await;
    assert!(windows(&course.calls(), SECOND * 59).0 <= 2, "one of each tenant in a minute");
    assert_eq!(course.at_once(|_| true), 2);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn units_and_tokens_are_had_together() {
    let bench = bench();
    send(&bench, WIDE, 120, &["a", "b", "c"]).await;
    let course = Scenario::default();
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(16));
        let limited = builder.limit(tenant()).limit(in_all(Rate::per_second(10)));
        consumers.push(start(limited, &course, MS(350)).await);
    }
    // One of each of three tenants, each for 350 ms: 8.6 a second are almost what the rate has. Both together reach less.
    let begun = Instant::now();
    course.until(120).await;
    for tenant in ["a", "b", "c"] {
        assert_eq!(course.at_once(of(tenant)), 1, "{tenant}");
    }
    let took = begun.elapsed();
    assert!(windows(&course.calls(), SECOND).0 <= 12 && took < SECOND * 30, "{took:?}");
    for consumer in consumers {
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_order_of_a_key_is_kept_at_a_rate() {
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(8)] {
        let bench = bench();
        send(&bench, WIDE, 60, &["a", "b"]).await;
        let course = Scenario::default();
        let builder = bench.consumer(WIDE, "g").concurrency(concurrency);
        let limit = Limit::by_header("tenant", "tenant").rate(Rate::per_second(5));
        let consumer = start(builder.limit(limit), &course, MS(1)).await;
        course.until(60).await;
        for (key, values) in course.by_key() {
            assert!(values.is_sorted_by_key(|(value, _)| *value), "{key}: {values:?}");
        }
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_over_a_quota_are_dropped() {
    let bench = bench();
    send(&bench, WIDE, 40, &["a", "b"]).await;
    let course = Scenario::default();
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(16));
    let quota = Limit::by_header("daily", "tenant").quota(Rate::per_day(7));
    // What is over this one waits.
    let limited = builder.limit(quota).limit(in_all(Rate::per_second(2)));
    let consumer = start(limited, &course, MS(1)).await;
    for tenant in ["a", "b"] {
        bench.told.wait_for_lines(&format!("over the limit daily:{tenant}"), 13).await;
    }
    course.until(14).await;
    assert_eq!((course.count(), course.calls().iter().filter(|call| of("a")(call)).count()), (14, 7));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_closed_is_closed_for_all() {
    let bench = bench();
    send(&bench, WIDE, 60, &["a", "b"]).await;
    let (course, other) = (Scenario::default(), Scenario::default());
    let limit = || Limit::by_header("api", "tenant").rate(Rate::per_second(10));
    let limited = || bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(16)).limit(limit());
    let (told, once) = (course.clone(), Arc::new(AtomicBool::new(false)));
    let closing = limited().start(move |delivery: Delivery<u64>| {
        let (running, told_once) = (told.begin(&delivery), once.clone());
        async move {
            drop(running);
            // The API says once: not for a minute.
            let of_a = delivery.headers().get("tenant").is_some_and(|it| it == "a");
            if of_a && !told_once.swap(true, Ordering::Relaxed) {
                delivery.close_rates(SECOND * 60);
                return Outcome::Snooze(SECOND * 60);
            }
            Outcome::Ack
        }
    });
    let closing = closing.await.expect("started");
    let second = start(limited(), &other, MS(1)).await;
    sleep(SECOND * 50).await;
    let all = || [course.calls(), other.calls()].concat();
    let of_a = |calls: Vec<Call>| calls.into_iter().filter(|call| of("a")(call)).count();
    let others = all().len() - of_a(all());
    assert_eq!(others, 30, "of the tenant that is open");
    assert!(of_a(all()) <= 8, "{} of the other one", of_a(all()));
    // The first minute is over then, and 30 take three seconds more.
    sleep(SECOND * 30).await;
    assert!(of_a(all()) >= 30, "{} of the other one at last", of_a(all()));
    second.shutdown().await;
    closing.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_an_estimate_that_is_corrected() {
    for (actual, expected) in [(10, 19..22), (5, 9..12), (20, 38..42)] {
        let bench = bench();
        send(&bench, WIDE, 40, &["a"]).await;
        let course = Scenario::default();
        let name = format!("tokens-{actual}");
        let limit = Limit::global(&name).rate(Rate::per_second(20).burst(10)).cost(|_| 10);
        let builder = bench.consumer(WIDE, &name).concurrency(Concurrency::Unordered(4)).limit(limit);
        let (told, of_limit, all_known) = (course.clone(), name.clone(), Arc::new(AtomicBool::new(false)));
        let known = all_known.clone();
        let consumer = builder.start(move |delivery: Delivery<u64>| {
            let (running, name, told_all) = (told.begin(&delivery), of_limit.clone(), known.clone());
            async move {
                drop(running);
                // The last one counts.
                let known = delivery.correct_cost(&name, 500) && delivery.correct_cost(&name, actual);
                told_all.store(known && !delivery.correct_cost("none", 1), Ordering::Relaxed);
            }
        });
        let (consumer, begun) = (consumer.await.expect("started"), Instant::now());
        course.until(40).await;
        let took = begun.elapsed().as_secs();
        assert!(all_known.load(Ordering::Relaxed), "the limit is known, and another one is not");
        assert!(expected.contains(&took), "{took} s for 40 times {actual} tokens, 20 a second");
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_dies_takes_half_a_second_along_at_most() {
    let bench = bench();
    send(&bench, WIDE, 600, &["a"]).await;
    let (dies, lives) = (Scenario::default(), Scenario::default());
    let rate = || in_all(Rate::per_second(100));
    let (link, builder) = linked(&bench, WIDE);
    let dead = start(builder.concurrency(Concurrency::Unordered(32)).limit(rate()), &dies, MS(1)).await;
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(32)).limit(rate());
    let alive = start(builder, &lives, MS(1)).await;
    sleep(SECOND * 2).await;
    link.cut();
    let cut = Instant::now();
    eventually(|| lives.count() + dies.count() >= 600, || format!("{} {}", lives.count(), dies.count()))
        .await;
    let calls = [dies.calls(), lives.calls()].concat();
    assert!(windows(&calls, SECOND).0 <= 106, "{:?}", windows(&calls, SECOND));
    let soon = calls.iter().filter(|call| call.began > cut && call.began < cut + SECOND * 2).count();
    assert!(soon >= 120, "{soon} in the two seconds after it died");
    alive.shutdown().await;
    dead.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_makes_no_tokens() {
    let bench = bench();
    send(&bench, WIDE, 900, &["a"]).await;
    let (link, builder) = linked(&bench, WIDE);
    let ttl = SECOND * 6;
    let course = Scenario::default();
    let limited = builder.concurrency(Concurrency::Unordered(32)).lease_ttl(ttl);
    let consumer = start(limited.limit(in_all(Rate::per_second(50))), &course, MS(1)).await;
    for away in [ttl / 2, ttl, ttl * 2] {
        sleep(SECOND * 2).await;
        link.freeze();
        sleep(away).await;
        link.thaw();
    }
    let (before, begun) = (course.count(), Instant::now());
    course.until(before + 100).await;
    assert!(begun.elapsed() < ttl, "{:?} for 100 at last", begun.elapsed());
    assert!(windows(&course.calls(), SECOND).0 <= 55, "{:?}", windows(&course.calls(), SECOND));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn rules_of_operators_count_at_once() {
    let bench = bench();
    send(&bench, WIDE, 60, &["a"]).await;
    let course = Scenario::default();
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(16));
    let consumer = start(builder.limit(in_all(Rate::per_hour(1))), &course, MS(1)).await;
    course.until(1).await;
    sleep(SECOND * 5).await;
    let permits = Arc::clone(bench.backend.permits().expect("permits"));
    let set = async |bound| {
        permits.set_limit_rule(&"in-all".parse().expect("a pattern"), bound).await.expect("set")
    };
    set(Some(LimitBound::Rate(Rate::per_second(10)))).await;
    let begun = Instant::now();
    course.until(21).await;
    assert!(begun.elapsed() < SECOND * 4, "{:?}", begun.elapsed());
    set(Some(LimitBound::Rate(Rate::per_second(0)))).await;
    sleep(SECOND).await;
    let before = course.count();
    sleep(SECOND * 100).await;
    assert_eq!(course.count(), before, "no tokens at all");
    set(Some(LimitBound::Rate(Rate::per_second(1_000)))).await;
    course.until(60).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_keys_that_wait_cost_few_requests() {
    let bench = bench();
    let producer = bench.producer(WIDE).await;
    for n in 0..2_000_u64 {
        producer.send(&n).header("tenant", format!("t{}", n % 1_000)).await.expect("sent");
    }
    let (link, builder) = linked(&bench, WIDE);
    let course = Scenario::default();
    let limit = Limit::by_header("tenant", "tenant").rate(Rate::per_minute(1));
    let consumer = start(builder.concurrency(Concurrency::Unordered(64)).limit(limit), &course, MS(1)).await;
    course.until(1_000).await;
    sleep(SECOND * 5).await;
    // Those that came up to now.
    drop(link.calls());
    sleep(SECOND * 40).await;
    assert_eq!(course.count(), 1_000, "one of each in a minute");
    let calls = link.calls();
    let reserved = calls.get("reserve").copied().unwrap_or(0);
    // Each asks again after half of the time that is left.
    assert!(reserved <= 40, "{reserved} requests while all wait: {calls:?}");
    sleep(SECOND * 20).await;
    course.until(2_000).await;
    consumer.shutdown().await;
}
