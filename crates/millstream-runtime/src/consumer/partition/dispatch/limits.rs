//! Limits that the partitions of one consumer share: how many handlers run, and that poison candidates run one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Limits that the partitions of one consumer share. Both are first come, first served: a partition asks for one
/// handler at a time, and so partitions take turns.
pub(in crate::consumer) struct Limiter {
    handlers: Option<Arc<Semaphore>>,
    candidates: Arc<Semaphore>,
    /// Leases that were granted before this epoch have ended over a message that is known and given up.
    explained: AtomicU64,
    more_explained: Notify,
}

impl Limiter {
    pub(in crate::consumer) fn new(max_handlers: Option<usize>) -> Self {
        let handlers = max_handlers.map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))));
        let (candidates, explained) = (Arc::new(Semaphore::new(1)), AtomicU64::new(0));
        Self { handlers, candidates, explained, more_explained: Notify::new() }
    }

    /// Whoever wants to run a handler needs one of these; `None` if there is no limit.
    pub(in crate::consumer) fn handlers(&self) -> Option<&Arc<Semaphore>> {
        self.handlers.as_ref()
    }

    /// Whoever wants to handle a poison candidate alone needs the only one of these. If the process ends meanwhile, there
    /// is no other candidate that it can have been.
    pub(in crate::consumer) fn candidates(&self) -> &Arc<Semaphore> {
        &self.candidates
    }

    /// A message was given up by the owner of this epoch: whatever ended before has ended over it.
    pub(in crate::consumer) fn explain(&self, epoch: u64) {
        self.explained.fetch_max(epoch, Ordering::Relaxed);
        self.more_explained.notify_waiters();
    }

    /// Whether the owner of this epoch ended over a message that is known.
    pub(in crate::consumer) fn is_explained(&self, epoch: u64) -> bool {
        epoch < self.explained.load(Ordering::Relaxed)
    }

    /// Ready when a message is given up from now on.
    pub(in crate::consumer) fn more_explained(&self) -> Notified<'_> {
        self.more_explained.notified()
    }

    /// Waits until a handler may run, and, if it is to handle a candidate alone, until no other one does.
    pub(in crate::consumer) async fn enter(
        &self,
        alone: bool,
    ) -> (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>) {
        // In this order: those who wait for a candidate elsewhere take no room from handlers. Neither is ever closed.
        let only = if alone { self.candidates.clone().acquire_owned().await.ok() } else { None };
        let handler = match &self.handlers {
            Some(handlers) => handlers.clone().acquire_owned().await.ok(),
            None => None,
        };
        (only, handler)
    }
}
