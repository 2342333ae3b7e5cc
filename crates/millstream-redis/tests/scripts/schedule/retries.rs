//! The script `settle_retries`, with items as other programs leave them.

use std::time::Duration;

use millstream_core::dead_letters::DeadLetters;
use millstream_core::history::History;
use millstream_core::inspect::{Inspect, Range};
use millstream_core::log::Settlement;
use millstream_core::schedule::{Due, RetryAction, Schedule};
use millstream_core::{ErrorKind, MessageId, Reason};

use crate::server::{Bench, fetch};

const HOUR: Due = Due::In(Duration::from_secs(3_600));

/// So many messages that wait for an hour.
async fn parked(bench: &mut Bench, count: usize, history: &str) -> Vec<MessageId> {
    let ids = bench.append_many(count).await;
    let (mut reader, mut entries) = (bench.reader().await, Vec::new());
    while entries.len() < count {
        entries.extend(fetch(&mut reader, count).await.entries);
    }
    let batch = entries.iter().map(|entry| {
        let (error, history) = ("boom".to_owned(), History::parse(history));
        let origin = entry.receipt.id;
        (entry.receipt, Settlement::Retry { due: HOUR, attempt: 4, origin, error, history, wait: None })
    });
    assert_eq!(bench.settle(&batch.collect::<Vec<_>>()).await, (count, 0));
    ids
}

#[tokio::test]
async fn a_killed_retry_is_stored_as_a_dead_letter_that_was_never_parked() {
    let mut bench = Bench::new().await;
    let ids = parked(&mut bench, 3, "5 1 first").await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    // The second has lost its item, and that of the third is damaged.
    let items = bench.keys.retry_items(&tp, &group);
    bench.cmd(&format!("HDEL {items} {}", ids[1])).await;
    bench.cmd(&format!("HSET {items} {} nonsense", ids[2])).await;
    let killed = bench.backend.settle_retries(&tp, &group, &ids, RetryAction::Kill).await.expect("killed");
    assert_eq!(killed, [true; 3]);
    let letters = bench.backend.list(&tp, &group, Range::ALL, 10).await.expect("listed").items;
    let told: Vec<_> = letters.iter().map(|it| (it.origin, it.reason.clone(), it.attempts)).collect();
    assert_eq!(told, [(ids[0], Reason::Killed, 3), (ids[1], Reason::Orphan, 0), (ids[2], Reason::Orphan, 0)]);
    assert_eq!((letters[0].error.as_str(), letters[0].history.failures().len()), ("boom", 2));
    let left = bench.backend.parked(&tp, &group, None, 10).await.expect("listed");
    assert!(left.items.is_empty(), "{left:?}");
    let again = bench.backend.settle_retries(&tp, &group, &ids, RetryAction::Kill).await.expect("asked");
    assert_eq!(again, [false; 3]);
}

/// More than one call of the script has room for, in ids and in bytes.
#[tokio::test]
async fn many_are_settled_in_several_calls() {
    let mut bench = Bench::new().await;
    let ids = parked(&mut bench, 260, "").await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let items = bench.keys.retry_items(&tp, &group);
    // Three large items, which are no items of ours and yet are read: each fills a call.
    for id in &ids[..3] {
        bench.cmd(&format!("HSET {items} {id} {}", "x".repeat(1_100_000))).await;
    }
    let killed = bench.backend.settle_retries(&tp, &group, &ids[..60], RetryAction::Kill).await;
    assert_eq!(killed.expect("killed"), vec![true; 60]);
    let released =
        bench.backend.settle_retries(&tp, &group, &ids, RetryAction::Release).await.expect("released");
    assert_eq!((released[..60].to_vec(), released[60..].to_vec()), (vec![false; 60], vec![true; 200]));
    assert_eq!(bench.backend.promote(&bench.lease, 200).await.expect("promoted").moved, 200);
}

/// One that is due keeps its place; the others come behind it.
#[tokio::test]
async fn a_release_brings_nothing_forward_that_is_due() {
    let mut bench = Bench::new().await;
    let ids = parked(&mut bench, 3, "").await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let due = bench.keys.retry_due(&tp, &group);
    bench.cmd(&format!("ZADD {due} 5 {}", ids[2])).await;
    bench.backend.settle_retries(&tp, &group, &ids, RetryAction::Release).await.expect("released");
    let page = bench.backend.parked(&tp, &group, None, 10).await.expect("listed").items;
    assert_eq!((page[0].origin, page[0].due.as_millis()), (ids[2], 5));
    assert!(page[1].due.as_millis() > 1_600_000_000_000, "{page:?}");
}

#[tokio::test]
async fn a_key_of_the_wrong_type_changes_nothing() {
    let mut bench = Bench::new().await;
    let ids = parked(&mut bench, 2, "").await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let dlq = bench.keys.dead_letters(&tp, &group);
    bench.cmd(&format!("SET {dlq} text")).await;
    for action in [RetryAction::Kill, RetryAction::Release] {
        let refused =
            bench.backend.settle_retries(&tp, &group, &ids, action).await.expect_err("a wrong type");
        assert_eq!(refused.kind(), ErrorKind::WrongType, "{action:?}");
    }
    bench.cmd(&format!("DEL {dlq}")).await;
    let page = bench.backend.parked(&tp, &group, None, 10).await.expect("listed").items;
    assert_eq!(page.len(), 2);
    assert!(page.iter().all(|it| !it.body.is_empty()), "{page:?}");
}
