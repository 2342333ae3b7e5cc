//! Topics and groups as several commands show them.

use std::time::Duration;

use millstream::admin::{GroupStats, Totals};
use millstream::layers::core::History;
use millstream::{DeadLetterRetention, GroupName, Retention, Timestamp, TopicSpec};
use serde::Serialize;
use serde_json::{Value, json};

use crate::human::ms;
use crate::{human, output};

/// A topic as it is stored.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct TopicView {
    pub(in crate::commands) topic: String,
    pub(in crate::commands) partitions: u32,
    /// `{"rule": "age", "ms": 1000}`.
    pub(in crate::commands) retention: Value,
    pub(in crate::commands) max_length: Option<u64>,
    /// `{"max_age_ms": 1000, "max_length": null}`.
    pub(in crate::commands) dead_letter_retention: Value,
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
            retention: retention(spec.retention),
            max_length: spec.max_length,
            dead_letter_retention: dead_letter_retention(spec.dead_letter_retention),
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
        ]
    }

    /// Returns its settings as a row.
    pub(in crate::commands) fn row(&self) -> [String; 4] {
        [self.topic.clone(), human::count(self.partitions.into()), self.retention_text.clone(), self.bound()]
    }

    fn bound(&self) -> String {
        human::or_none(self.max_length, |entries| format!("{} entries", human::count(entries)))
    }
}

/// Returns a retention, as used in JSON.
pub(in crate::commands) fn retention(of: Retention) -> Value {
    match of {
        Retention::ConsumedAfter(time) => json!({ "rule": "consumed-after", "ms": ms(time) }),
        Retention::Age(time) => json!({ "rule": "age", "ms": ms(time) }),
        Retention::Length(entries) => json!({ "rule": "length", "entries": entries }),
        other => json!({ "rule": other.to_string() }),
    }
}

/// Returns a retention of dead letters, as used in JSON.
pub(in crate::commands) fn dead_letter_retention(of: DeadLetterRetention) -> Value {
    json!({ "max_age_ms": of.max_age().map(ms), "max_length": of.max_length() })
}

/// The statistics of a group in a topic. An unknown figure is `null`.
#[derive(Debug, Default, Serialize)]
pub(in crate::commands) struct GroupView {
    /// `null` if the groups of the topic are unknown.
    pub(in crate::commands) group: Option<String>,
    /// The time since which it is paused.
    pub(in crate::commands) paused_at_ms: Option<Timestamp>,
    pub(in crate::commands) members: Option<usize>,
    pub(in crate::commands) owned_partitions: Option<usize>,
    /// The number of messages that have to be handled, now or later: lag, pending, retrying, and delayed ones that are
    /// due. Unknown if one of them is.
    pub(in crate::commands) backlog: Option<u64>,
    /// The number that certainly have to be handled.
    pub(in crate::commands) backlog_at_least: u64,
    pub(in crate::commands) lag: Option<u64>,
    pub(in crate::commands) lag_at_least: u64,
    pub(in crate::commands) oldest_ms: Option<u64>,
    pub(in crate::commands) pending: Option<u64>,
    pub(in crate::commands) retrying: Option<u64>,
    pub(in crate::commands) dead: Option<u64>,
    /// The reason why figures are unknown that cannot be read; the first one if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
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
        let Totals { lag, lag_at_least, oldest, pending, retrying, dead, .. } = stats.totals;
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
            match self.oldest_ms {
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

/// Returns the failed attempts of a message or task, as used in JSON.
pub(in crate::commands) fn failed_attempts(history: &History) -> Vec<Value> {
    let failures = history.failures().iter();
    failures.map(|it| json!({"at_ms": it.at, "attempt": it.attempt, "error": it.error})).collect()
}
