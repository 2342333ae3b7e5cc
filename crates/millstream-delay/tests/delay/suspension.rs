//! Suspended machines: a worker whose claims expired meanwhile notifies its handlers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::link::Link;
use crate::support::{SECS, eventually, memory, open};
use millstream_delay::Task;
use millstream_memory::SuspendableClock;
use tokio::time::Instant;

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
