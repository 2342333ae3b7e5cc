//! Consumers that share their partitions, and messages that kill them: found out, noted, tried one at a time, and given up.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::shared::quick;
use crate::support::link::Link;
use crate::support::workers::{Call, Mate, TTL, Workers, few};
use crate::support::*;
use futures_util::future::join_all;
use millstream_core::Outcome;
use millstream_runtime::{Concurrency, ConsumerBuilder, Delivery};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_message_that_kills_is_given_up_and_its_neighbours_are_handled() {
    const POISON: u64 = 7;
    let team = Workers::new(2);
    let dies = |delivery: &Delivery<u64>| {
        (if delivery.payload == POISON { 1_000 * SECOND } else { MS(50) }, Outcome::Ack)
    };
    team.send(0..12).await;
    let mut deaths = 0;
    let mut mates = Vec::new();
    for n in 0..4 {
        mates.push((format!("{n}"), team.join(&format!("{n}"), dies, few).await));
    }
    // Each instance that begins it dies, and is replaced.
    while team.told.lines("Crashed {") == 0 {
        let victims: BTreeSet<String> =
            team.calls().iter().filter(|call| call.number == POISON).map(|call| call.by.clone()).collect();
        if let Some(at) = mates.iter().position(|(name, _)| victims.contains(name)) {
            let (_, victim) = mates.remove(at);
            victim.die();
            deaths += 1;
            let name = format!("{}", 3 + deaths);
            mates.push((name.clone(), team.join(&name, dies, few).await));
        }
        assert!(deaths <= 4, "{:#?}", team.calls());
        tokio::time::sleep(MS(20)).await;
    }
    assert_eq!(deaths, 4, "as many as may die over one message");
    team.all_done(11).await;
    team.assert_at_rest().await;
    let dead: u64 =
        join_all(mates.into_iter().map(|(_, mate)| mate.leave())).await.iter().map(|it| it.dead).sum();
    assert_eq!(dead, 1);
}

fn endless(_: &Delivery<u64>) -> (Duration, Outcome) {
    (100_000 * SECOND, Outcome::Ack)
}

/// Lets a message kill each consumer that begins it, one after the other, until it is given up. `set` prepares the link of
/// each, and `meanwhile` is called again and again until it begins. Returns the number of deaths.
async fn deaths_until_given_up(set: impl Fn(&Link), meanwhile: impl Fn(&Mate)) -> usize {
    let team = Workers::new(1);
    team.send([0]).await;
    let mut deaths = 0;
    loop {
        let name = format!("{deaths}");
        let mate = team.join(&name, endless, few).await;
        set(&mate.link);
        while team.told.lines("Crashed {") == 0 && !team.by().contains(&name) {
            meanwhile(&mate);
            tokio::time::sleep(SECOND).await;
        }
        if team.told.lines("Crashed {") > 0 {
            team.assert_at_rest().await;
            assert_eq!(mate.leave().await.dead, 1);
            return deaths;
        }
        mate.die();
        deaths += 1;
        assert!(deaths <= 4, "{:#?}", team.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_count_although_every_answer_to_a_claim_is_lost() {
    let lost = |link: &Link| link.lose_claims.store(usize::MAX, Ordering::Relaxed);
    // One less than usual: the claim and the read after it count as two deliveries.
    assert_eq!(deaths_until_given_up(lost, |_| {}).await, 3);
}

#[tokio::test(start_paused = true)]
async fn deaths_count_although_the_reader_finds_what_was_claimed_before_the_answer() {
    let late = |link: &Link| link.delay_claims.store(TTL.as_millis() as u64 / 2, Ordering::Relaxed);
    let start_over = |mate: &Mate| {
        mate.consumer.pause();
        mate.consumer.resume();
    };
    assert_eq!(deaths_until_given_up(late, start_over).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_suspicion_that_cannot_be_written_keeps_the_suspect_from_starting() {
    let team = Workers::new(1);
    let a = team.join("a", endless, few).await;
    team.send([0]).await;
    team.begun("a", 1).await;
    let b = team.join("b", endless, few).await;
    a.die();
    team.begun("b", 1).await;
    let c = team.join("c", quick, few).await;
    c.link.hang("settle");
    b.die();
    eventually(|| c.link.calls().contains_key("settle"), || format!("{:#?}", team.told.all())).await;
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(team.calls().len(), 2, "c waits for its note");
    let d = team.join("d", quick, few).await;
    c.die();
    team.all_done(1).await;
    assert_eq!((team.calls().len(), team.calls()[2].by.as_str()), (3, "d"));
    assert_eq!(team.told.lines("Crashed {"), 0);
    d.leave().await;
}

#[tokio::test(start_paused = true)]
async fn suspects_that_had_begun_are_tried_one_at_a_time_beside_others() {
    let team = Workers::new(1);
    let a = team.join("a", endless, few).await;
    team.send(0..3).await;
    team.begun("a", 2).await;
    let b = team.join("b", endless, few).await;
    a.die();
    team.begun("b", 2).await;
    let c = team.join("c", endless, few).await;
    b.die();
    let began: BTreeSet<u64> = team.begun("c", 2).await.iter().map(|call| call.number).collect();
    let d = team.join("d", quick, |it| few(it).concurrency(Concurrency::Unordered(4)).prefetch(8)).await;
    c.die();
    team.all_done(3).await;
    let calls: Vec<_> = team.calls().into_iter().filter(|call| call.by == "d").collect();
    let (alone, other): (Vec<_>, Vec<_>) = calls.iter().partition(|call| began.contains(&call.number));
    assert_eq!((alone.len(), other.len()), (2, 1), "{calls:#?}");
    let ended = |call: &Call| call.ended.expect("ended").0;
    assert!(ended(alone[0]) <= alone[1].began, "{calls:#?}");
    assert!(
        other[0].began < ended(alone[1]),
        "the third one had not begun, and waits for nobody: {calls:#?}"
    );
    assert_eq!(team.told.lines("Crashed {"), 0);
    team.assert_at_rest().await;
    d.leave().await;
}

#[tokio::test(start_paused = true)]
async fn only_what_may_begin_at_once_is_noted() {
    let team = Workers::new(4);
    let one = |builder: ConsumerBuilder<u64>| few(builder).concurrency(Concurrency::Unordered(1)).prefetch(8);
    let a = team.join("a", endless, one).await;
    team.send(0..8).await;
    team.begun("a", 1).await;
    tokio::time::sleep(SECOND).await;
    let b = team.join("b", endless, one).await;
    a.die();
    team.begun("b", 1).await;
    tokio::time::sleep(2 * TTL).await;
    let c = team.join("c", endless, one).await;
    b.die();
    team.begun("c", 1).await;
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(c.link.calls().get("settle"), Some(&1), "of messages in four partitions, one has begun");
    c.die();
}

#[tokio::test(start_paused = true)]
async fn the_note_of_a_consumer_that_lives_is_no_evidence() {
    let team = Workers::new(1);
    let first = team.join("first", endless, few).await;
    team.send([0]).await;
    team.begun("first", 1).await;
    let second = team.join("second", endless, few).await;
    first.die();
    team.begun("second", 1).await;
    let a = team.join("a", endless, few).await;
    second.die();
    // Noted by a, which is stopped until b has claimed it, and noted by b.
    team.begun("a", 1).await;
    let b = team.join("b", endless, few).await;
    a.link.freeze();
    team.begun("b", 1).await;
    // From now on it is in the group and claims nothing.
    a.consumer.pause();
    a.link.thaw();
    let (topic, group) = ("orders".parse().expect("name"), "g".parse().expect("name"));
    while team.backend.members().roster(&topic, &group).await.expect("a roster").members.len() < 2 {
        tokio::time::sleep(MS(10)).await;
    }
    let c = team.join("c", quick, few).await;
    b.die();
    team.all_done(1).await;
    let by: Vec<_> = team.calls().into_iter().map(|call| call.by).collect();
    assert_eq!(by, ["first", "second", "a", "b", "c"]);
    assert_eq!(team.told.lines("Crashed {"), 0);
    a.leave().await;
    c.leave().await;
}
