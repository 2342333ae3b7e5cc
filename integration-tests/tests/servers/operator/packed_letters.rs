//! What becomes of the messages of small packs that hold much: retries and dead letters take little too, and are the messages that they were.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use integration_tests::{eventually, server::Server};
use millstream::admin::{Replay, ShelfFilter};
use millstream::{
    Concurrency, Delivery, GroupName, Limits, Millstream, Outcome, PackCompression, Packing, Producer,
    Record, Retention, Sharing, Topic, TopicName,
};

const COUNT: usize = 500;
const LOG: &str = "stream:topic:{events:p:0}";
const PACKING: Packing = Packing::new().max_messages(COUNT as u32).max_bytes(1 << 20);

fn topic(compression: PackCompression) -> Topic<Bytes> {
    Topic::raw("events").packed(PACKING.compression(compression)).retention(Retention::Keep)
}

/// 2 KiB that are nearly nothing when they are compressed.
fn event(n: usize) -> Bytes {
    format!("{n:>2000}").into()
}

async fn send_all(producer: &Producer<Bytes>) {
    let events: Vec<_> = (0..COUNT).map(event).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
}

/// Bytes of memory of all keys whose name has this text.
fn memory(server: &Server, part: &str) -> u64 {
    let keys = server.cli(&["KEYS", &format!("*{part}*")]);
    let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty());
    keys.map(|key| {
        server.cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).trim().parse::<u64>().expect("bytes")
    })
    .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_leave_a_small_pack_take_little_and_come_back_whole() {
    for (compression, sharing) in
        [(PackCompression::Zstd, Sharing::Exclusive), (PackCompression::Lz4, Sharing::Shared)]
    {
        let server = Server::start();
        let mq = Millstream::at(server.url()).await.expect("connected");
        let topic = topic(compression);
        send_all(&mq.producer(topic.clone()).await.expect("a producer")).await;
        let log = memory(&server, LOG);
        assert!(log < 100_000, "{log} bytes for {} MB", COUNT * 2_000 / 1_000_000);

        // The second attempt is read from the retry log, and the third letter from there.
        let seen: Arc<Mutex<HashSet<(Bytes, u32)>>> = Arc::default();
        let (noted, is_replayed) = (seen.clone(), Arc::new(Mutex::new(false)));
        let replayed = is_replayed.clone();
        let handler = move |delivery: Delivery<Bytes>| {
            let attempt = delivery.attempt();
            noted.lock().expect("lock").insert((delivery.payload.clone(), attempt));
            let done = *replayed.lock().expect("lock");
            async move {
                match attempt {
                    _ if done => Outcome::Ack,
                    1 => Outcome::retry_after(Duration::from_millis(300), "not yet"),
                    _ => Outcome::dead_letter("never"),
                }
            }
        };
        let mut builder = mq.consumer(topic.clone(), "g").sharing(sharing);
        if sharing == Sharing::Shared {
            builder = builder.concurrency(Concurrency::Unordered(8));
        }
        let consumer = builder.start(handler).await.expect("a consumer");
        eventually(async || consumer.report().retried == COUNT as u64, "all are parked").await;
        let parked = memory(&server, "retry");
        assert!(parked < 400 * COUNT as u64, "{parked} bytes for {COUNT} parked retries");
        eventually(async || consumer.report().dead == COUNT as u64, "all are dead").await;
        let all = |attempt| (0..COUNT).map(move |n| (event(n), attempt));
        assert_eq!(*seen.lock().expect("lock"), all(1).chain(all(2)).collect());

        let letters = memory(&server, "dlq");
        assert!(letters < 600 * COUNT as u64, "{letters} bytes for {COUNT} dead letters");
        let (name, group): (TopicName, GroupName) =
            ("events".parse().expect("a name"), "g".parse().expect("a name"));
        let queue = mq.admin().dead_letters(&name, &group).await.expect("a queue");
        let limits = Limits::default();
        let payload = |letter: millstream::DeadLetter| letter.envelope(&limits).expect("a message").payload;
        let listed: HashSet<Bytes> =
            queue.list(1_000).await.expect("a list").into_iter().map(payload).collect();
        assert_eq!(listed, (0..COUNT).map(event).collect(), "they are shown as they were");

        *is_replayed.lock().expect("lock") = true;
        seen.lock().expect("lock").clear();
        let replayer = queue.replayer(&ShelfFilter::default(), Replay::default()).await;
        let replayed = replayer.expect("a replayer").run().await.expect("replayed");
        assert_eq!(replayed.replayed, COUNT as u64);
        eventually(async || seen.lock().expect("lock").len() == COUNT, "all come back").await;
        assert_eq!(*seen.lock().expect("lock"), all(1).collect());
        consumer.shutdown().await;
    }
}
