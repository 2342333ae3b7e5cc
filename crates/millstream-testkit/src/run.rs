//! Running the suite: many cases at a time, with a report.

use std::fmt;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::case::{Case, Violation};
use crate::harness::Harness;
use crate::suite::cases_for;

/// Factor of [`Harness::deadline`] after which a case is ended: it waits for some things, one after the other, each for that long at the
/// most. Only an operation that never returns reaches it.
const PATIENCE: u32 = 12;
/// Number of the slowest cases that a report lists.
const SLOWEST: usize = 5;

/// Result of [`run`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Number of cases that the backend passed.
    pub passed: usize,
    /// Cases that it did not pass, in the order of the suite, with what it did.
    pub violated: Vec<(Case, Violation)>,
    /// Cases that were not run, since they [need an operator](Case::needs_operator) and the harness has none.
    pub left_out: Vec<Case>,
    /// The slowest cases, with the time that each took beside the others.
    pub slowest: Vec<(Case, Duration)>,
}

impl Report {
    /// Whether cases were run, and all of them passed.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.violated.is_empty() && self.passed > 0
    }
}

/// Writes the numbers, then each violation in a line, then the slowest cases.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, violated, left_out, slowest } = self;
        let (broken, left_out) = (violated.len(), left_out.len());
        write!(f, "{passed} cases passed, {broken} did not, {left_out} need an operator and were left out")?;
        for (case, violation) in violated {
            write!(f, "\n{case:?}: {violation}")?;
        }
        for (case, took) in slowest {
            write!(f, "\n{case:?} took {took:.1?}")?;
        }
        Ok(())
    }
}

/// Runs the cases for what the harness's backend claims to support: those whose names, as `log::an_acked_entry_is_never_handed_out_again`,
/// contain `filter`, so many at once. An empty filter runs all.
///
/// A case that panics, or does not end, is violated. One at a time is slower, and right for a backend that blocks its thread, and for a
/// paused clock.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn run(harness: &Harness, at_once: usize, filter: &str) -> Report {
    let (mut report, mut waiting) = (Report::default(), Vec::new());
    for case in cases_for(&harness.backend) {
        if !format!("{case:?}").contains(filter) {
            continue;
        }
        if case.needs_operator && harness.operator().is_err() {
            report.left_out.push(case);
        } else {
            waiting.push(case);
        }
    }
    let (mut waiting, mut running) = (waiting.into_iter().enumerate(), JoinSet::new());
    let mut ended = Vec::new();
    loop {
        while running.len() < at_once.max(1)
            && let Some((at, case)) = waiting.next()
        {
            let harness = harness.clone();
            running.spawn(async move {
                let started = Instant::now();
                (at, case, verdict(case, harness).await, started.elapsed())
            });
        }
        match running.join_next().await {
            Some(Ok(one)) => ended.push(one),
            // Its own task catches panics, and nobody aborts it.
            Some(Err(_)) => {}
            None => break,
        }
    }
    ended.sort_by_key(|(at, ..)| *at);
    for (_, case, verdict, took) in ended {
        report.slowest.push((case, took));
        match verdict {
            Ok(()) => report.passed += 1,
            Err(violation) => report.violated.push((case, violation)),
        }
    }
    report.slowest.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    report.slowest.truncate(SLOWEST);
    report
}

/// Runs a case to its end, in a task of its own: a panic ends it alone.
async fn verdict(case: Case, harness: Harness) -> Result<(), Violation> {
    let limit = harness.deadline().saturating_mul(PATIENCE);
    let mut task = tokio::spawn((case.run)(harness));
    match timeout(limit, &mut task).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => Err(Violation::new(format!("it did not return: {error}"))),
        Err(_) => {
            task.abort();
            Err(Violation::new(format!("it did not end within {limit:?}")))
        }
    }
}
