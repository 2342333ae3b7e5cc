//! The proof that runs find mistakes: the faults that provoke each [`Mutant`], and a run with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::checks::{Report, check};
use super::mutants::Mutant;
use super::nemesis::Kind;
use super::record::{Line, Phase, What};
use super::run::{Plan, run};
use super::stage::Topology;

/// Where a mistake shows.
#[derive(Clone, Copy, Debug)]
pub struct Provocation {
    /// How the servers are set up.
    pub topology: Topology,
    /// The faults.
    pub kinds: &'static [Kind],
    /// The roles of the processes that have faults; all but the store's if there are none.
    pub victims: &'static [&'static str],
}

/// Returns where a mistake is looked for. `None` for one that is not of the processes of a run.
#[must_use]
pub fn provoked_by(mutant: Mutant) -> Option<Provocation> {
    use Topology::{Cluster, Sentinel, Standalone};
    let (topology, kinds, victims): (_, &[Kind], &[&str]) = match mutant {
        Mutant::AckBeforeRetry | Mutant::AckBelow => (Standalone, &[Kind::Kill], &["owner"]),
        Mutant::DelconsumerWithPending => (Standalone, &[Kind::Kill], &["sharer"]),
        Mutant::MarkerBeforeAppend => (Standalone, &[Kind::LostReplies, Kind::KillClients], &[]),
        Mutant::UnfencedSettlement => (Standalone, &[Kind::Isolate], &["owner"]),
        Mutant::UnfencedTask => (Standalone, &[Kind::Isolate], &["worker"]),
        Mutant::UncheckedLockRelease => (Standalone, &[Kind::Stop], &["locker"]),
        Mutant::IncrEpoch => (Sentinel, &[Kind::LoseTail], &[]),
        Mutant::ClientClock => (Standalone, &[Kind::ShiftClock], &["owner", "sharer", "worker", "producer"]),
        Mutant::AppendMaxlen | Mutant::TrimIgnoresPending => {
            (Standalone, &[Kind::Kill, Kind::Stop], &["owner", "sharer"])
        }
        Mutant::DeadLetterSwallowed => (Standalone, &[Kind::OutOfMemory], &[]),
        Mutant::RetryToSharedLog => (Standalone, &[Kind::FlushScripts], &[]),
        Mutant::PendingNotReread => (Standalone, &[Kind::LostReplies], &[]),
        Mutant::RenewAfterRelease => (Standalone, &[Kind::Leave], &["owner"]),
        Mutant::WholeBatchResent => (Cluster, &[Kind::MoveSlots], &[]),
        // The suite finds the first: here whoever asks first is the owner before. The tests of the outbox find the second.
        Mutant::TakeoverAtOnce | Mutant::IdCursorOutbox => return None,
    };
    Some(Provocation { topology, kinds, victims })
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
    /// Returns what a report says of a mistake; `None` if it found nothing.
    #[must_use]
    pub fn of(report: &Report, lines: &[Line]) -> Option<Self> {
        let first = report.violations.iter().min_by_key(|violation| violation.at_us)?;
        let calm = lines.iter().find(|line| line.what == What::Phase(Phase::Calm))?.at_us;
        let mut by_check = BTreeMap::new();
        for violation in &report.violations {
            *by_check.entry(violation.check).or_default() += 1;
        }
        let after = Duration::from_micros(first.at_us.saturating_sub(calm));
        Some(Self { by_check, after, first: first.to_string() })
    }
}

/// Runs for a short time under the faults that provoke a mistake, with it if it is `armed`, and returns what the checks found.
/// `None` if they found nothing, or if the mistake is not of the processes of a run.
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
    let Some(Provocation { topology, kinds, victims }) = provoked_by(mutant) else { return Ok(None) };
    let plan = Plan {
        length: Duration::from_secs(14),
        drain: Duration::from_secs(6),
        kinds: kinds.to_vec(),
        victims: victims.to_vec(),
        slow: is_slow(mutant),
        mutant: armed.then_some(mutant),
        ..Plan::new(topology, seed, bin, folder)
    };
    let lines = run(&plan)?;
    Ok(Finding::of(&check(&lines, &plan.limits()), &lines))
}
