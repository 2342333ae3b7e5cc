//! Result of the checks: violations and figures.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The check: the name of its file in `rules`.
    pub check: &'static str,
    /// Time in the history, in microseconds.
    pub at_us: u64,
    /// Number of the message, if there is one.
    pub message: Option<u64>,
    /// Description, with numbers and times.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.check, seconds(self.at_us))?;
        if let Some(message) = self.message {
            write!(f, ", message {message}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Formats a time of the history, as seconds.
pub(crate) fn seconds(at_us: u64) -> String {
    format!("{}.{:03} s", at_us / 1_000_000, at_us / 1_000 % 1_000)
}

/// Quantiles of measured times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Number of measurements.
    pub count: usize,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub p100: u64,
}

impl Spread {
    /// Returns the quantiles of these times.
    #[must_use]
    pub fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len().saturating_sub(1) * percent).div_ceil(100));
        let at = |percent| at(percent).copied().unwrap_or(0);
        Self { count: times.len(), p50: at(50), p99: at(99), p100: at(100) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p100] = [self.p50, self.p99, self.p100].map(|time| time as f64 / 1_000.0);
        write!(f, "p50 {p50:.1} ms p99 {p99:.1} ms p100 {p100:.1} ms of {}", self.count)
    }
}

/// Figures of one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaceFigures {
    /// Messages that were confirmed.
    pub stored: usize,
    /// Of these, messages that no fault may undo: their sends waited for all replicas, or there are none.
    pub safe: usize,
    /// Messages that were handled to the end.
    pub acked: usize,
    /// Handlers that began.
    pub begun: usize,
    /// Handlers that failed, and whose message was to be retried.
    pub failed: usize,
    /// Messages that became dead letters.
    pub dead: usize,
    /// Messages of unknown outcome that were there.
    pub recovered: usize,
    /// Confirmed messages that are neither done, nor dead, nor left over. Each is a violation.
    pub lost: usize,
    /// Confirmed messages that a fault of scope `Data` has undone, as is to be expected.
    pub lost_by_server: usize,
    /// Messages that were left over.
    pub left: u64,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Messages whose send was confirmed.
    pub sent_stored: usize,
    /// Messages whose send has an unknown outcome.
    pub sent_unknown: usize,
    /// Messages whose send was refused.
    pub sent_refused: usize,
    /// Faults, by kind.
    pub faults: BTreeMap<String, usize>,
    /// Figures by place: `topic/group`, or the name of a delay queue.
    pub places: BTreeMap<String, PlaceFigures>,
    /// Handlings that repeat an attempt, by cause: `process`, `moved`, `links`, `data`, `partition`.
    pub repeated: BTreeMap<&'static str, usize>,
    /// Handlings that repeat an attempt without a cause. Each is a violation.
    pub unexplained: usize,
    /// Partitions that were lost.
    pub losses: usize,
    /// Epochs that decreased behind a fault of scope `Data`.
    pub epochs_regressed: usize,
    /// Fences that decreased behind a fault of scope `Data`.
    pub fences_regressed: usize,
    /// Effects that the store accepted.
    pub effects_accepted: usize,
    /// Effects that the store refused.
    pub effects_refused: usize,
    /// Grants of locks.
    pub locks: usize,
    /// Writes under locks that the store accepted.
    pub writes_accepted: usize,
    /// Writes under locks that the store refused.
    pub writes_refused: usize,
    /// Time after it was due until a message was handled, where no fault was near.
    pub lateness: Spread,
    /// The same, where a fault was near.
    pub lateness_in_faults: Spread,
    /// Time from the end of a fault of links, servers, data or a partition until a handler began.
    pub outages: Spread,
    /// Time from the beginning of a fault of scope `Process` until a handler began at a partition that the process had
    /// owned, under a later epoch.
    pub takeovers: Spread,
    /// Time from the beginning of a fault of scope `Process` until another handler began with a message that the process
    /// was handling.
    pub redeliveries: Spread,
    /// Handlers that ended, per second of the calm phase.
    pub rate_calm: f64,
    /// Handlers that ended, per second of the phase after the last fault.
    pub rate_healed: f64,
    /// Time after the last fault until four fifths of the calm rate were reached, in microseconds.
    pub recovered_after_us: Option<u64>,
    /// Share of what was confirmed after the recovery that was handled meanwhile, by place.
    pub pace: BTreeMap<String, f64>,
}

/// Result of the checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Violations, in the order of the checks.
    pub violations: Vec<Violation>,
    /// Figures.
    pub figures: Figures,
}

impl Report {
    pub(crate) fn add(&mut self, check: &'static str, at_us: u64, message: Option<u64>, what: String) {
        self.violations.push(Violation { check, at_us, message, what });
    }

    /// Whether no rule is broken.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Number of violations of one check that are printed.
const PRINTED: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let it = &self.figures;
        let (stored, unknown, refused) = (it.sent_stored, it.sent_unknown, it.sent_refused);
        writeln!(f, "sent: {stored} stored, {unknown} unknown, {refused} refused; faults: {:?}", it.faults)?;
        for (place, it) in &it.places {
            writeln!(
                f,
                "{place}: {} stored, {} of them safe, {} acked, {} begun, {} failed, {} dead, {} recovered, {} lost, \
                 {} lost by the server, {} left",
                it.stored,
                it.safe,
                it.acked,
                it.begun,
                it.failed,
                it.dead,
                it.recovered,
                it.lost,
                it.lost_by_server,
                it.left
            )?;
        }
        writeln!(f, "repeated: {:?}, {} without a cause", it.repeated, it.unexplained)?;
        writeln!(f, "partitions lost: {}; epochs regressed: {}", it.losses, it.epochs_regressed)?;
        writeln!(f, "effects: {} accepted, {} refused", it.effects_accepted, it.effects_refused)?;
        writeln!(
            f,
            "locks: {} grants, {} writes accepted, {} refused, fences regressed: {}",
            it.locks, it.writes_accepted, it.writes_refused, it.fences_regressed
        )?;
        writeln!(f, "lateness: {}; in faults: {}", it.lateness, it.lateness_in_faults)?;
        writeln!(f, "recovery: outages {}", it.outages)?;
        writeln!(f, "recovery: takeovers {}", it.takeovers)?;
        writeln!(f, "recovery: redeliveries {}", it.redeliveries)?;
        let after = it.recovered_after_us.map_or_else(|| "never".to_owned(), seconds);
        writeln!(
            f,
            "rate: {:.1}/s calm, {:.1}/s healed, reached after {after}",
            it.rate_calm, it.rate_healed
        )?;
        writeln!(f, "handled of what was confirmed after the recovery: {:.2?}", it.pace)?;
        let mut by_check: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
        for violation in &self.violations {
            by_check.entry(violation.check).or_default().push(violation);
        }
        for (check, violations) in by_check {
            for violation in violations.iter().take(PRINTED) {
                writeln!(f, "VIOLATION {violation}")?;
            }
            if let Some(more) = violations.len().checked_sub(PRINTED + 1) {
                writeln!(f, "VIOLATION {check}: and {} more", more + 1)?;
            }
        }
        Ok(())
    }
}
