//! A process that takes one lock again and again, and writes to a store under its fence.

use std::time::Duration;

use integration_tests::locker::{Setup, Store};
use millstream::Millstream;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // It ends with the process that started it.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let setup = std::env::args().nth(1).expect("a setup");
    let setup: Setup = serde_json::from_str(&setup).expect("a setup");
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let mut store = Store::connect(&setup.url).await;
    let (pid, ttl) = (std::process::id(), Duration::from_millis(setup.ttl_ms));
    loop {
        if setup.leads {
            let election = mq.leader("scheduler").ttl(ttl).candidate(pid.to_string());
            let Ok(term) = election.campaign().await else { continue };
            while !term.is_lost() {
                store.write(term.epoch(), pid).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        } else {
            let Ok(held) = mq.lock("invoice:42").ttl(ttl).owner(pid.to_string()).acquire().await else {
                continue;
            };
            // It does not ask whether the lock is lost: the store has to find out.
            for _ in 0..fastrand::u32(2..40) {
                store.write(held.fence(), pid).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = held.release().await;
        }
    }
}
