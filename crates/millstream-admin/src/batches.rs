//! Batches: what they count, which members are missing, and their end by an operator.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::batches::{
    BATCHES, BatchId, BatchParent, BatchState, Demand, EndedMember, MemberEnd, MemberState, QUEUES,
};
use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::schedule::RetryAction;
use millstream_core::wire::Field;
use millstream_core::{
    ErrorKind, GroupName, MessageId, Partition, Place, QueueName, Result, ScheduleId, Shard, Timestamp,
    TopicName, TopicPartition, TopicSpec,
};

use crate::Admin;
use crate::shelf::ShelfFilter;

/// Numbers of members, from the first to the last of each.
pub type NumberRanges = Vec<(u32, u32)>;

/// Numbers that are read at once.
const PAGE: usize = 10_000;

/// Batches that are listed of one partition at most.
const LISTED: usize = 10_000;

/// Waiting members that are looked at at once.
const PORTION: usize = 200;

/// Places that are asked at the same time.
const AT_ONCE: usize = 32;

/// What came of the cancel of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCancelled {
    /// Members that waited for their time, as delayed messages or tasks, and were removed.
    pub removed: u64,
    /// Topics and delay queues of members that do not exist any more.
    pub gone: Vec<String>,
    /// The state afterwards. Of members that are missing in it some may run; others were not read yet, and will not begin.
    pub state: BatchState,
}

/// Members of a batch that have one state, as a list of ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberRanges {
    /// The ranges, in their order.
    pub ranges: NumberRanges,
    /// The number from which on there are more; `None` if these are all.
    pub next: Option<u32>,
}

impl Admin {
    /// Returns the batches that send their messages to a topic, by partition, those that expire first in front. At most 10,000 of each partition.
    ///
    /// # Errors
    /// `NotFound` for a topic that does not exist; `Unsupported` for a backend without batches; transient ones.
    pub async fn batches(&self, topic: &TopicName) -> Result<Vec<(BatchId, BatchState)>> {
        let (role, spec) = (self.backend.batches()?, self.backend.catalog().topic(topic).await?);
        let mut found = Vec::new();
        for partition in 0..spec.partitions {
            for id in role.list(&TopicPartition::new(topic.clone(), partition), LISTED).await? {
                // One that has expired since is left out.
                if let Some(state) = role.state(&id).await? {
                    found.push((id, state));
                }
            }
        }
        Ok(found)
    }

    /// Returns the state of a batch.
    ///
    /// # Errors
    /// `NotFound` if it does not exist (any longer); `Unsupported` for a backend without batches; transient ones.
    pub async fn batch(&self, id: &BatchId) -> Result<BatchState> {
        let state = self.backend.batches()?.state(id).await?;
        state.ok_or_else(|| BatchState::is_gone(id))
    }

    /// Returns which members of a batch have this state, from a number on: at most `limit` ranges.
    ///
    /// # Errors
    /// `Unsupported` for a backend without batches; transient ones.
    pub async fn batch_members(
        &self,
        id: &BatchId,
        state: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<MemberRanges> {
        let role = self.backend.batches()?;
        let (mut ranges, mut at) = (NumberRanges::new(), Some(from));
        while let Some(from) = at {
            let (numbers, next) = role.numbers(id, state, from, PAGE).await?;
            for number in numbers {
                let is_full = ranges.len() == limit;
                match ranges.last_mut() {
                    Some((_, last)) if *last + 1 == number => *last = number,
                    _ if is_full => return Ok(MemberRanges { ranges, next: Some(number) }),
                    _ => ranges.push((number, number)),
                }
            }
            at = next;
        }
        Ok(MemberRanges { ranges, next: None })
    }

    /// Seals a batch for whoever has created it, and did not come to that. What its producers have not confirmed is left out; it succeeds only when that is
    /// done too.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub async fn seal_batch(&self, id: &BatchId) -> Result<BatchState> {
        self.backend.batches()?.close(id, false).await
    }

    /// Counts all members of a batch that have not ended as dead, so that it ends: those that a lossy retention dropped, that an operator deleted, or
    /// that a fail-over lost. [Seals](Self::seal_batch) it before, if it is open. A member that is handled all the same is done then.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub async fn close_batch(&self, id: &BatchId) -> Result<BatchState> {
        self.backend.batches()?.close(id, true).await
    }

    /// Cancels all members of a batch that have not ended, and those of batches in it: none of them begins, in whatever group, and handlers that run
    /// are asked to stop. A batch that is open is [sealed](Self::seal_batch). What waits for its time is removed, and retries come up at once. Members that were cancelled
    /// are dead; the batch sends its messages when all have ended. Until then [`missing`](BatchState::missing) counts handlers that were asked and have not ended, and
    /// messages that nobody has read yet, which will not begin.
    ///
    /// It reads all that waits for its time in the topics and delay queues of the members, so it may take long. It can be repeated.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch); `Unsupported` for a backend that cancels nothing.
    pub async fn cancel_batch(&self, id: &BatchId) -> Result<BatchCancelled> {
        self.backend.cancels()?;
        let mut cancelled = BatchCancelled::default();
        // With the batches in it, each before those in it: no member can be added to it any more.
        let mut open = vec![id.clone()];
        while let Some(next) = open.pop() {
            let state = match self.seal_batch(&next).await {
                Err(error) if error.kind() == ErrorKind::NotFound && next != *id => continue,
                sealed => sealed?,
            };
            let targets: BTreeSet<&str> = state.blocks.iter().map(|block| &*block.target).collect();
            for target in targets {
                let removed = match (target.strip_prefix(QUEUES), target.strip_prefix(BATCHES)) {
                    (Some(queue), _) => self.cancel_in_queue(&next, queue).await,
                    (_, Some(topic)) => self.batches_in(&next, topic).await.map(|inner| {
                        open.extend(inner);
                        0
                    }),
                    _ => self.cancel_in_topic(&next, target).await,
                };
                match removed {
                    Ok(removed) => cancelled.removed += removed,
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        cancelled.gone.push(target.to_owned());
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        cancelled.state = self.batch(id).await?;
        Ok(cancelled)
    }

    /// Returns the batches that are members of one, of those that send their messages to a topic.
    async fn batches_in(&self, id: &BatchId, topic: &str) -> Result<Vec<BatchId>> {
        let all = self.batches(&TopicName::new(topic)?).await?;
        let is_inner =
            |parent: &BatchParent| matches!(parent, BatchParent::Batch(member) if member.batch == *id);
        let inner = all.into_iter().filter(|(_, it)| it.parent.as_ref().is_some_and(is_inner));
        Ok(inner.map(|(id, _)| id).collect())
    }

    async fn cancel_in_topic(&self, id: &BatchId, topic: &str) -> Result<u64> {
        let (catalog, topic) = (self.backend.catalog(), TopicName::new(topic)?);
        let (spec, groups) = (catalog.topic(&topic).await?, catalog.groups(&topic).await?);
        let places = spec
            .iter()
            .flat_map(|tp| groups.iter().map(move |group| WorkPlace::Group(tp.clone(), group.clone())));
        // The marks first: what comes back meanwhile does not begin.
        self.mark_batch(id, places.collect()).await?;
        let mut removed = 0;
        for tp in spec.iter() {
            removed += self.cancel_delayed(id, &Place::from(tp)).await?;
        }
        for group in &groups {
            self.release_retries(id, &spec, group).await?;
        }
        Ok(removed)
    }

    async fn mark_batch(&self, id: &BatchId, places: Vec<WorkPlace>) -> Result<()> {
        let role = self.backend.cancels()?;
        let marks = stream::iter(places).map(|place| async move { role.cancel_batch(&place, id).await });
        marks.buffered(AT_ONCE).try_collect().await
    }

    /// Removes delayed messages, and says that they have ended. Each leaves its note too, so nothing is lost in between.
    async fn cancel_delayed(&self, id: &BatchId, place: &Place) -> Result<u64> {
        let (mut removed, mut after) = (0, None);
        loop {
            let (members, last) = self.members_at(id, place, after).await?;
            let ids: Vec<_> = members.iter().map(|(delayed, _)| delayed.clone()).collect();
            if !ids.is_empty() {
                let taken = self.backend.schedule().cancel(place, &ids).await?;
                let taken = members.into_iter().zip(taken).filter(|(_, taken)| *taken);
                let numbers = taken.filter_map(|((_, demand), _)| Some(demand.member?.number));
                removed += self.end_removed(id, numbers.collect()).await?;
            }
            if last.is_none() {
                return Ok(removed);
            }
            after = last;
        }
    }

    /// Says of members that were removed that they have ended, and returns how many they are. Their notes come later and change nothing.
    async fn end_removed(&self, id: &BatchId, numbers: Vec<u32>) -> Result<u64> {
        let ends: Vec<_> =
            numbers.into_iter().map(|number| EndedMember::new(number, MemberEnd::Dead)).collect();
        if !ends.is_empty() {
            self.backend.batches()?.end_members(id, &ends).await?;
        }
        Ok(ends.len() as u64)
    }

    /// Has retries come up at once: whoever reads them knows of the mark. Each removed by itself would need one of its own.
    async fn release_retries(&self, id: &BatchId, spec: &TopicSpec, group: &GroupName) -> Result<()> {
        let shelf = self.retries(&spec.name, group).await?;
        let mut walk = shelf.walk(&ShelfFilter::default(), None).await?;
        while !walk.is_done() {
            let mut found: BTreeMap<Partition, Vec<MessageId>> = BTreeMap::new();
            for failed in walk.run_once(PORTION).await? {
                let facts = failed.facts();
                if member_of(id, facts.body).is_some() {
                    found.entry(facts.partition).or_default().push(facts.id);
                }
            }
            for (partition, origins) in found {
                let tp = TopicPartition { topic: spec.name.clone(), partition };
                self.backend.schedule().settle_retries(&tp, group, &origins, RetryAction::Release).await?;
            }
        }
        Ok(())
    }

    async fn cancel_in_queue(&self, id: &BatchId, queue: &str) -> Result<u64> {
        let (role, spec) =
            (self.backend.cancels()?, self.backend.tasks()?.queue(&QueueName::new(queue)?).await?);
        self.mark_batch(id, spec.iter().map(WorkPlace::Shard).collect()).await?;
        let mut removed = 0;
        for shard in spec.iter() {
            let (place, mut after) = (Place::from(shard.clone()), None);
            loop {
                let (members, last) = self.members_at(id, &place, after).await?;
                let mut numbers = Vec::new();
                for (task, demand) in members {
                    let number = demand.member.as_ref().map(|member| member.number);
                    if cancel_task(&**role, &shard, &task, demand).await? {
                        numbers.extend(number);
                    }
                }
                removed += self.end_removed(id, numbers).await?;
                if last.is_none() {
                    break;
                }
                after = last;
            }
        }
        Ok(removed)
    }

    /// Returns a portion of what waits at a place and is a member of the batch, and behind which to go on, if there is more.
    async fn members_at(&self, id: &BatchId, place: &Place, after: Behind) -> Result<(Vec<Waits>, Behind)> {
        let page = self.backend.schedule().scheduled(place, after, PORTION).await?;
        let last = page.last().map(|last| (last.due, last.id.clone()));
        let members = page.into_iter().filter_map(|it| Some((it.id, member_of(id, &it.fields)?)));
        Ok((members.collect(), last))
    }
}

/// Due time and id of the last that was looked at.
type Behind = Option<(Timestamp, ScheduleId)>;

/// What waits under an id, and what it demands at its end.
type Waits = (ScheduleId, Demand);

/// Removes a task that waits. Returns false if a worker has it, or it is gone.
async fn cancel_task(
    role: &dyn millstream_core::Cancels,
    shard: &Shard,
    task: &ScheduleId,
    demand: Demand,
) -> Result<bool> {
    let number = demand.result.map(|asks| asks.number);
    let result = Some(StoredResult { demand, result: MessageResult::cancelled(0) });
    let request = CancelRequest { number, removes: true, result };
    let mark = role.cancel(&WorkPlace::Shard(shard.clone()), task.as_str(), &request).await?;
    Ok(mark.is_some_and(CancelMark::is_answered))
}

fn member_of(id: &BatchId, fields: &[Field]) -> Option<Demand> {
    Demand::in_fields(fields)
        .filter(|demand| demand.member.as_ref().is_some_and(|member| member.batch == *id))
}
