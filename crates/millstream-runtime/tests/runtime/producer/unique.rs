//! Sends with a unique id: one message for each that has still to be settled, whatever is lost, repeated or grown meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use millstream_core::{Capability, ErrorKind, Outcome, Topic, TopicPartition};
use millstream_runtime::{Delivery, ProducerBuilder, Record, Sent};
use millstream_testkit::chaos::{Chaos, Faults};

const MANY: Topic<u64> = Topic::new("numbers").partitions(3);

async fn length(bench: &Bench, partitions: u32) -> u64 {
    let partitions: Vec<_> =
        (0..partitions).map(|n| TopicPartition::new("numbers".parse().expect("name"), n)).collect();
    bench.backend.log().lengths(&partitions).await.expect("lengths").iter().sum()
}

fn all(sent: Vec<millstream_core::Result<Sent>>) -> Vec<Sent> {
    sent.into_iter().map(|sent| sent.expect("sent")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_settled_is_returned_to_every_sender() {
    let bench = bench();
    let producer = bench.producer(MANY).await;
    let first = producer.send(&1).unique("job").await.expect("sent");
    assert!(!first.is_duplicate);
    tokio::time::sleep(Duration::from_secs(30 * 86_400)).await;
    let other = bench.producer(MANY).await;
    let again = other.send(&2).unique("job").await.expect("sent");
    assert_eq!((again.partition, again.id, again.is_duplicate), (first.partition, first.id, true));
    let key = other.send(&3).key("k").unique("job 2").await.expect("sent");
    let by_key = other.send(&3).key("k").await.expect("sent");
    assert_eq!(key.partition, by_key.partition, "a key decides about the partition");
    let there = other.send(&4).partition(2).unique("job 3").await.expect("sent");
    assert_eq!(there.partition.0, 2);
    let values = [5, 6, 7];
    let sent = all(producer.send_all(values.iter().map(|n| Record::new(n).unique("job 4"))).await);
    assert_eq!(sent.iter().map(|sent| sent.is_duplicate).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(length(&bench, 3).await, 5);
    assert!(bench.told.lines("Deduplicated") >= 2, "duplicates are counted");
}

/// The answer of the first attempt is lost, and the message is settled before the producer sends it again.
#[tokio::test(start_paused = true)]
async fn lost_answers_store_nothing_twice_even_if_the_message_is_settled_at_once() {
    let bench = bench();
    let chaos = Chaos::new(bench.backend.clone(), 7);
    let client = chaos.client();
    let producer = ProducerBuilder::new(client.backend(), MANY, Arc::new(bench.told.clone()));
    let producer =
        producer.delivery_timeout(Duration::from_secs(3_600)).max_batch(10).await.expect("a producer");
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async { Outcome::Ack }
        }
    };
    let consumer = bench.consumer(MANY, "g").start(handler).await.expect("started");
    client.suffer(&Faults::none().lost_replies(0.3).lost_requests(0.1).refused(0.1));
    let values: Vec<u64> = (0..200).collect();
    let sent = all(producer.send_all(values.iter().map(|n| Record::new(n).unique(format!("id {n}")))).await);
    assert!(sent.iter().all(|sent| !sent.is_duplicate), "its own message is no duplicate");
    until(&seen, 200).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    consumer.shutdown().await;
    let mut handled: Vec<u64> = seen.lock().expect("lock").iter().map(|(value, _)| *value).collect();
    handled.sort_unstable();
    assert_eq!(handled, values, "each is handled once");
}

#[tokio::test(start_paused = true)]
async fn a_message_stays_at_its_partition_however_long_ago_the_topic_has_grown() {
    let bench = bench();
    let producing = || bench.producing(MANY).refresh(Duration::from_secs(60));
    let producer = producing().await.expect("a producer");
    let values: Vec<u64> = (0..50).collect();
    let records = || {
        values.iter().map(|n| match n % 2 {
            0 => Record::new(n).unique(format!("id {n}")),
            _ => Record::new(n).key(format!("key {n}")).unique(format!("id {n}")),
        })
    };
    let first = all(producer.send_all(records()).await);
    let name = "numbers".parse().expect("a name");
    for (count, pause) in [(16, 120), (40, 30 * 86_400)] {
        bench.backend.catalog().expand(&name, count).await.expect("grown");
        tokio::time::sleep(Duration::from_secs(pause)).await;
        assert_eq!(producer.partitions(), count);
        // One that has seen the topic grow, and one that is started afterwards.
        for producer in [producer.clone(), producing().await.expect("a producer")] {
            let again = all(producer.send_all(records()).await);
            for (first, again) in first.iter().zip(&again) {
                assert_eq!(
                    (first.partition, first.id, true),
                    (again.partition, again.id, again.is_duplicate)
                );
            }
        }
    }
    assert_eq!(length(&bench, 40).await, 50);
    let values: Vec<u64> = (100..200).collect();
    let new = all(producer.send_all(values.iter().map(|n| Record::new(n).unique(n.to_string()))).await);
    assert!(new.iter().any(|sent| sent.partition.0 >= 16), "new ids go to the new partitions");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_unique_is_refused() {
    let bench = bench();
    let producer = bench.producer(MANY).await;
    let kind = |error: millstream_core::Error| error.kind();
    assert_eq!(producer.send(&1).unique("").await.map_err(kind), Err(ErrorKind::InvalidName));
    assert_eq!(producer.send(&1).unique([0; 129]).await.map_err(kind), Err(ErrorKind::TooLarge));
    assert_eq!(length(&bench, 3).await, 0);
    let lacking = bench.backend.clone().without(Capability::Unique);
    let lacking =
        ProducerBuilder::new(lacking, MANY, Arc::new(bench.told.clone())).await.expect("a producer");
    assert_eq!(lacking.send(&1).unique("a").await.map_err(kind), Err(ErrorKind::Unsupported));
    let idempotent = bench.producing(MANY).idempotent(true).await.expect("a producer");
    assert!(!idempotent.send(&1).unique("a").await.expect("sent").is_duplicate);
    assert!(idempotent.send(&1).unique("a").await.expect("sent").is_duplicate);
    producer.close().await;
    assert_eq!(producer.send(&1).unique("b").await.map_err(kind), Err(ErrorKind::Closed));
}
