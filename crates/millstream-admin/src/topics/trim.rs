//! Trimming by hand: drops the log entries that a retention does not keep, and a preview of that.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::catalog::{PartitionStats, Pin};
use millstream_core::inspect::MAX_PAGE;
use millstream_core::log::{Lost, Source, Trimmed};
use millstream_core::{
    Capability, Error, ErrorKind, GroupName, Lease, MessageId, Partition, Place, Result, Retention, Start,
    TopicName, TopicPartition,
};

use crate::Admin;
use crate::reset::{acquire, release};

/// Owner name of the leases during a trim, visible to users.
const OWNER: &str = "trim";

/// Number of partitions that are read at once.
const AT_ONCE: usize = 8;

/// Maximum number of calls of a trim for one partition: each does a bounded amount of work.
const CALLS: usize = 100_000;

/// Entries of a partition that a trim would drop at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimPreview {
    /// Partition.
    pub partition: Partition,
    /// Number of entries in its log.
    pub length: u64,
    /// Number of entries that would be dropped. A value of [`LIMIT`](Self::LIMIT) means that many or more, unless it is the
    /// length.
    pub dropped: u64,
    /// Entries that would be dropped although groups have not settled them, in the order of the groups' names. Empty unless
    /// the retention is [lossy](Retention::is_lossy).
    pub lost: Vec<LostPreview>,
}

/// Entries that one group would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPreview {
    /// The group.
    pub group: GroupName,
    /// Number of entries that were never handed out to it; `None` if that takes too long to find out.
    pub unread: Option<u64>,
    /// Number of entries that were handed out to it and not settled; `None` if that takes too long to find out.
    pub pending: Option<u64>,
}

impl TrimPreview {
    /// Maximum number of entries that are counted one by one.
    pub const LIMIT: u64 = 1_000_000;
}

/// Result of a trim of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionTrimmed {
    /// Partition.
    pub partition: Partition,
    /// Number of entries that were dropped.
    pub dropped: u64,
    /// Dropped entries that groups had not settled, in the order of the groups' names.
    pub lost: Vec<Lost>,
    /// A group with consumers, if each group has some: nothing was done, since the consumers of a topic trim it by
    /// themselves, at least once a minute.
    pub in_use_by: Option<GroupName>,
}

impl Admin {
    /// Drops the log entries of a topic that a retention does not keep: usually that of the topic, which its running
    /// consumers apply by themselves. A topic whose consumers are stopped needs this. It is the trim that consumers run,
    /// under the lease of a group without consumers, one partition after the other; that lease is held meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::InvalidConfig`] for one without groups, where
    /// there is no lease; those of [`Log::trim`](millstream_core::Log::trim). Entries that were dropped before the error
    /// stay dropped, and the call can be repeated.
    pub async fn trim_topic(&self, topic: &TopicName, retention: Retention) -> Result<Vec<PartitionTrimmed>> {
        let spec = self.backend.catalog().topic(topic).await?;
        let groups = self.backend.catalog().groups(topic).await?;
        if groups.is_empty() {
            let why = format!("topic {topic} has no group, and so nobody may trim it: create a group first");
            return Err(Error::new(ErrorKind::InvalidConfig, why).at(topic));
        }
        // A lease that has expired may still be renewed by consumers that could not reach the server for a while.
        let (mut free, mut used) = (Vec::new(), None);
        for group in groups {
            if self.backend.members().roster(topic, &group).await?.living().next().is_none() {
                free.push(group);
            } else {
                used = used.or(Some(group));
            }
        }
        let mut all = Vec::new();
        for topic_partition in spec.iter() {
            all.push(self.trim_partition(&topic_partition, &free, used.as_ref(), retention).await?);
        }
        Ok(all)
    }

    async fn trim_partition(
        &self,
        topic_partition: &TopicPartition,
        free: &[GroupName],
        used: Option<&GroupName>,
        retention: Retention,
    ) -> Result<PartitionTrimmed> {
        let partition = topic_partition.partition;
        let mut in_use_by = used.cloned();
        for group in free {
            let lease = match acquire(&self.backend, topic_partition.clone(), group, OWNER).await {
                Ok(lease) => lease,
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    in_use_by = in_use_by.or(Some(group.clone()));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let trimmed = self.trim_all(&lease, retention).await;
            release(&self.backend, &lease).await;
            let Trimmed { dropped, lost, .. } = trimmed?;
            return Ok(PartitionTrimmed { partition, dropped: dropped as u64, lost, in_use_by: None });
        }
        Ok(PartitionTrimmed { partition, dropped: 0, lost: Vec::new(), in_use_by })
    }

    /// Trims until nothing is left to drop.
    async fn trim_all(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        let mut all = Trimmed::default();
        for _ in 0..CALLS {
            let Trimmed { dropped, lost, more, .. } = self.backend.log().trim(lease, retention).await?;
            all.dropped += dropped;
            for lost in lost {
                match all.lost.iter_mut().find(|known| known.group == lost.group) {
                    Some(known) => {
                        (known.unread, known.pending) =
                            (known.unread + lost.unread, known.pending + lost.pending);
                    }
                    None => all.lost.push(lost),
                }
            }
            if !more {
                break;
            }
        }
        all.lost.sort_by(|one, other| one.group.cmp(&other.group));
        Ok(all)
    }

    /// Returns the entries of each partition that [`trim_topic`](Self::trim_topic) would drop at the moment, whoever owns
    /// it. Nothing is changed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::Unsupported`] for a backend that cannot count
    /// entries; transient ones.
    pub async fn trim_topic_preview(
        &self,
        topic: &TopicName,
        retention: Retention,
    ) -> Result<Vec<TrimPreview>> {
        for needed in [Capability::Lengths, Capability::Count, Capability::Pins, Capability::Stats] {
            self.backend.require(needed)?;
        }
        let catalog = self.backend.catalog();
        let spec = catalog.topic(topic).await?;
        let pins = catalog.pins(&spec).await?;
        let mut groups = Vec::new();
        for group in catalog.groups(topic).await? {
            let stats = catalog.stats(&spec, &group).await?;
            groups.push((group, stats));
        }
        let partitions: Vec<_> = spec.iter().collect();
        let lengths = self.backend.log().lengths(&partitions).await?;
        let previews = partitions.into_iter().zip(lengths).map(|(tp, length)| {
            let (groups, pins) = (&groups, &pins);
            async move {
                let of = |stats: &Vec<PartitionStats>| {
                    stats.iter().find(|stats| stats.partition == tp.partition).cloned()
                };
                let groups: Vec<_> =
                    groups.iter().filter_map(|(group, stats)| Some((group.clone(), of(stats)?))).collect();
                let pin = pins.iter().find(|pin| pin.partition == tp.partition);
                self.preview_partition(&tp, length, &groups, pin, retention).await
            }
        });
        stream::iter(previews).buffered(AT_ONCE).try_collect().await
    }

    async fn preview_partition(
        &self,
        tp: &TopicPartition,
        length: u64,
        groups: &[(GroupName, PartitionStats)],
        pin: Option<&Pin>,
        retention: Retention,
    ) -> Result<TrimPreview> {
        let mut preview = TrimPreview { partition: tp.partition, length, dropped: 0, lost: Vec::new() };
        let now = self.backend.schedule().now_at(&Place::from(tp.clone())).await?;
        let old = |age| MessageId::new(now.saturating_sub(age).as_millis().max(1), 0);
        // Where nothing is pinned, every group has settled everything.
        let has_groups = groups.iter().any(|(_, stats)| stats.position.is_some());
        let settled = has_groups.then(|| pin.map_or(MessageId::MAX, |pin| pin.watermark));
        let cut = match retention {
            Retention::Consumed => settled,
            Retention::ConsumedAfter(age) => settled.map(|settled| settled.min(old(age))),
            Retention::Age(age) => Some(old(age)),
            Retention::Length(entries) => {
                preview.dropped = length.saturating_sub(entries);
                if preview.dropped > 0 {
                    preview.lost = groups.iter().filter_map(|of| lost_of_length(of, entries)).collect();
                }
                None
            }
            _ => None,
        };
        let Some(cut) = cut else { return Ok(preview) };
        preview.dropped = match cut {
            MessageId::MAX => length,
            cut => self.count(tp, Start::Earliest, cut).await?.min(length),
        };
        if retention.is_lossy() && preview.dropped > 0 {
            for (group, stats) in groups {
                preview.lost.extend(self.lost_below(tp, group, stats, cut).await?);
            }
        }
        Ok(preview)
    }

    /// Counts entries behind `start` with ids below `cut`.
    async fn count(&self, tp: &TopicPartition, start: Start, cut: MessageId) -> Result<u64> {
        self.backend.catalog().count(tp, start, Some(cut.previous()), TrimPreview::LIMIT).await
    }

    /// Returns the entries below `cut` that a group has not settled, if there are any.
    async fn lost_below(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        stats: &PartitionStats,
        cut: MessageId,
    ) -> Result<Option<LostPreview>> {
        let Some(position) = stats.position else { return Ok(None) };
        let unread = if position < cut { self.count(tp, Start::After(position), cut).await? } else { 0 };
        let unread = Some(unread).filter(|unread| *unread < TrimPreview::LIMIT);
        let pending = if stats.pending > 0 {
            let first =
                self.backend.inspect()?.pending(tp, group, Source::Log, MessageId::ZERO, MAX_PAGE).await?;
            let below = first.items.iter().take_while(|entry| entry.id < cut).count();
            (below < first.items.len() || !first.more).then_some(below as u64)
        } else {
            Some(0)
        };
        let none = unread == Some(0) && pending == Some(0);
        Ok((!none).then(|| LostPreview { group: group.clone(), unread, pending }))
    }
}

/// Returns the entries that a group has not settled among those that are not the newest `entries`, if there are any.
fn lost_of_length((group, stats): &(GroupName, PartitionStats), entries: u64) -> Option<LostPreview> {
    stats.position?;
    let unread = stats.lag.map(|lag| lag.saturating_sub(entries));
    // Which of the pending entries are among the newest is not known.
    let pending = if stats.pending == 0 { Some(0) } else { None };
    let none = unread == Some(0) && pending == Some(0);
    (!none).then(|| LostPreview { group: group.clone(), unread, pending })
}
