//! Work of the owner of a partition beside its messages: upkeep in the background, and hooks when partitions come and go.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::leases::Lease;
use crate::topic::TopicPartition;

/// Condition under which upkeep is run before it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trigger {
    /// A message was parked for a retry.
    Parked,
    /// Messages were settled; but it is run no more often than `at_most_every`.
    Settled {
        /// The shortest time between two runs.
        at_most_every: Duration,
    },
}

/// Sleep that an [`Upkeep`] provides itself.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Background work for an owned partition, beside its messages: promoting due messages, trimming.
///
/// The runtime calls [`run_once`](Upkeep::run_once) when a partition was acquired, when the work is due and when it was
/// triggered; never concurrently for one partition, and no more once the lease is gone. The runtime does not know what
/// the work is: this is how the promoter of `millstream-delay` runs inside a consumer.
#[async_trait]
pub trait Upkeep: fmt::Debug + Send + Sync {
    /// Returns the name of the work, for events and logs: "promote".
    fn name(&self) -> &'static str;

    /// Returns the condition under which it is run before it is due.
    fn trigger(&self) -> Trigger;

    /// Does the work that is due now, in a bounded time. Returns the time until the next run at the latest; `None` means
    /// when triggered.
    ///
    /// # Errors
    /// Those of the role it works with. The runtime emits an event and retries after a pause.
    async fn run_once(&self, lease: &Lease, events: &dyn crate::Observer) -> Result<Option<Duration>>;

    /// Returns a sleep for the time that [`run_once`](Upkeep::run_once) returned, if it can be more precise than a
    /// runtime's timer, which is a millisecond late. Default: `None`. The runtime drops it when the work is triggered
    /// before.
    fn sleep(&self, time: Duration) -> Option<Sleep> {
        let _ = time;
        None
    }
}

/// Hooks that a consumer awaits when it gets a partition and when it gives one up: to load what belongs to the partition, and to
/// save it before the next owner begins.
///
/// Each hook may take one ttl of the lease, and is dropped then; so is one that runs when the lease is lost, and when handlers are
/// given up at the end of a shutdown. Hooks of different partitions run at the same time. A panic is reported, and work goes on.
///
/// A seek releases the partition and acquires it again, so its hooks are called too. A hook must not wait for a seek of its own
/// partition.
#[async_trait]
pub trait RebalanceListener: fmt::Debug + Send + Sync {
    /// Called when this instance owns the partition, before its first message is read. `epoch` grows with each owner: a store
    /// that compares it accepts no write of an owner after those of a later one. Default: does nothing.
    async fn acquired(&self, topic_partition: &TopicPartition, epoch: u64) {
        let _ = (topic_partition, epoch);
    }

    /// Called before the partition is released: its handlers have ended, what they handled is settled, and no other instance
    /// has the partition. Default: does nothing.
    async fn before_release(&self, topic_partition: &TopicPartition, epoch: u64) {
        let _ = (topic_partition, epoch);
    }

    /// Called after the lease was lost: another instance may own the partition already, and handlers may still run here.
    /// Default: does nothing.
    async fn after_loss(&self, topic_partition: &TopicPartition, epoch: u64) {
        let _ = (topic_partition, epoch);
    }
}
