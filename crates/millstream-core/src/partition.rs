//! Partitions and shards: the parts of a topic and of a delay queue.

use std::fmt;

use crate::error::Location;
use crate::name::{GroupName, QueueName, TopicName};

/// Number of one partition of a topic, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u32);

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition of one topic: the unit of order, storage, ownership and cluster slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicName,
    /// The number of the partition.
    pub partition: Partition,
}

impl From<&TopicPartition> for Location {
    fn from(topic_partition: &TopicPartition) -> Self {
        let TopicPartition { topic, partition } = topic_partition;
        Self { partition: Some(partition.0), ..Self::from(topic) }
    }
}

impl TopicPartition {
    /// Creates partition `partition` of `topic`.
    #[must_use]
    pub fn new(topic: TopicName, partition: u32) -> Self {
        Self { topic, partition: Partition(partition) }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// One of the parts that a delay queue is spread over. Everything that must change together is in one shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Shard {
    /// The queue.
    pub queue: QueueName,
    /// Number of the shard, from 0.
    pub shard: u32,
}

impl Shard {
    /// Creates shard `shard` of `queue`.
    #[must_use]
    pub fn new(queue: QueueName, shard: u32) -> Self {
        Self { queue, shard }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.queue, self.shard)
    }
}

/// Place where scheduled messages wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A partition of a topic: due messages move to its log.
    Partition(TopicPartition),
    /// A shard of a delay queue: workers claim due messages.
    Shard(Shard),
}

impl From<TopicPartition> for Place {
    fn from(topic_partition: TopicPartition) -> Self {
        Self::Partition(topic_partition)
    }
}

impl From<Shard> for Place {
    fn from(shard: Shard) -> Self {
        Self::Shard(shard)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(topic_partition) => topic_partition.fmt(f),
            Self::Shard(shard) => shard.fmt(f),
        }
    }
}

/// Where messages or tasks are handled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkPlace {
    /// A partition, for one group. A message is named by the id of its entry in the log.
    Group(TopicPartition, GroupName),
    /// A shard of a delay queue. A task is named by its id.
    Shard(Shard),
}

impl fmt::Display for WorkPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(topic_partition, group) => write!(f, "group {group} of {topic_partition}"),
            Self::Shard(shard) => write!(f, "{shard}"),
        }
    }
}
