//! Figures that are scraped over HTTP agree with what a scripted run did, on both backends: counts exactly, lag exactly at
//! rest. And probes follow what happens to a real server.

mod figures;
mod hands;
mod letters;
mod locks;
mod loss;
mod once;
mod outbox;
mod owners;
mod queues;
mod sampled;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::scrape::{Scrape, get};
use integration_tests::server::{Server as Redis, shared_url};
use integration_tests::{HANG, eventually};
use millstream::metrics::{Metrics, MetricsConfig, SamplerConfig, Server, ServerConfig};
use millstream::{Consumer, Delivery, Fixed, Limit, Millstream, Outcome, Topic, TopicPartition};
use millstream_core::keys::Keys;
use millstream_core::log::Append;
use millstream_core::{Envelope, wire};

const ORDERS: Topic<u64> = Topic::new("orders").partitions(4);
/// Messages of the run, by their numbers.
const ALL: u64 = 200;
const RETRIED_ONCE: std::ops::Range<u64> = 0..20;
const EXHAUSTED: std::ops::Range<u64> = 20..23;
const REJECTED: std::ops::Range<u64> = 23..28;
const PANICS: u64 = 28;
const SNOOZED: std::ops::Range<u64> = 29..33;
const SLOW: u64 = 33;
const ATTEMPTS: u32 = 3;
const LATER: u64 = 7;

struct Fixture {
    mq: Millstream,
    metrics: Metrics,
    server: Server,
    keys: Keys,
}

impl Fixture {
    async fn at(url: &str) -> Self {
        Self::with(url, &MetricsConfig::default().label("service", "shop")).await
    }

    async fn with(url: &str, config: &MetricsConfig) -> Self {
        let namespace = format!("metrics-{}", uuid::Uuid::new_v4().simple());
        let keys = Keys::within(&namespace.parse().expect("a namespace"));
        let metrics = Metrics::with(config).expect("metrics");
        let mq = Millstream::at(url).namespace(namespace).metrics(&metrics).await.expect("connected");
        let sampler = SamplerConfig::default().interval(Duration::from_millis(100));
        let config = ServerConfig::default().address(([127, 0, 0, 1], 0)).sampler(sampler);
        let server = metrics.serve(mq.backend(), config).await.expect("served");
        Self { mq, metrics, server, keys }
    }

    async fn scrape(&self) -> Scrape {
        let answer = get(self.server.address(), "/metrics").await.expect("an answer");
        assert_eq!(answer.status, 200);
        Scrape::parse(&answer.body)
    }

    async fn status(&self, path: &str) -> u16 {
        get(self.server.address(), path).await.expect("an answer").status
    }

    /// A scrape for which this holds: what the server knows comes with the next sample.
    async fn until(&self, what: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
        let deadline = tokio::time::Instant::now() + HANG;
        loop {
            let scrape = self.scrape().await;
            if holds(&scrape) {
                return scrape;
            }
            assert!(tokio::time::Instant::now() < deadline, "never came true: {what}\n{scrape}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// What handlers did: the ground truth.
#[derive(Default)]
struct Truth {
    calls: AtomicU64,
    attempts: Mutex<BTreeMap<u64, u32>>,
}

async fn start(mq: &Millstream, truth: &Arc<Truth>) -> Consumer {
    let truth = truth.clone();
    let consumer =
        mq.consumer(ORDERS, "billing").retry(Fixed::new(Duration::from_millis(20)).attempts(ATTEMPTS));
    let started = consumer.start(move |delivery: Delivery<u64>| {
        let (number, truth) = (delivery.payload, truth.clone());
        truth.calls.fetch_add(1, Ordering::SeqCst);
        let attempt = {
            let mut attempts = truth.attempts.lock().expect("lock");
            let attempt = attempts.entry(number).or_default();
            *attempt += 1;
            *attempt
        };
        async move {
            match number {
                it if RETRIED_ONCE.contains(&it) && attempt == 1 => Outcome::retry("once"),
                it if EXHAUSTED.contains(&it) => Outcome::retry("always"),
                it if REJECTED.contains(&it) => Outcome::dead_letter("no use"),
                PANICS if attempt == 1 => panic!("for the test"),
                it if SNOOZED.contains(&it) && attempt == 1 => Outcome::Snooze(Duration::from_millis(10)),
                SLOW => {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Outcome::Ack
                }
                _ => Outcome::Ack,
            }
        }
    });
    started.await.expect("started")
}

fn count(range: &std::ops::Range<u64>) -> f64 {
    (range.end - range.start) as f64
}

async fn a_scripted_run(scene: &Fixture) {
    let truth = Arc::new(Truth::default());
    assert_eq!((scene.status("/livez").await, scene.status("/readyz").await), (200, 200));
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let consumer = start(&scene.mq, &truth).await;
    for number in 0..ALL {
        producer.send(&number).key(number.to_string()).await.expect("sent");
    }
    for number in ALL..ALL + LATER {
        producer.send(&number).delay(Duration::from_millis(50)).await.expect("sent for later");
    }
    producer.send(&0).delay(Duration::from_secs(3_600)).await.expect("sent for much later");
    // Somebody else's, which no codec reads.
    let fields = wire::encode(&Envelope::new("not a number"));
    let tp = TopicPartition::new("orders".parse().expect("name"), 0);
    let stored = scene.mq.backend().log().append(&[Append::new(tp, fields)]).await;
    assert!(stored.iter().all(Result::is_ok));

    // Exactly this happens, and nothing after it.
    let dead = count(&EXHAUSTED) + count(&REJECTED) + 1.0;
    let retried = count(&RETRIED_ONCE) + count(&EXHAUSTED) * f64::from(ATTEMPTS - 1) + 1.0;
    let snoozed = count(&SNOOZED);
    let produced = ALL as f64;
    let entries = produced + LATER as f64 + 1.0;
    let acked = entries - dead;
    let of = |scrape: &Scrape, name: &str| scrape.sum(name, &[("topic", "orders"), ("service", "shop")]);
    let at_rest = |scrape: &Scrape| {
        let done = of(scrape, "millstream_acked_total") == Some(acked);
        let trimmed = of(scrape, "millstream_trimmed_total") == Some(entries);
        let empty =
            of(scrape, "millstream_length") == Some(0.0) && of(scrape, "millstream_pending") == Some(0.0);
        done && trimmed && empty && of(scrape, "millstream_dead_letters") == Some(dead)
    };
    let found = scene.until("the run is at rest", at_rest).await;
    let calls = truth.calls.load(Ordering::SeqCst) as f64;
    // Each time a message comes back it is read again; what cannot be read as a number no handler sees.
    assert_eq!(calls + 1.0, entries + retried + snoozed);
    for (name, expected) in [
        ("produced_total", produced),
        ("scheduled_total", LATER as f64 + 1.0),
        ("delivered_total", calls + 1.0),
        ("reclaimed_total", 0.0),
        ("acked_total", acked),
        ("retried_total", retried),
        ("snoozed_total", snoozed),
        ("discarded_total", 0.0),
        ("late_acks_total", 0.0),
        ("ghosts_total", 0.0),
        ("leases_lost_total", 0.0),
        ("promoted_total", LATER as f64 + retried + snoozed),
        ("orphans_total", 0.0),
        ("partition_assignments_total", 4.0),
        ("fetch_batch_messages_sum", calls + 1.0),
        ("settle_batch_messages_sum", calls + 1.0),
        ("handler_seconds_count", calls + 1.0),
        ("queue_wait_seconds_count", entries),
        ("end_to_end_seconds_count", entries),
        // Gauges, at rest.
        ("lag", 0.0),
        ("lag_unknown", 0.0),
        ("ready", 0.0),
        ("retrying", 0.0),
        ("delayed", 1.0),
        ("delayed_overdue", 0.0),
        ("oldest_age_seconds", 0.0),
        ("members", 1.0),
        ("partitions_owned", 4.0),
        ("partitions_assigned", 4.0),
    ] {
        assert_eq!(of(&found, &format!("millstream_{name}")), Some(expected), "{name}");
    }
    let failed = |kind| found.sum("millstream_failed_total", &[("kind", kind)]);
    assert_eq!(failed("error"), Some(count(&RETRIED_ONCE) + count(&EXHAUSTED) * f64::from(ATTEMPTS)));
    assert_eq!(
        (failed("panic"), failed("rejected"), failed("undecodable")),
        (Some(1.0), Some(count(&REJECTED)), Some(1.0))
    );
    let gave_up = |reason| found.sum("millstream_dead_total", &[("reason", reason)]);
    assert_eq!(
        (gave_up("exhausted"), gave_up("rejected"), gave_up("undecodable")),
        (Some(count(&EXHAUSTED)), Some(count(&REJECTED)), Some(1.0))
    );
    let member = |name: &str| found.sum(name, &[("group", "billing"), ("service", "shop")]);
    for (name, expected) in [
        ("in_flight", 0.0),
        ("handlers_running", 0.0),
        ("consumer_ready", 1.0),
        ("consumer_live", 1.0),
        ("loops_failing", 0.0),
        ("loops_stalled", 0.0),
    ] {
        assert_eq!(member(&format!("millstream_{name}")), Some(expected), "{name}");
    }
    let progress = |operation| {
        found.sum("millstream_loop_last_progress_seconds", &[("operation", operation), ("topic", "orders")])
    };
    assert!(
        ["heartbeat", "renew", "fetch", "settle", "promote", "trim"]
            .map(progress)
            .iter()
            .all(Option::is_some)
    );
    times(&found);

    let lag = get(scene.server.address(), "/lag/orders/billing").await.expect("an answer").json();
    assert_eq!((&lag["backlog"], &lag["lag"], &lag["dead"]), (&0.into(), &0.into(), &(dead as u64).into()));
    rest(scene, consumer, &producer, &found).await;
}

/// Times are what they must be: the slow one took 300 ms, and nothing was early or took minutes.
fn times(found: &Scrape) {
    let sum = |name: &str| found.sum(name, &[("topic", "orders")]).expect("a sum");
    let handled = found.sum("millstream_handler_seconds_sum", &[("result", "acked")]).expect("a sum");
    assert!((0.3..600.0).contains(&handled), "{handled}");
    let (whole, waited) =
        (sum("millstream_end_to_end_seconds_sum"), sum("millstream_queue_wait_seconds_sum"));
    assert!(whole > 0.3 && whole < 600.0 && waited < whole, "{whole} {waited}");
    assert!(sum("millstream_settle_seconds_count") >= 1.0 && sum("millstream_settle_seconds_sum") < 60.0);
    let late = (sum("millstream_delay_error_seconds_count"), sum("millstream_delay_error_seconds_sum"));
    assert!(late.0 >= 1.0 && late.1 / late.0 < 60.0, "{late:?}");
}

/// The consumer is shut down: what is sent then is the lag, exactly.
async fn rest(scene: &Fixture, consumer: Consumer, producer: &millstream::Producer<u64>, before: &Scrape) {
    let report = consumer.shutdown().await;
    let acked = before.sum("millstream_acked_total", &[]);
    assert_eq!(acked, Some(report.acked as f64), "the consumer counts the same");
    for number in 0..11 {
        producer.send(&number).partition(number as u32 % 2).await.expect("sent");
    }
    let lag = |scrape: &Scrape, partition: &str| {
        scrape.sum("millstream_lag", &[("group", "billing"), ("partition", partition)])
    };
    // The gauges of a sample are set one after the other.
    let all = |scrape: &Scrape| {
        let eleven = |name| scrape.sum(name, &[("group", "billing")]) == Some(11.0);
        eleven("millstream_lag") && eleven("millstream_ready")
    };
    let found = scene.until("the lag is seen", all).await;
    assert_eq!(["0", "1", "2", "3"].map(|at| lag(&found, at)), [6.0, 5.0, 0.0, 0.0].map(Some));
    assert_eq!(found.sum("millstream_members", &[("group", "billing")]), Some(0.0));
    assert_eq!(found.sum("millstream_partition_revocations_total", &[]), Some(4.0));
    let gone = found.sum("millstream_in_flight", &[("group", "billing")]);
    assert!(gone.is_some_and(f64::is_nan), "what has ended says nothing: {gone:?}");
    let aged =
        |scrape: &Scrape| scrape.sum("millstream_oldest_age_seconds", &[("partition", "0")]) > Some(0.2);
    scene.until("the oldest grows old", aged).await;
    // An answer is given again for a second.
    let told = async || {
        let answer = get(scene.server.address(), "/lag/orders/billing").await.expect("an answer").json();
        ["backlog", "lag", "members"].map(|field| answer[field].as_u64()) == [Some(11), Some(11), Some(0)]
    };
    eventually(told, "an autoscaler hears of it").await;
    assert_eq!(found.sum("millstream_backlog", &[("topic", "orders"), ("group", "billing")]), Some(11.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_figure_agrees_with_a_scripted_run_in_memory() {
    a_scripted_run(&Fixture::at("memory://").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_figure_agrees_with_a_scripted_run_on_redis() {
    a_scripted_run(&Fixture::at(&shared_url()).await).await;
}

/// A message whose handler does not end until the consumer is shut down.
async fn stuck(mq: &Millstream) -> (Consumer, Arc<tokio::sync::Semaphore>) {
    let begun = Arc::new(tokio::sync::Semaphore::new(0));
    let tell = begun.clone();
    let consumer = mq.consumer(ORDERS, "billing").start(move |_: Delivery<u64>| {
        tell.add_permits(1);
        std::future::pending::<()>()
    });
    let consumer = consumer.await.expect("started");
    (consumer, begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planted_ghost_is_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let sent = producer.send(&1).partition(0).await.expect("sent");
    let (consumer, begun) = stuck(&scene.mq).await;
    begun.acquire().await.expect("begun").forget();
    consumer.shutdown_within(Duration::ZERO).await;
    let log = redis.cli(&["KEYS", "*stream:topic:{orders:p:0}"]);
    assert_eq!(redis.cli(&["XDEL", &log, &sent.id.to_string()]), "1");
    let again = producer.send(&2).partition(0).await.expect("sent");
    assert!(again.id > sent.id);
    let consumer = start(&scene.mq, &Arc::default()).await;
    let counted = |scrape: &Scrape| {
        let ghosts = scrape.sum("millstream_ghosts_total", &[("topic", "orders"), ("partition", "0")]);
        ghosts == Some(1.0) && scrape.sum("millstream_acked_total", &[]) == Some(1.0)
    };
    scene.until("the ghost is counted", counted).await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_comes_late_is_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let (begun, go) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(tokio::sync::Semaphore::new(0)));
    let handler = {
        let (begun, go) = (begun.clone(), go.clone());
        move |_: Delivery<u64>| {
            begun.add_permits(1);
            let go = go.clone();
            async move { go.acquire().await.expect("open").forget() }
        }
    };
    let consumer = scene.mq.consumer(ORDERS, "billing").start(handler).await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let sent = producer.send(&1).partition(0).await.expect("sent");
    begun.acquire().await.expect("begun").forget();
    let log = redis.cli(&["KEYS", "*stream:topic:{orders:p:0}"]);
    assert_eq!(redis.cli(&["XACK", &log, "billing", &sent.id.to_string()]), "1");
    go.add_permits(1);
    let late = |scrape: &Scrape| scrape.sum("millstream_late_acks_total", &[("partition", "0")]) == Some(1.0);
    scene.until("the late acknowledgement is counted", late).await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_ends_readiness_and_not_liveness() {
    let mut redis = Redis::builder().appendonly(true).start();
    let scene = Fixture::at(&redis.url()).await;
    let consumer = scene.mq.consumer(ORDERS, "billing").lease_ttl(Duration::from_secs(1));
    let consumer = consumer.start(async |_: Delivery<u64>| {}).await.expect("started");
    let ready = async |status: u16| scene.status("/readyz").await == status;
    eventually(async || ready(200).await, "it is ready").await;
    let known = |scrape: &Scrape| scrape.sum("millstream_length", &[("topic", "orders")]) == Some(0.0);
    scene.until("values are there", known).await;
    redis.kill();
    eventually(async || ready(503).await, "it is not ready").await;
    assert_eq!((scene.status("/livez").await, scene.status("/lag/orders/billing").await), (200, 503));
    let failing = |scrape: &Scrape| {
        let errors = scrape.sum("millstream_errors_total", &[("operation", "heartbeat")]) > Some(0.0);
        let samples = scrape.sum("millstream_samples_total", &[("result", "failed")]) > Some(3.0);
        let unknown = scrape.sum("millstream_length", &[("topic", "orders")]).is_some_and(f64::is_nan);
        errors && samples && unknown && scrape.sum("millstream_loops_failing", &[]) > Some(0.0)
    };
    scene.until("troubles are told, and old values are not", failing).await;
    redis.restart();
    eventually(async || ready(200).await, "it is ready again").await;
    scene.until("values are back", known).await;
    assert_eq!(scene.metrics.observer().consumers().len(), 1);
    consumer.shutdown().await;
    assert!(scene.metrics.observer().consumers().is_empty());
}

/// All names that stand in the dashboard and in the alerts, histograms without the name of their part.
fn asked_for() -> BTreeSet<String> {
    let texts = [
        include_str!("../../../../docs/observability/grafana.json"),
        include_str!("../../../../docs/observability/alerts.yml"),
    ];
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let words = texts.iter().flat_map(|text| text.split(word)).filter(|word| word.starts_with("millstream_"));
    let parts = ["_bucket", "_sum", "_count"];
    words
        .map(|name| parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dashboard_and_alerts_ask_for_is_exported_by_a_run() {
    let mut redis = Redis::start();
    // Some metrics have more series, and the groups have theirs in all.
    let config = MetricsConfig::default().max_series(4);
    let scene = Fixture::with(&redis.url(), &config).await;
    let worker = queues::one_dead_task_is_dropped(&scene).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let consumer = scene.mq.consumer(ORDERS, "billing").limit(Limit::global("bank").at_most(1));
    let consumer = consumer.start(async |it: Delivery<u64>| match it.payload {
        0 => Outcome::dead_letter("no use"),
        _ => Outcome::Ack,
    });
    let consumer = consumer.await.expect("started");
    for number in 0..8 {
        producer.send(&number).await.expect("sent");
    }
    producer.send(&9).delay(Duration::from_millis(300)).await.expect("sent for later");
    let letters = scene.mq.dead_letters(&ORDERS, "billing").await.expect("letters");
    letters::one_is_dropped_and_imported(&letters).await;
    let held = scene.mq.lock("invoice:42").acquire().await.expect("acquired");
    assert!(scene.mq.lock("invoice:42").try_acquire().await.expect("asked").is_none());
    held.release().await.expect("released");
    scene.mq.leader("scheduler").campaign().await.expect("elected").resign().await.expect("resigned");
    let folder = tempfile::tempdir().expect("a folder");
    let relay = outbox::idle(&scene.mq, folder.path()).await;
    let wanted = asked_for();
    assert!(wanted.len() > 40, "{wanted:?}");
    let missing = |scrape: &Scrape| -> Vec<String> {
        let there: BTreeSet<_> = scrape.families().into_iter().collect();
        wanted.difference(&there).cloned().collect()
    };
    // Sends and loops fail only without a server, except a sample that meets a topic which is being created.
    let failures = ["millstream_errors_total", "millstream_produce_failures_total"];
    let are_failures = |missing: &[String]| missing.iter().all(|it| failures.contains(&&**it));
    scene.until("all but failures are there", |scrape| are_failures(&missing(scrape))).await;
    redis.kill();
    scene.until("loops fail", |scrape| scrape.sum("millstream_errors_total", &[]) > Some(0.0)).await;
    redis.restart();
    let denied = redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(denied, "OK");
    assert!(producer.send(&11).await.is_err(), "without memory nothing is stored");
    scene.until("everything is there", |scrape| missing(scrape).is_empty()).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let _ = tokio::join!(consumer.shutdown(), worker.shutdown(), relay.shutdown());
}
