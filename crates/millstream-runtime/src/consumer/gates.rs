//! What the partitions of one consumer have to share: how many handlers run, and that suspects run one at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the partitions of one consumer have to share. Both are first come, first served: a partition asks for one
/// handler at a time, and so partitions take turns.
pub(super) struct Gates {
    handlers: Option<Arc<Semaphore>>,
    suspects: Arc<Semaphore>,
}

impl Gates {
    pub(super) fn new(max_handlers: Option<usize>) -> Self {
        let handlers = max_handlers.map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))));
        Self { handlers, suspects: Arc::new(Semaphore::new(1)) }
    }

    /// Who wants to run a handler needs one of these; `None` if there is no limit.
    pub(super) fn handlers(&self) -> Option<&Arc<Semaphore>> {
        self.handlers.as_ref()
    }

    /// Waits until no other suspect is being handled, and until a handler may run.
    pub(super) async fn suspect(&self) -> (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>) {
        // In this order: those who wait for a suspect elsewhere take no room from handlers. Gates are never closed.
        let only = self.suspects.clone().acquire_owned().await.ok();
        let handler = match &self.handlers {
            Some(handlers) => handlers.clone().acquire_owned().await.ok(),
            None => None,
        };
        (only, handler)
    }
}
