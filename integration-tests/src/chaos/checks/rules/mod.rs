//! The rules. Each file states its rule, what excuses a breach, and what it cannot see.

mod conservation;
mod dead_letters;
mod delays;
mod duplicates;
mod effects;
mod endurance;
mod leases;
mod liveness;
mod locks;
mod order;
mod queue;
mod slots;

use super::digest::Digest;
use super::limits::Limits;
use super::report::Report;

/// A rule adds its violations and figures to the report.
type Rule = fn(&Digest<'_>, &Limits, &mut Report);

/// All rules.
pub(super) const ALL: [Rule; 12] = [
    queue::check,
    duplicates::check,
    order::check,
    leases::check,
    delays::check,
    dead_letters::check,
    conservation::check,
    effects::check,
    liveness::check,
    slots::check,
    locks::check,
    endurance::check,
];
