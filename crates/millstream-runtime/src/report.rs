//! Counts of a consumer's work.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::event::Handled;

/// Counts of a consumer's work from start to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Messages that a handler acknowledged.
    pub acked: u64,
    /// Failed attempts after which the message comes back.
    pub retried: u64,
    /// Messages that a handler snoozed, without using an attempt.
    pub snoozed: u64,
    /// Messages that became dead letters.
    pub dead: u64,
    /// Messages that the dead-letter policy dropped.
    pub discarded: u64,
    /// Messages that were acknowledged without the handler, because their operation was done.
    pub duplicates: u64,
    /// Messages that were acknowledged without the handler, because the check before it found that they were handled.
    pub checked: u64,
    /// Messages that were cancelled from outside.
    pub cancelled: u64,
    /// Messages that were read and not settled when their partition was released or lost: the next owner gets them first.
    pub handed_back: u64,
    /// Those of them that were left because the shutdown timeout was over: they are handled again.
    pub unsettled: u64,
}

/// The counters behind a [`Report`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) acked: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) snoozed: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) checked: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) handed_back: AtomicU64,
    pub(crate) unsettled: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts one handled message.
    pub(crate) fn handled(&self, handled: Handled) {
        let counter = match handled {
            Handled::Acked => &self.acked,
            Handled::Retried => &self.retried,
            Handled::Snoozed => &self.snoozed,
            Handled::Dead => &self.dead,
            Handled::Duplicate => &self.duplicates,
            Handled::Checked => &self.checked,
            Handled::Cancelled => &self.cancelled,
            _ => &self.discarded,
        };
        Self::add(counter, 1);
    }

    pub(crate) fn report(&self) -> Report {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            acked: get(&self.acked),
            retried: get(&self.retried),
            snoozed: get(&self.snoozed),
            dead: get(&self.dead),
            discarded: get(&self.discarded),
            duplicates: get(&self.duplicates),
            checked: get(&self.checked),
            cancelled: get(&self.cancelled),
            handed_back: get(&self.handed_back),
            unsettled: get(&self.unsettled),
        }
    }
}
