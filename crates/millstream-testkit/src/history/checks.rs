//! The checks: what a history may not say.

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

/// Something that may not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which rule it breaks: `NO-LOSS`, `FENCED`, …
    pub rule: &'static str,
    /// When.
    pub at: Duration,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3}: {}", self.rule, self.at.as_secs_f64() * 1_000.0, self.what)
    }
}

/// What was promised of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Free,
    /// Messages of one key start for the first time in the order of the log, and never two at a time.
    Key,
    /// Messages of a partition start for the first time in the order of the log, and never two at a time.
    Partition,
    /// As [`Key`](Self::Key), and a message that failed holds up those of its key until it is done or given up.
    KeyBlocks,
    /// As [`Partition`](Self::Partition), and a message that failed holds up everything behind it.
    PartitionBlocks,
}

/// What a history is judged by.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// The groups that have read everything in the end. Default: none.
    pub groups: Vec<GroupName>,
    /// What was promised of order. Default: [`Order::Free`].
    pub order: Order,
    /// Whether nothing went wrong: then every attempt is made once. Default: no.
    pub calm: bool,
    /// The most handlers that run at the same time for one partition. Default: any number.
    pub at_once: usize,
    /// Whether handlers get batches: messages of a partition that start at the same instant are one. Default: no.
    pub batches: bool,
    /// The most processes that die over one message. Default: any number.
    pub crashes: usize,
    /// The fewest processes that have died in the handler of a message which is given up as `crashed`. Default: 1.
    pub fewest_crashes: usize,
    /// How processes are known to live. Default: nothing is known, and nobody is judged by it.
    pub lives: Option<Lives>,
}

/// How processes of a run are known to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// The ttl of their leases.
    pub lease_ttl: Duration,
    /// The ttl of their membership.
    pub member_ttl: Duration,
    /// Whether single calls fail too. Then nobody can say whose fault it is that a heartbeat was not heard, but right
    /// after an outage.
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
    /// The same rules, for these groups.
    #[must_use]
    pub fn groups(self, groups: impl IntoIterator<Item = GroupName>) -> Self {
        Self { groups: groups.into_iter().collect(), ..self }
    }

    /// The same rules, with this order.
    #[must_use]
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The same rules, for a run in which nothing went wrong.
    #[must_use]
    pub fn calm(self, calm: bool) -> Self {
        Self { calm, ..self }
    }

    /// The same rules, with at most so many handlers at the same time for one partition.
    #[must_use]
    pub fn at_once(self, handlers: usize) -> Self {
        Self { at_once: handlers, ..self }
    }

    /// The same rules, for handlers that get batches.
    #[must_use]
    pub fn batches(self, batches: bool) -> Self {
        Self { batches, ..self }
    }

    /// The same rules, with at most so many processes that die over one message.
    #[must_use]
    pub fn crashes(self, crashes: usize) -> Self {
        Self { crashes, ..self }
    }

    /// The same rules, with at least so many processes that died over a message which is given up for that.
    #[must_use]
    pub fn fewest_crashes(self, fewest_crashes: usize) -> Self {
        Self { fewest_crashes, ..self }
    }

    /// The same rules, for processes that are known to live like this.
    #[must_use]
    pub fn lives(self, lives: Lives) -> Self {
        Self { lives: Some(lives), ..self }
    }
}

/// Everything that is wrong with a history that has come to its end.
///
/// | rule | what it says |
/// |---|---|
/// | `NO-LOSS` | what was stored was handled to its end by every group, or is its dead letter |
/// | `NO-GHOST` | handlers see what was sent, as it was sent |
/// | `PRODUCE-ONCE` | nothing is stored twice |
/// | `HONEST-OUTCOME` | what was told to be stored is, what was told not to be is not |
/// | `PRODUCE-ORDER` | messages that one sender sent one after the other for one key are stored in that order |
/// | `DUP-BOUND` | an attempt is made again only after a takeover, a rewind or a fail-over; and, where it is known how processes [live](Rules::lives), only if the one before died, leaves, or was cut off or stopped alone |
/// | `ATTEMPT` | the number of the attempt grows with failures of the handler and with nothing else |
/// | `NO-REDELIVERY` | what the server was told to be done is not handled again |
/// | `DELAY-EARLY` | no attempt before its time |
/// | `KEY-ORDER`, `OVERLAP`, `BLOCKED` | what [`Order`] says |
/// | `CROWD` | no more handlers at a time than configured |
/// | `POISON-BOUND` | no more processes die over a message than configured |
/// | `FALSE-CRASH` | what is given up as `crashed` is what processes died over |
/// | `KEPT` | who lives and was not cut off or stopped alone keeps its leases, its entries and its part of the assignment, also over an outage |
/// | `REPLACED` | what a process had that died during an outage, somebody else has two ttls and a second after its end |
/// | `FENCED` | once a lease is granted, the server does nothing for the one before |
/// | `SINGLE-OWNER` | no lease is granted while another lives |
/// | `EPOCH-MONO` | epochs grow |
/// | `STALE-START` | nobody starts a handler under a lease that somebody else has, unless it was stopped by force |
/// | `DLQ-COMPLETE` | dead letters are exactly what was given up, once and unchanged |
/// | `CONSERVATION` | in the end nothing is left over |
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

/// Where breaches are noted.
struct Report<'a> {
    at: Duration,
    breaches: &'a mut Vec<Breach>,
}

impl Report<'_> {
    fn breach(&mut self, rule: &'static str, what: String) {
        self.breaches.push(Breach { rule, at: self.at, what });
    }
}
