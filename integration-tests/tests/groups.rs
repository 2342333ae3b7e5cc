//! Two groups on one topic know nothing of each other, on Redis.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{eventually, server::shared_url};
use millstream::{Delivery, Fixed, Millstream, Outcome, Record, Topic};

type Counts = Arc<Mutex<BTreeMap<u64, u32>>>;

fn count(counts: &Counts, delivery: &Delivery<u64>) -> u32 {
    let mut counts = counts.lock().expect("lock");
    let count = counts.entry(**delivery).or_default();
    *count += 1;
    *count
}

#[tokio::test]
async fn a_retry_or_replay_in_one_group_is_never_seen_by_the_other() {
    let numbers = Topic::<u64>::new("numbers").partitions(3);
    let namespace = format!("groups-{}", uuid::Uuid::new_v4().simple());
    let mq = Millstream::at(shared_url()).namespace(namespace).await.expect("connected");
    let producer = mq.producer(numbers.clone()).await.expect("a producer");
    let (failing, healthy) = (Counts::default(), Counts::default());
    let other = mq.consumer(numbers.clone(), "healthy").start({
        let healthy = healthy.clone();
        move |delivery: Delivery<u64>| {
            count(&healthy, &delivery);
            async {}
        }
    });
    let other = other.await.expect("started");
    let consumer = mq
        .consumer(numbers.clone(), "failing")
        .retry(Fixed::new(Duration::from_millis(10)).attempts(3))
        .start({
            let failing = failing.clone();
            move |delivery: Delivery<u64>| {
                let times = count(&failing, &delivery);
                let number = *delivery;
                async move {
                    match (number % 3, times) {
                        // Fails twice, then works.
                        (0, 1 | 2) => Outcome::retry("not yet"),
                        // Fails until it is dead, and works when it is replayed.
                        (1, 1..=3) => Outcome::retry("no"),
                        _ => Outcome::Ack,
                    }
                }
            }
        })
        .await
        .expect("started");
    let values: Vec<u64> = (0..300).collect();
    let sent = producer.send_all(values.iter().map(|n| Record::new(n).key(n.to_be_bytes()))).await;
    let partitions: BTreeMap<u64, u32> =
        sent.into_iter().zip(&values).map(|(sent, n)| (*n, sent.expect("stored").partition.0)).collect();

    let letters = mq.dead_letters(&numbers, "failing").await.expect("dead letters");
    eventually(async || letters.count().await.expect("counted") == 100, "100 are dead").await;
    for letter in letters.list(usize::MAX).await.expect("listed") {
        let envelope = letter.envelope(&millstream::Limits::default()).expect("a message");
        let number: u64 = serde_json::from_slice(&envelope.payload).expect("a number");
        assert_eq!(letter.topic_partition.partition.0, partitions[&number], "where it came from");
        assert_eq!((letter.attempts, letter.error.as_str()), (3, "no"));
    }
    assert_eq!(letters.replay_all().await.expect("replayed"), 100);
    eventually(async || consumer.report().acked == 300, "all are handled").await;
    eventually(async || other.report().acked == 300, "all are handled by the other group").await;
    consumer.shutdown().await;
    other.shutdown().await;

    for (number, times) in &*failing.lock().expect("lock") {
        let want = [3, 4, 1][(number % 3) as usize];
        assert_eq!(*times, want, "{number}");
    }
    let healthy = healthy.lock().expect("lock").clone();
    assert!(healthy.len() == 300 && healthy.values().all(|times| *times == 1), "each once, none back");
    let none = mq.dead_letters(&numbers, "healthy").await.expect("dead letters");
    assert_eq!(none.count().await.expect("counted"), 0);
}
