//! Packs of shared partitions: each is one consumer's as a whole, and larger than its prefetch.

use std::time::Duration;

use crate::support::workers::{TTL, Workers, few};
use crate::support::*;
use futures_util::future::join_all;
use millstream_core::policy::Fixed;
use millstream_core::{Outcome, TopicPartition};
use millstream_runtime::{Concurrency, ConsumerBuilder, Delivery};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn slow(_: &Delivery<u64>) -> (Duration, Outcome) {
    (SECOND, Outcome::Ack)
}

#[tokio::test(start_paused = true)]
async fn beside_a_pack_other_partitions_are_handled() {
    let team = Workers::packed(8);
    let a = team.join("a", slow, few).await;
    team.send_to(0, 0..40).await;
    team.begun("a", 2).await;
    // Others of its own partition come after it, as many as there may be.
    team.send_to(0, 100..180).await;
    for partition in 1..8 {
        let sent = Instant::now();
        let number = 1_000 + u64::from(partition);
        team.send_to(partition, [number]).await;
        eventually(|| team.done().contains_key(&number), || format!("{number} of {:#?}", team.calls())).await;
        assert!(sent.elapsed() < 4 * SECOND, "{partition} after {:?}", sent.elapsed());
    }
    assert!(team.done().len() < 60, "the pack goes on");
    team.all_done(127).await;
    assert_eq!(team.calls().len(), 127, "nothing twice");
    team.assert_at_rest().await;
    a.leave().await;
}

#[tokio::test(start_paused = true)]
async fn beside_a_pack_retries_are_handled() {
    fn fails_once(delivery: &Delivery<u64>) -> (Duration, Outcome) {
        match delivery.payload {
            1_000 if delivery.attempt() == 1 => (MS(10), Outcome::retry("once")),
            1_000 => (MS(10), Outcome::Ack),
            _ => (SECOND, Outcome::Ack),
        }
    }
    let team = Workers::packed(5);
    team.send_to(4, [1_000]).await;
    let a = team.join("a", fails_once, |builder| few(builder).retry(Fixed::new(3 * SECOND))).await;
    team.begun("a", 1).await;
    // As many packs as it holds at the most: nothing else is read.
    join_all((0..4).map(|partition| {
        let first = u64::from(partition) * 40;
        team.send_to(partition, first..first + 40)
    }))
    .await;
    eventually(|| team.done().get(&1_000) == Some(&2), || format!("{:#?}", team.calls())).await;
    assert!(team.done().len() < 30, "the packs go on: {:?}", team.done().len());
    team.all_done(161).await;
    team.assert_at_rest().await;
    a.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_pack_of_a_paused_partition_keeps_none_from_the_others() {
    let team = Workers::packed(3);
    let a = team.join("a", slow, few).await;
    team.send_to(0, 0..40).await;
    team.begun("a", 2).await;
    let paused = TopicPartition::new("orders".parse().expect("a name"), 0);
    a.consumer.pause_partition(&paused);
    // Larger than what it may read, and than what it may claim.
    team.send_to(1, 100..140).await;
    team.send_to(2, [200]).await;
    eventually(|| team.done().len() >= 41, || format!("{:#?}", team.calls())).await;
    assert!(team.done().keys().filter(|number| **number < 40).count() <= 2, "it is paused");
    a.consumer.resume_partition(&paused);
    team.all_done(81).await;
    assert_eq!(team.calls().len(), 81, "nothing twice");
    team.assert_at_rest().await;
    a.leave().await;
}

type Mode = fn(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>;

/// With owners, and without.
const MODES: [Mode; 2] = [
    |builder| builder.concurrency(Concurrency::Unordered(2)).prefetch(3).lease_ttl(TTL),
    |builder| few(builder),
];

const HOUR: Duration = Duration::from_secs(3_600);

/// Waits for so many numbers to be handled, by handlers of an hour.
async fn hours(team: &Workers, count: usize) {
    for _ in 0..100 {
        if team.done().len() >= count {
            return;
        }
        tokio::time::sleep(HOUR / 4).await;
    }
    panic!("{count} done of {:#?}", team.calls());
}

#[tokio::test(start_paused = true)]
async fn handlers_of_an_hour_keep_their_packs() {
    for mode in MODES {
        let team = Workers::packed(2);
        let hour = |_: &Delivery<u64>| (HOUR, Outcome::Ack);
        let (a, b) = (team.join("a", hour, mode).await, team.join("b", hour, mode).await);
        tokio::time::sleep(TTL).await;
        team.send_to(0, 0..6).await;
        team.send_to(1, 10..16).await;
        hours(&team, 12).await;
        let calls = team.calls();
        assert_eq!(calls.len(), 12, "nothing twice: {calls:#?}");
        assert!(calls.iter().all(|call| call.deliveries == 1), "{calls:#?}");
        team.assert_at_rest().await;
        assert_eq!(a.leave().await.acked + b.leave().await.acked, 12);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_settled_of_a_pack_is_not_repeated_when_its_consumer_dies_hours_later() {
    for mode in MODES {
        let team = Workers::packed(1);
        let hour = |_: &Delivery<u64>| (HOUR, Outcome::Ack);
        let a = team.join("a", hour, mode).await;
        team.send_to(0, 0..8).await;
        team.begun("a", 2).await;
        let b = team.join("b", hour, mode).await;
        // Two of eight every hour.
        tokio::time::sleep(5 * HOUR / 2).await;
        let before = team.done();
        assert_eq!((before.len(), team.by().len()), (4, 1), "{:#?}", team.calls());
        a.die();
        hours(&team, 8).await;
        let again: Vec<_> = team.calls().into_iter().filter(|call| call.by == "b").collect();
        assert_eq!(again.len(), 4, "what was not settled: {again:#?}");
        assert!(again.iter().all(|call| !before.contains_key(&call.number)), "{again:#?}");
        team.assert_at_rest().await;
        b.leave().await;
    }
}

/// It has more to claim than room, and cannot settle any of it.
#[tokio::test(start_paused = true)]
async fn a_pack_of_a_paused_partition_that_was_claimed_keeps_none_from_the_others() {
    let team = Workers::packed(2);
    let dead = team.join("dead", |_| (60 * SECOND, Outcome::Ack), few).await;
    team.send_to(0, 0..40).await;
    team.begun("dead", 2).await;
    let heir = team.join("heir", slow, few).await;
    dead.die();
    team.begun("heir", 1).await;
    let other = team.join("other", |_| (60 * SECOND, Outcome::Ack), few).await;
    heir.consumer.pause_partition(&TopicPartition::new("orders".parse().expect("a name"), 0));
    let before = team.calls().len();
    team.send_to(1, 100..140).await;
    tokio::time::sleep(TTL).await;
    other.die();
    eventually(
        || (100..140).all(|number| team.done().contains_key(&number)),
        || format!("{:#?}", &team.calls()[before..]),
    )
    .await;
    heir.leave().await;
}
