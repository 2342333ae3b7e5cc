//! Reads the state of topics, groups and delay queues from the server.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::catalog::{PartitionStats, Pin};
use millstream_core::schedule::{Place, Shard, Waiting};
use millstream_core::tasks::TaskCounts;
use millstream_core::{Backend, GroupName, Partition, QueueName, Result, Start, TopicName, TopicSpec};

use crate::sampling::clock::{Clock, our_ms};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 8;

/// Returns the work of a group in a topic, now or later, for a given lag of each partition.
fn to_do(topic: &TopicSample, group: &GroupSample, lag: fn(&PartitionStats) -> u64) -> u64 {
    let of_group = |it: &PartitionStats| lag(it) + it.pending + it.retrying;
    let overdue: u64 = topic.partitions.iter().map(|(_, _, waiting)| waiting.overdue).sum();
    group.partitions.iter().map(of_group).sum::<u64>() + overdue
}

impl TopicSample {
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
    /// Number of messages in the log, and delayed messages, by partition.
    pub(crate) partitions: Vec<(Partition, u64, Waiting)>,
    pub(crate) groups: Vec<GroupSample>,
}

/// State of a group of a topic.
#[derive(Clone, Debug)]
pub(crate) struct GroupSample {
    pub(crate) group: GroupName,
    pub(crate) members: usize,
    /// Whether the whole group is paused.
    pub(crate) paused: bool,
    pub(crate) partitions: Vec<PartitionStats>,
}

/// State of a delay queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueSample {
    pub(crate) queue: QueueName,
    pub(crate) shards: Vec<(u32, TaskCounts)>,
}

/// Reads the state of a topic with all of its groups, or with one group only.
pub(crate) async fn topic(
    backend: &Backend,
    name: &TopicName,
    only: Option<&GroupName>,
) -> Result<TopicSample> {
    let spec = backend.catalog().topic(name).await?;
    let groups = match only {
        Some(group) => vec![group.clone()],
        None => backend.catalog().groups(name).await?,
    };
    let partitions = stream::iter(spec.iter())
        .map(|tp| async move {
            let partition = tp.partition;
            let length = backend.catalog().count(&tp, Start::Earliest, None, u64::MAX).await?;
            Ok((partition, length, backend.schedule().waiting(&Place::from(tp)).await?))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut samples = Vec::with_capacity(groups.len());
    for group in groups {
        samples.push(self::group(backend, &spec, group).await?);
    }
    Ok(TopicSample { topic: name.clone(), partitions, groups: samples })
}

async fn group(backend: &Backend, spec: &TopicSpec, group: GroupName) -> Result<GroupSample> {
    let members = backend.members().roster(&spec.name, &group).await?.living().count();
    let paused = backend.catalog().group_state(&spec.name, &group).await?.paused.is_some();
    let partitions = backend.catalog().stats(spec, &group).await?;
    Ok(GroupSample { group, members, paused, partitions })
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
