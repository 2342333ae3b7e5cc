//! The HTTP server: answers, address, shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::health::{ConsumerState, LoopFailure, LoopHealth};
use millstream_core::log::Append;
use millstream_core::schedule::{Due, OnConflict, Scheduling};
use millstream_core::{Backend, Envelope, GroupName, Partition, TopicSpec, wire};
use millstream_memory::MemoryBackend;

use super::scrape::{Scrape, get};
use super::support::Puppet;
use crate::{Metrics, SamplerConfig, Server, ServerConfig};

fn config() -> ServerConfig {
    let sampler = SamplerConfig::default().interval(Duration::from_millis(100));
    ServerConfig::default().address(([127, 0, 0, 1], 0)).sampler(sampler)
}

async fn served(config: ServerConfig) -> (Metrics, Backend, Server) {
    let metrics = Metrics::new().expect("metrics");
    let backend = Backend::from(MemoryBackend::new());
    let server = metrics.serve(&backend, config).await.expect("served");
    (metrics, backend, server)
}

/// A topic of two partitions with a group, and so many messages in its first partition.
async fn filled(backend: &Backend, messages: usize) -> (TopicSpec, GroupName) {
    let spec = TopicSpec::new("orders".parse().expect("name"), 2).expect("spec");
    let group: GroupName = "billing".parse().expect("name");
    backend.catalog().create_topic(&spec).await.expect("topic");
    backend.catalog().create_group(&spec, &group, Start::Earliest).await.expect("group");
    let tp = spec.iter().next().expect("one");
    let append = Append::new(tp, wire::encode(&Envelope::new("x")));
    let stored = backend.log().append(&vec![append; messages]).await;
    assert!(stored.iter().all(Result::is_ok));
    (spec, group)
}

async fn status(address: SocketAddr, path: &str) -> u16 {
    get(address, path).await.expect("an answer").status
}

#[tokio::test]
async fn it_listens_on_loopback_and_says_where() {
    assert_eq!(ServerConfig::default().address, "127.0.0.1:9464".parse().expect("an address"));
    let (metrics, backend, server) = served(config()).await;
    assert!(server.address().ip().is_loopback() && server.address().port() != 0);
    let taken = metrics.serve(&backend, config().address(server.address())).await.expect_err("taken");
    assert!(taken.to_string().contains(&server.address().to_string()), "{taken}");
    assert_eq!(status(server.address(), "/nothing").await, 404);
}

#[tokio::test]
async fn probes_follow_the_states_of_consumers() {
    let (metrics, _, server) = served(config().consumers(1)).await;
    let probes =
        async || (status(server.address(), "/livez").await, status(server.address(), "/readyz").await);
    assert_eq!(probes().await, (200, 503), "none has started yet");
    let puppet = Puppet::new("billing", "m-1", ConsumerState::Joining);
    puppet.start(&metrics);
    assert_eq!(probes().await, (200, 503), "joining");
    puppet.set(|health| health.state = ConsumerState::Running);
    assert_eq!(probes().await, (200, 200));

    let topic: millstream_core::TopicName = "orders".parse().expect("name");
    puppet.set(|health| health.loops.push(LoopHealth::new("fetch", topic, Some(Partition(1)))));
    puppet.set(|health| {
        health.loops[0].failing = Some(LoopFailure::new(Duration::from_secs(9), "refused"));
    });
    assert_eq!(probes().await, (200, 200), "it fails and is tried again");
    puppet.set(|health| health.connected = false);
    assert_eq!(probes().await, (200, 503), "nobody hears of it");
    puppet.set(|health| (health.connected, health.loops[0].stalled) = (true, true));
    assert_eq!(probes().await, (503, 503), "a loop hangs");
    let answer = get(server.address(), "/livez").await.expect("an answer").json();
    assert_eq!(answer["ok"], false);
    assert_eq!(answer["checks"][0]["name"], "consumer m-1 of group billing");
    assert!(
        answer["checks"][0]["problems"][0]
            .as_str()
            .is_some_and(|it| it.starts_with("fetch of orders/1 hangs"))
    );
    puppet.set(|health| health.loops.clear());
    puppet.set(|health| health.state = ConsumerState::Fenced);
    assert_eq!(probes().await, (503, 503), "fenced");

    puppet.set(|health| (health.state, health.asked_to_end) = (ConsumerState::Ended, true));
    assert_eq!(probes().await, (200, 503), "it was shut down, and is not looked at any more");
}

#[tokio::test]
async fn lag_is_told_per_group_and_for_all() {
    let (_metrics, backend, server) = served(config()).await;
    let address = server.address();
    assert_eq!(get(address, "/lag").await.expect("an answer").json()["groups"], serde_json::json!([]));
    let (spec, group) = filled(&backend, 7).await;
    let scheduling = |id: &str, delay| Scheduling {
        place: spec.iter().nth(1).expect("two").into(),
        id: id.parse().expect("an id"),
        due: Due::In(delay),
        fields: wire::encode(&Envelope::new("x")),
        on_conflict: OnConflict::Keep,
    };
    let later = [scheduling("a", Duration::from_secs(3_600)), scheduling("b", Duration::ZERO)];
    assert!(backend.schedule().schedule(&later).await.iter().all(Result::is_ok));
    tokio::time::sleep(Duration::from_millis(2)).await;

    let lag = get(address, "/lag/orders/billing").await.expect("an answer").json();
    let fields = [
        "topic",
        "group",
        "backlog",
        "backlog_at_least",
        "lag",
        "pending",
        "retrying",
        "overdue",
        "dead",
        "members",
        "partitions",
    ];
    let values: Vec<_> = fields.iter().map(|field| lag[field].clone()).collect();
    assert_eq!(
        values,
        serde_json::json!(["orders", "billing", 8, 8, 7, 0, 0, 1, 0, 0, 2])
            .as_array()
            .expect("a list")
            .clone()
    );
    assert_eq!(lag["unknown"], serde_json::json!([]));
    assert!(lag["oldest_age_seconds"].as_f64().is_some_and(|age| (0.001..60.0).contains(&age)), "{lag}");
    let all = async || get(address, "/lag").await.expect("an answer").json()["groups"].clone();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while all().await[0]["backlog"] != 8 {
        assert!(tokio::time::Instant::now() < deadline, "it is worked out again after a second");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    backend.catalog().delete_group(&spec.name, &group).await.expect("deleted");
    // An answer is reused for a second.
    while status(address, "/lag/orders/billing").await != 404 {
        assert!(tokio::time::Instant::now() < deadline, "it is gone");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (path, expected) in [
        ("/lag/orders/billing", 404),
        ("/lag/orders/nobody", 404),
        ("/lag/nothing/billing", 404),
        ("/lag/or%20ders/billing", 400),
    ] {
        assert_eq!(status(address, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn a_scrape_has_what_the_server_knows_and_forgets_what_is_gone() {
    let (_metrics, backend, server) = served(config()).await;
    let (spec, _) = filled(&backend, 5).await;
    let scrape = async || {
        let answer = get(server.address(), "/metrics").await.expect("an answer");
        assert_eq!((answer.status, &*answer.content_type), (200, "text/plain; version=0.0.4; charset=utf-8"));
        Scrape::parse(&answer.body)
    };
    let until = async |holds: fn(&Scrape) -> bool| {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let scrape = scrape().await;
            if holds(&scrape) {
                return scrape;
            }
            assert!(tokio::time::Instant::now() < deadline, "{scrape:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = until(|scrape| {
        let aged = scrape.sum("millstream_oldest_age_seconds", &[("partition", "0")]) > Some(0.0);
        aged && scrape.sum("millstream_lag", &[("topic", "orders")]) == Some(5.0)
    });
    let found = found.await;
    let of = |name: &str, partition: &str| found.sum(name, &[("topic", "orders"), ("partition", partition)]);
    assert_eq!((of("millstream_length", "0"), of("millstream_length", "1")), (Some(5.0), Some(0.0)));
    assert_eq!(
        (of("millstream_lag_unknown", "0"), of("millstream_dead_letters", "1")),
        (Some(0.0), Some(0.0))
    );
    assert_eq!(of("millstream_oldest_age_seconds", "1"), Some(0.0));
    assert_eq!(found.sum("millstream_members", &[]), Some(0.0));
    assert!(found.sum("millstream_sample_age_seconds", &[]) < Some(60.0));

    backend.catalog().delete_topic(&spec.name).await.expect("deleted");
    let gone =
        |scrape: &Scrape| scrape.sum("millstream_lag", &[("topic", "orders")]).is_some_and(f64::is_nan);
    let gone = until(gone).await;
    assert!(gone.sum("millstream_length", &[]).is_some_and(f64::is_nan));
}

#[tokio::test]
async fn when_it_is_stopped_nobody_answers() {
    let (_metrics, _, server) = served(config()).await;
    let address = server.address();
    assert_eq!(status(address, "/livez").await, 200);
    server.shutdown().await;
    assert!(get(address, "/livez").await.is_err());
}

#[tokio::test]
async fn the_routes_can_be_part_of_another_server() {
    let metrics = Metrics::new().expect("metrics");
    let backend = Backend::from(MemoryBackend::new());
    let (router, beside) = metrics.router(&backend, config()).expect("routes");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let app = axum::Router::new().nest("/queue", router).route("/", axum::routing::get(|| async { "mine" }));
    let tasks =
        [tokio::spawn(beside), tokio::spawn(async { axum::serve(listener, app).await.expect("served") })];
    assert_eq!((status(address, "/").await, status(address, "/queue/livez").await), (200, 200));
    for task in tasks {
        task.abort();
    }
}
