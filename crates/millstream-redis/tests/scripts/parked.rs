//! The item of a parked retry: nothing in it twice, and what comes back is what went in.

use std::time::Duration;

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
            (receipt, Settlement::Retry { due, attempt: failed + 1, origin, error, history })
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
