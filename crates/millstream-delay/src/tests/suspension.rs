//! Suspended machines: a worker whose claims expired meanwhile notifies its handlers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_memory::SuspendableClock;
use tokio::time::Instant;

use crate::Task;
use crate::tests::support::link::Link;
use crate::tests::support::{SECS, eventually, memory, open};

#[tokio::test(start_paused = true)]
async fn handlers_of_a_machine_that_was_suspended_are_told() {
    let machine = SuspendableClock::new();
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let backend = link.over(&backend).with_boot_clock(machine.clone());
    let queue = open(&backend, 1).await;
    queue.schedule(&1).await.expect("scheduled");
    let worker = queue.worker().hold(SECS(10));
    let worker = worker.start(async |task: Task<u64>| task.cancelled().await).await.expect("starts");
    tokio::time::sleep(SECS(60)).await;
    assert_eq!((worker.report().done, worker.progress().running), (0, 1), "it is kept while all is well");
    // A renewal that is granted at once would say that nobody has taken it.
    link.no_renewals.store(true, Ordering::Relaxed);
    machine.suspend(SECS(60));
    let since = Instant::now();
    eventually(|| worker.progress().running == 0, "told").await;
    assert!(since.elapsed() <= SECS(1), "{:?}", since.elapsed());
    drop(worker);
}

/// A virtual machine that its host pauses may have no clock that counts the pause.
#[tokio::test(start_paused = true)]
async fn a_pause_that_only_the_server_has_seen_is_found_at_the_next_claim() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    let worker = queue.worker().hold(SECS(60)).concurrency(2);
    let worker = worker.start(async |task: Task<u64>| {
        if task.payload == 1 {
            task.cancelled().await;
        }
    });
    let worker = worker.await.expect("starts");
    eventually(|| worker.progress().running == 1, "claimed").await;
    link.no_renewals.store(true, Ordering::Relaxed);
    link.ahead.store(60, Ordering::Relaxed);
    let since = Instant::now();
    queue.schedule(&2).await.expect("scheduled");
    eventually(|| worker.progress().running == 0, "told").await;
    // Counted by the local clocks alone, its claim would run out after 48 s.
    assert!(since.elapsed() <= SECS(1), "{:?}", since.elapsed());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn after_a_suspension_claims_are_renewed_at_once() {
    let machine = SuspendableClock::new();
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend).with_boot_clock(machine.clone()), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    let worker = queue.worker().hold(SECS(60));
    let worker = worker.start(async |task: Task<u64>| task.cancelled().await).await.expect("starts");
    eventually(|| link.calls("extend") == 1, "the first renewal").await;
    // The next one would come 20 s later. The claim is valid for 48 s.
    machine.suspend(SECS(30));
    let since = Instant::now();
    eventually(|| link.calls("extend") == 2, "the next one").await;
    assert!(since.elapsed() <= SECS(1), "{:?}", since.elapsed());
    assert_eq!(worker.progress().running, 1, "its claim has not run out");
    drop(worker);
}
