//! What is done with very many dead letters, or large ones, holds the server up no longer than anything else.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use millstream::admin::{Replay, ShelfFilter, ShelfQuery};
use millstream::{DeadLetterOutcome, DeadLetterQueue, Letter, MessageId, Reason};
use millstream_core::keys::Keys;
use millstream_core::{DeadLetter, Envelope, History, TopicPartition, wire};

use super::*;

const LETTERS: Topic<u32> = Topic::new("orders").partitions(1);

fn letter(number: usize, tp: &TopicPartition, group: &GroupName, bytes: usize) -> DeadLetter {
    let payload = format!("{number:0>bytes$}");
    DeadLetter {
        id: MessageId::new(number as u64 + 1, 1),
        reason: if number.is_multiple_of(10) { Reason::Rejected } else { Reason::Exhausted },
        attempts: 3,
        error: "timed out".to_owned(),
        origin: MessageId::new(number as u64 + 1, 0),
        topic_partition: tp.clone(),
        group: group.clone(),
        history: History::parse("5 1 timed out"),
        body: wire::encode(&Envelope::new(payload).with_key(format!("key-{}", number % 100))),
    }
}

/// Puts so many letters there, past all scripts.
async fn bury(server: &Server, mq: &Millstream, count: usize, bytes: usize) -> (TopicPartition, GroupName) {
    let (backend, group) = (mq.backend(), "billing".parse::<GroupName>().expect("a name"));
    let topic = backend.catalog().create_topic(&LETTERS.spec().expect("a topic")).await.expect("created");
    backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created");
    let repairs = LETTERS.named("repairs").spec().expect("a topic");
    backend.catalog().create_topic(&repairs).await.expect("created");
    let tp = topic.iter().next().expect("a partition");
    let key = Keys::new().dead_letters(&tp, &group);
    let mut raw = integration_tests::fixture::raw_connection(&server.url()).await;
    for portion in 0..count.div_ceil(500) {
        let mut pipe = redis::pipe();
        for number in portion * 500..count.min((portion + 1) * 500) {
            let letter = letter(number, &tp, &group, bytes);
            pipe.cmd("XADD").arg(key.as_str()).arg("*");
            for (name, value) in wire::dead_letter(&letter, &letter.body) {
                pipe.arg(&name[..]).arg(&value[..]);
            }
            pipe.ignore();
        }
        pipe.exec_async(&mut raw).await.expect("buried");
    }
    (tp, group)
}

/// All that can be done with letters, with `each` of them at a time; it takes away five times as many.
async fn all_work(mq: &Millstream, letters: &DeadLetterQueue, each: u64) -> Vec<(&'static str, Duration)> {
    let everything = ShelfFilter::default();
    let mut times = Vec::new();
    let mut timed = |what, began: Instant| times.push((what, began.elapsed()));
    let began = Instant::now();
    let newest = ShelfQuery { newest_first: true, limit: 1_000, ..ShelfQuery::default() };
    assert!(!letters.page(&newest).await.expect("a page").items.is_empty());
    timed("page", began);
    let began = Instant::now();
    let rejected = ShelfFilter { reason: Some(Reason::Rejected), ..ShelfFilter::default() };
    assert!(letters.survey(&rejected, Some(each), 5, |_| {}).await.expect("surveyed").matched > 0);
    timed("survey", began);
    // Claims are there meanwhile.
    let began = Instant::now();
    let away = Replay { limit: Some(each), ..Replay::to_topic("repairs".parse().expect("a name")) };
    let sent = letters.replayer(&everything, away).await.expect("a replay").run().await.expect("replayed");
    assert_eq!(sent.replayed, each);
    timed("replay to a topic", began);
    let began = Instant::now();
    let back = Replay { limit: Some(each), ..Replay::default() };
    let sent = letters.replayer(&everything, back).await.expect("a replay").run().await.expect("replayed");
    assert_eq!(sent.replayed, each);
    timed("replay", began);
    let some = letters.list(each as usize).await.expect("listed");
    let began = Instant::now();
    assert_eq!(letters.purge_where(&everything, Some(each)).await.expect("purged"), each);
    timed("purge", began);
    let began = Instant::now();
    assert_eq!(letters.import(&some, false).await.expect("imported").put, each);
    assert_eq!(letters.import(&some, false).await.expect("imported").passed_over, each);
    timed("import", began);
    let began = Instant::now();
    let desk = mq.dead_letter_consumer(LETTERS, "billing").poll(Duration::from_secs(600));
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let desk = desk.concurrency(20).start(move |_: Letter<u32>| {
        count.fetch_add(1, SeqCst);
        async { DeadLetterOutcome::Replay }
    });
    let desk = desk.await.expect("started");
    let enough = async || handled.load(SeqCst) >= each;
    integration_tests::eventually(enough, "letters are handled").await;
    desk.shutdown().await;
    timed("consume", began);
    times
}

async fn letters_hold_nobody_up(count: usize, bytes: usize, each: u64) {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (tp, group) = bury(&server, &mq, count, bytes).await;
    let letters = mq.admin().dead_letters(&tp.topic, &group).await.expect("letters");
    let length = letters.count().await.expect("counted");
    assert_eq!(length, count as u64);
    clean_passes(&server, &format!("{count} letters of {bytes} bytes"), async |pass| {
        let mut times = all_work(&mq, &letters, each).await;
        if pass == PASSES - 1 {
            let began = Instant::now();
            assert!(letters.purge_all().await.expect("purged") > 0);
            times.push(("purge all", began.elapsed()));
        }
        times
    })
    .await;
    assert_eq!(letters.count().await.expect("counted"), 0);
}

#[tokio::test]
async fn work_with_very_many_dead_letters_holds_nobody_up() {
    letters_hold_nobody_up(100_000, 100, 1_000).await;
}

#[tokio::test]
async fn work_with_large_dead_letters_holds_nobody_up() {
    letters_hold_nobody_up(4_500, 20_000, 400).await;
}

#[tokio::test]
#[ignore = "a measurement: half a million dead letters"]
async fn work_with_half_a_million_dead_letters_holds_nobody_up() {
    letters_hold_nobody_up(500_000, 100, 5_000).await;
}
