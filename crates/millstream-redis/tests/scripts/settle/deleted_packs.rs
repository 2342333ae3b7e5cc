//! Packs that leave a log while somebody has not settled them: deleted by hand from the middle of it, or dropped.

use std::time::Duration;

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
        pins.into_iter().map(|pin| (pin.group.to_string(), pin.entries, pin.exact)).collect::<Vec<_>>()
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
