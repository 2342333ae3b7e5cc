//! Topics and groups as several commands show them.

use std::time::Duration;

use millstream::admin::{GroupStats, Totals};
use millstream::crates::core::History;
use millstream::{DeadLetterRetention, GroupName, Packing, Retention, Timestamp, TopicSpec};
use schemars::JsonSchema;
use serde::Serialize;

use crate::human::ms;
use crate::{human, output};

/// A topic as it is stored.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct TopicView {
    pub(in crate::commands) topic: String,
    pub(in crate::commands) partitions: u32,
    pub(in crate::commands) retention: RetentionView,
    /// The maximum number of entries in the log of a partition; `null` for no bound.
    pub(in crate::commands) max_length: Option<u64>,
    pub(in crate::commands) dead_letter_retention: DeadLetterRetentionView,
    /// How messages are packed; `null` for one message in each entry.
    pub(in crate::commands) packing: Option<PackingView>,
    #[serde(skip)]
    retention_text: String,
    #[serde(skip)]
    dead_letter_retention_text: String,
}

impl TopicView {
    pub(in crate::commands) fn of(spec: &TopicSpec) -> Self {
        Self {
            topic: spec.name.to_string(),
            partitions: spec.partitions,
            retention: RetentionView::of(spec.retention),
            max_length: spec.max_length,
            dead_letter_retention: DeadLetterRetentionView::of(spec.dead_letter_retention),
            packing: spec
                .packing
                .map(|packing| PackingView::of(packing, spec.dictionary.map(|it| it.version))),
            retention_text: human::retention(spec.retention),
            dead_letter_retention_text: human::dead_letter_retention(spec.dead_letter_retention),
        }
    }

    /// Returns its settings, for people.
    pub(in crate::commands) fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            ("topic", self.topic.clone()),
            ("partitions", human::count(self.partitions.into())),
            ("retention", self.retention_text.clone()),
            ("max length", self.bound()),
            ("dead letter retention", self.dead_letter_retention_text.clone()),
            ("packing", self.packing.as_ref().map_or_else(|| "none".to_owned(), PackingView::text)),
        ]
    }

    /// Returns its settings as a row.
    pub(in crate::commands) fn row(&self) -> [String; 4] {
        [self.topic.clone(), human::count(self.partitions.into()), self.retention_text.clone(), self.bound()]
    }

    fn bound(&self) -> String {
        human::or_none(self.max_length, |entries| human::of(entries, "entry", "entries"))
    }
}

/// How producers pack messages of a topic.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct PackingView {
    /// `none`, `lz4`, `zstd` or `zstd-dictionary`.
    compression: String,
    /// The least number of messages for which a pack is made.
    min_messages: usize,
    /// The largest number of messages in a pack.
    max_messages: usize,
    /// The size at which a pack takes no further message, before compression.
    max_bytes: usize,
    /// The version of the newest dictionary; `null` for none.
    dictionary: Option<u32>,
}

impl PackingView {
    fn of(packing: Packing, dictionary: Option<u32>) -> Self {
        Self {
            compression: packing.compressed().as_str().to_owned(),
            min_messages: packing.least(),
            max_messages: packing.messages(),
            max_bytes: packing.bytes(),
            dictionary,
        }
    }

    fn text(&self) -> String {
        let Self { compression, min_messages, max_messages, max_bytes, dictionary } = self;
        let compressed = if compression == "none" { "not compressed" } else { compression };
        let version = dictionary.map_or_else(String::new, |version| format!(" of version {version}"));
        format!(
            "{compressed}{version}, {min_messages} to {max_messages} messages, up to {}",
            human::bytes(*max_bytes as u64)
        )
    }
}

/// When entries leave the log: `{"rule": "age", "ms": 1000}`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct RetentionView {
    /// `consumed`, `consumed-after`, `age`, `length` or `keep`.
    #[schemars(extend("enum" = ["consumed", "consumed-after", "age", "length", "keep"]))]
    rule: String,
    /// The age, of `consumed-after` and `age`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    ms: Option<u64>,
    /// The number of entries, of `length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    entries: Option<u64>,
}

impl RetentionView {
    pub(in crate::commands) fn of(retention: Retention) -> Self {
        let (rule, ms, entries) = match retention {
            Retention::ConsumedAfter(time) => ("consumed-after".to_owned(), Some(ms(time)), None),
            Retention::Age(time) => ("age".to_owned(), Some(ms(time)), None),
            Retention::Length(entries) => ("length".to_owned(), None, Some(entries)),
            other => (other.to_string(), None, None),
        };
        Self { rule, ms, entries }
    }
}

/// Which dead letters or dead tasks stay; `null` where there is no limit.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct DeadLetterRetentionView {
    max_age_ms: Option<u64>,
    /// The number of the newest ones, in each partition or shard.
    max_length: Option<u64>,
}

impl DeadLetterRetentionView {
    pub(in crate::commands) fn of(retention: DeadLetterRetention) -> Self {
        Self { max_age_ms: retention.max_age().map(ms), max_length: retention.max_length() }
    }
}

/// The statistics of a group in a topic. An unknown figure is `null`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::commands) struct GroupView {
    /// `null` if the groups of the topic are unknown.
    pub(in crate::commands) group: Option<String>,
    /// The time since which it is paused.
    #[schemars(with = "Option<u64>")]
    pub(in crate::commands) paused_at_ms: Option<Timestamp>,
    /// The number of live members.
    pub(in crate::commands) members: Option<usize>,
    pub(in crate::commands) owned_partitions: Option<usize>,
    /// The number of messages that have to be handled, now or later: lag, pending, retrying, and delayed ones that are
    /// due. Unknown if one of them is.
    pub(in crate::commands) backlog: Option<u64>,
    /// The number that certainly have to be handled.
    pub(in crate::commands) backlog_at_least: u64,
    /// The number of entries that were never handed out to the group.
    pub(in crate::commands) lag: Option<u64>,
    /// The number of them that were counted.
    pub(in crate::commands) lag_at_least: u64,
    /// The age of the oldest message that is unread, pending or due for a retry; `null` also if there is none.
    pub(in crate::commands) oldest_ms: Option<u64>,
    /// The age of the oldest message that waits for a retry, of those that are due next in their partitions; `null` also if there is none.
    pub(in crate::commands) oldest_retry_ms: Option<u64>,
    /// The number of messages that were handed out and are not settled.
    pub(in crate::commands) pending: Option<u64>,
    /// The number of messages that wait for a retry.
    pub(in crate::commands) retrying: Option<u64>,
    /// The number of dead letters.
    pub(in crate::commands) dead: Option<u64>,
    /// The reason why figures are unknown that cannot be read; the first one if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(in crate::commands) error: Option<String>,
}

impl GroupView {
    /// Creates the view of an unreadable group, or of the unreadable groups of a topic.
    pub(in crate::commands) fn unknown(group: Option<&GroupName>, error: &millstream::Error) -> Self {
        let error = Some(error.to_string());
        Self { group: group.map(ToString::to_string), error, ..Self::default() }
    }

    /// Creates it from the statistics and the number of delayed messages of the topic that are due, if it is known.
    pub(in crate::commands) fn of(stats: &GroupStats, overdue: Option<u64>) -> Self {
        let Totals { lag, lag_at_least, oldest, oldest_parked, pending, retrying, dead, .. } = stats.totals;
        Self {
            group: Some(stats.group.to_string()),
            paused_at_ms: stats.paused,
            members: stats.members,
            owned_partitions: stats.owned,
            backlog: stats.backlog().zip(overdue).map(|(backlog, overdue)| backlog + overdue),
            backlog_at_least: stats.backlog_at_least() + overdue.unwrap_or(0),
            lag,
            lag_at_least,
            oldest_ms: oldest.map(ms),
            oldest_retry_ms: oldest_parked.map(ms),
            pending,
            retrying,
            dead,
            error: stats.reasons().next().map(str::to_owned),
        }
    }

    /// Titles of [`row`](Self::row), in the same order; `>` aligns a column right.
    pub(in crate::commands) const TITLES: [&str; 9] =
        ["group", ">members", ">owned", ">backlog", ">lag", ">oldest", ">pending", ">retrying", ">dead"];

    pub(in crate::commands) fn row(&self) -> [String; 9] {
        let paused = if self.paused_at_ms.is_some() { ", paused" } else { "" };
        [
            format!("{}{paused}", self.group.as_deref().unwrap_or("?")),
            human::known(self.members.map(|it| it as u64)),
            human::known(self.owned_partitions.map(|it| it as u64)),
            human::at_least(self.backlog, self.backlog_at_least),
            human::at_least(self.lag, self.lag_at_least),
            match self.oldest_ms.max(self.oldest_retry_ms) {
                // A log that cannot be read has no oldest entry that is known.
                None if self.pending.is_none() => "?".to_owned(),
                oldest => human::or_none(oldest, |ms| human::duration(Duration::from_millis(ms))),
            },
            human::known(self.pending),
            human::known(self.retrying),
            human::known(self.dead),
        ]
    }

    /// Formats a table of groups.
    pub(in crate::commands) fn table(groups: &[Self]) -> String {
        output::table(&Self::TITLES, groups.iter().map(Self::row))
    }
}

/// A failed attempt of a message or task.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct FailedAttempt {
    #[schemars(with = "u64")]
    at_ms: Timestamp,
    attempt: u32,
    error: String,
}

impl FailedAttempt {
    pub(in crate::commands) fn all(history: &History) -> Vec<Self> {
        let failures = history.failures().iter();
        failures.map(|it| Self { at_ms: it.at, attempt: it.attempt, error: it.error.clone() }).collect()
    }
}
