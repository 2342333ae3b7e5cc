//! Appending ahead: order, answers, and what is known of what was under way when the connection went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Appender, Durability, Log};
use millstream_core::topic::TopicPartition;
use millstream_redis::RedisConfig;
use redis::Value;
use tokio::time::timeout;

use crate::server::{Bench, Server, message};

const LONG: Duration = Duration::from_secs(60);

fn appender(bench: &Bench) -> Box<dyn Appender> {
    bench.backend.appender(Durability::Stored).expect("an appender")
}

fn batch(tp: &TopicPartition, payloads: impl IntoIterator<Item = u32>) -> Arc<Vec<Append>> {
    let append = |n: u32| Append::new(tp.clone(), message(&n.to_string()));
    Arc::new(payloads.into_iter().map(append).collect())
}

async fn finish(appender: &mut Box<dyn Appender>) -> Vec<Result<MessageId, ErrorKind>> {
    let results = timeout(LONG, appender.finish()).await.expect("an answer");
    results.into_iter().map(|result| result.map(|it| it.id).map_err(|error| error.kind())).collect()
}

async fn stored(bench: &mut Bench) -> Vec<String> {
    let Value::Array(entries) = bench.cmd(&format!("XRANGE {} - +", bench.log())).await else {
        panic!("no entries")
    };
    let payload = |entry: &Value| match entry {
        Value::Array(parts) => match &parts[1] {
            Value::Array(fields) => redis::from_redis_value_ref::<String>(&fields[1]).expect("text"),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    entries.iter().map(payload).collect()
}

fn numbers(until: u32) -> Vec<String> {
    (0..until).map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn what_is_begun_ahead_is_stored_and_answered_in_order() {
    let mut bench = Bench::new().await;
    let mut appender = appender(&bench);
    for at in 0..20 {
        appender.begin(batch(&bench.tp, at * 50..(at + 1) * 50));
    }
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.extend(finish(&mut appender).await.into_iter().map(|id| id.expect("stored")));
    }
    assert!(finish(&mut appender).await.is_empty(), "nothing is under way");
    assert!(ids.len() == 1_000 && ids.windows(2).all(|two| two[0] < two[1]));
    assert_eq!(stored(&mut bench).await, numbers(1_000));
}

/// More than sockets hold: it goes out in pieces, however often the future is dropped.
#[tokio::test]
async fn a_dropped_future_loses_nothing() {
    let mut bench = Bench::new().await;
    let mut appender = appender(&bench);
    let large = "x".repeat(200_000);
    let fields = |n: u32| message(&format!("{n} {large}"));
    for at in 0..5 {
        let append = |n| Append::new(bench.tp.clone(), fields(n));
        appender.begin(Arc::new((at * 20..(at + 1) * 20).map(append).collect()));
    }
    let (mut answered, mut dropped) = (0, 0);
    while answered < 5 {
        tokio::select! {
            biased;
            results = appender.finish() => {
                assert!(results.len() == 20 && results.iter().all(Result::is_ok));
                answered += 1;
            }
            () = tokio::task::yield_now() => dropped += 1,
        }
        assert!(dropped < 1_000_000);
    }
    assert!(dropped > 5, "dropped {dropped} times only");
    let first = |payload: String| payload.split(' ').next().unwrap_or_default().to_owned();
    let stored: Vec<_> = stored(&mut bench).await.into_iter().map(first).collect();
    assert_eq!(stored, numbers(100));
}

#[tokio::test]
async fn what_is_refused_keeps_nothing_else_from_being_stored() {
    let mut bench = Bench::new().await;
    let foreign = TopicPartition::new("foreign".parse().expect("a name"), 0);
    let key = bench.keys.log(&foreign);
    bench.cmd(&format!("SET {key} x")).await;
    let mut appender = appender(&bench);
    let mixed: Vec<_> = batch(&bench.tp, 0..1).iter().chain(batch(&foreign, 7..8).iter()).cloned().collect();
    appender.begin(Arc::new(mixed));
    appender.begin(batch(&bench.tp, 1..2));
    let results = finish(&mut appender).await;
    assert!(matches!(results[..], [Ok(_), Err(ErrorKind::WrongType)]), "{results:?}");
    assert!(finish(&mut appender).await[0].is_ok());
    assert_eq!(stored(&mut bench).await, numbers(2));
    bench.cmd(&format!("DEL {key}")).await;
}

/// The connection of the only appender, as the server names it.
async fn client(bench: &mut Bench) -> String {
    let clients = format!("{:?}", bench.cmd("CLIENT LIST").await);
    let ours: Vec<_> =
        clients.split("\\n").filter(|line| line.contains("name=millstream:producer")).collect();
    let [line] = ours[..] else { panic!("{clients}") };
    let id = line.split(' ').find_map(|word| word.split("id=").nth(1)).expect("an id");
    id.to_owned()
}

#[tokio::test]
async fn a_connection_that_went_between_two_requests_costs_nothing() {
    let mut bench = Bench::private(&[]).await;
    let mut appender = appender(&bench);
    for n in 0..3 {
        appender.begin(batch(&bench.tp, n..n + 1));
        assert!(finish(&mut appender).await[0].is_ok(), "append {n}");
        let id = client(&mut bench).await;
        bench.cmd(&format!("CLIENT KILL ID {id}")).await;
    }
    assert_eq!(stored(&mut bench).await, numbers(3));
}

#[tokio::test]
async fn what_was_under_way_is_not_known_and_what_was_not_sent_is() {
    let server = Server::start(&[]);
    let port = server.port;
    let mut bench = Bench::at(RedisConfig::new(server.url()), None).await;
    let mut appender = appender(&bench);
    appender.begin(batch(&bench.tp, 0..1));
    assert!(finish(&mut appender).await[0].is_ok());
    // Nothing is answered until the server is gone.
    bench.cmd("CLIENT PAUSE 60000 WRITE").await;
    appender.begin(batch(&bench.tp, 1..2));
    appender.begin(batch(&bench.tp, 2..3));
    assert!(timeout(Duration::from_millis(50), appender.finish()).await.is_err(), "paused");
    drop(server);
    assert_eq!(finish(&mut appender).await, [Err(ErrorKind::Unconfirmed)]);
    assert_eq!(finish(&mut appender).await, [Err(ErrorKind::Unconfirmed)]);
    appender.begin(batch(&bench.tp, 3..4));
    appender.begin(batch(&bench.tp, 4..5));
    for _ in 0..2 {
        assert_eq!(finish(&mut appender).await, [Err(ErrorKind::Unavailable)]);
    }
    let _server = Server::at(port);
    appender.begin(batch(&bench.tp, 5..6));
    assert!(finish(&mut appender).await[0].is_ok());
}

/// Also if there is always something new: that does not make an answer come.
#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let server = Server::start(&[]);
    let mut config = RedisConfig::new(server.url());
    config.response_timeout = Duration::from_millis(400);
    let mut bench = Bench::at(config, Some(server)).await;
    let mut appender = appender(&bench);
    appender.begin(batch(&bench.tp, 0..1));
    assert!(finish(&mut appender).await[0].is_ok());
    bench.cmd("CLIENT PAUSE 60000 WRITE").await;
    let started = Instant::now();
    appender.begin(batch(&bench.tp, 1..2));
    let error = loop {
        match timeout(Duration::from_millis(50), appender.finish()).await {
            Ok(mut results) => break results.remove(0).expect_err("no answer"),
            Err(_) => appender.begin(batch(&bench.tp, 2..3)),
        }
        assert!(started.elapsed() < LONG, "it is never given up");
    };
    assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
    bench.cmd("CLIENT UNPAUSE").await;
}

/// After a fail-over the address leads to another server, while the connection would stay with the old one.
#[tokio::test]
async fn a_server_that_became_a_replica_is_left() {
    let mut bench = Bench::private(&[]).await;
    let mut appender = appender(&bench);
    appender.begin(batch(&bench.tp, 0..1));
    assert!(finish(&mut appender).await[0].is_ok());
    let first = client(&mut bench).await;
    bench.cmd("REPLICAOF 127.0.0.1 1").await;
    // Not at once: a replica that stays one is not to be dialled for every request.
    let started = Instant::now();
    while client(&mut bench).await == first {
        appender.begin(batch(&bench.tp, 1..2));
        assert_eq!(finish(&mut appender).await, [Err(ErrorKind::Unavailable)]);
        let alike = bench.backend.append(&batch(&bench.tp, 1..2)).await;
        assert!(alike[0].as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable));
        assert!(started.elapsed() < LONG, "the connection is kept");
    }
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    bench.cmd("REPLICAOF NO ONE").await;
    appender.begin(batch(&bench.tp, 1..2));
    assert!(finish(&mut appender).await[0].is_ok());
    assert_eq!(stored(&mut bench).await, numbers(2));
}

/// What is refused for good and is sent again at once must not become a storm of connections.
#[tokio::test]
async fn refused_credentials_are_tried_now_and_then() {
    let server = Server::start(&["--requirepass", "first"]);
    let config = RedisConfig::new(server.url().replace("redis://", "redis://:first@"));
    let mut bench = Bench::at(config, Some(server)).await;
    let mut appender = appender(&bench);
    bench.cmd("CONFIG SET requirepass second").await;
    let started = Instant::now();
    for _ in 0..10 {
        appender.begin(batch(&bench.tp, 0..1));
        let results = finish(&mut appender).await;
        assert!(matches!(results[..], [Err(ErrorKind::Denied)]), "{results:?}");
    }
    // Without pauses they would take ten round trips.
    assert!(started.elapsed() >= Duration::from_millis(250), "ten attempts in {:?}", started.elapsed());
}
