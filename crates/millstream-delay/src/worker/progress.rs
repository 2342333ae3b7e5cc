//! How a worker is, as plain values.

use std::time::Duration;

use millstream_core::{Place, Shard};

use super::context::Context;
use super::report::WorkerReport;

/// How a worker is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// How many tasks are in its hands.
    pub running: usize,
    /// How many it can have.
    pub concurrency: usize,
    /// What it did so far.
    pub report: WorkerReport,
    /// What fails now.
    pub failing: Vec<Failing>,
    /// How long ago the server answered a claim, by shard; `None` if it has not yet. A worker without room does not ask.
    pub heard: Vec<(Shard, Option<Duration>)>,
    /// Whether it has ended, or is about to.
    pub ending: bool,
}

/// Something that fails, and is tried again and again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failing {
    /// What is tried: `claim`, `wait`, `fire`, `settle`, `extend` or `expire`.
    pub operation: &'static str,
    /// For which shard; `None` if for all.
    pub shard: Option<Shard>,
    /// For how long.
    pub since: Duration,
    /// What it failed with last.
    pub error: String,
}

impl Progress {
    pub(super) fn of(context: &Context) -> Self {
        let failing = context.board.troubles().into_iter().filter_map(|trouble| {
            let (operation, place, since, error) = trouble.failing()?;
            let shard = match place {
                Some(Place::Shard(shard)) => Some(shard.clone()),
                _ => None,
            };
            Some(Failing { operation, shard, since: since.elapsed(), error })
        });
        let heard = |(nth, shard): (usize, &Shard)| (shard.clone(), context.board.last(nth));
        Self {
            running: context.held.len(),
            concurrency: context.config.concurrency,
            report: context.counts.report(),
            failing: failing.collect(),
            heard: context.shards.iter().enumerate().map(heard).collect(),
            ending: context.stop.is_cancelled(),
        }
    }

    /// For a readiness probe: it works, and the server has answered every shard.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.ending && self.failing.is_empty() && self.heard.iter().all(|(_, heard)| heard.is_some())
    }
}
