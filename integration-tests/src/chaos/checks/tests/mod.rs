//! Tests of the checks: each rule has histories that break it, and innocent ones that do not.

mod builder;
mod corruption;
mod delivery;
mod digest;
mod duplicates;
mod ending;
mod generator;
mod locks;
mod order;
mod ownership;

use std::time::Duration;

use crate::chaos::record::Line;

use super::{Limits, Report, check};

/// Limits of the tests: a ttl of one second.
fn limits() -> Limits {
    Limits::new(Duration::from_secs(1))
}

/// Checks that no rule is broken, and returns the report.
#[track_caller]
fn accepted(lines: &[Line]) -> Report {
    accepted_with(lines, &limits())
}

#[track_caller]
fn accepted_with(lines: &[Line], limits: &Limits) -> Report {
    let report = check(lines, limits);
    assert!(report.is_clean(), "{report}");
    report
}

/// Checks that this check reports a violation whose text contains these words, and returns the report.
#[track_caller]
fn rejected(lines: &[Line], by: &str, words: &str) -> Report {
    rejected_with(lines, &limits(), by, words)
}

#[track_caller]
fn rejected_with(lines: &[Line], limits: &Limits, by: &str, words: &str) -> Report {
    let report = check(lines, limits);
    let found = report.violations.iter().any(|it| it.check == by && it.what.contains(words));
    assert!(found, "{by} did not find {words:?}: {report}");
    report
}
