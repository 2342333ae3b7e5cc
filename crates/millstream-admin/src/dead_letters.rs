//! Dead letters of a group over all partitions of a topic: listing, counting, replaying, purging, trimming, exporting and
//! importing.

mod edit;
mod errors;
mod filter;
mod lines;
mod pace;
mod progress;
mod replay;
mod trim;
mod walk;

use std::collections::BTreeMap;
use std::fmt;

use futures_util::{StreamExt, TryStreamExt, stream};
use millstream_core::dead_letters::DeadLetterAction;
use millstream_core::event::LetterWork;
use millstream_core::inspect::{MAX_PAGE_BYTES, Range};
use millstream_core::{
    Backend, Capability, DeadLetter, Error, ErrorKind, GroupName, MessageId, Partition, Result, TopicName,
    TopicPartition, TopicSpec,
};

pub use edit::Edit;
pub use filter::DeadLetterFilter;
pub use lines::{from_line, to_line};
pub use replay::{
    REPLAYED_FROM, REPLAYED_ORIGIN, REPLAYED_REASON, Refusal, Replay, ReplayTo, Replayed, Replayer,
};
pub use trim::DeadLettersTrimmed;
pub use walk::DeadLetterWalk;

use crate::Admin;
use crate::reading::cursor::Cursor;
use crate::reading::merge::AT_ONCE;
use progress::ProgressSink;
use walk::Route;

/// Maximum number of letters that are settled or put in one request.
const PORTION: usize = 1_000;

/// Query for dead letters, answered in pages.
#[derive(Clone, Debug)]
pub struct DeadLetterQuery {
    /// Letters to return. Default: all.
    pub filter: DeadLetterFilter,
    /// Whether the newest come first. Default: the oldest first.
    pub newest_first: bool,
    /// Maximum number of letters in the answer. Default: 100.
    pub limit: usize,
    /// Maximum number of letters to examine for it. Default: 10,000.
    pub looks: u64,
    /// End of the previous page. Default: start at the beginning.
    pub after: Option<Cursor>,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        let filter = DeadLetterFilter::default();
        Self { filter, newest_first: false, limit: 100, looks: 10_000, after: None }
    }
}

/// Page of dead letters.
#[derive(Clone, Debug)]
pub struct DeadLetterPage {
    /// The letters.
    pub letters: Vec<DeadLetter>,
    /// Number of letters examined.
    pub looked_at: u64,
    /// Cursor for the next page; `None` at the end.
    pub next: Option<Cursor>,
}

/// Counts and samples of dead letters that match a filter.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Number of letters that match.
    pub matched: u64,
    /// Number of letters examined.
    pub looked_at: u64,
    /// Number of matching letters by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Number of matching letters by partition.
    pub partitions: BTreeMap<Partition, u64>,
    /// The first of the matching letters.
    pub sample: Vec<DeadLetter>,
    /// Newest id examined, by partition. Passed as [`DeadLetterFilter::up_to`], it excludes letters that die later from
    /// a following operation.
    pub ends: BTreeMap<Partition, MessageId>,
}

/// Result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Letters that were put back.
    pub put: u64,
    /// Letters that still exist, or were put back before.
    pub passed_over: u64,
}

/// Dead letters of one group, over all partitions of a topic. Cloning is cheap.
#[derive(Clone)]
pub struct DeadLetterQueue {
    backend: Backend,
    topic: TopicSpec,
    group: GroupName,
    progress: ProgressSink,
}

impl Admin {
    /// Returns the dead letters of `group` in `topic`; it is empty if there is no such group.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::Unsupported`] for a backend without dead
    /// letters; transient ones.
    pub async fn dead_letters(&self, topic: &TopicName, group: &GroupName) -> Result<DeadLetterQueue> {
        self.backend.require(Capability::DeadLetters)?;
        let topic = self.backend.catalog().topic(topic).await?;
        let progress = ProgressSink::new(&self.observer, group);
        Ok(DeadLetterQueue { backend: self.backend.clone(), topic, group: group.clone(), progress })
    }
}

impl DeadLetterQueue {
    /// Returns the topic.
    #[must_use]
    pub fn topic(&self) -> &TopicSpec {
        &self.topic
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    /// Returns the first `limit` dead letters, oldest first.
    ///
    /// # Errors
    /// Those of [`DeadLetters::list`](millstream_core::DeadLetters::list).
    pub async fn list(&self, limit: usize) -> Result<Vec<DeadLetter>> {
        let route = Route { newest_first: false, after: None, ends: None, limit: limit as u64 };
        let mut walk = self.walk_by(&DeadLetterFilter::default(), route);
        let mut letters = Vec::new();
        while !walk.is_done() {
            letters.extend(walk.run_once(limit).await?);
        }
        Ok(letters)
    }

    /// Returns a page of the matching letters, ordered by id over all partitions. A page ends early after about 4 MiB.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn page(&self, query: &DeadLetterQuery) -> Result<DeadLetterPage> {
        let DeadLetterQuery { filter, newest_first, limit, looks, after } = query;
        let route = Route { newest_first: *newest_first, after: *after, ends: None, limit: *limit as u64 };
        let mut walk = self.walk_by(filter, route);
        let (mut letters, mut bytes) = (Vec::new(), 0);
        while !walk.is_done() && walk.looked_at() < *looks && bytes < MAX_PAGE_BYTES {
            let found = walk.run_once(limit - letters.len()).await?;
            bytes += found.iter().map(walk::size).sum::<usize>();
            letters.extend(found);
        }
        Ok(DeadLetterPage { looked_at: walk.looked_at(), next: walk.cursor(), letters })
    }

    /// Returns one letter; `None` if it does not exist.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn get(&self, partition: Partition, id: MessageId) -> Result<Option<DeadLetter>> {
        let topic_partition = TopicPartition { topic: self.topic.name.clone(), partition };
        let only = Range { after: id.previous(), before: id.next(), newest_first: false };
        let page = self.backend.dead_letters()?.list(&topic_partition, &self.group, only, 1).await?;
        Ok(page.items.into_iter().find(|letter| letter.id == id))
    }

    /// Returns the number of dead letters, in one request whatever their number.
    ///
    /// # Errors
    /// Those of [`Catalog::stats`](millstream_core::Catalog::stats).
    pub async fn count(&self) -> Result<u64> {
        let stats = self.backend.catalog().stats(&self.topic, &self.group).await?;
        Ok(stats.iter().map(|partition| partition.dead).sum())
    }

    /// Returns the newest letter of each partition that has any. Passed as [`DeadLetterFilter::up_to`], it excludes letters that
    /// die later from an operation.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn newest(&self) -> Result<BTreeMap<Partition, MessageId>> {
        let ends = self.ends(&DeadLetterFilter::default()).await?;
        let ends = self.topic.iter().map(|tp| tp.partition).zip(ends);
        Ok(ends.filter(|(_, id)| *id > MessageId::ZERO).collect())
    }

    /// Counts the matching letters, up to `limit`, and returns the first `sample` of them: the letters that a replay or
    /// purge with this filter would affect. It reads all present letters.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn survey(
        &self,
        filter: &DeadLetterFilter,
        limit: Option<u64>,
        sample: usize,
    ) -> Result<Survey> {
        let ends = self.ends(filter).await?;
        let of = self.lanes(filter).into_iter().map(|tp| tp.partition).zip(ends.iter().copied()).collect();
        let route =
            Route { newest_first: false, after: None, ends: Some(ends), limit: limit.unwrap_or(u64::MAX) };
        let mut walk = self.walk_by(filter, route);
        let mut survey = Survey { ends: of, ..Survey::default() };
        while !walk.is_done() {
            for letter in walk.run_once(PORTION).await? {
                survey.matched += 1;
                *survey.reasons.entry(letter.reason.as_str().to_owned()).or_default() += 1;
                *survey.partitions.entry(letter.topic_partition.partition).or_default() += 1;
                if survey.sample.len() < sample {
                    survey.sample.push(letter);
                }
            }
        }
        survey.looked_at = walk.looked_at();
        Ok(survey)
    }

    /// Iterates over the matching letters that are present now, oldest first, up to `limit`. Letters that die meanwhile
    /// are not included.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn walk(&self, filter: &DeadLetterFilter, limit: Option<u64>) -> Result<DeadLetterWalk> {
        let ends = Some(self.ends(filter).await?);
        let limit = limit.unwrap_or(u64::MAX);
        Ok(self.walk_by(filter, Route { newest_first: false, after: None, ends, limit }))
    }

    /// Iterates over the matching letters, newest first, up to `limit`. It starts behind the [cursor](DeadLetterWalk::cursor) of
    /// another such walk, or with the newest letter. It asks for nothing before its first step, unlike [`walk`](Self::walk),
    /// which must know the newest letter of each partition.
    #[must_use]
    pub fn walk_newest_first(
        &self,
        filter: &DeadLetterFilter,
        after: Option<Cursor>,
        limit: Option<u64>,
    ) -> DeadLetterWalk {
        let limit = limit.unwrap_or(u64::MAX);
        self.walk_by(filter, Route { newest_first: true, after, ends: None, limit })
    }

    /// Moves one dead letter back to its group. Returns false if it no longer exists, or if another caller has claimed it.
    ///
    /// # Errors
    /// Those of [`DeadLetters::settle`](millstream_core::DeadLetters::settle).
    pub async fn replay(&self, letter: &DeadLetter) -> Result<bool> {
        let role = self.backend.dead_letters()?;
        let done = role.replay(&letter.topic_partition, &self.group, &[letter.id]).await?;
        self.progress.of(&letter.topic_partition, LetterWork::Replay, done, 1);
        Ok(done == 1)
    }

    /// Moves all present dead letters back to their group. Returns their number.
    ///
    /// A letter that dies again meanwhile is not replayed again.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay); letters that were replayed before the error stay replayed.
    pub async fn replay_all(&self) -> Result<u64> {
        Ok(self.replayer(&DeadLetterFilter::default(), Replay::default()).await?.run().await?.replayed)
    }

    /// Returns a replayer for the matching letters that are present now. `replay` sets target, changes and rate.
    ///
    /// ```
    /// # use millstream_admin::{Admin, DeadLetterFilter, Replay};
    /// # use millstream_core::{GroupName, Reason, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let letters = admin.dead_letters(&topic, &group).await?;
    /// let exhausted = DeadLetterFilter { reason: Some(Reason::Exhausted), ..Default::default() };
    /// println!("{} of them", letters.survey(&exhausted, None, 0).await?.matched);
    /// let slowly = Replay { rate: Some(50.0), ..Replay::default() };
    /// let replayed = letters.replayer(&exhausted, slowly).await?.run().await?;
    /// println!("{} replayed, {} passed over", replayed.replayed, replayed.passed_over);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for invalid settings of the replay; [`ErrorKind::NotFound`] for a target that does
    /// not exist; those of [`list`](Self::list).
    pub async fn replayer(&self, filter: &DeadLetterFilter, replay: Replay) -> Result<Replayer> {
        let walk = self.walk(filter, replay.limit).await?;
        Replayer::new(self.backend.clone(), self.group.clone(), replay, walk, self.progress.clone()).await
    }

    /// Deletes one dead letter permanently. Returns false if it no longer exists, or if another caller has claimed it.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay).
    pub async fn purge(&self, letter: &DeadLetter) -> Result<bool> {
        let role = self.backend.dead_letters()?;
        let done = role.purge(&letter.topic_partition, &self.group, &[letter.id]).await?;
        self.progress.of(&letter.topic_partition, LetterWork::Purge, done, 1);
        Ok(done == 1)
    }

    /// Deletes the matching letters that are present now, permanently, up to `limit`. Returns their number; letters
    /// claimed by another caller are skipped.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay); letters that were deleted before the error stay deleted.
    pub async fn purge_where(&self, filter: &DeadLetterFilter, limit: Option<u64>) -> Result<u64> {
        let mut walk = self.walk(filter, limit).await?;
        let mut purged = 0;
        while !walk.is_done() {
            let mut partitions: BTreeMap<TopicPartition, Vec<(MessageId, DeadLetterAction)>> =
                BTreeMap::new();
            for letter in walk.run_once(PORTION).await? {
                partitions
                    .entry(letter.topic_partition)
                    .or_default()
                    .push((letter.id, DeadLetterAction::Purge));
            }
            for (topic_partition, deeds) in partitions {
                let role = self.backend.dead_letters()?;
                let done = role.settle(&topic_partition, &self.group, None, &deeds).await?.len();
                self.progress.of(&topic_partition, LetterWork::Purge, done, deeds.len());
                purged += done as u64;
            }
        }
        Ok(purged)
    }

    /// Deletes all present dead letters, claimed or not, without reading them. Returns their number.
    ///
    /// # Errors
    /// Those of [`DeadLetters::purge_through`](millstream_core::DeadLetters::purge_through); letters that were deleted
    /// before the error stay deleted.
    pub async fn purge_all(&self) -> Result<u64> {
        let everything = DeadLetterFilter::default();
        let mut purged = 0;
        for (topic_partition, last) in self.lanes(&everything).into_iter().zip(self.ends(&everything).await?)
        {
            if last > MessageId::ZERO {
                let role = self.backend.dead_letters()?;
                let done = role.purge_through(&topic_partition, &self.group, last).await?;
                self.progress.of(&topic_partition, LetterWork::Purge, done, done);
                purged += done as u64;
            }
        }
        Ok(purged)
    }

    /// Returns the next letters of a walk as lines ([`to_line`]), at most `most`. The letters are not removed.
    ///
    /// # Errors
    /// Those of [`DeadLetterWalk::run_once`].
    pub async fn export(&self, walk: &mut DeadLetterWalk, most: usize) -> Result<Vec<String>> {
        let (mut lines, mut partitions) = (Vec::new(), BTreeMap::new());
        for letter in walk.run_once(most).await? {
            lines.push(to_line(&letter)?);
            *partitions.entry(letter.topic_partition).or_default() += 1;
        }
        for (topic_partition, count) in partitions {
            self.progress.of(&topic_partition, LetterWork::Export, count, count);
        }
        Ok(lines)
    }

    /// Puts letters back that were exported with [`to_line`], each under a new id. A letter that still exists is
    /// skipped, and so is one that was put back in the last 7 days, whatever became of it: importing a file twice has
    /// the same effect as once. With `again` the latter are put back once more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a letter of another topic or group, or of a partition that the topic does not
    /// have: none is put back. Those of [`DeadLetters::put`](millstream_core::DeadLetters::put); letters that were put
    /// back before the error stay.
    pub async fn import(&self, letters: &[DeadLetter], again: bool) -> Result<Imported> {
        let mut partitions: BTreeMap<&TopicPartition, Vec<DeadLetter>> = BTreeMap::new();
        self.check(letters)?;
        for letter in letters {
            partitions.entry(&letter.topic_partition).or_default().push(letter.clone());
        }
        let mut imported = Imported::default();
        for (topic_partition, letters) in partitions {
            let put = self.backend.dead_letters()?.put(topic_partition, &self.group, &letters, again).await?;
            let done = put.iter().flatten().count();
            self.progress.of(topic_partition, LetterWork::Import, done, put.len());
            imported.put += done as u64;
            imported.passed_over += (put.len() - done) as u64;
        }
        Ok(imported)
    }

    /// Checks that letters can be [put back](Self::import) here, regardless of what exists already.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a letter of another topic or group, or of a partition that the topic does not have.
    pub fn check(&self, letters: &[DeadLetter]) -> Result<()> {
        letters.iter().try_for_each(|letter| self.fits(letter))
    }

    fn fits(&self, letter: &DeadLetter) -> Result<()> {
        let TopicPartition { topic, partition } = &letter.topic_partition;
        let bad = |what: String| {
            let message = format!("dead letter {} is of {what}", letter.id);
            Err(Error::new(ErrorKind::InvalidConfig, message))
        };
        if *topic != self.topic.name {
            return bad(format!("topic {topic}, not of {}", self.topic.name));
        }
        if letter.group != self.group {
            return bad(format!("group {}, not of {}", letter.group, self.group));
        }
        if partition.0 >= self.topic.partitions {
            return bad(format!("partition {partition}, and {topic} has {}", self.topic.partitions));
        }
        Ok(())
    }

    fn lanes(&self, filter: &DeadLetterFilter) -> Vec<TopicPartition> {
        let wanted =
            |tp: &TopicPartition| filter.partitions.as_ref().is_none_or(|some| some.contains(&tp.partition));
        self.topic.iter().filter(wanted).collect()
    }

    /// Returns the newest id of each partition; 0-0 for an empty one.
    async fn ends(&self, filter: &DeadLetterFilter) -> Result<Vec<MessageId>> {
        let newest = Range { newest_first: true, ..Range::ALL };
        let role = self.backend.dead_letters()?;
        let ends = self.lanes(filter).into_iter().map(async |topic_partition| {
            let page = role.list(&topic_partition, &self.group, newest, 1).await?;
            Ok(page.items.first().map_or(MessageId::ZERO, |letter| letter.id))
        });
        stream::iter(ends).buffered(AT_ONCE).try_collect().await
    }

    fn walk_by(&self, filter: &DeadLetterFilter, route: Route) -> DeadLetterWalk {
        DeadLetterWalk::new(&self.backend, self.lanes(filter), &self.group, filter, route)
    }
}

impl fmt::Debug for DeadLetterQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterQueue")
            .field("topic", &self.topic.name)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
