//! Retries of a group that wait, over all partitions of a topic: listing, releasing and giving them up.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::error_groups::ErrorGroups;
use millstream_core::inspect::{MAX_PAGE, Parked};
use millstream_core::schedule::RetryAction;
use millstream_core::{
    Backend, Capability, Fingerprint, GroupName, Limits, MessageId, Partition, Result, Timestamp, TopicName,
    TopicPartition, TopicSpec, wire,
};

use crate::{Admin, Filter};

/// Maximum number of retries that are changed in one request.
const PORTION: usize = 200;
/// Number of partitions that are read at once.
const AT_ONCE: usize = 8;

/// Conditions on retries: a retry must match all that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryFilter {
    /// Partitions. Default: all.
    pub partitions: Option<Vec<Partition>>,
    /// Ids of the messages in the logs of their partitions. Default: all.
    pub ids: Option<Vec<MessageId>>,
    /// Text contained in the error of the last attempt.
    pub error: Option<String>,
    /// Fingerprint of the error of the last attempt, as [`errors`](RetryQueue::errors) returns it.
    pub fingerprint: Option<Fingerprint>,
    /// Minimum number of the next attempt.
    pub min_attempt: Option<u32>,
    /// Earliest due time, by the server's clock.
    pub due_from: Option<Timestamp>,
    /// Due time is before this, by the server's clock.
    pub due_before: Option<Timestamp>,
    /// Conditions on key, headers and payload; its [`id`](Filter::id) is that of the message. A retry that cannot be
    /// decoded matches only if none of the three is set.
    pub message: Filter,
}

impl RetryFilter {
    /// Returns whether all retries match.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a retry of a partition matches.
    #[must_use]
    pub fn fits(&self, partition: Partition, retry: &Parked, limits: &Limits) -> bool {
        self.has(partition)
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&retry.origin))
            && self.message.id.is_none_or(|id| id == retry.origin)
            && self.error.as_ref().is_none_or(|text| retry.error.contains(text))
            && self.fingerprint.is_none_or(|print| print == Fingerprint::of(&retry.error))
            && self.min_attempt.is_none_or(|least| retry.attempt >= least)
            && self.due_from.is_none_or(|time| retry.due >= time)
            && self.due_before.is_none_or(|time| retry.due < time)
            && self.fits_message(retry, limits)
    }

    fn has(&self, partition: Partition) -> bool {
        self.partitions.as_ref().is_none_or(|some| some.contains(&partition))
    }

    fn fits_message(&self, retry: &Parked, limits: &Limits) -> bool {
        let Filter { id: _, key, header, payload } = &self.message;
        if key.is_none() && header.is_none() && payload.is_none() {
            return true;
        }
        wire::decode_body(&retry.body, limits).is_ok_and(|envelope| self.message.fits_envelope(&envelope))
    }
}

/// Retry that waits, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Partition of the message.
    pub topic_partition: TopicPartition,
    /// The retry.
    pub parked: Parked,
}

/// Retries that were selected by a filter.
#[derive(Clone, Debug, Default)]
pub struct RetrySelection {
    /// Ids of the messages in the logs of their partitions.
    pub ids: BTreeMap<Partition, Vec<MessageId>>,
    /// The first of them.
    pub sample: Vec<Retry>,
    /// Number of retries examined.
    pub looked_at: u64,
}

impl RetrySelection {
    /// Returns the number of selected retries.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ids.values().map(|ids| ids.len() as u64).sum()
    }
}

/// Retries of one group that wait, over all partitions of a topic. Cloning is cheap.
#[derive(Clone)]
pub struct RetryQueue {
    backend: Backend,
    topic: TopicSpec,
    group: GroupName,
}

impl Admin {
    /// Returns the retries of `group` in `topic` that wait; there are none if there is no such group.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist;
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend that cannot list retries; transient
    /// ones.
    pub async fn retries(&self, topic: &TopicName, group: &GroupName) -> Result<RetryQueue> {
        self.backend.require(Capability::Inspect)?;
        let topic = self.backend.catalog().topic(topic).await?;
        Ok(RetryQueue { backend: self.backend.clone(), topic, group: group.clone() })
    }
}

impl RetryQueue {
    /// Returns the topic.
    #[must_use]
    pub fn topic(&self) -> &TopicSpec {
        &self.topic
    }

    /// Iterates over the matching retries: partition by partition, by due time within each.
    #[must_use]
    pub fn walk(&self, filter: &RetryFilter) -> RetryWalk {
        let mut partitions: Vec<_> = self.topic.iter().filter(|tp| filter.has(tp.partition)).collect();
        partitions.reverse();
        RetryWalk {
            queue: self.clone(),
            filter: filter.clone(),
            limits: Limits::NONE,
            partitions,
            after: None,
            page: MAX_PAGE,
            looked_at: 0,
        }
    }

    /// Returns the first `limit` matching retries, by due time over all partitions.
    ///
    /// # Errors
    /// Those of [`Inspect::parked`](millstream_core::Inspect::parked).
    pub async fn list(&self, filter: &RetryFilter, limit: usize) -> Result<Vec<Retry>> {
        let partitions = self.topic.iter().filter(|tp| filter.has(tp.partition));
        let firsts = partitions.map(|tp| self.first(filter, tp.partition, limit));
        let mut firsts = stream::iter(firsts).buffer_unordered(AT_ONCE);
        let mut found: Vec<Retry> = Vec::new();
        while let Some(first) = firsts.try_next().await? {
            found.extend(first);
            found.sort_by_key(|it| (it.parked.due, it.topic_partition.partition, it.parked.origin));
            found.truncate(limit);
        }
        Ok(found)
    }

    /// Returns the first `limit` matching retries of a partition.
    async fn first(&self, filter: &RetryFilter, partition: Partition, limit: usize) -> Result<Vec<Retry>> {
        let of_partition = RetryFilter { partitions: Some(vec![partition]), ..filter.clone() };
        let mut walk = self.walk(&of_partition);
        if (RetryFilter { partitions: None, ..filter.clone() }).is_empty() {
            // Nothing that is read is left out.
            walk.page = limit.clamp(1, MAX_PAGE);
        }
        let mut first = Vec::new();
        while !walk.is_done() && first.len() < limit {
            first.extend(walk.run_once().await?);
        }
        first.truncate(limit);
        Ok(first)
    }

    /// Selects the matching retries that wait now, up to `limit`, and returns the first `sample` of them. It reads all of
    /// them, page by page, keeps only their ids, and calls `progress` with the number examined so far after each page.
    ///
    /// ```
    /// # use millstream_admin::{Admin, RetryFilter};
    /// # use millstream_core::schedule::RetryAction;
    /// # use millstream_core::{GroupName, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let retries = admin.retries(&topic, &group).await?;
    /// let refused = RetryFilter { error: Some("refused".into()), ..Default::default() };
    /// let selected = retries.select(&refused, None, 0, |_| {}).await?;
    /// println!("{} of them wait", selected.count());
    /// retries.settle(&selected, RetryAction::Release).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn select(
        &self,
        filter: &RetryFilter,
        limit: Option<u64>,
        sample: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<RetrySelection> {
        let (mut walk, mut selected) = (self.walk(filter), RetrySelection::default());
        let mut left = limit.unwrap_or(u64::MAX);
        while !walk.is_done() && left > 0 {
            for retry in walk.run_once().await? {
                if left == 0 {
                    break;
                }
                left -= 1;
                selected.ids.entry(retry.topic_partition.partition).or_default().push(retry.parked.origin);
                if selected.sample.len() < sample {
                    selected.sample.push(retry);
                }
            }
            selected.looked_at = walk.looked_at();
            progress(selected.looked_at);
        }
        Ok(selected)
    }

    /// Releases the selected retries, or gives them up. Returns the number of those that still waited.
    ///
    /// # Errors
    /// Those of [`Schedule::settle_retries`](millstream_core::Schedule::settle_retries); retries that were changed before
    /// the error stay changed, and the call can be repeated.
    pub async fn settle(&self, selected: &RetrySelection, action: RetryAction) -> Result<u64> {
        self.backend.require(Capability::SettleRetries)?;
        let mut done = 0;
        for (partition, ids) in &selected.ids {
            let topic_partition = TopicPartition { topic: self.topic.name.clone(), partition: *partition };
            for ids in ids.chunks(PORTION) {
                let role = self.backend.schedule();
                let settled = role.settle_retries(&topic_partition, &self.group, ids, action).await?;
                done += settled.into_iter().filter(|waited| *waited).count() as u64;
            }
        }
        Ok(done)
    }

    /// Counts the matching retries by the fingerprint of their last error, in at most `most` groups; the time of a retry is
    /// its due time. It reads all of them, and calls `progress` with the number examined so far after each page.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn errors(
        &self,
        filter: &RetryFilter,
        most: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<ErrorGroups<(Partition, MessageId)>> {
        let (mut walk, mut groups) = (self.walk(filter), ErrorGroups::new(most));
        while !walk.is_done() {
            for Retry { topic_partition, parked } in walk.run_once().await? {
                let example = (topic_partition.partition, parked.origin);
                groups.add(&parked.error, parked.due, example);
            }
            progress(walk.looked_at());
        }
        Ok(groups)
    }
}

/// Iterates over the retries of all partitions.
pub struct RetryWalk {
    queue: RetryQueue,
    filter: RetryFilter,
    limits: Limits,
    /// The partitions still to be read; the last one is next.
    partitions: Vec<TopicPartition>,
    /// Last retry read of the partition that is next.
    after: Option<(Timestamp, MessageId)>,
    /// Maximum number of retries of a page.
    page: usize,
    looked_at: u64,
}

impl RetryWalk {
    /// Reads a page of at most 1,000 retries and about 4 MiB, and returns the matching ones: possibly none while there are
    /// more.
    ///
    /// # Errors
    /// Those of [`Inspect::parked`](millstream_core::Inspect::parked); the next call continues where this one ended.
    pub async fn run_once(&mut self) -> Result<Vec<Retry>> {
        let Some(topic_partition) = self.partitions.last().cloned() else { return Ok(Vec::new()) };
        let RetryQueue { backend, group, .. } = &self.queue;
        let page = backend.inspect()?.parked(&topic_partition, group, self.after, self.page).await?;
        self.looked_at += page.items.len() as u64;
        match page.items.last() {
            Some(last) if page.more => self.after = Some((last.due, last.origin)),
            _ => {
                self.partitions.pop();
                self.after = None;
            }
        }
        let fits = |parked: &Parked| self.filter.fits(topic_partition.partition, parked, &self.limits);
        let found = page.items.into_iter().filter(fits);
        Ok(found.map(|parked| Retry { topic_partition: topic_partition.clone(), parked }).collect())
    }

    /// Returns whether all retries were read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns the number of retries read so far.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }
}

impl fmt::Debug for RetryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryQueue")
            .field("topic", &self.topic.name)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RetryWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryWalk")
            .field("filter", &self.filter)
            .field("looked_at", &self.looked_at)
            .finish_non_exhaustive()
    }
}
