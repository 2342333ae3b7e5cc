//! Tests of the model, the state and the screen, with sample data.

mod model;
mod state;
mod view;

use std::time::Duration;

use millstream::admin::{GroupStats, TopicStats, Totals};
use millstream::{DeadLetter, GroupName, MessageId, Partition, PartitionStats, Reason, Topic, TopicName};

use crate::commands::top::round::{Problem, Round, TopicSample};

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
    let (totals, owned) = (Totals::of(&partitions), partitions.len());
    GroupStats { group: group(name), partitions, totals, paused: None, members: 1, owned, epochs: Vec::new() }
}

/// Returns the sample of a topic at a time, with groups.
fn sample(seconds: u64, topic: &str, groups: Vec<GroupStats>) -> TopicSample {
    let logs =
        groups.first().map_or_else(|| vec![PartitionStats::empty(Partition(0))], |it| it.partitions.clone());
    let partitions = u32::try_from(logs.len()).expect("few");
    let topic = Topic::<String>::new("any").partitions(partitions).spec().map(|spec| {
        let mut spec = spec;
        spec.name = name(topic);
        spec
    });
    let stats = TopicStats { topic: topic.expect("a topic"), delayed: 0, overdue: 0, groups };
    TopicSample { at: Duration::from_secs(seconds), stats, logs }
}

/// Returns a round with these topics only.
fn round(seconds: u64, topics: Vec<TopicSample>) -> Round {
    let mut names: Vec<TopicName> = topics.iter().map(|it| it.stats.topic.name.clone()).collect();
    names.sort();
    let (at, took) = (Duration::from_secs(seconds), Duration::from_millis(7));
    Round { at, took, names: Some(names), topics, ..Round::default() }
}

fn problem(error: &str, transient: bool) -> Problem {
    Problem { doing: "ask for topics".into(), error: error.into(), transient }
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
