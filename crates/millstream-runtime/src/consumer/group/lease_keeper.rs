//! The renewal loop: renews all leases of a topic in one request, three times per ttl, and watches their deadlines.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Lease;
use millstream_core::error::{Error, ErrorKind};
use tokio::time::{Instant, sleep, timeout};

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::lease_table::LeaseTable;
use millstream_loops::LeaseClock;
use millstream_loops::LoopMonitor;

/// Renews the leases of all owned partitions. A lost renewal is repeated after at most 2/15 of the ttl (the time limit and the
/// pause), so that only several in a row stop dispatch: four, or two if the ttl is so short that the time limit is a quarter of it.
pub(in crate::consumer) struct LeaseKeeper {
    context: Arc<Subscription>,
    table: LeaseTable,
    monitor: LoopMonitor,
}

impl LeaseKeeper {
    pub(in crate::consumer) fn new(context: Arc<Subscription>, table: LeaseTable) -> Self {
        Self { monitor: context.monitor("renew"), context, table }
    }

    /// Renews until dropped.
    pub(in crate::consumer) async fn run(mut self) {
        let (table, clock) = (self.table.clone(), self.context.lease_clock.clone());
        let renewals = async {
            loop {
                let started = clock.now();
                let renewed = self.run_once().await;
                self.monitor.begin_round(self.context.period());
                match renewed {
                    // After a stall one renewal is enough: missed ones are not made up for. The clock counts suspended
                    // time: after a suspension the next renewal is late already, and is sent at once.
                    Ok(()) => clock.sleep_until(started + self.context.period()).await,
                    Err(pause) => sleep(pause).await,
                }
            }
        };
        tokio::select! {
            biased;
            () = watch_deadlines(&table, &clock) => {}
            () = renewals => {}
        }
    }

    /// Renews once. After a failure, returns the pause: shorter than the time to the next regular renewal.
    async fn run_once(&mut self) -> Result<(), Duration> {
        let mut guards = self.table.all();
        guards.retain(|guard| !guard.lost().is_cancelled());
        if guards.is_empty() {
            self.monitor.had_nothing_to_do("heartbeat", &*self.context.observer);
            return Ok(());
        }
        let leases: Vec<Lease> = guards.iter().map(|guard| guard.lease().clone()).collect();
        // Taken before the request: the ttl cannot have started earlier.
        let asked = self.context.lease_clock.now();
        let limit = self.context.renewal_timeout();
        let failed = match timeout(limit, self.context.backend.leases().renew(&leases)).await {
            Ok(results) => self.note(&guards, results, asked),
            Err(_) => {
                Some(Error::new(ErrorKind::Unconfirmed, format!("no answer to a renewal within {limit:?}")))
            }
        };
        match failed {
            None => {
                self.monitor.succeeded(&*self.context.observer);
                Ok(())
            }
            Some(error) => {
                let pause = self.monitor.failed(&error, &*self.context.observer);
                Err(self.context.retry_pause(&error, pause))
            }
        }
    }

    fn note(
        &self,
        guards: &[Arc<LeaseGuard>],
        results: Vec<millstream_core::Result<()>>,
        asked: Instant,
    ) -> Option<Error> {
        let mut failed = None;
        for (guard, result) in guards.iter().zip(results) {
            match result {
                Ok(()) => guard.renewed(asked),
                Err(error) if error.kind() == ErrorKind::Fenced => guard.lose(),
                Err(error) => failed = Some(error),
            }
        }
        failed
    }
}

/// Cancels the tokens of handlers at the deadline of their lease. Runs beside the renewals: a request that hangs must not
/// delay it.
async fn watch_deadlines(table: &LeaseTable, clock: &LeaseClock) {
    loop {
        let mut next = None;
        for guard in table.all() {
            if guard.expire() {
                tracing::warn!(resource = %guard.lease().resource, "not renewed in time: handlers are notified");
            }
            next = next.into_iter().chain(guard.deadline()).min();
        }
        let next = async {
            match next {
                Some(next) => clock.sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = table.added() => {}
            () = next => {}
        }
    }
}
