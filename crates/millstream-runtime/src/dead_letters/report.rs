//! Counts of a dead-letter consumer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a dead-letter consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterReport {
    /// Letters that were deleted.
    pub deleted: u64,
    /// Letters that went back to their group.
    pub replayed: u64,
    /// Letters that were left, for whatever reason.
    pub left: u64,
    /// Letters, among those that were left, whose handler failed or panicked.
    pub failed: u64,
    /// Letters that another client had claimed when their handler ended: the outcome came too late.
    pub lost: u64,
    /// Rounds over all partitions that found no letter to handle, where they can be read.
    pub idle: u64,
    /// Partitions whose letters could not be read in the last round, for a reason that does not pass by itself.
    pub unreadable: u64,
}

/// The counters behind a [`DeadLetterReport`].
#[derive(Debug, Default)]
pub(super) struct LetterCounts {
    pub(super) deleted: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) left: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) idle: AtomicU64,
    pub(super) unreadable: AtomicU64,
    /// Letters that were passed to the handler.
    pub(super) begun: AtomicU64,
}

impl LetterCounts {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> DeadLetterReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeadLetterReport {
            deleted: read(&self.deleted),
            replayed: read(&self.replayed),
            left: read(&self.left),
            failed: read(&self.failed),
            lost: read(&self.lost),
            idle: read(&self.idle),
            unreadable: read(&self.unreadable),
        }
    }
}
