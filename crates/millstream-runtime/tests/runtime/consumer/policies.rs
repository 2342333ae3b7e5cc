//! Policies of one's own that decide by the message: dead letters with notes, and retries that a message brings with it.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use millstream_core::policy::{Fixed, GivenUp, MessageRetry, Never, Notes, PerMessage, Verdict};
use millstream_core::{DeadLetterPolicy, Limits, Outcome, Topic};
use millstream_runtime::{Concurrency, ConsumerBuilder, Delivery, Record, RetryOrder};

use crate::support::*;

const TEXTS: Topic<Bytes> = Topic::raw("texts").partitions(2);

/// Drops what is marked, and notes what it saw of the others.
#[derive(Debug)]
struct ByHeader;

impl DeadLetterPolicy for ByHeader {
    fn judge(&self, given_up: &GivenUp<'_>) -> Verdict {
        let Some(message) = given_up.message else {
            return Verdict::KeepWith(Notes::new().note("message", "none"));
        };
        if message.headers.get("drop").is_some() {
            return Verdict::Discard;
        }
        let key = String::from_utf8_lossy(message.key.as_deref().unwrap_or_default());
        let from = format!("{}/{}", given_up.topic, given_up.partition);
        let notes = Notes::new().note("key", &key).note("from", &from);
        let notes = notes.note("bytes", &message.payload.len().to_string());
        Verdict::KeepWith(if message.payload.len() > 3 { notes.replay_to("large") } else { notes })
    }
}

/// Fails on every message, in a consumer with these settings, and returns what is noted of each letter, in the order of keys.
async fn noted(settings: impl FnOnce(ConsumerBuilder<Bytes>) -> ConsumerBuilder<Bytes>) -> Vec<String> {
    let bench = bench();
    let producer = bench.producer(TEXTS).await;
    let (small, large) = (Bytes::from_static(b"abc"), Bytes::from_static(b"abcd"));
    let records = [
        Record::new(&small).key("a").partition(1),
        Record::new(&large).key("b").partition(0),
        Record::new(&small).key("c").header("drop", "1"),
    ];
    assert!(producer.send_all(records).await.iter().all(Result::is_ok));
    let builder = settings(bench.consumer(TEXTS, "g").dead_letters(ByHeader));
    let consumer = builder.start(async |_: Delivery<Bytes>| Outcome::retry("no")).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.discarded, 1);
    let (topic, group) = ("texts".parse().expect("name"), "g".parse().expect("name"));
    let dead = millstream_admin::Admin::new(bench.backend.clone()).dead_letters(&topic, &group).await;
    let letters = dead.expect("a topic").list(10).await.expect("listed");
    let mut lines: Vec<String> = letters
        .iter()
        .map(|letter| {
            let envelope = letter.envelope(&Limits::default()).expect("a message");
            assert!(!envelope.payload.is_empty(), "the letter has its bytes");
            assert!(!letter.history.is_empty() && letter.history.failures()[0].error == "no");
            let notes: Vec<_> =
                letter.history.notes().iter().map(|(name, value)| format!("{name}={value}")).collect();
            notes.join(" ")
        })
        .collect();
    lines.sort();
    lines
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_policy_sees_the_message_in_every_mode() {
    let expected = ["key=a from=texts/1 bytes=3", "key=b from=texts/0 bytes=4 replay-to=large"];
    assert_eq!(noted(|builder| builder.retry(Never)).await, expected);
    assert_eq!(noted(|builder| builder.retry(Fixed::new(MS(10)).attempts(3))).await, expected);
    assert_eq!(noted(|builder| builder.retry(Never).concurrency(Concurrency::PerKey(4))).await, expected);
    let blocks = |builder: ConsumerBuilder<Bytes>| {
        builder.retry(Fixed::new(MS(10)).attempts(2)).retry_order(RetryOrder::BlockPartition)
    };
    assert_eq!(noted(blocks).await, expected);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_no_message_is_judged_without_one() {
    let bench = bench();
    let tp = millstream_core::TopicPartition::new("texts".parse().expect("name"), 0);
    let consumer = bench.consumer(TEXTS, "g").dead_letters(ByHeader);
    let consumer = consumer.start(async |_: Delivery<Bytes>| {}).await.expect("started");
    let fields = vec![(Bytes::from_static(b"key"), Bytes::from_static(b"k"))];
    let append = millstream_core::log::Append::new(tp, fields);
    bench.backend.log().append(&[append]).await.remove(0).expect("appended");
    consumer.wait_idle().await.expect("idle");
    let (topic, group) = ("texts".parse().expect("name"), "g".parse().expect("name"));
    let dead = millstream_admin::Admin::new(bench.backend.clone()).dead_letters(&topic, &group).await;
    let letters = dead.expect("a topic").list(10).await.expect("listed");
    assert_eq!(letters[0].history.notes().get("message"), Some("none"));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn each_message_is_retried_as_its_sender_wants() {
    let bench = bench();
    let producer = bench.producer(TEXTS).await;
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = attempts.clone();
    let policy = PerMessage::or(Never).at_most(std::time::Duration::from_secs(3_600));
    let consumer = bench.consumer(TEXTS, "g").retry(policy).start(move |text: Delivery<Bytes>| {
        seen.lock().expect("lock").push((text.payload.clone(), text.attempt(), tokio::time::Instant::now()));
        async { Outcome::retry("no") }
    });
    let consumer = consumer.await.expect("started");
    let (plain, own) = (Bytes::from_static(b"plain"), Bytes::from_static(b"own"));
    producer.send(&plain).await.expect("sent");
    producer.send(&own).retry(MessageRetry::new(4, MS(500))).await.expect("sent");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    let attempts = attempts.lock().expect("lock");
    let of = |text: &str| {
        attempts.iter().filter(|(it, ..)| it == text).map(|(_, nth, _)| *nth).collect::<Vec<_>>()
    };
    assert_eq!((of("plain"), of("own")), (vec![1], vec![1, 2, 3, 4]));
    let times: Vec<_> = attempts.iter().filter(|(it, ..)| it == "own").map(|(.., at)| *at).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= MS(500)), "{times:?}");
}
