//! What is held now: the leases of one topic, as ownership and renewals share them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::Partition;
use tokio::sync::Notify;

use super::guard::Guard;

/// The leases that are held now. Cloning gives another handle.
///
/// By partition and epoch: a lease may have been given back, and the partition granted to us again, before the worker
/// of the first one has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Shared>);

type Guards = BTreeMap<(Partition, u64), Arc<Guard>>;

#[derive(Debug, Default)]
struct Shared {
    guards: Mutex<Guards>,
    added: Notify,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Guards> {
        self.0.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<Guard>> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn insert(&self, partition: Partition, guard: Arc<Guard>) {
        self.lock().insert((partition, guard.lease().epoch), guard);
        self.0.added.notify_one();
    }

    pub(super) fn remove(&self, partition: Partition, guard: &Guard) {
        self.lock().remove(&(partition, guard.lease().epoch));
    }

    /// Waits until a lease is added; at once if one was since the last time.
    pub(super) async fn added(&self) {
        self.0.added.notified().await;
    }
}
