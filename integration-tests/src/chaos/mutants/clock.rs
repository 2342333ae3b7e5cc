//! Due times by the clock of the client.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use millstream_core::continuity::Continuity;
use millstream_core::log::{Receipt, Settled, Settlement};
use millstream_core::schedule::{Placed, Promoted, RetryAction, Scheduled, Scheduling, Seen, Waiting};
use millstream_core::shared::Claimed;
use millstream_core::tasks::{self, ClaimRequest, DeadTask, Extended, FoundTask, TaskCounts, Verdict};
use millstream_core::{
    Due, GroupName, Lease, MemberId, MessageId, Partition, Place, QueueName, QueueSpec, Result, Schedule,
    ScheduleId, Shard, Shared, SharedMember, SharedReader, Tasks, Timestamp, TopicPartition,
};

/// Turns a delay into a time, as this machine has it.
fn at(due: Due) -> Due {
    match due {
        Due::In(delay) => Due::At(Timestamp::from(SystemTime::now()).saturating_add(delay)),
        at => at,
    }
}

/// Returns settlements whose due times are those of this machine's clock.
pub(super) fn settlements(batch: &[(Receipt, Settlement)]) -> Vec<(Receipt, Settlement)> {
    let mut batch = batch.to_vec();
    for (_, settlement) in &mut batch {
        match settlement {
            Settlement::Retry { due, .. } => *due = at(*due),
            // A note that concerns no attempt has no due time.
            Settlement::Hold(note) if note.due != Due::NOW => note.due = at(note.due),
            _ => {}
        }
    }
    batch
}

/// A role whose due times are those of this machine's clock.
pub(super) struct Clocked<R: ?Sized>(pub(super) Arc<R>);

#[async_trait]
impl Schedule for Clocked<dyn Schedule> {
    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        self.0.settle_retries(topic_partition, group, origins, action).await
    }

    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        let of = |it: &Scheduling| Scheduling { due: at(it.due), ..it.clone() };
        self.0.schedule(&batch.iter().map(of).collect::<Vec<_>>()).await
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.0.cancel(place, ids).await
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        self.0.reschedule(place, ids, at(due)).await
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        self.0.get(place, id).await
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        self.0.scheduled(place, after, limit).await
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        self.0.waiting(place).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        self.0.promote(lease, limit).await
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        self.0.promote_delayed(topic_partition, limit).await
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        self.0.wait(topic_partition, seen, timeout).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.0.now().await
    }

    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        self.0.now_at(place).await
    }
}

#[async_trait]
impl Shared for Clocked<dyn Shared> {
    fn portions(&self, partitions: &[Partition]) -> Vec<Vec<Partition>> {
        self.0.portions(partitions)
    }

    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        self.0.shared_reader(member, partitions).await
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        self.0.settle_shared(member, partition, &settlements(batch)).await
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        self.0.extend(member, partition, entries).await
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        self.0.give_back(member, partition, entries).await
    }

    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<Claimed> {
        self.0.claim(member, partition, alive, idle, max, continuity).await
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize> {
        self.0.adopt(lease, idle, max, continuity).await
    }
}

#[async_trait]
impl Tasks for Clocked<dyn Tasks> {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        self.0.create_queue(spec).await
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        self.0.queue(name).await
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        self.0.queues().await
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<tasks::Claimed> {
        self.0.claim(shard, ask).await
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        let mut batch = batch.to_vec();
        for (.., verdict) in &mut batch {
            if let Verdict::Retry { due, .. } = verdict {
                *due = at(*due);
            }
        }
        self.0.settle_tasks(shard, &batch).await
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        self.0.extend(shard, claims, hold, begun).await
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        self.0.find(shard, id).await
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        self.0.wait(shard, timeout).await
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        self.0.counts(shard).await
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        self.0.dead_tasks(shard, after, limit).await
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.0.replay_tasks(shard, ids).await
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.0.purge_tasks(shard, ids).await
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        self.0.purge_all(shard).await
    }
}
