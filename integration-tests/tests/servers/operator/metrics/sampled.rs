//! What samplers and loops say of themselves: rounds, troubles, lags that nobody knows, series that there is no room for.

use millstream::Event;
use millstream::delay::{DelayQueue, Task};
use millstream::metrics::Sampler;

use super::*;

const BILLING: &[(&str, &str)] = &[("topic", "orders"), ("group", "billing")];

/// Counts troubles and their ends by themselves.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<BTreeMap<(&'static str, &'static str), u32>>>);

impl Told {
    fn tell(&self, event: &Event<'_>) {
        let key = match event {
            Event::Failing { operation, error, .. } => (*operation, error.kind().as_str()),
            Event::Recovered { operation, .. } => (*operation, ""),
            _ => return,
        };
        *self.0.lock().expect("lock").entry(key).or_default() += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn troubles_are_counted() {
    let mut redis = Redis::builder().appendonly(true).start();
    let (metrics, told) = (Metrics::new().expect("metrics"), Told::default());
    let tell = told.clone();
    let mq =
        Millstream::at(redis.url()).metrics(&metrics).observer(move |event: &Event<'_>| tell.tell(event));
    let mq = mq.await.expect("connected");
    let consumer = mq.consumer(ORDERS, "billing").lease_ttl(Duration::from_secs(1));
    let consumer = consumer.start(async |_: Delivery<u64>| {}).await.expect("started");
    let config = SamplerConfig::default();
    let sampler = Sampler::new(mq.backend().clone(), metrics.observer(), config).expect("a sampler");
    let mut rounds = [0.0, 0.0];
    for _ in 0..3 {
        rounds[0] += 1.0;
        sampler.run_once().await.expect("sampled");
    }
    redis.kill();
    for _ in 0..2 {
        rounds[1] += 1.0;
        sampler.run_once().await.expect_err("nobody is there");
    }
    let healthy = |wanted: bool| {
        let consumer = &consumer;
        async move || {
            let health = consumer.health();
            wanted == (health.is_ready() && health.failing().next().is_none())
        }
    };
    eventually(healthy(false), "it is in trouble").await;
    redis.restart();
    eventually(healthy(true), "it is well again").await;
    rounds[0] += 1.0;
    sampler.run_once().await.expect("sampled");
    consumer.shutdown().await;

    let found = Scrape::parse(&metrics.render());
    let of = |result| found.sum("millstream_samples_total", &[("result", result)]);
    assert_eq!([of("ok"), of("failed")], rounds.map(Some));
    let told = told.0.lock().expect("lock").clone();
    assert!(told.keys().any(|(_, kind)| kind.is_empty()), "{told:?}");
    assert!(told.keys().any(|(_, kind)| !kind.is_empty()), "{told:?}");
    for ((operation, kind), count) in &told {
        let (name, labels) = match *kind {
            "" => ("millstream_recoveries_total", vec![("operation", *operation)]),
            kind => ("millstream_errors_total", vec![("operation", *operation), ("kind", kind)]),
        };
        assert_eq!(found.sum(name, &labels), Some(f64::from(*count)), "{operation} {kind}");
    }
    // Errors of the sampler itself are reported to its observer alone.
    let ours = |name: &str, kinds: fn(&str) -> bool| {
        let sum: u32 = told.iter().filter(|((_, kind), _)| kinds(kind)).map(|(_, count)| count).sum();
        let sampled = found.sum(name, &[("operation", "sample")]).unwrap_or_default();
        assert_eq!(found.sum(name, &[]), Some(f64::from(sum) + sampled), "{name}");
        sampled
    };
    // A round asks for the time, for topics and for queues.
    assert_eq!(ours("millstream_errors_total", |kind| !kind.is_empty()), 6.0);
    assert_eq!(ours("millstream_recoveries_total", str::is_empty), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_say_how_they_are() {
    let mut redis = Redis::builder().appendonly(true).start();
    let scene = Fixture::at(&redis.url()).await;
    let mails = DelayQueue::<u64>::new("mails").observer(scene.metrics.clone());
    let mails = mails.open(scene.mq.backend()).await.expect("a queue");
    let worker = mails.worker().start(async |_: Task<u64>| {}).await.expect("started");
    let consumer = scene.mq.consumer(ORDERS, "billing").lease_ttl(Duration::from_secs(1));
    let consumer = consumer.start(async |_: Delivery<u64>| {}).await.expect("started");
    let _producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let queue = &[("queue", "mails")][..];
    let well = [
        ("loops_failing", BILLING, 0.0),
        ("loops_stalled", BILLING, 0.0),
        ("worker_loops_failing", queue, 0.0),
        ("worker_loops_stalled", queue, 0.0),
        ("consumer_ready", BILLING, 1.0),
        ("worker_ready", queue, 1.0),
    ];
    scene.sees("all is well", &well).await;
    // Every loop says when it came round last, and the scrape says the same.
    let asked = tokio::time::Instant::now();
    let (health, workers) = (consumer.health(), scene.metrics.observer().workers());
    let found = scene.scrape().await;
    let between = asked.elapsed().as_secs_f64();
    let close = |name: &str, labels: &[(&str, &str)], last: Duration| {
        let since = found.sum(name, labels).unwrap_or(f64::NAN);
        // It may have come round between the two.
        let same = (since - last.as_secs_f64()).abs() < 1.0 + between || since < between;
        assert!(same, "{labels:?}: {since} s, {last:?}, {between} s between\n{found}");
    };
    assert!(health.loops.len() > 10 && workers[0].loops.len() > 3, "{health:?} {workers:?}");
    for each in &health.loops {
        let partition = each.partition.map(|it| it.0.to_string()).unwrap_or_default();
        let labels = [("operation", each.operation), ("group", "billing"), ("partition", &*partition)];
        close("millstream_loop_last_progress_seconds", &labels, each.last_progress);
    }
    for each in &workers[0].loops {
        let labels = [("operation", each.operation)];
        close("millstream_worker_loop_last_progress_seconds", &labels, each.last_progress);
    }
    // A producer's has no consumer.
    let refresh =
        found.sum("millstream_loop_last_progress_seconds", &[("operation", "refresh"), ("consumer", "")]);
    assert!(refresh.is_some_and(|since| (0.0..60.0).contains(&since)), "{refresh:?}");
    let age = found.sum("millstream_sample_age_seconds", &[]);
    assert!(age.is_some_and(|age| (0.0..60.0).contains(&age)), "{age:?}");

    redis.pause();
    let grows = |scrape: &Scrape| scrape.sum("millstream_sample_age_seconds", &[]) > Some(2.0);
    scene.until("there are no samples", grows).await;
    redis.resume();
    scene.sees("it comes round again", &well).await;

    redis.kill();
    let fails = |scrape: &Scrape| {
        let at_least = |name: &str, least: f64| scrape.sum(name, &[]) >= Some(least);
        at_least("millstream_loops_failing", 1.0) && at_least("millstream_worker_loops_failing", 1.0)
    };
    let found = scene.until("loops fail", fails).await;
    assert_eq!(found.sum("millstream_loops_stalled", &[]), Some(0.0), "a server that is away hangs no loop");
    redis.restart();
    scene.sees("they work again", &well).await;
    let _ = tokio::join!(consumer.shutdown(), worker.shutdown());
}

/// A group that begins in the middle of a long log: no server before 8 can say its lag, and it takes several rounds to count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lag_that_is_not_known_is_no_number() {
    const HALF: usize = 15_000;
    let redis = Redis::start();
    let metrics = Metrics::new().expect("metrics");
    let mq = Millstream::at(redis.url()).metrics(&metrics).await.expect("connected");
    let backend = mq.backend();
    let topic = Topic::<u64>::new("orders").partitions(1).spec().expect("a topic");
    let topic = backend.catalog().create_topic(&topic).await.expect("created");
    let tp = topic.iter().next().expect("a partition");
    let append = async |count: usize| {
        let fields = wire::encode(&Envelope::new("1"));
        let batch = vec![Append::new(tp.clone(), fields); 1_000];
        for _ in 0..count / batch.len() {
            assert!(backend.log().append(&batch).await.iter().all(Result::is_ok));
        }
    };
    append(HALF + 1_000).await;
    backend
        .catalog()
        .create_group(&topic, &"billing".parse().expect("a name"), millstream::Start::Latest)
        .await
        .expect("created");
    append(HALF).await;
    // One entry is gone from the other end: now Redis 7 does not know what the group has passed.
    let log = Keys::new().log(&tp);
    assert_eq!(redis.cli(&["XTRIM", log.as_str(), "MAXLEN", &(2 * HALF).to_string()]), "1000");
    let says_so = redis.cli(&["INFO", "server"]).contains("redis_version:7");
    let config = SamplerConfig::default();
    let sampler = Sampler::new(backend.clone(), metrics.observer(), config).expect("a sampler");
    let mut unknown = 0;
    let found = loop {
        sampler.run_once().await.expect("sampled");
        let found = Scrape::parse(&metrics.render());
        let of = |name: &str| found.sum(&format!("millstream_{name}"), BILLING);
        match of("lag_unknown") {
            Some(1.0) => {
                assert!(
                    of("lag").is_some_and(f64::is_nan) && of("ready").is_some_and(f64::is_nan),
                    "{found}"
                );
                let backlog = of("backlog").expect("always a number");
                assert!(backlog >= 1.0 && backlog <= HALF as f64, "{backlog}");
                unknown += 1;
                assert!(unknown < 10, "it is never known: {found}");
            }
            _ => break found,
        }
    };
    assert_eq!(found.sum("millstream_lag", BILLING), Some(HALF as f64));
    assert_eq!(found.sum("millstream_backlog", BILLING), Some(HALF as f64));
    assert!(unknown > 0 || !says_so, "on Redis 7 it is not known at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_the_limit_is_counted() {
    let scene = Fixture::with(&shared_url(), &MetricsConfig::default().max_series(3)).await;
    for name in ["a", "b", "c", "d", "e"] {
        let producer = scene.mq.producer(Topic::<u64>::new("t").named(name).partitions(1)).await;
        producer.expect("a producer").send(&1).await.expect("sent");
    }
    let of = |metric| [("metric", metric)];
    scene
        .sees(
            "two of five have no room",
            &[
                ("series_over_limit_total", &of("millstream_produced_total"), 2.0),
                ("topics_without_partitions", &[], 2.0),
                ("produced_total", &[], 5.0),
                ("produced_total", &[("topic", "other")], 2.0),
                ("length", &[], 3.0),
            ],
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_topics_with_the_most_work_have_series_for_their_partitions() {
    let server = Redis::start();
    let scene = Fixture::with(&server.url(), &MetricsConfig::default().max_series(4)).await;
    let (admin, group) = (scene.mq.admin(), "billing".parse().expect("a name"));
    let mut producers = Vec::new();
    for (name, messages) in [("a", 1), ("b", 5), ("c", 9)] {
        let producer =
            scene.mq.producer(Topic::<u64>::new("t").named(name).partitions(2)).await.expect("made");
        let topic = name.parse().expect("a name");
        admin.create_group(&topic, &group, millstream::Start::Earliest).await.expect("created");
        for number in 0..messages {
            producer.send(&number).await.expect("sent");
        }
        producers.push(producer);
    }
    let shown = |scrape: &Scrape| -> Vec<&str> {
        let has =
            |name: &&str| scrape.sum("millstream_lag", &[("topic", *name)]).is_some_and(|it| !it.is_nan());
        ["a", "b", "c"].into_iter().filter(has).collect()
    };
    let found = scene.until("the busiest are shown", |scrape| shown(scrape) == ["b", "c"]).await;
    let left_out: &[(&str, &str)] = &[("topic", "a")];
    assert_eq!(found.sum("millstream_backlog", left_out), Some(1.0), "its group has its figures");
    assert_eq!(found.sum("millstream_topics_without_partitions", &[]), Some(1.0));
    for number in 0..40 {
        producers[0].send(&number).await.expect("sent");
    }
    scene.until("it takes the place of another one", |scrape| shown(scrape) == ["a", "c"]).await;
}
