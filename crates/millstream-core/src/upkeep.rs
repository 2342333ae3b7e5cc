//! Upkeep: background work for an owned partition, done by its owner.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::leases::Lease;

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
