//! Reads the state of topics, groups and delay queues from the server.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::catalog::{PartitionStats, PartitionSurvey, Pin};
use millstream_core::schedule::{Place, Shard, Waiting};
use millstream_core::tasks::TaskCounts;
use millstream_core::{
    Backend, ErrorKind, GroupName, Partition, QueueName, Result, Start, TopicName, TopicSpec,
};

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

    /// Returns the reasons of what cannot be read of the topic as a whole.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &str> {
        self.unreadable.iter().chain(self.groups.iter().flat_map(|it| &it.unreadable)).map(String::as_str)
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
    /// Reasons of what cannot be read, apart from groups.
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

/// Returns what was read; `None` for an error that is not transient, whose reason is recorded.
fn readable<T>(reasons: &mut Vec<String>, read: Result<T>) -> Result<Option<T>> {
    match read {
        // A key of another type, or one with a value that makes no sense.
        Err(error) if matches!(error.kind(), ErrorKind::WrongType | ErrorKind::Protocol) => {
            reasons.push(error.to_string());
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// Reads the state of a topic with all of its groups, or with one group only, as far as it can be read.
pub(crate) async fn topic(
    backend: &Backend,
    name: &TopicName,
    only: Option<&GroupName>,
) -> Result<TopicSample> {
    let spec = backend.catalog().topic(name).await?;
    let mut unreadable = Vec::new();
    let groups = match only {
        Some(group) => vec![group.clone()],
        None => readable(&mut unreadable, backend.catalog().groups(name).await)?.unwrap_or_default(),
    };
    let partitions: Vec<_> = stream::iter(spec.iter())
        .map(|tp| async move {
            let partition = tp.partition;
            let mut reasons = Vec::new();
            let length = backend.catalog().count(&tp, Start::Earliest, None, u64::MAX).await;
            let length = readable(&mut reasons, length)?;
            let waiting = readable(&mut reasons, backend.schedule().waiting(&Place::from(tp)).await)?;
            Ok(((partition, length, waiting), reasons))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let (partitions, reasons): (Vec<_>, Vec<_>) = partitions.into_iter().unzip();
    unreadable.extend(reasons.into_iter().flatten());
    let mut samples = Vec::with_capacity(groups.len());
    for group in groups {
        samples.push(self::group(backend, &spec, group).await?);
    }
    Ok(TopicSample { topic: name.clone(), partitions, groups: samples, unreadable })
}

async fn group(backend: &Backend, spec: &TopicSpec, group: GroupName) -> Result<GroupSample> {
    let mut unreadable = Vec::new();
    let roster = readable(&mut unreadable, backend.members().roster(&spec.name, &group).await)?;
    let members = roster.map(|roster| roster.living().count());
    let state = readable(&mut unreadable, backend.catalog().group_state(&spec.name, &group).await)?;
    let paused = state.map(|state| state.paused.is_some());
    let partitions = backend.catalog().survey(spec, &group).await?;
    unreadable.extend(partitions.iter().flat_map(|it| &it.unreadable).map(|it| it.reason.clone()));
    Ok(GroupSample { group, members, paused, partitions, unreadable })
}

/// Reads the server's clock.
pub(crate) async fn clock(backend: &Backend, clock: &Clock) -> Result<()> {
    let asked = our_ms();
    let server = backend.schedule().now().await?;
    clock.told(server, asked, our_ms());
    Ok(())
}

/// Reads which groups keep entries of a topic from being dropped.
pub(crate) async fn pins(backend: &Backend, name: &TopicName) -> Result<Vec<Pin>> {
    let spec = backend.catalog().topic(name).await?;
    backend.catalog().pins(&spec).await
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
