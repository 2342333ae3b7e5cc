//! Breakers: an outage of what handlers call burns no attempts, and makes no dead letters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{SECOND, WIDE, send};
use crate::support::scenario::linked;
use crate::support::*;
use millstream_core::policy::Fixed;
use millstream_core::{LimitBound, Outcome};
use millstream_runtime::{Breaker, Concurrency, Consumer, ConsumerBuilder, Delivery, Limit, RetryOrder};
use tokio::time::{Instant, sleep};

const OPEN: Duration = Duration::from_secs(10);
const MIN: u32 = 10;

/// What handlers call: it is there, or it is not.
#[derive(Clone, Default)]
struct Service(Arc<ServiceState>);

#[derive(Default)]
struct ServiceState {
    away: AtomicBool,
    failed: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
    /// Of each message that is done: the attempt that did it, and when.
    done: Mutex<BTreeMap<u64, (u32, Instant)>>,
    /// In the order in which they were done, by key.
    order: Mutex<BTreeMap<String, Vec<u64>>>,
}

impl Service {
    fn go(&self, away: bool) {
        self.0.away.store(away, Ordering::Relaxed);
    }

    fn failed(&self) -> usize {
        self.0.failed.load(Ordering::Relaxed)
    }

    fn done(&self) -> usize {
        self.0.done.lock().expect("lock").len()
    }

    /// Attempts that messages used before the one that did them.
    fn burned(&self) -> u32 {
        self.0.done.lock().expect("lock").values().map(|(attempt, _)| attempt - 1).sum()
    }

    async fn until(&self, done: usize) {
        eventually(|| self.done() >= done, || format!("{} of {done} are done", self.done())).await;
    }

    /// Handles a message; a call takes this long.
    async fn handle(&self, delivery: Delivery<u64>, takes: Duration) -> Outcome {
        let it = &self.0;
        let running = it.running.fetch_add(1, Ordering::Relaxed) + 1;
        it.most.fetch_max(running, Ordering::Relaxed);
        sleep(takes).await;
        it.running.fetch_sub(1, Ordering::Relaxed);
        if it.away.load(Ordering::Relaxed) {
            it.failed.fetch_add(1, Ordering::Relaxed);
            return Outcome::retry("503");
        }
        let key = String::from_utf8_lossy(delivery.key().map_or(&[], |key| &key[..])).into_owned();
        it.order.lock().expect("lock").entry(key).or_default().push(delivery.payload);
        it.done.lock().expect("lock").insert(delivery.payload, (delivery.attempt(), Instant::now()));
        Outcome::Ack
    }

    async fn start(&self, builder: ConsumerBuilder<u64>, takes: Duration) -> Consumer {
        let service = self.clone();
        let started = builder.start(move |delivery: Delivery<u64>| {
            let service = service.clone();
            async move { service.handle(delivery, takes).await }
        });
        started.await.expect("started")
    }
}

fn breaker() -> Breaker {
    Breaker::new().calls(MIN).open_for(OPEN)
}

fn limited(builder: ConsumerBuilder<u64>) -> ConsumerBuilder<u64> {
    // Three attempts within a second: without a breaker all would be dead letters.
    let builder = builder.retry(Fixed::new(MS(100)).attempts(3));
    builder.concurrency(Concurrency::Unordered(8)).limit(Limit::global("service").breaker(breaker()))
}

#[tokio::test(start_paused = true)]
async fn an_outage_burns_no_attempts_and_makes_no_dead_letters() {
    let (bench, service) = (bench(), Service::default());
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(service.start(limited(bench.consumer(WIDE, "g")), MS(20)).await);
    }
    send(&bench, WIDE, 200, &["a", "b"]).await;
    service.until(200).await;
    assert_eq!((service.failed(), service.burned()), (0, 0));
    service.go(true);
    // They are handled again, as other messages.
    service.0.done.lock().expect("lock").clear();
    send(&bench, WIDE, 600, &["a", "b"]).await;
    sleep(SECOND * 600).await;
    let failed = service.failed();
    // What each of them counts, what runs then, and one that tries in each time that it stays open.
    assert!((MIN as usize..=3 * (MIN as usize + 8) + 61).contains(&failed), "{failed} calls failed");
    let waiting: usize = consumers.iter().map(|it| it.health().waiting[0].1).sum();
    assert!(waiting > 500, "{waiting} wait");
    let open = bench.backend.permits().expect("permits").open_breakers().await.expect("open");
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].key.to_string(), "service:all");
    assert!(open[0].reason.contains("503"), "{open:?}");
    service.go(false);
    let begun = Instant::now();
    service.until(600).await;
    let took = begun.elapsed();
    assert!(took <= OPEN * 2, "all of it {took:?} after the end of the outage");
    let burned = service.burned();
    assert!(burned <= 3 * MIN + 61, "{burned} attempts");
    let open = bench.backend.permits().expect("permits").open_breakers().await.expect("open");
    assert_eq!(open, []);
    for consumer in consumers {
        assert_eq!(consumer.report().dead, 0);
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn order_is_kept_over_an_outage() {
    for concurrency in [Concurrency::Serial, Concurrency::PerKey(8)] {
        let (bench, service) = (bench(), Service::default());
        let builder = limited(bench.consumer(WIDE, "g")).retry_order(RetryOrder::BlockKey);
        let builder = builder.retry(Fixed::new(MS(100)).attempts(100)).concurrency(concurrency);
        let consumer = service.start(builder, MS(20)).await;
        service.go(true);
        send(&bench, WIDE, 60, &["a", "b"]).await;
        sleep(SECOND * 100).await;
        service.go(false);
        service.until(60).await;
        for (key, values) in &*service.0.order.lock().expect("lock") {
            assert!(values.is_sorted(), "{key}: {values:?}");
        }
        assert_eq!(consumer.report().dead, 0);
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_starts_while_it_is_open_tries_and_no_more() {
    let (bench, service, other) = (bench(), Service::default(), Service::default());
    let first = service.start(limited(bench.consumer(WIDE, "g")), MS(20)).await;
    service.go(true);
    send(&bench, WIDE, 100, &["a"]).await;
    eventually(|| service.failed() >= MIN as usize, || "it opens".into()).await;
    first.shutdown().await;
    other.go(true);
    let begun = Instant::now();
    let second = other.start(limited(bench.consumer(WIDE, "g")), MS(20)).await;
    sleep(OPEN * 5).await;
    let most = begun.elapsed().as_secs() / OPEN.as_secs() + 1;
    assert!((1..=most as usize).contains(&other.failed()), "{} calls", other.failed());
    other.go(false);
    other.until(100).await;
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn operators_hold_it_open_or_closed() {
    let (bench, service) = (bench(), Service::default());
    let permits = bench.backend.permits().expect("permits").clone();
    let rule = async |most: Option<u32>| {
        let pattern = "service".parse().expect("a pattern");
        permits.set_limit_rule(&pattern, most.map(LimitBound::AtMost)).await.expect("set");
        sleep(SECOND).await;
    };
    rule(Some(0)).await;
    let builder = limited(bench.consumer(WIDE, "g")).retry(Fixed::new(SECOND).attempts(1_000));
    let consumer = service.start(builder, MS(20)).await;
    send(&bench, WIDE, 50, &["a"]).await;
    sleep(OPEN * 3).await;
    assert_eq!(service.done(), 0, "it is held open");
    service.go(true);
    rule(Some(1)).await;
    sleep(OPEN * 3).await;
    assert!(service.failed() > 500, "it is held closed: {} calls", service.failed());
    rule(None).await;
    sleep(OPEN).await;
    let before = service.failed();
    sleep(OPEN * 10).await;
    assert!(service.failed() <= before + 11, "{} calls while it is open", service.failed() - before);
    service.go(false);
    service.until(50).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn errors_that_do_not_count_open_nothing() {
    let (bench, service) = (bench(), Service::default());
    let counts = breaker().counts(|error| !error.to_string().contains("503"));
    let builder = limited(bench.consumer(WIDE, "g")).limit(Limit::global("other").breaker(counts));
    let builder = builder.limit(Limit::by_header("tenant", "tenant").breaker(breaker().failure_rate(90)));
    let consumer = service.start(builder, MS(20)).await;
    service.go(true);
    send(&bench, WIDE, 100, &["a"]).await;
    sleep(OPEN * 2).await;
    let open = bench.backend.permits().expect("permits").open_breakers().await.expect("open");
    let mut keys: Vec<_> = open.iter().map(|it| it.key.to_string()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["service:all", "tenant:a"]);
    service.go(false);
    service.until(100).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn while_one_tries_for_an_hour_others_try_too() {
    let (bench, service) = (bench(), Service::default());
    let takes = Arc::new(AtomicUsize::new(20));
    let (told, ms) = (service.clone(), takes.clone());
    let consumer = limited(bench.consumer(WIDE, "g")).start(move |delivery: Delivery<u64>| {
        let (service, ms) = (told.clone(), MS(ms.load(Ordering::Relaxed) as u64));
        async move { service.handle(delivery, ms).await }
    });
    let consumer = consumer.await.expect("started");
    service.go(true);
    send(&bench, WIDE, 100, &["a"]).await;
    eventually(|| service.failed() >= MIN as usize, || "it opens".into()).await;
    // What ran then has ended.
    sleep(SECOND).await;
    let before = service.failed();
    takes.store(3_600_000, Ordering::Relaxed);
    sleep(OPEN * 3).await;
    assert_eq!(service.failed(), before);
    let running = service.0.running.load(Ordering::Relaxed);
    assert!((2..=4).contains(&running), "{running} try");
    service.go(false);
    takes.store(20, Ordering::Relaxed);
    service.until(100 - 4).await;
    consumer.shutdown_within(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_it_begins_with_few() {
    let (bench, service) = (bench(), Service::default());
    let builder = limited(bench.consumer(WIDE, "g")).concurrency(Concurrency::Unordered(64));
    let consumer = service.start(builder, SECOND).await;
    service.go(true);
    send(&bench, WIDE, 2_000, &["a", "b"]).await;
    sleep(OPEN * 3).await;
    service.go(false);
    service.0.most.store(0, Ordering::Relaxed);
    service.until(1).await;
    sleep(MS(500)).await;
    assert_eq!(service.0.most.load(Ordering::Relaxed), 2);
    sleep(SECOND).await;
    assert_eq!(service.0.most.load(Ordering::Relaxed), 4);
    service.until(2_000).await;
    assert!(service.0.most.load(Ordering::Relaxed) > 64, "as many as before at last");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_server_beside_it_stops_nothing_for_good() {
    let (bench, service) = (bench(), Service::default());
    let (link, builder) = linked(&bench, WIDE);
    let ttl = SECOND * 6;
    let consumer = service.start(limited(builder.lease_ttl(ttl)), MS(20)).await;
    send(&bench, WIDE, 400, &["a"]).await;
    service.until(50).await;
    for away in [ttl / 2, ttl, ttl * 2] {
        service.go(true);
        sleep(MS(100)).await;
        link.away.store(true, Ordering::Relaxed);
        sleep(away).await;
        link.away.store(false, Ordering::Relaxed);
        sleep(SECOND).await;
        service.go(false);
    }
    eventually(|| service.done() == 400, || format!("{:?} {:?}", consumer.report(), consumer.health())).await;
    assert_eq!(consumer.report().dead, 0);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_another_limit_keeps_nobody_from_trying() {
    let (bench, service) = (bench(), Service::default());
    let permits = bench.backend.permits().expect("permits").clone();
    let none = Some(LimitBound::AtMost(0));
    permits.set_limit_rule(&"tenant:a".parse().expect("a pattern"), none).await.expect("set");
    let tenant = || Limit::by_header("tenant", "tenant").at_most(4);
    let builder = limited(bench.consumer(WIDE, "g")).limit(tenant());
    let consumer = service.start(builder, MS(20)).await;
    service.go(true);
    send(&bench, WIDE, 100, &["a", "b"]).await;
    sleep(OPEN * 3).await;
    assert!(service.failed() >= MIN as usize, "it opened");
    service.go(false);
    let begun = Instant::now();
    service.until(50).await;
    assert!(begun.elapsed() <= OPEN * 2, "{:?}", begun.elapsed());
    permits.set_limit_rule(&"tenant:a".parse().expect("a pattern"), None).await.expect("set");
    service.until(100).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_breaker_has_no_units() {
    let (bench, service) = (bench(), Service::default());
    let of_tenant = Limit::by_header("of-tenant", "tenant").breaker(breaker());
    let builder = bench.consumer(WIDE, "g").concurrency(Concurrency::Unordered(32));
    let builder = builder.limit(of_tenant).limit(Limit::global("in-all").at_most(2));
    let told = service.clone();
    let consumer =
        builder.retry(Fixed::new(MS(100)).attempts(1_000)).start(move |delivery: Delivery<u64>| {
            let service = told.clone();
            async move {
                // The service of one tenant alone is away.
                if delivery.headers().get("tenant").is_some_and(|it| it == "a") {
                    sleep(MS(20)).await;
                    return Outcome::retry("503");
                }
                service.handle(delivery, MS(20)).await
            }
        });
    let consumer = consumer.await.expect("started");
    send(&bench, WIDE, 120, &["a", "a", "a", "b"]).await;
    let begun = Instant::now();
    service.until(30).await;
    // Ten calls of the one, and thirty of the other, two at once: less than a second.
    assert!(begun.elapsed() < SECOND * 2, "{:?}", begun.elapsed());
    consumer.shutdown().await;
    super::all_free(&bench).await;
}

#[tokio::test(start_paused = true)]
async fn what_tries_goes_on_when_an_operator_holds_it_closed() {
    let (bench, service) = (bench(), Service::default());
    let hour = Breaker::new().calls(MIN).open_for(SECOND * 3_600);
    let builder = bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(100)).attempts(1_000));
    let consumer = service.start(builder.limit(Limit::global("service").breaker(hour)), MS(20)).await;
    service.go(true);
    send(&bench, NUMBERS, 40, &["a"]).await;
    sleep(SECOND * 60).await;
    assert_eq!(service.failed(), MIN as usize);
    service.go(false);
    let permits = bench.backend.permits().expect("permits").clone();
    permits
        .set_limit_rule(&"service".parse().expect("a pattern"), Some(LimitBound::AtMost(1)))
        .await
        .expect("set");
    let begun = Instant::now();
    service.until(40 - MIN as usize).await;
    assert!(begun.elapsed() < SECOND * 60, "{:?}", begun.elapsed());
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn calls_from_before_an_outage_do_not_open_it_again() {
    let (bench, service) = (bench(), Service::default());
    let slow = Arc::new(AtomicUsize::new(20));
    let (told, ms) = (service.clone(), slow.clone());
    let builder = limited(bench.consumer(WIDE, "g")).concurrency(Concurrency::Unordered(16));
    let consumer = builder.start(move |delivery: Delivery<u64>| {
        let (service, takes) = (told.clone(), MS(ms.load(Ordering::Relaxed) as u64));
        async move {
            let is_slow = takes > SECOND;
            let outcome = service.handle(delivery, takes).await;
            // What hung in the outage fails after it.
            if is_slow { Outcome::retry("timed out") } else { outcome }
        }
    });
    let consumer = consumer.await.expect("started");
    slow.store(60_000, Ordering::Relaxed);
    send(&bench, WIDE, 20, &["a"]).await;
    sleep(SECOND).await;
    slow.store(20, Ordering::Relaxed);
    service.go(true);
    send(&bench, WIDE, 200, &["a"]).await;
    sleep(OPEN * 2).await;
    service.go(false);
    sleep(OPEN).await;
    let before = service.failed();
    eventually(|| consumer.report().snoozed >= 20, || format!("{:?}", consumer.report())).await;
    sleep(SECOND).await;
    let open = bench.backend.permits().expect("permits").open_breakers().await.expect("open");
    assert_eq!((open.len(), service.failed()), (0, before));
    assert_eq!(consumer.report().dead, 0);
    consumer.shutdown().await;
}
