//! What deliveries hold: the lease of their partition, or that of their entry.

use std::sync::Arc;

use millstream_core::TopicPartition;

use crate::consumer::context::Context;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::partition::held::holding::{EntryLease, Live};
use crate::consumer::partition::held::{OwnedBy, SharedPartition};

/// Gives jobs that start what their deliveries hold.
pub(in crate::consumer) struct Holder {
    context: Arc<Context>,
    topic_partition: TopicPartition,
    owned_by: OwnedBy,
    /// What deliveries hold under the lease of the partition. Renewed when the lease could not be relied on for a while.
    owned: Option<Arc<PartitionHandle>>,
    /// Value of the guard's [`trust`](LeaseGuard::trust) when `owned` was created.
    trust: u64,
    /// Version of the leases of entries when one could not be relied on.
    uncertain: Option<u64>,
}

/// Jobs that were to start.
#[derive(Default)]
pub(in crate::consumer) struct Held {
    /// They may start.
    pub(in crate::consumer) live: Unit,
    /// It is not certain that their entries are still ours.
    pub(in crate::consumer) uncertain: Unit,
    /// Somebody else has their entries.
    pub(in crate::consumer) gone: Unit,
}

impl Holder {
    pub(in crate::consumer) fn new(
        context: Arc<Context>,
        topic_partition: TopicPartition,
        owned_by: OwnedBy,
    ) -> Self {
        // 0 is the oldest value: one that is read after the token was created could belong to a newer token.
        Self { context, topic_partition, owned_by, owned: None, trust: 0, uncertain: None }
    }

    /// Whether messages wait until it is known whether their entries are still ours.
    pub(in crate::consumer) fn is_uncertain(&self) -> bool {
        self.uncertain.is_some()
    }

    /// Whether messages need not wait (any more) until it is known whether their entries are ours.
    pub(in crate::consumer) fn is_certain_again(&mut self) -> bool {
        let certain = self.uncertain.is_none_or(|version| version != self.owned_by.version());
        if certain {
            self.uncertain = None;
        }
        certain
    }

    /// Records that an outcome of a message was decided. False if it is no longer ours: then the outcome comes too late.
    pub(in crate::consumer) fn decided(&self, job: &Job) -> bool {
        match &self.owned_by {
            OwnedBy::Lease(_) => true,
            OwnedBy::Entries(entries) => entries.leases.decided(entries.key(job.receipt, job.serial)),
        }
    }

    /// Gives each of these jobs what its delivery holds, if it may start.
    pub(in crate::consumer) fn hold(&mut self, mut unit: Unit) -> Held {
        match self.owned_by.clone() {
            OwnedBy::Lease(guard) => {
                self.trust_again(&guard);
                unit.iter_mut().for_each(|(_, job)| job.held.clone_from(&self.owned));
                Held { live: unit, ..Held::default() }
            }
            OwnedBy::Entries(entries) => self.hold_entries(&entries, unit),
        }
    }

    /// Creates a new partition handle if the lease could not be relied on for a while: new messages can rely on it again.
    fn trust_again(&mut self, guard: &Arc<LeaseGuard>) {
        // Compared first, because it is one atomic load, and this runs for every unit.
        let trust = guard.trust();
        let changed = trust != std::mem::replace(&mut self.trust, trust);
        let renew = |owned: &Arc<PartitionHandle>| changed && owned.cancelled.is_cancelled();
        if self.owned.as_ref().is_none_or(renew)
            && let Ok(owned) = PartitionHandle::new(&self.context, guard)
        {
            self.owned = Some(Arc::new(owned));
        }
    }

    fn hold_entries(&mut self, entries: &Arc<SharedPartition>, unit: Unit) -> Held {
        // Read before the leases, so that a change in between is not missed.
        let version = self.owned_by.version();
        let mut held = Held::default();
        for (ticket, mut job) in unit {
            let key = entries.key(job.receipt, job.serial);
            match entries.leases.live(key) {
                Live::Now(cancelled) => {
                    let (leases, member) = (entries.leases.clone(), entries.member.clone());
                    let place = (self.topic_partition.clone(), self.context.group.clone());
                    let lease = EntryLease { leases, member, key };
                    let handle = PartitionHandle::shared(&self.context, place, cancelled, lease);
                    job.held = Some(Arc::new(handle));
                    held.live.push((ticket, job));
                }
                Live::Uncertain => {
                    self.uncertain = Some(version);
                    held.uncertain.push((ticket, job));
                }
                Live::Gone => held.gone.push((ticket, job)),
            }
        }
        held
    }
}
