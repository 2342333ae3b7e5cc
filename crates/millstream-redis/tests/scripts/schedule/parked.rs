//! The item of a parked retry: nothing in it twice, and what comes back is what went in.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::envelope::Limits;
use millstream_core::history::History;
use millstream_core::log::{Receipt, Settlement};
use millstream_core::schedule::{Due, Schedule};
use millstream_core::wire;

use crate::server::{Bench, fetch};

/// An error that the history ends with is parked once.
#[tokio::test]
async fn whatever_the_error_is_it_comes_back_as_it_was_and_is_parked_once() {
    let mut bench = Bench::new().await;
    let errors = ["boom", "", "=", "==", "=x", "two\nlines", "tail ", &"é".repeat(200), "7 1 boom"];
    let appended = bench.append_many(errors.len()).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 20).await;
    for past in ["", "5 1 =\n9 2 two lines"] {
        let history = History::parse(past);
        let failed = history.failures().len() as u32 + 1;
        let entries = fetch(&mut bench.reader().await, 20).await.entries;
        let receipts: Vec<Receipt> = entries.iter().map(|entry| entry.receipt).collect();
        let batch = appended.iter().zip(errors).zip(receipts).map(|((origin, error), receipt)| {
            let (due, error, origin) = (Due::NOW, error.to_owned(), *origin);
            let history = history.clone();
            (receipt, Settlement::Retry { due, attempt: failed + 1, origin, error, history, wait: None })
        });
        assert_eq!(bench.settle(&batch.collect::<Vec<_>>()).await, (errors.len(), 0));
        let items = bench.keys.retry_items(&bench.tp, &bench.group);
        let item = bench.cmd(&format!("HGET {items} {}", appended[0])).await;
        let item: Vec<u8> = redis::from_redis_value(item).expect("bytes");
        assert_eq!(String::from_utf8_lossy(&item).matches("boom").count(), 1);
        tokio::time::sleep(Duration::from_millis(3)).await;
        let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
        assert_eq!((promoted.moved, promoted.orphans), (errors.len(), 0));
    }
    let mut entries = fetch(&mut bench.reader().await, 20).await.entries;
    entries.sort_by_key(|entry| wire::decode(entry.receipt, &entry.fields, &Limits::default()).origin);
    for ((entry, error), origin) in entries.iter().zip(errors).zip(&appended) {
        let history = wire::decode(entry.receipt, &entry.fields, &Limits::default()).history;
        assert_eq!(history.failures().len(), 3);
        let body = wire::redelivery(4, *origin, error, &history, &[]);
        assert_eq!(entry.fields[..body.len()], body, "{error:?}");
    }
}

/// The writes of a batch are collected: the second settlement of one entry is still counted as stale.
#[tokio::test]
async fn an_entry_that_a_batch_has_twice_is_parked_once() {
    let mut bench = Bench::new().await;
    let ids = bench.append_many(3).await;
    let entries = fetch(&mut bench.reader().await, 3).await.entries;
    let parked = |at: usize, error: &str| {
        let due = Due::In(Duration::from_secs(60));
        (
            entries[at].receipt,
            Settlement::Retry {
                due,
                attempt: 2,
                origin: ids[at],
                error: error.into(),
                history: History::default(),
                wait: None,
            },
        )
    };
    let batch = [parked(0, "a"), parked(1, "b"), parked(1, "c"), parked(2, "d")];
    assert_eq!(bench.settle(&batch).await, (3, 1));
    let items = bench.keys.retry_items(&bench.tp, &bench.group);
    let kept: Vec<u8> =
        redis::from_redis_value(bench.cmd(&format!("HGET {items} {}", ids[1])).await).expect("bytes");
    let kept = String::from_utf8_lossy(&kept);
    assert!(kept.contains(" b") && !kept.contains(" c"), "{kept:?}");
}

/// A move that fails in the middle has moved what stood before it, and that is not moved again.
#[tokio::test]
async fn what_was_moved_before_a_failure_is_not_moved_twice() {
    let mut bench = Bench::new().await;
    let ids = bench.append_many(2).await;
    let entries = fetch(&mut bench.reader().await, 2).await.entries;
    let parked = |at: usize, ms| {
        let due = Due::At(ms);
        (
            entries[at].receipt,
            Settlement::Retry {
                due,
                attempt: 2,
                origin: ids[at],
                error: "x".into(),
                history: History::default(),
                wait: None,
            },
        )
    };
    assert_eq!(
        bench.settle(&[parked(0, Timestamp::from_millis(1)), parked(1, Timestamp::from_millis(2))]).await,
        (2, 0)
    );
    let log = bench.log();
    bench.cmd(&format!("XDEL {log} {}", ids[1])).await;
    // The second has lost its body, in the log too, and the dead letters can take nothing more.
    let (items, dead, again) =
        (bench.keys.retry_items(&bench.tp, &bench.group), bench.dlq(), bench.retry_log());
    bench.cmd(&format!("HDEL {items} {}", ids[1])).await;
    bench.cmd(&format!("XADD {dead} 18446744073709551615-18446744073709551615 a b")).await;
    for _ in 0..3 {
        bench.backend.promote(&bench.lease, 200).await.expect_err("no more ids");
        assert_eq!(bench.int(&format!("XLEN {again}")).await, 1);
    }
}
