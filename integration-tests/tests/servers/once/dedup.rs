//! Sends that are stored once over connections that break: one entry, and the id of the first. With a dedup id, and without one
//! by an idempotent producer.

use std::time::Duration;

use integration_tests::eventually;
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use millstream::{ErrorKind, Millstream, Producer, Record, Topic};
use millstream_redis::{RedisBackend, RedisConfig};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);
const LOG: &str = "stream:topic:{numbers:p:0}";

struct Scene {
    server: Server,
    proxy: Proxy,
    producer: Producer<u64>,
}

/// A second passes before the server is given up.
async fn scene(limit: Duration) -> Scene {
    let server = tokio::task::spawn_blocking(|| Server::builder().start()).await.expect("a server");
    let proxy = Proxy::to(server.port());
    let config = RedisConfig::new(proxy.url()).with_response_timeout(Duration::from_secs(1));
    let mq = Millstream::over(RedisBackend::connect(config).await.expect("connected").into());
    let producer = mq.producer(NUMBERS).delivery_timeout(limit).idempotent(true).await.expect("a producer");
    // The server knows the script from now on.
    producer.send(&0).dedup("first").await.expect("sent");
    Scene { server, proxy, producer }
}

fn ids(server: &Server) -> Vec<String> {
    let entries = server.cli(&["XRANGE", LOG, "-", "+"]);
    let is_id =
        |line: &&str| line.split_once('-').is_some_and(|(ms, _)| ms.len() == 13 && ms.parse::<u64>().is_ok());
    entries.lines().map(str::trim).filter(is_id).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_off_behind_the_write_stores_one_entry() {
    let Scene { server, proxy, producer } = scene(Duration::from_secs(30)).await;
    for n in 1..=5 {
        let id = format!("order-{n}");
        proxy.swallow(&id, 1);
        let sent = producer.send(&n).dedup(&id).await.expect("repeated until it is answered");
        assert!(sent.is_duplicate, "the first request was stored: {sent:?}");
        assert_eq!(proxy.swallowed(), usize::try_from(n).expect("few"), "its answer was cut off");
        let stored = ids(&server);
        assert_eq!(stored.len(), usize::try_from(n).expect("few") + 1);
        assert_eq!(stored.last(), Some(&sent.id.to_string()), "the id of the entry");
    }
    let values: Vec<u64> = (0..500).collect();
    proxy.swallow("bulk-250", 1);
    let records = values.iter().map(|n| Record::new(n).dedup(format!("bulk-{n}")));
    let sent: Vec<_> =
        producer.send_all(records).await.into_iter().map(|sent| sent.expect("sent").id).collect();
    assert!(sent.is_sorted() && sent.windows(2).all(|w| w[0] < w[1]));
    assert_eq!(ids(&server).len(), 506);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_past_the_timeout_stores_one_entry() {
    let Scene { server, proxy, producer } = scene(Duration::from_millis(1_500)).await;
    // What is sent arrives, and no answer comes back.
    proxy.freeze(Way::Down);
    let stalled = producer.send(&1).dedup("stalled").await.expect_err("no answer in time");
    assert_eq!(stalled.kind(), ErrorKind::Unconfirmed, "{stalled}");
    assert_eq!(ids(&server).len(), 2, "it is stored");
    proxy.reset();
    proxy.thaw();
    let again = producer.send(&1).dedup("stalled").await;
    let again = match again {
        // The first request after the stall may still go to a connection that is gone.
        Err(error) if error.is_transient() => producer.send(&1).dedup("stalled").await.expect("sent"),
        again => again.expect("sent"),
    };
    assert!(again.is_duplicate);
    assert_eq!(ids(&server), [ids(&server)[0].clone(), again.id.to_string()]);
}

/// Many requests are under way when the connection goes: of some the answer is lost, and some may never have been read.
#[tokio::test(flavor = "multi_thread")]
async fn requests_under_way_on_a_connection_that_is_cut_store_each_id_once_and_in_order() {
    let Scene { server, proxy, producer } = scene(Duration::from_secs(30)).await;
    let mark = |round: u64, n: u64| format!("round {round} number {n}.");
    for round in 0..4_u64 {
        let (values, before): (Vec<u64>, _) = ((0..4_000).collect(), ids(&server).len());
        proxy.swallow(&mark(round, 900 * round + 250), 1);
        let records = values
            .iter()
            .map(|n| Record::new(n).header("mark", mark(round, *n)).dedup(mark(round, *n)))
            .collect::<Vec<_>>();
        let sent: Vec<_> =
            producer.send_all(records).await.into_iter().map(|it| it.expect("sent").id.to_string()).collect();
        assert_eq!(
            sent,
            ids(&server)[before..],
            "each is stored once, in order, under the id that is returned"
        );
    }
    assert_eq!(proxy.swallowed(), 4, "one answer in each round");
}

/// Several producers send the same ids while connections end.
#[tokio::test(flavor = "multi_thread")]
async fn producers_with_the_same_ids_store_each_once_while_connections_end() {
    let Scene { server, proxy, .. } = scene(Duration::from_secs(30)).await;
    let mut sending = Vec::new();
    for _ in 0..3 {
        let config = RedisConfig::new(proxy.url());
        let mq = Millstream::over(RedisBackend::connect(config).await.expect("connected").into());
        // Before connections end: this is not repeated.
        let producer = mq.producer(NUMBERS).await.expect("a producer");
        sending.push(tokio::spawn(async move {
            let mut sent = Vec::new();
            for chunk in 0..20_u64 {
                let values: Vec<u64> = (100 * chunk..100 * chunk + 100).collect();
                let records = values.iter().map(|n| Record::new(n).dedup(format!("a common id {n}")));
                let results = producer.send_all(records.collect::<Vec<_>>()).await;
                sent.extend(results.into_iter().map(|it| it.expect("sent in the end").id));
            }
            sent
        }));
    }
    for _ in 0..3 {
        let before = ids(&server).len();
        let more = async || ids(&server).len() > before || before == 2_001;
        eventually(more, "something new is stored").await;
        proxy.reset();
    }
    let mut all = Vec::new();
    for sender in sending {
        all.push(sender.await.expect("a sender"));
    }
    assert!(all.iter().all(|sent| *sent == all[0]), "all get the place of the first");
    assert_eq!(ids(&server).len(), 2_001, "each is stored once");
}

/// While a topic grows, ids are looked for in earlier partitions, which requests under way do not do.
#[tokio::test(flavor = "multi_thread")]
async fn ids_stay_at_their_partitions_while_a_topic_grows() {
    let Scene { server, .. } = scene(Duration::from_secs(30)).await;
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(NUMBERS).refresh(Duration::from_millis(100)).await.expect("a producer");
    let values: Vec<u64> = (0..300).collect();
    let places = async || {
        let records = values.iter().map(|n| Record::new(n).dedup(format!("number {n}")));
        let sent = producer.send_all(records.collect::<Vec<_>>()).await;
        sent.into_iter().map(|it| it.map(|it| (it.partition, it.id)).expect("sent")).collect::<Vec<_>>()
    };
    let first = places().await;
    mq.expand(&NUMBERS, 8).await.expect("grown");
    eventually(async || producer.partitions() == 8, "the growth is noticed").await;
    assert_eq!(places().await, first, "the places of the first time");
    assert_eq!(ids(&server).len(), 301);
}

/// The producer repeats its request over another connection, and the entry has the id of the first time.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_producer_stores_one_entry_for_an_answer_that_is_cut_off() {
    let Scene { server, proxy, producer } = scene(Duration::from_secs(30)).await;
    for n in 1..=5 {
        let mark = format!("mark-{n}.");
        proxy.swallow(&mark, 1);
        let sent = producer.send(&n).header("mark", &mark).await.expect("repeated until it is answered");
        assert_eq!(proxy.swallowed(), usize::try_from(n).expect("few"), "its answer was cut off");
        let stored = ids(&server);
        assert_eq!(stored.len(), usize::try_from(n).expect("few") + 1);
        assert_eq!(stored.last(), Some(&sent.id.to_string()), "the id of the entry");
    }
    // Many requests are under way: of some the answer is lost, and some may never have been read.
    for round in 0..4_u64 {
        let (values, before): (Vec<u64>, _) = ((0..3_000).collect(), ids(&server).len());
        proxy.swallow(&format!("bulk-{}.", 700 * round + 250), 1);
        let records = values.iter().map(|n| Record::new(n).header("mark", format!("bulk-{n}.")));
        let sent: Vec<_> =
            producer.send_all(records).await.into_iter().map(|it| it.expect("sent").id.to_string()).collect();
        assert_eq!(
            sent,
            ids(&server)[before..],
            "each is stored once, in order, under the id that is returned"
        );
    }
    assert_eq!(proxy.swallowed(), 9, "one answer in each round");
}

/// What an earlier connection still delivers is not stored a second time.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_producer_stores_one_entry_on_a_server_that_stalls() {
    let Scene { server, proxy, producer } = scene(Duration::from_secs(60)).await;
    producer.send(&0).await.expect("sent");
    let before = proxy.accepted();
    // What is sent arrives, and no answer comes back.
    proxy.freeze(Way::Down);
    let sending = tokio::spawn(async move {
        let values: Vec<u64> = (1..=100).collect();
        let records: Vec<_> = values.iter().map(Record::new).collect();
        let sent = producer.send_all(records).await;
        sent.into_iter().map(|sent| sent.expect("sent in the end").id.to_string()).collect::<Vec<_>>()
    });
    eventually(async || ids(&server).len() == 102, "the first attempt is stored").await;
    eventually(async || proxy.accepted() > before, "the connection is given up").await;
    proxy.reset();
    proxy.thaw();
    assert_eq!(ids(&server)[2..], sending.await.expect("a sender"), "each is stored once");
}
