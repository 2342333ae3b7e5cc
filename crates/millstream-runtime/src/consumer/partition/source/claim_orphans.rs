//! Claiming orphans: takes over entries that are pending under other names in a partition that we own.
//!
//! Consumers in shared mode left them there, or somebody did so by hand. Nobody else would ever read them.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use millstream_engine::LoopMonitor;

/// Maximum number of entries per request.
const MOST: usize = 100;

/// Pause, in ttls, after a check that finds nothing: a check costs requests, and there is hardly ever anything.
const SELDOM: u32 = 18;

/// Claims when the partition is acquired, and again after one ttl, when entries of other consumers are idle long enough;
/// after that seldom, as long as it finds nothing.
pub(in crate::consumer) struct OrphanClaimer {
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    due: Instant,
    /// Pause between the next check and the one after it.
    pause: Duration,
    monitor: LoopMonitor,
}

impl OrphanClaimer {
    pub(in crate::consumer) fn new(context: Arc<Subscription>, guard: Arc<LeaseGuard>) -> Self {
        let monitor = context.monitor_of("adopt", guard.topic_partition());
        let pause = context.config.lease_ttl;
        Self { context, guard, due: Instant::now(), pause, monitor }
    }

    /// Returns the time until the next check.
    pub(in crate::consumer) fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Checks if it is time. True if a new reader will find more pending entries. An error of this check alone is
    /// reported, and does not prevent reading.
    pub(in crate::consumer) async fn run_once(&mut self) -> Result<bool> {
        let now = Instant::now();
        if now < self.due {
            return Ok(false);
        }
        let (lease, ttl) = (self.guard.lease(), self.context.config.lease_ttl);
        let Ok(shared) = self.context.backend.shared() else {
            // Without shared mode there are no entries under other names.
            self.due = now + lease.ttl * SELDOM;
            return Ok(false);
        };
        let (topic_partition, group) = (self.guard.topic_partition(), self.guard.group());
        let observer = &*self.context.observer;
        match shared.adopt(lease, ttl, MOST, &self.context.continuity()).await {
            Ok(messages) => {
                self.monitor.succeeded(observer);
                if messages > 0 {
                    tracing::info!(%topic_partition, %group, messages, "claimed from other consumer names");
                }
                self.due = if messages < MOST { now + self.pause } else { now };
                self.pause = if messages > 0 { ttl } else { lease.ttl * SELDOM };
                Ok(messages > 0)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::GroupMissing) => Err(error),
            Err(error) => {
                self.due = Instant::now() + self.monitor.failed(&error, observer);
                // The claim may have been executed.
                Ok(error.kind() == ErrorKind::Unconfirmed)
            }
        }
    }
}
