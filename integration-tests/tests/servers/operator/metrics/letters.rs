//! What becomes of messages that are given up: by policy, by operators, by consumers of dead letters; and sends that fail.

use millstream::admin::{Replay, ShelfFilter, from_line};
use millstream::{
    DeadLetterOutcome, DeadLetterQueue, DeadLetterRetention, Discard, ErrorKind, Letter, Reason,
};

use super::*;

const DEAD: u64 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_done_with_dead_letters_is_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let reject = async |_: Delivery<u64>| Outcome::dead_letter("no use");
    let keeping = scene.mq.consumer(ORDERS, "billing").start(reject).await.expect("started");
    let dropping = scene.mq.consumer(ORDERS, "audit").dead_letters(Discard).start(reject).await;
    let dropping = dropping.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for number in 0..DEAD {
        producer.send(&number).partition(number as u32 % 4).await.expect("sent");
    }
    // No message at all: without a payload.
    let tp = TopicPartition::new("orders".parse().expect("name"), 0);
    let fields = vec![("note".into(), "no payload".into())];
    let stored = scene.mq.backend().log().append(&[Append::new(tp, fields)]).await;
    assert!(stored.iter().all(Result::is_ok));
    let (billing, audit) = (&[("group", "billing")][..], &[("group", "audit")][..]);
    let dead = DEAD as f64 + 1.0;
    scene
        .sees(
            "all are given up",
            &[
                ("dead_letters", billing, dead),
                ("dead_total", billing, dead),
                ("discarded_total", billing, 0.0),
                // What is no message is kept whatever the policy: nobody has seen it.
                ("dead_letters", audit, 1.0),
                ("discarded_total", audit, DEAD as f64),
            ],
        )
        .await;
    keeping.shutdown().await;
    dropping.shutdown().await;

    let letters = scene.mq.dead_letters(&ORDERS, "billing").await.expect("letters");
    let mut all = letters.list(100).await.expect("listed");
    all.retain(|letter| letter.reason == Reason::Rejected);
    // One, and once more: it is gone then.
    assert!(letters.purge(&all[1]).await.expect("purged"));
    assert!(!letters.purge(&all[1]).await.expect("gone"));
    let of_two = ShelfFilter { partitions: Some([millstream::Partition(2)].into()), ..Default::default() };
    let purged = letters.purge_where(&of_two, None).await.expect("purged");
    assert_eq!(purged, if all[1].topic_partition.partition.0 == 2 { 2 } else { 3 });
    let left = letters.count().await.expect("counted");
    let mut lines = Vec::new();
    let mut walk = letters.walk(&ShelfFilter::default(), None).await.expect("a walk");
    while !walk.is_done() {
        lines.extend(letters.export(&mut walk, 4).await.expect("exported"));
    }
    assert_eq!(lines.len() as u64, left);
    // All are still there; what is not there comes back, once.
    let back: Vec<_> = lines.iter().map(|line| from_line(line).expect("a letter")).collect();
    assert_eq!(letters.import(&back, false).await.expect("imported").passed_over, left);
    assert_eq!(letters.import(&all[1..2], false).await.expect("imported").put, 1);
    // To a topic go all but what is no message.
    let elsewhere = Topic::<u64>::new("repairs").partitions(1);
    let repairs = scene.mq.producer(elsewhere).await.expect("a topic");
    drop(repairs);
    let replay = Replay::to_topic("repairs".parse().expect("name"));
    let of = |reason| ShelfFilter { reason: Some(reason), ..ShelfFilter::default() };
    let mut replayer = letters.replayer(&of(Reason::Malformed), replay.clone()).await.expect("a replay");
    assert_eq!(replayer.run().await.expect("refused").refused, 1);
    let some = Replay { limit: Some(left - 4), ..replay };
    let mut replayer = letters.replayer(&of(Reason::Rejected), some).await.expect("a replay");
    let replayed = replayer.run().await.expect("replayed").replayed;
    assert_eq!(replayed, left - 4);
    let done = |operation| [("group", "billing"), ("operation", operation), ("result", "done")];
    let not = |operation, result| [("group", "billing"), ("operation", operation), ("result", result)];
    let rest = left + 1 - replayed;
    scene
        .sees(
            "what operators did",
            &[
                ("dead_letters_handled_total", &done("purge"), 1.0 + purged as f64),
                ("dead_letters_handled_total", &not("purge", "passed_over"), 1.0),
                ("dead_letters_handled_total", &done("export"), left as f64),
                ("dead_letters_handled_total", &done("import"), 1.0),
                ("dead_letters_handled_total", &not("import", "passed_over"), left as f64),
                ("dead_letters_handled_total", &done("replay"), replayed as f64),
                ("dead_letters_handled_total", &not("replay", "refused"), 1.0),
                ("length", &[("topic", "repairs")], replayed as f64),
                ("dead_letters", billing, rest as f64),
            ],
        )
        .await;

    // A consumer of dead letters does the rest: what is a number goes back, the other is deleted.
    let desk = scene.mq.dead_letter_consumer(ORDERS, "billing").poll(Duration::from_millis(50));
    let desk = desk.start(async |letter: Letter<u64>| match letter.payload {
        Ok(_) => DeadLetterOutcome::Replay,
        Err(_) => DeadLetterOutcome::Delete,
    });
    let desk = desk.await.expect("started");
    let again = rest - 1;
    scene
        .sees(
            "what a consumer of dead letters did",
            &[
                ("dead_letters", billing, 0.0),
                ("dead_letters_handled_total", &done("purge"), 2.0 + purged as f64),
                ("dead_letters_handled_total", &done("replay"), (replayed + again) as f64),
                ("retrying", billing, again as f64),
            ],
        )
        .await;
    let report = desk.shutdown().await;
    assert_eq!((report.deleted, report.replayed), (1, again));
}

/// Waits for a dead letter, drops it, and puts it back.
pub(super) async fn one_is_dropped_and_imported(letters: &DeadLetterQueue) {
    eventually(async || letters.count().await.expect("counted") == 1, "one is dead").await;
    let one = letters.list(1).await.expect("listed");
    let old = DeadLetterRetention::age(Duration::from_millis(1));
    eventually(async || letters.trim(old).await.expect("trimmed").aged == 1, "it is dropped").await;
    assert_eq!(letters.import(&one, false).await.expect("imported").put, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_that_retention_drops_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let kept = DeadLetterRetention::length(2).and_age(Duration::from_secs(3_600));
    let topic = ORDERS.dead_letter_retention(kept);
    let reject = async |_: Delivery<u64>| Outcome::dead_letter("no use");
    let consumer = scene.mq.consumer(topic, "billing").start(reject).await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for number in 0..DEAD {
        producer.send(&number).partition(0).await.expect("sent");
    }
    let (billing, aged) = ([("group", "billing")], [("group", "billing"), ("reason", "age")]);
    let excess = [("group", "billing"), ("reason", "length")];
    let dropped = DEAD as f64 - 2.0;
    let figures: [figures::Figure<'_>; 3] = [
        ("dead_total", &billing, DEAD as f64),
        ("dead_letters", &billing, 2.0),
        ("dead_letters_dropped_total", &excess, dropped),
    ];
    scene.sees("those that are too many are dropped", &figures).await;
    // The rest by an operator, for its age.
    let letters = scene.mq.dead_letters(&ORDERS, "billing").await.expect("letters");
    let none = DeadLetterRetention::age(Duration::from_millis(1));
    let all_are_old =
        async || letters.trim(none).await.is_ok() && letters.count().await.expect("counted") == 0;
    eventually(all_are_old, "the last ones are dropped").await;
    consumer.shutdown().await;
    let observed = scene.until("operators are counted by their process", |scrape| {
        scrape.sum("millstream_dead_letters_dropped_total", &aged) == Some(2.0)
    });
    let observed = observed.await;
    assert_eq!(observed.sum("millstream_dead_letters_dropped_total", &excess), Some(dropped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_that_fail_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    producer.send(&0).await.expect("sent");
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut kinds = BTreeMap::<&str, u32>::new();
    for number in 0..3 {
        let refused = producer.send(&number).await.expect_err("without memory nothing is stored");
        assert_ne!(refused.kind(), ErrorKind::Unconfirmed);
        *kinds.entry(refused.kind().as_str()).or_default() += 1;
    }
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    producer.send(&4).await.expect("sent");
    let of_kinds: Vec<_> = kinds.iter().map(|(kind, count)| ([("kind", *kind)], f64::from(*count))).collect();
    let mut figures: Vec<figures::Figure<'_>> =
        of_kinds.iter().map(|(labels, count)| ("produce_failures_total", &labels[..], *count)).collect();
    let all: [(&str, &str); 1] = [("topic", "orders")];
    figures.push(("produce_failures_total", &all, 3.0));
    figures.push(("produced_total", &all, 2.0));
    figures.push(("length", &all, 2.0));
    scene.sees("three of five failed", &figures).await;
}
