//! The statistics without a screen: a table for people, JSON for programs.

use std::time::Duration;

use millstream::Timestamp;
use millstream::crates::core::QueueName;
use millstream::delay::TaskCounts;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::top::model::{Model, Others, TopGroupView, TopSchedule, TopTopicView};
use crate::commands::top::rows::{self, TopSort};
use crate::commands::top::view;
use crate::{human, output};

/// Maximum number of schedules in the table.
const SCHEDULES: usize = 20;

/// All topics.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Everything {
    topics: Vec<PlainTopic>,
    queues: Vec<PlainQueue>,
    /// Recurring entries of the delay queues, and of the first 50 topics.
    schedules: Vec<PlainSchedule>,
    /// Topics that could not be read.
    unreadable: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlainQueue {
    queue: String,
    waiting: u64,
    overdue: u64,
    claimed: u64,
    expired: u64,
    dead: u64,
    paused: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlainSchedule {
    /// The topic or the delay queue.
    of: String,
    id: String,
    next: Option<String>,
    /// How late the next occurrence is; 0 if it is not due.
    late_ms: u64,
    paused: bool,
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
            queues: model.others.queues.iter().map(PlainQueue::of).collect(),
            schedules: model
                .others
                .schedules
                .iter()
                .map(|it| PlainSchedule::of(it, model.others.now))
                .collect(),
            unreadable: model.unknown().map(ToString::to_string).collect(),
        }
    }
}

impl PlainQueue {
    fn of((name, counts): &(QueueName, TaskCounts)) -> Self {
        Self {
            queue: name.to_string(),
            waiting: counts.waiting.total,
            overdue: counts.waiting.overdue,
            claimed: counts.claimed,
            expired: counts.expired,
            dead: counts.dead,
            paused: counts.paused.is_some(),
        }
    }
}

impl PlainSchedule {
    fn of(it: &TopSchedule, now: Timestamp) -> Self {
        let late = it.next.map_or(Duration::ZERO, |next| now.saturating_duration_since(next));
        let (of, id, next) = (it.of.clone(), it.id.clone(), it.next.map(|next| next.to_string()));
        Self { of, id, next, late_ms: crate::human::ms(late), paused: it.paused }
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

/// Returns the complete tables: topics, delay queues and the next schedules.
pub(crate) fn text(model: &Model) -> String {
    let mut text = view::table(&rows::lines(model, TopSort::Urgency, false, ""));
    let Others { queues, schedules, now } = &model.others;
    if !queues.is_empty() {
        let titles = ["QUEUE", ">WAITING", ">OVERDUE", ">CLAIMED", ">DEAD", "STATE"];
        let rows = queues.iter().map(|(name, counts)| {
            let TaskCounts { waiting, claimed, dead, .. } = counts;
            let [total, overdue, claimed, dead] =
                [waiting.total, waiting.overdue, *claimed, *dead].map(human::count);
            let state = if counts.paused.is_some() { "paused" } else { "" };
            [name.to_string(), total, overdue, claimed, dead, state.to_owned()]
        });
        text += &format!("\n\n{}", output::table(&titles, rows));
    }
    if !schedules.is_empty() {
        let rows = schedules
            .iter()
            .take(SCHEDULES)
            .map(|it| [super::text::clean(&it.id), it.of.clone(), view::due(it, *now)]);
        text += &format!("\n\n{}", output::table(&["SCHEDULE", "OF", "NEXT"], rows));
    }
    text
}
