//! Tasks that were given up: looking at them, and giving them another try.

use std::fmt;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::tasks::DeadTask;
use millstream_core::{MessageId, Shard};

use crate::queue::Inner;

/// How many dead tasks are read or moved per request.
const PAGE: usize = 100;

/// The dead tasks of a queue, over all shards.
pub struct DeadTasks<T: 'static> {
    queue: Arc<Inner<T>>,
}

impl<T: 'static> DeadTasks<T> {
    pub(crate) fn new(queue: Arc<Inner<T>>) -> Self {
        Self { queue }
    }

    /// The first `limit` of them, shard by shard, oldest first within each.
    ///
    /// # Errors
    /// Those of [`Tasks::dead_tasks`](millstream_core::Tasks::dead_tasks).
    pub async fn list(&self, limit: usize) -> Result<Vec<DeadTask>> {
        let mut found = Vec::new();
        for shard in self.queue.spec.iter() {
            let mut after = MessageId::ZERO;
            while found.len() < limit {
                let page = PAGE.min(limit - found.len());
                let tasks = self.queue.backend.tasks.dead_tasks(&shard, after, page).await?;
                let Some(last) = tasks.last() else { break };
                after = last.id;
                found.extend(tasks);
            }
        }
        Ok(found)
    }

    /// How many there are.
    ///
    /// # Errors
    /// Those of [`Tasks::counts`](millstream_core::Tasks::counts).
    pub async fn count(&self) -> Result<u64> {
        let mut dead = 0;
        for shard in self.queue.spec.iter() {
            dead += self.queue.backend.tasks.counts(&shard).await?.dead;
        }
        Ok(dead)
    }

    /// The payload of one.
    ///
    /// # Errors
    /// [`ErrorKind::Decode`] if it is not one, which may be why it is here.
    pub fn payload(&self, task: &DeadTask) -> Result<T> {
        let envelope = task.envelope(&self.queue.limits).map_err(|why| {
            Error::new(ErrorKind::Decode, format!("dead task {} is no message: {why}", task.task))
        })?;
        self.queue.decode(&envelope.payload)
    }

    /// Schedules dead tasks anew, due at once, as first attempts, under the ids that they had. Gives back how many: one
    /// that is not there any more, or whose id waits or is worked on by now, is passed over.
    ///
    /// # Errors
    /// Those of [`Tasks::replay_tasks`](millstream_core::Tasks::replay_tasks); what was moved stays moved.
    pub async fn replay<'a>(&self, tasks: impl IntoIterator<Item = &'a DeadTask>) -> Result<u64> {
        self.each_shard(tasks, DeadLetterAction::Replay).await
    }

    /// Schedules all of them anew that are there now. Gives back how many. What dies again meanwhile is left.
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub async fn replay_all(&self) -> Result<u64> {
        self.each_page(DeadLetterAction::Replay).await
    }

    /// Deletes dead tasks for good. Gives back how many.
    ///
    /// # Errors
    /// Those of [`Tasks::purge_tasks`](millstream_core::Tasks::purge_tasks); what was deleted stays deleted.
    pub async fn purge<'a>(&self, tasks: impl IntoIterator<Item = &'a DeadTask>) -> Result<u64> {
        self.each_shard(tasks, DeadLetterAction::Purge).await
    }

    /// Deletes all of them that are there now, for good. Gives back how many.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn purge_all(&self) -> Result<u64> {
        let mut done = 0;
        for shard in self.queue.spec.iter() {
            done += self.queue.backend.tasks.purge_all(&shard).await? as u64;
        }
        Ok(done)
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
            let dead = self.queue.backend.tasks.counts(&shard).await?.dead;
            let mut left = usize::try_from(dead).unwrap_or(usize::MAX);
            while left > 0 {
                let tasks = self.queue.backend.tasks.dead_tasks(&shard, after, PAGE.min(left)).await?;
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
        let tasks = &self.queue.backend.tasks;
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
