//! A flood of large messages that waits on the server: others pass it, over an outage, and whatever another client deletes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::server::Server;
use millstream::{Concurrency, Delivery, Fairness, Millstream, Packing, Record, Topic};
use millstream_core::TopicPartition;
use millstream_core::keys::Keys;

const FLOOD: u64 = 600;
const QUIET: u64 = 1_000;
const SIZE: usize = 64 << 10;
const TTL: Duration = Duration::from_secs(1);

async fn send(
    mq: &Millstream,
    topic: &Topic<String>,
    tenant: &str,
    values: std::ops::Range<u64>,
) -> Vec<String> {
    let producer = mq.producer(topic.clone()).await.expect("a producer");
    let payloads: Vec<String> = values.map(|n| format!("{n:06}{}", "x".repeat(SIZE))).collect();
    let record = |payload| Record::new(payload).header("tenant", tenant);
    let sent = producer.send_all(payloads.iter().map(record)).await;
    sent.into_iter().map(|sent| sent.expect("sent").id.to_string()).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(tokio::time::Instant::now() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn others_pass_a_flood(topic: Topic<String>, deletes: bool) {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let noted = seen.clone();
    let consumer = mq
        .consumer(topic.clone(), "g")
        .concurrency(Concurrency::Unordered(4))
        .lease_ttl(TTL)
        .fair_by(Fairness::by_header("tenant"))
        .start(move |delivery: Delivery<String>| {
            assert!(delivery.payload.len() == SIZE + 6 && delivery.headers().get("tenant").is_some());
            noted.lock().expect("lock").push(delivery.payload[..6].parse().expect("a number"));
            tokio::time::sleep(Duration::from_millis(20))
        })
        .await
        .expect("started");
    let ids = send(&mq, &topic, "flood", 0..FLOOD).await;
    let count = || seen.lock().expect("lock").len();
    // All are read: 16 MiB of bodies are in memory, and the others are on the server.
    until("all are read", || consumer.health().in_flight + count() >= FLOOD as usize).await;
    let mut gone = 0;
    if deletes {
        let log = Keys::new().log(&TopicPartition::new("large".parse().expect("a name"), 0));
        for at in [FLOOD - 30, FLOOD - 29, FLOOD - 10] {
            assert_eq!(server.cli(&["XDEL", log.as_str(), &ids[at as usize]]), "1");
            gone += 1;
        }
    }
    for n in QUIET..QUIET + 5 {
        send(&mq, &topic, "quiet", n..n + 1).await;
        until("a quiet one waits", || seen.lock().expect("lock").contains(&n)).await;
    }
    assert!(count() < FLOOD as usize / 2, "the flood was handled before the others: {}", count());
    server.pause();
    tokio::time::sleep(TTL * 2).await;
    server.resume();
    until("all are handled", || {
        let seen = seen.lock().expect("lock");
        let handled = (0..FLOOD).chain(QUIET..QUIET + 5).filter(|n| seen.contains(n)).count();
        handled == (FLOOD + 5 - gone) as usize
    })
    .await;
    until("nothing is left", || consumer.health().in_flight == 0).await;
    let report = consumer.shutdown().await;
    // What ran when the lease was lost is handled again.
    assert!(report.dead == 0 && count() <= (FLOOD + 5) as usize + 8, "{report:?}, {} calls", count());
}

#[tokio::test]
async fn others_pass_a_flood_of_large_messages() {
    others_pass_a_flood(Topic::new("large").partitions(1), true).await;
}

#[tokio::test]
async fn others_pass_a_flood_of_packed_messages() {
    let packing = Packing::new().min_messages(2).max_messages(8);
    others_pass_a_flood(Topic::new("packed").partitions(1).packed(packing), false).await;
}
