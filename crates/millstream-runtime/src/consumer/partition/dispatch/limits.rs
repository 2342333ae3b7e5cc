//! Limits that the partitions of one consumer share: the number of handlers, and poison candidates that run alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use crate::consumer::group::lease::LeaseGuard;

/// Limits that the partitions of one consumer share. Permits are granted first come, first served. A partition requests
/// one handler at a time, so partitions take turns.
pub(in crate::consumer) struct Limiter {
    handlers: Option<Arc<Semaphore>>,
    candidates: Arc<Semaphore>,
    /// Owners with a lease before this epoch ended over a message that is known and given up.
    explained: AtomicU64,
    more_explained: Notify,
}

impl Limiter {
    pub(in crate::consumer) fn new(max_handlers: Option<usize>) -> Self {
        let handlers = max_handlers.map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))));
        let (candidates, explained) = (Arc::new(Semaphore::new(1)), AtomicU64::new(0));
        Self { handlers, candidates, explained, more_explained: Notify::new() }
    }

    /// Returns the permits for running a handler; `None` if there is no limit.
    pub(in crate::consumer) fn handlers(&self) -> Option<&Arc<Semaphore>> {
        self.handlers.as_ref()
    }

    /// Returns the only permit for handling a poison candidate alone. If the process ends while it is held, no other
    /// candidate can be the cause.
    pub(in crate::consumer) fn candidates(&self) -> &Arc<Semaphore> {
        &self.candidates
    }

    /// Records that the owner of this epoch gave up a message: it explains all earlier ends.
    pub(in crate::consumer) fn explain(&self, epoch: u64) {
        self.explained.fetch_max(epoch, Ordering::Relaxed);
        self.more_explained.notify_waiters();
    }

    /// Whether the end of this epoch's owner is explained by a known message.
    pub(in crate::consumer) fn is_explained(&self, epoch: u64) -> bool {
        epoch < self.explained.load(Ordering::Relaxed)
    }

    /// Returns a future that is ready when another message is given up.
    pub(in crate::consumer) fn more_explained(&self) -> Notified<'_> {
        self.more_explained.notified()
    }

    /// Waits for a handler permit, and, if a candidate is to be handled alone, for the only permit for that.
    pub(in crate::consumer) async fn enter(
        &self,
        alone: bool,
    ) -> (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>) {
        // In this order: waiting for another candidate must not occupy a handler permit. Neither semaphore is ever
        // closed.
        let only = if alone { self.candidates.clone().acquire_owned().await.ok() } else { None };
        let handler = match &self.handlers {
            Some(handlers) => handlers.clone().acquire_owned().await.ok(),
            None => None,
        };
        (only, handler)
    }
}

/// Waits for our turn among the handlers of the consumer, and until the lease can be relied on. `None` if it is lost.
pub(in crate::consumer) async fn turn(
    guard: &LeaseGuard,
    turns: &mut Option<PollSemaphore>,
) -> Option<Option<OwnedSemaphorePermit>> {
    let permit = match turns {
        // The position in the semaphore's queue is kept when this future is dropped and created again.
        Some(turns) => Some(std::future::poll_fn(|cx| turns.poll_acquire(cx)).await?),
        None => None,
    };
    guard.live().await.then_some(permit)
}
