//! A server to measure on, and the runs of one case on it.

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::signal::unix::{SignalKind, signal};

use super::args::General;
use super::bare::Probe;
use super::measure::Stage;
use super::progress::Progress;
use super::run::{Case, Pair, Side};
use super::server::Server;
use super::statistics::Comparison;

/// How often a case is run, and what beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) runs: u32,
    /// Runs before those, which do not count.
    pub(super) warm_up: u32,
    pub(super) baseline: bool,
}

impl Plan {
    /// How many runs there are in all.
    pub(super) fn steps(self) -> u64 {
        u64::from(self.runs + self.warm_up) * if self.baseline { 2 } else { 1 }
    }
}

/// A server, ours or of others, and a part of it to work in.
pub(super) struct Session {
    server: Option<Server>,
    pub(super) stage: Stage,
}

impl Session {
    /// Starts a private server unless there is one to work on.
    pub(super) async fn open(general: &General, payload: Bytes) -> Result<Self> {
        let server = match &general.url {
            Some(_) => None,
            None => Some(Server::start(general.aof).await?),
        };
        let url = general.url.clone().or_else(|| server.as_ref().map(Server::url)).unwrap_or_default();
        let probe = Probe::connect(&url).await?;
        let namespace = format!("millstream-bench-{:016x}", fastrand::u64(..));
        Ok(Self { server, stage: Stage { url, namespace, payload, probe } })
    }

    /// Deletes what was stored, and ends a private server.
    pub(super) async fn close(self) -> Result<()> {
        match self.server {
            Some(server) => server.stop().await,
            None => self.stage.clear().await.context("cannot delete what was measured with"),
        }
    }

    /// Runs a case in turns, so that a machine that gets slower meanwhile harms both: ours, bare, bare, ours, …
    pub(super) async fn compare(&self, case: Case, plan: Plan, progress: &Progress) -> Result<Comparison> {
        let case = case.prepare(&self.stage).await?;
        let mut pairs = Vec::new();
        for run in 0..plan.warm_up + plan.runs {
            let mut pair = Pair::default();
            let order = if run % 2 == 0 { [Side::Ours, Side::Bare] } else { [Side::Bare, Side::Ours] };
            for side in order.into_iter().filter(|side| plan.baseline || *side == Side::Ours) {
                pair.put(side, case.run_once(&self.stage, side).await?);
                self.stage.clear().await?;
                progress.step();
            }
            if run >= plan.warm_up {
                pairs.push(pair);
            }
        }
        Ok(Comparison::of(case.name(), &pairs))
    }
}

/// Works until it is done or a signal comes. What `work` holds is dropped then, and what it has started ends with it.
pub(super) async fn unless_stopped<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
        done = work => done,
    }
}
