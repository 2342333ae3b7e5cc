//! The server's clock, estimated locally, for messages that wait in place.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::schedule::Place;
use tokio::time::{Instant, sleep};

use crate::consumer::RetryOrder;
use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;

/// How often the clock is read: two clocks that run at different speeds must not drift apart.
const PERIOD: Duration = Duration::from_secs(60);

/// Estimate of the clock of the server that stores one partition. If the partition moves to another server, the estimate is
/// that of the one before for up to [`PERIOD`].
#[derive(Debug, Default)]
pub(in crate::consumer) struct ServerClock {
    /// The last server time in milliseconds, and when it was received.
    told: Mutex<Option<(u64, Instant)>>,
}

impl ServerClock {
    /// Returns milliseconds since 1970, never ahead of the server; `None` if it was not read yet.
    pub(in crate::consumer) fn now(&self) -> Option<u64> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (ms, at) = told?;
        let since = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(ms.saturating_add(since))
    }

    /// Reads the clock periodically, until the lease is lost or released. Returns at once if no message can wait in
    /// place.
    pub(in crate::consumer) async fn run(&self, context: &Subscription, guard: &LeaseGuard) {
        if context.config.retry_order == RetryOrder::Skip {
            return;
        }
        let place = Place::from(guard.topic_partition().clone());
        let monitor = context.monitor_of("clock", guard.topic_partition());
        let work = async {
            loop {
                monitor.begin_round(Duration::ZERO);
                match self.run_once(context, &place).await {
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

    async fn run_once(&self, context: &Subscription, place: &Place) -> Result<()> {
        let now = context.backend.schedule().now_at(place).await?;
        // Counted from the arrival of the reply, so the estimate is never ahead and no message is retried early.
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((now.as_millis(), Instant::now()));
        Ok(())
    }
}
