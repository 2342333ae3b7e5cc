//! A topic may be passed by value or by reference, a group as any string.

use crate::{Delivery, Millstream, Retention, Start, Topic};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);
const WORDS: Topic<String> = Topic::new("words");

#[tokio::test(start_paused = true)]
async fn topics_are_values_or_references() {
    let mq = Millstream::connect("memory://").await.expect("a queue");
    // Kept, so that the second group has a message too.
    let named = NUMBERS.named("others").retention(Retention::Keep);
    mq.producer(NUMBERS).await.expect("a producer").send(&1).await.expect("stored");
    mq.producer(&named).await.expect("a producer").send(&2).await.expect("stored");
    for consumer in [mq.consumer(&named, "g"), mq.consumer(named.clone(), String::from("h"))] {
        let consumer = consumer.also(&WORDS, async |_: Delivery<String>| {});
        let consumer = consumer.start(async |_: Delivery<u64>| {}).await.expect("a consumer");
        consumer.wait_idle().await.expect("idle");
        assert_eq!(consumer.shutdown().await.acked, 1);
    }
    mq.seek(named.clone(), String::from("g"), Start::Earliest).await.expect("moved");
    assert_eq!(mq.seek_preview(&named, "g", Start::Latest).await.expect("read").len(), 2);
    assert_eq!(mq.stats(named.clone(), String::from("g")).await.expect("read").len(), 2);
    assert_eq!(mq.dead_letters(named.clone(), "g").await.expect("a queue").count().await.expect("read"), 0);
    assert_eq!(
        mq.dead_letters(&named, String::from("g")).await.expect("a queue").count().await.expect("read"),
        0
    );
    for recurring in [mq.recurring(NUMBERS).await, mq.recurring(&NUMBERS).await] {
        drop(recurring.expect("recurring messages"));
    }
    for delayed in [mq.delayed(NUMBERS).await, mq.delayed(&NUMBERS).await] {
        drop(delayed.expect("delayed messages"));
    }
    let letters =
        mq.dead_letter_consumer(&named, "g").start(async |_: crate::Letter<u64>| Ok::<_, String>(()));
    letters.await.expect("a consumer").shutdown().await;
    assert_eq!(mq.expand(&named, 3).await.expect("grown"), 3);
}
