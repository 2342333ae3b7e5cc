//! Consumers that share their partitions: more of them than partitions, deaths, pauses, the end.

pub(crate) mod crashes;
pub(crate) mod packs;
pub(crate) mod pull;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::workers::{Mate, TTL, Workers, few};
use crate::support::*;
use futures_util::future::join_all;
use millstream_core::policy::{Fixed, Never};
use millstream_core::{ErrorKind, Outcome};
use millstream_runtime::{Concurrency, Delivery, RetryOrder, Sharing};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn quick(_: &Delivery<u64>) -> (Duration, Outcome) {
    (MS(100), Outcome::Ack)
}

#[tokio::test(start_paused = true)]
async fn more_consumers_than_partitions_all_work() {
    let team = Workers::new(2);
    let names = ["a", "b", "c", "d", "e", "f"];
    let mates = join_all(names.map(|name| team.join(name, quick, few))).await;
    let started = Instant::now();
    team.send(0..120).await;
    team.all_done(120).await;
    assert_eq!(team.by().len(), 6, "everybody works");
    assert!(started.elapsed() <= 3 * SECOND / 2, "12 at once, 100 ms each: {:?}", started.elapsed());
    team.assert_at_rest().await;
    let acked: u64 =
        join_all(mates.into_iter().map(Mate::leave)).await.iter().map(|report| report.acked).sum();
    assert_eq!((acked, team.calls().len()), (120, 120), "nothing twice");
    assert_eq!(team.told.lines("Failing"), 0, "{:#?}", team.told.all());
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_one_had_is_handled_by_others_within_a_ttl() {
    for seed in 0..5 {
        fastrand::seed(seed);
        let team = Workers::new(3);
        let slow = |_: &Delivery<u64>| (60 * SECOND, Outcome::Ack);
        let a = team.join("a", slow, few).await;
        team.send(0..3).await;
        team.begun("a", 2).await;
        let mut others = join_all(["b", "c", "d", "e"].map(|name| team.join(name, quick, few))).await;
        // Three in flight, two of them in handlers; at some time between two renewals.
        tokio::time::sleep(4 * SECOND + MS(seed * 700)).await;
        assert_eq!(team.by(), ["a".to_owned()].into(), "the living are left alone");
        a.die();
        let died = Instant::now();
        team.all_done(3).await;
        assert!(died.elapsed() <= TTL + SECOND, "after {:?}", died.elapsed());
        assert!(died.elapsed() >= TTL / 2, "nobody can know so soon: {:?}", died.elapsed());
        team.assert_at_rest().await;
        // The one that had a partition to look after as well.
        team.send(10..13).await;
        team.all_done(6).await;
        join_all(others.drain(..).map(Mate::leave)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_keeps_what_it_has() {
    let team = Workers::new(2);
    let slow = |_: &Delivery<u64>| (7 * TTL, Outcome::Ack);
    let a = team.join("a", slow, few).await;
    team.send(0..3).await;
    team.begun("a", 2).await;
    let b = team.join("b", quick, few).await;
    tokio::time::sleep(6 * TTL).await;
    assert_eq!(team.calls().len(), 2, "nor what it has ready");
    team.all_done(3).await;
    assert_eq!((team.calls().len(), team.by().len()), (3, 1));
    assert_eq!(a.leave().await.acked + b.leave().await.acked, 3);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_away_settles_nothing_that_others_have() {
    let team = Workers::new(2);
    let slow = |_: &Delivery<u64>| (SECOND, Outcome::Ack);
    let a = team.join("a", slow, few).await;
    team.send(0..3).await;
    team.begun("a", 2).await;
    let b = team.join("b", quick, few).await;
    // So that what it asks when it is back takes longer than to start a handler.
    a.link.latency.store(50, std::sync::atomic::Ordering::Relaxed);
    a.link.freeze();
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(team.done().len(), 3, "b has done it all");
    a.link.thaw();
    tokio::time::sleep(TTL).await;
    let calls = team.calls();
    assert_eq!(
        calls.iter().filter(|call| call.by == "a").count(),
        2,
        "what it had ready it did not start: {calls:#?}"
    );
    team.send(10..16).await;
    eventually(|| (10..16).all(|number| team.done().contains_key(&number)), || "it works again".into()).await;
    team.assert_at_rest().await;
    let (a, b) = (a.leave().await, b.leave().await);
    // Two handlers of a ended when they could not know yet that it was too late.
    assert!(b.acked >= 3 && (9..=11).contains(&(a.acked + b.acked)), "{a:?} {b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_when_nobody_can_say_any_more_that_its_message_is_ours() {
    let team = Workers::new(1);
    let slow = |_: &Delivery<u64>| (60 * SECOND, Outcome::Ack);
    let a = team.join("a", slow, few).await;
    // Two in handlers, and one that is ready.
    team.send(0..3).await;
    let began = team.begun("a", 2).await[0].began;
    let b = team.join("b", quick, few).await;
    a.link.lose_renewals.store(2, std::sync::atomic::Ordering::Relaxed);
    tokio::time::sleep(2 * TTL).await;
    assert!(team.calls()[0].ended.is_none(), "two lost requests do no harm");
    a.link.lose_renewals.store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
    eventually(|| team.calls()[0].ended.is_some(), || "told".into()).await;
    let (ended, told) = team.calls()[0].ended.expect("ended");
    assert!(told && ended - began < 3 * TTL + TTL, "{:?}", ended - began);
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(
        team.calls().iter().filter(|call| call.by == "b").count(),
        0,
        "a renews: nobody takes from it"
    );
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn failures_come_back_to_anybody_and_die_at_the_end() {
    let team = Workers::new(4);
    let fails = |delivery: &Delivery<u64>| {
        let says = match (delivery.payload % 3, delivery.attempt()) {
            (0, _) => Outcome::retry("never"),
            (1, 1) => Outcome::retry("once"),
            _ => Outcome::Ack,
        };
        (MS(5), says)
    };
    let set = |builder| few(builder).retry(Fixed::new(MS(300)).attempts(3));
    let mates = join_all(["a", "b", "c", "d", "e", "f"].map(|name| team.join(name, fails, set))).await;
    // By then everybody has its partitions, and upkeep has nothing to do.
    tokio::time::sleep(5 * SECOND).await;
    team.send(0..30).await;
    eventually(|| team.calls().len() == 60, || format!("60 calls, {:#?}", team.calls().len())).await;
    team.assert_at_rest().await;
    let reports = join_all(mates.into_iter().map(Mate::leave)).await;
    let sum = |of: fn(&millstream_runtime::Report) -> u64| -> u64 { reports.iter().map(of).sum() };
    assert_eq!((sum(|it| it.acked), sum(|it| it.retried), sum(|it| it.dead)), (20, 30, 10));
    let calls = team.calls();
    let waits: Vec<Duration> = calls
        .iter()
        .filter(|call| call.attempt == 2)
        .map(|call| call.began - calls.iter().find(|it| it.number == call.number).expect("a first").began)
        .collect();
    assert!(waits.iter().all(|wait| (MS(300)..MS(900)).contains(wait)), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn what_comes_later_than_it_can_be_relied_on_begins_only_after_it_was_extended() {
    let team = Workers::new(1);
    let a = team.join("a", quick, few).await;
    // It waits for messages.
    eventually(|| a.link.calls().contains_key("fetch"), || "it reads".into()).await;
    a.link.hang("extend");
    a.link.freeze();
    team.send([0]).await;
    tokio::time::sleep(TTL * 9 / 10).await;
    a.link.thaw();
    team.told.wait_for("Fetched {").await;
    tokio::time::sleep(TTL / 20).await;
    assert_eq!(team.calls().len(), 0, "nine tenths of the ttl are over");
    let b = team.join("b", quick, few).await;
    a.die();
    team.all_done(1).await;
    assert_eq!(team.by(), ["b".to_owned()].into());
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_gives_back_at_once_what_it_has_not_begun() {
    let team = Workers::new(2);
    let slow = |_: &Delivery<u64>| (4 * SECOND, Outcome::Ack);
    let a = team.join("a", slow, |builder| few(builder).prefetch(20)).await;
    team.send(0..10).await;
    team.begun("a", 2).await;
    let b = team.join("b", quick, few).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(team.calls().len(), 2);
    let (report, left) = tokio::join!(a.leave(), async {
        let left = Instant::now();
        eventually(|| team.done().len() >= 8, || format!("{:#?}", team.calls())).await;
        left.elapsed()
    });
    assert!(left <= 2 * SECOND, "a wait of {left:?}");
    assert_eq!((report.acked, report.handed_back), (2, 8), "what had begun it did to the end");
    team.all_done(10).await;
    assert_eq!(team.calls().len(), 10, "nothing twice");
    team.assert_at_rest().await;
    assert_eq!(team.told.lines("Crashed {"), 0);
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_keeps_what_it_has_begun_and_nothing_that_waits_for_its_turn() {
    let team = Workers::new(2);
    let slow = |_: &Delivery<u64>| (3 * TTL, Outcome::Ack);
    let set = |builder| few(builder).max_handlers(1).shutdown_timeout(4 * TTL);
    let a = team.join("a", slow, set).await;
    team.send(0..3).await;
    team.begun("a", 1).await;
    let b = team.join("b", quick, few).await;
    tokio::time::sleep(SECOND).await;
    let (leaving, left) = (tokio::spawn(a.leave()), Instant::now());
    team.all_done(2).await;
    assert!(left.elapsed() <= 2 * SECOND, "{:?}", left.elapsed());
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(team.calls().len(), 3, "it has left the group, and is at work: {:#?}", team.calls());
    let report = leaving.await.expect("no panic");
    assert_eq!((report.acked, report.handed_back), (1, 2));
    team.assert_at_rest().await;
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn handlers_that_do_not_end_are_given_up() {
    let team = Workers::new(1);
    let endless = |_: &Delivery<u64>| (100_000 * SECOND, Outcome::Ack);
    let a = team.join("a", endless, |builder| few(builder).shutdown_timeout(5 * SECOND)).await;
    team.send(0..3).await;
    team.begun("a", 2).await;
    let began = Instant::now();
    let report = a.leave().await;
    assert!(began.elapsed() <= 6 * SECOND, "{:?}", began.elapsed());
    assert_eq!((report.acked, report.handed_back), (0, 3));
    let b = team.join("b", quick, few).await;
    let left = Instant::now();
    team.all_done(3).await;
    assert!(left.elapsed() <= SECOND, "{:?}", left.elapsed());
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn lost_replies_lose_no_message() {
    let team = Workers::new(2);
    let a = team.join("a", quick, few).await;
    let b = team.join("b", |_| (60 * SECOND, Outcome::Ack), few).await;
    team.send(0..6).await;
    team.begun("b", 2).await;
    // What a claims from b comes to it though the answer is lost.
    a.link.lose_claims.store(1, std::sync::atomic::Ordering::Relaxed);
    b.die();
    let died = Instant::now();
    team.all_done(6).await;
    assert!(died.elapsed() <= 2 * TTL, "{:?}", died.elapsed());
    assert_eq!(team.told.lines("the reply is lost"), 1, "{:#?}", team.told.all());
    team.assert_at_rest().await;
    a.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_destroyed_is_created_again() {
    let team = Workers::new(2);
    let mates = join_all(["a", "b", "c"].map(|name| team.join(name, quick, few))).await;
    team.send(0..6).await;
    team.all_done(6).await;
    let group = "g".parse().expect("name");
    for partition in [0, 1] {
        let tp = millstream_core::TopicPartition::new("orders".parse().expect("name"), partition);
        assert!(team.memory.operator().destroy_group(&tp, &group));
    }
    team.send(10..16).await;
    team.all_done(12).await;
    assert!(team.told.lines("GroupRestored") >= 2, "{:#?}", team.told.all());
    team.assert_at_rest().await;
    join_all(mates.into_iter().map(Mate::leave)).await;
}

#[tokio::test(start_paused = true)]
async fn new_partitions_are_read() {
    let team = Workers::new(1);
    let mates = join_all(["a", "b"].map(|name| team.join(name, quick, few))).await;
    team.send(0..2).await;
    team.all_done(2).await;
    team.backend.catalog().expand(&"orders".parse().expect("name"), 3).await.expect("grown");
    let grown = Workers { topic: millstream_core::Topic::new("orders").partitions(3), ..team };
    grown.send(10..16).await;
    grown.all_done(8).await;
    grown.assert_at_rest().await;
    join_all(mates.into_iter().map(Mate::leave)).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_owner_left_is_taken_over_and_the_other_way_round() {
    let team = Workers::new(2);
    let slow = |_: &Delivery<u64>| (60 * SECOND, Outcome::Ack);
    let owner = team.join("owner", slow, |builder| builder.lease_ttl(TTL)).await;
    team.send(0..4).await;
    team.begun("owner", 2).await;
    owner.die();
    let sharers = join_all(["a", "b", "c"].map(|name| team.join(name, quick, few))).await;
    let died = Instant::now();
    team.all_done(4).await;
    assert!(died.elapsed() <= TTL + SECOND, "{:?}", died.elapsed());
    join_all(sharers.into_iter().map(Mate::leave)).await;

    let sharer = team.join("d", slow, few).await;
    team.send(10..14).await;
    team.begun("d", 2).await;
    sharer.die();
    let owner = team.join("next", quick, |builder| builder.lease_ttl(TTL)).await;
    let died = Instant::now();
    team.all_done(8).await;
    assert!(died.elapsed() <= 3 * TTL, "{:?}", died.elapsed());
    team.assert_at_rest().await;
    owner.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_what_is_ready_and_keeps_it() {
    let team = Workers::new(2);
    let a = team.join("a", |_| (SECOND, Outcome::Ack), few).await;
    team.send(0..6).await;
    team.begun("a", 2).await;
    a.consumer.pause();
    let b = team.join("b", quick, few).await;
    team.all_done(5).await;
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(team.calls().len(), 5, "one is ready in the hand of a, and stays there");
    a.consumer.resume();
    team.all_done(6).await;
    let first = millstream_core::TopicPartition::new("orders".parse().expect("name"), 0);
    for mate in [&a, &b] {
        mate.consumer.pause_partition(&first);
    }
    team.send(10..16).await;
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(team.done().len(), 9, "the other partition goes on");
    b.consumer.resume_partition(&first);
    team.all_done(12).await;
    let refused = a.consumer.seek(&first, millstream_core::Start::Earliest).await.expect_err("not alone");
    assert!(matches!(refused.kind(), ErrorKind::Unsupported | ErrorKind::NotFound), "{refused}");
    a.leave().await;
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn batches_are_of_one_partition_and_wait_to_be_filled() {
    let team = Workers::new(2);
    let (_, builder) = team.builder("a");
    let sizes = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let set = few(builder).prefetch(100);
    let consumer = set.start_batch((5, MS(200)), move |batch: millstream_runtime::Batch<u64>| {
        let partitions: BTreeSet<_> = batch.iter().map(|it| it.topic_partition().clone()).collect();
        seen.lock().expect("lock").push((batch.len(), partitions.len()));
        async {}
    });
    let consumer = consumer.await.expect("started");
    team.send(0..26).await;
    let count = || sizes.lock().expect("lock").iter().map(|(size, _)| size).sum::<usize>();
    eventually(|| count() == 26, || format!("{:?}", sizes.lock().expect("lock"))).await;
    let mut sizes = sizes.lock().expect("lock").clone();
    sizes.sort_unstable();
    assert_eq!(sizes, [(3, 1), (3, 1), (5, 1), (5, 1), (5, 1), (5, 1)]);
    assert_eq!(consumer.shutdown().await.acked, 26);
}

#[tokio::test(start_paused = true)]
async fn order_and_sharing_do_not_go_together() {
    let team = Workers::new(1);
    let cases = [Concurrency::Serial, Concurrency::PerKey(4)];
    for concurrency in cases {
        let (_, builder) = team.builder("a");
        let started =
            builder.sharing(Sharing::Shared).concurrency(concurrency).start(|_: Delivery<u64>| async {});
        let error = started.await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("sharing Shared"), "{error}");
    }
    let (_, builder) = team.builder("a");
    let builder = few(builder).retry_order(RetryOrder::BlockKey).retry(Never);
    let error = builder.start(|_: Delivery<u64>| async {}).await.expect_err("refused");
    assert!(error.to_string().contains("BlockKey"), "{error}");
}
