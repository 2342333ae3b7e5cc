//! Messages that were cancelled from outside, as their deliveries see them.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The messages of a partition that were cancelled from outside. Whoever reads the marks of the server changes it, and
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

    /// Whether it is one of them.
    #[must_use]
    pub fn has(&self, id: &dyn fmt::Display) -> bool {
        self.any.load(Ordering::Acquire) && self.ids().contains(&*id.to_string())
    }

    /// Waits until it is one of them.
    pub async fn added(&self, id: &(dyn fmt::Display + Sync)) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look: what is added behind it wakes us.
            changed.as_mut().enable();
            if self.has(id) {
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
        let waits = cancelled.added(&7);
        let adds = async {
            for id in [5, 6] {
                tokio::task::yield_now().await;
                cancelled.add(&id);
            }
            assert!(!cancelled.has(&7) && cancelled.has(&6));
            cancelled.add(&7);
        };
        tokio::join!(waits, adds);
        (5..=7).for_each(|id| cancelled.remove(&id));
        assert!(!(5..=7).any(|id| cancelled.has(&id)));
    }
}
