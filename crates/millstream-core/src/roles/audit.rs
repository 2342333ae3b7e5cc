//! The audit role: finds inconsistencies, and repairs them without losing a message.
//!
//! A message of a group is in exactly one place: unread, pending, parked, in the retry log, or among the dead letters.
//! Places that must agree are read in one step, so a message that merely moves while everything runs causes no finding.
//! The few faults that concern several places at once ([`Fault::needs_second_look`]) must be confirmed by a second check.

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::name::{GroupName, QueueName, TopicName};
use crate::schedule::Shard;
use crate::timestamp::Timestamp;
use crate::topic::TopicPartition;

pub use crate::decisions::fault::{Fault, Remedy};

/// The most items of one page.
pub const MAX_PAGE: usize = 100;

/// Scope of a check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A topic as a whole.
    Topic(TopicName),
    /// A partition, for all groups.
    Partition(TopicPartition),
    /// A partition, for one group.
    Group(TopicPartition, GroupName),
    /// A delay queue as a whole.
    Queue(QueueName),
    /// A shard of a delay queue.
    Shard(Shard),
}

impl Scope {
    /// Returns the checks of this scope.
    #[must_use]
    pub const fn checks(&self) -> &'static [Check] {
        match self {
            Self::Topic(_) | Self::Queue(_) => &[Check::Types, Check::Catalog],
            Self::Partition(_) => &[
                Check::Types,
                Check::Groups,
                Check::Waiting,
                Check::Bodies,
                Check::Rules,
                Check::RuleTimes,
                Check::Losses,
            ],
            Self::Group(..) => &[
                Check::Types,
                Check::Position,
                Check::Lease,
                Check::Parked,
                Check::ParkedBodies,
                Check::Pending,
                Check::PendingRetries,
                Check::RetryLog,
                Check::Notes,
                Check::Consumers,
                Check::Losses,
            ],
            Self::Shard(_) => &[
                Check::Types,
                Check::Waiting,
                Check::Claims,
                Check::Bodies,
                Check::States,
                Check::Rules,
                Check::RuleTimes,
                Check::Losses,
            ],
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => topic.fmt(f),
            Self::Queue(queue) => queue.fmt(f),
            Self::Partition(topic_partition) => topic_partition.fmt(f),
            Self::Group(topic_partition, group) => write!(f, "{topic_partition} of {group}"),
            Self::Shard(shard) => shard.fmt(f),
        }
    }
}

/// Check of one structure, page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Registry, settings, partitions and groups of a topic; registry and settings of a delay queue.
    Catalog,
    /// The types of all keys.
    Types,
    /// The groups on a log.
    Groups,
    /// The group's positions in its streams.
    Position,
    /// Lease and fence.
    Lease,
    /// Due times of retries.
    Parked,
    /// Bodies of retries.
    ParkedBodies,
    /// Pending entries of the log.
    Pending,
    /// Pending entries of the retry log.
    PendingRetries,
    /// Entries of the retry log that were handed out.
    RetryLog,
    /// Notes on pending entries.
    Notes,
    /// Names under which entries are pending.
    Consumers,
    /// Due times of scheduled messages or tasks.
    Waiting,
    /// Tasks that are worked on.
    Claims,
    /// Bodies of scheduled messages or tasks.
    Bodies,
    /// States of tasks.
    States,
    /// Recurring rules.
    Rules,
    /// Due times of recurring rules.
    RuleTimes,
    /// The record of what was lost. The last check of a scope, so that it has what repairs of the others found.
    Losses,
}

impl Check {
    /// Returns the check as a fixed snake-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Catalog => "catalog",
            Self::Types => "types",
            Self::Groups => "groups",
            Self::Position => "position",
            Self::Lease => "lease",
            Self::Parked => "parked",
            Self::ParkedBodies => "parked_bodies",
            Self::Pending => "pending",
            Self::PendingRetries => "pending_retries",
            Self::RetryLog => "retry_log",
            Self::Notes => "notes",
            Self::Consumers => "consumers",
            Self::Waiting => "waiting",
            Self::Claims => "claims",
            Self::Bodies => "bodies",
            Self::States => "states",
            Self::Rules => "rules",
            Self::RuleTimes => "rule_times",
            Self::Losses => "losses",
        }
    }
}

/// Number of messages that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Loss {
    /// Messages that were never handed out to the group.
    pub unread: u64,
    /// Messages that were handed out and not settled, or waited for a retry, scheduled messages and tasks.
    pub pending: u64,
    /// Number of times that a log was lost as a whole. It is not known what was in it, so the other numbers are then lower
    /// bounds.
    pub logs: u64,
    /// Time at which the last part of it was found, by the server's clock.
    pub at: Option<Timestamp>,
}

impl Loss {
    /// Creates the record of a loss that was found at a time.
    #[must_use]
    pub const fn new(unread: u64, pending: u64, logs: u64, at: Option<Timestamp>) -> Self {
        Self { unread, pending, logs, at }
    }

    /// Returns both losses together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |a: u64, b: u64| a.saturating_add(b);
        Self {
            unread: sum(self.unread, other.unread),
            pending: sum(self.pending, other.pending),
            logs: sum(self.logs, other.logs),
            at: self.at.max(other.at),
        }
    }

    /// Whether nothing was lost.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.unread == 0 && self.pending == 0 && self.logs == 0
    }
}

/// `3 unread and 2 pending messages, last found at 2026-01-31T12:00:00.000Z`.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unread, pending) = (self.unread, self.pending);
        match self.logs {
            0 => write!(f, "{unread} unread and {pending} pending messages")?,
            1 => {
                write!(f, "all messages of a log, of which {unread} unread and {pending} pending are known")?;
            }
            logs => {
                write!(
                    f,
                    "all messages of {logs} logs, of which {unread} unread and {pending} pending are known"
                )?;
            }
        }
        self.at.map_or(Ok(()), |at| write!(f, ", last found at {at}"))
    }
}

/// Inconsistency that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Finding {
    /// The kind.
    pub fault: Fault,
    /// The scope in which it was found.
    pub scope: Scope,
    /// The object concerned: an id, a name, a key. Of an entry it is `log:<id>` or `retry:<id>`.
    pub id: String,
    /// Details, for people.
    pub detail: String,
    /// The loss that it proves, or the record of it.
    pub loss: Option<Loss>,
}

impl Finding {
    /// Creates a finding as a backend returns it.
    #[must_use]
    pub fn new(fault: Fault, scope: &Scope, id: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { fault, scope: scope.clone(), id: id.into(), detail: detail.into(), loss: None }
    }

    /// Creates the finding of a loss, with the loss as its details.
    #[must_use]
    pub fn lost(fault: Fault, scope: &Scope, id: impl Into<String>, loss: Loss) -> Self {
        Self { loss: Some(loss), ..Self::new(fault, scope, id, loss.to_string()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {} {}", self.fault, self.scope, self.id, self.detail)
    }
}

/// Result of one check of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audited {
    /// Inconsistencies in this page.
    pub findings: Vec<Finding>,
    /// Number of items that were checked.
    pub looked_at: u64,
    /// Position at which the next page starts; `None` at the end.
    pub next: Option<String>,
}

impl Audited {
    /// Creates the result of a check of this many items: no finding, and no further page.
    #[must_use]
    pub fn new(looked_at: u64) -> Self {
        Self { findings: Vec::new(), looked_at, next: None }
    }
}

/// Finds and repairs inconsistencies.
#[async_trait]
pub trait Audit: Send + Sync {
    /// Checks one page of one structure: up to [`MAX_PAGE`] items behind `after`, which is [`next`](Audited::next) of the
    /// previous page. Changes nothing. Every item that exists from the first page to the last one is checked.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a check that the scope does not have;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> Result<Audited>;

    /// Repairs one inconsistency, if it still exists. Returns `false`, and changes nothing, if it does not, if its id
    /// means nothing to the backend, if a person [has to decide](Remedy::Person), or if it cannot be repaired now: another audit shows which. No message is lost by
    /// a repair; some may be handled twice. What was lost before is recorded, and found as
    /// [`EntriesLost`](Fault::EntriesLost) from then on. Needs no lease.
    ///
    /// # Errors
    /// As [`audit`](Self::audit).
    async fn repair(&self, finding: &Finding) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_has_checks_and_says_where_it_is() {
        let tp = TopicPartition::new("orders".parse().expect("name"), 3);
        let group: GroupName = "billing".parse().expect("name");
        let scopes = [
            (Scope::Topic(tp.topic.clone()), "orders"),
            (Scope::Partition(tp.clone()), "orders/3"),
            (Scope::Group(tp, group), "orders/3 of billing"),
            (Scope::Queue("mails".parse().expect("name")), "mails"),
            (Scope::Shard(Shard::new("mails".parse().expect("name"), 1)), "mails/1"),
        ];
        for (scope, text) in scopes {
            assert!(!scope.checks().is_empty());
            assert_eq!(scope.to_string(), text);
        }
    }
}
