//! Dictionaries of packed topics that are lost, damaged or replaced by others, over a server.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::admin::{InUse, Training};
use millstream::{
    Concurrency, Consumer, Delivery, ErrorKind, Millstream, Outcome, PackCompression, Record, Sharing,
    TopicChange,
};
use millstream_core::catalog::Start;
use millstream_core::leases::Acquired;
use millstream_core::log::{Entry, Settlement};
use millstream_core::schedule::Due;
use millstream_core::{Continuity, History, Resource, TopicPartition};

use super::dictionaries::{
    DICTIONARIES, EVENTS, LOG, PACKING, PACKS, Scene, event, read, scene, topic, train,
};

const META: &str = "streaming:mq:topic:{events}:meta";

/// The names of the dictionaries.
fn names(server: &Server) -> Vec<String> {
    let keys = server.cli(&["HKEYS", DICTIONARIES]);
    keys.lines().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// The ids of the dictionaries that the packs in the log need, by the headers of their frames (RFC 8878, section 3.1.1.1); 0 for none.
fn ids(server: &Server) -> Vec<String> {
    let script = "local ids = {} for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do         for at = 1, #entry[2], 2 do if entry[2][at] == 'mq:messages' then         local frame = entry[2][at + 1] local head = string.byte(frame, 5)         local wide = bit.band(head, 3) == 3 local at = bit.band(head, 32) == 0 and 7 or 6         ids[#ids + 1] = wide and string.format('%.0f', struct.unpack('<I4', frame, at)) or '0'         end end end return ids";
    server.cli(&["EVAL", script, "1", LOG]).lines().map(|id| id.trim().to_owned()).collect()
}

/// The error that a consumer's loops report about reading.
fn failing(consumer: &Consumer) -> Option<String> {
    consumer.health().loops.into_iter().filter_map(|it| it.failing).map(|failure| failure.error).next()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_whose_dictionary_is_gone_waits_until_it_is_put_back() {
    let Scene { server, mq, producer } = scene().await;
    for n in 400..410 {
        producer.send(&event(n)).await.expect("sent");
    }
    let events: Vec<_> = (410..430).map(event).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    let [name] = &names(&server)[..] else { panic!("one dictionary") };
    // Without a shell: the bytes are put back by another key.
    let keep = ["COPY", DICTIONARIES, "kept"];
    assert_eq!(server.cli(&keep).trim(), "1");
    let damages = [&["DEL", DICTIONARIES][..], &["HSET", DICTIONARIES, name, "damaged"]];
    for damage in damages {
        for sharing in [Sharing::Exclusive, Sharing::Shared] {
            server.cli(damage);
            let other = Millstream::at(server.url()).await.expect("connected");
            let group = format!("without-{}-{sharing:?}", damage.len());
            let seen: Arc<Mutex<HashSet<Bytes>>> = Arc::default();
            let noted = seen.clone();
            let handler = move |delivery: Delivery<Bytes>| {
                noted.lock().expect("lock").insert(delivery.payload.clone());
                async { Outcome::Ack }
            };
            let mut builder = other.consumer(EVENTS, &*group).sharing(sharing);
            if sharing == Sharing::Shared {
                builder = builder.concurrency(Concurrency::Unordered(8));
            }
            let consumer = builder.start(handler).await.expect("a consumer");
            eventually(async || failing(&consumer).is_some(), "it is reported").await;
            let error = failing(&consumer).unwrap_or_default();
            assert!(error.contains("dictionary"), "{error}");
            // As a program does that has it.
            server.cli(&["COPY", "kept", DICTIONARIES, "REPLACE"]);
            eventually(async || seen.lock().expect("lock").len() == 430, "all of them are handled").await;
            eventually(async || consumer.report().acked == 430, "and settled").await;
            assert_eq!(consumer.report().dead, 0, "none is dead");
            eventually(async || failing(&consumer).is_none(), "and nothing is failing").await;
            consumer.shutdown().await;
        }
    }
    server.cli(damages[0]);
    // A producer that cannot read it packs without it, and so does one that knows no dictionary.
    let other = Millstream::at(server.url()).await.expect("connected");
    let fresh = other.producer(EVENTS).await.expect("a producer");
    fresh.send(&event(1)).await.expect("sent");
    // The process that has it goes on.
    assert_eq!(read(&mq, "with", 431).await.len(), 431);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dictionary_that_cannot_be_used_is_replaced_by_training() {
    let Scene { server, .. } = scene().await;
    let too_large = "d".repeat(70_000);
    for (version, damage) in (2..).zip(["damaged", &too_large]) {
        let name = server.cli(&["HGET", META, "dictionary"]).trim().to_owned();
        server.cli(&["HSET", DICTIONARIES, &name, damage]);
        let other = Millstream::at(server.url()).await.expect("connected");
        let producer = other.producer(EVENTS).await.expect("a producer");
        producer.send(&event(1)).await.expect("sent");
        assert_eq!(train(&other).await, Some(version));
        producer.send(&event(2)).await.expect("sent");
        assert!(ids(&server).last().is_some_and(|id| id != "0"), "it is used at once");
    }
}

/// What is lost of a dictionary: its bytes, its name in the settings, or both as by a fail-over to a replica without the training.
#[tokio::test(flavor = "multi_thread")]
async fn a_dictionary_that_is_lost_is_put_back_by_a_producer_that_uses_it() {
    let Scene { server, mq, producer } = scene().await;
    drop(producer);
    let producer = mq.producer(EVENTS).refresh(Duration::from_millis(100)).await.expect("a producer");
    let [name] = &names(&server)[..] else { panic!("one dictionary") };
    let stored = server.cli(&["HGET", DICTIONARIES, name]);
    let losses = [
        &[&["DEL", DICTIONARIES][..]][..],
        &[&["HDEL", META, "dictionary"]],
        &[&["DEL", DICTIONARIES], &["HDEL", META, "dictionary"]],
    ];
    for (n, loss) in (400..).zip(losses) {
        loss.iter().for_each(|command| drop(server.cli(command)));
        producer.send(&event(n)).await.expect("sent");
        eventually(async || names(&server) == [name.as_str()], "it is put back").await;
        eventually(async || server.cli(&["HGET", META, "dictionary"]).trim() == name, "and is the newest")
            .await;
        assert_eq!(server.cli(&["HGET", DICTIONARIES, name]), stored);
    }
    let other = Millstream::at(server.url()).await.expect("connected");
    assert_eq!(read(&other, "others", 403).await.last(), Some(&event(402)));
}

/// An operator answers the loss with another training, so that a newer one stands in the settings; and one whose packing is another by
/// now has packs of before.
#[tokio::test(flavor = "multi_thread")]
async fn a_dictionary_that_is_lost_is_put_back_also_if_another_is_used_by_now() {
    let Scene { server, mq, producer } = scene().await;
    drop(producer);
    let producer = mq.producer(EVENTS).refresh(Duration::from_millis(100)).await.expect("a producer");
    producer.send(&event(400)).await.expect("sent");
    let [name] = &names(&server)[..] else { panic!("one dictionary") };
    server.cli(&[
        "EVAL",
        "redis.call('DEL', KEYS[1]); redis.call('HSET', KEYS[2], 'dictionary', ARGV[1])",
        "2",
        DICTIONARIES,
        META,
        "6:77777",
    ]);
    eventually(async || names(&server) == [name.as_str()], "it is put back").await;
    assert_eq!(server.cli(&["HGET", META, "dictionary"]).trim(), "6:77777", "the newest stays");

    let change = TopicChange::new().packing(PACKING.compression(PackCompression::Zstd).min_messages(2));
    mq.admin().alter_topic(&topic(), &change).await.expect("altered");
    server.cli(&["DEL", DICTIONARIES]);
    eventually(async || names(&server) == [name.as_str()], "it is put back").await;
    server.cli(&["HSET", DICTIONARIES, name, "damaged"]);
    eventually(async || server.cli(&["HSTRLEN", DICTIONARIES, name]).trim() != "7", "it is set right").await;
    let other = Millstream::at(server.url()).await.expect("connected");
    assert_eq!(read(&other, "others", 401).await.last(), Some(&event(400)));
}

/// The deletion is remembered, so the new topic has another generation. Until it refreshes, the producer sends packs of before to it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_producer_sends_to_the_next_topic_of_the_name_can_be_read() {
    let Scene { server, mq, producer } = scene().await;
    producer.send(&event(400)).await.expect("sent");
    let other = Millstream::at(server.url()).await.expect("connected");
    other.admin().delete_topic(&topic(), InUse::Force).await.expect("deleted");
    let spec = EVENTS.spec().expect("valid");
    let again = other.backend().catalog().create_topic(&spec).await.expect("created");
    assert!(again.generation > 0 && again.dictionary.is_none());
    producer.send(&event(1)).await.expect("sent");
    assert_eq!(names(&server).len(), 0);
    assert_eq!(ids(&server).len(), 1, "with the dictionary of before");
    // As the refresh of the producer does, a minute later.
    let read_again = mq.backend().catalog().topic(&topic()).await.expect("a topic");
    assert_eq!((read_again.dictionary, names(&server).len()), (None, 1), "it is there for that pack alone");
    producer.send(&event(2)).await.expect("sent");
    assert_eq!(ids(&server).len(), 1, "the new topic has none of its own");
    let fresh = Millstream::at(server.url()).await.expect("connected");
    assert_eq!(read(&fresh, "fresh", 2).await, [event(1), event(2)]);
}

/// A fail-over has lost a training, and another one follows that knows nothing of it; or the topic was deleted and created again after
/// the deletion was forgotten. Both dictionaries have version 1.
#[tokio::test(flavor = "multi_thread")]
async fn another_dictionary_of_the_same_version_is_used_and_packs_of_both_can_be_read() {
    for of_new_topic in [false, true] {
        let Scene { server, mq, producer } = scene().await;
        drop(producer);
        let producer = mq.producer(EVENTS).refresh(Duration::from_millis(100)).await.expect("a producer");
        producer.send(&event(400)).await.expect("sent");
        let [first] = &names(&server)[..] else { panic!("one dictionary") };
        assert_eq!(ids(&server).last().map(|id| format!("1:{id}")).as_ref(), Some(first));
        let (key, second) = other_dictionary(&server).await;
        assert!(second.starts_with("1:") && second != *first, "{second} and {first}");
        // In one step: this producer sees nothing of what is between.
        let script = "redis.call('RENAME', KEYS[1], KEYS[2]); redis.call('HSET', KEYS[3], 'dictionary', ARGV[1]);             redis.call('DEL', unpack(KEYS, 4))";
        let (keys, more) = if of_new_topic { ("5", &[LOG, PACKS][..]) } else { ("4", &["none"][..]) };
        server.cli(&[&["EVAL", script, keys, key, DICTIONARIES, META][..], more, &[&second]].concat());
        let mut expected: Vec<Bytes> = if of_new_topic { Vec::new() } else { (0..401).map(event).collect() };
        eventually(
            async || {
                // It is for such messages: others are not packed with it.
                let next = wind(expected.len() as u64);
                producer.send(&next).await.expect("sent");
                expected.push(next);
                ids(&server).last().is_some_and(|id| format!("1:{id}") == second)
            },
            "the dictionary that is there now is used",
        )
        .await;
        assert_eq!(server.cli(&["HGET", META, "dictionary"]).trim(), second);
        let fresh = Millstream::at(server.url()).await.expect("connected");
        assert_eq!(read(&fresh, "fresh", expected.len()).await, expected);
    }
}

/// A message of another kind.
fn wind(n: u64) -> Bytes {
    let (station, speed) = (n * 7_919 % 997, n % 60);
    let text =
        format!("<wind station='{station}' unit='knots' averaged='10 min' source='mast'>{speed}</wind>");
    Bytes::from(text)
}

/// Trains a dictionary for another topic, on other messages. Returns its key and its name.
async fn other_dictionary(server: &Server) -> (&'static str, String) {
    let other = Millstream::at(server.url()).await.expect("connected");
    let producer = other.producer(EVENTS.named("other")).await.expect("a producer");
    let events: Vec<_> = (0..1_000).map(wind).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    let mut training = Training::new();
    (training.messages, training.size) = (1_000, 1 << 10);
    let trained = other.admin().train_topic(&"other".parse().expect("a name"), training).await;
    assert_eq!(trained.expect("trained").version, Some(1));
    let key = "streaming:mq:topic:{other}:dictionaries";
    (key, server.cli(&["HKEYS", key]).trim().to_owned())
}

/// A message that was handed out, and whose pack this process cannot read any more when it is to be retried.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_pack_cannot_be_read_is_retried_when_it_can() {
    let Scene { server, mq, producer } = scene().await;
    for n in 400..402 {
        producer.send(&event(n)).await.expect("sent");
    }
    let events: Vec<_> = (402..410).map(event).collect();
    for sent in producer.send_all(events.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    let (backend, group) = (mq.backend(), "failing".parse().expect("a name"));
    let spec = backend.catalog().topic(&topic()).await.expect("a topic");
    backend.catalog().create_group(&spec, &group, Start::Latest).await.expect("created");
    server.cli(&["XGROUP", "SETID", LOG, "failing", "0"]);
    let partition = TopicPartition::new(topic(), 0);
    let resource = Resource::partition(partition, group.clone());
    let hour = Duration::from_secs(3_600);
    let acquired = backend.leases().acquire(&resource, "me", "n", hour, &Continuity::assured()).await;
    let Acquired::Granted(lease) = acquired.expect("asked") else { panic!("nobody has it") };
    let mut reader = backend.log().reader(&lease).await.expect("a reader");
    let mut taken = Vec::new();
    while taken.len() < 410 {
        taken.extend(reader.fetch(500, Duration::ZERO).await.expect("a page").entries);
    }
    let retry = |entry: &Entry| {
        let (origin, history) = (entry.receipt.id, History::default());
        let retry = Settlement::Retry {
            due: Due::In(hour),
            attempt: 2,
            origin,
            error: "boom".into(),
            history,
            wait: None,
        };
        (entry.receipt, retry)
    };
    let packed: Vec<_> = taken.iter().filter(|entry| entry.receipt.pack.is_some()).collect();
    let batch: Vec<_> = packed.iter().rev().take(3).map(|entry| retry(entry)).collect();
    // Another process, which never had the dictionary, settles in the name of the owner.
    let other = Millstream::at(server.url()).await.expect("connected");
    assert_eq!(server.cli(&["RENAME", DICTIONARIES, "kept"]).trim(), "OK");
    let refused = other.backend().log().settle(&lease, &batch).await.expect_err("its bodies are not known");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("dictionary"), "{refused}");
    let queue = mq.admin().dead_letters(&topic(), &group).await.expect("a queue");
    assert_eq!(queue.count().await.expect("a count"), 0, "none is dead");
    assert_eq!(server.cli(&["COPY", "kept", DICTIONARIES, "REPLACE"]).trim(), "1");
    let settled = other.backend().log().settle(&lease, &batch).await.expect("settled");
    assert_eq!((settled.applied, settled.stale), (3, 0));
    let partition = TopicPartition::new(topic(), 0);
    let parked = backend.inspect().expect("inspected").parked(&partition, &group, None, 10).await;
    let parked = parked.expect("read").items;
    let origins: HashSet<_> = batch.iter().map(|(receipt, _)| receipt.id).collect();
    assert_eq!(parked.iter().map(|it| it.origin).collect::<HashSet<_>>(), origins);
    assert!(parked.iter().all(|it| it.body.iter().any(|(name, _)| &name[..] == b"payload")), "{parked:?}");
}
