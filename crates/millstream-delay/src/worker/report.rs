//! What a worker did.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::event::Handled;

/// What a worker did from start to end. Counted when the server has been told, and has taken it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Tasks that are done.
    pub done: u64,
    /// Failed attempts after which the task comes back.
    pub retried: u64,
    /// Tasks that were put off by their handlers.
    pub snoozed: u64,
    /// Tasks that became dead ones.
    pub dead: u64,
    /// Tasks that the dead-letter policy dropped.
    pub discarded: u64,
    /// Tasks that were claimed and given back unfinished when the worker ended: others have them at once.
    pub handed_back: u64,
    /// What came too late, and was refused: others had the tasks by then. Counted nowhere else.
    pub stale: u64,
}

/// The same, while it is being counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    done: AtomicU64,
    retried: AtomicU64,
    snoozed: AtomicU64,
    dead: AtomicU64,
    discarded: AtomicU64,
    handed_back: AtomicU64,
    stale: AtomicU64,
}

impl Counts {
    /// One task was settled; `None` means that it was handed back.
    pub(super) fn settled(&self, handled: Option<Handled>) {
        let counter = match handled {
            None => &self.handed_back,
            Some(Handled::Acked) => &self.done,
            Some(Handled::Dead) => &self.dead,
            Some(Handled::Discarded) => &self.discarded,
            Some(Handled::Snoozed) => &self.snoozed,
            Some(_) => &self.retried,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stale(&self, tasks: usize) {
        self.stale.fetch_add(tasks as u64, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> WorkerReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WorkerReport {
            done: get(&self.done),
            retried: get(&self.retried),
            snoozed: get(&self.snoozed),
            dead: get(&self.dead),
            discarded: get(&self.discarded),
            handed_back: get(&self.handed_back),
            stale: get(&self.stale),
        }
    }
}
