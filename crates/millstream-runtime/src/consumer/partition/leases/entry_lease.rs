//! The lease of one entry of a consumer that shares its partitions: its key, what may be done under it, and the view of it that
//! the entry's handler has.

use std::sync::Arc;

use millstream_core::Partition;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Entry, Receipt};
use millstream_core::shared::{Shared, SharedMember};
use tokio_util::sync::CancellationToken;

use crate::consumer::partition::leases::entry_leases::EntryLeases;

/// Id of an entry among all partitions.
pub(in crate::consumer) type Id = (Partition, Receipt);

/// Key of the lease of an entry. After a fail-over that lost the end of a log, the server can assign the id of a lost entry
/// again: then two entries have the same id, one after the other, and what is decided about the first must not touch
/// the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::consumer) struct Key {
    pub(in crate::consumer) partition: Partition,
    pub(in crate::consumer) receipt: Receipt,
    /// Number of the lease, or [`NO_LEASE`].
    pub(in crate::consumer) serial: u64,
}

/// Serial number where an entry has no lease of its own: of a ghost, whose fields are gone, and of entries of a partition that
/// has an owner.
pub(in crate::consumer) const NO_LEASE: u64 = 0;

impl Key {
    pub(in crate::consumer) fn id(self) -> Id {
        (self.partition, self.receipt)
    }
}

/// Entry that was read or claimed and is in flight now.
pub(in crate::consumer) struct Admitted {
    pub(in crate::consumer) entry: Entry,
    /// Number of its lease, or [`NO_LEASE`].
    pub(in crate::consumer) serial: u64,
}

/// Whether a settlement may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Standing {
    /// It may.
    Ours,
    /// Not yet: the reader has started over, and has not found the entry under our name so far.
    Unconfirmed,
    /// No more: somebody else has the entry, or the server has lost it.
    Gone,
}

/// Whether a handler may start.
#[derive(Clone, Debug)]
pub(in crate::consumer) enum Live {
    /// It may. The token is cancelled when somebody else may have the entry.
    Now(CancellationToken),
    /// Not yet: the entry was not extended in time, and may be lost.
    Uncertain,
    /// No more: somebody else has the entry, or it is settled.
    Gone,
}

/// Lease of one entry, as its handler has it.
#[derive(Clone)]
pub(in crate::consumer) struct EntryLease {
    pub(in crate::consumer) leases: Arc<EntryLeases>,
    pub(in crate::consumer) member: Arc<SharedMember>,
    pub(in crate::consumer) key: Key,
}

impl EntryLease {
    /// Asks the server at once whether the entry is still ours, and extends it for another ttl.
    pub(in crate::consumer) async fn extend(self, shared: Arc<dyn Shared>) -> Result<()> {
        let Key { partition, receipt, .. } = self.key;
        // Taken before the request: the ttl cannot have started earlier.
        let asked = self.leases.clock.now();
        let lost = shared.extend(&self.member, partition, &[receipt]).await?;
        if lost.is_empty() {
            self.leases.extended(std::iter::once(self.key), asked);
            return Ok(());
        }
        self.leases.lost([self.key]);
        Err(Error::new(
            ErrorKind::Fenced,
            format!("entry {} of partition {partition} is not held by this consumer", receipt.id),
        ))
    }
}
