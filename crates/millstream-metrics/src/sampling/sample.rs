//! Reads the state of topics, groups and delay queues from the server.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::catalog::{PartitionStats, PartitionSurvey, Pin};
use millstream_core::inspect::{GroupOverview, Overview, OverviewQuery};
use millstream_core::schedule::{Shard, Waiting};
use millstream_core::tasks::TaskCounts;
use millstream_core::{Backend, Error, ErrorKind, GroupName, Partition, QueueName, Result, TopicName};

use crate::sampling::clock::{Clock, our_ms};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 8;

/// Returns the work of a group in a topic, now or later, for a given lag of each partition.
fn to_do(topic: &TopicSample, group: &GroupSample, lag: fn(&PartitionStats) -> u64) -> u64 {
    let of_group = |it: &PartitionStats| lag(it) + it.pending + it.retrying;
    let stats = group.partitions.iter().map(|it| &it.stats);
    stats.map(of_group).sum::<u64>() + topic.overdue()
}

impl TopicSample {
    /// Returns the number of delayed messages that are due, as far as it is known.
    pub(crate) fn overdue(&self) -> u64 {
        self.partitions.iter().filter_map(|(_, _, waiting)| *waiting).map(|waiting| waiting.overdue).sum()
    }

    /// Returns the number of messages that were ever appended, as far as a group shows it.
    pub(crate) fn appended(&self) -> u64 {
        let partitions = self.groups.first().into_iter().flat_map(|group| &group.partitions);
        partitions.filter_map(|it| it.stats.appended).sum()
    }

    /// Returns the reasons of what cannot be read of the topic as a whole.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &str> {
        let of_groups = self.groups.iter().flat_map(|it| &it.unreadable);
        self.unlisted.iter().chain(&self.unreadable).chain(of_groups).map(String::as_str)
    }

    /// Returns the minimum work of a group. A partition without the group counts with its whole log: the group's next
    /// consumer creates it again, and starts at the oldest entry unless configured otherwise.
    pub(crate) fn backlog_at_least(&self, group: &GroupSample) -> u64 {
        to_do(self, group, |it| if it.position.is_none() { it.length } else { it.lag_at_least })
    }

    /// Returns the maximum work of a group.
    pub(crate) fn backlog_at_most(&self, group: &GroupSample) -> u64 {
        to_do(self, group, |it| it.lag.unwrap_or(it.length))
    }
}

/// State of a topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicSample {
    pub(crate) topic: TopicName,
    /// Number of messages in the log, and delayed messages, by partition; `None` for what cannot be read.
    pub(crate) partitions: Vec<(Partition, Option<u64>, Option<Waiting>)>,
    pub(crate) groups: Vec<GroupSample>,
    /// Groups that keep entries; `None` if that was not read.
    pub(crate) pins: Option<Vec<Pin>>,
    /// Reason why there may be groups that are not in `groups`, or the topic is not in the list of topics.
    pub(crate) unlisted: Option<String>,
    /// Reasons of what else cannot be read, apart from groups.
    pub(crate) unreadable: Vec<String>,
}

/// State of a group of a topic.
#[derive(Clone, Debug)]
pub(crate) struct GroupSample {
    pub(crate) group: GroupName,
    /// `None` if it cannot be read.
    pub(crate) members: Option<usize>,
    /// Whether the whole group is paused; `None` if it cannot be read.
    pub(crate) paused: Option<bool>,
    pub(crate) partitions: Vec<PartitionSurvey>,
    /// Reasons of what cannot be read.
    pub(crate) unreadable: Vec<String>,
}

/// State of a delay queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueSample {
    pub(crate) queue: QueueName,
    pub(crate) shards: Vec<(u32, TaskCounts)>,
}

/// Reads the state of topics with all of their groups, as far as it can be read.
pub(crate) async fn topics(backend: &Backend, names: &[TopicName], pins: bool) -> Vec<Result<TopicSample>> {
    let query = OverviewQuery::default();
    let overviews = backend.overview(names, &if pins { query.with_pins() } else { query }).await;
    overviews.into_iter().map(|overview| overview.map(topic)).collect()
}

/// Reads the state of a topic with one group only.
pub(crate) async fn one(backend: &Backend, name: &TopicName, group: &GroupName) -> Result<TopicSample> {
    let query = OverviewQuery::default().of(group.clone());
    let mut overviews = backend.overview(std::slice::from_ref(name), &query).await;
    let none = || Err(Error::new(ErrorKind::Protocol, "no topic was read"));
    overviews.pop().unwrap_or_else(none).map(topic)
}

fn topic(overview: Overview) -> TopicSample {
    let Overview { topic, logs, delayed, groups, pins, unlisted, .. } = overview;
    let (unlisted, mut unreadable) = (unlisted.as_ref().map(Error::to_string), Vec::new());
    let partitions = topic.iter().zip(logs).zip(delayed).map(|((tp, log), delayed)| {
        (
            tp.partition,
            readable(&mut unreadable, log).map(|log| log.length),
            readable(&mut unreadable, delayed),
        )
    });
    let partitions = partitions.collect();
    let pins = pins.and_then(|pins| readable(&mut unreadable, pins));
    let groups = groups.into_iter().map(group).collect();
    TopicSample { topic: topic.name, partitions, groups, pins, unlisted, unreadable }
}

fn group(overview: GroupOverview) -> GroupSample {
    let mut unreadable = Vec::new();
    let members = readable(&mut unreadable, overview.members);
    let paused = readable(&mut unreadable, overview.state).map(|state| state.paused.is_some());
    let partitions = readable(&mut unreadable, overview.partitions).unwrap_or_default();
    unreadable.extend(partitions.iter().flat_map(|it| &it.unreadable).map(|it| it.reason.clone()));
    GroupSample { group: overview.group, members, paused, partitions, unreadable }
}

/// Returns what was read; `None` for what cannot be, whose reason is recorded.
fn readable<T>(reasons: &mut Vec<String>, read: Result<T>) -> Option<T> {
    read.map_err(|error| reasons.push(error.to_string())).ok()
}

/// Reads the server's clock.
pub(crate) async fn clock(backend: &Backend, clock: &Clock) -> Result<()> {
    let asked = our_ms();
    let server = backend.schedule().now().await?;
    clock.told(server, asked, our_ms());
    Ok(())
}

/// Reads the state of a delay queue.
pub(crate) async fn queue(backend: &Backend, name: &QueueName) -> Result<QueueSample> {
    let spec = backend.tasks()?.queue(name).await?;
    let shards = stream::iter(spec.iter())
        .map(|shard: Shard| async move { Ok((shard.shard, backend.tasks()?.counts(&shard).await?)) })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(QueueSample { queue: name.clone(), shards })
}
