//! Runs under faults: see `docs/reliability.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use integration_tests::chaos::checks::check;
use integration_tests::chaos::deployment::Topology;
use integration_tests::chaos::mutants::Mutant;
use integration_tests::chaos::run::{Plan, read, run};
use integration_tests::chaos::{nemesis, proof, roles};

const HELP: &str = "\
chaos run [options]      one run under faults, and the checks of its history
  --topology NAME        standalone, valkey, sentinel, cluster or cluster-tls  [default: standalone]
  --seed NUMBER          [default: random, and printed]
  --seconds NUMBER       without start and drain  [default: 30]
  --faults A,B,C         the kinds of faults  [default: chosen by the seed]
  --pause NUMBER         mean milliseconds between two sends of each of the 40 keys  [default: 80]
  --packed true          messages are packed
  --steady true          no faults, and a check that nothing grows: for runs of some minutes
  --slow true            handlers of up to a ttl, and few messages
  --mutant NAME          a mistake that all processes make, to see whether the checks find it
  --valkey PATH          a Valkey server, for the topology `valkey`
  --keep FOLDER          where the history is kept  [default: a temporary folder, kept when a check fails]

chaos check HISTORY [--steady true]   the checks of the history of a run that was kept

chaos mutants [NAME ..]  short runs with each mistake: one without it, three with it, and which check found it after
                         how long";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match &words[..] {
        [setup] if setup.starts_with('{') => roles::run(setup).map(|()| ExitCode::SUCCESS),
        ["run", options @ ..] => one(options),
        ["check", history, "--steady", "true"] => check_again(history, true),
        ["check", history] => check_again(history, false),
        ["mutants", options @ ..] => mutants(options),
        _ => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn one(mut options: &[&str]) -> Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("chaos-").tempdir()?;
    let seed = fastrand::u64(..1_000_000);
    let mut plan = Plan::new(Topology::Standalone, seed, &std::env::current_exe()?, folder.path());
    while let [name, value, rest @ ..] = options {
        match *name {
            "--topology" => plan.topology = value.parse().map_err(anyhow::Error::msg)?,
            "--seed" => plan.seed = value.parse().context("--seed")?,
            "--seconds" => plan.length = Duration::from_secs(value.parse().context("--seconds")?),
            "--faults" => {
                let kinds = value.split(',').map(str::parse::<nemesis::Kind>);
                plan.kinds = kinds.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
            }
            "--pause" => plan.pause = Duration::from_millis(value.parse().context("--pause")?),
            "--steady" => plan.steady = value.parse().context("--steady")?,
            "--packed" => plan.packed = value.parse().context("--packed")?,
            "--slow" => plan.slow = value.parse().context("--slow")?,
            "--mutant" => plan.mutant = Some(value.parse().map_err(anyhow::Error::msg)?),
            "--valkey" => plan.valkey = Some(PathBuf::from(value)),
            "--keep" => plan.folder = PathBuf::from(value),
            other => bail!("unknown option {other}\n\n{HELP}"),
        }
        options = rest;
    }
    if let [name] = options {
        bail!("{name} needs a value\n\n{HELP}");
    }
    let kinds: Vec<String> = plan.kinds().iter().map(ToString::to_string).collect();
    println!("{}: {}", plan.command(), kinds.join(", "));
    let report = check(&run(&plan)?, &plan.limits());
    print!("{report}");
    if report.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    if plan.folder == folder.path() {
        println!("the history is in {}", folder.keep().display());
    }
    Ok(ExitCode::FAILURE)
}

fn check_again(history: &str, steady: bool) -> Result<ExitCode> {
    let path = std::path::Path::new(history);
    let plan = Plan { steady, ..Plan::new(Topology::Standalone, 0, path, path) };
    let report = check(&read(path)?.lines, &plan.limits());
    print!("{report}");
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs with mistakes, and prints a row for each.
fn mutants(names: &[&str]) -> Result<ExitCode> {
    let chosen = names.iter().map(|name| name.parse::<Mutant>());
    let chosen: Vec<Mutant> = chosen.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
    let (bin, mut missed) = (std::env::current_exe()?, 0);
    for mutant in if chosen.is_empty() { Mutant::ALL } else { &chosen } {
        let Some(proof::Provocation { topology, kinds, .. }) = proof::provoked_by(*mutant) else {
            println!("| {mutant} | not of these runs |");
            continue;
        };
        let kinds: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        // First the same faults alone: what is found then is not the mistake.
        for (armed, seed) in [(false, 1), (true, 1), (true, 2), (true, 3)] {
            let folder = tempfile::Builder::new().prefix("chaos-").tempdir()?;
            let found = proof::look_for(*mutant, armed, seed, &bin, folder.path())?;
            let name = if armed { mutant.name() } else { "nothing" };
            let row = format!("| {name} | {topology}: {} | {seed}", kinds.join(", "));
            match found {
                Some(found) => {
                    // A control that finds something is as wrong as a mistake that is not found.
                    missed += u32::from(!armed);
                    println!(
                        "{row} | {:?} | {:.1} s | {}",
                        found.by_check,
                        found.after.as_secs_f64(),
                        found.first
                    );
                }
                None if armed => {
                    missed += 1;
                    println!("{row} | MISSED |");
                }
                None => println!("{row} | clean |"),
            }
        }
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
