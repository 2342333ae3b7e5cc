//! Tests of the model, the state and the screen, with sample data.

mod model;
mod state;
mod view;

use std::time::Duration;

use millstream::admin::{GroupStats, Totals};
use millstream::crates::core::catalog::PartitionSurvey;
use millstream::{DeadLetter, GroupName, MessageId, Partition, PartitionStats, Reason, Topic, TopicName};

use crate::commands::top::model::{Problem, Round, TopicSample};

fn name(name: &str) -> TopicName {
    name.parse().expect("a name")
}

fn group(name: &str) -> GroupName {
    name.parse().expect("a name")
}

/// Returns a partition with this many appended and unread entries; its log contains the unread ones.
fn partition(number: u32, appended: u64, lag: u64) -> PartitionStats {
    let mut stats = PartitionStats::empty(Partition(number));
    (stats.appended, stats.length) = (Some(appended), lag);
    (stats.lag, stats.lag_at_least) = (Some(lag), lag);
    stats.position = Some(MessageId::new(1, 0));
    stats
}

/// Returns a group that owns all partitions.
fn standing(name: &str, partitions: Vec<PartitionStats>) -> GroupStats {
    let partitions: Vec<_> = partitions.into_iter().map(PartitionSurvey::new).collect();
    let (totals, owned) = (Totals::of(&partitions), Some(partitions.len()));
    let (members, unreadable) = (Some(1), Vec::new());
    GroupStats {
        group: group(name),
        partitions,
        totals,
        paused: None,
        members,
        owned,
        epochs: Vec::new(),
        unreadable,
    }
}

/// Returns the sample of a topic at a time, with groups.
fn sample(seconds: u64, topic: &str, groups: Vec<GroupStats>) -> TopicSample {
    let empty = || vec![PartitionSurvey::new(PartitionStats::empty(Partition(0)))];
    let logs = groups.first().map_or_else(empty, |it| it.partitions.clone());
    let partitions = u32::try_from(logs.len()).expect("few");
    let topic = Topic::<String>::new("any").partitions(partitions).spec().map(|spec| {
        let mut spec = spec;
        spec.name = name(topic);
        spec
    });
    let (at, topic) = (Duration::from_secs(seconds), topic.expect("a topic"));
    TopicSample { at, topic, delayed: Some(0), overdue: Some(0), groups, logs }
}

/// Returns a round with these topics only.
fn round(seconds: u64, topics: Vec<TopicSample>) -> Round {
    let mut names: Vec<TopicName> = topics.iter().map(|it| it.topic.name.clone()).collect();
    names.sort();
    let (at, took) = (Duration::from_secs(seconds), Duration::from_millis(7));
    Round { at, took, names: Some(names), topics, ..Round::default() }
}

fn problem(error: &str, transient: bool) -> Problem {
    Problem { doing: "ask for topics".into(), topic: None, error: error.into(), transient }
}

fn letter(topic: &str, number: u32, ms: u64, error: &str) -> DeadLetter {
    DeadLetter {
        id: MessageId::new(ms, 0),
        reason: Reason::Exhausted,
        attempts: 3,
        error: error.into(),
        origin: MessageId::new(ms - 1_000, 0),
        topic_partition: millstream::TopicPartition::new(name(topic), number),
        group: group("billing"),
        history: millstream::History::default(),
        body: vec![("payload".into(), "{\"order\":7}".into())],
    }
}
