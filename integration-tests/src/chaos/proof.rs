//! The proof that runs find mistakes: the faults that provoke each [`Mutant`], and a run with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::checks::{Report, check};
use super::deployment::Topology;
use super::mutants::Mutant;
use super::nemesis::Kind;
use super::record::{Line, Phase, What};
use super::run::{Plan, run};

/// Where a mistake shows.
#[derive(Clone, Copy, Debug)]
pub struct Provocation {
    /// How the servers are set up.
    pub topology: Topology,
    /// The faults.
    pub kinds: &'static [Kind],
    /// The roles of the processes that have faults; all but the store's if there are none.
    pub targets: &'static [&'static str],
    /// The checks that speak of the mistake: what others find may be the machine.
    pub checks: &'static [&'static str],
}

/// Returns where a mistake is looked for. `None` for one that is not of the processes of a run.
#[must_use]
pub fn provoked_by(mutant: Mutant) -> Option<Provocation> {
    use Topology::{Cluster, Sentinel, Standalone};
    let (topology, kinds, targets, checks): (_, &[Kind], &[&str], &[&str]) = match mutant {
        Mutant::AckBeforeRetry | Mutant::AckBelow => (Standalone, &[Kind::Kill], &["owner"], &["queue"]),
        Mutant::DelconsumerWithPending => (Standalone, &[Kind::Kill], &["sharer"], &["queue"]),
        Mutant::MarkerBeforeAppend => (Standalone, &[Kind::LostReplies, Kind::KillClients], &[], &["queue"]),
        Mutant::UnfencedSettlement => (Standalone, &[Kind::Isolate], &["owner"], &["duplicates"]),
        Mutant::UnfencedTask => (Standalone, &[Kind::Isolate], &["worker"], &["duplicates"]),
        Mutant::UncheckedLockRelease => (Standalone, &[Kind::Stop], &["locker"], &["locks"]),
        Mutant::IncrEpoch => (Sentinel, &[Kind::LoseTail], &[], &["leases", "locks"]),
        Mutant::ClientClock => {
            let clients: &[&str] = &["owner", "sharer", "worker", "producer"];
            (Standalone, &[Kind::ShiftClock], clients, &["delays"])
        }
        Mutant::AppendMaxlen | Mutant::TrimIgnoresPending => {
            (Standalone, &[Kind::Kill, Kind::Stop], &["owner", "sharer"], &["queue"])
        }
        Mutant::DeadLetterSwallowed => (Standalone, &[Kind::OutOfMemory], &[], &["queue", "dead_letters"]),
        Mutant::RetryToSharedLog => (Standalone, &[Kind::FlushScripts], &[], &["duplicates"]),
        Mutant::PendingNotReread => (Standalone, &[Kind::LostReplies], &[], &["conservation"]),
        Mutant::RenewAfterRelease => (Standalone, &[Kind::Leave], &["owner"], &["locks"]),
        Mutant::WholeBatchResent => (Cluster, &[Kind::MoveSlots], &[], &["duplicates"]),
        // The suite finds the first: here whoever asks first is the owner before. The tests of the outbox find the second.
        Mutant::TakeoverAtOnce | Mutant::IdCursorOutbox => return None,
    };
    Some(Provocation { topology, kinds, targets, checks })
}

/// Returns whether a mistake shows only if handlers still work when others take their messages over.
fn is_slow(mutant: Mutant) -> bool {
    matches!(mutant, Mutant::UnfencedSettlement | Mutant::UnfencedTask | Mutant::UncheckedLockRelease)
}

/// Result of a run with a mistake.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Number of violations, by check.
    pub by_check: BTreeMap<&'static str, usize>,
    /// Time from the beginning of the calm phase to the event of the first violation.
    pub after: Duration,
    /// The first violation.
    pub first: String,
}

impl Finding {
    /// Returns what these checks say; `None` if they found nothing.
    #[must_use]
    pub fn of(report: &Report, lines: &[Line], checks: &[&str]) -> Option<Self> {
        let violations = report.violations.iter().filter(|it| checks.contains(&it.check));
        let first = violations.min_by_key(|violation| violation.at_us)?;
        let calm = lines.iter().find(|line| line.what == What::Phase(Phase::Calm))?.at_us;
        let mut by_check = BTreeMap::new();
        for violation in &report.violations {
            *by_check.entry(violation.check).or_default() += 1;
        }
        let after = Duration::from_micros(first.at_us.saturating_sub(calm));
        Some(Self { by_check, after, first: first.to_string() })
    }
}

/// Runs for a short time under the faults that provoke a mistake, with it if it is `armed`, and returns what the checks found: with
/// it those that speak of it, without it all. `None` if they found nothing, or if the mistake is not of the processes of a run.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// As [`run`].
pub fn look_for(
    mutant: Mutant,
    armed: bool,
    seed: u64,
    bin: &Path,
    folder: &Path,
) -> Result<Option<Finding>> {
    let Some(Provocation { topology, kinds, targets, checks }) = provoked_by(mutant) else { return Ok(None) };
    let plan = Plan {
        // Where handlers are slow, faults are long, and few.
        length: Duration::from_secs(if is_slow(mutant) { 26 } else { 14 }),
        drain: Duration::from_secs(20),
        kinds: kinds.to_vec(),
        targets: targets.to_vec(),
        slow: is_slow(mutant),
        mutant: armed.then_some(mutant),
        ..Plan::new(topology, seed, bin, folder)
    };
    let lines = run(&plan)?;
    let report = check(&lines, &plan.limits());
    let all: Vec<&str> = report.violations.iter().map(|violation| violation.check).collect();
    Ok(Finding::of(&report, &lines, if armed { checks } else { &all }))
}
