//! Steps of tasks, stored under their claims.

use std::sync::Arc;

use millstream_core::error::Result;
use millstream_core::log::ProgressRight;
use millstream_core::{Backend, Capability, MessageId, ScheduleId, Shard, WorkId, WorkPlace};
use millstream_engine::steps::{StepsAccess, StepsOf};

/// What makes the steps of one task.
struct TaskSteps<F> {
    backend: Arc<Backend>,
    shard: Shard,
    task: ScheduleId,
    token: F,
}

/// Returns what makes the steps of a task, with what tells the token of its claim.
pub(super) fn of_task(
    backend: &Arc<Backend>,
    shard: &Shard,
    task: &ScheduleId,
    token: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Arc<dyn StepsOf> {
    Arc::new(TaskSteps { backend: backend.clone(), shard: shard.clone(), task: task.clone(), token })
}

impl<F: Fn() -> String + Clone + Send + Sync + 'static> StepsOf for TaskSteps<F> {
    fn steps(&self, _: MessageId) -> Result<StepsAccess> {
        self.backend.require(Capability::Steps)?;
        let id = WorkId::new(WorkPlace::Shard(self.shard.clone()), &self.task);
        let (shard, task, token) = (self.shard.clone(), self.task.clone(), self.token.clone());
        let right =
            move || ProgressRight::Worker { shard: shard.clone(), task: task.clone(), token: token() };
        Ok(StepsAccess { backend: Backend::clone(&self.backend), id, right: Box::new(right) })
    }
}
