//! The rules. Each file states its rule, what excuses a breach, and what it cannot see.

mod conservation;
mod delays;
mod duplicates;
mod liveness;
mod order;
mod queue;
mod slots;

use super::limits::Limits;
use super::report::Report;
use super::story::Story;

/// A rule adds its violations and figures to the report.
type Rule = fn(&Story<'_>, &Limits, &mut Report);

/// All rules.
pub(super) const ALL: [Rule; 7] = [
    queue::check,
    duplicates::check,
    order::check,
    delays::check,
    conservation::check,
    liveness::check,
    slots::check,
];
