//! The catalog role: topics, partitions, groups, and how they stand.

use async_trait::async_trait;

use crate::error::Result;
use crate::id::MessageId;
use crate::name::{GroupName, TopicName};
use crate::topic::{Partition, TopicPartition, TopicSpec};

/// The version of keys and fields that this library writes; it stands in every topic's meta hash.
pub const FORMAT: u32 = 1;

/// Where a new group starts reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With the oldest entry that is there. The default: a work queue must not skip what was sent before the
    /// first consumer came.
    #[default]
    Earliest,
    /// With what is appended from now on.
    Latest,
    /// With the first entry above this id.
    After(MessageId),
    /// With the first entry that was appended at this time or later: milliseconds since 1970 by the server's clock.
    At(u64),
}

/// The answer to [`Catalog::create_group`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCreated {
    /// Whether the topic did not know the group before.
    pub new: bool,
    /// The partitions on which it was created now. If the group is not new, it had been lost there
    /// (or the topic has grown).
    pub partitions: Vec<Partition>,
}

/// How one partition stands with one group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStats {
    /// Which partition.
    pub partition: Partition,
    /// Entries in the log.
    pub length: u64,
    /// The id of the last entry that was handed out to the group; `None` if the group is not there.
    pub position: Option<MessageId>,
    /// Entries that were never handed out to the group; `None` when the server cannot say (entries were
    /// deleted ahead of the group, or the group was created inside the log).
    pub lag: Option<u64>,
    /// Entries handed out and not settled, from log and retry log.
    pub pending: u64,
    /// Messages parked until their retry is due, and due ones not yet handed out.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
}

impl PartitionStats {
    /// A partition in which nothing is.
    #[must_use]
    pub const fn empty(partition: Partition) -> Self {
        Self { partition, length: 0, position: None, lag: Some(0), pending: 0, retrying: 0, dead: 0 }
    }
}

/// Knows which topics and groups there are. Nothing here is needed for safety: that is the leases' part.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Registers a topic unless it is there, and gives back the topic as it is stored: the first number of
    /// partitions and the first retention win.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the stored format is newer than
    /// [`FORMAT`]; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType);
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the stored settings make no sense. Transient ones.
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec>;

    /// Gives a topic more partitions, and every group of it a place on the new ones, with their oldest entry.
    /// Nothing happens if it has as many already. Gives back the topic as it is stored then.
    ///
    /// From then on keys may go to other partitions than before; see the ordering guide.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound);
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for more than
    /// [`MAX_PARTITIONS`](crate::topic::MAX_PARTITIONS); those of [`create_topic`](Self::create_topic).
    async fn expand(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec>;

    /// How many entries of a partition's log come after `start` and not after `end`, counted up to `limit`: what a
    /// [`seek`](crate::Log::seek) would read again or skip.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn count(
        &self,
        topic_partition: &TopicPartition,
        start: Start,
        end: Option<MessageId>,
        limit: u64,
    ) -> Result<u64>;

    /// A topic as it is stored.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), and those of [`create_topic`](Self::create_topic).
    async fn topic(&self, name: &TopicName) -> Result<TopicSpec>;

    /// All topics, sorted by name.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn topics(&self) -> Result<Vec<TopicName>>;

    /// Registers a group and creates it on every partition where it is missing.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated>;

    /// All groups of a topic, sorted by name.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>>;

    /// Creates the group again on a partition that lost it, so that reading goes on above `after`, and registers
    /// it again. If it is there, nothing happens.
    ///
    /// If the log ends below `after`, it is not the log that `after` was read from: the group then starts with its
    /// oldest entry.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<()>;

    /// How every partition stands with the group, in the order of partitions.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>>;
}
