//! What is noted of packs: nothing of it stays when they are pending no more, and a pack that is settled as a whole leaves.

use std::time::Duration;

use millstream_core::Continuity;
use millstream_core::audit::{Audit, Check, Fault, Finding, Scope};
use millstream_core::catalog::Start;
use millstream_core::log::{Fetched, Log, Note, Receipt, Settlement};
use millstream_core::shared::{Shared, SharedMember};
use millstream_core::topic::{Partition, Retention};
use redis::Value;

use super::packed::{packed, pending, receipts};
use crate::server::{Bench, TTL, fetch, ids};

/// The owner claims orphans, as it does when it has been granted the lease.
async fn adopt(bench: &Bench) {
    bench.backend.adopt(&bench.lease, TTL, 100, &Continuity::assured()).await.expect("adopted");
}

/// Numbers of packs with bits, and of notes.
async fn noted(bench: &mut Bench) -> (i64, i64) {
    let (settled, held) = (bench.keys.settled(&bench.tp, &bench.group), bench.held());
    (bench.int(&format!("HLEN {settled}")).await, bench.int(&format!("HLEN {held}")).await)
}

fn hold() -> Settlement {
    Settlement::Hold(Note { attempt: 2, error: "not yet".to_owned(), ..Note::default() })
}

/// Reads everything that a new owner finds. A page can be empty where packs are settled.
async fn everything(bench: &Bench) -> Fetched {
    let (mut reader, mut all, mut empty) = (bench.reader().await, Fetched::default(), 0);
    while empty < 2 {
        let some = fetch(&mut reader, 100).await;
        empty = if some.entries.is_empty() && some.ghosts.is_empty() { empty + 1 } else { 0 };
        all.entries.extend(some.entries);
        all.ghosts.extend(some.ghosts);
    }
    all
}

/// Appends a pack of ten messages and reads it; one is settled, and another one has a note.
async fn begun(bench: &Bench) -> Vec<Receipt> {
    bench.append_many(10).await;
    let read = receipts(&everything(bench).await.entries);
    let all = read[read.len() - 10..].to_vec();
    assert_eq!(bench.settle(&[(all[0], Settlement::Ack), (all[5], hold())]).await, (2, 0));
    all
}

#[tokio::test]
async fn nothing_is_kept_of_a_pack_that_somebody_else_has_acknowledged() {
    let mut bench = packed().await;
    let gone = begun(&bench).await;
    let stays = begun(&bench).await;
    assert_eq!(noted(&mut bench).await, (2, 2));
    let (log, group) = (bench.log(), bench.group.clone());
    assert_eq!(bench.int(&format!("XACK {log} {group} {}", gone[9].id)).await, 1);
    adopt(&bench).await;
    assert_eq!(noted(&mut bench).await, (1, 1), "of the other one");
    bench.lease = bench.take_over().await;
    let again = everything(&bench).await.entries;
    assert_eq!(receipts(&again), stays[1..]);
    assert!(again[4].note.is_some(), "its note was kept");
}

#[tokio::test]
async fn nothing_is_kept_of_packs_that_left_the_log_while_they_were_pending() {
    let mut bench = packed().await;
    let deleted = begun(&bench).await;
    begun(&bench).await;
    let log = bench.log();
    assert_eq!(bench.int(&format!("XDEL {log} {}", deleted[9].id)).await, 1);
    bench.append_many(2).await;
    bench.backend.trim(&bench.lease, Retention::Length(2)).await.expect("trimmed");
    let ghosts = everything(&bench).await.ghosts;
    assert_eq!(ghosts.len(), 2);
    let acks: Vec<_> = ghosts.iter().map(|ghost| (*ghost, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&acks).await, (2, 0));
    adopt(&bench).await;
    assert_eq!(noted(&mut bench).await, (0, 0));
}

#[tokio::test]
async fn nothing_is_kept_of_a_deleted_pack_that_a_consumer_extends_or_claims() {
    let mut bench = packed().await;
    let member = |bench: &Bench, name: &str| {
        SharedMember::new(bench.spec.name.clone(), bench.group.clone(), name.parse().expect("a name"))
    };
    let (a, b) = (member(&bench, "a"), member(&bench, "b"));
    let claim = async |bench: &Bench, by: &SharedMember| {
        let continuity = Continuity::assured();
        let claimed = bench.backend.claim(by, Partition(0), &[], Duration::ZERO, 100, &continuity);
        claimed.await.expect("claimed")
    };
    for extends in [true, false] {
        bench.append_many(10).await;
        let mut reader = bench.backend.shared_reader(&a, &[Partition(0)]).await.expect("a reader");
        let mut read = Vec::new();
        while read.is_empty() {
            let fetched = reader.fetch(10, Duration::ZERO).await.expect("fetched");
            read.extend(fetched.iter().flat_map(|(_, fetched)| receipts(&fetched.entries)));
        }
        let batch = [(read[0], Settlement::Ack), (read[5], hold())];
        let settled = bench.backend.settle_shared(&a, Partition(0), &batch).await.expect("settled");
        assert_eq!(settled.applied, 2);
        let log = bench.log();
        assert_eq!(bench.int(&format!("XDEL {log} {}", read[9].id)).await, 1);
        if extends {
            let lost = bench.backend.extend(&a, Partition(0), &read[1..]).await.expect("extended");
            assert_eq!(lost, read[1..]);
        }
        claim(&bench, &b).await;
        assert_eq!(pending(&mut bench).await, 0);
        claim(&bench, &b).await;
        assert_eq!(noted(&mut bench).await, (0, 0), "extended: {extends}");
    }
}

/// Another program has deleted the list of packs, and a producer begins it anew.
#[tokio::test]
async fn what_is_noted_stays_if_nobody_knows_the_packs_any_more() {
    let mut bench = packed().await;
    let packs = bench.keys.packs(&bench.tp);
    let pending = begun(&bench).await;
    let unread = bench.append_many(10).await;
    bench.cmd(&format!("DEL {packs}")).await;
    bench.append_many(10).await;
    assert_eq!(bench.int(&format!("XLEN {packs}")).await, 1);
    // Bits of a pack that is unread, as a group has them that begins inside of it.
    let settled = bench.keys.settled(&bench.tp, &bench.group);
    bench.cmd(&format!("HSET {settled} {} \x01", unread[9])).await;
    adopt(&bench).await;
    assert_eq!(noted(&mut bench).await, (2, 1));
    let scope = Scope::Group(bench.tp.clone(), bench.group.clone());
    let audited = bench.backend.audit(&scope, Check::Notes, None).await.expect("audited");
    assert_eq!((audited.looked_at, audited.findings), (1, vec![]));
    let stray = Finding::new(Fault::NoteStray, &scope, format!("log:{}", pending[5].id), "not pending");
    assert!(!bench.backend.repair(&stray).await.expect("looked at"));
    bench.lease = bench.take_over().await;
    let again = everything(&bench).await.entries;
    assert_eq!(receipts(&again[..9]), pending[1..]);
    assert!(again[4].note.is_some(), "its note was kept");
    assert_eq!(again[9].receipt.id, unread[1], "what was noted as settled is not read");
}

/// The bits of the pack in which a group begins are there before it is read.
#[tokio::test]
async fn what_is_noted_of_a_pack_that_is_unread_stays() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    bench.backend.seek(&bench.lease, Start::After(appended[3])).await.expect("moved");
    bench.lease = bench.take_over().await;
    adopt(&bench).await;
    assert_eq!(noted(&mut bench).await, (1, 0));
    assert_eq!(ids(&fetch(&mut bench.reader().await, 100).await), appended[4..]);
    adopt(&bench).await;
    assert_eq!(noted(&mut bench).await, (1, 0));
}

#[tokio::test]
async fn what_many_packs_have_left_behind_is_dropped_in_portions() {
    let mut bench = packed().await;
    let settled = bench.keys.settled(&bench.tp, &bench.group);
    let held = bench.held();
    let last = bench.append_many(10).await[9];
    assert_eq!(fetch(&mut bench.reader().await, 100).await.entries.len(), 10);
    for n in 0..1_000 {
        bench.cmd(&format!("HSET {settled} 5-{n} x")).await;
        bench.cmd(&format!("HSET {held} log:5-{n} x")).await;
    }
    bench.cmd(&format!("HSET {settled} {last} \x01")).await;
    adopt(&bench).await;
    let (bits, notes) = noted(&mut bench).await;
    assert!(bits < 50 && notes < 50, "{bits} and {notes} of 1,000 are left");
    assert_eq!(bench.int(&format!("HEXISTS {settled} {last}")).await, 1);
}

/// Sets all bits of a pack of ten messages, as nobody does who settles it.
async fn settle_all_without_ack(bench: &mut Bench, last: impl std::fmt::Display) {
    let settled = bench.keys.settled(&bench.tp, &bench.group);
    let mut set = redis::cmd("HSET");
    set.arg(settled.as_str()).arg(last.to_string()).arg(&[0xff_u8, 0x03][..]);
    let set: Value = set.query_async(&mut bench.raw).await.expect("set");
    assert_eq!(set, Value::Int(1));
}

#[tokio::test]
async fn an_owner_acknowledges_a_pack_of_which_everything_is_settled() {
    let mut bench = packed().await;
    let first = bench.append_many(10).await;
    let second = bench.append_many(10).await;
    assert_eq!(everything(&bench).await.entries.len(), 20);
    settle_all_without_ack(&mut bench, first[9]).await;
    bench.lease = bench.take_over().await;
    assert_eq!(ids(&everything(&bench).await), second);
    assert_eq!((pending(&mut bench).await, noted(&mut bench).await), (1, (0, 0)));
}

/// The sweep does the same where nobody reads the pack again.
#[tokio::test]
async fn a_pack_of_which_everything_is_settled_is_acknowledged_while_its_owner_lives() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    assert_eq!(fetch(&mut bench.reader().await, 100).await.entries.len(), 10);
    settle_all_without_ack(&mut bench, appended[9]).await;
    let old = bench.lease.clone();
    bench.lease = bench.take_over().await;
    bench.backend.adopt(&old, TTL, 100, &Continuity::assured()).await.expect_err("the fence holds");
    assert_eq!(pending(&mut bench).await, 1);
    adopt(&bench).await;
    assert_eq!((pending(&mut bench).await, noted(&mut bench).await), (0, (0, 0)));
}

#[tokio::test]
async fn a_consumer_acknowledges_a_pack_of_which_everything_is_settled() {
    for claims in [false, true] {
        let mut bench = packed().await;
        let first = bench.append_many(10).await;
        let second = bench.append_many(10).await;
        let member =
            SharedMember::new(bench.spec.name.clone(), bench.group.clone(), "a".parse().expect("a name"));
        let found = async |bench: &Bench, member: &SharedMember| {
            let mut reader = bench.backend.shared_reader(member, &[Partition(0)]).await.expect("a reader");
            let (mut found, mut empty) = (Vec::new(), 0);
            while empty < 2 {
                let fetched = reader.fetch(100, Duration::ZERO).await.expect("fetched");
                let some: Vec<_> = fetched.iter().flat_map(|(_, fetched)| ids(fetched)).collect();
                empty = if some.is_empty() { empty + 1 } else { 0 };
                found.extend(some);
            }
            found
        };
        assert_eq!(found(&bench, &member).await.len(), 20);
        settle_all_without_ack(&mut bench, first[9]).await;
        let left = if claims {
            let other =
                SharedMember::new(bench.spec.name.clone(), bench.group.clone(), "b".parse().expect("a name"));
            let continuity = Continuity::assured();
            let claim = bench.backend.claim(&other, Partition(0), &[], Duration::ZERO, 100, &continuity);
            ids(&claim.await.expect("claimed").abandoned)
        } else {
            found(&bench, &member).await
        };
        assert_eq!(left, second, "claims: {claims}");
        assert_eq!((pending(&mut bench).await, noted(&mut bench).await), (1, (0, 0)), "claims: {claims}");
    }
}
