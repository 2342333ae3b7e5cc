//! `millstream-bench suite`: all cases with targets, and the series that show how costs grow.

mod entries;
mod growth;
mod markdown;
mod report;
mod scale;
mod target;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;

use crate::about::About;
use crate::args::{Aof, Cli, General, Suite};
use crate::progress::Progress;
use crate::run::{self, Case};
use crate::session::{Plan, Session, unless_stopped};
use crate::statistics::Comparison;
use crate::{RUNS, work};

use entries::{ENTRIES, Entry};
use growth::{Growth, Series};

/// The result of a case, or the reason why there is none.
struct Measurement {
    entry: &'static Entry,
    plan: Plan,
    /// The sizes of the case in each series.
    counts: Vec<(Series, u64)>,
    outcome: Result<Comparison>,
}

/// All results.
struct Results {
    about: About,
    scale: f64,
    measurements: Vec<Measurement>,
}

/// Checks that all names are those of cases.
pub(crate) fn check(only: &[String]) -> Result<(), String> {
    match only.iter().find(|name| !ENTRIES.iter().any(|entry| entry.name == **name)) {
        Some(unknown) => Err(format!("--only {unknown}: there is no such case; --list shows all")),
        None => Ok(()),
    }
}

/// Runs all cases, or the selected ones, and prints the results.
pub(crate) async fn run(general: &General, suite: &Suite) -> Result<()> {
    if suite.list {
        println!("{}", report::list());
        return Ok(());
    }
    let runs = general.runs.unwrap_or(RUNS);
    let seed = general.seed.unwrap_or_else(|| fastrand::u64(..));
    let todo = chosen(general, suite)?;
    if todo.is_empty() {
        bail!("none of these cases is measured with --aof {}", general.aof.name());
    }
    let results = unless_stopped(async {
        let mut progress = Progress::new(todo.len(), todo.iter().map(|(_, _, plan)| plan.steps()).sum());
        let (mut about, mut measurements) = (None, Vec::new());
        for (entry, case, plan) in todo {
            progress.case(entry.title);
            let counts = entry.series.iter().filter_map(|it| Some((*it, it.of(&case)?))).collect();
            // A separate server for each case, without the data of earlier ones.
            let session = Session::open(general, work::payload(seed, general.payload)).await?;
            if about.is_none() {
                about = Some(About::new(&session.stage, general, seed, runs).await?);
            }
            let outcome = session.compare(case, plan, &progress).await;
            session.close().await?;
            if let Err(why) = &outcome {
                progress.failed(why);
            }
            measurements.push(Measurement { entry, plan, counts, outcome });
        }
        Ok(Results { about: about.context("nothing was measured")?, scale: suite.scale, measurements })
    });
    let results = results.await?;
    let text = match (suite.markdown, general.json) {
        (true, _) => markdown::tables(&results),
        (_, true) => report::json(&results)?,
        _ => report::table(&results),
    };
    println!("{text}");
    let failed = results.measurements.iter().filter(|it| it.outcome.is_err());
    let failed: Vec<_> = failed.map(|it| it.entry.name).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(anyhow!("not all cases could be measured: {}", failed.join(", ")))
    }
}

/// Returns the selected cases with the number of their runs.
fn chosen(general: &General, suite: &Suite) -> Result<Vec<(&'static Entry, Case, Plan)>> {
    let runs = general.runs.unwrap_or(RUNS);
    let named = |entry: &Entry| suite.only.iter().any(|name| name == entry.name);
    let wanted = |entry: &&Entry| {
        let said = if suite.only.is_empty() { !entry.optional } else { named(entry) };
        said && (general.aof == Aof::No || entry.concerns_aof())
    };
    let mut todo = Vec::new();
    for entry in ENTRIES.iter().filter(wanted) {
        let mut case = entry.case()?;
        case.scale(suite.scale);
        let warm_up = if entry.warm_up { general.warm_up.unwrap_or(1) } else { 0 };
        let plan = Plan { runs: runs.min(entry.most_runs), warm_up, baseline: entry.baseline };
        todo.push((entry, case, plan));
    }
    Ok(todo)
}

impl Entry {
    /// Parses its command into a case.
    fn case(&self) -> Result<Case> {
        let words = ["millstream-bench"].into_iter().chain(self.command.split_whitespace());
        let cli = Cli::try_parse_from(words).with_context(|| self.name)?;
        let (_, mut cases) = run::cases(cli.command)?;
        match (cases.pop(), cases.is_empty()) {
            (Some(case), true) => Ok(case),
            _ => bail!("{} is not one case", self.command),
        }
    }

    /// Returns the command line, for repeating the measurement.
    fn command_line(&self) -> String {
        format!("{}{}", self.command, if self.baseline { " --baseline" } else { "" })
    }
}

impl Results {
    /// Returns the measurements of a table.
    fn of(&self, section: entries::Section) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |it| it.entry.section == section)
    }

    /// Returns all series with more than one point.
    fn growths(&self) -> Vec<Growth<'_>> {
        let points = |series: Series| {
            let of =
                |it: &'_ Measurement| it.counts.iter().find(|(each, _)| *each == series).map(|(_, at)| *at);
            self.measurements
                .iter()
                .filter_map(move |it| Some((of(it)?, it.outcome.as_ref().ok()?)))
                .collect()
        };
        Series::ALL.into_iter().filter_map(|series| Growth::new(series, points(series))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_is_one_case_with_a_name_of_its_own() {
        let names: BTreeSet<_> = ENTRIES.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ENTRIES.len());
        for entry in ENTRIES {
            let case = entry.case().unwrap();
            for series in entry.series {
                assert!(series.of(&case).is_some(), "{} is no point of {series:?}", entry.name);
            }
        }
    }

    #[test]
    fn every_series_has_the_points_that_are_asked_for() {
        for (series, wanted) in [
            (Series::Partitions, &[1, 8, 64, 256][..]),
            (Series::Groups, &[1, 4, 16]),
            (Series::Pending, &[100, 10_000, 1_000_000]),
            (Series::PendingInOther, &[100, 10_000, 1_000_000]),
            (Series::Parked, &[100, 10_000, 1_000_000]),
            (Series::Delayed, &[100, 10_000, 1_000_000]),
            (Series::Members, &[1, 4, 16]),
        ] {
            let points = ENTRIES.iter().filter(|entry| entry.series.contains(&series));
            let counts: Vec<_> = points.filter_map(|entry| series.of(&entry.case().unwrap())).collect();
            assert_eq!(counts, wanted, "{series:?}");
        }
    }

    #[test]
    fn only_what_is_a_case_can_be_chosen() {
        assert!(check(&[]).is_ok() && check(&["consume-8".to_owned()]).is_ok());
        assert!(check(&["consume-9".to_owned()]).unwrap_err().contains("--list"));
    }
}
