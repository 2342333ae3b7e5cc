//! Packs that leave a log while somebody has not settled them: deleted by hand from the middle of it, or dropped.

use std::time::Duration;

use millstream_core::audit::{Audit, Check, Finding, Scope};
use millstream_core::catalog::{Catalog, PartitionStats, Start};
use millstream_core::inspect::{Inspect, Structure};
use millstream_core::log::{Log, Lost, Settlement, Trimmed};
use millstream_core::topic::Retention;

use super::packed::{packed, receipts};
use crate::server::{Bench, fetch};

async fn stats(bench: &Bench) -> PartitionStats {
    bench.backend.stats(&bench.spec, &bench.group).await.expect("read").remove(0)
}

async fn delete(bench: &mut Bench, id: impl std::fmt::Display) {
    let log = bench.log();
    assert_eq!(bench.int(&format!("XDEL {log} {id}")).await, 1);
}

#[tokio::test]
async fn messages_of_a_pack_that_somebody_deletes_count_no_more() {
    let mut bench = packed().await;
    let mut packs = Vec::new();
    for _ in 0..4 {
        packs.push(bench.append_many(10).await);
        bench.append_many(1).await;
    }
    delete(&mut bench, packs[1][9]).await;
    delete(&mut bench, packs[3][9]).await;
    let all = stats(&bench).await;
    assert_eq!((all.length, all.lag, all.appended), (24, Some(24), Some(44)));

    let mut reader = bench.reader().await;
    let mut read = 0;
    while read < 11 {
        read += fetch(&mut reader, 1).await.entries.len();
    }
    assert_eq!(stats(&bench).await.lag, Some(13));
    let count = async |start| bench.backend.count(&bench.tp, start, None, 1_000).await.expect("counted");
    assert_eq!(count(Start::Earliest).await, 24);
    assert_eq!(count(Start::After(packs[0][4])).await, 19);
    assert_eq!(count(Start::After(packs[1][4])).await, 13, "inside of a deleted one");
    // At the beginning, they are as if they had been trimmed.
    delete(&mut bench, packs[0][9]).await;
    let fewer = stats(&bench).await;
    assert_eq!((fewer.length, fewer.lag), (14, Some(13)));
}

/// Whether a pack exists is only known from its body, so not all of a long log can be looked at.
#[tokio::test]
async fn what_too_many_packs_may_have_lost_is_not_known_until_the_log_is_trimmed() {
    let mut bench = packed().await;
    let mut packs = Vec::new();
    for _ in 0..503 {
        packs.push(bench.append_many(2).await);
    }
    let survey =
        async |bench: &Bench| bench.backend.survey(&bench.spec, &bench.group).await.expect("read").remove(0);
    let whole = survey(&bench).await;
    assert_eq!((whole.length(), whole.stats.lag), (Some(1_006), Some(1_006)));
    delete(&mut bench, packs[501][1]).await;
    let unknown = survey(&bench).await;
    assert_eq!((unknown.length(), unknown.stats.lag, unknown.stats.lag_at_least), (None, None, 502));
    assert_eq!((unknown.pending(), unknown.unreadable.len()), (Some(0), 0), "the rest is known: {unknown:?}");
    // A group that has read beyond what was deleted misses nothing.
    let past = "past".parse().expect("a name");
    bench.backend.create_group(&bench.spec, &past, Start::After(packs[501][1])).await.expect("created");
    let surveys = bench.backend.survey(&bench.spec, &past).await.expect("read");
    assert_eq!((surveys[0].length(), surveys[0].stats.lag), (None, Some(2)));
    assert_eq!(stats(&bench).await.length, 1_005, "the most");

    bench.backend.trim(&bench.lease, Retention::Length(40)).await.expect("trimmed");
    let known = survey(&bench).await;
    let length = known.length().expect("known");
    assert!((38..=42).contains(&length), "{length}");
    assert_eq!(known.stats.lag, Some(length));
}

#[tokio::test]
async fn as_many_messages_are_kept_where_somebody_has_deleted_a_pack() {
    let mut bench = packed().await;
    let mut packs = Vec::new();
    for _ in 0..5 {
        packs.push(bench.append_many(10).await);
    }
    delete(&mut bench, packs[3][9]).await;
    let trimmed = bench.backend.trim(&bench.lease, Retention::Length(25)).await.expect("trimmed");
    assert_eq!((trimmed.dropped, stats(&bench).await.length), (10, 30));
}

#[tokio::test]
async fn what_a_group_has_settled_of_a_pack_is_not_lost_with_it() {
    let bench = packed().await;
    let appended = bench.append_many(10).await;
    bench.append_many(10).await;
    let inside = "inside".parse().expect("a name");
    bench.backend.create_group(&bench.spec, &inside, Start::After(appended[3])).await.expect("created");
    let mut reader = bench.reader().await;
    let mut read = Vec::new();
    while read.len() < 20 {
        read.extend(receipts(&fetch(&mut reader, 100).await.entries));
    }
    let some: Vec<_> = read[5..12].iter().map(|one| (*one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&some).await, (7, 0));
    tokio::time::sleep(Duration::from_millis(3)).await;
    let age = Retention::Age(Duration::from_millis(1));
    let Trimmed { dropped, lost, .. } = bench.backend.trim(&bench.lease, age).await.expect("trimmed");
    assert_eq!(dropped, 20);
    let expected = [
        Lost { group: bench.group.clone(), unread: 0, pending: 13 },
        Lost { group: inside, unread: 16, pending: 0 },
    ];
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert!(expected.iter().all(|one| lost.contains(one)), "{lost:?}");
}

#[tokio::test]
async fn what_a_group_keeps_is_counted_in_messages() {
    let mut bench = packed().await;
    let slow = "slow".parse().expect("a name");
    bench.backend.create_group(&bench.spec, &slow, Start::Earliest).await.expect("created");
    for _ in 0..3 {
        bench.append_many(10).await;
        bench.append_many(1).await;
    }
    let kept = async |bench: &Bench| {
        let pins = bench.backend.pins(&bench.spec).await.expect("read");
        pins.into_iter().map(|pin| (pin.group.to_string(), pin.messages, pin.exact)).collect::<Vec<_>>()
    };
    let mut reader = bench.reader().await;
    let mut read = Vec::new();
    while read.len() < 22 {
        read.extend(receipts(&fetch(&mut reader, 1).await.entries));
    }
    let acks: Vec<_> = read.iter().map(|one| (*one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&acks).await, (22, 0));
    assert_eq!(kept(&bench).await, [("slow".to_owned(), 22, true)], "the rest is kept for both");
    delete(&mut bench, read[20].id).await;
    assert_eq!(kept(&bench).await, [("slow".to_owned(), 12, true)]);

    let of_log = bench.backend.usage(std::slice::from_ref(&bench.tp), &[]).await.expect("read");
    let items: u64 = of_log.iter().filter(|it| it.structure == Structure::Log).map(|it| it.items).sum();
    assert_eq!(items, 23);
}

/// Returns the losses that a check finds, and those that are recorded after the repair: unread, pending, logs.
async fn losses(bench: &Bench, check: Check) -> [Vec<(u64, u64, u64)>; 2] {
    let scope = Scope::Group(bench.tp.clone(), bench.group.clone());
    let of = |findings: &[Finding]| {
        findings.iter().filter_map(|it| it.loss).map(|it| (it.unread, it.pending, it.logs)).collect()
    };
    let found = bench.backend.audit(&scope, check, None).await.expect("audited").findings;
    for finding in &found {
        assert!(bench.backend.repair(finding).await.expect("repaired"), "{finding}");
    }
    let recorded = bench.backend.audit(&scope, Check::Losses, None).await.expect("audited").findings;
    [of(&found), of(&recorded)]
}

#[tokio::test]
async fn unread_packs_that_are_gone_are_found_and_counted_in_messages() {
    let mut bench = packed().await;
    let mut packs = Vec::new();
    for _ in 0..6 {
        packs.push(bench.append_many(10).await);
    }
    let mut reader = bench.reader().await;
    let first = receipts(&fetch(&mut reader, 1).await.entries);
    assert_eq!(first.len(), 1, "one pack was read");
    assert_eq!(losses(&bench, Check::Position).await, [vec![], vec![]]);
    // Between others.
    delete(&mut bench, packs[2][9]).await;
    assert_eq!(losses(&bench, Check::Position).await, [vec![(10, 0, 0)], vec![(10, 0, 0)]]);
    assert_eq!(losses(&bench, Check::Position).await, [vec![], vec![(10, 0, 0)]], "it is recorded");
    delete(&mut bench, packs[4][9]).await;
    assert_eq!(losses(&bench, Check::Position).await, [vec![(10, 0, 0)], vec![(20, 0, 0)]]);
    // From the beginning, beyond the position.
    let log = bench.log();
    bench.cmd(&format!("XTRIM {log} MAXLEN 1")).await;
    assert_eq!(losses(&bench, Check::Position).await, [vec![(20, 0, 0)], vec![(40, 0, 0)]]);
    bench.cmd(&format!("XTRIM {log} MAXLEN 0")).await;
    assert_eq!(losses(&bench, Check::Position).await, [vec![(10, 0, 0)], vec![(50, 0, 0)]]);
}

#[tokio::test]
async fn a_pack_in_which_a_group_begins_is_lost_from_there_on() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    bench.append_many(10).await;
    let log = bench.log();
    bench.cmd(&format!("XREADGROUP GROUP billing owner COUNT 1 STREAMS {log} >")).await;
    let started = bench.cmd(&format!("XGROUP SETID {log} billing {} ENTRIESREAD 0", appended[3])).await;
    assert_eq!(started, redis::Value::Okay);
    delete(&mut bench, appended[9]).await;
    assert_eq!(losses(&bench, Check::Position).await[0], [(6, 0, 0)]);
}

#[tokio::test]
async fn a_pending_pack_that_is_gone_is_a_loss_of_its_open_messages() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    let all = receipts(&fetch(&mut bench.reader().await, 100).await.entries);
    let some: Vec<_> = all[..3].iter().map(|one| (*one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&some).await, (3, 0));
    delete(&mut bench, appended[9]).await;
    assert_eq!(losses(&bench, Check::Pending).await[1], [(0, 7, 0)]);
}

/// The frontier is a message inside of the log's first pack, whose id is that of its last message.
#[tokio::test]
async fn a_group_that_is_restored_inside_of_the_first_pack_has_lost_nothing() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    let log = bench.log();
    for frontier in [0, 4, 9] {
        bench.cmd(&format!("XGROUP DESTROY {log} billing")).await;
        let after = appended[frontier];
        assert!(bench.backend.restore_group(&bench.tp, &bench.group, after).await.expect("restored"));
        assert_eq!(losses(&bench, Check::Position).await, [vec![], vec![]], "{frontier}");
    }
    // A log that begins above is a new one.
    bench.cmd(&format!("DEL {log}")).await;
    bench.append_many(10).await;
    assert!(bench.backend.restore_group(&bench.tp, &bench.group, appended[4]).await.expect("restored"));
    assert_eq!(losses(&bench, Check::Position).await[1], [(0, 0, 1)]);
}

#[tokio::test]
async fn a_trim_counts_no_message_of_a_pack_that_somebody_has_deleted() {
    for retention in [Retention::Consumed, Retention::Age(Duration::from_millis(1))] {
        let mut bench = packed().await;
        let mut packs = Vec::new();
        for _ in 0..5 {
            packs.push(bench.append_many(10).await);
        }
        let idle = "idle".parse().expect("a name");
        let start = Start::After(packs[4][9]);
        bench.backend.create_group(&bench.spec, &idle, start).await.expect("created");
        let mut reader = bench.reader().await;
        let mut read = Vec::new();
        while read.len() < 30 {
            read.extend(receipts(&fetch(&mut reader, 1).await.entries));
        }
        let acks: Vec<_> = read.iter().map(|one| (*one, Settlement::Ack)).collect();
        assert_eq!(bench.settle(&acks).await, (30, 0));
        delete(&mut bench, packs[1][9]).await;
        delete(&mut bench, packs[3][9]).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
        let Trimmed { dropped, lost, .. } =
            bench.backend.trim(&bench.lease, retention).await.expect("trimmed");
        if retention == Retention::Consumed {
            assert_eq!((dropped, lost), (20, vec![]));
        } else {
            let lost_here = Lost { group: bench.group.clone(), unread: 10, pending: 0 };
            assert_eq!((dropped, lost), (30, vec![lost_here]));
        }
    }
}
