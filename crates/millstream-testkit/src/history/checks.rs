//! The checks: rules that a history must not break.

mod delivery;
mod ending;
mod fencing;
mod innocent;
mod order;

use std::fmt;
use std::time::Duration;

use millstream_core::GroupName;

use super::naming::named;
use super::story::Story;
use super::{Event, Record};

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The rule that is broken: `NO-LOSS`, `FENCED`, …
    pub rule: &'static str,
    /// The time of the violation.
    pub at: Duration,
    /// A description of the violation.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3}: {}", self.rule, self.at.as_secs_f64() * 1_000.0, self.what)
    }
}

/// The order that the run guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// No order.
    Free,
    /// Messages of one key start for the first time in the order of the log, and never two at a time.
    Key,
    /// Messages of a partition start for the first time in the order of the log, and never two at a time.
    Partition,
    /// As [`Key`](Self::Key); a failed message also blocks those of its key until it is done or dead.
    KeyBlocks,
    /// As [`Partition`](Self::Partition); a failed message also blocks all messages behind it.
    PartitionBlocks,
}

/// The rules for a history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// The groups that have read everything at the end. Default: none.
    pub groups: Vec<GroupName>,
    /// The guaranteed order. Default: [`Order::Free`].
    pub order: Order,
    /// Whether the run had no faults, so that every attempt is made exactly once. Default: no.
    pub calm: bool,
    /// The maximum number of handlers that run concurrently for one partition. Default: any number.
    pub at_once: usize,
    /// Whether handlers receive batches: messages of a partition that start at the same instant are one. Default: no.
    pub batches: bool,
    /// The maximum number of processes that die while handling one message. Default: any number.
    pub crashes: usize,
    /// The minimum number of processes that have died in the handler of a message before it becomes a dead letter
    /// with the reason `crashed`. Default: 1.
    pub fewest_crashes: usize,
    /// How processes are known to be alive. Default: unknown, and rules that depend on it are not checked.
    pub lives: Option<Lives>,
}

/// How the processes of a run are known to be alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// The ttl of their leases.
    pub lease_ttl: Duration,
    /// The ttl of their memberships.
    pub member_ttl: Duration,
    /// Whether single calls fail too. Then the cause of a missed heartbeat is unknown, except right after an outage.
    pub lossy: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            order: Order::Free,
            calm: false,
            at_once: usize::MAX,
            batches: false,
            crashes: usize::MAX,
            fewest_crashes: 1,
            lives: None,
        }
    }
}

impl Rules {
    /// Returns the same rules, for these groups.
    #[must_use]
    pub fn groups(self, groups: impl IntoIterator<Item = GroupName>) -> Self {
        Self { groups: groups.into_iter().collect(), ..self }
    }

    /// Returns the same rules, with this order.
    #[must_use]
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Returns the same rules, for a run without faults.
    #[must_use]
    pub fn calm(self, calm: bool) -> Self {
        Self { calm, ..self }
    }

    /// Returns the same rules, with a maximum number of concurrent handlers for one partition.
    #[must_use]
    pub fn at_once(self, handlers: usize) -> Self {
        Self { at_once: handlers, ..self }
    }

    /// Returns the same rules, for handlers that receive batches.
    #[must_use]
    pub fn batches(self, batches: bool) -> Self {
        Self { batches, ..self }
    }

    /// Returns the same rules, with a maximum number of processes that die while handling one message.
    #[must_use]
    pub fn crashes(self, crashes: usize) -> Self {
        Self { crashes, ..self }
    }

    /// Returns the same rules, with a minimum number of processes that have died before a message is given up as
    /// `crashed`.
    #[must_use]
    pub fn fewest_crashes(self, fewest_crashes: usize) -> Self {
        Self { fewest_crashes, ..self }
    }

    /// Returns the same rules, for processes whose liveness is known in this way.
    #[must_use]
    pub fn lives(self, lives: Lives) -> Self {
        Self { lives: Some(lives), ..self }
    }
}

/// Checks a history that is complete, and returns all violations.
///
/// | rule | requirement |
/// |---|---|
/// | `NO-LOSS` | every stored message was handled to its end by every group, or is its dead letter |
/// | `NO-GHOST` | handlers receive only messages that were sent, unchanged |
/// | `PRODUCE-ONCE` | no message is stored twice |
/// | `HONEST-OUTCOME` | a message reported as stored is stored, and one reported as not stored is not |
/// | `PRODUCE-ORDER` | messages that one sender sent one after the other for one key are stored in that order |
/// | `DUP-BOUND` | an attempt is repeated only after a takeover, a rewind or a fail-over, and for a cause (see below) |
/// | `ATTEMPT` | the attempt number grows only with failures of the handler |
/// | `NO-REDELIVERY` | a message that the server has settled as done is not handled again |
/// | `DELAY-EARLY` | no attempt starts before its due time |
/// | `KEY-ORDER`, `OVERLAP`, `BLOCKED` | the guarantees of [`Order`] hold |
/// | `CROWD` | no more handlers run concurrently than configured |
/// | `POISON-BOUND` | no more processes die while handling a message than configured |
/// | `FALSE-CRASH` | a message given up as `crashed` had processes die while handling it |
/// | `KEPT` | a live process without a fault of its own keeps its leases, entries and assigned partitions (see below) |
/// | `REPLACED` | the partitions of a process that died during an outage are taken over in time (see below) |
/// | `FENCED` | after a lease is granted, the server performs no operation for the previous one |
/// | `SINGLE-OWNER` | no lease is granted while another is valid |
/// | `EPOCH-MONO` | epochs grow |
/// | `STALE-START` | no process starts a handler under a lease that another process has, unless it was stopped by force |
/// | `DLQ-COMPLETE` | dead letters are exactly the messages that were given up, once and unchanged |
/// | `CONSERVATION` | nothing is left over at the end |
///
/// If it is known how processes [live](Rules::lives), `DUP-BOUND` allows a repetition only if the process of the
/// earlier attempt died, is leaving, or was cut off or stopped alone. `KEPT` holds for a process that was not cut off
/// or stopped alone, also over an outage. `REPLACED` requires another owner two ttls and a second after the end of
/// the outage.
#[must_use]
pub fn check(history: &[Record], rules: &Rules) -> Vec<Breach> {
    let history = &*named(history);
    let mut story = Story::of(history);
    let mut breaches = Vec::new();
    for (number, record) in history.iter().enumerate() {
        let mut report = Report { at: record.at, breaches: &mut breaches };
        match &record.event {
            Event::Started(start) => {
                delivery::started(&story, start, rules, &mut report);
                order::started(&story, start, rules, &mut report);
                fencing::started(&story, start, &mut report);
            }
            Event::Granted { topic_partition, group, epoch, again, to, .. } => {
                let share = (topic_partition.clone(), group.clone());
                fencing::granted(&story, &share, *epoch, *again, &mut report);
                innocent::granted(&story, &share, to.as_deref(), rules, &mut report);
            }
            Event::Handed { origin, to, how } => {
                innocent::handed(&story, origin, to, *how, rules, &mut report);
            }
            Event::Published { group, shares } => {
                innocent::published(&story, group, shares, rules, &mut report);
            }
            Event::Accepted { topic_partition, group, epoch, call } => {
                let share = (topic_partition.clone(), group.clone());
                fencing::accepted(&story, &share, *epoch, *call, &mut report);
            }
            Event::Dead { origin, message, reason, attempts } => {
                ending::dead(&story, origin, message.as_deref(), reason, *attempts, &mut report);
                if reason == "crashed" {
                    innocent::crashed(&story, origin, rules, &mut report);
                }
            }
            Event::Left { topic_partition, group, entries } if *entries > 0 => {
                let what = format!("{entries} entries are left in {topic_partition} for {group}");
                report.breach("CONSERVATION", what);
            }
            _ => {}
        }
        story.read(number, record);
    }
    let at = history.last().map_or(Duration::ZERO, |record| record.at);
    let mut report = Report { at, breaches: &mut breaches };
    ending::sends(&story, history, &mut report);
    innocent::orphaned(&story, rules, &mut report);
    for group in &rules.groups {
        ending::everything(&story, group, &mut report);
    }
    breaches
}

/// Collects breaches.
struct Report<'a> {
    at: Duration,
    breaches: &'a mut Vec<Breach>,
}

impl Report<'_> {
    fn breach(&mut self, rule: &'static str, what: String) {
        self.breaches.push(Breach { rule, at: self.at, what });
    }
}
