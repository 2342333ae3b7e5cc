//! Messages that were cancelled from outside, as their deliveries see them.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::{BatchMember, Headers};
use tokio::sync::Notify;

/// The messages of a partition, and the batches, that were cancelled from outside. Whoever reads the marks of the server changes it, and
/// the deliveries share it: so a message has nothing of its own for this, and one that nobody cancels costs one look at a flag.
#[derive(Debug, Default)]
pub struct Cancelled {
    any: AtomicBool,
    ids: Mutex<HashSet<Box<str>>>,
    changed: Notify,
}

impl Cancelled {
    /// Adds one, and tells its handler.
    pub fn add(&self, id: &dyn fmt::Display) {
        self.ids().insert(id.to_string().into());
        self.any.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Removes one.
    pub fn remove(&self, id: &dyn fmt::Display) {
        let mut ids = self.ids();
        ids.remove(&*id.to_string());
        self.any.store(!ids.is_empty(), Ordering::Release);
    }

    /// Whether a message with these headers is one of them, or a member of a batch that is.
    #[must_use]
    pub fn has(&self, id: &dyn fmt::Display, headers: &Headers) -> bool {
        let of_batch = |ids: &HashSet<Box<str>>| {
            let member = BatchMember::of(headers);
            member.is_some_and(|member| ids.contains(&*member.batch.to_string()))
        };
        let in_ids = |ids: &HashSet<Box<str>>| ids.contains(&*id.to_string()) || of_batch(ids);
        self.any.load(Ordering::Acquire) && in_ids(&self.ids())
    }

    /// Waits until it is one of them.
    pub async fn added(&self, id: &(dyn fmt::Display + Sync), headers: &Headers) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look: what is added behind it wakes us.
            changed.as_mut().enable();
            if self.has(id, headers) {
                return;
            }
            changed.await;
        }
    }

    fn ids(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_ends_when_its_own_id_is_added() {
        let cancelled = Cancelled::default();
        let none = Headers::new();
        let waits = cancelled.added(&7, &none);
        let adds = async {
            for id in [5, 6] {
                tokio::task::yield_now().await;
                cancelled.add(&id);
            }
            assert!(!cancelled.has(&7, &none) && cancelled.has(&6, &none));
            cancelled.add(&7);
        };
        tokio::join!(waits, adds);
        (5..=7).for_each(|id| cancelled.remove(&id));
        assert!(!(5..=7).any(|id| cancelled.has(&id, &none)));
    }
}
