//! How a pool begins and ends.

use std::sync::Arc;

use futures_util::FutureExt;
use millstream_core::Observer;
use millstream_core::error::Result;
use millstream_core::permits::{Reservation, TokenStep};
use tokio_util::task::AbortOnDropHandle;

use crate::limits::PermitPool;
use crate::monitor::{Loops, Scope};
use crate::thread::ControlThread;

/// The loops of a pool. They end when this is dropped.
pub struct PoolLoops {
    pool: Arc<PermitPool>,
    loops: AbortOnDropHandle<()>,
}

impl PoolLoops {
    /// Ends the loops, and gives back all units and tokens. What the server does not take within the limit of a request is free when the
    /// right has run out.
    pub async fn end(self) {
        drop(self.loops);
        if let Err(error) = self.pool.end().await {
            tracing::warn!(%error, "units of limits could not be given back: they are free when the lease has run out");
        }
    }
}

impl PermitPool {
    /// Lets it work until the result is dropped: it exchanges units, listens for calls, and renews the right.
    pub fn spawn(
        self: &Arc<Self>,
        control: &ControlThread,
        loops: &Loops,
        scope: &Scope,
        observer: &Arc<dyn Observer>,
    ) -> PoolLoops {
        let monitors = ["permits", "permit_calls", "renew_permits"];
        let monitors = monitors.map(|operation| loops.monitor(operation, scope.clone()));
        let run = self.clone().run(monitors, observer.clone());
        PoolLoops { pool: self.clone(), loops: control.spawn(run.boxed()) }
    }

    /// Gives back everything: the holder ends. Returns early, with an error, if the server does not answer within the limit of a request.
    async fn end(&self) -> Result<()> {
        let (holding, reservation) = {
            let mut state = self.state();
            // What is given back: nobody waits any more.
            let steps = state.tokens.reservation(self.keeper.clock().now()).0;
            let steps = steps.into_iter().filter(|step| !matches!(step, TokenStep::Reserves { .. }));
            let version = state.table.version();
            (state.holding.take(), Reservation { version, steps: steps.collect() })
        };
        if !reservation.steps.is_empty() {
            self.within(self.permits.reserve(&reservation)).await?;
        }
        let Some(holding) = holding else { return Ok(()) };
        self.free(&holding.holder).await
    }
}
