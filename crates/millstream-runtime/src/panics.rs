//! Catches panics of asynchronous user code. Panics of functions are caught by [`millstream_core::panics`].

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::panics::{Panicked, UserCode, catch};
use millstream_core::upkeep::{Sleep, Trigger};
use millstream_core::{Lease, Observer, Upkeep};

/// An upkeep whose panics become errors of its loop. The loop reports them and tries again after a pause.
pub(crate) struct CarefulUpkeep {
    upkeep: Arc<dyn Upkeep>,
    name: &'static str,
    trigger: Trigger,
    observer: Arc<dyn Observer>,
}

impl CarefulUpkeep {
    pub(crate) fn over(upkeep: Arc<dyn Upkeep>, observer: &Arc<dyn Observer>) -> Arc<dyn Upkeep> {
        // Called once: name and trigger do not change.
        let (name, trigger) = match catch(UserCode::Upkeep, || (upkeep.name(), upkeep.trigger())) {
            Ok(says) => says,
            Err(panicked) => {
                observer.observe(&panicked.event());
                ("upkeep", Trigger::Parked)
            }
        };
        Arc::new(Self { upkeep, name, trigger, observer: observer.clone() })
    }
}

#[async_trait]
impl Upkeep for CarefulUpkeep {
    fn name(&self) -> &'static str {
        self.name
    }

    fn trigger(&self) -> Trigger {
        self.trigger
    }

    async fn run_once(&self, lease: &Lease, events: &dyn Observer) -> Result<Option<Duration>> {
        // In a block of its own, so that the future is dropped inside the caught block: that may panic, too.
        let round = async { self.upkeep.run_once(lease, events).await };
        AssertUnwindSafe(round).catch_unwind().await.unwrap_or_else(|payload| {
            let panicked = Panicked::new(UserCode::Upkeep, payload);
            events.observe(&panicked.event());
            Err(Error::new(ErrorKind::Protocol, panicked.to_string()).with_source(panicked))
        })
    }

    fn sleep(&self, time: Duration) -> Option<Sleep> {
        let sleep = match catch(UserCode::Upkeep, || self.upkeep.sleep(time)) {
            Ok(sleep) => sleep?,
            Err(panicked) => {
                self.observer.observe(&panicked.event());
                return None;
            }
        };
        let observer = self.observer.clone();
        Some(Box::pin(async move {
            if let Err(payload) = AssertUnwindSafe(sleep).catch_unwind().await {
                observer.observe(&Panicked::new(UserCode::Upkeep, payload).event());
                // Sleeps here instead: a sleep that panics each time would otherwise keep a processor busy.
                tokio::time::sleep(time).await;
            }
        }))
    }
}

impl fmt::Debug for CarefulUpkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarefulUpkeep").field("name", &self.name).finish_non_exhaustive()
    }
}
