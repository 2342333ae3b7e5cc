//! Dead letters of a group over all partitions of a topic: listing, counting, replaying, purging, trimming, exporting and
//! importing.

mod edit;
mod lines;
mod pace;
mod replay;

use std::collections::BTreeMap;
use std::ops::Deref;

use millstream_core::event::LetterWork;
use millstream_core::{
    Capability, DeadLetter, Error, ErrorKind, GroupName, MessageId, Partition, Result, TopicName,
    TopicPartition, TopicSpec,
};

pub use edit::Edit;
pub use lines::{from_line, to_line};
pub use replay::{
    REPLAYED_FROM, REPLAYED_ORIGIN, REPLAYED_REASON, Refusal, Replay, ReplayTo, Replayed, Replayer,
};

use crate::shelf::progress::ProgressSink;
use crate::shelf::store::{End, Of};
use crate::{Admin, Failed, Shelf, ShelfAction, ShelfFilter, ShelfWalk};

/// Result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Letters that were put back.
    pub put: u64,
    /// Letters that still exist, or were put back before.
    pub passed_over: u64,
}

/// Dead letters of one group, over all partitions of a topic: a [`Shelf`], and what only dead letters have. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct DeadLetterQueue {
    shelf: Shelf,
    topic: TopicSpec,
    group: GroupName,
}

impl Deref for DeadLetterQueue {
    type Target = Shelf;

    fn deref(&self) -> &Shelf {
        &self.shelf
    }
}

impl Admin {
    /// Returns the dead letters of `group` in `topic`; it is empty if there is no such group.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::Unsupported`] for a backend without dead
    /// letters; transient ones.
    pub async fn dead_letters(&self, topic: &TopicName, group: &GroupName) -> Result<DeadLetterQueue> {
        self.backend.require(Capability::DeadLetters)?;
        let (topic, group) = (self.backend.catalog().topic(topic).await?, group.clone());
        let shelf = Shelf { admin: self.clone(), of: Of::Letters(topic.clone(), group.clone()) };
        Ok(DeadLetterQueue { shelf, topic, group })
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
        let letters = self.first(&ShelfFilter::default(), limit).await?;
        Ok(letters.into_iter().filter_map(Failed::letter).collect())
    }

    /// Returns one letter; `None` if it does not exist.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn get(&self, partition: Partition, id: MessageId) -> Result<Option<DeadLetter>> {
        let found = self.first(&ShelfFilter::one(partition, id), 1).await?;
        Ok(found.into_iter().find_map(Failed::letter))
    }

    /// Returns the newest letter of each partition that has any. Passed as [`ShelfFilter::up_to`], it excludes letters that
    /// die later from an operation.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn newest(&self) -> Result<BTreeMap<Partition, MessageId>> {
        let ends = self.ends(&ShelfFilter::default()).await?;
        let ends = ends.into_iter().enumerate().filter_map(|(lane, end)| match end {
            End::Id(id) if id > MessageId::ZERO => Some((Partition(lane as u32), id)),
            _ => None,
        });
        Ok(ends.collect())
    }

    /// Moves one dead letter back to its group. Returns false if it no longer exists, or if another caller has claimed it.
    ///
    /// # Errors
    /// Those of [`DeadLetters::settle`](millstream_core::DeadLetters::settle).
    pub async fn replay(&self, letter: &DeadLetter) -> Result<bool> {
        self.one(letter, ShelfAction::Retry).await
    }

    /// Moves all present dead letters back to their group. Returns their number.
    ///
    /// A letter that dies again meanwhile is not replayed again.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay); letters that were replayed before the error stay replayed.
    pub async fn replay_all(&self) -> Result<u64> {
        Ok(self.replayer(&ShelfFilter::default(), Replay::default()).await?.run().await?.replayed)
    }

    /// Returns a replayer for the matching letters that are present now. `replay` sets target, changes and rate.
    ///
    /// ```
    /// # use millstream_admin::{Admin, Replay, ShelfFilter};
    /// # use millstream_core::{GroupName, Reason, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let letters = admin.dead_letters(&topic, &group).await?;
    /// let exhausted = ShelfFilter { reason: Some(Reason::Exhausted), ..Default::default() };
    /// println!("{} of them", letters.survey(&exhausted, None, 0, |_| {}).await?.matched);
    /// let slowly = Replay { rate: Some(50.0), ..Replay::default() };
    /// let replayed = letters.replayer(&exhausted, slowly).await?.run().await?;
    /// println!("{} replayed, {} passed over", replayed.replayed, replayed.passed_over);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for invalid settings of the replay; [`ErrorKind::NotFound`] for a target that does
    /// not exist; those of [`list`](Self::list).
    pub async fn replayer(&self, filter: &ShelfFilter, replay: Replay) -> Result<Replayer> {
        let walk = self.walk(filter, replay.limit).await?;
        Replayer::new(self.admin.backend.clone(), self.group.clone(), replay, walk, self.progress()).await
    }

    /// Deletes one dead letter permanently. Returns false if it no longer exists, or if another caller has claimed it.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay).
    pub async fn purge(&self, letter: &DeadLetter) -> Result<bool> {
        self.one(letter, ShelfAction::Drop).await
    }

    /// Deletes the matching letters that are present now, permanently, up to `limit`. Returns their number; letters
    /// claimed by another caller are skipped.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay); letters that were deleted before the error stay deleted.
    pub async fn purge_where(&self, filter: &ShelfFilter, limit: Option<u64>) -> Result<u64> {
        self.act(filter, limit, ShelfAction::Drop, None).await?.run().await
    }

    /// Deletes all present dead letters, claimed or not, without reading them. Returns their number.
    ///
    /// # Errors
    /// Those of [`DeadLetters::purge_through`](millstream_core::DeadLetters::purge_through); letters that were deleted
    /// before the error stay deleted.
    pub async fn purge_all(&self) -> Result<u64> {
        let mut purged = 0;
        for (partition, last) in self.newest().await? {
            let tp = TopicPartition { topic: self.topic.name.clone(), partition };
            let done = self.admin.backend.dead_letters()?.purge_through(&tp, &self.group, last).await?;
            self.progress().of(&tp, LetterWork::Purge, done, done);
            purged += done as u64;
        }
        Ok(purged)
    }

    async fn one(&self, letter: &DeadLetter, action: ShelfAction) -> Result<bool> {
        let mut changed = 0;
        self.act_on(letter.topic_partition.partition, &[letter.id], action, &mut changed).await?;
        Ok(changed == 1)
    }

    fn progress(&self) -> ProgressSink {
        ProgressSink::new(&self.admin.observer, &self.group)
    }

    /// Returns the next letters of a walk as lines ([`to_line`]), at most `most`. The letters are not removed.
    ///
    /// # Errors
    /// Those of [`ShelfWalk::run_once`].
    pub async fn export(&self, walk: &mut ShelfWalk, most: usize) -> Result<Vec<String>> {
        let (mut lines, mut partitions) = (Vec::new(), BTreeMap::new());
        for letter in walk.run_once(most).await?.into_iter().filter_map(Failed::letter) {
            lines.push(to_line(&letter)?);
            *partitions.entry(letter.topic_partition).or_default() += 1;
        }
        for (topic_partition, count) in partitions {
            self.progress().of(&topic_partition, LetterWork::Export, count, count);
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
            let put =
                self.admin.backend.dead_letters()?.put(topic_partition, &self.group, &letters, again).await?;
            let done = put.iter().flatten().count();
            self.progress().of(topic_partition, LetterWork::Import, done, put.len());
            imported.put += done as u64;
            imported.passed_over += (put.len() - done) as u64;
        }
        Ok(imported)
    }

    /// Returns what an [`import`](Self::import) would do now: letters that still exist would be passed over. Those that were put back
    /// in the last 7 days are not known here.
    ///
    /// # Errors
    /// Those of [`import`](Self::import).
    pub async fn import_preview(&self, letters: &[DeadLetter]) -> Result<Imported> {
        self.check(letters)?;
        let mut partitions: BTreeMap<Partition, Vec<MessageId>> = BTreeMap::new();
        for letter in letters {
            partitions.entry(letter.topic_partition.partition).or_default().push(letter.id);
        }
        let mut passed_over = 0;
        for (partition, ids) in partitions {
            let there =
                ShelfFilter { partitions: Some(vec![partition]), ids: Some(ids), ..Default::default() };
            passed_over += self.first(&there, usize::MAX).await?.len() as u64;
        }
        Ok(Imported { put: letters.len() as u64 - passed_over, passed_over })
    }

    /// Checks that letters can be [put back](Self::import) here, regardless of what exists already.
    fn check(&self, letters: &[DeadLetter]) -> Result<()> {
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
}
