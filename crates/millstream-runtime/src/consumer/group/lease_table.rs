//! Lease table: the leases of one topic that are held now, shared by the ownership loop and the lease keeper.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::Partition;
use millstream_core::sorted::SortedMap;
use tokio::sync::Notify;

use crate::consumer::group::lease::LeaseGuard;

/// The leases that are held now. A clone refers to the same table.
///
/// The key is partition and epoch: a lease may have been released, and the partition granted to us again, before the
/// worker of the first lease has ended.
#[derive(Clone, Debug, Default)]
pub(in crate::consumer) struct LeaseTable(Arc<Shared>);

type Guards = SortedMap<(Partition, u64), Arc<LeaseGuard>>;

#[derive(Debug, Default)]
struct Shared {
    guards: Mutex<Guards>,
    added: Notify,
}

impl LeaseTable {
    fn lock(&self) -> MutexGuard<'_, Guards> {
        self.0.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::consumer) fn all(&self) -> Vec<Arc<LeaseGuard>> {
        self.lock().values().cloned().collect()
    }

    pub(in crate::consumer) fn insert(&self, partition: Partition, guard: Arc<LeaseGuard>) {
        self.lock().insert((partition, guard.lease().epoch), guard);
        self.0.added.notify_one();
    }

    pub(in crate::consumer) fn remove(&self, partition: Partition, guard: &LeaseGuard) {
        self.lock().remove(&(partition, guard.lease().epoch));
    }

    /// Waits until a lease is added; returns at once if one was added since the last call.
    pub(in crate::consumer) async fn added(&self) {
        self.0.added.notified().await;
    }
}
