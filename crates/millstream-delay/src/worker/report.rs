//! Counts of a worker's settled tasks.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::event::Handled;

/// Counts of a worker's tasks from start to end. A task is counted when the server has accepted its settlement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Completed tasks.
    pub done: u64,
    /// Failed attempts that are retried.
    pub retried: u64,
    /// Tasks that were snoozed by their handlers.
    pub snoozed: u64,
    /// Tasks that became dead tasks.
    pub dead: u64,
    /// Tasks that the dead-letter policy discarded, or that were over a limit that drops.
    pub discarded: u64,
    /// Tasks that were handed back unfinished, when the worker ended or their units of limits were lost: other workers can claim them immediately.
    pub handed_back: u64,
    /// Settlements that were refused because they came too late: other workers had the tasks by then. Not counted in
    /// the other fields.
    pub stale: u64,
}

/// Atomic counters behind a [`WorkerReport`].
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
    /// Counts one settled task; `None` means that it was handed back.
    pub(super) fn settled(&self, handled: Option<Handled>) {
        let counter = match handled {
            None => &self.handed_back,
            Some(Handled::Acked | Handled::Checked | Handled::Duplicate) => &self.done,
            Some(Handled::Dead) => &self.dead,
            Some(Handled::Discarded | Handled::Cancelled) => &self.discarded,
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
