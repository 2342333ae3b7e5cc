//! A partition as those see it who hold a message of it.

use std::fmt;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{GroupName, TopicPartition};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::guard::Guard;

/// A partition as those see it who hold a message of it. Messages that were started under the same trust in its
/// lease share one.
pub(crate) struct Owned {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) group: GroupName,
    pub(crate) epoch: u64,
    /// Cancelled when the lease can no longer be relied on.
    pub(crate) cancelled: CancellationToken,
    context: Arc<Context>,
    guard: Arc<Guard>,
}

impl Owned {
    pub(super) fn new(context: &Arc<Context>, guard: &Arc<Guard>) -> Result<Self> {
        let lease = guard.lease();
        let (topic_partition, group) = lease.partition()?;
        Ok(Self {
            topic_partition: topic_partition.clone(),
            group: group.clone(),
            epoch: lease.epoch,
            cancelled: guard.cancelled(),
            context: context.clone(),
            guard: guard.clone(),
        })
    }

    /// Ready when nothing of this partition is to start any more.
    pub(super) async fn ending(&self) {
        tokio::select! {
            biased;
            () = self.guard.lost().cancelled() => {}
            () = self.guard.revoked().cancelled() => {}
        }
    }

    /// Asks at once whether the partition is still ours, and lets its lease live for another ttl.
    pub(super) async fn extend(&self) -> Result<()> {
        let (leases, lease) = (self.context.backend.leases.clone(), self.guard.lease().clone());
        // Taken before the request: the ttl cannot have started earlier.
        let asked = Instant::now();
        let renew = async move {
            let unanswered = || Err(Error::new(ErrorKind::Protocol, "a renewal was not answered"));
            leases.renew(&[lease]).await.pop().unwrap_or_else(unanswered)
        };
        let renewed = self.context.heart.call(renew).await;
        match &renewed {
            Ok(()) => self.guard.renewed(asked),
            Err(error) if error.kind() == ErrorKind::Fenced => self.guard.lose(),
            Err(_) => {}
        }
        renewed
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned")
            .field("topic_partition", &self.topic_partition)
            .field("group", &self.group)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
