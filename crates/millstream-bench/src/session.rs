//! A server for measurements, and the runs of one case on it.

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::General;
use crate::bare::Probe;
use crate::measure::Stage;
use crate::progress::Progress;
use crate::run::{Case, Pair, Side};
use crate::server::Server;
use crate::statistics::Comparison;

/// The number of runs of a case, and the sides that are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) runs: u32,
    /// Warm-up runs, which do not count.
    pub(crate) warm_up: u32,
    pub(crate) baseline: bool,
}

impl Plan {
    /// Returns the total number of runs.
    pub(crate) fn steps(self) -> u64 {
        u64::from(self.runs + self.warm_up) * if self.baseline { 2 } else { 1 }
    }
}

/// A server, private or given, and a namespace on it.
pub(crate) struct Session {
    server: Option<Server>,
    pub(crate) stage: Stage,
}

impl Session {
    /// Starts a private server unless a server is given.
    pub(crate) async fn open(general: &General, payload: Bytes) -> Result<Self> {
        let server = match &general.url {
            Some(_) => None,
            None => Some(Server::start(general.aof, general.tls).await?),
        };
        let url = general.url.clone().or_else(|| server.as_ref().map(Server::url)).unwrap_or_default();
        let probe = Probe::connect(general.counters.as_ref().unwrap_or(&url)).await?;
        let namespace = format!("millstream-bench-{:016x}", fastrand::u64(..));
        let secure = server.as_ref().and_then(Server::secure).cloned();
        Ok(Self { server, stage: Stage { url, secure, namespace, payload, probe } })
    }

    /// Deletes the stored data, and ends a private server.
    pub(crate) async fn close(self) -> Result<()> {
        match self.server {
            Some(server) => server.stop().await,
            None => self.stage.clear().await.context("cannot delete what was measured with"),
        }
    }

    /// Runs both sides of a case in alternating order (ours, bare, bare, ours, …), so that a machine that slows down
    /// affects both.
    pub(crate) async fn compare(&self, case: Case, plan: Plan, progress: &Progress) -> Result<Comparison> {
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

/// Runs `work` until it is done or a signal arrives. On a signal `work` is dropped, which ends everything that it
/// started.
pub(crate) async fn unless_stopped<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
        done = work => done,
    }
}
