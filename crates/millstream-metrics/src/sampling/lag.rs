//! The work of a group, as one number per topic and group: for autoscalers.

use serde::Serialize;

use millstream_core::catalog::PartitionStats;
use millstream_core::{Backend, Error, ErrorKind, GroupName, Result, TopicName};

use crate::sampling::sample::{self, GroupSample, TopicSample};

/// Work of a group in a topic, over all partitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Lag {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// All work, now or later: messages that were never handed out, that are handed out and not settled, that wait for
    /// a retry, or that were delayed, are due and not in the log yet. If a partition's lag is unknown, all of its log
    /// counts. So this is never less than the actual work, and is zero only if there is none.
    pub backlog: u64,
    /// Same as `backlog`, but an unknown lag counts only as much as was found for certain: never more than the actual
    /// work, if the group exists.
    pub backlog_at_least: u64,
    /// Messages that were never handed out; `None` if that is unknown for a partition.
    pub lag: Option<u64>,
    /// Partitions whose lag the server cannot determine.
    pub unknown: Vec<u32>,
    /// Messages that are handed out and not settled.
    pub pending: u64,
    /// Messages that wait for a retry, due or not.
    pub retrying: u64,
    /// Delayed messages of the topic that are due and not in the log yet.
    pub overdue: u64,
    /// Dead letters. They do not count as work.
    pub dead: u64,
    /// Age in seconds of the oldest message that is unread, pending or due for a retry; zero if there is none.
    pub oldest_age_seconds: f64,
    /// Live consumers of the group.
    pub members: usize,
    /// Whether the whole group is paused: its consumers take nothing new.
    pub paused: bool,
    /// Number of partitions of the topic. More consumers than that are of no use, unless they share partitions.
    pub partitions: usize,
}

impl Lag {
    fn of(topic: &TopicSample, group: &GroupSample) -> Self {
        let stats = || group.partitions.iter().map(|it| &it.stats);
        let sum = |number: fn(&PartitionStats) -> u64| stats().map(number).sum::<u64>();
        let unknown = stats().filter(|it| it.lag.is_none());
        let oldest = stats().filter_map(|it| it.oldest).max();
        Self {
            topic: topic.topic.to_string(),
            group: group.group.to_string(),
            backlog: topic.backlog_at_most(group),
            backlog_at_least: topic.backlog_at_least(group),
            lag: stats().map(|it| it.lag).sum(),
            unknown: unknown.map(|it| it.partition.0).collect(),
            pending: sum(|it| it.pending),
            retrying: sum(|it| it.retrying),
            overdue: topic.overdue(),
            dead: sum(|it| it.dead),
            oldest_age_seconds: oldest.unwrap_or_default().as_secs_f64(),
            members: group.members.unwrap_or(0),
            paused: group.paused.unwrap_or(false),
            partitions: group.partitions.len(),
        }
    }
}

/// Topic whose state could not be read, as a whole or for a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LagFailed {
    /// The topic.
    pub topic: String,
    /// Error message.
    pub error: String,
    /// Kind of the error.
    pub kind: &'static str,
}

/// Work of every group of every topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Lags {
    /// Work by group.
    pub groups: Vec<Lag>,
    /// What could not be read. The groups concerned are missing in `groups`: their work is unknown.
    pub failed: Vec<LagFailed>,
}

/// Returns the work of every group of every topic. A topic that is deleted meanwhile, or cannot be read, does not
/// prevent the others.
pub(crate) async fn all(backend: &Backend) -> Result<Lags> {
    let mut lags = Lags::default();
    let topics = backend.catalog().topics().await?;
    let mut first = None;
    for (topic, sample) in topics.iter().zip(sample::topics(backend, &topics, false).await) {
        match sample {
            Ok(sample) => {
                let known = sample.groups.iter().filter(|group| why_unknown(&sample, group).is_none());
                lags.groups.extend(known.map(|group| Lag::of(&sample, group)));
                for reason in sample.reasons() {
                    let error = unreadable(topic, reason);
                    let (text, kind) = (reason.to_owned(), error.kind().as_str());
                    lags.failed.push(LagFailed { topic: topic.to_string(), error: text, kind });
                    first.get_or_insert(error);
                }
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                let (text, kind) = (error.to_string(), error.kind().as_str());
                lags.failed.push(LagFailed { topic: topic.to_string(), error: text, kind });
                first.get_or_insert(error);
            }
        }
    }
    match first {
        // The state of no topic is known: that is an error.
        Some(error) if lags.groups.is_empty() => Err(error),
        _ => Ok(lags),
    }
}

/// Returns why the work of a group is unknown, if a part of it cannot be read.
fn why_unknown<'a>(topic: &'a TopicSample, group: &'a GroupSample) -> Option<&'a str> {
    topic.unreadable.first().or(group.unreadable.first()).map(String::as_str)
}

fn unreadable(topic: &TopicName, reason: &str) -> Error {
    Error::new(ErrorKind::WrongType, reason.to_owned()).at(topic)
}

/// Returns whether a topic or group was deleted, or is being deleted.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::GroupMissing | ErrorKind::Deleted)
}

/// Returns the work of one group of one topic; `None` if there is no such group.
pub(crate) async fn one(backend: &Backend, topic: &TopicName, group: &GroupName) -> Result<Option<Lag>> {
    if !backend.catalog().groups(topic).await?.contains(group) {
        return Ok(None);
    }
    match sample::one(backend, topic, group).await {
        Ok(sample) => match sample.groups.first() {
            Some(group) => match why_unknown(&sample, group) {
                Some(reason) => Err(unreadable(topic, reason)),
                None => Ok(Some(Lag::of(&sample, group))),
            },
            None => Ok(None),
        },
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
