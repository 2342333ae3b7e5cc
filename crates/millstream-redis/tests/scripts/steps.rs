//! Steps beside what somebody else wrote at their key.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::cancels::WorkPlace;
use millstream_core::error::ErrorKind;
use millstream_core::log::{Log, ProgressRight};
use millstream_core::steps::{Signalled, StepKind, StepRecord, Steps, WorkId};
use millstream_core::timestamp::Timestamp;

use crate::server::{Bench, fetch, retry};

#[tokio::test]
async fn what_somebody_else_wrote_is_an_error_that_names_it_and_changes_nothing() {
    let mut bench = Bench::new().await;
    let ids = bench.append_many(2).await;
    let mut reader = bench.reader().await;
    let entries = fetch(&mut reader, 2).await.entries;
    let place = WorkPlace::Group(bench.tp.clone(), bench.group.clone());
    let (key, id) = (bench.keys.steps(&place), WorkId::new(place, ids[0]));
    let right = ProgressRight::Owner(bench.lease.clone());
    let record = StepRecord::new(StepKind::Done, Timestamp::from_millis(1), "a", "1");
    // Bytes that are no steps: of this message alone.
    bench.cmd(&format!("HSET {key} {} nonsense", ids[0])).await;
    let error = bench.backend.read(&id).await.expect_err("no steps");
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    let other = WorkId { id: ids[1].to_string(), ..id.clone() };
    bench.backend.store(&right, &other.id, std::slice::from_ref(&record)).await.expect("stored");
    assert_eq!(bench.backend.read(&other).await.expect("steps").1, std::slice::from_ref(&record));
    // Those of a later version are passed over, and stay.
    let mut later = redis::cmd("HSET");
    later.arg(key.as_str()).arg(ids[0].to_string()).arg("z 1 1 1\nab");
    later.query_async::<()>(&mut bench.raw).await.expect("stored");
    assert_eq!(bench.backend.read(&id).await.expect("steps").1, []);
    bench.backend.store(&right, &id.id, std::slice::from_ref(&record)).await.expect("stored");
    assert_eq!(bench.backend.read(&id).await.expect("steps").1, std::slice::from_ref(&record));
    // Another type.
    bench.cmd(&format!("SET {key} nonsense")).await;
    let error = bench.backend.store(&right, &id.id, &[record]).await.expect_err("no hash");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(bench.backend.signal(&id, "go", Bytes::new()).await.is_err());
    let parks = [(entries[0].receipt, retry(Duration::ZERO, 2, ids[0]))];
    let error = bench.backend.settle(&bench.lease, &parks).await.expect_err("no hash");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    bench.cmd(&format!("DEL {key}")).await;
    assert_eq!(bench.settle(&parks).await, (1, 0), "it is pending still");
    assert_eq!(bench.backend.signal(&id, "go", Bytes::new()).await.expect("sent"), Signalled::Stored);
}
