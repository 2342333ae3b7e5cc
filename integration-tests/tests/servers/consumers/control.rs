//! Control of a consumer that runs on Redis: pause, seek, health, events; a group that is moved; and a group that is
//! destroyed under a handler that then fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::eventually;
use integration_tests::server::{Server, shared_url};
use millstream::{
    Consumer, ConsumerEvent, ConsumerState, Delivery, ErrorKind, Fixed, Millstream, Outcome, Retention,
    Start, Timestamp, Topic, TopicPartition,
};
use tokio::sync::Semaphore;

const NUMBERS: Topic<u64> = Topic::new("numbers").retention(Retention::Keep);

type Seen = Arc<Mutex<Vec<u64>>>;

async fn connected() -> Millstream {
    let namespace = format!("control-{}", uuid::Uuid::new_v4().simple());
    Millstream::at(shared_url()).namespace(namespace).await.expect("connected")
}

async fn send(mq: &Millstream, values: std::ops::Range<u64>) {
    let producer = mq.producer(NUMBERS).await.expect("a producer");
    for value in values {
        producer.send(&value).await.expect("sent");
    }
}

async fn start(mq: &Millstream) -> (Consumer, Seen) {
    let seen = Seen::default();
    let consumer = mq.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            seen.lock().expect("lock").push(delivery.payload);
            async {}
        }
    });
    (consumer.await.expect("started"), seen)
}

async fn until(seen: &Seen, count: usize) {
    eventually(async || seen.lock().expect("lock").len() >= count, "enough are seen").await;
}

fn only() -> TopicPartition {
    TopicPartition::new("numbers".parse().expect("a name"), 0)
}

#[tokio::test]
async fn a_paused_consumer_reads_nothing_and_a_seek_moves_it_under_a_new_lease() {
    let mq = connected().await;
    let (consumer, seen) = start(&mq).await;
    let mut events = consumer.events();
    send(&mq, 0..100).await;
    until(&seen, 100).await;
    consumer.pause();
    eventually(async || consumer.health().in_flight == 0, "all is settled").await;
    send(&mq, 100..200).await;
    consumer.seek(&only(), Start::Earliest).await.expect("sought");
    assert_eq!(consumer.health().state, ConsumerState::Paused);
    let stats = mq.stats(&NUMBERS, "g").await.expect("stats");
    assert_eq!((stats[0].pending, seen.lock().expect("lock").len()), (0, 100), "nothing is read");
    consumer.resume();
    until(&seen, 300).await;
    let order: Vec<u64> = (0..100).chain(0..200).collect();
    assert_eq!(*seen.lock().expect("lock"), order);
    let health = consumer.health();
    assert!(health.is_live() && health.is_ready(), "{health:#?}");
    eventually(async || consumer.report().acked == 300, "all are handled").await;
    consumer.shutdown().await;
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(event);
    }
    let moves = told.iter().filter(|event| {
        matches!(
            event,
            ConsumerEvent::Assigned { .. } | ConsumerEvent::Revoked { .. } | ConsumerEvent::TailLost { .. }
        )
    });
    assert!(
        moves.count() <= 4,
        "the lease was given back once and taken anew, and nothing was lost: {told:?}"
    );
}

#[tokio::test]
async fn a_group_is_moved_as_its_preview_says_and_not_under_its_owner() {
    let mq = connected().await;
    send(&mq, 0..50).await;
    let (consumer, seen) = start(&mq).await;
    until(&seen, 50).await;
    let error = mq.seek(&NUMBERS, "g", Start::Earliest).await.expect_err("owned");
    assert!(error.kind() == ErrorKind::Fenced && error.to_string().contains("owned by consumer-"), "{error}");
    consumer.shutdown().await;
    send(&mq, 50..70).await;
    let stats = mq.stats(&NUMBERS, "g").await.expect("stats");
    let position = stats[0].position.expect("the group is there");
    let look = |to| {
        let mq = mq.clone();
        async move {
            let looks = mq.seek_preview(&NUMBERS, "g", to).await.expect("a preview");
            (looks[0].reread, looks[0].skipped)
        }
    };
    assert_eq!(look(Start::Earliest).await, (50, 0));
    assert_eq!(look(Start::Latest).await, (0, 20));
    assert_eq!(look(Start::After(position)).await, (0, 0));
    assert_eq!(look(Start::At(Timestamp::from_millis(0))).await, (50, 0));
    mq.seek(&NUMBERS, "g", Start::Earliest).await.expect("sought");
    let (consumer, seen) = start(&mq).await;
    until(&seen, 70).await;
    consumer.shutdown().await;
    assert_eq!(*seen.lock().expect("lock"), (0..70).collect::<Vec<_>>());
    assert_eq!(mq.expand(&NUMBERS, 3).await.expect("expanded"), 3);
    assert_eq!(mq.expand(&NUMBERS, 2).await.expect("as it was"), 3);
}

/// All messages that may be read are in flight when the group is destroyed, so that the settler detects it.
#[tokio::test]
async fn what_fails_after_its_group_was_destroyed_is_handled_again() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    send(&mq, 0..10).await;
    let (calls, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let retry = Fixed::new(Duration::from_millis(10)).attempts(1);
    let consumer = mq.consumer(NUMBERS, "g").prefetch(1).retry(retry).start({
        let (calls, go_on) = (calls.clone(), go_on.clone());
        move |delivery: Delivery<u64>| {
            let fails = delivery.payload == 3 && calls.fetch_add(1, Ordering::Relaxed) == 0;
            let go_on = go_on.clone();
            async move {
                if !fails {
                    return Outcome::Ack;
                }
                go_on.acquire().await.expect("open").forget();
                Outcome::retry("no")
            }
        }
    });
    let consumer = consumer.await.expect("started");
    eventually(async || calls.load(Ordering::Relaxed) == 1, "it is being handled").await;
    assert_eq!(server.cli(&["XGROUP", "DESTROY", "stream:topic:{numbers:p:0}", "g"]), "1");
    go_on.add_permits(1);
    eventually(async || calls.load(Ordering::Relaxed) == 2, "it is handled again").await;
    eventually(async || consumer.report().acked == 10, "all are handled").await;
    consumer.shutdown().await;
    let letters = mq.dead_letters(&NUMBERS, "g").await.expect("dead letters");
    assert_eq!(letters.count().await.expect("counted"), 0, "its only attempt was not settled");
}
