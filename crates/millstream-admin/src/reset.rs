//! Reset of a group: moving its partitions while they have no owner, a preview of the effect, and the positions to go back to.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::Continuity;
use millstream_core::catalog::{PartitionStats, Start};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::inspect::OverviewQuery;
use millstream_core::leases::{Acquired, Lease};
use millstream_core::log::Source;
use millstream_core::{
    Backend, Capability, GroupName, MessageId, Partition, Resource, TopicName, TopicPartition, TopicSpec,
};
use uuid::Uuid;

use crate::Admin;

/// Ttl of the leases: far longer than a reset takes.
const TTL: Duration = Duration::from_secs(60);
/// Owner name of the leases during a reset, visible to users.
const OWNER: &str = "reset";
/// Number of partitions processed at once.
const AT_ONCE: usize = 32;
/// Number of attempts for a lease request that fails with a transient error.
const TRIES: usize = 3;

/// Effect that a reset would have on one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeekPreview {
    /// Partition.
    pub partition: Partition,
    /// Last entry that was handed out to the group; `None` if the group does not exist there.
    pub position: Option<MessageId>,
    /// Entries that were handed out before and would be handed out again. A value of [`LIMIT`](Self::LIMIT) means that
    /// many or more.
    pub reread: u64,
    /// Entries that were never handed out and would be skipped. A value of [`LIMIT`](Self::LIMIT) means that many or more.
    pub skipped: u64,
    /// Entries that are handed out and not settled. Those of the log would be removed from the pending list: they count
    /// among the reread ones, or are not handled again. Redeliveries stay.
    pub pending: u64,
}

impl SeekPreview {
    /// Maximum number of entries that are counted.
    pub const LIMIT: u64 = 1_000_000;
}

impl Admin {
    /// Moves a group that is not running to another position: back, to handle messages again, or forward, to skip some.
    /// Messages that wait for a retry and dead letters stay; pending entries of the log are forgotten.
    ///
    /// The leases of all partitions are acquired first, and each is held until its partition is moved, so that no
    /// consumer can be reading. Either all partitions are moved, or, while the leases cannot be acquired, none is. A
    /// group that is [paused](Self::pause_group) counts as running.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist. [`ErrorKind::Fenced`] if a partition has an
    /// owner: the message names it, and nothing was changed. Transient ones, and [`ErrorKind::Fenced`] with another
    /// message, after which some partitions may have been moved: the call can be repeated. [`ErrorKind::Unsupported`] for
    /// a backend that cannot move groups.
    pub async fn reset_group(&self, topic: &TopicName, group: &GroupName, start: Start) -> Result<()> {
        self.backend.require(Capability::Seek)?;
        let topic = self.known(topic, group).await?;
        let starts = topic.iter().map(|tp| (tp.partition, start)).collect();
        self.reset_known(&topic, group, start, &starts).await
    }

    /// Moves some partitions of a group, each to a position of its own, as [`reset_group`](Self::reset_group) does with all.
    /// Only these must have no owner.
    ///
    /// # Errors
    /// Those of [`reset_group`](Self::reset_group). [`ErrorKind::NotFound`] for a partition that the topic does not have,
    /// [`ErrorKind::InvalidConfig`] for a [`Start::After`] that is ahead of the log of its partition: nothing was changed.
    pub async fn reset_partitions(
        &self,
        topic: &TopicName,
        group: &GroupName,
        starts: &BTreeMap<Partition, Start>,
    ) -> Result<()> {
        self.backend.require(Capability::Seek)?;
        let topic = self.known(topic, group).await?;
        self.check_starts(&topic, group, starts).await?;
        self.reset_known(&topic, group, Start::Earliest, starts).await
    }

    /// Moves partitions of a group. Where the group is lost, it starts at `lost`.
    async fn reset_known(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
        lost: Start,
        starts: &BTreeMap<Partition, Start>,
    ) -> Result<()> {
        let backend = &self.backend;
        // Creates the group where it was lost, so that it can be moved on every partition.
        backend.catalog().create_group(topic, group, lost).await?;
        let asked = starts.iter().map(async |(partition, start)| {
            let topic_partition = TopicPartition::new(topic.name.clone(), partition.0);
            Ok((acquire(backend, topic_partition, group, OWNER).await?, *start))
        });
        let answers: Vec<Result<(Lease, Start)>> =
            stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
        let (mut leases, mut refused) = (Vec::new(), None);
        for answer in answers {
            match answer {
                Ok(lease) => leases.push(lease),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let sought = match refused {
            Some(error) => Err(error),
            None => {
                let seeks = leases.iter().map(|(lease, start)| backend.log().seek(lease, *start));
                stream::iter(seeks).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
            }
        };
        // A successful seek releases its lease, so only after an error some may be left.
        for (lease, _) in leases.iter().filter(|_| sought.is_err()) {
            release(backend, lease).await;
        }
        sought
    }

    /// Returns for each partition the id behind which the group would have to read to handle all that it has not settled: that of
    /// the last entry that was handed out, or the one before its oldest pending entry of the log. Partitions on which the group
    /// does not exist are left out.
    ///
    /// [`reset_partitions`](Self::reset_partitions) moves this group, or another one, there with [`Start::After`]. What was settled
    /// behind a pending entry is then handled again. Messages that wait for a retry and dead letters are not included.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; [`ErrorKind::Unsupported`] for a backend that cannot be
    /// inspected; transient ones.
    pub async fn group_positions(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<BTreeMap<Partition, MessageId>> {
        let topic = self.known(topic, group).await?;
        let inspect = self.backend.inspect()?;
        let mut positions = BTreeMap::new();
        for stats in self.backend.catalog().stats(&topic, group).await? {
            let Some(mut position) = stats.position else { continue };
            if stats.pending > 0 {
                let tp = TopicPartition::new(topic.name.clone(), stats.partition.0);
                let oldest = inspect.pending(&tp, group, Source::Log, MessageId::ZERO, 1).await?;
                position = oldest.items.first().map_or(position, |it| it.id.previous().min(position));
            }
            positions.insert(stats.partition, position);
        }
        Ok(positions)
    }

    /// Returns the effect that [`reset_group`](Self::reset_group) would have on each partition, without changing
    /// anything. The group may be running.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; transient ones.
    pub async fn reset_group_preview(
        &self,
        topic: &TopicName,
        group: &GroupName,
        start: Start,
    ) -> Result<Vec<SeekPreview>> {
        let topic = self.known(topic, group).await?;
        let starts = topic.iter().map(|tp| (tp.partition, start)).collect();
        self.preview_known(&topic, group, &starts).await
    }

    /// Returns the effect that [`reset_partitions`](Self::reset_partitions) would have, without changing anything. The group may
    /// be running.
    ///
    /// # Errors
    /// Those of [`reset_partitions`](Self::reset_partitions), except that no owner is in the way.
    pub async fn reset_partitions_preview(
        &self,
        topic: &TopicName,
        group: &GroupName,
        starts: &BTreeMap<Partition, Start>,
    ) -> Result<Vec<SeekPreview>> {
        let topic = self.known(topic, group).await?;
        self.check_starts(&topic, group, starts).await?;
        self.preview_known(&topic, group, starts).await
    }

    async fn preview_known(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
        starts: &BTreeMap<Partition, Start>,
    ) -> Result<Vec<SeekPreview>> {
        let backend = &self.backend;
        let stats = backend.catalog().stats(topic, group).await?;
        let looks = stats.into_iter().filter_map(|stats| {
            let start = *starts.get(&stats.partition)?;
            Some(preview(backend, topic, stats, start))
        });
        stream::iter(looks).buffered(AT_ONCE).try_collect().await
    }

    /// Refuses partitions that do not exist, and ids that the log of their partition has not reached: they are of another log.
    async fn check_starts(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
        starts: &BTreeMap<Partition, Start>,
    ) -> Result<()> {
        let name = &topic.name;
        if let Some(unknown) = starts.keys().find(|partition| partition.0 >= topic.partitions) {
            let why = format!("topic {name} has no partition {unknown}");
            return Err(Error::new(ErrorKind::NotFound, why).at(name));
        }
        if !starts.values().any(|start| matches!(start, Start::After(_))) {
            return Ok(());
        }
        let query = OverviewQuery::default().of(group.clone());
        let Some(seen) = self.backend.overview(std::slice::from_ref(name), &query).await.pop() else {
            return Ok(());
        };
        let seen = seen?;
        let surveyed = seen.groups.first().and_then(|group| group.partitions.as_ref().ok());
        for (partition, start) in starts {
            let (Start::After(id), Some(log)) = (start, seen.logs.get(partition.0 as usize)) else {
                continue;
            };
            // The end of an empty log is not known: any id may be before it.
            let Some(last) = log.as_ref().map_err(Clone::clone)?.last else { continue };
            let position = surveyed.and_then(|all| all.get(partition.0 as usize)?.stats.position);
            if *id > last.max(position.unwrap_or(last)) {
                let why =
                    format!("{id} is ahead of partition {partition} of topic {name}, which ends with {last}");
                return Err(Error::new(ErrorKind::InvalidConfig, why).at(name));
            }
        }
        Ok(())
    }

    /// Returns the topic if the group exists.
    async fn known(&self, topic: &TopicName, group: &GroupName) -> Result<TopicSpec> {
        let spec = self.backend.catalog().topic(topic).await?;
        if self.backend.catalog().groups(topic).await?.contains(group) {
            return Ok(spec);
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} does not exist"))
            .at(topic))
    }
}

/// Releases the lease of an operation that is over.
pub(crate) async fn release(backend: &Backend, lease: &Lease) {
    match backend.leases().release(lease).await {
        Err(error) if error.kind() != ErrorKind::Fenced => {
            tracing::warn!(resource = %lease.resource, %error, "the lease could not be released; it expires by itself");
        }
        // Fenced: the operation has released it, as a move does.
        _ => {}
    }
}

/// Acquires the lease of a partition for an operation.
///
/// # Errors
/// [`ErrorKind::Fenced`] if it has an owner, whom the message names; transient ones.
pub(crate) async fn acquire(
    backend: &Backend,
    topic_partition: TopicPartition,
    group: &GroupName,
    owner: &str,
) -> Result<Lease> {
    let resource = Resource::partition(topic_partition, group.clone());
    // The same nonce for all attempts: a grant whose reply was lost is granted again.
    let nonce = Uuid::new_v4().simple().to_string();
    let mut tries = 1;
    // The operator has stopped the group: a lease that ran out has no owner any more.
    let assured = Continuity::assured();
    loop {
        match backend.leases().acquire(&resource, owner, &nonce, TTL, &assured).await {
            Ok(Acquired::Granted(lease)) => return Ok(lease),
            Ok(Acquired::Held(holder)) => {
                let why = format!("{resource} is owned by {}: stop the group first", holder.owner);
                return Err(Error::new(ErrorKind::Fenced, why));
            }
            Err(error) if error.is_transient() && tries < TRIES => tries += 1,
            Err(error) => return Err(error.during(format_args!("acquire {resource}"))),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn preview(
    backend: &Backend,
    topic: &TopicSpec,
    stats: PartitionStats,
    start: Start,
) -> Result<SeekPreview> {
    let PartitionStats { partition, position, length, lag, pending, .. } = stats;
    let topic_partition = TopicPartition { topic: topic.name.clone(), partition };
    let at = position.unwrap_or(MessageId::ZERO);
    let limit = SeekPreview::LIMIT;
    let count = |from, to| backend.catalog().count(&topic_partition, from, to, limit);
    // Entries up to `at` were handed out.
    let (reread, skipped) = match (start, lag) {
        (Start::Earliest, Some(lag)) => (length.saturating_sub(lag).min(limit), 0),
        (Start::Earliest, None) => (count(start, Some(at)).await?, 0),
        (Start::Latest, Some(lag)) => (0, lag.min(limit)),
        (Start::Latest, None) => (0, count(Start::After(at), None).await?),
        (start, _) => {
            let before = match start {
                Start::After(id) => id,
                Start::At(time) => MessageId::new(time.as_millis(), 0).previous(),
                other => {
                    let why = format!("what {other:?} would mean is not known here");
                    return Err(Error::new(ErrorKind::Unsupported, why));
                }
            };
            if before < at {
                (count(start, Some(at)).await?, 0)
            } else {
                (0, count(Start::After(at), Some(before)).await?)
            }
        }
    };
    Ok(SeekPreview { partition, position, reread, skipped, pending })
}
