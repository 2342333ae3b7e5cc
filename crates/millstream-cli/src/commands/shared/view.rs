//! Topics and groups as several commands show them.

use std::time::Duration;

use millstream::admin::{GroupStats, Totals};
use millstream::layers::core::History;
use millstream::{DeadLetterRetention, PartitionStats, Retention, Timestamp, TopicSpec};
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

/// Returns the number of messages that a group certainly has to handle in these partitions, as `millstream_backlog`
/// counts them. Where the group is missing, its next consumer restores it and starts with the oldest entry.
pub(in crate::commands) fn backlog(partitions: &[PartitionStats]) -> u64 {
    let lag = |it: &PartitionStats| if it.position.is_none() { it.length } else { it.lag_at_least };
    partitions.iter().map(|it| lag(it) + it.pending + it.retrying).sum()
}

/// The statistics of a group in a topic. An unknown lag is `null`.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct GroupView {
    pub(in crate::commands) group: String,
    /// The time since which it is paused.
    pub(in crate::commands) paused_at_ms: Option<Timestamp>,
    pub(in crate::commands) members: usize,
    pub(in crate::commands) owned_partitions: usize,
    /// The number of messages that have to be handled, now or later: lag, pending, retrying, and delayed ones that are
    /// due. Unknown if the lag is.
    pub(in crate::commands) backlog: Option<u64>,
    /// The number that certainly have to be handled.
    pub(in crate::commands) backlog_at_least: u64,
    pub(in crate::commands) lag: Option<u64>,
    pub(in crate::commands) lag_at_least: u64,
    pub(in crate::commands) oldest_ms: Option<u64>,
    pub(in crate::commands) pending: u64,
    pub(in crate::commands) retrying: u64,
    pub(in crate::commands) dead: u64,
}

impl GroupView {
    /// Creates it from the statistics and the number of delayed messages of the topic that are due.
    pub(in crate::commands) fn of(stats: &GroupStats, overdue: u64) -> Self {
        let Totals { lag, lag_at_least, oldest, pending, retrying, dead, .. } = stats.totals;
        let backlog_at_least = backlog(&stats.partitions) + overdue;
        Self {
            group: stats.group.to_string(),
            paused_at_ms: stats.paused,
            members: stats.members,
            owned_partitions: stats.owned,
            backlog: lag.map(|_| backlog_at_least),
            backlog_at_least,
            lag,
            lag_at_least,
            oldest_ms: oldest.map(ms),
            pending,
            retrying,
            dead,
        }
    }

    /// Titles of [`row`](Self::row), in the same order; `>` aligns a column right.
    pub(in crate::commands) const TITLES: [&str; 9] =
        ["group", ">members", ">owned", ">backlog", ">lag", ">oldest", ">pending", ">retrying", ">dead"];

    pub(in crate::commands) fn row(&self) -> [String; 9] {
        let paused = if self.paused_at_ms.is_some() { ", paused" } else { "" };
        [
            format!("{}{paused}", self.group),
            human::count(self.members as u64),
            human::count(self.owned_partitions as u64),
            human::at_least(self.backlog, self.backlog_at_least),
            human::at_least(self.lag, self.lag_at_least),
            human::or_none(self.oldest_ms, |ms| human::duration(Duration::from_millis(ms))),
            human::count(self.pending),
            human::count(self.retrying),
            human::count(self.dead),
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
