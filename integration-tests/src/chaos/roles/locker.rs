//! A process that takes a lock again and again, and writes to the store under its fence.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use millstream::lock::Release;
use millstream::{Event, Millstream};

use super::store::{Client, Request};
use super::{Setup, Sink, What, retried};

/// The locks.
const LOCKS: [&str; 2] = ["invoice-1", "invoice-2"];

pub(super) async fn run(setup: &Setup, sink: &Arc<Sink>, ended: impl Future<Output = ()>) -> Result<()> {
    let store = Client::connect(&setup.store).await?;
    let mq = retried(|| setup.connect(|_: &Event<'_>| {})).await;
    let mut random = fastrand::Rng::with_seed(setup.seed);
    tokio::select! {
        biased;
        () = ended => {}
        () = async {
            let mut lock = LOCKS[random.usize(..LOCKS.len())];
            loop {
                let writes = if setup.slow { random.u32(150..300) } else { random.u32(2..30) };
                // Whoever lost a lock wants it back.
                if !hold(setup, lock, writes, &mq, &store, sink).await {
                    lock = LOCKS[random.usize(..LOCKS.len())];
                }
                tokio::time::sleep(Duration::from_millis(random.u64(..50))).await;
            }
        } => {}
    }
    Ok(())
}

/// Takes a lock once and writes a few times, without asking whether it is lost: the store has to find out. Returns whether the
/// store refused a write.
async fn hold(setup: &Setup, lock: &str, writes: u32, mq: &Millstream, store: &Client, sink: &Sink) -> bool {
    let asked = mq.lock(lock).ttl(setup.ttl()).wait(setup.ttl()).owner(&*setup.name).acquire().await;
    let Ok(held) = asked else { return false };
    let (name, fence) = (lock.to_owned(), held.fence());
    sink.write(What::Locked { lock: name.clone(), fence, ttl_ms: setup.ttl_ms });
    let mut refused = false;
    for _ in 0..writes {
        let write = Request::Write { lock: name.clone(), fence, writer: std::process::id() };
        refused = !store.write(&write).await.expect("the store answers");
        if refused {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lost = held.is_lost();
    sink.write(What::Releasing { lock: name.clone(), fence });
    let released = matches!(held.release().await, Ok(Release::Released)) && !lost;
    sink.write(What::Unlocked { lock: name, fence, released });
    refused
}
