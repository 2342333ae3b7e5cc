//! The damage of the table: the raw commands that make each, and the truth of it.

use std::fmt::Display;

use millstream::crates::core::keys::Keys;
use millstream::{GroupName, TopicName, TopicPartition};

/// What can be seen of the group `billing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Its lag, pending, retrying and dead messages; `?` for what is unknown.
    Figures(&'static str),
    /// The groups of the topic are unknown.
    NoGroups,
    /// Nothing of the topic is known.
    NoTopic,
}

/// What `verify` says after a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Sound,
    /// The fault is repaired, and the record of a loss stays.
    Lost,
    /// A person has to decide.
    ByHand,
}

pub(super) struct Damage {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// The raw commands.
    pub(super) commands: fn(&Place) -> Vec<String>,
    pub(super) seen: Seen,
    /// Whether commands that read everything end with 1, since a part cannot be read.
    pub(super) partial: bool,
    /// The number of entries that `pending` lists, with `?` if a part cannot be read.
    pub(super) pending: &'static str,
    /// The faults that `verify` finds.
    pub(super) verify: &'static str,
    pub(super) after: After,
}

/// The keys of partition 0, and the ids of its entries: `billing` has read the first two of five, and settled none.
pub(super) struct Place {
    pub(super) keys: Keys,
    pub(super) topic: TopicName,
    pub(super) tp: TopicPartition,
    pub(super) group: GroupName,
    pub(super) ids: Vec<String>,
}

impl Place {
    fn log(&self) -> String {
        self.keys.log(&self.tp).to_string()
    }

    fn fence(&self) -> String {
        self.keys.fence(&self.tp, &self.group).to_string()
    }
}

/// Something of another type where this key was.
fn foreign(key: &impl Display) -> Vec<String> {
    vec![format!("DEL {key}"), format!("SET {key} theirs")]
}

const WHOLE: Seen = Seen::Figures("8 2 0 0");

const fn row(
    (name, what): (&'static str, &'static str),
    commands: fn(&Place) -> Vec<String>,
    seen: Seen,
    (partial, pending): (bool, &'static str),
    (verify, after): (&'static str, After),
) -> Damage {
    Damage { name, what, commands, seen, partial, pending, verify, after }
}

const FOREIGN: (&str, After) = ("wrong_type", After::ByHand);

pub(super) static TABLE: [Damage; 46] = [
    row(
        ("log_deleted", "the log of a partition is deleted"),
        |at| vec![format!("DEL {}", at.log())],
        Seen::Figures("? 0 0 0"),
        (false, "0"),
        ("log_missing", After::Lost),
    ),
    row(
        ("log_replaced", "the log is deleted, and a producer goes on"),
        |at| vec![format!("DEL {}", at.log()), format!("XADD {} * payload x", at.log())],
        Seen::Figures("? 0 0 0"),
        (false, "0"),
        ("group_missing", After::Lost),
    ),
    row(
        ("log_emptied", "all entries of a log are trimmed by hand"),
        |at| vec![format!("XTRIM {} MAXLEN 0", at.log())],
        Seen::Figures("5 2 0 0"),
        (false, "2"),
        ("ghost, unread_missing", After::Lost),
    ),
    row(
        ("log_cut", "a log is trimmed by hand beyond the position of a group"),
        |at| vec![format!("XTRIM {} MAXLEN 1", at.log())],
        Seen::Figures("6 2 0 0"),
        (false, "2"),
        ("ghost, unread_missing", After::Lost),
    ),
    row(
        ("unread_deleted", "an entry is deleted before it was read"),
        |at| vec![format!("XDEL {} {}", at.log(), at.ids[3])],
        Seen::Figures("7 2 0 0"),
        (false, "2"),
        ("unread_missing", After::Lost),
    ),
    row(
        ("pending_deleted", "a pending entry is deleted; other groups had not read it"),
        |at| vec![format!("XDEL {} {}", at.log(), at.ids[0])],
        WHOLE,
        (false, "2"),
        ("ghost, unread_missing", After::Lost),
    ),
    row(
        ("group_destroyed", "a group is destroyed on a log"),
        |at| vec![format!("XGROUP DESTROY {} billing", at.log())],
        Seen::Figures("? 0 0 0"),
        (false, "0"),
        ("group_missing", After::Sound),
    ),
    row(
        ("position_ahead", "a group is set beyond the end of a log"),
        |at| vec![format!("XGROUP SETID {} billing 99999999999999-0", at.log())],
        Seen::Figures("? 2 0 0"),
        (false, "2"),
        ("position_ahead", After::Sound),
    ),
    row(
        (
            "position_skipped",
            "a group is set to the end of a log, beyond an entry that is newer than its last read",
        ),
        |at| {
            vec![
                format!("XADD {} 99999999999998-0 payload x", at.log()),
                format!("XGROUP SETID {} billing $", at.log()),
            ]
        },
        Seen::Figures("? 2 0 0"),
        (false, "2"),
        ("position_skipped", After::ByHand),
    ),
    row(
        ("foreign_log", "another type at the key of a log"),
        |at| foreign(&at.log()),
        Seen::Figures("? ? 0 0"),
        (true, "?"),
        FOREIGN,
    ),
    row(
        ("foreign_retry_log", "of a retry log"),
        |at| foreign(&at.keys.retry_log(&at.tp, &at.group)),
        Seen::Figures("8 ? ? 0"),
        (true, "2 ?"),
        FOREIGN,
    ),
    row(
        ("foreign_retry_due", "of the due times of retries"),
        |at| foreign(&at.keys.retry_due(&at.tp, &at.group)),
        Seen::Figures("8 2 ? 0"),
        (true, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_retry_items", "of the bodies of retries"),
        |at| foreign(&at.keys.retry_items(&at.tp, &at.group)),
        WHOLE,
        (false, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_notes", "of the notes on pending entries"),
        |at| foreign(&at.keys.held(&at.tp, &at.group)),
        WHOLE,
        (false, "2 ?"),
        FOREIGN,
    ),
    row(
        ("foreign_dead_letters", "of dead letters"),
        |at| foreign(&at.keys.dead_letters(&at.tp, &at.group)),
        Seen::Figures("8 2 0 ?"),
        (true, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_lease", "of a lease"),
        |at| vec![format!("RPUSH {} theirs", at.keys.lease(&at.tp, &at.group))],
        WHOLE,
        (true, "2 ?"),
        FOREIGN,
    ),
    row(("foreign_fence", "of a fence"), |at| foreign(&at.fence()), WHOLE, (true, "2 ?"), FOREIGN),
    row(
        ("foreign_members", "of the members of a group"),
        |at| foreign(&at.keys.members(&at.topic, &at.group)),
        WHOLE,
        (true, "2 ?"),
        FOREIGN,
    ),
    row(
        ("foreign_member", "of the descriptions of members"),
        |at| foreign(&at.keys.member(&at.topic, &at.group)),
        WHOLE,
        (false, "2 ?"),
        FOREIGN,
    ),
    row(
        ("foreign_assignment", "of an assignment"),
        |at| foreign(&at.keys.assignment(&at.topic, &at.group)),
        WHOLE,
        (false, "2 ?"),
        FOREIGN,
    ),
    row(
        ("foreign_changes", "of the changes of members"),
        |at| foreign(&at.keys.changes(&at.topic, &at.group)),
        WHOLE,
        (false, "2 ?"),
        FOREIGN,
    ),
    row(
        ("foreign_group_state", "of the state of a group"),
        |at| foreign(&at.keys.group_state(&at.topic, &at.group)),
        WHOLE,
        (true, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_groups", "of the list of groups"),
        |at| foreign(&at.keys.topic_groups(&at.topic)),
        Seen::NoGroups,
        (true, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_partitions", "of the list of partitions"),
        |at| foreign(&at.keys.topic_partitions(&at.topic)),
        WHOLE,
        (false, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_settings", "of the settings of a topic"),
        |at| foreign(&at.keys.topic_meta(&at.topic)),
        Seen::NoTopic,
        (true, "?"),
        FOREIGN,
    ),
    row(
        ("foreign_delayed", "of delayed messages"),
        |at| foreign(&at.keys.delay(&at.tp.clone().into())),
        WHOLE,
        (true, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_delayed_items", "of the bodies of delayed messages"),
        |at| foreign(&at.keys.delay_items(&at.tp.clone().into())),
        WHOLE,
        (false, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_rule_times", "of the times of recurring rules"),
        |at| foreign(&at.keys.recur(&at.tp.clone().into())),
        WHOLE,
        (false, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_rules", "of recurring rules"),
        |at| foreign(&at.keys.recur_items(&at.tp.clone().into())),
        WHOLE,
        (false, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_gate", "of the gate of a reader"),
        |at| {
            let gate = at.keys.gate(&at.tp, &at.group, "w");
            [vec![format!("HSET {} reader w", at.fence())], foreign(&gate)].concat()
        },
        WHOLE,
        (false, "2"),
        FOREIGN,
    ),
    row(
        ("foreign_topics", "of the list of topics"),
        |at| foreign(&at.keys.topics()),
        WHOLE,
        (true, "2"),
        FOREIGN,
    ),
    row(
        ("topics_lost", "the list of topics is deleted"),
        |at| vec![format!("DEL {}", at.keys.topics())],
        WHOLE,
        (true, "2"),
        ("topic_unlisted", After::Sound),
    ),
    row(
        ("settings_lost", "the settings of a topic are deleted"),
        |at| vec![format!("DEL {}", at.keys.topic_meta(&at.topic))],
        Seen::NoTopic,
        (true, "?"),
        ("topic_without_settings", After::Sound),
    ),
    row(
        ("groups_lost", "the list of groups is deleted"),
        |at| vec![format!("DEL {}", at.keys.topic_groups(&at.topic))],
        Seen::NoGroups,
        (true, "2"),
        ("group_forgotten", After::Sound),
    ),
    row(
        ("retention_damaged", "the stored retention is `bananas`"),
        |at| vec![format!("HSET {} retention bananas", at.keys.topic_meta(&at.topic))],
        Seen::NoTopic,
        (true, "?"),
        ("settings_damaged", After::ByHand),
    ),
    row(
        ("partitions_damaged", "the stored number of partitions is `abc`"),
        |at| vec![format!("HSET {} partitionCount abc", at.keys.topic_meta(&at.topic))],
        Seen::NoTopic,
        (true, "?"),
        ("settings_damaged", After::ByHand),
    ),
    row(
        ("pause_damaged", "the stored time of a pause is `zzz`"),
        |at| vec![format!("HSET {} paused zzz", at.keys.group_state(&at.topic, &at.group))],
        WHOLE,
        (true, "2"),
        ("settings_damaged", After::ByHand),
    ),
    row(
        ("fence_damaged", "the epoch of a fence is too large"),
        |at| vec![format!("HSET {} epoch 99999999999999999999", at.fence())],
        WHOLE,
        (false, "2"),
        ("fence_damaged", After::ByHand),
    ),
    row(
        ("lease_broken", "a lease has no end"),
        |at| vec![format!("SET {} token", at.keys.lease(&at.tp, &at.group))],
        WHOLE,
        (false, "2"),
        ("lease_broken", After::Sound),
    ),
    row(
        ("retry_lost", "the body of a retry is gone, and its entry too"),
        |at| vec![format!("ZADD {} 99999999999999 1-1", at.keys.retry_due(&at.tp, &at.group))],
        Seen::Figures("8 2 1 0"),
        (false, "2"),
        ("retry_lost", After::Lost),
    ),
    row(
        ("retry_stranded", "a retry has no due time"),
        |at| vec![format!("HSET {} 1-1 x", at.keys.retry_items(&at.tp, &at.group))],
        Seen::Figures("8 2 1 0"),
        (false, "2"),
        ("retry_stranded", After::Sound),
    ),
    row(
        ("note_stray", "a note of an entry that is not pending"),
        |at| vec![format!("HSET {} log:1-1 x", at.keys.held(&at.tp, &at.group))],
        WHOLE,
        (false, "2"),
        ("note_stray", After::Sound),
    ),
    row(
        ("delayed_lost", "the body of a delayed message is gone"),
        |at| vec![format!("ZADD {} 99999999999999 m", at.keys.delay(&at.tp.clone().into()))],
        WHOLE,
        (false, "2"),
        ("body_lost", After::Lost),
    ),
    row(
        ("delayed_stranded", "a delayed message has no due time"),
        |at| vec![format!("HSET {} m x", at.keys.delay_items(&at.tp.clone().into()))],
        WHOLE,
        (false, "2"),
        ("body_stranded", After::Sound),
    ),
    row(
        ("rule_lost", "a recurring rule is gone, and its time is not"),
        |at| vec![format!("ZADD {} 99999999999999 r", at.keys.recur(&at.tp.clone().into()))],
        WHOLE,
        (false, "2"),
        ("rule_lost", After::Sound),
    ),
    row(
        ("rule_stranded", "the times of recurring rules are deleted"),
        |at| {
            let rule = "cmsgpack.pack({'every','0','99999999999999','payload','x'})";
            let rules = at.keys.recur_items(&at.tp.clone().into());
            vec![format!("EVAL redis.call('HSET',KEYS[1],'r',{rule}) 1 {rules}")]
        },
        WHOLE,
        (false, "2"),
        ("rule_stranded", After::Sound),
    ),
];
