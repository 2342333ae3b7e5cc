//! Which of many pending messages runs, and since when.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::admin::Owners;
use millstream::{
    Batch, Concurrency, Consumer, ConsumerBuilder, Delivery, MessageId, Millstream, Outcome, Packing, Record,
    Sharing, Topic,
};
use tokio::sync::Semaphore;

/// Numbers of the messages whose handlers last; the others end at once.
const LONG: [u64; 3] = [7, 11, 12];

struct Stage {
    server: Server,
    mq: Millstream,
    topic: Topic<u64>,
    ids: Vec<MessageId>,
}

impl Stage {
    /// Sends twenty messages to one partition.
    async fn new(packing: bool) -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let mut topic = Topic::<u64>::new("jobs");
        if packing {
            topic = topic.packed(Packing::new().min_messages(2));
        }
        let producer = mq.producer(topic.clone()).await.expect("a producer");
        let numbers: Vec<u64> = (0..20).collect();
        let sent = producer.send_all(numbers.iter().map(|n| Record::new(n).key(n.to_be_bytes()))).await;
        let ids = sent.into_iter().map(|it| it.expect("sent").id).collect();
        Self { server, mq, topic, ids }
    }

    fn consumer(&self) -> ConsumerBuilder<u64> {
        self.mq.consumer(self.topic.clone(), "g").lease_ttl(Duration::from_millis(900))
    }

    async fn owners(&self) -> Owners {
        let (topic, group) = ("jobs".parse().expect("a name"), "g".parse().expect("a name"));
        self.mq.admin().owners(&topic, &group).await.expect("owners")
    }

    /// Waits until these messages, and no others, are said to run. Returns their times.
    async fn runs(&self, numbers: &[u64], attempt: u32) -> Vec<u64> {
        let expected: Vec<_> = numbers.iter().map(|it| self.ids[*it as usize]).collect();
        let found = async || {
            let owners = self.owners().await;
            let mut found: Vec<_> = owners
                .running()
                .iter()
                .map(|(_, it)| (it.origin, it.attempt, it.since.as_millis()))
                .collect();
            found.sort_unstable();
            found
        };
        let are = |found: &[(MessageId, u32, u64)]| {
            found.iter().map(|it| (it.0, it.1)).eq(expected.iter().map(|id| (*id, attempt)))
        };
        let what = format!("{numbers:?} run");
        eventually(async || are(&found().await), &what).await;
        found().await.iter().map(|it| it.2).collect()
    }
}

async fn ends(stage: &Stage, consumer: Consumer) {
    stage.runs(&[], 1).await;
    consumer.shutdown().await;
    assert_eq!(stage.owners().await.running(), [], "its member has left");
}

/// Whoever waits in its handler: of a key, of no key, in a batch, of an entry of its own, of a pack.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_run_for_long_are_named_with_their_begin() {
    type Set = fn(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>;
    let ways: [(bool, Set); 5] = [
        (false, |it| it.concurrency(Concurrency::PerKey(4))),
        (false, |it| it.concurrency(Concurrency::Unordered(4))),
        (true, |it| it.concurrency(Concurrency::Unordered(4))),
        (false, |it| it.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(4))),
        (true, |it| it.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(4))),
    ];
    for (packing, set) in ways {
        let stage = Stage::new(packing).await;
        let release = Arc::new(Semaphore::new(0));
        let waits = release.clone();
        let handler = move |delivery: Delivery<u64>| {
            let waits = waits.clone();
            async move {
                if LONG.contains(&delivery.payload) {
                    waits.acquire().await.expect("open").forget();
                }
            }
        };
        let consumer = set(stage.consumer()).start(handler).await.expect("started");
        let began = stage.runs(&LONG, 1).await;
        let version = stage.owners().await.roster.version;
        let entries = stage.owners().await;
        for (member, it) in entries.running() {
            let found = entries.runs(it.partition, it.source, it.entry);
            assert!(found.is_some_and(|(by, _)| by.id == member.id), "{it:?}");
        }
        // Also after further heartbeats, and whatever runs makes no rebalance.
        let beats = stage.server.cli(&["INFO", "commandstats"]);
        eventually(async || stage.server.cli(&["INFO", "commandstats"]) != beats, "heartbeats").await;
        assert_eq!(stage.runs(&LONG, 1).await, began);
        assert_eq!(stage.owners().await.roster.version, version);
        release.add_permits(LONG.len());
        ends(&stage, consumer).await;
    }
}

/// One message after the other: the one that waits, and one that blocks its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_message_of_a_row_that_runs_is_named_also_if_it_blocks_its_thread() {
    let stage = Stage::new(false).await;
    let (release, blocked) = channel::<()>();
    let (waits, blocked) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(blocked)));
    let (awaits, blocks): (_, Arc<Mutex<Receiver<()>>>) = (waits.clone(), blocked);
    let handler = move |delivery: Delivery<u64>| {
        let (awaits, blocks) = (awaits.clone(), blocks.clone());
        async move {
            match (delivery.payload, delivery.attempt()) {
                (11, _) => blocks.lock().expect("lock").recv().expect("released"),
                (12, 1) => return Outcome::retry("once more"),
                (7 | 12, _) => awaits.acquire().await.expect("open").forget(),
                _ => {}
            }
            Outcome::Ack
        }
    };
    let retry = millstream::Fixed::new(Duration::from_millis(1));
    let consumer = stage.consumer().retry(retry).start(handler).await.expect("started");
    stage.runs(&[7], 1).await;
    waits.add_permits(1);
    stage.runs(&[11], 1).await;
    release.send(()).expect("it blocks");
    // From the retry log, where its entry has another id.
    stage.runs(&[12], 2).await;
    let owners = stage.owners().await;
    let (member, it) = owners.running()[0];
    assert_ne!(it.entry, it.origin);
    assert_eq!(owners.runs(it.partition, it.source, it.entry).map(|(by, _)| &by.id), Some(&member.id));
    waits.add_permits(1);
    ends(&stage, consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_messages_of_a_batch_run_and_the_longest_hundred_are_named() {
    let stage = Stage::new(false).await;
    let producer = stage.mq.producer(stage.topic.clone()).await.expect("a producer");
    let numbers: Vec<u64> = (20..120).collect();
    for sent in producer.send_all(numbers.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    let release = Arc::new(Semaphore::new(0));
    let waits = release.clone();
    let handler = move |_: Batch<u64>| {
        let waits = waits.clone();
        async move { waits.acquire().await.expect("open").forget() }
    };
    let consumer =
        stage.consumer().start_batch((120, Duration::from_secs(60)), handler).await.expect("started");
    eventually(async || stage.owners().await.running().len() == 100, "a hundred are named").await;
    assert_eq!(stage.owners().await.running_unnamed(), 20);
    release.add_permits(1);
    ends(&stage, consumer).await;
}
