//! Dead tasks: listing, replaying and deleting them.

use std::fmt;
use std::sync::Arc;

use millstream_core::MessageId;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::tasks::DeadTask;

use crate::inner::Inner;

/// Number of dead tasks that are read or moved per request.
const PAGE: usize = 100;

/// Dead tasks of a queue, over all shards. An operator selects, counts, edits and trims them with `Admin::dead_tasks` of `millstream-admin`.
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
        self.each_shard(tasks, true).await
    }

    /// Schedules all present dead tasks again. Returns their number. Tasks that die again meanwhile are left.
    ///
    /// # Errors
    /// Same as [`replay`](Self::replay).
    pub async fn replay_all(&self) -> Result<u64> {
        let mut done = 0;
        for shard in self.queue.spec.iter() {
            let role = self.queue.backend.tasks()?;
            // Bounded by the count at the start: tasks that die meanwhile must not be replayed again.
            let (mut after, mut left) = (MessageId::ZERO, role.counts(&shard).await?.dead as usize);
            while left > 0 {
                let tasks = role.dead_tasks(&shard, after, PAGE.min(left)).await?;
                let Some(last) = tasks.last() else { break };
                (after, left) = (last.id, left - tasks.len().min(left));
                let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
                done += role.replay_tasks(&shard, &ids).await? as u64;
            }
        }
        Ok(done)
    }

    /// Deletes dead tasks permanently. Returns their number.
    ///
    /// # Errors
    /// Those of [`Tasks::purge_tasks`](millstream_core::Tasks::purge_tasks); tasks that were deleted before the error
    /// stay deleted.
    pub async fn purge<'a>(&self, tasks: impl IntoIterator<Item = &'a DeadTask>) -> Result<u64> {
        self.each_shard(tasks, false).await
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

    async fn each_shard<'a>(
        &self,
        tasks: impl IntoIterator<Item = &'a DeadTask>,
        replay: bool,
    ) -> Result<u64> {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let (role, mut done) = (self.queue.backend.tasks()?, 0);
        for shard in self.queue.spec.iter() {
            let ids: Vec<_> = tasks.iter().filter(|task| task.shard == shard).map(|task| task.id).collect();
            for ids in ids.chunks(PAGE) {
                let act = if replay { role.replay_tasks(&shard, ids) } else { role.purge_tasks(&shard, ids) };
                done += act.await? as u64;
            }
        }
        Ok(done)
    }
}

impl<T> fmt::Debug for DeadTasks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadTasks").field("queue", &self.queue.spec.name).finish_non_exhaustive()
    }
}
