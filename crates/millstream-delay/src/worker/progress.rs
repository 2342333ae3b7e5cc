//! State of a worker, as plain values.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::health::{ConsumerState, WorkerCheck, WorkerHealth, WorkerLoop};
use millstream_core::{LimitName, Shard};
use tokio::time::Instant;

use crate::worker::context::Context;
use crate::worker::report::WorkerReport;

/// State of a worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Number of tasks held now, with those that wait for limits.
    pub running: usize,
    /// Maximum number of tasks held at once, beside those that wait for limits.
    pub concurrency: usize,
    /// How many tasks wait for limits, or for a handler after that.
    pub blocked: usize,
    /// How many tasks ask for what they need of each limit.
    pub waiting: Vec<(LimitName, usize)>,
    /// Counts of settled tasks so far.
    pub report: WorkerReport,
    /// Operations that fail now.
    pub failing: Vec<Failing>,
    /// Time since the server last answered a claim, by shard; `None` before the first answer. A worker without free
    /// capacity does not send claims.
    pub last_answers: Vec<(Shard, Option<Duration>)>,
    /// Whether it has ended, or is shutting down.
    pub ending: bool,
}

/// Operation that fails and is being repeated.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failing {
    /// Name of the operation: `claim`, `wait`, `fire`, `settle`, `extend` or `trim`.
    pub operation: &'static str,
    /// Shard of the operation; `None` for all shards.
    pub shard: Option<Shard>,
    /// Time since the first failure in a row.
    pub since: Duration,
    /// Last error.
    pub error: String,
}

impl Progress {
    pub(super) fn of(context: &Context) -> Self {
        let failing = context.loops.states().into_iter().filter_map(|state| {
            let (since, error) = state.failing?;
            let shard = state.scope.shard().cloned();
            Some(Failing { operation: state.operation, shard, since: since.elapsed(), error })
        });
        let last = |(nth, shard): (usize, &Shard)| (shard.clone(), context.status.last(nth));
        Self {
            running: context.held.len(),
            concurrency: context.config.concurrency,
            blocked: context.blocked.len(),
            waiting: waiting(context),
            report: context.counts.report(),
            failing: failing.collect(),
            last_answers: context.shards.iter().enumerate().map(last).collect(),
            ending: context.stop.is_cancelled(),
        }
    }

    /// Returns whether the worker is ready, for a readiness probe: nothing fails, it is not ending, and the server has
    /// answered a claim for each shard.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.ending && self.failing.is_empty() && self.last_answers.iter().all(|(_, last)| last.is_some())
    }
}

/// Reports the health of a worker, also after it has ended.
struct Checkup(Arc<Context>);

impl WorkerCheck for Checkup {
    fn health(&self) -> WorkerHealth {
        health(&self.0)
    }
}

pub(super) fn check(context: &Arc<Context>) -> Arc<dyn WorkerCheck> {
    Arc::new(Checkup(context.clone()))
}

fn waiting(context: &Context) -> Vec<(LimitName, usize)> {
    context.limited.as_ref().map(|pool| pool.waiting()).unwrap_or_default()
}

fn health(context: &Context) -> WorkerHealth {
    let now = Instant::now();
    let has_answered = (0..context.shards.len()).all(|shard| context.status.last(shard).is_some());
    let state = if context.ended.is_cancelled() {
        ConsumerState::Ended
    } else if context.stop.is_cancelled() {
        ConsumerState::Leaving
    } else if has_answered {
        ConsumerState::Running
    } else {
        ConsumerState::Joining
    };
    let loops = context.loops.states().into_iter().map(|state| {
        let mut health = WorkerLoop::new(state.operation, state.scope.shard().map(|shard| shard.shard));
        health.last_progress = now.saturating_duration_since(state.last);
        health.failing = state.failure(now);
        health.stalled = state.stalled;
        health
    });
    let mut health = WorkerHealth::new(context.queue.clone(), context.name.clone(), state);
    health.asked_to_end = context.stop.is_cancelled();
    health.running = context.held.len();
    health.waiting = waiting(context);
    health.loops = loops.collect();
    let cut_off = |each: &WorkerLoop| {
        let lasts = each.failing.as_ref().map_or(Duration::ZERO, |failing| failing.lasts);
        each.operation == "claim" && lasts > context.config.hold
    };
    health.connected = !health.loops.iter().any(cut_off);
    health
}
