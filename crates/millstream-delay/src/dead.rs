//! Dead tasks: listing, replaying, deleting and trimming them.

mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::schedule::{Placed, Scheduling};
use millstream_core::tasks::{DeadTask, TrimTasksBy, TrimmedTasks};
use millstream_core::wire::Fields;
use millstream_core::{
    Capability, DeadLetterRetention, Due, ErrorGroups, MessageId, OnConflict, ScheduleId, Shard,
};

use crate::inner::Inner;

pub use walk::{DeadTaskFilter, DeadTaskWalk};

/// Number of dead tasks that are read or moved per request.
const PAGE: usize = 100;

/// Dead tasks that a trim has dropped, or, in a dry run, would drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadTasksTrimmed {
    /// Number of tasks that were too old.
    pub aged: u64,
    /// Number of tasks that had too many newer ones in their shard.
    pub excess: u64,
    /// Number of dropped tasks by shard.
    pub shards: BTreeMap<u32, u64>,
}

impl DeadTasksTrimmed {
    /// Returns the number of dropped tasks.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.aged + self.excess
    }
}

/// Dead tasks of a queue, over all shards.
pub struct DeadTasks<T: 'static> {
    queue: Arc<Inner<T>>,
}

impl<T: 'static> DeadTasks<T> {
    pub(crate) fn new(queue: Arc<Inner<T>>) -> Self {
        Self { queue }
    }

    /// Returns the first `limit` dead tasks, shard by shard, oldest first within each.
    ///
    /// # Errors
    /// Those of [`Tasks::dead_tasks`](millstream_core::Tasks::dead_tasks).
    pub async fn list(&self, limit: usize) -> Result<Vec<DeadTask>> {
        let mut found = Vec::new();
        for shard in self.queue.spec.iter() {
            let mut after = MessageId::ZERO;
            while found.len() < limit {
                let page = PAGE.min(limit - found.len());
                let tasks = self.queue.backend.tasks()?.dead_tasks(&shard, after, page).await?;
                let Some(last) = tasks.last() else { break };
                after = last.id;
                found.extend(tasks);
            }
        }
        Ok(found)
    }

    /// Returns the number of dead tasks.
    ///
    /// # Errors
    /// Those of [`Tasks::counts`](millstream_core::Tasks::counts).
    pub async fn count(&self) -> Result<u64> {
        let mut dead = 0;
        for shard in self.queue.spec.iter() {
            dead += self.queue.backend.tasks()?.counts(&shard).await?.dead;
        }
        Ok(dead)
    }

    /// Iterates over the matching dead tasks that are present now.
    #[must_use]
    pub fn walk(&self, filter: DeadTaskFilter) -> DeadTaskWalk {
        DeadTaskWalk::new(self.queue.backend.clone(), &self.queue.spec, filter)
    }

    /// Counts the matching dead tasks by the [fingerprint](millstream_core::Fingerprint) of their last error, in at most
    /// `most` groups; the example of a group is the id of its newest task. It reads all present tasks, page by page, and
    /// calls `progress` with the number of tasks read so far after each.
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn errors(
        &self,
        filter: DeadTaskFilter,
        most: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<ErrorGroups<ScheduleId>> {
        let (mut walk, mut groups) = (self.walk(filter), ErrorGroups::new(most));
        while !walk.is_done() {
            for task in walk.run_once().await? {
                groups.add(&task.error, task.id.timestamp(), task.task);
            }
            progress(walk.looked_at());
        }
        Ok(groups)
    }

    /// Schedules a dead task again with another message, due immediately, as a first attempt, under its old id. Returns
    /// false if the id waits, is worked on, or was completed within the window of its worker: then nothing is changed.
    ///
    /// The task is scheduled before it is removed from the dead ones: after an error in between it is in both places, and
    /// a repetition returns false as long as the new one waits.
    ///
    /// # Errors
    /// [`ErrorKind::Encode`] for a message without fields; those of [`Schedule::schedule`](millstream_core::Schedule::schedule)
    /// and [`Tasks::purge_tasks`](millstream_core::Tasks::purge_tasks).
    pub async fn replay_as(&self, task: &DeadTask, message: Fields) -> Result<bool> {
        let scheduling = Scheduling {
            place: self.queue.place_of(&task.task),
            id: task.task.clone(),
            due: Due::NOW,
            fields: message,
            on_conflict: OnConflict::Keep,
        };
        let placed = self.queue.backend.schedule().schedule(&[scheduling]).await.pop();
        if placed.transpose()? != Some(Placed::New) {
            return Ok(false);
        }
        self.act(&task.shard, &[task.id], DeadLetterAction::Purge).await?;
        Ok(true)
    }

    /// Decodes the payload of a dead task.
    ///
    /// # Errors
    /// [`ErrorKind::Decode`] if it cannot be decoded, which may be the reason why the task is dead.
    pub fn payload(&self, task: &DeadTask) -> Result<T> {
        let envelope = task.envelope(&self.queue.limits).map_err(|why| {
            Error::new(ErrorKind::Decode, format!("dead task {} is no message: {why}", task.task))
        })?;
        self.queue.decode(&envelope.payload)
    }

    /// Schedules dead tasks again, due immediately, as first attempts, under their old ids. Returns their number. A
    /// task that no longer exists, or whose id waits or is worked on by now, is skipped.
    ///
    /// # Errors
    /// Those of [`Tasks::replay_tasks`](millstream_core::Tasks::replay_tasks); tasks that were moved before the error
    /// stay moved.
    pub async fn replay<'a>(&self, tasks: impl IntoIterator<Item = &'a DeadTask>) -> Result<u64> {
        self.each_shard(tasks, DeadLetterAction::Replay).await
    }

    /// Schedules all present dead tasks again. Returns their number. Tasks that die again meanwhile are left.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay).
    pub async fn replay_all(&self) -> Result<u64> {
        self.each_page(DeadLetterAction::Replay).await
    }

    /// Deletes dead tasks permanently. Returns their number.
    ///
    /// # Errors
    /// Those of [`Tasks::purge_tasks`](millstream_core::Tasks::purge_tasks); tasks that were deleted before the error
    /// stay deleted.
    pub async fn purge<'a>(&self, tasks: impl IntoIterator<Item = &'a DeadTask>) -> Result<u64> {
        self.each_shard(tasks, DeadLetterAction::Purge).await
    }

    /// Deletes all present dead tasks permanently. Returns their number.
    ///
    /// # Errors
    /// Same as [`purge`](Self::purge).
    pub async fn purge_all(&self) -> Result<u64> {
        let mut done = 0;
        for shard in self.queue.spec.iter() {
            done += self.queue.backend.tasks()?.purge_all(&shard).await? as u64;
        }
        Ok(done)
    }

    /// Drops the dead tasks that a retention does not keep: usually that of the queue, which its running workers apply by
    /// themselves. A queue without workers needs this.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_core::{DeadLetterRetention, Result};
    /// # use millstream_delay::DelayQueue;
    /// # async fn example(mails: DelayQueue<String>) -> Result<()> {
    /// let month = DeadLetterRetention::age(Duration::from_secs(30 * 86_400));
    /// println!("{} are older than a month", mails.dead().would_trim(month).await?.dropped());
    /// mails.dead().trim(month).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a backend that cannot; those of
    /// [`Tasks::trim_dead`](millstream_core::Tasks::trim_dead). Tasks that were dropped before the error stay dropped.
    pub async fn trim(&self, retention: DeadLetterRetention) -> Result<DeadTasksTrimmed> {
        self.trim_by(retention, TrimTasksBy::Operator).await
    }

    /// Counts the dead tasks that [`trim`](Self::trim) would drop at the moment.
    ///
    /// # Errors
    /// Same as [`trim`](Self::trim).
    pub async fn would_trim(&self, retention: DeadLetterRetention) -> Result<DeadTasksTrimmed> {
        self.trim_by(retention, TrimTasksBy::DryRun).await
    }

    async fn trim_by(&self, retention: DeadLetterRetention, by: TrimTasksBy) -> Result<DeadTasksTrimmed> {
        self.queue.backend.require(Capability::TrimDeadTasks)?;
        let mut all = DeadTasksTrimmed::default();
        for shard in self.queue.spec.iter() {
            let trimmed = self.queue.backend.tasks()?.trim_dead(&shard, retention, by).await?;
            let TrimmedTasks { aged, excess, .. } = trimmed;
            if trimmed.dropped() > 0 {
                if by != TrimTasksBy::DryRun {
                    self.queue.observer.observe(&Event::DeadTasksDropped { shard: &shard, aged, excess });
                }
                all.shards.insert(shard.shard, trimmed.dropped());
            }
            (all.aged, all.excess) = (all.aged + aged, all.excess + excess);
        }
        Ok(all)
    }

    async fn each_shard<'a>(
        &self,
        tasks: impl IntoIterator<Item = &'a DeadTask>,
        deed: DeadLetterAction,
    ) -> Result<u64> {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let mut done = 0;
        for shard in self.queue.spec.iter() {
            let ids: Vec<_> = tasks.iter().filter(|task| task.shard == shard).map(|task| task.id).collect();
            for ids in ids.chunks(PAGE) {
                done += self.act(&shard, ids, deed).await?;
            }
        }
        Ok(done)
    }

    async fn each_page(&self, deed: DeadLetterAction) -> Result<u64> {
        let mut done = 0;
        for shard in self.queue.spec.iter() {
            let mut after = MessageId::ZERO;
            // Bounded by the count at the start: tasks that die meanwhile must not be handled again.
            let dead = self.queue.backend.tasks()?.counts(&shard).await?.dead;
            let mut left = usize::try_from(dead).unwrap_or(usize::MAX);
            while left > 0 {
                let tasks = self.queue.backend.tasks()?.dead_tasks(&shard, after, PAGE.min(left)).await?;
                let Some(last) = tasks.last() else { break };
                after = last.id;
                left -= tasks.len().min(left);
                let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
                done += self.act(&shard, &ids, deed).await?;
            }
        }
        Ok(done)
    }

    async fn act(&self, shard: &Shard, ids: &[MessageId], deed: DeadLetterAction) -> Result<u64> {
        let tasks = self.queue.backend.tasks()?;
        Ok(match deed {
            DeadLetterAction::Replay => tasks.replay_tasks(shard, ids).await?,
            DeadLetterAction::Purge => tasks.purge_tasks(shard, ids).await?,
        } as u64)
    }
}

#[derive(Clone, Copy)]
enum DeadLetterAction {
    Replay,
    Purge,
}

impl<T> fmt::Debug for DeadTasks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadTasks").field("queue", &self.queue.spec.name).finish_non_exhaustive()
    }
}
