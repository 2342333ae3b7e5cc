//! The renewal loop: all leases of a consumer in one request, three times per ttl.

use std::sync::Arc;

use millstream_core::Lease;
use millstream_core::error::ErrorKind;
use tokio::time::Instant;

use super::context::Context;
use super::guard::Guard;
use super::ownership::Guards;
use crate::trouble::Trouble;

/// Renews the leases of all partitions that are owned. One lost renewal does no harm, two in a row stop dispatch.
pub(super) struct Renewer {
    pub(super) context: Arc<Context>,
    pub(super) guards: Guards,
    pub(super) trouble: Trouble,
}

impl Renewer {
    /// Renews until dropped.
    pub(super) async fn run(mut self) {
        let period = self.context.config.lease_ttl / 3;
        let mut ticks = tokio::time::interval(period);
        // After a stall one renewal is enough: the missed ones would all come at once.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.run_once().await;
        }
    }

    async fn run_once(&mut self) {
        let guards: Vec<Arc<Guard>> = self.guards.all();
        if guards.is_empty() {
            return;
        }
        let leases: Vec<Lease> = guards.iter().map(|guard| guard.lease().clone()).collect();
        // Taken before the request: the ttl cannot have started earlier.
        let asked = Instant::now();
        let results = self.context.backend.leases.renew(&leases).await;
        let mut failed = None;
        for (guard, result) in guards.iter().zip(results) {
            match result {
                Ok(()) => guard.renewed(asked),
                Err(error) if error.kind() == ErrorKind::Fenced => guard.lose(),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => self.trouble.over(&*self.context.observer, None),
            // The next tick is the pause.
            Some(error) => {
                let _ = self.trouble.met(&error, &*self.context.observer, None);
            }
        }
    }
}
