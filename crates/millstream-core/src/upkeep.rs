//! Upkeep: background work that belongs to whoever owns a partition.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::leases::Lease;

/// When upkeep wants to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After this time, or when something was settled that may make work sooner.
    After(Duration),
    /// When something was settled.
    WhenSettled,
}

/// Work to be done for an owned partition, beside its messages: moving what is due, trimming.
///
/// The runtime calls [`run_once`](Upkeep::run_once) when a partition was acquired and whenever it is due, never
/// twice at the same time for one partition, and no more once the lease is gone. It knows nothing of what is done
/// there: this is how the promoter of `millstream-delay` runs inside a consumer.
#[async_trait]
pub trait Upkeep: fmt::Debug + Send + Sync {
    /// What this is, for events and logs: "promote".
    fn name(&self) -> &'static str;

    /// Does what is to be done now, in a bounded time, and says when to come back.
    ///
    /// # Errors
    /// Those of the role it works with. The runtime tells and tries again after a pause.
    async fn run_once(&self, lease: &Lease) -> Result<Next>;
}
