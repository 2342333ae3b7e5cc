//! What recurs in a topic, through the facade, in memory under paused time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::crates::core::Backend;
use crate::crates::memory::MemoryBackend;
use crate::delay::{Missed, Placed};
use crate::{Consumer, Delivery, Millstream, Topic};

const REPORTS: Topic<String> = Topic::new("reports").partitions(8);

type Counts = Arc<Mutex<BTreeMap<(String, String), usize>>>;

/// A consumer that counts what it gets, by payload and key.
async fn consume(mq: &Millstream, group: &str, counts: &Counts) -> Consumer {
    let counts = counts.clone();
    let consumer = mq.consumer(REPORTS, group).start(move |delivery: Delivery<String>| {
        let key = delivery.key().map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
        *counts.lock().expect("lock").entry((delivery.payload, key)).or_default() += 1;
        async {}
    });
    consumer.await.expect("started")
}

#[tokio::test(start_paused = true)]
async fn every_group_gets_each_occurrence_once_however_many_consumers_there_are() {
    // A clock of its own: how many times of a pattern there are depends on when it begins.
    let mq = Millstream::over(Backend::from(MemoryBackend::at(Duration::from_secs(1_700_000_000))));
    // Nobody made the topic before.
    let recurring = mq.recurring(&REPORTS).await.expect("the topic");
    let (sales, stock) = ("sales".to_owned(), "stock".to_owned());
    let hour = Duration::from_secs(3_600);
    let placed = recurring.id("hourly").every(hour).missed(Missed::Skip).payload(&sales).key("eu").await;
    assert_eq!(placed.expect("put"), Placed::New);
    recurring.id("minutely").cron("* * * * *", "Europe/Zurich").payload(&stock).await.expect("put");

    let (one, two) = (Counts::default(), Counts::default());
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(consume(&mq, "one", &one).await);
    }
    consumers.push(consume(&mq, "two", &two).await);
    tokio::time::sleep(10 * hour + Duration::from_secs(5)).await;
    let expected = BTreeMap::from([((sales, "eu".to_owned()), 10), ((stock.clone(), String::new()), 600)]);
    assert_eq!(*one.lock().expect("lock"), expected);
    assert_eq!(*two.lock().expect("lock"), expected);

    assert!(recurring.id("hourly").remove().await.expect("removed"));
    assert!(recurring.id("minutely").pause().await.expect("paused"));
    assert!(recurring.id("minutely").run_now().await.expect("runs"));
    tokio::time::sleep(10 * hour).await;
    for counts in [one, two] {
        let counts = counts.lock().expect("lock");
        assert_eq!(counts.values().sum::<usize>(), 611, "one run, and nothing else: {counts:?}");
    }
    let listed: Vec<_> = recurring.list().await.expect("listed").into_iter().map(|entry| entry.id).collect();
    assert_eq!(listed, ["minutely".parse().expect("an id")]);
    for consumer in consumers {
        consumer.shutdown().await;
    }
}
