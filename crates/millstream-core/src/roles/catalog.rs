//! The catalog role: topics, partitions, groups, and their state.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::capability::unsupported;
use crate::error::Result;
use crate::id::MessageId;
use crate::inspect::Structure;
use crate::name::{GroupName, TopicName};
use crate::packing::DictionaryName;
use crate::timestamp::Timestamp;
use crate::topic::{Partition, TopicChange, TopicPartition, TopicSpec};

/// Version of keys and fields that this library writes; stored in every topic's meta hash.
pub const FORMAT: u32 = 1;
/// Format of the keys and fields of a topic with a [packing](crate::TopicSpec::packing).
pub const FORMAT_OF_PACKED: u32 = 2;

/// Position at which a new group starts reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The oldest entry that exists. The default: a work queue must not skip what was sent before the first consumer
    /// started.
    #[default]
    Earliest,
    /// Entries that are appended from now on.
    Latest,
    /// The first entry above this id. An id beyond the end of the log counts as its end: no later entry is skipped.
    After(MessageId),
    /// The first entry that was appended at this time or later, by the server's clock. A time after the last entry
    /// counts as the end of the log, as above.
    At(Timestamp),
}

/// Time for which the deletion of a topic or group is remembered: 1 hour. A consumer that was away for longer and still
/// runs creates it again, as after a loss of data.
pub const REMEMBERED: Duration = Duration::from_secs(3_600);

/// State of a group as a whole, apart from its positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupState {
    /// Time since which it is [paused](Catalog::set_paused), by the server's clock; `None` if it is not.
    pub paused: Option<Timestamp>,
    /// Whether it is being deleted: if no deletion is running, one has stopped half-way.
    pub deleting: bool,
}

impl GroupState {
    /// Creates the state of a group that is neither paused nor being deleted.
    #[must_use]
    pub const fn new() -> Self {
        Self { paused: None, deleting: false }
    }
}

/// Result of [`Catalog::create_group`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupCreated {
    /// Whether the topic did not have the group before; true also for callers that arrive while it is being created.
    pub new: bool,
    /// Partitions on which it was created by this call. If the group is not new, it had been lost there (or the topic has
    /// grown), and starts there with the oldest entry.
    pub partitions: Vec<Partition>,
}

impl GroupCreated {
    /// Creates a result as a backend returns it.
    #[must_use]
    pub fn new(new: bool, partitions: Vec<Partition>) -> Self {
        Self { new, partitions }
    }
}

/// State of one partition for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStats {
    /// The partition.
    pub partition: Partition,
    /// Number of entries in the log; the most where only that is known, as [`PartitionSurvey`] says.
    pub length: u64,
    /// Number of entries that were ever appended to it, those included that have been dropped: the difference of two
    /// readings is what was appended in between. It starts over with a log that was deleted. `None` if the server keeps
    /// no count.
    pub appended: Option<u64>,
    /// Id of the last entry that was handed out to the group; `None` if the group does not exist.
    pub position: Option<MessageId>,
    /// Number of entries that were never handed out to the group: exact, or `None` where that would take too long to find
    /// out (the server has lost count, since entries were deleted or the group began inside the log, and there are too
    /// many on both sides of its position to be counted).
    pub lag: Option<u64>,
    /// Lower bound of [`lag`](Self::lag): the number of entries that were counted, if `lag` is not known; otherwise the
    /// same number.
    pub lag_at_least: u64,
    /// Age of the oldest message that the group has to handle now, by the server's clock: unread, pending, or due for a retry. Of
    /// the redeliveries that were not settled the first one counts, since its first entry. `None` if there is none, or the group does
    /// not exist.
    pub oldest: Option<Duration>,
    /// Age of the message that is parked and due next, since its first entry; `None` if none waits for its retry to be due.
    pub oldest_parked: Option<Duration>,
    /// Number of entries handed out and not settled, from log and retry log.
    pub pending: u64,
    /// Number of messages parked until their retry is due, and of due ones not yet handed out.
    pub retrying: u64,
    /// Number of these that are in the group's retry log and were not handed out yet: they were due when they were
    /// promoted.
    pub due: u64,
    /// Number of dead letters.
    pub dead: u64,
}

impl PartitionStats {
    /// Creates the state of an empty partition.
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
            oldest_parked: None,
            pending: 0,
            retrying: 0,
            due: 0,
            dead: 0,
        }
    }
}

/// A stored structure that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// The structure.
    pub structure: Structure,
    /// The reason: the error, which names the key.
    pub reason: String,
}

impl Unreadable {
    /// Creates the record of a structure that cannot be read.
    #[must_use]
    pub fn new(structure: Structure, reason: impl Into<String>) -> Self {
        Self { structure, reason: reason.into() }
    }
}

/// State of one partition for one group, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionSurvey {
    /// The state. Figures of a structure that cannot be read are 0 or `None`; the methods of this type return them as
    /// unknown.
    pub stats: PartitionStats,
    /// The structures that cannot be read: [`Log`](Structure::Log), [`RetryLog`](Structure::RetryLog),
    /// [`Parked`](Structure::Parked) or [`DeadLetters`](Structure::DeadLetters).
    pub unreadable: Vec<Unreadable>,
    /// Whether the messages in the log can be counted. Where they cannot, [`PartitionStats::length`] is the most that there may be.
    pub counts_log: bool,
}

impl PartitionSurvey {
    /// Creates the survey of a partition of which everything can be read.
    #[must_use]
    pub const fn new(stats: PartitionStats) -> Self {
        Self { stats, unreadable: Vec::new(), counts_log: true }
    }

    /// Whether a structure can be read.
    #[must_use]
    pub fn reads(&self, structure: Structure) -> bool {
        self.unreadable.iter().all(|it| it.structure != structure)
    }

    fn known(&self, figure: u64, from: &[Structure]) -> Option<u64> {
        from.iter().all(|it| self.reads(*it)).then_some(figure)
    }

    /// Returns the number of entries in the log; `None` if it cannot be read, or its messages cannot be counted.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.known(self.stats.length, &[Structure::Log]).filter(|_| self.counts_log)
    }

    /// Returns the number of entries handed out and not settled; `None` if log or retry log cannot be read.
    #[must_use]
    pub fn pending(&self) -> Option<u64> {
        self.known(self.stats.pending, &[Structure::Log, Structure::RetryLog])
    }

    /// Returns the number of messages that wait for a retry; `None` if the retry log or the parked retries cannot be
    /// read.
    #[must_use]
    pub fn retrying(&self) -> Option<u64> {
        self.known(self.stats.retrying, &[Structure::RetryLog, Structure::Parked])
    }

    /// Returns the number of due messages in the retry log that were not handed out; `None` if it cannot be read.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.known(self.stats.due, &[Structure::RetryLog])
    }

    /// Returns the number of dead letters; `None` if they cannot be read.
    #[must_use]
    pub fn dead(&self) -> Option<u64> {
        self.known(self.stats.dead, &[Structure::DeadLetters])
    }
}

/// The group that keeps the most messages of a partition's log from being dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// The partition.
    pub partition: Partition,
    /// The group, which has settled the least.
    pub group: GroupName,
    /// Id of the oldest entry that has to stay for it.
    pub watermark: MessageId,
    /// Time since the group last requested entries, by the server's clock, with any consumer; `None` if it never did, or
    /// the server does not report it.
    pub idle: Option<Duration>,
    /// Number of messages that stay for this group alone: every other group has settled them. Unless that is the whole
    /// log, they are counted up to [`LIMIT`](Self::LIMIT) entries.
    pub messages: u64,
    /// Whether `messages` is exact, not a lower bound.
    pub exact: bool,
    /// Approximate number of bytes of the server's memory that these messages take.
    pub bytes: u64,
}

impl Pin {
    /// Largest number of entries that are counted one by one; where the whole log stays, its length is known.
    pub const LIMIT: u64 = 10_000;

    /// Creates the record of what `group` keeps in a partition.
    #[must_use]
    pub const fn new(partition: Partition, group: GroupName, watermark: MessageId) -> Self {
        Self { partition, group, watermark, idle: None, messages: 0, exact: true, bytes: 0 }
    }
}

/// Keeps topics and groups. Safety does not depend on this role: leases ensure it.
///
/// Required are [`create_topic`](Catalog::create_topic), [`topic`](Catalog::topic), [`topics`](Catalog::topics),
/// [`delete_topic`](Catalog::delete_topic), [`create_group`](Catalog::create_group), [`groups`](Catalog::groups) and
/// [`delete_group`](Catalog::delete_group).
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Registers a topic unless it exists, and returns its stored settings: the number of partitions and the retention of
    /// the first call win. If the topic was deleted before, the record of that is removed, and the new topic has another
    /// [`generation`](TopicSpec::generation), so that whatever still works on the deleted one does not take it for the
    /// same.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the stored format is newer than [`FORMAT`], or a
    /// setting is not known; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType);
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the stored settings are invalid;
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the given ones are, and
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) for a new topic [named `.` or `..`](TopicName::check_new);
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) while it is being deleted. Transient ones.
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec>;

    /// Creates a topic again that was lost with the data, as [`create_topic`](Self::create_topic) does, but not one that
    /// was deleted. It is for running clients whose topic no longer exists.
    ///
    /// # Errors
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) if it is being deleted, or was within the time that is
    /// [remembered](REMEMBERED): nothing is created. Also if it was created again since: by its
    /// [`generation`](TopicSpec::generation) it is then not the topic that the caller knows. Those of
    /// [`create_topic`](Self::create_topic). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Restore`](crate::Capability::Restore).
    async fn restore_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        let _ = spec;
        Err(unsupported("Catalog::restore_topic"))
    }

    /// Adds partitions to a topic, and creates every group of it on the new ones, starting with their oldest entry. Does
    /// nothing if it has as many already. Returns the stored settings afterwards.
    ///
    /// From then on keys may map to other partitions than before; see the ordering guide.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound);
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for more than
    /// [`MAX_PARTITIONS`](crate::topic::MAX_PARTITIONS); those of [`create_topic`](Self::create_topic).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Expand`](crate::Capability::Expand).
    async fn expand(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        let _ = (name, partitions);
        Err(unsupported("Catalog::expand"))
    }

    /// Counts the entries of a partition's log after `start` and not after `end`, up to `limit`: those that a
    /// [`seek`](crate::Log::seek) would read again or skip.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Count`](crate::Capability::Count).
    async fn count(
        &self,
        topic_partition: &TopicPartition,
        start: Start,
        end: Option<MessageId>,
        limit: u64,
    ) -> Result<u64> {
        let _ = (topic_partition, start, end, limit);
        Err(unsupported("Catalog::count"))
    }

    /// Returns the stored settings of a topic.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), and those of [`create_topic`](Self::create_topic).
    async fn topic(&self, name: &TopicName) -> Result<TopicSpec>;

    /// Changes settings of a topic, and returns the stored settings afterwards. Running clients apply them with a delay.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound);
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an invalid setting: nothing was changed. Those
    /// of [`create_topic`](Self::create_topic). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::AlterTopic`](crate::Capability::AlterTopic).
    async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        let _ = (name, change);
        Err(unsupported("Catalog::alter_topic"))
    }

    /// Stores a dictionary for the packs of a topic, and returns its name: its version is one more than that of the dictionary before,
    /// from 1. Producers use the newest that they know; earlier ones stay for the packs that name them, until the topic is deleted.
    ///
    /// The bytes are not looked into, except for their size and their header.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), also if the topic has another [generation](TopicSpec::generation) by now;
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a topic that uses none, and bytes that
    /// [are not allowed](TopicSpec::check_dictionary). Those of [`create_topic`](Self::create_topic).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Dictionaries`](crate::Capability::Dictionaries).
    async fn store_dictionary(&self, topic: &TopicSpec, dictionary: Bytes) -> Result<DictionaryName> {
        let _ = (topic, dictionary);
        Err(unsupported("Catalog::store_dictionary"))
    }

    /// Returns a dictionary of a topic's packs; `None` if it has none of this name.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) for one that is larger than
    /// [allowed](crate::packing::MAX_DICTIONARY): it is not read. Transient ones;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default:
    /// see [`Capability::Dictionaries`](crate::Capability::Dictionaries).
    async fn dictionary(&self, topic: &TopicName, name: DictionaryName) -> Result<Option<Bytes>> {
        let _ = (topic, name);
        Err(unsupported("Catalog::dictionary"))
    }

    /// Deletes a topic with everything that is stored for it and its groups: logs, retries, dead letters, scheduled
    /// messages, leases, members, settings. This includes the data of groups that were never registered, if they are on a
    /// log. Returns whether there was such a topic.
    ///
    /// It does not check whether the topic is in use. Consumers lose their leases, and then learn that the topic was
    /// deleted: that is [remembered](REMEMBERED), so that they end and do not [restore](Self::restore_topic) it, even if
    /// it is created again in the meantime. A producer creates logs again until it next reads the topic's settings, and
    /// is refused from then on: stop producers first. To remove such logs, create the topic again and delete it again.
    ///
    /// If the deletion stops half-way, the topic no longer exists for any client, and a part of its data is left; the
    /// same call again deletes the rest. Several concurrent calls complete the same deletion: a slow one that finds it
    /// completed stops, and leaves a topic alone that was created since.
    ///
    /// # Errors
    /// Transient ones; those of [`create_topic`](Self::create_topic).
    async fn delete_topic(&self, name: &TopicName) -> Result<bool>;

    /// Returns the names of all topics, sorted.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn topics(&self) -> Result<Vec<TopicName>>;

    /// Registers a group and creates it on every partition where it is missing. The record of an earlier deletion is
    /// removed.
    ///
    /// `start` applies to a new group only. On a partition that lost a known group, the group starts with the oldest
    /// entry: its position there is lost, and nothing unsettled may be skipped. If several callers create a new group
    /// concurrently, the `start` of the first one applies. `topic` may be older than the stored one: on partitions beyond its number the
    /// group starts with the oldest entry, whatever `start` is.
    ///
    /// # Errors
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) while it is being deleted. Transient ones;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) for a new
    /// group [named `.` or `..`](GroupName::check_new).
    async fn create_group(&self, topic: &TopicSpec, group: &GroupName, start: Start) -> Result<GroupCreated>;

    /// Deletes a group of a topic with everything that is stored for it, also a group that is on logs without being
    /// registered. Returns whether there was such a group.
    ///
    /// It does not check whether the group is in use. Its consumers first lose their leases, and learn with their next
    /// heartbeat that the group was deleted: that is [remembered](REMEMBERED), so that they end and do not
    /// [restore](Self::restore_group) it. If the deletion stops half-way, the group stays marked as being deleted, with a
    /// part of its data; the same call again deletes the rest. Several concurrent calls complete the same deletion, as
    /// [of a topic](Self::delete_topic).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic. Transient ones.
    async fn delete_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool>;

    /// Returns the names of all groups of a topic, sorted.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>>;

    /// Creates the group again on a partition that lost it, so that reading continues above `after`, and registers it
    /// again. Does nothing if the group exists. Returns whether it was missing.
    ///
    /// If the log ends below `after`, it is not the log that `after` was read from: the group then starts with its oldest
    /// entry.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the topic does not exist, and
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) if the group is being deleted, or was within the time that is
    /// [remembered](REMEMBERED) and was not created since: nothing is created then. Transient ones;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)
    /// by default: see [`Capability::Restore`](crate::Capability::Restore).
    async fn restore_group(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool> {
        let _ = (topic_partition, group, after);
        Err(unsupported("Catalog::restore_group"))
    }

    /// Pauses or resumes a group as a whole; returns whether that changed anything. The state is stored with the group.
    /// Members receive it with their next [heartbeat](crate::Members::heartbeat), which this call triggers: so all of
    /// them, and members that join later, take nothing new until the group is resumed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic or group;
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) while it is being deleted. Transient ones;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)
    /// by default: see [`Capability::Pause`](crate::Capability::Pause).
    async fn set_paused(&self, topic: &TopicName, group: &GroupName, paused: bool) -> Result<bool> {
        let _ = (topic, group, paused);
        Err(unsupported("Catalog::set_paused"))
    }

    /// Returns the state of a group as a whole. A group without stored state is neither paused nor being deleted, if it
    /// exists.
    ///
    /// Default: neither. That is right for a backend that pauses no groups and deletes a group in one step.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        let _ = (topic, group);
        Ok(GroupState::new())
    }

    /// Returns the state of every partition for the group, in the order of partitions.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Stats`](crate::Capability::Stats).
    async fn stats(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionStats>> {
        let _ = (topic, group);
        Err(unsupported("Catalog::stats"))
    }

    /// Returns the state of every partition for the group, in the order of partitions, as far as it can be read: a key of
    /// a wrong type makes only the figures unknown that come from it.
    ///
    /// Default: [`stats`](Self::stats), which fails as a whole.
    ///
    /// # Errors
    /// Those of [`stats`](Self::stats), apart from [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn survey(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<PartitionSurvey>> {
        Ok(self.stats(topic, group).await?.into_iter().map(PartitionSurvey::new).collect())
    }

    /// Returns the group that keeps the most entries from being dropped, for every partition whose log has entries and a
    /// group that has not settled them all.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::Pins`](crate::Capability::Pins).
    async fn pins(&self, topic: &TopicSpec) -> Result<Vec<Pin>> {
        let _ = topic;
        Err(unsupported("Catalog::pins"))
    }
}
