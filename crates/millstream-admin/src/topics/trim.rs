//! Trimming by hand: drops the log entries that a retention does not keep, and a preview of that.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::catalog::{PartitionStats, Pin};
use millstream_core::inspect::MAX_PAGE;
use millstream_core::log::{Lost, Source, Trimmed, UnleasedTrim};
use millstream_core::{
    Capability, Error, ErrorKind, GroupName, MessageId, Partition, Place, Result, Retention, Start,
    TopicName, TopicPartition, TopicSpec,
};

use crate::Admin;

/// Number of partitions that are read at once.
const AT_ONCE: usize = 8;

/// Maximum number of calls of a trim for one partition: each does a bounded amount of work.
const CALLS: usize = 100_000;

/// Messages of a partition that a trim would drop at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimPreview {
    /// Partition.
    pub partition: Partition,
    /// Number of messages in its log.
    pub length: u64,
    /// Number of messages that would be dropped. A value of [`LIMIT`](Self::LIMIT) means that many or more, unless it is the
    /// length.
    pub dropped: u64,
    /// Messages that would be dropped although groups have not settled them, in the order of the groups' names. Empty unless
    /// the retention is [lossy](Retention::is_lossy).
    pub lost: Vec<LostPreview>,
}

/// Messages that one group would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPreview {
    /// The group.
    pub group: GroupName,
    /// Number of messages that were never handed out to it; `None` if that takes too long to find out.
    pub unread: Option<u64>,
    /// Number of messages that were handed out to it and not settled; `None` if that takes too long to find out.
    pub pending: Option<u64>,
}

impl LostPreview {
    /// Returns `None` if nothing would be lost.
    fn of(group: &GroupName, unread: Option<u64>, pending: Option<u64>) -> Option<Self> {
        let none = unread == Some(0) && pending == Some(0);
        (!none).then(|| Self { group: group.clone(), unread, pending })
    }
}

impl TrimPreview {
    /// Maximum number of messages that are counted one by one.
    pub const LIMIT: u64 = 1_000_000;
}

/// Result of a trim of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionTrimmed {
    /// Partition.
    pub partition: Partition,
    /// Number of messages that were dropped.
    pub dropped: u64,
    /// Dropped messages that groups had not settled, in the order of the groups' names.
    pub lost: Vec<Lost>,
}

impl Admin {
    /// Drops the log entries of a topic that a retention does not keep: usually that of the topic, which its running consumers
    /// and producers apply by themselves. It needs no group and no lease.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; those of
    /// [`Log::trim_unleased`](millstream_core::Log::trim_unleased). Entries that were dropped before the error stay dropped, and
    /// the call can be repeated.
    pub async fn trim_topic(&self, topic: &TopicName, retention: Retention) -> Result<Vec<PartitionTrimmed>> {
        self.trim_by(topic, None, UnleasedTrim::Now(retention)).await
    }

    /// Drops the log entries with ids below `id`, of one partition or all, **whether groups have settled them or not**.
    ///
    /// # Errors
    /// As [`trim_topic`](Self::trim_topic); [`ErrorKind::NotFound`] also for a partition that
    /// does not exist.
    pub async fn trim_topic_below(
        &self,
        topic: &TopicName,
        partition: Option<Partition>,
        id: MessageId,
    ) -> Result<Vec<PartitionTrimmed>> {
        self.trim_by(topic, partition, UnleasedTrim::Below(id)).await
    }

    async fn trim_by(
        &self,
        topic: &TopicName,
        partition: Option<Partition>,
        rule: UnleasedTrim,
    ) -> Result<Vec<PartitionTrimmed>> {
        let spec = self.backend.catalog().topic(topic).await?;
        let mut all = Vec::new();
        for topic_partition in partitions(&spec, partition)? {
            let Trimmed { dropped, lost, .. } = self.trim_all(&topic_partition, rule).await?;
            let partition = topic_partition.partition;
            all.push(PartitionTrimmed { partition, dropped: dropped as u64, lost });
        }
        Ok(all)
    }

    /// Trims until nothing is left to drop.
    async fn trim_all(&self, tp: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        let mut all = Trimmed::default();
        for _ in 0..CALLS {
            let Trimmed { dropped, lost, more, .. } = self.backend.log().trim_unleased(tp, rule).await?;
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

    /// Returns the entries of each partition that [`trim_topic`](Self::trim_topic) would drop at the moment. Nothing is changed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist;
    /// [`ErrorKind::Unsupported`] for a backend that cannot count entries; transient ones.
    pub async fn trim_topic_preview(
        &self,
        topic: &TopicName,
        retention: Retention,
    ) -> Result<Vec<TrimPreview>> {
        self.preview(topic, None, UnleasedTrim::Now(retention)).await
    }

    /// Returns the entries of each partition that [`trim_topic_below`](Self::trim_topic_below) would drop at the moment. Nothing is
    /// changed.
    ///
    /// # Errors
    /// As [`trim_topic_preview`](Self::trim_topic_preview).
    pub async fn trim_topic_below_preview(
        &self,
        topic: &TopicName,
        partition: Option<Partition>,
        id: MessageId,
    ) -> Result<Vec<TrimPreview>> {
        self.preview(topic, partition, UnleasedTrim::Below(id)).await
    }

    async fn preview(
        &self,
        topic: &TopicName,
        partition: Option<Partition>,
        rule: UnleasedTrim,
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
        let partitions = partitions(&spec, partition)?;
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
                self.preview_partition(&tp, length, &groups, pin, rule).await
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
        rule: UnleasedTrim,
    ) -> Result<TrimPreview> {
        let mut preview = TrimPreview { partition: tp.partition, length, dropped: 0, lost: Vec::new() };
        let now = self.backend.schedule().now_at(&Place::from(tp.clone())).await?;
        let old = |age| MessageId::new(now.saturating_sub(age).as_millis().max(1), 0);
        // Where nothing is pinned, every group has settled everything.
        let has_groups = groups.iter().any(|(_, stats)| stats.position.is_some());
        let settled = has_groups.then(|| pin.map_or(MessageId::MAX, |pin| pin.watermark));
        let cut = match rule {
            UnleasedTrim::Below(id) => Some(id),
            UnleasedTrim::Now(Retention::Consumed) => settled,
            UnleasedTrim::Now(Retention::ConsumedAfter(age)) => settled.map(|settled| settled.min(old(age))),
            UnleasedTrim::Now(Retention::Age(age)) => Some(old(age)),
            UnleasedTrim::Now(Retention::Length(entries)) => {
                preview.dropped = length.saturating_sub(entries);
                if preview.dropped > 0 {
                    for (group, stats) in groups {
                        preview
                            .lost
                            .extend(self.lost_of_oldest(tp, group, stats, preview.dropped, entries).await?);
                    }
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
        if rule.is_lossy() && preview.dropped > 0 {
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
        Ok(LostPreview::of(group, unread, pending))
    }

    /// Returns the entries that a group has not settled among the oldest `dropped`, those that are not the newest `entries`, if
    /// there are any.
    async fn lost_of_oldest(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        stats: &PartitionStats,
        dropped: u64,
        entries: u64,
    ) -> Result<Option<LostPreview>> {
        if stats.position.is_none() {
            return Ok(None);
        }
        let unread = stats.lag.map(|lag| lag.saturating_sub(entries));
        let pending =
            if stats.pending > 0 { self.pending_of_oldest(tp, group, dropped).await? } else { Some(0) };
        Ok(LostPreview::of(group, unread, pending))
    }

    /// Counts a group's pending entries among the oldest `dropped`: each step counts the entries up to one of them, of a range
    /// that has half as many as the one before.
    async fn pending_of_oldest(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        dropped: u64,
    ) -> Result<Option<u64>> {
        let page = self.backend.inspect()?.pending(tp, group, Source::Log, MessageId::ZERO, MAX_PAGE).await?;
        let (mut low, mut high) = (0, page.items.len());
        let (mut start, mut before) = (Start::Earliest, 0);
        while low < high {
            let middle = low.midpoint(high);
            let id = page.items[middle].id;
            let counted = self.backend.catalog().count(tp, start, Some(id), TrimPreview::LIMIT).await?;
            match before + counted {
                beyond if beyond > dropped => high = middle,
                _ if counted >= TrimPreview::LIMIT => return Ok(None),
                up_to => (low, start, before) = (middle + 1, Start::After(id), up_to),
            }
        }
        Ok((low < page.items.len() || !page.more).then_some(low as u64))
    }
}

/// Returns the partitions of a topic, or one of them.
fn partitions(spec: &TopicSpec, one: Option<Partition>) -> Result<Vec<TopicPartition>> {
    let all = spec.iter().filter(|tp| one.is_none_or(|one| tp.partition == one));
    let all: Vec<_> = all.collect();
    if let (Some(one), true) = (one, all.is_empty()) {
        let why = format!("topic {} has no partition {one}", spec.name);
        return Err(Error::new(ErrorKind::NotFound, why).at(&spec.name));
    }
    Ok(all)
}
