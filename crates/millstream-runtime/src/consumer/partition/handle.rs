//! The partition handle of a delivery.

use std::fmt;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{GroupName, TopicPartition};
use tokio_util::sync::CancellationToken;

use crate::consumer::context::Context;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::partition::leases::entry_lease::EntryLease;

/// Partition handle of a delivery. Messages that started under the same trust in the lease share one.
pub(crate) struct PartitionHandle {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) group: GroupName,
    pub(crate) epoch: u64,
    /// Cancelled when the lease can no longer be relied on.
    pub(crate) cancelled: CancellationToken,
    lease: HandleLease,
}

/// The lease under which a message is handled.
enum HandleLease {
    /// That of its partition.
    Partition(Arc<Context>, Arc<LeaseGuard>),
    /// That of its entry, which is pending under our name.
    Entry(Arc<Context>, Arc<EntryLease>),
    /// None: nobody else can get the message meanwhile, or it is one of a test.
    None,
}

impl PartitionHandle {
    pub(in crate::consumer) fn new(context: &Arc<Context>, guard: &Arc<LeaseGuard>) -> Self {
        Self {
            topic_partition: guard.topic_partition().clone(),
            group: guard.group().clone(),
            epoch: guard.lease().epoch,
            cancelled: guard.cancelled(),
            lease: HandleLease::Partition(context.clone(), guard.clone()),
        }
    }

    /// Creates the handle for one message of a partition without an owner (shared mode).
    pub(in crate::consumer) fn shared(
        context: &Arc<Context>,
        (topic_partition, group): (TopicPartition, GroupName),
        cancelled: CancellationToken,
        lease: EntryLease,
    ) -> Self {
        let lease = HandleLease::Entry(context.clone(), Arc::new(lease));
        Self { topic_partition, group, epoch: 0, cancelled, lease }
    }

    /// Creates the handle of a message that no lease covers: that of a dead letter, or one that a test makes. It is never cancelled.
    pub(crate) fn without_lease(topic_partition: TopicPartition, group: GroupName, epoch: u64) -> Self {
        Self { topic_partition, group, epoch, cancelled: CancellationToken::new(), lease: HandleLease::None }
    }

    /// Waits until nothing of this partition may start any more.
    pub(in crate::consumer) async fn ending(&self) {
        let (ended, given_up) = match &self.lease {
            HandleLease::Partition(_, guard) => (guard.lost(), guard.revoked()),
            HandleLease::Entry(context, _) => (&self.cancelled, &context.stop),
            HandleLease::None => (&self.cancelled, &self.cancelled),
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            () = given_up.cancelled() => {}
        }
    }

    /// Asks the server at once whether the message is still ours, and extends the lease or claim for another ttl.
    pub(in crate::consumer) async fn extend(&self) -> Result<()> {
        let (context, guard) = match &self.lease {
            HandleLease::Partition(context, guard) => (context, guard),
            HandleLease::Entry(context, lease) => {
                let extend = lease.clone().extend(context.backend.shared()?.clone());
                return context.control.call(extend).await;
            }
            HandleLease::None => return Ok(()),
        };
        let (leases, lease) = (context.backend.leases().clone(), guard.lease().clone());
        // Taken before the request: the ttl cannot have started earlier.
        let asked = context.lease_clock.now();
        let renew = async move {
            let unanswered = || Err(Error::new(ErrorKind::Protocol, "a renewal was not answered"));
            leases.renew(&[lease]).await.pop().unwrap_or_else(unanswered)
        };
        let renewed = context.control.call(renew).await;
        match &renewed {
            Ok(()) => guard.renewed(asked),
            Err(error) if error.kind() == ErrorKind::Fenced => guard.lose(),
            Err(_) => {}
        }
        renewed
    }
}

impl fmt::Debug for PartitionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionHandle")
            .field("topic_partition", &self.topic_partition)
            .field("group", &self.group)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
