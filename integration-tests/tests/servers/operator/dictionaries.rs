//! Packed topics with a dictionary, over a server: single messages and packs, and versions that readers do not know.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::admin::{InUse, Training};
use millstream::{
    Delivery, Fixed, Limits, Millstream, Outcome, PackCompression, Packing, Producer, Record, Retention,
    Topic, TopicName,
};

pub(super) const PACKING: Packing =
    Packing::new().compression(PackCompression::ZstdDictionary).min_messages(1);
pub(super) const EVENTS: Topic<Bytes> = Topic::raw("events").packed(PACKING).retention(Retention::Keep);
pub(super) const LOG: &str = "stream:topic:{events:p:0}";
pub(super) const PACKS: &str = "streaming:mq:packs:{events:p:0}";
pub(super) const DICTIONARIES: &str = "streaming:mq:topic:{events}:dictionaries";

pub(super) struct Scene {
    pub(super) server: Server,
    pub(super) mq: Millstream,
    pub(super) producer: Producer<Bytes>,
}

pub(super) fn topic() -> TopicName {
    "events".parse().expect("a name")
}

pub(super) fn event(n: u64) -> Bytes {
    let id = n.wrapping_mul(7_919) % 10_000;
    format!(
        "{{\"flight\":\"MS{id}\",\"from\":\"HAM\",\"to\":\"VIE\",\"minutes\":{},\"status\":\"departed\",\"number\":{n}}}",
        n % 180
    )
    .into()
}

/// A topic with a dictionary and 400 messages that were stored before.
pub(super) async fn scene() -> Scene {
    let server = tokio::task::spawn_blocking(|| Server::builder().start()).await.expect("a server");
    let mq = Millstream::at(server.url()).await.expect("connected");
    let producer = mq.producer(EVENTS).await.expect("a producer");
    let events: Vec<_> = (0..400).map(event).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    assert!(heads(&server).iter().all(|head| head.contains(" zstd ")), "plain zstd until it is trained");
    train(&mq).await;
    Scene { server, mq, producer }
}

pub(super) async fn train(mq: &Millstream) -> Option<u32> {
    let mut training = Training::new();
    (training.messages, training.size) = (2_000, 4 << 10);
    mq.admin().train_topic(&topic(), training).await.expect("trained").version
}

/// The heads of the packs in the log.
fn heads(server: &Server) -> Vec<String> {
    let entries = server.cli(&["XRANGE", LOG, "-", "+"]);
    let mut lines = entries.lines();
    let mut heads = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim() == "mq:pack" {
            heads.extend(lines.next().map(|head| head.trim().to_owned()));
        }
    }
    heads
}

/// Consumes `count` messages with a new group, and returns their payloads in order.
pub(super) async fn read(mq: &Millstream, group: &str, count: usize) -> Vec<Bytes> {
    let puller = mq.consumer(EVENTS, group).pull().await.expect("a puller");
    let mut read = Vec::new();
    while read.len() < count {
        let pulled = puller.next().await.expect("a message");
        read.push(pulled.payload.clone());
        pulled.ack();
    }
    puller.shutdown().await;
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_alone_and_packs_are_stored_with_the_dictionary_and_read_by_others() {
    let Scene { server, producer, .. } = scene().await;
    let before = heads(&server).len();
    let mut expected: Vec<Bytes> = (0..400).map(event).collect();
    for n in 400..420 {
        producer.send(&event(n)).await.expect("sent");
        expected.push(event(n));
    }
    let short = Bytes::from_static(b"7");
    producer.send(&short).await.expect("sent");
    expected.push(short);
    let events: Vec<_> = (420..520).map(event).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    expected.extend(events);
    let heads = heads(&server);
    let alone = heads[before..].iter().filter(|head| head.starts_with("1 zstd:1 ")).count();
    let many = heads[before..].iter().filter(|head| !head.starts_with("1 ") && head.contains(" zstd:1 "));
    assert_eq!((alone, many.count() > 0), (20, true), "{heads:?}");
    let plain =
        server.cli(&["XRANGE", LOG, "-", "+"]).lines().filter(|line| line.trim() == "payload").count();
    assert_eq!(plain, 1, "what the dictionary does not make smaller is stored as it is");

    // Another process, which has read nothing yet.
    let other = Millstream::at(server.url()).await.expect("connected");
    assert_eq!(read(&other, "others", expected.len()).await, expected);
    let stats = other.admin().stats(&topic()).await.expect("stats");
    assert_eq!(stats.groups[0].totals.lag, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_packs_of_one_are_retried_and_die_by_themselves() {
    let Scene { server: _server, mq, producer } = scene().await;
    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    let consumer = mq.consumer(EVENTS, "failing").retry(Fixed::new(Duration::from_millis(10)).attempts(2));
    let consumer = consumer
        .start(move |delivery: Delivery<Bytes>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let fails = delivery.payload.ends_with(b"7}");
            async move { if fails { Outcome::retry("a number that ends in 7") } else { Outcome::Ack } }
        })
        .await
        .expect("a consumer");
    for n in 400..430 {
        producer.send(&event(n)).await.expect("sent");
    }
    eventually(async || consumer.report().dead == 43, "43 of 430 numbers end in 7").await;
    eventually(async || handled.load(Ordering::Relaxed) == 473, "they were handled twice").await;
    consumer.shutdown().await;
    let group = "failing".parse().expect("a name");
    let letters =
        mq.admin().dead_letters(&topic(), &group).await.expect("a queue").list(100).await.expect("a list");
    let bodies: BTreeSet<Bytes> =
        letters.iter().map(|it| it.envelope(&Limits::default()).expect("a message").payload).collect();
    let expected: BTreeSet<Bytes> = (0..430).filter(|n| n % 10 == 7).map(event).collect();
    assert_eq!(bodies, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_version_is_used_by_running_producers_and_fetched_by_running_consumers() {
    let Scene { server, mq, producer } = scene().await;
    // A process whose producer reads the settings often, and whose consumer runs all the time.
    let other = Millstream::at(server.url()).await.expect("connected");
    let remote = other.producer(EVENTS).refresh(Duration::from_millis(100)).await.expect("a producer");
    let consumer = other.consumer(EVENTS, "running").start(async |_: Delivery<Bytes>| Outcome::Ack);
    let consumer = consumer.await.expect("a consumer");
    eventually(async || consumer.report().acked == 400, "all are handled").await;

    let later = |n: u64| {
        let (station, speed) = (n * 7_919 % 997, n % 60);
        Bytes::from(format!(
            "<wind station=\"{station}\" unit=\"knots\" averaged=\"10 min\" source=\"mast\">{speed}</wind>"
        ))
    };
    let events: Vec<_> = (0..2_000).map(later).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    assert_eq!(train(&mq).await, Some(2), "the messages are others by now");
    producer.send(&later(2_001)).await.expect("sent");
    assert!(
        heads(&server).last().is_some_and(|head| head.starts_with("1 zstd:2 ")),
        "where it was trained, at once"
    );
    let mut sent = 2_401;
    eventually(
        async || {
            remote.send(&later(sent)).await.expect("sent");
            sent += 1;
            heads(&server).last().is_some_and(|head| head.starts_with("1 zstd:2 "))
        },
        "elsewhere, after a refresh",
    )
    .await;
    eventually(async || consumer.report().acked == sent, "all are handled").await;
    assert_eq!(consumer.report().dead, 0);
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_deleted_with_its_dictionaries() {
    let Scene { server, mq, producer } = scene().await;
    drop(producer);
    assert_eq!(server.cli(&["EXISTS", DICTIONARIES]).trim(), "1");
    mq.admin().delete_topic(&topic(), InUse::Force).await.expect("deleted");
    assert_eq!(server.cli(&["EXISTS", DICTIONARIES]).trim(), "0");
    let again = mq.producer(EVENTS).await.expect("a producer");
    again.send(&event(1)).await.expect("sent");
    assert!(heads(&server).is_empty(), "the new topic has no dictionary");
    for n in 0..400 {
        again.send(&event(n)).await.expect("sent");
    }
    // The same version, and another dictionary: readers tell them apart.
    assert_eq!(train(&mq).await, Some(1));
    again.send(&event(2)).await.expect("sent");
    assert_eq!(read(&mq, "new", 402).await.last(), Some(&event(2)));
}

/// Bytes of memory that the server uses, and those of the log with what is beside it.
fn memory(server: &Server) -> [u64; 2] {
    let info = server.cli(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a line");
    let keys = [LOG, PACKS];
    let usage =
        keys.map(|key| server.cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).trim().parse().unwrap_or(0));
    [used.trim().parse().expect("a number"), usage.iter().sum()]
}

/// `EVENTS=departures.jsonl cargo test --release -p integration-tests --test servers -- --ignored --nocapture memory_of_packs`: the
/// lines of the file are the messages. A dictionary of 16 KiB is trained on the first 10,000, and the others are stored.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: it prints the memory of packs of the lines of a file, and asserts nothing"]
async fn memory_of_packs() {
    let file = std::env::var("EVENTS").expect("EVENTS names a file of messages, one a line");
    let text = std::fs::read_to_string(file).expect("the file");
    let lines: Vec<Bytes> = text.lines().map(|line| Bytes::copy_from_slice(line.as_bytes())).collect();
    let (first, others) = lines.split_at(10_000);
    let mut dictionary = None;
    for (compression, most) in [
        (None, 1),
        (Some(PackCompression::Zstd), 10),
        (Some(PackCompression::Zstd), 100),
        (Some(PackCompression::ZstdDictionary), 1),
        (Some(PackCompression::ZstdDictionary), 10),
        (Some(PackCompression::ZstdDictionary), 100),
    ] {
        let server = tokio::task::spawn_blocking(|| Server::builder().start()).await.expect("a server");
        let mq = Millstream::at(server.url()).await.expect("connected");
        let events = Topic::<Bytes>::raw("events");
        let topic = match compression {
            None => events,
            Some(compression) => {
                let packing = Packing::new().compression(compression).max_messages(most.max(2));
                events.packed(packing.min_messages(most))
            }
        };
        let producer = mq.producer(topic.clone()).await.expect("a producer");
        if compression == Some(PackCompression::ZstdDictionary) {
            if dictionary.is_none() {
                let training = topic.named("training");
                let producer = mq.producer(training).await.expect("a producer");
                for sent in producer.send_all(first.iter().map(Record::new)).await {
                    sent.expect("sent");
                }
                let name = "training".parse().expect("a name");
                let trained = mq.admin().train_topic(&name, Training::new()).await.expect("trained");
                println!("{trained:?}");
                let catalog = mq.backend().catalog();
                let stored = catalog.topic(&name).await.expect("a topic").dictionary.expect("trained");
                dictionary = catalog.dictionary(&name, stored).await.expect("read");
                mq.admin().delete_topic(&name, InUse::Force).await.expect("deleted");
            }
            let catalog = mq.backend().catalog();
            let spec = catalog.topic(&self::topic()).await.expect("a topic");
            catalog.store_dictionary(&spec, dictionary.clone().expect("trained")).await.expect("stored");
        }
        let before = memory(&server);
        if most == 1 {
            for line in others {
                producer.send(line).await.expect("sent");
            }
        } else {
            for sent in producer.send_all(others.iter().map(Record::new)).await {
                sent.expect("sent");
            }
        }
        let entries = server.cli(&["XLEN", LOG]);
        let after = memory(&server);
        let each = |at: usize| (after[at] - before[at]) as f64 / others.len() as f64;
        println!(
            "{compression:?}, {most} an entry ({} entries): used_memory {:.1}, MEMORY USAGE {:.1} bytes a message",
            entries.trim(),
            each(0),
            each(1)
        );
    }
}
