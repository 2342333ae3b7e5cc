//! Upkeep: background work that belongs to whoever owns a partition.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::leases::Lease;

/// What makes upkeep worth running before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trigger {
    /// A message was parked for a retry.
    Parked,
    /// Messages were settled; but not more often than this.
    Settled {
        /// The shortest time between two runs.
        at_most_every: Duration,
    },
}

/// A sleep of an [`Upkeep`]'s own.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work to be done for an owned partition, beside its messages: moving what is due, trimming.
///
/// The runtime calls [`run_once`](Upkeep::run_once) when a partition was acquired, when it is due and when it was
/// triggered; never twice at the same time for one partition, and no more once the lease is gone. It knows nothing
/// of what is done there: this is how the promoter of `millstream-delay` runs inside a consumer.
#[async_trait]
pub trait Upkeep: fmt::Debug + Send + Sync {
    /// What this is, for events and logs: "promote".
    fn name(&self) -> &'static str;

    /// What makes it worth running before its time.
    fn trigger(&self) -> Trigger;

    /// Does what is to be done now, in a bounded time. Gives back after which time to come back at the latest;
    /// `None` means when triggered.
    ///
    /// # Errors
    /// Those of the role it works with. The runtime tells and tries again after a pause.
    async fn run_once(&self, lease: &Lease, events: &dyn crate::Observer) -> Result<Option<Duration>>;

    /// Sleeps for as long as [`run_once`](Upkeep::run_once) said, if it can do so more precisely than a runtime's timer,
    /// which is a millisecond late. Default: it cannot. Dropped when it is triggered before.
    fn sleep(&self, time: Duration) -> Option<Sleep> {
        let _ = time;
        None
    }
}
