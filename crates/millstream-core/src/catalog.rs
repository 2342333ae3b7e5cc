//! The catalog role: topics, partitions, groups, and how they stand.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::id::MessageId;
use crate::name::{GroupName, TopicName};
use crate::topic::{Partition, TopicChange, TopicPartition, TopicSpec};

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
    /// With the first entry above this id. One that is beyond the end of the log is its end: nothing that comes is
    /// skipped.
    After(MessageId),
    /// With the first entry that was appended at this time or later: milliseconds since 1970 by the server's clock. A
    /// time after the last entry is the end of the log, as above.
    At(u64),
}

/// For how long it is remembered that a topic or group was deleted: who was away for longer and still runs creates it
/// again, as after a loss of data.
pub const REMEMBERED: Duration = Duration::from_secs(3_600);

/// What is kept of a group as a whole, apart from where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupState {
    /// Since when it is [paused](Catalog::set_paused), in milliseconds since 1970 by the server's clock; `None` if it
    /// is not.
    pub paused: Option<u64>,
    /// Whether it is being deleted: if nobody is at it, that was stopped half-way.
    pub deleting: bool,
}

impl GroupState {
    /// A group that works.
    #[must_use]
    pub const fn new() -> Self {
        Self { paused: None, deleting: false }
    }
}

/// The answer to [`Catalog::create_group`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCreated {
    /// Whether the topic did not know the group before; also for those who come while it is being created.
    pub new: bool,
    /// The partitions on which it was created now. If the group is not new, it had been lost there
    /// (or the topic has grown), and starts there with the oldest entry.
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
    /// Entries that were ever appended to it, those included that have left; what was appended between two looks is the
    /// difference. It starts over with a log that was deleted. `None` if the server keeps no count.
    pub appended: Option<u64>,
    /// The id of the last entry that was handed out to the group; `None` if the group is not there.
    pub position: Option<MessageId>,
    /// Entries that were never handed out to the group: exact, or `None` where that would take too long to find out
    /// (the server has lost count, since entries were deleted or the group began inside the log, and there are too many
    /// on both sides of it to be counted).
    pub lag: Option<u64>,
    /// Entries that were never handed out to the group, at least: as many as were found, if [`lag`](Self::lag) is not
    /// known; else the same.
    pub lag_at_least: u64,
    /// How old the oldest entry of the log is that the group has not settled, unread or pending, by the server's clock.
    /// `None` if there is none, or the group is not there. What is parked for a retry or stands in the retry log does
    /// not count.
    pub oldest: Option<Duration>,
    /// Entries handed out and not settled, from log and retry log.
    pub pending: u64,
    /// Messages parked until their retry is due, and due ones not yet handed out.
    pub retrying: u64,
    /// Of these, how many are in the group's retry log and were not handed out yet: they were due when somebody looked.
    pub due: u64,
    /// Dead letters.
    pub dead: u64,
}

impl PartitionStats {
    /// A partition in which nothing is.
    #[must_use]
    pub const fn empty(partition: Partition) -> Self {
        Self {
            partition,
            length: 0,
            appended: Some(0),
            position: None,
            lag: Some(0),
            lag_at_least: 0,
            oldest: None,
            pending: 0,
            retrying: 0,
            due: 0,
            dead: 0,
        }
    }
}

/// The group that keeps the most entries of a partition's log from being dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// Which partition.
    pub partition: Partition,
    /// Which group has settled the least.
    pub group: GroupName,
    /// The oldest entry that has to stay for it.
    pub watermark: MessageId,
    /// How long ago it asked for entries last, by the server's clock, whoever asked; `None` if nobody ever did, or the
    /// server does not say.
    pub idle: Option<Duration>,
    /// Entries that stay for this group alone: every other group has settled them. If that is not the whole log, they are
    /// counted up to [`LIMIT`](Self::LIMIT).
    pub entries: u64,
    /// Whether there are no more than these.
    pub exact: bool,
    /// About how many bytes of the server's memory these take.
    pub bytes: u64,
}

impl Pin {
    /// Up to so many entries are counted one by one; where the whole log stays, its length is known.
    pub const LIMIT: u64 = 10_000;

    /// What `group` keeps in a partition.
    #[must_use]
    pub const fn new(partition: Partition, group: GroupName, watermark: MessageId) -> Self {
        Self { partition, group, watermark, idle: None, entries: 0, exact: true, bytes: 0 }
    }
}

/// Knows which topics and groups there are. Nothing here is needed for safety: that is the leases' part.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Registers a topic unless it is there, and gives back the topic as it is stored: the first number of
    /// partitions and the first retention win. If it is remembered that it was deleted, that is forgotten, and the new one
    /// says so in [`generation`](TopicSpec::generation): who still works on the one before is not to take it for the same.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the stored format is newer than
    /// [`FORMAT`], or a setting is not known; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType);
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the stored settings make no sense;
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the given ones do not.
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) while it is being deleted. Transient ones.
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec>;

    /// Creates a topic again that was lost with the data, as [`create_topic`](Self::create_topic) does, but not one that
    /// was deleted: for who runs and finds no topic any more.
    ///
    /// # Errors
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) if it is being deleted, or was within the time that is
    /// [remembered](REMEMBERED): nothing is created. Also if it was created again since: then it is not the topic that the
    /// caller knows, by its [`generation`](TopicSpec::generation). Those of [`create_topic`](Self::create_topic).
    async fn restore_topic(&self, spec: &TopicSpec) -> Result<TopicSpec>;

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

    /// Changes settings of a topic, and gives it back as it is stored then. Those who run notice with time.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound);
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting that makes no sense: nothing was
    /// changed. Those of [`create_topic`](Self::create_topic).
    async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec>;

    /// Deletes a topic with all that is kept for it and its groups: logs, retries, dead letters, what was scheduled,
    /// leases, members, settings. Also what groups have that were never registered, if they are on a log. Gives back
    /// whether there was such a topic.
    ///
    /// It is not asked whether anybody works on it. Consumers lose their leases, and then hear that the topic was
    /// deleted: that is [remembered](REMEMBERED), so that they end and do not [restore](Self::restore_topic) it; also if
    /// it is created again before they ask. A producer brings logs back until it asks for the topic the next time, and is
    /// refused from then on: stop it first. To get rid of what it brought, create the topic again and delete it again.
    ///
    /// Stopped half-way, the topic is not there for anybody, and a part of what it had is left; the same call again does
    /// the rest. Of several who delete it at the same time, each ends the same deletion: who is slow and finds that
    /// another one has ended it stops, and leaves a topic alone that was created since.
    ///
    /// # Errors
    /// Transient ones; those of [`create_topic`](Self::create_topic).
    async fn delete_topic(&self, name: &TopicName) -> Result<bool>;

    /// All topics, sorted by name.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn topics(&self) -> Result<Vec<TopicName>>;

    /// Registers a group and creates it on every partition where it is missing. That it was deleted before is forgotten.
    ///
    /// Where it starts is for a new group alone to say. On a partition that lost a known one it starts with the oldest
    /// entry: what it had settled there nobody knows, and nothing unsettled is to be skipped. Of several who create a new
    /// one at the same time, the first one says where it starts.
    ///
    /// # Errors
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) while it is being deleted. Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated>;

    /// Deletes a group of a topic with all that is kept for it, also one that is on logs without being registered.
    /// Gives back whether there was such a group.
    ///
    /// It is not asked whether anybody works in it. Its consumers lose their leases first, and with their next heartbeat
    /// hear that it was deleted: that is [remembered](REMEMBERED), so that they end and do not
    /// [restore](Self::restore_group) it. Stopped half-way, the group is marked as being deleted, with a part of what it
    /// had; the same call again does the rest. Of several who delete it at the same time, each ends the same deletion, as
    /// [of a topic](Self::delete_topic).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) without such a topic. Transient ones.
    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool>;

    /// All groups of a topic, sorted by name.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>>;

    /// Creates the group again on a partition that lost it, so that reading goes on above `after`, and registers
    /// it again. If it is there, nothing happens. Gives back whether it was missing.
    ///
    /// If the log ends below `after`, it is not the log that `after` was read from: the group then starts with its
    /// oldest entry.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the topic is not there, and
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) if the group is being deleted, or was within the time that is
    /// [remembered](REMEMBERED) and was not created since: nothing is created then. Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool>;

    /// Pauses a group as a whole, or lets it go on; gives back whether that changed anything. It is kept with the group,
    /// and told to its members with their next [heartbeat](crate::Members::heartbeat), for which they are woken: so all
    /// of them, and who comes later, take nothing new until it is over.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) without such a topic or group;
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) while it is being deleted. Transient ones;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn set_paused(&self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<bool>;

    /// What is kept of a group as a whole. One of which nothing is kept works, if it is there.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState>;

    /// How every partition stands with the group, in the order of partitions.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>>;

    /// Which group keeps most from being dropped, of every partition whose log has entries and a group that has not
    /// settled them all.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>>;
}
