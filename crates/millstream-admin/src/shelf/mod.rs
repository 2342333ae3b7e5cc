//! What failed and is kept: the dead letters of a group, its retries that wait, or the dead tasks of a delay queue. One shelf lists,
//! counts, selects, changes and trims all three.

mod acting;
pub(crate) mod cancel;
mod failed;
mod filter;
pub(crate) mod locate;
pub(crate) mod progress;
pub(crate) mod status;
pub(crate) mod store;
mod trim;
mod waiting;
mod walk;

use std::collections::BTreeMap;
use std::fmt;

use futures_util::{StreamExt, TryStreamExt, stream};
use millstream_core::error_groups::ErrorGroups;
use millstream_core::inspect::MAX_PAGE_BYTES;
use millstream_core::{Capability, GroupName, MessageId, Partition, QueueName, Result, TopicName};

pub use acting::{ShelfActing, ShelfAction};
pub use failed::{Facts, Failed, FailedId, Retry};
pub use filter::ShelfFilter;
pub use trim::Trimmed;
pub use waiting::{WaitingRetries, WaitingRetry};
pub use walk::ShelfWalk;

use crate::Admin;
use crate::reading::cursor::Cursor;
use crate::reading::merge::AT_ONCE;
use acting::Source;
use store::{End, Of};

/// Maximum number of items that are read at once to be counted.
const PORTION: usize = 1_000;

/// What failed and is kept of a group or a delay queue, over all partitions or shards. Cloning is cheap.
#[derive(Clone)]
pub struct Shelf {
    pub(crate) admin: Admin,
    pub(crate) of: Of,
}

/// Query for what failed, answered in pages.
#[derive(Clone, Debug)]
pub struct ShelfQuery {
    /// Items to return. Default: all.
    pub filter: ShelfFilter,
    /// Whether the newest come first: of dead letters only. Default: the oldest first.
    pub newest_first: bool,
    /// Maximum number of items in the answer. Default: 100.
    pub limit: usize,
    /// Maximum number of items to examine for it. Default: 10,000.
    pub looks: u64,
    /// End of the previous page: of what is ordered by id, so not of retries. Default: start at the beginning.
    pub after: Option<Cursor>,
}

impl Default for ShelfQuery {
    fn default() -> Self {
        let filter = ShelfFilter::default();
        Self { filter, newest_first: false, limit: 100, looks: 10_000, after: None }
    }
}

/// Page of what failed.
#[derive(Clone, Debug)]
pub struct ShelfPage {
    /// The items.
    pub items: Vec<Failed>,
    /// Number of items examined.
    pub looked_at: u64,
    /// Cursor for the next page; `None` at the end.
    pub next: Option<Cursor>,
}

/// Counts and samples of what matches a filter.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Number of items that match.
    pub matched: u64,
    /// Number of items examined.
    pub looked_at: u64,
    /// Number of matching items by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Number of matching items by partition.
    pub partitions: BTreeMap<Partition, u64>,
    /// Number of matching items by their [names](Facts::name), if the filter names some.
    pub named: BTreeMap<String, u64>,
    /// Number of matching retries that are due and not handed out yet, and not among those that match: see
    /// [`Shelf::ready_retries`].
    pub ready: u64,
    /// The first of the matching items.
    pub sample: Vec<Failed>,
    /// Last id examined, by partition. Passed as [`ShelfFilter::up_to`], it excludes what dies later from a following
    /// operation.
    pub ends: BTreeMap<Partition, MessageId>,
    /// All of the matching retries, which have no such ends, and of the dead tasks that are named.
    chosen: Vec<(Partition, MessageId)>,
}

impl Admin {
    /// Returns the retries of `group` in `topic` that wait; there are none if there is no such group.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend that cannot list
    /// retries; transient ones.
    pub async fn retries(&self, topic: &TopicName, group: &GroupName) -> Result<Shelf> {
        self.backend.require(Capability::Inspect)?;
        let topic = self.backend.catalog().topic(topic).await?;
        Ok(Shelf { admin: self.clone(), of: Of::Retries(topic, group.clone()) })
    }

    /// Returns the dead tasks of a delay queue.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a queue that does not exist; [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend without delay
    /// queues; transient ones.
    pub async fn dead_tasks(&self, queue: &QueueName) -> Result<Shelf> {
        let queue = self.backend.tasks()?.queue(queue).await?;
        Ok(Shelf { admin: self.clone(), of: Of::Tasks(queue) })
    }
}

impl Survey {
    fn add(&mut self, item: Failed, is_chosen: bool, sample: usize) {
        let facts = item.facts();
        self.matched += 1;
        *self.partitions.entry(facts.partition).or_default() += 1;
        if let Some(reason) = facts.reason {
            *self.reasons.entry(reason.as_str().to_owned()).or_default() += 1;
        }
        if is_chosen {
            self.chosen.push((facts.partition, facts.id));
        }
        if self.sample.len() < sample {
            self.sample.push(item);
        }
    }
}

impl Shelf {
    /// Returns the number of partitions, or of shards.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.of.lanes()
    }

    /// Returns the first `limit` matching items: the oldest, or the retries that are due next.
    ///
    /// # Errors
    /// Those of [`DeadLetters::list`](millstream_core::DeadLetters::list), [`Inspect::parked`](millstream_core::Inspect::parked)
    /// or [`Tasks::dead_tasks`](millstream_core::Tasks::dead_tasks).
    pub async fn first(&self, filter: &ShelfFilter, limit: usize) -> Result<Vec<Failed>> {
        let mut walk = self.walk_from(&ShelfQuery { filter: filter.clone(), limit, ..ShelfQuery::default() });
        let mut items = Vec::new();
        while !walk.is_done() {
            items.extend(walk.run_once(limit).await?);
        }
        Ok(items)
    }

    /// Returns a page of the matching items. A page ends early after about 4 MiB.
    ///
    /// # Errors
    /// Same as [`first`](Self::first).
    pub async fn page(&self, query: &ShelfQuery) -> Result<ShelfPage> {
        let mut walk = self.walk_from(query);
        let (mut items, mut bytes) = (Vec::new(), 0);
        while !walk.is_done() && walk.looked_at() < query.looks && bytes < MAX_PAGE_BYTES {
            let found = walk.run_once(query.limit - items.len()).await?;
            bytes += found.iter().map(Failed::size).sum::<usize>();
            items.extend(found);
        }
        Ok(ShelfPage { looked_at: walk.looked_at(), next: walk.cursor(), items })
    }

    /// Returns the number of all items; of retries with those that are due and not handed out yet. It reads none of them.
    ///
    /// # Errors
    /// Those of [`Catalog::stats`](millstream_core::Catalog::stats) and [`Tasks::counts`](millstream_core::Tasks::counts).
    pub async fn count(&self) -> Result<u64> {
        self.of.count(&self.admin).await
    }

    /// Counts the matching items, up to `limit`, and returns the first `sample` of them: what [`act`](Self::act) would change with
    /// this filter. It reads all present items, and calls `progress` with the number examined so far. If the filter names tasks that
    /// died several times, the newest of each matches; [`named`](Survey::named) has the number of all.
    ///
    /// # Errors
    /// Same as [`first`](Self::first).
    pub async fn survey(
        &self,
        filter: &ShelfFilter,
        limit: Option<u64>,
        sample: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<Survey> {
        let is_named = filter.ids.is_some() || filter.tasks.is_some();
        let mut walk = self.walk(filter, limit.filter(|_| filter.tasks.is_none())).await?;
        let (mut survey, mut newest) = (Survey::default(), BTreeMap::new());
        while !walk.is_done() {
            for item in walk.run_once(PORTION).await? {
                if is_named {
                    *survey.named.entry(item.facts().name()).or_default() += 1;
                }
                if filter.tasks.is_some() {
                    newest.insert(item.facts().name(), item);
                } else {
                    survey.add(item, !self.of.is_by_id(), sample);
                }
            }
            survey.looked_at = walk.looked_at();
            progress(survey.looked_at);
        }
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        newest.into_values().take(limit).for_each(|item| survey.add(item, true, sample));
        survey.ends = walk.ends().clone();
        let Survey { named, ready, .. } = &mut survey;
        let count = |item: Failed| {
            if is_named {
                *named.entry(item.facts().name()).or_default() += 1;
            }
            *ready += 1;
            true
        };
        self.ready_retries(filter, count).await?;
        Ok(survey)
    }

    /// Iterates over the matching items that are present now, the oldest or those that are due next first, up to `limit`. What
    /// dies meanwhile is not included.
    ///
    /// # Errors
    /// Same as [`first`](Self::first).
    pub async fn walk(&self, filter: &ShelfFilter, limit: Option<u64>) -> Result<ShelfWalk> {
        let ends = self.ends(filter).await?;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let query = ShelfQuery { filter: filter.clone(), limit, ..ShelfQuery::default() };
        Ok(ShelfWalk::new(self, &query, self.lanes(filter), ends))
    }

    /// Iterates over the matching items, from the [cursor](ShelfWalk::cursor) of another such walk if the query has one. It asks
    /// for nothing before its first step, unlike [`walk`](Self::walk), which must know what is present.
    #[must_use]
    pub fn walk_from(&self, query: &ShelfQuery) -> ShelfWalk {
        ShelfWalk::new(self, query, self.lanes(&query.filter), Vec::new())
    }

    /// Counts the matching items by the [fingerprint](millstream_core::Fingerprint) of their last error, in at most `most` groups;
    /// the example of a group is its newest item. It reads all present items, and calls `progress` with the number examined so far.
    /// [Ready retries](Self::ready_retries) count, too.
    ///
    /// The items of a group are selected by [`ShelfFilter::fingerprint`].
    ///
    /// ```
    /// # use millstream_admin::{Admin, Replay, ShelfFilter};
    /// # use millstream_core::{GroupName, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let letters = admin.dead_letters(&topic, &group).await?;
    /// let errors = letters.errors(&ShelfFilter::default(), 100, |_| {}).await?.into_groups();
    /// if let Some(largest) = errors.first() {
    ///     println!("{} letters: {}", largest.count, largest.pattern);
    ///     let same = ShelfFilter { fingerprint: Some(largest.fingerprint), ..Default::default() };
    ///     letters.replayer(&same, Replay::default()).await?.run().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Self::first).
    pub async fn errors(
        &self,
        filter: &ShelfFilter,
        most: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<ErrorGroups<FailedId>> {
        let (mut walk, mut groups) = (self.walk(filter, None).await?, ErrorGroups::new(most));
        while !walk.is_done() {
            for item in walk.run_once(PORTION).await? {
                let facts = item.facts();
                groups.add(facts.error, facts.at, facts.named());
            }
            progress(walk.looked_at());
        }
        let add = |item: Failed| {
            let facts = item.facts();
            groups.add(facts.error, facts.at, facts.named());
            true
        };
        self.ready_retries(filter, add).await?;
        Ok(groups)
    }

    /// Returns the change of the matching items that are present now, up to `limit`; after a survey with the same filter and limit, of
    /// those that it has counted.
    ///
    /// ```
    /// # use millstream_admin::{Admin, ShelfAction, ShelfFilter};
    /// # use millstream_core::{GroupName, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let retries = admin.retries(&topic, &group).await?;
    /// let refused = ShelfFilter { error: Some("refused".into()), ..Default::default() };
    /// let survey = retries.survey(&refused, None, 0, |_| {}).await?;
    /// println!("{} of them wait", survey.matched);
    /// retries.act(&refused, None, ShelfAction::Retry, Some(survey)).await?.run().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Self::first).
    pub async fn act(
        &self,
        filter: &ShelfFilter,
        limit: Option<u64>,
        action: ShelfAction,
        surveyed: Option<Survey>,
    ) -> Result<ShelfActing> {
        let source = if self.of.is_by_id() && filter.tasks.is_none() {
            let up_to = surveyed.map_or_else(|| filter.up_to.clone(), |survey| Some(survey.ends));
            let filter = ShelfFilter { up_to, ..filter.clone() };
            Source::Walk(Box::new(self.walk(&filter, limit).await?))
        } else {
            // They are selected before any is changed: one that fails again would be found again. Of a task that died several times the
            // newest is known at the end.
            let survey = match surveyed {
                Some(survey) => survey,
                None => self.survey(filter, limit, 0, |_| {}).await?,
            };
            Source::Ids(survey.chosen)
        };
        Ok(ShelfActing { shelf: self.clone(), action, source, changed: 0 })
    }

    pub(crate) async fn act_on(
        &self,
        lane: Partition,
        ids: &[MessageId],
        action: ShelfAction,
        changed: &mut u64,
    ) -> Result<()> {
        for ids in ids.chunks(self.of.portion()) {
            *changed += self.of.act(&self.admin, lane.0, ids, action).await?;
        }
        Ok(())
    }

    pub(crate) fn lanes(&self, filter: &ShelfFilter) -> Vec<Partition> {
        (0..self.of.lanes()).map(Partition).filter(|partition| filter.has(*partition)).collect()
    }

    pub(crate) async fn ends(&self, filter: &ShelfFilter) -> Result<Vec<End>> {
        let ends = self.lanes(filter).into_iter().map(|lane| self.of.end(&self.admin, lane.0));
        stream::iter(ends).buffered(AT_ONCE).try_collect().await
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("of", &self.of).finish_non_exhaustive()
    }
}
