//! Partitions: the parts of a topic.

use std::fmt;

use crate::error::Location;
use crate::name::TopicName;

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
