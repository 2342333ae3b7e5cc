//! Watches: one task for each lock that clients of this process wait for. It wakes the one that is called.
//!
//! With a wait for changes of its own, each waiting client would look at each change, although it concerns one of them: a
//! thousand clients would make a thousand requests whenever one of them is called.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use millstream_core::LockName;
use millstream_core::locks::{LockChange, LockRevision, Locks, PLACE_REFRESH};
use millstream_engine::ControlThread;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Longest wait for a change. Waiting clients repeat their requests meanwhile, whatever the watch does.
const LONGEST: Duration = Duration::from_secs(60);

/// Pause between two looks that found nothing.
const SETTLE: Duration = Duration::from_millis(5);

/// The watches of one client.
pub(crate) struct Watches {
    locks: Arc<dyn Locks>,
    control: ControlThread,
    live: Arc<Live>,
}

type Live = Mutex<HashMap<LockName, Weak<Watch>>>;

/// Watch of one lock, as long as somebody waits.
struct Watch {
    calls: Arc<Mutex<Calls>>,
    _task: AbortOnDropHandle<()>,
}

/// Waiting clients by their nonces.
#[derive(Default)]
struct Calls {
    waiting: HashMap<String, Arc<Notify>>,
    /// The nonce that was called last: its client may be entered after the call.
    last: Option<String>,
}

/// A waiting client.
pub(crate) struct Waiter {
    name: LockName,
    nonce: String,
    called: Arc<Notify>,
    /// `None` once it is dropped.
    watch: Option<Arc<Watch>>,
    live: Arc<Live>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watches {
    pub(crate) fn new(locks: Arc<dyn Locks>, control: ControlThread) -> Self {
        Self { locks, control, live: Arc::default() }
    }

    /// Enters a client that waits for this lock under this nonce.
    pub(crate) fn enter(&self, name: &LockName, nonce: &str) -> Waiter {
        let mut live = lock(&self.live);
        let watch = live.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let calls = Arc::<Mutex<Calls>>::default();
            let task = self.control.spawn(watch(self.locks.clone(), name.clone(), calls.clone()));
            let watch = Arc::new(Watch { calls, _task: task });
            live.insert(name.clone(), Arc::downgrade(&watch));
            watch
        });
        let called = Arc::new(Notify::new());
        let mut calls = lock(&watch.calls);
        calls.waiting.insert(nonce.to_owned(), called.clone());
        if calls.last.as_deref() == Some(nonce) {
            called.notify_one();
        }
        drop(calls);
        let (name, nonce, live) = (name.clone(), nonce.to_owned(), self.live.clone());
        Waiter { name, nonce, called, watch: Some(watch), live }
    }
}

impl Waiter {
    /// Waits until the client is called. A call since the last wait counts.
    pub(crate) async fn called(&self) {
        self.called.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        lock(&watch.calls).waiting.remove(&self.nonce);
        let mut live = lock(&self.live);
        // Clients enter and leave under the same lock, so that one is the last.
        if Arc::strong_count(&watch) == 1 {
            live.remove(&self.name);
        }
        drop(watch);
    }
}

async fn watch(locks: Arc<dyn Locks>, name: LockName, calls: Arc<Mutex<Calls>>) {
    let (mut seen, mut unsure) = (LockRevision::default(), false);
    loop {
        let change = locks.changed(&name, seen, LONGEST).await;
        let was_unsure = std::mem::replace(&mut unsure, matches!(change, Ok(LockChange::Maybe)));
        match change {
            Ok(LockChange::Called(revision, next)) => {
                seen = revision;
                let mut calls = lock(&calls);
                if let Some(called) = next.as_ref().and_then(|nonce| calls.waiting.get(nonce)) {
                    called.notify_one();
                }
                calls.last = next;
            }
            Ok(LockChange::Maybe) => {
                if was_unsure {
                    sleep(SETTLE).await;
                }
                // There is the newest change alone, or none since the lock was released.
                seen = LockRevision::default();
            }
            Ok(LockChange::Nothing) => {}
            Err(error) => {
                tracing::debug!(lock = %name, %error, "no notices of changes: waiting clients ask again soon");
                sleep(PLACE_REFRESH).await;
            }
        }
    }
}
