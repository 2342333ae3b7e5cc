//! Resetting a group: moving all of it while it is not running, and looking beforehand at what that would mean.

use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::Continuity;
use millstream_core::catalog::{PartitionStats, Start};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::leases::{Acquired, Lease};
use millstream_core::{
    Backend, GroupName, MessageId, Partition, Resource, TopicName, TopicPartition, TopicSpec,
};
use uuid::Uuid;

use crate::Admin;

/// How long leases are held at most: far longer than it takes.
const TTL: Duration = Duration::from_secs(60);
/// What people see as the owner meanwhile.
const OWNER: &str = "reset";
/// How many partitions are dealt with at once.
const AT_ONCE: usize = 32;
/// How often an answer that did not come is asked for.
const TRIES: usize = 3;

/// What a reset would mean for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeekPreview {
    /// Which partition.
    pub partition: Partition,
    /// The last entry that was handed out to the group; `None` if the group is not there.
    pub position: Option<MessageId>,
    /// Entries that were handed out before and would be again. If it is [`LIMIT`](Self::LIMIT), there may be more.
    pub reread: u64,
    /// Entries that were never handed out and would not be. If it is [`LIMIT`](Self::LIMIT), there may be more.
    pub skipped: u64,
    /// Entries that are handed out and not settled. Those of the log would be forgotten: they count among the reread,
    /// or are not handled again. Redeliveries stay.
    pub pending: u64,
}

impl SeekPreview {
    /// Up to so many entries are counted.
    pub const LIMIT: u64 = 1_000_000;
}

impl Admin {
    /// Lets a group that is not running go on elsewhere: back, to handle messages again, or forward, to skip some. What
    /// waits for a retry, and dead letters, stay as they are; what is pending in the log is forgotten.
    ///
    /// All partitions are held at first, each until it is moved, so that nobody can be reading: either all are moved, or, as
    /// long as nobody can be asked about leases, none is. A group that is [paused](Self::pause_group) is running all the same.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there. [`ErrorKind::Fenced`] if a partition has an owner,
    /// who is named: nothing was done. Transient ones, and [`ErrorKind::Fenced`] with another text, after which some
    /// partitions may have been moved: it can be asked again.
    pub async fn reset_group(&self, topic: &TopicName, group: &GroupName, start: Start) -> Result<()> {
        let backend = &self.backend;
        let topic = &self.known(topic, group).await?;
        // Where it was lost it is created again: then it can be moved everywhere.
        backend.catalog.create_group(topic, group, start).await?;
        let asked = topic.iter().map(|tp| acquire(backend, tp, group));
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
                let seeks = leases.iter().map(|lease| backend.log.seek(lease, start));
                stream::iter(seeks).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
            }
        };
        // With all moved, all are given back.
        for lease in leases.iter().filter(|_| sought.is_err()) {
            match backend.leases.release(lease).await {
                Err(error) if error.kind() != ErrorKind::Fenced => {
                    tracing::warn!(resource = %lease.resource, %error, "the lease could not be given back, it will run out");
                }
                // Fenced: this one was moved.
                _ => {}
            }
        }
        sought
    }

    /// What [`reset_group`](Self::reset_group) would mean for each partition, without doing anything. A group that runs
    /// can be looked at too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there; transient ones.
    pub async fn reset_group_preview(
        &self,
        topic: &TopicName,
        group: &GroupName,
        start: Start,
    ) -> Result<Vec<SeekPreview>> {
        let backend = &self.backend;
        let topic = &self.known(topic, group).await?;
        let stats = backend.catalog.stats(topic, group).await?;
        let looks = stats.into_iter().map(|stats| preview(backend, topic, stats, start));
        stream::iter(looks).buffered(AT_ONCE).try_collect().await
    }

    /// The topic of a group that is there.
    async fn known(&self, topic: &TopicName, group: &GroupName) -> Result<TopicSpec> {
        let spec = self.backend.catalog.topic(topic).await?;
        if self.backend.catalog.groups(topic).await?.contains(group) {
            return Ok(spec);
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} is not there")))
    }
}

async fn acquire(backend: &Backend, topic_partition: TopicPartition, group: &GroupName) -> Result<Lease> {
    let resource = Resource::partition(topic_partition, group.clone());
    // The same for every try: a grant whose reply was lost is granted again.
    let nonce = Uuid::new_v4().simple().to_string();
    let mut tries = 1;
    // Whoever resets a group has stopped it: a lease that ran out is nobody's.
    let assured = Continuity::assured();
    loop {
        match backend.leases.acquire(&resource, OWNER, &nonce, TTL, &assured).await {
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
    let count = |from, to| backend.catalog.count(&topic_partition, from, to, limit);
    // What is not above `at` was handed out.
    let (reread, skipped) = match (start, lag) {
        (Start::Earliest, Some(lag)) => (length.saturating_sub(lag).min(limit), 0),
        (Start::Earliest, None) => (count(start, Some(at)).await?, 0),
        (Start::Latest, Some(lag)) => (0, lag.min(limit)),
        (Start::Latest, None) => (0, count(Start::After(at), None).await?),
        (start, _) => {
            let before = match start {
                Start::After(id) => id,
                Start::At(ms) => MessageId::new(ms, 0).previous(),
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
