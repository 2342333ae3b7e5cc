//! The statistics without a screen: a table for people, JSON for programs.

use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::top::model::{Model, TopGroupView, TopTopicView};
use crate::commands::top::rows::{self, TopSort};
use crate::commands::top::view;

/// All topics.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Everything {
    topics: Vec<PlainTopic>,
    /// Topics that could not be read.
    unreadable: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlainTopic {
    topic: String,
    partitions: u32,
    entries: Option<u64>,
    produced_per_second: Option<f64>,
    delayed: Option<u64>,
    overdue: Option<u64>,
    groups: Vec<PlainGroup>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlainGroup {
    group: String,
    consumed_per_second: Option<f64>,
    backlog: Option<u64>,
    backlog_at_least: u64,
    lag: Option<u64>,
    lag_at_least: u64,
    oldest_ms: Option<u64>,
    pending: Option<u64>,
    retrying: Option<u64>,
    dead: Option<u64>,
    paused: bool,
    members: Option<usize>,
    owned: Option<usize>,
}

impl Everything {
    pub(crate) fn of(model: &Model) -> Self {
        Self {
            topics: model.topics().map(|topic| PlainTopic::of(&topic)).collect(),
            unreadable: model.unknown().map(ToString::to_string).collect(),
        }
    }
}

impl PlainTopic {
    fn of(topic: &TopTopicView<'_>) -> Self {
        Self {
            topic: topic.topic.name.to_string(),
            partitions: topic.topic.partitions,
            entries: topic.entries,
            produced_per_second: topic.produced,
            delayed: topic.delayed,
            overdue: topic.overdue,
            groups: topic.groups.iter().map(PlainGroup::of).collect(),
        }
    }
}

impl PlainGroup {
    fn of(group: &TopGroupView<'_>) -> Self {
        let totals = group.totals;
        Self {
            group: group.group.to_string(),
            consumed_per_second: group.consumed,
            backlog: group.backlog,
            backlog_at_least: group.backlog_at_least,
            lag: totals.lag,
            lag_at_least: totals.lag_at_least,
            oldest_ms: totals.oldest.map(crate::human::ms),
            pending: totals.pending,
            retrying: totals.retrying,
            dead: totals.dead,
            paused: group.paused,
            members: group.members,
            owned: group.owned,
        }
    }
}

/// Returns the complete table of the first page.
pub(crate) fn text(model: &Model) -> String {
    view::table(&rows::lines(model, TopSort::Name, false, ""))
}
