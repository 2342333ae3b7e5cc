//! Retention on a real server: what a stopped group keeps, and that the memory comes back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_core::catalog::{Catalog, Start};
use millstream_core::leases::{Lease, Leases};
use millstream_core::log::{Lost, Reader, Settlement};
use millstream_core::name::GroupName;
use millstream_core::topic::Retention;
use millstream_core::{ErrorKind, Log, MessageId};

use crate::server::slow::Slow;
use crate::server::{Bench, fetch, fields, grant};

const ENTRIES: usize = 20_000;
const ROUND: usize = 1_000;

struct Member {
    group: GroupName,
    lease: Lease,
    reader: Box<dyn Reader>,
}

impl Member {
    async fn new(bench: &Bench, group: &str) -> Self {
        let group: GroupName = group.parse().expect("name");
        bench.backend.create_group(&bench.spec, &group, Start::Earliest).await.expect("created");
        let lease = grant(&bench.backend, &bench.tp, &group, "first").await;
        let reader = bench.backend.reader(&lease).await.expect("a reader");
        Self { group, lease, reader }
    }

    /// Reads so many, and settles all but `keep` of them. Gives back what was read.
    async fn work(&mut self, bench: &Bench, count: usize, keep: usize) -> Vec<MessageId> {
        let mut read = Vec::new();
        while read.len() < count {
            let entries = fetch(&mut self.reader, (count - read.len()).min(500)).await.entries;
            assert!(!entries.is_empty(), "{} has read {} of {count}", self.group, read.len());
            read.extend(entries.iter().map(|entry| entry.receipt));
        }
        let batch: Vec<_> = read[..count - keep].iter().map(|it| (*it, Settlement::Ack)).collect();
        bench.backend.settle(&self.lease, &batch).await.expect("settled");
        read.into_iter().map(|receipt| receipt.id).collect()
    }
}

async fn memory(bench: &mut Bench) -> i64 {
    let log = bench.log();
    bench.int(&format!("MEMORY USAGE {log} SAMPLES 0")).await
}

async fn append(bench: &Bench, count: usize) -> Vec<MessageId> {
    let body = fields(&[(b"payload", &[b'x'; 100])]);
    let entry = || millstream_core::log::Append::new(bench.tp.clone(), body.clone());
    let batch: Vec<_> = (0..count).map(|_| entry()).collect();
    bench.backend.append(&batch).await.into_iter().map(|it| it.expect("appended").id).collect()
}

#[tokio::test]
async fn a_stopped_group_keeps_what_it_needs_and_no_more() {
    let mut bench = Bench::private(&[]).await;
    bench.backend.delete_group(&bench.spec.name, &bench.group).await.expect("deleted");
    let mut running = [Member::new(&bench, "a").await, Member::new(&bench, "b").await];
    let mut stopped = Member::new(&bench, "stopped").await;
    // The baseline: everybody has worked, and nothing is left.
    append(&bench, 10).await;
    for member in running.iter_mut().chain([&mut stopped]) {
        member.work(&bench, 10, 0).await;
    }
    let trim = async |bench: &Bench, lease: &Lease| {
        bench.backend.trim(lease, Retention::Consumed).await.expect("trimmed")
    };
    assert_eq!(trim(&bench, &stopped.lease).await.dropped, 10);
    let baseline = memory(&mut bench).await;

    let mut appended = append(&bench, ROUND).await;
    let had = stopped.work(&bench, 500, 100).await;
    bench.backend.release(&stopped.lease).await.expect("released");
    while appended.len() < ENTRIES {
        for member in &mut running {
            member.work(&bench, ROUND, 0).await;
            let trimmed = trim(&bench, &member.lease).await;
            assert_eq!(trimmed.lost, []);
        }
        appended.extend(append(&bench, ROUND).await);
    }
    assert!(memory(&mut bench).await > 10 * baseline);
    let pin = bench.backend.pins(&bench.spec).await.expect("pins").remove(0);
    assert_eq!((pin.group.as_str(), pin.watermark), ("stopped", had[400]));
    assert_eq!(pin.messages, 10_000, "counted up to the limit");
    assert!(pin.bytes > 1_000_000, "{pin:?}");
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 19_600, "all from the oldest that is pending");

    // It comes back, and reads everything: first its pending entries.
    stopped.lease = grant(&bench.backend, &bench.tp, &stopped.group, "second").await;
    stopped.reader = bench.backend.reader(&stopped.lease).await.expect("a reader");
    let read = stopped.work(&bench, ENTRIES - 400, 0).await;
    assert_eq!(read, appended[400..]);
    for member in &mut running {
        member.work(&bench, ROUND, 0).await;
    }
    let load = bench.watch_load().await;
    assert_eq!(trim(&bench, &running[0].lease).await.dropped, 19_600);
    bench.is_never_held_up(&load, Duration::from_millis(5)).await;
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 0);
    let after = memory(&mut bench).await;
    assert!(after <= baseline + 1_000, "{after} bytes, {baseline} before");
    assert_eq!(bench.backend.pins(&bench.spec).await.expect("pins"), []);
}

#[tokio::test]
async fn what_is_lost_is_counted_over_many_calls() {
    let mut bench = Bench::private(&[]).await;
    bench.backend.delete_group(&bench.spec.name, &bench.group).await.expect("deleted");
    let appended = append(&bench, ENTRIES).await;
    let mut fast = Member::new(&bench, "fast").await;
    fast.work(&bench, ENTRIES, 0).await;
    let mut slow = Member::new(&bench, "slow").await;
    slow.work(&bench, 3_000, 700).await;
    bench.cmd(&format!("XGROUP CREATE {} not:ours 0", bench.log())).await;
    let load = bench.watch_load().await;
    let trimmed = bench.backend.trim(&fast.lease, Retention::Length(77)).await.expect("trimmed");
    let (unread, pending) = (ENTRIES as u64 - 77 - 3_000, 700);
    assert_eq!((trimmed.dropped, trimmed.more), (ENTRIES - 77, false));
    assert_eq!(trimmed.lost, [Lost { group: slow.group.clone(), unread, pending }]);
    bench.is_never_held_up(&load, Duration::from_millis(5)).await;
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 77);
    let age = Duration::from_millis(1);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let trimmed = bench.backend.trim(&fast.lease, Retention::Age(age)).await.expect("trimmed");
    assert_eq!(trimmed.lost, [Lost { group: slow.group.clone(), unread: 77, pending: 0 }]);
    assert_eq!(trimmed.dropped, 77, "{:?}", appended.last());
}

/// Fills the log with entries of 100 KiB.
async fn append_large(bench: &Bench, count: usize) {
    let body = fields(&[(b"payload", &[b'x'; 100 * 1024])]);
    let entry = || millstream_core::log::Append::new(bench.tp.clone(), body.clone());
    for _ in 0..count / 50 {
        let batch: Vec<_> = (0..50).map(|_| entry()).collect();
        for id in bench.backend.append(&batch).await {
            id.expect("appended");
        }
    }
}

/// How many scripts were called since the statistics were reset.
async fn scripts(bench: &mut Bench) -> usize {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut bench.raw).await.expect("statistics");
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

/// To free 10,000 entries of 100 KiB takes 80 ms: so one call does less where they are large.
#[tokio::test]
async fn large_entries_are_dropped_few_at_a_time() {
    let mut bench = Bench::private(&[]).await;
    append_large(&bench, 1_000).await;
    let load = bench.watch_load().await;
    bench.cmd("CONFIG RESETSTAT").await;
    let trimmed = bench.backend.trim(&bench.lease, Retention::Length(100)).await.expect("trimmed");
    assert_eq!((trimmed.dropped, trimmed.more), (900, false));
    let calls = scripts(&mut bench).await;
    assert!((4..=20).contains(&calls), "{calls} calls");
    bench.is_never_held_up(&load, Duration::from_millis(20)).await;
    // Of small ones as many go at once as may: 1,000, since nobody has read them and they are counted.
    append(&bench, 5_000).await;
    bench.cmd("CONFIG RESETSTAT").await;
    let trimmed = bench.backend.trim(&bench.lease, Retention::Length(1)).await.expect("trimmed");
    assert_eq!((trimmed.dropped, trimmed.more), (5_099, false));
    let calls = scripts(&mut bench).await;
    assert!(calls <= 7, "{calls} calls");
}

/// The lease changes hands in the middle of it: entries dropped by then are lost for every group, and reported.
#[tokio::test]
async fn what_was_dropped_before_an_error_is_told() {
    let mut bench = Bench::private(&[]).await;
    append_large(&bench, 1_000).await;
    let slow = Slow::new(&bench).await;
    slow.gate.left.store(0, Ordering::SeqCst);
    let (backend, lease) = (slow.backend.clone(), bench.lease.clone());
    let trims = tokio::spawn(async move { backend.trim(&lease, Retention::Length(1)).await });
    let length = format!("XLEN {}", bench.log());
    // Every request is held up, until something is dropped.
    let left = loop {
        slow.gate.here.notified().await;
        let left = bench.int(&length).await;
        if left < 1_000 {
            break left;
        }
        slow.gate.left.store(0, Ordering::SeqCst);
        slow.gate.go.notify_one();
    };
    bench.cmd(&format!("HSET {} token another", bench.fence())).await;
    slow.gate.go.notify_one();
    let trimmed = trims.await.expect("no panic").expect("the result of what was done");
    assert_eq!(bench.int(&length).await, left, "dropped without the lease");
    let left = usize::try_from(left).expect("a length");
    assert_eq!(trimmed.dropped, 1_000 - left);
    let unread: u64 = trimmed.lost.iter().map(|lost| lost.unread).sum();
    assert_eq!(unread, trimmed.dropped as u64, "{trimmed:?}");
    assert!(trimmed.more && left > 1, "it was stopped: {left} left");
    let error = bench.backend.trim(&bench.lease, Retention::Length(1)).await.expect_err("another has it");
    assert_eq!(error.kind(), ErrorKind::Fenced);
}
