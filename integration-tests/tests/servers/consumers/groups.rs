//! Two groups on one topic know nothing of each other, on Redis: neither of retries and dead letters, nor of instances that
//! come and go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{eventually, server::shared_url};
use millstream::{Consumer, Delivery, Event, Fixed, Millstream, Outcome, Record, Topic};

type Counts = Arc<Mutex<BTreeMap<u64, u32>>>;

fn count(counts: &Counts, delivery: &Delivery<u64>) -> u32 {
    let mut counts = counts.lock().expect("lock");
    let count = counts.entry(delivery.payload).or_default();
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
                let number = delivery.payload;
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

/// Per group, the reported changes of owners, and how often each message was handled.
#[derive(Default)]
struct Seen {
    owned: Mutex<BTreeMap<String, (usize, usize)>>,
    handled: Mutex<BTreeMap<(String, u64), u32>>,
}

impl Seen {
    fn observe(&self, event: &Event<'_>) {
        let mut owned = self.owned.lock().expect("lock");
        match event {
            Event::Assigned { group, .. } => owned.entry(group.to_string()).or_default().0 += 1,
            Event::Revoked { group, .. } => owned.entry(group.to_string()).or_default().1 += 1,
            _ => {}
        }
    }

    fn owned(&self, group: &str) -> (usize, usize) {
        self.owned.lock().expect("lock").get(group).copied().unwrap_or_default()
    }

    fn handled(&self) -> usize {
        self.handled.lock().expect("lock").len()
    }
}

async fn instance(mq: &Millstream, topic: &Topic<u64>, group: &str, seen: &Arc<Seen>) -> Consumer {
    let seen = seen.clone();
    let consumer = mq.consumer(topic.clone(), group).start(move |delivery: Delivery<u64>| {
        let key = (delivery.group().to_string(), delivery.payload);
        *seen.handled.lock().expect("lock").entry(key).or_default() += 1;
        async {}
    });
    consumer.await.expect("started")
}

#[tokio::test]
async fn instances_of_one_group_come_and_go_and_the_other_keeps_its_partitions() {
    let numbers = Topic::<u64>::new("numbers").partitions(6);
    let namespace = format!("groups-{}", uuid::Uuid::new_v4().simple());
    let seen = Arc::new(Seen::default());
    let observer = {
        let seen = seen.clone();
        move |event: &Event<'_>| seen.observe(event)
    };
    let mq = Millstream::at(shared_url()).namespace(namespace).observer(observer).await.expect("connected");
    let producer = mq.producer(numbers.clone()).await.expect("a producer");
    let send = async |from: u64| {
        let values: Vec<u64> = (from..from + 300).collect();
        let sent = producer.send_all(values.iter().map(|n| Record::new(n).key(n.to_be_bytes()))).await;
        assert!(sent.iter().all(Result::is_ok));
    };

    let still = instance(&mq, &numbers, "still", &seen).await;
    let first = instance(&mq, &numbers, "lively", &seen).await;
    eventually(async || seen.owned("still").0 == 6 && seen.owned("lively").0 == 6, "both own all").await;
    send(0).await;
    let second = instance(&mq, &numbers, "lively", &seen).await;
    eventually(async || seen.owned("lively") == (9, 3), "three have moved").await;
    send(300).await;
    first.shutdown().await;
    eventually(async || seen.owned("lively") == (12, 6), "the other three as well").await;
    send(600).await;
    eventually(async || seen.handled() == 2 * 900, "both groups have everything").await;
    assert_eq!(seen.owned("still"), (6, 0), "nothing moved here");
    second.shutdown().await;
    still.shutdown().await;
    assert_eq!((seen.owned("still"), seen.owned("lively")), ((6, 6), (12, 12)), "all are given back");
    assert!(seen.handled.lock().expect("lock").values().all(|times| *times == 1), "each once in each group");
}
