//! Reset of a group: moving all its partitions while it is not running, and a preview of the effect.

use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::Continuity;
use millstream_core::catalog::{PartitionStats, Start};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::leases::{Acquired, Lease};
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
        let backend = &self.backend;
        backend.require(Capability::Seek)?;
        let topic = &self.known(topic, group).await?;
        // Creates the group where it was lost, so that it can be moved on every partition.
        backend.catalog().create_group(topic, group, start).await?;
        let asked = topic.iter().map(|tp| acquire(backend, tp, group, OWNER));
        let answers: Vec<Result<Lease>> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
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
                let seeks = leases.iter().map(|lease| backend.log().seek(lease, start));
                stream::iter(seeks).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
            }
        };
        // A successful seek releases its lease, so only after an error some may be left.
        for lease in leases.iter().filter(|_| sought.is_err()) {
            release(backend, lease).await;
        }
        sought
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
        let backend = &self.backend;
        let topic = &self.known(topic, group).await?;
        let stats = backend.catalog().stats(topic, group).await?;
        let looks = stats.into_iter().map(|stats| preview(backend, topic, stats, start));
        stream::iter(looks).buffered(AT_ONCE).try_collect().await
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
