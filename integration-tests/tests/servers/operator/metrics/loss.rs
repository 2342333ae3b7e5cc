//! What retention drops before somebody has read it, who keeps a log from shrinking, and lags while the catalog is in
//! disorder: against the truth on a server.

use millstream::Retention;
use millstream_core::Start;

use super::*;

const SHORT: Topic<u64> = Topic::new("short").partitions(1).retention(Retention::Length(50));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_and_who_keeps_what_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let backend = scene.mq.backend();
    let short = backend.catalog().create_topic(&SHORT.spec().expect("a topic")).await.expect("created");
    let kept = backend.catalog().create_topic(&ORDERS.spec().expect("a topic")).await.expect("created");
    for topic in [&short, &kept] {
        backend
            .catalog()
            .create_group(topic, &"audit".parse().expect("name"), Start::Earliest)
            .await
            .expect("created");
    }
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let count = move |_: Delivery<u64>| {
        count.fetch_add(1, Ordering::Relaxed);
        async {}
    };
    let consumers = [
        scene.mq.consumer(SHORT, "billing").start(count).await.expect("started"),
        scene.mq.consumer(ORDERS, "billing").start(async |_: Delivery<u64>| {}).await.expect("started"),
    ];
    let (to_short, to_kept) =
        (scene.mq.producer(SHORT).await.expect("a producer"), scene.mq.producer(ORDERS).await.expect("one"));
    for number in 0..200 {
        to_short.send(&number).await.expect("sent");
        to_kept.send(&number).partition(1).await.expect("sent");
        if number % 40 == 39 {
            // Who reads shall not be overtaken by what is dropped.
            let all = async || handled.load(Ordering::Relaxed) == number + 1;
            eventually(all, "it is handled").await;
        }
    }
    let lost = |scrape: &Scrape, group: &str| {
        scrape.sum("millstream_lost_total", &[("topic", "short"), ("group", group)]).unwrap_or_default()
    };
    let found = scene.until("as much is lost as is too much", |scrape| {
        lost(scrape, "audit") == 150.0 && scrape.sum("millstream_length", &[("topic", "short")]) == Some(50.0)
    });
    let found = found.await;
    let trimmed = found.sum("millstream_trimmed_total", &[("topic", "short")]);
    assert_eq!((lost(&found, "billing"), trimmed), (0.0, Some(150.0)));

    // Who comes later asks at once, and then each minute.
    let metrics = Metrics::new().expect("metrics");
    let again =
        metrics.serve(backend, ServerConfig::default().address(([127, 0, 0, 1], 0))).await.expect("served");
    let pinned = async |group: &str| {
        let answer = get(again.address(), "/metrics").await.expect("an answer");
        let scrape = Scrape::parse(&answer.body);
        ["millstream_pinned_messages", "millstream_pinned_bytes"]
            .map(|name| scrape.sum(name, &[("topic", "orders"), ("group", group)]).unwrap_or_default())
    };
    eventually(async || pinned("audit").await[0] == 200.0, "the group that nobody reads for is told").await;
    assert_eq!(pinned("billing").await, [0.0, 0.0]);
    let log = scene.keys.log(&TopicPartition::new("orders".parse().expect("name"), 1));
    let takes = redis.cli(&["MEMORY", "USAGE", log.as_str(), "SAMPLES", "0"]);
    let (bytes, takes) = (pinned("audit").await[1], takes.parse::<f64>().expect("bytes"));
    assert!(bytes > takes / 2.0 && bytes < takes * 2.0, "{bytes}, and the log takes {takes}");
    again.shutdown().await;
    for consumer in consumers {
        consumer.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_lost_its_settings_is_named_and_hides_no_other() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let users = Topic::<u64>::new("users").partitions(1);
    for topic in [ORDERS, users] {
        let consumer = scene
            .mq
            .consumer(topic.clone(), "billing")
            .start(async |_: Delivery<u64>| {})
            .await
            .expect("started");
        consumer.shutdown().await;
        scene.mq.producer(topic).await.expect("a producer").send(&1).await.expect("sent");
    }
    let meta = redis.cli(&["KEYS", "*{users}:meta"]);
    assert_eq!(redis.cli(&["DEL", &meta]), "1", "{meta}");
    let address = scene.server.address();
    let lags = get(address, "/lag").await.expect("an answer").json();
    assert_eq!(
        (lags["groups"].as_array().map(Vec::len), &lags["failed"][0]["topic"]),
        (Some(1), &"users".into())
    );
    assert!(
        lags["failed"][0]["error"].as_str().is_some_and(|error| error.contains("lost its settings")),
        "{lags}"
    );
    assert_eq!((&lags["groups"][0]["topic"], &lags["groups"][0]["backlog"]), (&"orders".into(), &1.into()));
    assert_eq!(scene.status("/lag/users/billing").await, 503, "its lag is unknown, and not zero");

    // A server that does not answer: there is an answer nevertheless, and the same for all who ask in that second.
    redis.cli(&["CLIENT", "PAUSE", "240000", "ALL"]);
    let began = tokio::time::Instant::now();
    let all = futures_util::future::join_all((0..20).map(|_| get(address, "/lag/orders/billing"))).await;
    let statuses: BTreeSet<u16> = all.into_iter().map(|answer| answer.expect("an answer").status).collect();
    assert_eq!(statuses, [503].into());
    assert!(began.elapsed() < HANG, "long before it goes on: {:?}", began.elapsed());
}
