//! The kinds of inconsistencies, and what is done about each.

use std::fmt;

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
    /// A group of the topic, with a retry log, is not in the topic's list: nobody sees it.
    GroupForgotten,
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
    /// A group's position is behind entries that no consumer of it has read: somebody has moved it by hand.
    PositionSkipped,
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
    /// A recurring rule is due at a time, and the rule itself is gone.
    RuleLost,
    /// A delay queue exists and is not in the list of delay queues.
    QueueUnlisted,
    /// A delay queue is listed and has no settings.
    QueueWithoutSettings,
}

/// Way in which a fault is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// By [`Audit::repair`](crate::Audit::repair); until then messages wait, or would be lost or skipped.
    Repair,
    /// By [`Audit::repair`](crate::Audit::repair) at once, or later by consumers and workers themselves.
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
            Self::PositionSkipped => "position_skipped",
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
            Self::GroupForgotten => "group_forgotten",
            Self::RuleStranded => "rule_stranded",
            Self::RuleLost => "rule_lost",
            Self::QueueUnlisted => "queue_unlisted",
            Self::QueueWithoutSettings => "queue_without_settings",
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
            | Self::GroupUnlisted
            | Self::PositionSkipped
            | Self::QueueWithoutSettings => Remedy::Person,
            Self::EntriesLost => Remedy::Record,
            Self::GroupMissing
            | Self::LogMissing
            | Self::LeaseBroken
            | Self::RetryLost
            | Self::Ghost
            | Self::BodyLost
            | Self::RuleLost
            | Self::TaskTwice => Remedy::Heals,
            Self::TopicUnlisted
            | Self::TopicWithoutSettings
            | Self::PartitionUnlisted
            | Self::GroupForgotten
            | Self::QueueUnlisted
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
                | Self::GroupForgotten
                | Self::QueueUnlisted
                | Self::QueueWithoutSettings
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
            Self::GroupForgotten => "the group is added to the list",
            Self::GroupMissing => "the group is created there, with the oldest entry",
            Self::LogMissing => {
                "the loss is recorded, and the group is created on a new log: what was in the old one cannot be brought back"
            }
            Self::UnreadMissing => "the loss is recorded: the entries cannot be brought back",
            Self::EntriesLost => {
                "the record of entries that are gone; it stays until the group, topic or delay queue is deleted"
            }
            Self::PositionSkipped => {
                "the group was moved with XGROUP SETID: `millstream group reset` moves it back, as long as the entries are stored, which \
                 are trimmed as settled ones"
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
            Self::RuleLost => {
                "the time is taken out, since nothing is known of the rule but its id: put it again, as each program does that has it"
            }
            Self::QueueUnlisted => "the delay queue is added to the list",
            Self::QueueWithoutSettings => {
                "create it again with the number of shards that it had, as its workers do when they start"
            }
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
