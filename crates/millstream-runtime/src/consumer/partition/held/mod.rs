//! What a worker holds: by the lease of its partition, or entry by entry.

pub(in crate::consumer) mod entry_leases;
pub(in crate::consumer) mod holding;
pub(in crate::consumer) mod id_set;
pub(in crate::consumer) mod in_flight;
pub(in crate::consumer) mod reserve;
pub(in crate::consumer) mod room;

use std::sync::Arc;

use millstream_core::Partition;
use millstream_core::log::Receipt;
use millstream_core::shared::SharedMember;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::group::lease::LeaseGuard;
use entry_leases::EntryLeases;
use holding::Key;

/// The reason why the entries of a worker are ours.
#[derive(Clone)]
pub(in crate::consumer) enum OwnedBy {
    /// We hold the lease of the partition.
    Lease(Arc<LeaseGuard>),
    /// Each entry is pending under our name, and has a lease of its own (shared mode).
    Entries(Arc<SharedPartition>),
}

/// A partition that all members read. Each of them holds some of its entries.
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

    /// Returns the key of one holding of an entry.
    pub(in crate::consumer) fn key(&self, receipt: Receipt, serial: u64) -> Key {
        Key { partition: self.partition, receipt, serial }
    }
}

impl OwnedBy {
    /// Cancelled when somebody else has the partition, or work on it is void.
    pub(in crate::consumer) fn lost(&self) -> &CancellationToken {
        match self {
            Self::Lease(guard) => guard.lost(),
            Self::Entries(entries) => &entries.lost,
        }
    }

    /// Cancelled when nothing more may start: the partition is to be released, or the consumer stops.
    pub(in crate::consumer) fn revoked(&self) -> &CancellationToken {
        match self {
            Self::Lease(guard) => guard.revoked(),
            Self::Entries(entries) => &entries.revoked,
        }
    }

    /// Asks the worker to end.
    pub(in crate::consumer) fn revoke(&self) {
        self.revoked().cancel();
    }

    /// Records that somebody else has the partition.
    pub(in crate::consumer) fn lose(&self) {
        if let Self::Lease(guard) = self {
            guard.lose();
        }
    }

    /// Whether messages may start: the lease of the partition can be relied on. Entries that have leases of their own are
    /// looked at one by one.
    pub(in crate::consumer) fn is_live(&self, now: Instant) -> bool {
        match self {
            Self::Lease(guard) => guard.is_live(now),
            Self::Entries(entries) => !entries.stop.is_cancelled(),
        }
    }

    /// Waits until the lease of the partition can be relied on. False if it is lost. Waits for ever if nothing may start any
    /// more.
    pub(in crate::consumer) async fn live(&self) -> bool {
        match self {
            Self::Lease(guard) => guard.live().await,
            Self::Entries(entries) if entries.stop.is_cancelled() => std::future::pending().await,
            Self::Entries(_) => true,
        }
    }

    /// Returns a number that changes when the leases of entries do.
    pub(in crate::consumer) fn version(&self) -> u64 {
        match self {
            Self::Lease(_) => 0,
            Self::Entries(entries) => entries.leases.version(),
        }
    }

    /// Waits until the leases of entries have changed since this version. Waits for ever if the partition has a lease.
    pub(in crate::consumer) async fn changed_since(&self, version: u64) {
        match self {
            Self::Lease(_) => std::future::pending().await,
            Self::Entries(entries) => entries.leases.changed_since(version).await,
        }
    }
}
