//! A process that takes a lock, and writes to a store under its fence.

use std::time::Duration;

use integration_tests::locker::{Setup, Store, Work};
use millstream::Millstream;
use millstream::lock::RedLock;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // It ends with the process that started it.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let setup = std::env::args().nth(1).expect("a setup");
    let setup: Setup = serde_json::from_str(&setup).expect("a setup");
    let mut queues = Vec::new();
    for url in &setup.urls {
        queues.push(Millstream::connect(url).await.expect("connected"));
    }
    let (mq, mut store) = (&queues[0], Store::connect(&setup.urls[0]).await);
    let (pid, ttl) = (std::process::id(), Duration::from_millis(setup.ttl_ms));
    let lock = || mq.lock("invoice:42").ttl(ttl).owner(pid.to_string());
    match setup.work {
        Work::Lead => loop {
            let election = mq.leader("scheduler").ttl(ttl).candidate(pid.to_string());
            let Ok(term) = election.campaign().await else { continue };
            while !term.is_lost() {
                store.write(term.epoch(), pid).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        },
        Work::Lock => loop {
            let Ok(held) = lock().acquire().await else { continue };
            // It does not ask whether the lock is lost: the store has to find out.
            for _ in 0..fastrand::u32(2..40) {
                store.write(held.fence(), pid).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = held.release().await;
        },
        Work::CheckThenWrite => {
            let held = lock().acquire().await.expect("acquired");
            assert!(!held.is_lost(), "it has just been granted");
            check_then_write(&mut store, held.fence(), pid).await;
        }
        Work::CheckThenWriteRed => {
            let backends = queues.iter().map(|mq| mq.backend().clone());
            let red = RedLock::new(backends).expect("three").longest_ttl(Duration::from_secs(1));
            let held = red.acquire("invoice:42", ttl, 10 * ttl).await.expect("granted");
            assert!(!held.is_over(), "it has just been granted");
            check_then_write(&mut store, 0, pid).await;
        }
    }
    std::future::pending::<()>().await;
}

/// Leaves time between the check and the write, in which the process is stopped.
async fn check_then_write(store: &mut Store, fence: u64, pid: u32) {
    store.checked(fence).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.write(fence, pid).await;
}
