//! The reaper: the one task of a client that releases what was dropped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::LockName;
use millstream_core::locks::Locks;
use millstream_engine::ControlThread;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Releases under way at a time: enough that a round trip of 1 ms does not limit what processes drop.
const AT_ONCE: usize = 64;

/// Pause before a release that failed is repeated.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts the task when it is first needed, and again if its runtime has ended.
pub(crate) struct Reaper {
    locks: Arc<dyn Locks>,
    control: ControlThread,
    sender: Mutex<Option<UnboundedSender<Dropped>>>,
}

/// An attempt that ended without a release.
struct Dropped {
    name: LockName,
    nonce: String,
    ttl: Duration,
}

/// Right of one attempt: a place in the queue, or the lock. If it is dropped, the reaper ends it. Dropping needs no
/// runtime and does not block.
pub(crate) struct Claim {
    sender: UnboundedSender<Dropped>,
    /// `None` after the release.
    dropped: Option<Dropped>,
}

impl Reaper {
    pub(crate) fn new(locks: Arc<dyn Locks>, control: ControlThread) -> Self {
        Self { locks, control, sender: Mutex::default() }
    }

    /// Creates the right of an attempt that is about to be made.
    pub(crate) fn claim(&self, name: &LockName, nonce: &str, ttl: Duration) -> Claim {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let live = sender.take().filter(|sender| !sender.is_closed());
        let live = live.unwrap_or_else(|| {
            let (sender, receiver) = unbounded_channel();
            // It ends when the client and everything that it granted are dropped, and all is released.
            drop(self.control.spawn(reap(self.locks.clone(), receiver)).detach());
            sender
        });
        let dropped = Dropped { name: name.clone(), nonce: nonce.to_owned(), ttl };
        Claim { sender: sender.insert(live).clone(), dropped: Some(dropped) }
    }
}

impl Claim {
    /// Records that the attempt was ended by a release.
    pub(crate) fn released(mut self) {
        self.dropped = None;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            // If the task is gone, its runtime has ended, and the lock ends by its ttl.
            let _ = self.sender.send(dropped);
        }
    }
}

async fn reap(locks: Arc<dyn Locks>, mut receiver: UnboundedReceiver<Dropped>) {
    let mut releases = JoinSet::new();
    while let Some(dropped) = receiver.recv().await {
        while releases.len() >= AT_ONCE {
            releases.join_next().await;
        }
        // Takes those that have ended out of the set.
        while releases.try_join_next().is_some() {}
        releases.spawn(release(locks.clone(), dropped));
    }
    while releases.join_next().await.is_some() {}
}

/// Releases until that succeeds, or the lock has ended by itself.
async fn release(locks: Arc<dyn Locks>, dropped: Dropped) {
    let until = Instant::now() + dropped.ttl;
    loop {
        match locks.release(&dropped.name, &dropped.nonce).await {
            Ok(_) => return,
            Err(error) if error.is_transient() && Instant::now() < until => sleep(PAUSE).await,
            Err(error) => {
                tracing::warn!(lock = %dropped.name, %error, "a dropped lock was not released: it ends by its ttl");
                return;
            }
        }
    }
}
