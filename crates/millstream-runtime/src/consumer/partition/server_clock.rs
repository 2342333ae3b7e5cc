//! The server's clock, as far as it is known here: for messages that wait in their place.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use tokio::time::{Instant, sleep};

use crate::consumer::RetryOrder;
use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;

/// How often it is looked at: two clocks that run differently must not drift apart.
const PERIOD: Duration = Duration::from_secs(60);

/// The clock of the server that one partition is on.
#[derive(Debug, Default)]
pub(in crate::consumer) struct ServerClock {
    /// What it said, and when.
    told: Mutex<Option<(u64, Instant)>>,
}

impl ServerClock {
    /// Milliseconds since 1970, and never more than the server says; `None` if it has not been asked yet.
    pub(in crate::consumer) fn now(&self) -> Option<u64> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (ms, at) = told?;
        let since = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(ms.saturating_add(since))
    }

    /// Looks at it now and then, until the lease is lost or given back. Where nothing waits in its place it is not
    /// needed.
    pub(in crate::consumer) async fn run(&self, context: &Subscription, guard: &LeaseGuard) {
        let Ok((topic_partition, _)) = guard.lease().partition() else { return };
        if context.config.retry_order == RetryOrder::Skip {
            return;
        }
        let monitor = context.monitor_of("clock", topic_partition);
        let work = async {
            loop {
                monitor.begin_round(Duration::ZERO);
                match self.run_once(context, guard).await {
                    Ok(()) => {
                        monitor.succeeded(&*context.observer);
                        monitor.idle();
                        sleep(PERIOD).await;
                    }
                    Err(error) => sleep(monitor.failed(&error, &*context.observer)).await,
                }
            }
        };
        tokio::select! {
            biased;
            () = guard.revoked().cancelled() => {}
            () = guard.lost().cancelled() => {}
            () = work => {}
        }
    }

    async fn run_once(&self, context: &Subscription, guard: &LeaseGuard) -> Result<()> {
        let (topic_partition, _) = guard.lease().partition()?;
        let now = context.backend.recurring.due(&topic_partition.clone().into()).await?.now;
        // Counted from the answer: what waits until a time is never early.
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
        Ok(())
    }
}
