//! Why the entries of a worker are ours: by the lease of their partition, or by a lease of each.

pub(in crate::consumer) mod entry_lease;
pub(in crate::consumer) mod entry_leases;
pub(in crate::consumer) mod reserve;
pub(in crate::consumer) mod room;

use std::sync::Arc;

use millstream_core::error::Result;
use millstream_core::log::{Receipt, Settled};
use millstream_core::shared::SharedMember;
use millstream_core::{Backend, Partition, Settlement, TopicPartition};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::group::lease::LeaseGuard;
use entry_lease::Key;
use entry_leases::EntryLeases;

/// The lease under which a worker handles its entries.
#[derive(Clone)]
pub(in crate::consumer) enum WorkerLease {
    /// That of the partition.
    Partition(Arc<LeaseGuard>),
    /// Each entry is pending under our name, and has a lease of its own (shared mode).
    Entries(Arc<SharedPartition>),
}

/// A partition that all members read. Each of them has leases of some of its entries.
pub(in crate::consumer) struct SharedPartition {
    pub(in crate::consumer) member: Arc<SharedMember>,
    pub(in crate::consumer) partition: Partition,
    /// The leases of our entries, in all partitions.
    pub(in crate::consumer) leases: Arc<EntryLeases>,
    /// Cancelled when nothing may start any more.
    stop: CancellationToken,
    revoked: CancellationToken,
    /// Never cancelled: what is lost is single entries.
    lost: CancellationToken,
}

impl SharedPartition {
    /// Creates the share of a partition. Nothing of it may start once `stop` is cancelled, and nothing comes any more once
    /// `revoked` is.
    pub(in crate::consumer) fn new(
        member: Arc<SharedMember>,
        partition: Partition,
        leases: Arc<EntryLeases>,
        stop: CancellationToken,
        revoked: CancellationToken,
    ) -> Self {
        Self { member, partition, leases, stop, revoked, lost: CancellationToken::new() }
    }

    /// Returns the key of the lease of an entry.
    pub(in crate::consumer) fn key(&self, receipt: Receipt, serial: u64) -> Key {
        Key { partition: self.partition, receipt, serial }
    }
}

impl WorkerLease {
    pub(in crate::consumer) fn of_partition(guard: Arc<LeaseGuard>) -> Self {
        Self::Partition(guard)
    }

    pub(in crate::consumer) fn of_entries(entries: SharedPartition) -> Self {
        Self::Entries(Arc::new(entries))
    }

    /// Whether messages may wait for each other: only the owner of a partition can keep their order.
    pub(in crate::consumer) fn keeps_order(&self) -> bool {
        self.guard().is_some()
    }

    /// Returns the lease of the partition, if it has an owner.
    pub(in crate::consumer) fn guard(&self) -> Option<&Arc<LeaseGuard>> {
        match self {
            Self::Partition(guard) => Some(guard),
            Self::Entries(_) => None,
        }
    }

    /// Returns the leases of entries, if the partition has no owner.
    pub(in crate::consumer) fn entries(&self) -> Option<&Arc<SharedPartition>> {
        match self {
            Self::Partition(_) => None,
            Self::Entries(entries) => Some(entries),
        }
    }

    /// Returns the epoch of the lease of the partition, if it has an owner.
    pub(in crate::consumer) fn epoch(&self) -> Option<u64> {
        self.guard().map(|guard| guard.lease().epoch)
    }

    pub(in crate::consumer) fn topic_partition(&self) -> TopicPartition {
        match self {
            Self::Partition(guard) => guard.topic_partition().clone(),
            Self::Entries(entries) => entries.member.partition(entries.partition),
        }
    }

    /// Sends settlements, which are valid only under this lease.
    pub(in crate::consumer) async fn settle(
        &self,
        backend: &Backend,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        match self {
            Self::Partition(guard) => backend.log().settle(guard.lease(), batch).await,
            Self::Entries(entries) => {
                let SharedPartition { member, partition, .. } = &**entries;
                let settled = backend.shared()?.settle_shared(member, *partition, batch).await;
                settled.map_err(|error| error.during(member.partition(*partition)))
            }
        }
    }

    /// Cancelled when somebody else has the partition, or work on it is void.
    pub(in crate::consumer) fn lost(&self) -> &CancellationToken {
        match self {
            Self::Partition(guard) => guard.lost(),
            Self::Entries(entries) => &entries.lost,
        }
    }

    /// Cancelled when nothing more may start: the partition is to be released, or the consumer stops.
    pub(in crate::consumer) fn revoked(&self) -> &CancellationToken {
        match self {
            Self::Partition(guard) => guard.revoked(),
            Self::Entries(entries) => &entries.revoked,
        }
    }

    /// Asks the worker to end.
    pub(in crate::consumer) fn revoke(&self) {
        self.revoked().cancel();
    }

    /// Records that somebody else has the partition.
    pub(in crate::consumer) fn lose(&self) {
        if let Self::Partition(guard) = self {
            guard.lose();
        }
    }

    /// Whether messages may start: the lease of the partition can be relied on. Entries that have leases of their own are
    /// looked at one by one.
    pub(in crate::consumer) fn is_live(&self, now: Instant) -> bool {
        match self {
            Self::Partition(guard) => guard.is_live(now),
            Self::Entries(entries) => !entries.stop.is_cancelled(),
        }
    }

    /// Waits until the lease of the partition can be relied on. False if it is lost. Waits for ever if nothing may start any
    /// more.
    pub(in crate::consumer) async fn live(&self) -> bool {
        match self {
            Self::Partition(guard) => guard.live().await,
            Self::Entries(entries) if entries.stop.is_cancelled() => std::future::pending().await,
            Self::Entries(_) => true,
        }
    }

    /// Returns a number that changes when the leases of entries do.
    pub(in crate::consumer) fn version(&self) -> u64 {
        match self {
            Self::Partition(_) => 0,
            Self::Entries(entries) => entries.leases.version(),
        }
    }

    /// Waits until the leases of entries have changed since this version. Waits for ever if the partition has a lease.
    pub(in crate::consumer) async fn changed_since(&self, version: u64) {
        match self {
            Self::Partition(_) => std::future::pending().await,
            Self::Entries(entries) => entries.leases.changed_since(version).await,
        }
    }
}
