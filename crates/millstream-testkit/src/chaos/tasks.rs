//! Chaos for delay queues.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::Settled;
use millstream_core::recurring::{DueRecurrences, Recurrence, Recurring};
use millstream_core::schedule::{OnConflict, Place, Placed, ScheduleId, Shard};
use millstream_core::tasks::{
    ClaimRequest, Claimed, DeadTask, Extended, FoundTask, QueueChange, QueueSpec, TaskCounts, Tasks,
    TrimTasksBy, TrimmedTasks, Verdict,
};
use millstream_core::{DeadLetterRetention, MessageId, QueueName, Result, Timestamp};

use super::Client;
use super::faults::Role;
use super::reading::wait;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Tasks for Client {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        call!(self, Tasks, tasks?.create_queue(spec;))
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        call!(self, Tasks, tasks?.queue(name;))
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        call!(self, Tasks, tasks?.queues(;))
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed> {
        call!(self, Tasks, tasks?.claim(shard, ask;))
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        call!(self, Tasks, tasks?.settle_tasks(shard, batch;))
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        call!(self, Tasks, tasks?.extend(shard, claims; hold, begun))
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        call!(self, Tasks, tasks?.find(shard, id;))
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        wait(self, Role::Tasks, self.0.backend.tasks()?.wait(shard, timeout)).await
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        call!(self, Tasks, tasks?.counts(shard;))
    }

    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        call!(self, Tasks, tasks?.set_paused(shard; paused))
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        call!(self, Tasks, tasks?.dead_tasks(shard; after, limit))
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        call!(self, Tasks, tasks?.replay_tasks(shard, ids;))
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        call!(self, Tasks, tasks?.purge_tasks(shard, ids;))
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        call!(self, Tasks, tasks?.purge_all(shard;))
    }

    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        call!(self, Tasks, tasks?.alter_queue(name, change;))
    }

    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        call!(self, Tasks, tasks?.delete_queue(name;))
    }

    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        call!(self, Tasks, tasks?.trim_dead(shard; retention, by))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Recurring for Client {
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        call!(self, Recurring, recurring?.put(place, recurrence; on_conflict))
    }

    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        call!(self, Recurring, recurring?.remove(place, id;))
    }

    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool> {
        call!(self, Recurring, recurring?.pause(place, id; next))
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        call!(self, Recurring, recurring?.get(place, id;))
    }

    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>> {
        call!(self, Recurring, recurring?.recurrences(place; after, limit))
    }

    async fn due(&self, place: &Place) -> Result<DueRecurrences> {
        call!(self, Recurring, recurring?.due(place;))
    }

    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>> {
        call!(self, Recurring, recurring?.fire(place, id, fires; expected, next))
    }
}
