//! Messages in flight at consumers, and messages that wait while no consumer runs.

use millstream::crates::core::permits::{Reservation, TokenStep};
use millstream::{Concurrency, Rate, Sharing};

use super::*;

/// Messages of the run: three each for the first two partitions, two each for the others.
const IN_HAND: u64 = 10;

/// A gate that handlers wait at, and who came to it.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) begun: Arc<tokio::sync::Semaphore>,
    pub(super) open: Arc<tokio::sync::Semaphore>,
    asked: Arc<std::sync::atomic::AtomicBool>,
}

impl Gate {
    pub(super) fn new() -> Self {
        let none = || Arc::new(tokio::sync::Semaphore::new(0));
        Self { begun: none(), open: none(), asked: Arc::default() }
    }

    /// True for the first caller.
    pub(super) fn once(&self) -> bool {
        !self.asked.swap(true, Ordering::SeqCst)
    }

    pub(super) async fn pass(&self) {
        self.begun.add_permits(1);
        self.open.acquire().await.expect("open").forget();
    }

    /// Waits until so many more have come.
    pub(super) async fn came(&self, count: u32) {
        let came = tokio::time::timeout(HANG, self.begun.acquire_many(count)).await;
        came.expect("they come").expect("open").forget();
    }
}

async fn gated(scene: &Fixture, sharing: Sharing, gate: &Gate) -> Consumer {
    let gate = gate.clone();
    let consumer = scene.mq.consumer(ORDERS, "billing").sharing(sharing).member_id("web-1").prefetch(16);
    let consumer = match sharing {
        Sharing::Shared => consumer.concurrency(Concurrency::Unordered(4)),
        _ => consumer,
    };
    let started = consumer.start(move |_: Delivery<u64>| {
        let gate = gate.clone();
        async move { gate.pass().await }
    });
    started.await.expect("started")
}

/// Four handlers run, one per partition where these have owners; the other messages wait in the consumer's memory.
async fn what_is_in_hand(sharing: Sharing) {
    let scene = Fixture::at(&shared_url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let gate = Gate::new();
    let consumer = gated(&scene, sharing, &gate).await;
    for number in 0..IN_HAND {
        producer.send(&number).partition((number % 4) as u32).await.expect("sent");
    }
    gate.came(4).await;
    let of = &[("topic", "orders"), ("group", "billing")][..];
    let member = &[("topic", "orders"), ("group", "billing"), ("consumer", "web-1")][..];
    let in_hand = IN_HAND as f64;
    scene
        .sees(
            "all is in hand",
            &[
                ("in_flight", member, in_hand),
                ("handlers_running", &member[1..], 4.0),
                ("pending", of, in_hand),
                ("lag", of, 0.0),
                ("ready", of, 0.0),
                ("backlog", of, in_hand),
                ("delivered_total", of, in_hand),
                ("reclaimed_total", of, 0.0),
                ("acked_total", of, 0.0),
            ],
        )
        .await;
    // Given up, all of it goes to the next one.
    consumer.shutdown_within(Duration::ZERO).await;
    scene.sees("nobody has it", &[("pending", of, in_hand), ("lag", of, 0.0)]).await;
    let again = Gate::new();
    let consumer = gated(&scene, sharing, &again).await;
    again.came(4).await;
    again.open.add_permits(IN_HAND as usize);
    scene
        .sees(
            "all is done",
            &[
                ("in_flight", member, 0.0),
                ("handlers_running", &member[1..], 0.0),
                ("pending", of, 0.0),
                ("backlog", of, 0.0),
                ("acked_total", of, in_hand),
                ("late_acks_total", of, 0.0),
                ("delivered_total", of, 2.0 * in_hand),
                ("trimmed_total", &of[..1], in_hand),
            ],
        )
        .await;
    consumer.shutdown().await;
}

/// One message of each partition: one runs, the others wait for its unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_limit_is_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let gate = Gate::new();
    let at_gate = gate.clone();
    let consumer = scene.mq.consumer(ORDERS, "billing").member_id("web-1");
    let consumer = consumer.limit(Limit::global("bank").at_most(1)).start(move |_: Delivery<u64>| {
        let gate = at_gate.clone();
        async move { gate.pass().await }
    });
    let consumer = consumer.await.expect("started");
    for number in 0..4 {
        producer.send(&number).partition(number as u32).await.expect("sent");
    }
    let waiting = &[("limit", "bank"), ("group", "billing"), ("consumer", "web-1")][..];
    gate.came(1).await;
    scene
        .sees(
            "three wait for one",
            &[("limit_waiting", waiting, 3.0), ("handlers_running", &waiting[1..], 1.0)],
        )
        .await;
    gate.open.add_permits(4);
    let of = &[("topic", "orders"), ("group", "billing")][..];
    scene
        .sees(
            "all is done, and nobody waits",
            &[("acked_total", of, 4.0), ("limit_waiting", waiting, 0.0), ("breakers_open", &[], 0.0)],
        )
        .await;
    let (key, time, reason) =
        ("bank:all".parse().expect("a key"), Duration::from_secs(600), "503".to_owned());
    let steps = vec![TokenStep::Breaks { key, time, rate: Rate::per_second(1), reason }];
    let permits = scene.mq.backend().permits().expect("limits");
    permits.reserve(&Reservation { version: 0, steps }).await.expect("stored");
    scene.sees("the bank is away", &[("breakers_open", &[], 1.0)]).await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_owners_have_in_hand_is_counted() {
    what_is_in_hand(Sharing::Exclusive).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_those_who_share_have_in_hand_is_counted() {
    what_is_in_hand(Sharing::Shared).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_nobody_is_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let consumer = scene.mq.consumer(ORDERS, "billing");
    let consumer = consumer.start(async |_: Delivery<u64>| Outcome::dead_letter("no use")).await;
    let consumer = consumer.expect("started");
    for number in 0..5 {
        producer.send(&number).partition(1).await.expect("sent");
    }
    let of = &[("topic", "orders"), ("group", "billing")][..];
    scene
        .sees("all are dead", &[("dead_letters", of, 5.0), ("pending", of, 0.0), ("backlog", of, 0.0)])
        .await;
    consumer.shutdown().await;

    let letters = scene.mq.dead_letters(&ORDERS, "billing").await.expect("letters");
    assert_eq!(letters.replay_all().await.expect("replayed"), 5);
    let oldest = tokio::time::Instant::now();
    for number in 0..3 {
        producer.send(&number).partition(2).await.expect("sent");
    }
    for number in 0..2 {
        producer.send(&number).delay(Duration::from_millis(1)).await.expect("sent for later");
    }
    producer.send(&9).delay(Duration::from_secs(3_600)).await.expect("sent for much later");
    let found = scene
        .sees(
            "all waits",
            &[
                ("dead_letters", of, 0.0),
                ("lag", of, 3.0),
                ("ready", of, 8.0),
                ("retrying", of, 5.0),
                ("pending", of, 0.0),
                ("delayed", &of[..1], 3.0),
                ("delayed_overdue", &of[..1], 2.0),
                ("backlog", of, 10.0),
                ("members", of, 0.0),
            ],
        )
        .await;
    let age = found.sum("millstream_oldest_age_seconds", &[("partition", "2")]).expect("an age");
    let most = oldest.elapsed().as_secs_f64() + 1.0;
    assert!(age > 0.0 && age < most, "{age} s, at most {most} s");
    assert_eq!(found.sum("millstream_oldest_age_seconds", &[("partition", "0")]), Some(0.0));
    // What is in the retry log has the age of its first entry.
    let retried = found.sum("millstream_oldest_age_seconds", &[("partition", "1")]).expect("an age");
    assert!(retried > age, "{retried} s, and what was sent after it {age} s");
}
