//! A process that takes a lock again and again, and writes to the store under its fence.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use millstream::lock::Release;
use millstream::{Event, Millstream};

use super::owner::retried;
use super::store::{Client, Request};
use super::{Setup, Sink, What};

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
            loop {
                let lock = LOCKS[random.usize(..LOCKS.len())];
                let writes = if setup.slow { random.u32(60..200) } else { random.u32(2..30) };
                hold(setup, lock, writes, &mq, &store, sink).await;
                tokio::time::sleep(Duration::from_millis(random.u64(..50))).await;
            }
        } => {}
    }
    Ok(())
}

/// Takes a lock once and writes a few times, without asking whether it is lost: the store has to find out.
async fn hold(setup: &Setup, lock: &str, writes: u32, mq: &Millstream, store: &Client, sink: &Sink) {
    let asked = mq.lock(lock).ttl(setup.ttl()).wait(setup.ttl()).owner(&*setup.name).acquire().await;
    let Ok(held) = asked else { return };
    let (name, fence) = (lock.to_owned(), held.fence());
    sink.write(What::Locked { lock: name.clone(), fence, ttl_ms: setup.ttl_ms });
    for _ in 0..writes {
        let write = Request::Write { lock: name.clone(), fence, writer: std::process::id() };
        store.write(&write).await.expect("the store answers");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lost = held.is_lost();
    let released = matches!(held.release().await, Ok(Release::Released)) && !lost;
    sink.write(What::Unlocked { lock: name, fence, released });
}
