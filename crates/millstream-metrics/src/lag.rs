//! How much is to be done, as one number per topic and group: for whoever scales consumers.

use serde::Serialize;

use millstream_core::catalog::PartitionStats;
use millstream_core::{Backend, GroupName, Result, TopicName};

use crate::clock::Clock;
use crate::sample::{self, GroupSample, TopicSample};

/// What a group has to do in a topic, over all partitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Lag {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// All that is to be done, now or later: what was never handed out, what is handed out and not settled, what waits
    /// for a retry, and what was delayed, is due and not in the log yet. Where a partition's lag is not known, all of its
    /// log counts: so this is never less than there is, and is zero only if nothing is to be done.
    pub backlog: u64,
    /// Messages that were never handed out; `None` if that is unknown for a partition.
    pub lag: Option<u64>,
    /// The partitions whose lag the server cannot say.
    pub unknown: Vec<u32>,
    /// Messages that are handed out and not settled.
    pub pending: u64,
    /// Messages that wait for a retry, due or not.
    pub retrying: u64,
    /// Delayed messages of the topic that are due and not in the log yet.
    pub overdue: u64,
    /// Dead letters. They are no work.
    pub dead: u64,
    /// The age in seconds of the oldest message in the log that is not settled and waits for no retry; zero if there is
    /// none.
    pub oldest_age_seconds: f64,
    /// Consumers that live in the group.
    pub members: usize,
    /// How many partitions the topic has. More consumers than that are of no use, unless they share partitions.
    pub partitions: usize,
}

impl Lag {
    fn of(topic: &TopicSample, group: &GroupSample) -> Self {
        let sum = |number: fn(&PartitionStats) -> u64| group.partitions.iter().map(number).sum::<u64>();
        let overdue = topic.partitions.iter().map(|(_, _, waiting)| waiting.overdue).sum();
        let (pending, retrying) = (sum(|it| it.pending), sum(|it| it.retrying));
        let at_most = sum(|it| it.lag.unwrap_or(it.length));
        let unknown = group.partitions.iter().filter(|it| it.lag.is_none());
        let oldest = group.partitions.iter().filter_map(|it| it.oldest).max();
        Self {
            topic: topic.topic.to_string(),
            group: group.group.to_string(),
            backlog: at_most + pending + retrying + overdue,
            lag: group.partitions.iter().map(|it| it.lag).sum(),
            unknown: unknown.map(|it| it.partition.0).collect(),
            pending,
            retrying,
            overdue,
            dead: sum(|it| it.dead),
            oldest_age_seconds: oldest.unwrap_or_default().as_secs_f64(),
            members: group.members,
            partitions: group.partitions.len(),
        }
    }
}

/// Every group of every topic.
pub(crate) async fn all(backend: &Backend, clock: &Clock) -> Result<Vec<Lag>> {
    let mut lags = Vec::new();
    for topic in backend.catalog.topics().await? {
        let sample = sample::topic(backend, clock, &topic, None).await?;
        lags.extend(sample.groups.iter().map(|group| Lag::of(&sample, group)));
    }
    Ok(lags)
}

/// One group of one topic; `None` if there is no such group.
pub(crate) async fn one(
    backend: &Backend,
    clock: &Clock,
    topic: &TopicName,
    group: &GroupName,
) -> Result<Option<Lag>> {
    if !backend.catalog.groups(topic).await?.contains(group) {
        return Ok(None);
    }
    let sample = sample::topic(backend, clock, topic, Some(group)).await?;
    Ok(sample.groups.first().map(|group| Lag::of(&sample, group)))
}
