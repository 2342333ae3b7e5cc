//! The tasks role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::dead_letters::DeadLetterRetention;
use millstream_core::log::Settled;
use millstream_core::schedule::{ScheduleId, Shard};
use millstream_core::tasks::{
    ClaimRequest, Claimed, DeadTask, Extended, FoundTask, QueueChange, QueueSpec, TaskCounts, Tasks,
    TrimTasksBy, TrimmedTasks, Verdict,
};
use millstream_core::{Error, ErrorKind, MessageId, QueueName, Result};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::shard::Dead;

/// Maximum number of dead tasks on a page.
const MAX_PAGE: usize = 1_000;

#[async_trait]
impl Tasks for MemoryBackend {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        spec.check()?;
        let mut state = self.lock();
        if !state.queues.contains_key(&spec.name) {
            spec.name.check_new()?;
        }
        Ok(state.queues.get_or_insert_with(spec.name.clone(), || spec.clone()).clone())
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        self.lock().queues.get(name).cloned().ok_or_else(|| unknown(name))
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        Ok(self.lock().queues.keys().cloned().collect())
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let server = state.server();
        let (shard, tokens) = state.shard_and_tokens(shard);
        Ok(shard.claim(ask, now, &server, tokens))
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let applied = state.shard(shard).settle(batch, now);
        Ok(Settled { applied, stale: batch.len() - applied })
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let server = state.server();
        let shard = state.shard(shard);
        let mut extended = Extended::default();
        extended.ours = claims.iter().map(|(id, token)| shard.extend(id, token, hold, begun, now)).collect();
        (extended.server, extended.now) = (server, now.timestamp());
        Ok(extended)
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        breathe().await;
        let now = self.now().timestamp();
        Ok(self.lock().shard(shard).timetable.find(id, now))
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        breathe().await;
        let calls = self.lock().shard(shard).calls.clone();
        tokio::select! {
            biased;
            () = calls.notified() => Ok(true),
            () = tokio::time::sleep(timeout) => Ok(false),
        }
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        let state = self.lock();
        let now = self.now();
        Ok(state.peek_shard(shard).map(|shard| shard.counts(now)).unwrap_or_default())
    }

    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        let mut state = self.lock();
        let now = self.now();
        Ok(state.shard(shard).set_paused(paused, now))
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        let state = self.lock();
        let Some(of_shard) = state.peek_shard(shard) else { return Ok(Vec::new()) };
        let read = |(id, dead): (&MessageId, &Dead)| {
            let Dead { task, reason, attempts, error, history, body } = dead.clone();
            let (shard, body) = (shard.clone(), body.unwrap_or_default());
            DeadTask { id: *id, shard, task, reason, attempts, error, history, body }
        };
        Ok(of_shard.dead_above(after).take(limit.min(MAX_PAGE)).map(read).collect())
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        Ok(state.shard(shard).replay(ids, now))
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        let mut state = self.lock();
        let shard = state.shard(shard);
        Ok(ids.iter().filter(|id| shard.dead.remove(id).is_some()).count())
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        Ok(std::mem::take(&mut self.lock().shard(shard).dead).len())
    }

    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        let mut state = self.lock();
        let stored = state.queues.get_mut(name).ok_or_else(|| unknown(name))?;
        *stored = change.of(stored.clone())?;
        Ok(stored.clone())
    }

    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        Ok(self.lock().delete_queue(name))
    }

    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        let mut state = self.lock();
        let now = self.now().timestamp();
        if let TrimTasksBy::Worker { until } = by
            && now > until
        {
            return Err(Error::new(ErrorKind::Fenced, format!("the retention is known only until {until}")));
        }
        let dead = &mut state.shard(shard).dead;
        let (mut trimmed, length) = (TrimmedTasks::default(), dead.len());
        for (nth, id) in dead.keys().enumerate() {
            let newer = u64::try_from(length - nth - 1).unwrap_or(u64::MAX);
            // They are in order: behind the first one that stays nothing is overdue.
            let Some(overdue) = retention.overdue(now.saturating_duration_since(id.timestamp()), newer)
            else {
                break;
            };
            trimmed.count(overdue);
        }
        if by != TrimTasksBy::DryRun {
            for _ in 0..trimmed.dropped() {
                dead.pop_first();
            }
        }
        Ok(trimmed)
    }
}

fn unknown(name: &QueueName) -> Error {
    Error::new(ErrorKind::NotFound, format!("queue {name} does not exist"))
}
