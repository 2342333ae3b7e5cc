//! A wrapper of a backend's tasks that records, by the server's clock, when each task was due and when it was
//! claimed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream::{MessageId, Result};
use millstream_core::log::Settled;
use millstream_core::tasks::{
    ClaimRequest, Claimed, DeadTask, FoundTask, QueueChange, QueueSpec, TaskCounts, Tasks, TrimTasksBy,
    TrimmedTasks, Verdict,
};
use millstream_core::{Backend, DeadLetterRetention, QueueName, ScheduleId, Shard, Timestamp};

/// The time between due and claim of each task, in milliseconds.
pub(super) type Claims = Arc<Mutex<Vec<i64>>>;

struct Recorder {
    tasks: Arc<dyn Tasks>,
    claims: Claims,
}

/// Returns the same backend with a recorder of its claims.
pub(super) fn witnessed(backend: &Backend) -> (Backend, Claims) {
    let claims = Claims::default();
    let tasks = Arc::new(Recorder { tasks: backend.tasks().expect("tasks").clone(), claims: claims.clone() });
    (backend.clone().with_tasks(tasks), claims)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Tasks for Recorder {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        self.tasks.create_queue(spec).await
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        self.tasks.queue(name).await
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        self.tasks.queues().await
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed> {
        let claimed = self.tasks.claim(shard, ask).await?;
        let now = claimed.now.as_millis().cast_signed();
        let late = |due: Timestamp| now - due.as_millis().cast_signed();
        let late = claimed.tasks.iter().map(|task| late(task.due));
        self.claims.lock().expect("lock").extend(late);
        Ok(claimed)
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        self.tasks.settle_tasks(shard, batch).await
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<millstream_core::tasks::Extended> {
        self.tasks.extend(shard, claims, hold, begun).await
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        self.tasks.find(shard, id).await
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        self.tasks.wait(shard, timeout).await
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        self.tasks.counts(shard).await
    }

    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        self.tasks.set_paused(shard, paused).await
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        self.tasks.dead_tasks(shard, after, limit).await
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.tasks.replay_tasks(shard, ids).await
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.tasks.purge_tasks(shard, ids).await
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        self.tasks.purge_all(shard).await
    }

    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        self.tasks.alter_queue(name, change).await
    }

    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        self.tasks.delete_queue(name).await
    }

    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        self.tasks.trim_dead(shard, retention, by).await
    }
}
