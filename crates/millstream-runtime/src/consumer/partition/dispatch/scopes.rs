//! The scopes of deliveries: one for all messages under the lease of the partition, or one for each entry.

use std::sync::Arc;

use millstream_core::TopicPartition;

use crate::consumer::context::Context;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::leases::entry_lease::{EntryLease, Live};
use crate::consumer::partition::leases::{SharedPartition, WorkerLease};
use crate::consumer::partition::rights::{under_entry_lease, under_lease};
use millstream_engine::delivery::{Cancelled, DeliveryScope};
use tokio_util::sync::CancellationToken;

/// Gives jobs that start the scopes of their deliveries.
pub(in crate::consumer) struct Scopes {
    context: Arc<Context>,
    topic_partition: TopicPartition,
    lease: WorkerLease,
    /// The messages that were cancelled from outside.
    cancelled: Arc<Cancelled>,
    /// The scope under the lease of the partition. Another one is created when the lease could not be relied on for a while.
    shared: Option<Arc<DeliveryScope>>,
    /// A scope of `shared` for messages that have units of limits, and the one from which it was made.
    limited: Option<(Arc<DeliveryScope>, Arc<DeliveryScope>)>,
    /// Value of the guard's [`trust`](LeaseGuard::trust) when `shared` was created.
    trust: u64,
    /// Version of the leases of entries when one could not be relied on.
    uncertain: Option<u64>,
}

/// Jobs that were to start, by the state of their leases.
#[derive(Default)]
pub(in crate::consumer) struct SortedUnit {
    /// They may start.
    pub(in crate::consumer) live: Unit,
    /// It is not certain that their entries are still ours.
    pub(in crate::consumer) uncertain: Unit,
    /// Somebody else has their entries.
    pub(in crate::consumer) gone: Unit,
}

impl Scopes {
    pub(in crate::consumer) fn new(
        context: Arc<Context>,
        topic_partition: TopicPartition,
        lease: WorkerLease,
        cancelled: Arc<Cancelled>,
    ) -> Self {
        // 0 is the oldest value: one that is read after the token was created could belong to a newer token.
        Self {
            context,
            topic_partition,
            lease,
            cancelled,
            shared: None,
            limited: None,
            trust: 0,
            uncertain: None,
        }
    }

    /// Whether messages wait until it is known whether their entries are still ours.
    pub(in crate::consumer) fn is_uncertain(&self) -> bool {
        self.uncertain.is_some()
    }

    /// Whether messages need not wait (any more) until it is known whether their entries are ours.
    pub(in crate::consumer) fn is_certain_again(&mut self) -> bool {
        let certain = self.uncertain.is_none_or(|version| version != self.lease.version());
        if certain {
            self.uncertain = None;
        }
        certain
    }

    /// Records that an outcome of a message was decided. False if it is no longer ours: then the outcome comes too late.
    pub(in crate::consumer) fn decided(&self, job: &Job) -> bool {
        let entries = self.lease.entries();
        entries.is_none_or(|entries| entries.leases.decided(entries.key(job.receipt, job.serial)))
    }

    /// Gives each of these jobs the scope of its delivery, if it may start.
    pub(in crate::consumer) fn give(&mut self, mut unit: Unit) -> SortedUnit {
        if let Some(entries) = self.lease.entries().cloned() {
            return self.give_entries(&entries, unit);
        }
        if let Some(guard) = self.lease.guard().cloned() {
            self.trust_again(&guard);
        }
        unit.iter_mut().for_each(|(_, job)| job.scope.clone_from(&self.shared));
        SortedUnit { live: unit, ..SortedUnit::default() }
    }

    /// Creates a new scope if the lease could not be relied on for a while: new messages can rely on it again.
    fn trust_again(&mut self, guard: &Arc<LeaseGuard>) {
        // Compared first, because it is one atomic load, and this runs for every unit.
        let trust = guard.trust();
        let changed = trust != std::mem::replace(&mut self.trust, trust);
        let is_old = |handle: &Arc<DeliveryScope>| changed && handle.cancelled.is_cancelled();
        if self.shared.as_ref().is_none_or(is_old) {
            self.shared =
                Some(Arc::new(under_lease(&self.context, guard).with_cancelled(self.cancelled.clone())));
        }
    }

    /// Returns this scope for a message that has units of limits, until `right` is cancelled.
    pub(in crate::consumer) fn with_units(
        &mut self,
        scope: &Arc<DeliveryScope>,
        right: &CancellationToken,
    ) -> Arc<DeliveryScope> {
        // All units of a consumer have one right, and another one only when that is cancelled.
        if let Some((of, limited)) = &self.limited
            && Arc::ptr_eq(of, scope)
            && !limited.is_cancelled()
        {
            return limited.clone();
        }
        let limited = Arc::new(scope.with_units(right.clone()));
        self.limited = Some((scope.clone(), limited.clone()));
        limited
    }

    fn give_entries(&mut self, entries: &Arc<SharedPartition>, unit: Unit) -> SortedUnit {
        // Read before the leases, so that a change in between is not missed.
        let version = self.lease.version();
        let mut sorted = SortedUnit::default();
        for (ticket, mut job) in unit {
            let key = entries.key(job.receipt, job.serial);
            match entries.leases.live(key) {
                Live::Now(cancelled) => {
                    let (leases, member) = (entries.leases.clone(), entries.member.clone());
                    let lease = EntryLease { leases, member, key };
                    let topic_partition = self.topic_partition.clone();
                    let scope = under_entry_lease(&self.context, topic_partition, cancelled, lease);
                    job.scope = Some(Arc::new(scope.with_cancelled(self.cancelled.clone())));
                    sorted.live.push((ticket, job));
                }
                Live::Uncertain => {
                    self.uncertain = Some(version);
                    sorted.uncertain.push((ticket, job));
                }
                Live::Gone => sorted.gone.push((ticket, job)),
            }
        }
        sorted
    }
}
