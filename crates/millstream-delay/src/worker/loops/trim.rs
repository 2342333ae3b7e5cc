//! Trims dead tasks: drops those that the retention of the queue does not keep.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::tasks::{TrimTasksBy, TrimmedTasks};
use millstream_core::{Capability, Shard};

use crate::worker::context::Context;
use millstream_engine::{LoopMonitor, Scope, catch_panic};

/// Minimum time between two trims after tasks died: these may be too many.
const AT_MOST_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks at the settings while all dead tasks are kept.
const KEPT: Duration = Duration::from_secs(60);
/// Pause before the next call if there is more to drop.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Trims the dead tasks of one shard: at the start, some time after tasks died, and periodically.
pub(in crate::worker) struct Trimmer {
    context: Arc<Context>,
    shard: Shard,
    monitor: LoopMonitor,
}

impl Trimmer {
    /// Returns the trimmers of all shards: none for a backend without a retention of dead tasks.
    pub(in crate::worker) fn of(context: &Arc<Context>) -> Vec<Self> {
        let shards =
            if context.backend.supports(Capability::TrimDeadTasks) { &context.shards[..] } else { &[] };
        let trimmer = |shard: &Shard| {
            let monitor = context.loops.monitor("trim", Scope::Shard(shard.clone()));
            Self { context: context.clone(), shard: shard.clone(), monitor }
        };
        shards.iter().map(trimmer).collect()
    }

    /// Trims until the worker ends.
    pub(in crate::worker) async fn run(self) {
        let context = &*self.context;
        while !context.stop.is_cancelled() {
            self.monitor.begin_round(Duration::ZERO);
            // Not cancelled by a stop, only by a kill: what an unheard call has dropped would not be counted.
            let round = tokio::select! {
                biased;
                round = catch_panic(self.run_once()) => round,
                () = context.kill.cancelled() => return,
            };
            let (pause, died) = match round {
                Ok((pause, died)) => {
                    self.monitor.succeeded(&*context.observer);
                    // Workers that start together do not come together for ever.
                    (pause.mul_f64(0.9 + 0.1 * fastrand::f64()), died)
                }
                Err(error) => (self.monitor.failed(&error, &*context.observer), false),
            };
            self.monitor.idle();
            tokio::select! {
                biased;
                () = context.stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.after_deaths(), if died => {}
            }
        }
    }

    /// Completes some time after the next task of this worker has died.
    async fn after_deaths(&self) {
        tokio::time::sleep(AT_MOST_EVERY).await;
        self.context.status.died(self.shard.shard as usize).await;
    }

    /// Trims once. Returns the pause before the next trim, and whether tasks that die end it.
    async fn run_once(&self) -> Result<(Duration, bool)> {
        let (context, shard) = (&*self.context, &self.shard);
        let known = context.settings.get().await?;
        let retention = known.dead_letters;
        if retention.is_keep() {
            return Ok((KEPT, false));
        }
        let by = TrimTasksBy::Worker { until: known.until };
        let trimmed = match context.backend.tasks()?.trim_dead(shard, retention, by).await {
            // This process was paused: somebody may have changed the settings meanwhile.
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::debug!(%shard, %error, "the settings of the queue are read again");
                context.settings.forget();
                return Ok((AT_MOST_EVERY, false));
            }
            trimmed => trimmed?,
        };
        let TrimmedTasks { aged, excess, more, .. } = trimmed;
        if aged + excess > 0 {
            tracing::warn!(%shard, aged, excess, %retention, "dead tasks were dropped");
            context.observer.observe(&Event::DeadTasksDropped { shard, aged, excess });
        }
        Ok(if more { (AT_ONCE, false) } else { (retention.period(), retention.max_length().is_some()) })
    }
}
