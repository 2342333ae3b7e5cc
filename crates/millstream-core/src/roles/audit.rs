//! The audit role: finds inconsistencies, and repairs them without losing a message.
//!
//! A message of a group is in exactly one place: unread, pending, parked, in the retry log, or among the dead letters.
//! Places that must agree are read in one step, so a message that merely moves while everything runs causes no finding.
//! The few faults that concern several places at once ([`Fault::needs_second_look`]) must be confirmed by a second check.

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::name::{GroupName, TopicName};
use crate::schedule::Shard;
use crate::timestamp::Timestamp;
use crate::topic::TopicPartition;

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
    /// A shard of a delay queue.
    Shard(Shard),
}

impl Scope {
    /// Returns the checks of this scope.
    #[must_use]
    pub const fn checks(&self) -> &'static [Check] {
        match self {
            Self::Topic(_) => &[Check::Types, Check::Catalog],
            Self::Partition(_) => {
                &[Check::Types, Check::Groups, Check::Waiting, Check::Bodies, Check::Rules, Check::Losses]
            }
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
                Check::Losses,
            ],
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => topic.fmt(f),
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
    /// Registry, settings, partitions and groups of a topic.
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
            Self::Losses => "losses",
        }
    }
}

/// Kind of inconsistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A topic exists and is not in the list of topics.
    TopicUnlisted,
    /// A topic is listed and has no settings.
    TopicWithoutSettings,
    /// Stored data of a topic, or of a group as a whole, is invalid.
    SettingsDamaged,
    /// A partition is not in the topic's list.
    PartitionUnlisted,
    /// The list has more partitions than the topic: an unfinished expansion.
    PartitionsUnfinished,
    /// A topic or group is marked as being deleted, and a part of its data still exists.
    DeletionUnfinished,
    /// A key holds a type that is not ours.
    WrongType,
    /// A group is on a log and not in the topic's list: nothing that it has not read is trimmed.
    GroupUnlisted,
    /// A group of the topic is missing on a partition.
    GroupMissing,
    /// The log of a partition is gone, with everything that a group had not settled there.
    LogMissing,
    /// Entries left the log before a group read them, though the topic's retention keeps them.
    UnreadMissing,
    /// Entries were lost: the record of it, which stays after a repair.
    EntriesLost,
    /// A group's position is beyond the end of its stream: the next entries would be skipped.
    PositionAhead,
    /// A lease never expires, or its token differs from the fence's.
    LeaseBroken,
    /// The epoch or ttl of a fence is invalid. A number that is too large keeps all consumers from owning the partition;
    /// anything else is replaced by the next owner.
    FenceDamaged,
    /// The body of a retry is gone.
    RetryLost,
    /// A retry has a body and no due time: it would wait for ever.
    RetryStranded,
    /// A message is pending and parked at the same time.
    PendingAndParked,
    /// A pending entry whose body is gone.
    Ghost,
    /// An entry of the retry log was handed out and is neither pending nor deleted.
    RetryLeaked,
    /// A note exists for an entry that is not pending.
    NoteStray,
    /// Entries are pending under a name that no consumer reads under, and no consumer runs that would take them over.
    ConsumerStray,
    /// The body of a scheduled message or task is gone.
    BodyLost,
    /// A scheduled message or task has a body and no due time: it would wait for ever.
    BodyStranded,
    /// A task waits and is worked on at the same time.
    TaskTwice,
    /// A state is stored for a task that does not exist.
    StateStray,
    /// A recurring rule has a next time and is not among those that become due: it would never fire.
    RuleStranded,
}

/// Way in which a fault is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// By [`Audit::repair`]; until then messages wait, or would be lost or skipped.
    Repair,
    /// By [`Audit::repair`] at once, or later by consumers and workers themselves.
    Heals,
    /// By a decision of a person.
    Person,
    /// By nothing: the finding is the record of a loss.
    Record,
}

impl Fault {
    /// Returns the remedy as a fixed snake-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopicUnlisted => "topic_unlisted",
            Self::TopicWithoutSettings => "topic_without_settings",
            Self::SettingsDamaged => "settings_damaged",
            Self::PartitionUnlisted => "partition_unlisted",
            Self::PartitionsUnfinished => "partitions_unfinished",
            Self::DeletionUnfinished => "deletion_unfinished",
            Self::WrongType => "wrong_type",
            Self::GroupUnlisted => "group_unlisted",
            Self::GroupMissing => "group_missing",
            Self::LogMissing => "log_missing",
            Self::UnreadMissing => "unread_missing",
            Self::EntriesLost => "entries_lost",
            Self::PositionAhead => "position_ahead",
            Self::LeaseBroken => "lease_broken",
            Self::FenceDamaged => "fence_damaged",
            Self::RetryLost => "retry_lost",
            Self::RetryStranded => "retry_stranded",
            Self::PendingAndParked => "pending_and_parked",
            Self::Ghost => "ghost",
            Self::RetryLeaked => "retry_leaked",
            Self::NoteStray => "note_stray",
            Self::ConsumerStray => "consumer_stray",
            Self::BodyLost => "body_lost",
            Self::BodyStranded => "body_stranded",
            Self::TaskTwice => "task_twice",
            Self::StateStray => "state_stray",
            Self::RuleStranded => "rule_stranded",
        }
    }

    /// Returns the remedy for it.
    #[must_use]
    pub const fn remedy(self) -> Remedy {
        match self {
            Self::SettingsDamaged
            | Self::FenceDamaged
            | Self::PartitionsUnfinished
            | Self::DeletionUnfinished
            | Self::WrongType
            | Self::GroupUnlisted => Remedy::Person,
            Self::EntriesLost => Remedy::Record,
            Self::GroupMissing
            | Self::LogMissing
            | Self::LeaseBroken
            | Self::RetryLost
            | Self::Ghost
            | Self::BodyLost
            | Self::TaskTwice => Remedy::Heals,
            Self::TopicUnlisted
            | Self::TopicWithoutSettings
            | Self::PartitionUnlisted
            | Self::UnreadMissing
            | Self::PositionAhead
            | Self::RetryStranded
            | Self::PendingAndParked
            | Self::RetryLeaked
            | Self::NoteStray
            | Self::ConsumerStray
            | Self::BodyStranded
            | Self::StateStray
            | Self::RuleStranded => Remedy::Repair,
        }
    }

    /// Whether it concerns several places, which cannot be read in one step: a change may just be under way.
    #[must_use]
    pub const fn needs_second_look(self) -> bool {
        matches!(
            self,
            Self::TopicUnlisted
                | Self::TopicWithoutSettings
                | Self::PartitionUnlisted
                | Self::PartitionsUnfinished
                | Self::DeletionUnfinished
                | Self::GroupUnlisted
                | Self::GroupMissing
                | Self::LogMissing
                | Self::UnreadMissing
                | Self::ConsumerStray
        )
    }

    /// Returns a sentence on the meaning of the fault and the effect of a repair.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::TopicUnlisted => "the topic is added to the list",
            Self::TopicWithoutSettings => {
                "settings are made from the list of partitions; a topic without partitions is removed from the list"
            }
            Self::PartitionUnlisted => "the partition is added to the list",
            Self::PartitionsUnfinished => "expand the topic again to that number",
            Self::DeletionUnfinished => "its deletion was stopped half-way: delete it again",
            Self::WrongType => "another program uses this key: rename that key, or choose a namespace",
            Self::SettingsDamaged => {
                "`millstream topic alter` replaces a retention or a bound, `group resume` ends an invalid pause; for another \
                 field delete the topic by force, or correct it by hand"
            }
            Self::FenceDamaged => {
                "where no consumer can own the partition, stop all of them, set epoch to the time in milliseconds, and ttl to 0"
            }
            Self::GroupUnlisted => {
                "its unread entries are not trimmed: delete the group if no consumer reads there, or \
                 destroy it with XGROUP if its name is not valid here"
            }
            Self::GroupMissing => "the group is created there, with the oldest entry",
            Self::LogMissing => {
                "the loss is recorded, and the group is created on a new log: what was in the old one cannot be brought back"
            }
            Self::UnreadMissing => "the loss is recorded: the entries cannot be brought back",
            Self::EntriesLost => {
                "the record of entries that are gone; it stays until the group, topic or delay queue is deleted"
            }
            Self::PositionAhead => "the group is set back to the oldest entry: some may be handled again",
            Self::LeaseBroken => "the lease is deleted; such a lease counts as free",
            Self::RetryLost => {
                "the body is taken from the log if it is still there; else the message becomes a dead letter"
            }
            Self::RetryStranded => "it is due at once; deleted if the same message is pending in the log",
            Self::PendingAndParked => "the parked copy is dropped: the pending one will be settled",
            Self::Ghost => {
                "it is removed from the pending list, since there is no message to handle, and the loss is recorded"
            }
            Self::RetryLeaked => {
                "it is appended to the retry log again: it may be handled twice, and is not lost"
            }
            Self::NoteStray => "the note is deleted",
            Self::ConsumerStray => "the entries are put under the name that the next owner reads",
            Self::BodyLost => {
                "the id is taken out, since nothing is known of the message but that, and the loss is recorded"
            }
            Self::BodyStranded => "it is due at once",
            Self::TaskTwice => "the claim stays: the task comes back when that runs out",
            Self::StateStray => "the state is deleted",
            Self::RuleStranded => {
                "it is due at its next time, or at once if that has passed: its policy decides about missed times"
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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
            (Scope::Shard(Shard::new("mails".parse().expect("name"), 1)), "mails/1"),
        ];
        for (scope, text) in scopes {
            assert!(!scope.checks().is_empty());
            assert_eq!(scope.to_string(), text);
        }
    }
}
