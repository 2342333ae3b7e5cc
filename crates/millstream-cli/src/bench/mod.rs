//! `millstream bench`: measures the cost of Millstream, in comparison with bare commands of Redis.

mod about;
mod args;
mod bare;
mod measure;
mod ours;
mod pacer;
mod progress;
mod report;
mod run;
mod server;
mod session;
mod statistics;
mod suite;
#[cfg(test)]
mod tests;
mod work;

use anyhow::Result;

pub(crate) use args::Bench;

use about::About;
use args::What;
use progress::Progress;
use session::{Plan, Session, unless_stopped};

/// Default number of runs.
const RUNS: u32 = 5;

impl Bench {
    /// Runs the measurement and prints the results. It puts load on a server, so only a URL from the command line is
    /// used: the one from the environment may belong to a production server.
    ///
    /// # Errors
    /// If there is no server, if a request to it fails, or on a signal. Started servers and stored data are removed
    /// first.
    pub(crate) async fn run(mut self, is_url_typed: bool) -> Result<()> {
        if let Some(general) = self.what.general_mut() {
            general.url = general.url.take().or(self.url).filter(|_| is_url_typed);
        }
        match self.what {
            What::Victim(victim) => ours::victim(&victim).await,
            What::Suite(suite) => suite::run(suite).await,
            what => measure(what).await,
        }
    }
}

/// Runs one command.
async fn measure(what: What) -> Result<()> {
    let usual = if matches!(what, What::Idle(_)) { 1 } else { RUNS };
    let (common, cases) = run::cases(what)?;
    let general = &common.general;
    let plan = Plan {
        runs: general.runs.unwrap_or(usual),
        warm_up: general.warm_up.unwrap_or(0),
        baseline: common.baseline,
    };
    let seed = general.seed.unwrap_or_else(|| fastrand::u64(..));
    let session = Session::open(general, work::payload(seed, general.payload)).await?;
    let measured = unless_stopped(async {
        let about = About::new(&session.stage, general, seed, plan.runs).await?;
        let mut progress = Progress::new(cases.len(), plan.steps() * cases.len() as u64);
        let mut comparisons = Vec::new();
        for case in cases {
            progress.case(&case.name());
            comparisons.push(session.compare(case, plan, &progress).await?);
        }
        Ok((about, comparisons))
    });
    let measured = measured.await;
    let closed = session.close().await;
    let (about, comparisons) = measured?;
    closed?;
    let text = match general.json {
        true => report::json(&about, &comparisons)?,
        false => report::table(&about, &comparisons),
    };
    println!("{text}");
    Ok(())
}
