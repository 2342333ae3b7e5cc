//! `trim_dead`: what a call costs the server, foreign data, and settings that make no sense.

use std::time::Duration;

use millstream_core::catalog::Catalog;
use millstream_core::dead_letters::{Claim, DeadLetterAction, DeadLetters, TrimBy, TrimmedLetters};
use millstream_core::error::ErrorKind;
use millstream_core::topic::{TopicChange, TopicSpec};
use millstream_core::{DeadLetterRetention, MessageId};

use crate::server::{Bench, message};
use crate::settle::dead_letters::bury;

const HOUR: Duration = Duration::from_secs(3_600);
/// An age that has passed by the next request.
const NONE: Duration = Duration::from_millis(1);

impl Bench {
    /// Adds letters with a payload of so many bytes, by a script.
    async fn bury_fast(&mut self, count: usize, bytes: usize) {
        let fill = redis::Script::new(
            "local body = string.rep('x', tonumber(ARGV[2])) for i = 1, tonumber(ARGV[1]) do \
             redis.call('XADD', KEYS[1], '*', 'reason', 'exhausted', 'attempts', '3', 'error', 'boom', 'origin', '1-1', \
             'topic', 'orders', 'partition', '0', 'group', 'billing', 'history', '', 'payload', body) end",
        );
        let dlq = self.dlq();
        let mut filled = fill.key(dlq.as_str());
        filled.arg(count).arg(bytes).invoke_async::<()>(&mut self.raw).await.expect("filled");
    }

    async fn trim_dead(&self, retention: DeadLetterRetention) -> TrimmedLetters {
        let (tp, group) = (&self.tp, &self.group);
        self.backend.trim(tp, group, retention, TrimBy::Operator).await.expect("trimmed")
    }

    async fn letters(&mut self) -> i64 {
        let dlq = self.dlq();
        self.int(&format!("XLEN {dlq}")).await
    }

    async fn reserve(&self, ids: &[MessageId]) {
        let claim = Claim { by: "somebody".into(), hold: HOUR, left_too: false };
        let claimed = self.backend.claim(&self.tp, &self.group, ids, &claim).await.expect("claimed");
        assert_eq!(claimed, ids);
    }
}

#[tokio::test]
async fn many_letters_never_hold_up_the_server() {
    const COUNT: usize = 60_000;
    for age in [true, false] {
        let mut bench = Bench::private(&[]).await;
        bench.bury_fast(COUNT, 40).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let (retention, stay) =
            if age { (DeadLetterRetention::age(NONE), 0) } else { (DeadLetterRetention::length(7), 7) };
        let load = bench.watch_load().await;
        let (mut dropped, mut rounds) = (0, 0);
        loop {
            let by = TrimBy::Owner(&bench.lease);
            let trimmed = bench.backend.trim(&bench.tp, &bench.group, retention, by).await.expect("trimmed");
            (dropped, rounds) = (dropped + trimmed.dropped(), rounds + 1);
            if !trimmed.more {
                break;
            }
        }
        bench.is_never_held_up(&load, Duration::from_millis(5)).await;
        assert_eq!((dropped, bench.letters().await), ((COUNT - stay) as u64, stay as i64));
        assert_eq!(rounds, 1, "64 calls are enough");
    }
}

/// One of them is claimed, so all are looked at, one by one.
#[tokio::test]
async fn many_letters_beside_a_claim_never_hold_up_the_server() {
    let mut bench = Bench::private(&[]).await;
    let first = bury(&bench, 1, &message("x")).await;
    bench.bury_fast(20_000, 40).await;
    bench.reserve(&first).await;
    let load = bench.watch_load().await;
    let by = TrimBy::Owner(&bench.lease);
    let three = DeadLetterRetention::length(3);
    let trimmed = bench.backend.trim(&bench.tp, &bench.group, three, by).await.expect("trimmed");
    assert!(
        trimmed.more && (10_000..20_000).contains(&trimmed.excess),
        "an owner's trim is bounded: {trimmed:?}"
    );
    let rest = bench.trim_dead(three).await;
    assert_eq!((trimmed.excess + rest.excess, rest.claimed, rest.more), (20_001 - 4, 1, false));
    bench.is_never_held_up(&load, Duration::from_millis(5)).await;
    assert_eq!(bench.letters().await, 4);
}

#[tokio::test]
async fn large_letters_never_hold_up_the_server() {
    for claimed in [false, true] {
        let mut bench = Bench::private(&[]).await;
        // A small one in front is no estimate of what follows.
        let small = bury(&bench, 1, &message("x")).await;
        bench.bury_fast(90, 1 << 20).await;
        if claimed {
            bench.reserve(&small).await;
        }
        let load = bench.watch_load().await;
        let trimmed = bench.trim_dead(DeadLetterRetention::length(1)).await;
        assert_eq!(trimmed, TrimmedLetters::new(0, 90 - u64::from(claimed), u64::from(claimed)));
        bench.is_never_held_up(&load, Duration::from_millis(10)).await;
    }
}

/// Nodes of the stream that hold more letters than one step drops: they are dropped one by one.
#[tokio::test]
async fn streams_of_large_nodes_are_trimmed_too() {
    let mut bench =
        Bench::private(&["--stream-node-max-entries", "1000", "--stream-node-max-bytes", "0"]).await;
    bench.bury_fast(2_500, 10).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(bench.trim_dead(DeadLetterRetention::length(2_000)).await.excess, 500);
    assert_eq!(bench.trim_dead(DeadLetterRetention::age(NONE)).await.aged, 2_000);
    assert_eq!(bench.letters().await, 0);
}

#[tokio::test]
async fn claims_and_notes_leave_with_their_letters() {
    let mut bench = Bench::new().await;
    let ids = bury(&bench, 6, &message("x")).await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    bench.reserve(&ids[..3]).await;
    let left = [(ids[0], DeadLetterAction::Leave(HOUR)), (ids[1], DeadLetterAction::Leave(HOUR))];
    bench.backend.settle(&tp, &group, Some("somebody"), &left).await.expect("left");
    let claims = bench.keys.dead_claims(&tp, &group);
    assert_eq!(bench.trim_dead(DeadLetterRetention::length(1)).await, TrimmedLetters::new(0, 4, 1));
    assert_eq!(bench.int(&format!("HLEN {claims}")).await, 1, "the claim that holds");
    // A claim for ten seconds that holds for a year, since the clock went back.
    let until = ids[5].ms + 365 * 86_400_000;
    bench.raw_hset(&claims, ids[2], &format!("{until} 10000 somebody")).await;
    assert_eq!(bench.trim_dead(DeadLetterRetention::length(1)).await, TrimmedLetters::new(0, 1, 0));
    assert_eq!(bench.int(&format!("EXISTS {claims}")).await, 0);
}

#[tokio::test]
async fn a_full_server_does_not_refuse_a_trim() {
    let mut bench = Bench::private(&[]).await;
    let ids = bury(&bench, 9, &message("x")).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    assert_eq!(bench.trim_dead(DeadLetterRetention::length(5)).await.excess, 4);
    bench.cmd("CONFIG SET maxmemory 0").await;
    bench.reserve(&ids[4..5]).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    assert_eq!(bench.trim_dead(DeadLetterRetention::length(1)).await, TrimmedLetters::new(0, 3, 1));
}

#[tokio::test]
async fn a_foreign_type_is_told_and_nothing_dropped() {
    let mut bench = Bench::new().await;
    bury(&bench, 3, &message("x")).await;
    let (dlq, claims) = (bench.dlq(), bench.keys.dead_claims(&bench.tp, &bench.group));
    bench.cmd(&format!("SET {claims} theirs")).await;
    let one = DeadLetterRetention::length(1);
    let lease = bench.lease.clone();
    for by in [TrimBy::Owner(&lease), TrimBy::Operator, TrimBy::DryRun] {
        let refused = bench.backend.trim(&bench.tp, &bench.group, one, by).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::WrongType, "{by:?}");
    }
    assert_eq!(bench.letters().await, 3);
    bench.cmd(&format!("DEL {claims} {dlq}")).await;
    bench.cmd(&format!("SET {dlq} theirs")).await;
    for by in [TrimBy::Owner(&lease), TrimBy::Operator, TrimBy::DryRun] {
        let refused = bench.backend.trim(&bench.tp, &bench.group, one, by).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::WrongType, "{by:?}");
        assert!(refused.to_string().contains(dlq.as_str()), "{refused}");
    }
}

#[tokio::test]
async fn a_stored_retention_that_makes_no_sense_is_told() {
    let mut bench = Bench::new().await;
    let meta = bench.keys.topic_meta(&bench.spec.name);
    for (stored, kind) in [
        ("age:0", ErrorKind::Protocol),
        ("age:1,age:1", ErrorKind::Protocol),
        ("bytes:9", ErrorKind::Unsupported),
    ] {
        bench.cmd(&format!("HSET {meta} deadLetterRetention {stored}")).await;
        let refused = bench.backend.topic(&bench.spec.name).await.expect_err("makes no sense");
        assert_eq!(refused.kind(), kind, "{stored}");
        assert!(refused.to_string().contains("orders"), "{refused}");
    }
    bench.cmd(&format!("HDEL {meta} deadLetterRetention")).await;
    let month = DeadLetterRetention::age(30 * 24 * HOUR);
    let change = TopicChange::new().dead_letter_retention(month);
    let altered = bench.backend.alter_topic(&bench.spec.name, &change).await.expect("altered");
    assert_eq!(altered, bench.spec.clone().with_dead_letter_retention(month));
    let restored = TopicSpec::clone(&altered);
    assert_eq!(bench.backend.restore_topic(&restored).await.expect("there"), altered);
    bench.cmd(&format!("DEL {meta}")).await;
    assert_eq!(bench.backend.restore_topic(&restored).await.expect("restored"), altered, "with its settings");
}
