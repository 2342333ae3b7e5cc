//! `millstream bench`: what Millstream costs, beside the bare commands of Redis.

mod args;
mod bare;
mod measure;
mod ours;
mod pacer;
mod report;
mod run;
mod server;
mod statistics;
#[cfg(test)]
mod tests;
mod work;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use args::Bench;

use args::{Common, What};
use bare::Probe;
use measure::Stage;
use report::About;
use run::{Case, Pair};
use server::Server;
use statistics::Comparison;

impl Bench {
    /// Measures, and prints what came of it.
    ///
    /// # Errors
    /// If there is no server, or anything fails on it; and on a signal. What was started and stored is cleaned up first.
    pub(crate) async fn run(self) -> Result<()> {
        let (common, cases) = match self.what {
            What::Victim(victim) => return ours::victim(&victim).await,
            what => run::cases(what),
        };
        let server = match &common.url {
            Some(_) => None,
            None => Some(Server::start(common.aof).await?),
        };
        let url = common.url.clone().or_else(|| server.as_ref().map(Server::url)).unwrap_or_default();
        let measured = measure_on(url, &common, cases).await;
        if let Some(server) = server {
            server.stop().await?;
        }
        let (about, comparisons) = measured?;
        let text = if common.json {
            report::json(&about, &comparisons)?
        } else {
            report::table(&about, &comparisons)
        };
        println!("{text}");
        Ok(())
    }
}

async fn measure_on(url: String, common: &Common, cases: Vec<Case>) -> Result<(About, Vec<Comparison>)> {
    let probe = Probe::connect(&url).await?;
    let stage = Stage {
        namespace: format!("millstream-bench-{:016x}", fastrand::u64(..)),
        payload: Bytes::from(vec![b'x'; common.payload as usize]),
        url,
        probe,
    };
    let about = About::new(stage.probe.version().await?, common);
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let measured = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
        measured = measure_all(&stage, common, cases) => measured,
    };
    let cleared = stage.clear().await;
    let measured = measured?;
    cleared.context("cannot delete what was measured with")?;
    Ok((about, measured))
}

async fn measure_all(stage: &Stage, common: &Common, cases: Vec<Case>) -> Result<Vec<Comparison>> {
    let sides = if common.baseline { 2 } else { 1 };
    let progress = progress(u64::from(common.runs * sides) * cases.len() as u64);
    let mut comparisons = Vec::new();
    for case in cases {
        progress.set_message(case.name());
        let case = case.prepare(stage).await?;
        let mut pairs = Vec::new();
        for run in 0..common.runs {
            // In turns, so that a machine that gets slower meanwhile harms both: ours, bare, bare, ours, …
            let mut pair = Pair::default();
            let order = if run % 2 == 0 {
                [run::Side::Ours, run::Side::Bare]
            } else {
                [run::Side::Bare, run::Side::Ours]
            };
            for side in order.into_iter().filter(|side| common.baseline || *side == run::Side::Ours) {
                pair.put(side, case.run_once(stage, side).await?);
                stage.clear().await?;
                progress.inc(1);
            }
            pairs.push(pair);
        }
        comparisons.push(Comparison::of(case.name(), &pairs));
    }
    progress.finish_and_clear();
    if comparisons.is_empty() {
        bail!("nothing was measured");
    }
    Ok(comparisons)
}

/// Shown if stderr is a terminal, and only there.
fn progress(runs: u64) -> ProgressBar {
    let bar = ProgressBar::new(runs);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} run {pos} of {len}  {elapsed}  {msg}") {
        bar.set_style(style);
    }
    // Rarely: drawing costs CPU of this process, which is measured.
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
