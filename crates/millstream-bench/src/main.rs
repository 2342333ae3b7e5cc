#![doc = include_str!("../README.md")]

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

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

use about::About;
use args::{Cli, Command, General};
use progress::Progress;
use session::{Plan, Session, unless_stopped};

/// Default number of runs.
const RUNS: u32 = 5;

/// The log filter unless `RUST_LOG` is set. The private server has no persistence, so the warning about that is
/// omitted.
const LOG_FILTER: &str = "warn,millstream_redis::risks=error";

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(wrong) = cli.check() {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, wrong).exit();
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended =
        runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(dispatch(cli)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command and prints the results.
///
/// # Errors
/// If there is no server, if a request to it fails, or on a signal. Started servers and stored data are removed first.
async fn dispatch(Cli { general, command }: Cli) -> Result<()> {
    match command {
        Command::Victim(victim) => ours::victim(&general, &victim).await,
        Command::Suite(suite) => suite::run(&general, &suite).await,
        command => measure(&general, command).await,
    }
}

/// Measures the cases of one command.
async fn measure(general: &General, command: Command) -> Result<()> {
    let usual = if matches!(command, Command::Idle(_)) { 1 } else { RUNS };
    let (common, cases) = run::cases(command)?;
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
