//! Adopting: takes over what stands under other names in a partition that we own.
//!
//! Consumers that shared the partition left it there, or somebody by hand. Nobody else would ever look at it.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use millstream_loops::LoopMonitor;

/// The most entries of one look.
const MOST: usize = 100;

/// How many ttls there are between two looks that find nothing: looking costs requests, and there is hardly ever anything.
const SELDOM: u32 = 6;

/// Looks when the partition is ours, and after a ttl (what was in hand is old enough then); then seldom, as long as it
/// finds nothing.
pub(in crate::consumer) struct OrphanClaimer {
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    due: Instant,
    /// How many ttls after this look the next one is.
    ttls: u32,
    monitor: LoopMonitor,
}

impl OrphanClaimer {
    pub(in crate::consumer) fn new(context: Arc<Subscription>, guard: Arc<LeaseGuard>) -> Self {
        let monitor = match guard.lease().partition() {
            Ok((topic_partition, _)) => context.monitor_of("adopt", topic_partition),
            Err(_) => context.monitor("adopt"),
        };
        Self { context, guard, due: Instant::now(), ttls: 1, monitor }
    }

    /// How long until it is time again.
    pub(in crate::consumer) fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Looks if it is time. True if a new reader will find more among what is pending. An error that is this one's alone
    /// is told, and does not keep anybody from reading.
    pub(in crate::consumer) async fn run_once(&mut self) -> Result<bool> {
        let now = Instant::now();
        if now < self.due {
            return Ok(false);
        }
        let lease = self.guard.lease();
        let (topic_partition, group) = lease.partition()?;
        let observer = &*self.context.observer;
        match self.context.backend.shared.adopt(lease, lease.ttl, MOST, &self.context.heard()).await {
            Ok(messages) => {
                self.monitor.succeeded(observer);
                if messages > 0 {
                    tracing::info!(%topic_partition, %group, messages, "taken over from other names");
                }
                self.due = if messages < MOST { now + lease.ttl * self.ttls } else { now };
                self.ttls = if messages > 0 { 1 } else { SELDOM };
                Ok(messages > 0)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::GroupMissing) => Err(error),
            Err(error) => {
                self.due = Instant::now() + self.monitor.failed(&error, observer);
                // It may have been done.
                Ok(error.kind() == ErrorKind::Unconfirmed)
            }
        }
    }
}
