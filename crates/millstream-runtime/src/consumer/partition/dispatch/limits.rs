//! Limits that the partitions of one consumer share: the number of handlers, and poison candidates that run alone.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::PollSemaphore;

use crate::consumer::partition::leases::WorkerLease;

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
}

/// Permits of one unit.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Permits {
    _shared: Option<OwnedSemaphorePermit>,
    _handler: Option<OwnedSemaphorePermit>,
}

/// The positions of one partition in the queues for permits. They are kept between calls.
pub(in crate::consumer) struct Turns {
    /// In shared mode: permits for the handlers of all partitions of a topic.
    shared: Option<PollSemaphore>,
    /// One of these, while the other one is waited for. Always in this order, so that no two partitions wait for each other.
    first: Option<OwnedSemaphorePermit>,
    /// Whether we have a position in a queue: a permit that it gets must be used.
    waiting: bool,
    /// Permits for the handlers of the consumer, if their number is limited.
    handlers: Option<PollSemaphore>,
}

impl Turns {
    pub(in crate::consumer) fn new(limiter: &Limiter, shared: Option<&Arc<Semaphore>>) -> Self {
        let turns = |permits: &Arc<Semaphore>| PollSemaphore::new(permits.clone());
        Self {
            shared: shared.map(turns),
            first: None,
            waiting: false,
            handlers: limiter.handlers.as_ref().map(turns),
        }
    }

    /// Returns permits if there are some. With a limit of the consumer its partitions take turns, each time at the end of the
    /// queue: then they are always [waited](Self::next) for.
    pub(in crate::consumer) fn at_once(&self) -> Option<Permits> {
        match (&self.shared, &self.handlers) {
            (None, None) => Some(Permits::default()),
            (Some(shared), None) if !self.waiting => {
                let permit = shared.clone_inner().try_acquire_owned().ok()?;
                Some(Permits { _shared: Some(permit), _handler: None })
            }
            _ => None,
        }
    }

    /// Whether a handler could start now, as far as these permits are concerned.
    pub(in crate::consumer) fn has_room(&self) -> bool {
        let room = |turns: &PollSemaphore| turns.clone_inner().available_permits() > 0;
        [&self.shared, &self.handlers].into_iter().flatten().all(room)
    }

    /// Whether we have a position in a queue.
    pub(in crate::consumer) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Waits until the lease can be relied on, and for our turn. `None` if the lease is lost. Cancel safe.
    pub(in crate::consumer) async fn next(&mut self, lease: &WorkerLease) -> Option<Permits> {
        loop {
            // A partition whose server is away for long must not hold a permit that others could use.
            if !lease.is_live(Instant::now()) {
                self.leave();
                if !lease.live().await {
                    return None;
                }
            }
            self.waiting = true;
            // The position in a semaphore's queue is kept when this future is dropped and created again.
            if let (None, Some(shared)) = (&self.first, &mut self.shared) {
                self.first = poll_fn(|cx| shared.poll_acquire(cx)).await;
            }
            let handler = match &mut self.handlers {
                Some(handlers) => Some(poll_fn(|cx| handlers.poll_acquire(cx)).await?),
                None => None,
            };
            self.waiting = false;
            let permits = Permits { _shared: self.first.take(), _handler: handler };
            if lease.is_live(Instant::now()) {
                return Some(permits);
            }
        }
    }

    /// Gives up our positions: nothing is to start.
    pub(in crate::consumer) fn leave(&mut self) {
        (self.first, self.waiting) = (None, false);
        // A clone has no position.
        for turns in [&mut self.shared, &mut self.handlers].into_iter().flatten() {
            *turns = turns.clone();
        }
    }
}
