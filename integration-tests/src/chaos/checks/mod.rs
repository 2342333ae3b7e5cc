//! Checks of the history of a run: which promise was broken, and what the run measured.
//!
//! [`check`] is a pure function of the lines, in the order of the file. It builds a digest of them (`digest`), and each
//! file in `rules` states and checks one rule. A rule excuses what a recorded fault may cause, and only that: the scope
//! of a fault says to whom it may happen, and [`Limits`] how long before and after.
//!
//! Two times are compared by the position of their lines where one event must come before the other, and by their
//! clocks where a duration counts.

mod digest;
mod limits;
mod report;
mod rules;
#[cfg(test)]
mod tests;

pub use limits::{Endurance, KeyOrder, Limits, PlaceLimits};
pub use report::{Figures, PlaceFigures, Report, Spread, Violation};

use digest::Digest;

use super::record::Line;

/// Checks a history.
#[must_use]
pub fn check(lines: &[Line], limits: &Limits) -> Report {
    let digest = Digest::of(lines);
    let mut report = Report::default();
    for rule in rules::ALL {
        rule(&digest, limits, &mut report);
    }
    report
}
