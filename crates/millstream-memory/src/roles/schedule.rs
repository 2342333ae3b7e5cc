//! The schedule role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::batches::{Demand, MemberEnd};
use millstream_core::schedule::{
    Due, MAX_PAGE, MAX_PROMOTE, OnConflict, Place, Placed, Promoted, RetryAction, Schedule, ScheduleId,
    Scheduled, Scheduling, Seen, Waiting,
};
use millstream_core::wire;
use millstream_core::{
    DeadLetter, Error, ErrorKind, GroupName, Lease, MessageId, Reason, Result, Timestamp, TopicPartition,
};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;
use crate::roles::audit::orphan;
use crate::state::{Item as Parked, Partition};
use crate::timetable::{Item, Timetable};

#[async_trait]
impl Schedule for MemoryBackend {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        breathe().await;
        let mut results = Vec::with_capacity(batch.len());
        let mut state = self.lock();
        let now = self.now();
        // Messages of the same place are grouped, so that those that wait for it are notified once.
        for run in batch.chunk_by(|a, b| a.place == b.place) {
            let first = results.len();
            state.change(&run[0].place, |timetable| {
                results.extend(run.iter().map(|scheduling| place(timetable, scheduling, now)));
            });
            let is_new = |placed: &Result<Placed>| matches!(placed, Ok(Placed::New | Placed::Replaced));
            let placed = run.iter().zip(&results[first..]).filter(|(_, placed)| is_new(placed));
            state.forget_steps(&run[0].place, placed.map(|(scheduling, _)| &scheduling.id));
        }
        results
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        breathe().await;
        let mut members = Vec::new();
        let cancel = |timetable: &mut Timetable| {
            let take = |id| {
                let item = timetable.take(id)?;
                members.extend(Demand::in_fields(&item.fields.unwrap_or_default()).and_then(|it| it.member));
                Some(())
            };
            ids.iter().map(take).map(|taken| taken.is_some()).collect::<Vec<_>>()
        };
        let mut state = self.lock();
        let cancelled = state.change(place, cancel);
        let now = self.now();
        let notes = &mut state.results(place).notes;
        members.iter().for_each(|member| notes.add(member, MemberEnd::Dead, None, now));
        let gone = ids.iter().zip(&cancelled).filter(|(_, cancelled)| **cancelled);
        state.forget_steps(place, gone.map(|(id, _)| id));
        Ok(cancelled)
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        breathe().await;
        let mut state = self.lock();
        let due = self.now().due(due);
        let reschedule =
            |timetable: &mut Timetable| ids.iter().map(|id| timetable.reschedule(id, due)).collect();
        Ok(state.change(place, reschedule))
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        Ok(self.lock().peek_timetable(place).and_then(|timetable| timetable.get(id)))
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        let state = self.lock();
        let timetable = state.peek_timetable(place);
        Ok(timetable.map(|timetable| timetable.page(after, limit.min(MAX_PAGE))).unwrap_or_default())
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.now().timestamp())
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        let state = self.lock();
        let now = self.now().timestamp();
        Ok(state.peek_timetable(place).map(|timetable| timetable.waiting(now)).unwrap_or_default())
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let (topic_partition, _) = lease.partition()?;
        let (partition, name) = state.owned(lease)?;
        let mut promoted = promote_delayed(partition, now, limit);
        for _ in 0..limit.min(MAX_PROMOTE) {
            let Some((origin, item)) = partition.group(name).parked.take_due(now.timestamp()) else { break };
            // A body that is gone may still be in the log.
            let item = item.or_else(|| partition.log.get(origin).cloned().map(Parked::of_log));
            let group = partition.group(name);
            if let Some(item) = item {
                let fields = wire::redelivery(item.attempt, origin, &item.error, &item.history, &item.body);
                group.retry.append(now.timestamp(), fields);
                promoted.moved += 1;
            } else {
                let letter = orphan(topic_partition, name, origin);
                group.dead.append(now.timestamp(), wire::dead_letter(&letter, &[]));
                promoted.orphans += 1;
            }
        }
        let retry = partition.group(name).parked.head().map(|due| now.until(due));
        promoted.next = promoted.next.into_iter().chain(retry).min();
        if promoted.moved > 0 {
            partition.wake.notify_waiters();
        }
        Ok(promoted)
    }

    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        breathe().await;
        let mut state = self.lock();
        let time = self.now();
        let now = time.timestamp();
        let partition = state.partition(topic_partition);
        let of_group = partition.group(group);
        let (mut settled, mut members) = (Vec::with_capacity(origins.len()), Vec::new());
        for origin in origins {
            settled.push(match action {
                RetryAction::Release => of_group.parked.release(*origin, now),
                RetryAction::Kill => match of_group.parked.take(*origin) {
                    Some(item) => {
                        let mut letter = killed(topic_partition, group, *origin, item);
                        let demand = Demand::in_fields(&letter.body);
                        members.extend(demand.and_then(|demand| demand.in_group(group).member));
                        if letter.reason == Reason::Killed {
                            of_group.steps.bury(&origin.to_string(), &mut letter.body);
                        }
                        of_group.dead.append(now, wire::dead_letter(&letter, &letter.body));
                        true
                    }
                    None => false,
                },
            });
        }
        let notes = &mut partition.results.notes;
        members.iter().for_each(|member| notes.add(member, MemberEnd::Dead, None, time));
        if action == RetryAction::Release && settled.contains(&true) {
            // Owners promote retries when they see a new head.
            partition.heads += 1;
            partition.wake.notify_waiters();
        }
        Ok(settled)
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let partition = state.partition(topic_partition);
        let promoted = promote_delayed(partition, now, limit);
        if promoted.moved > 0 {
            partition.wake.notify_waiters();
        }
        Ok(promoted)
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        breathe().await;
        let wake = self.lock().partition(topic_partition).wake.clone();
        let timeout = tokio::time::sleep(timeout);
        tokio::pin!(timeout);
        loop {
            // Created before the look, so that a change right after it wakes this caller.
            let woken = wake.notified();
            let now = Seen(self.lock().partition(topic_partition).heads.to_string());
            if now != *seen {
                return Ok(now);
            }
            tokio::select! {
                biased;
                () = woken => {}
                () = &mut timeout => return Ok(now),
            }
        }
    }
}

fn place(timetable: &mut Timetable, scheduling: &Scheduling, now: Now) -> Result<Placed> {
    let Scheduling { id, due, fields, on_conflict, .. } = scheduling;
    // Redis could not append it either.
    if fields.is_empty() {
        return Err(Error::new(ErrorKind::Encode, format!("{id} needs at least one field")));
    }
    if timetable.is_finished(id, now.timestamp()) && !timetable.claimed.contains_key(id) {
        return match on_conflict {
            OnConflict::Reject => Err(Error::new(ErrorKind::Exists, format!("{id} was completed"))),
            _ => Ok(Placed::Done),
        };
    }
    timetable.place(id, Item::new(now.due(*due), Some(fields.clone())), *on_conflict)
}

/// Returns the dead letter of a retry that is given up.
fn killed(
    topic_partition: &TopicPartition,
    group: &GroupName,
    origin: MessageId,
    item: Option<Parked>,
) -> DeadLetter {
    let letter = orphan(topic_partition, group, origin);
    match item {
        // The number in the item is that of the next attempt.
        Some(Parked { attempt, error, history, body }) => DeadLetter {
            reason: Reason::Killed,
            attempts: attempt.saturating_sub(1),
            error,
            history,
            body,
            ..letter
        },
        None => letter,
    }
}

/// Moves due messages to the log. The caller must wake those that wait for the partition.
fn promote_delayed(partition: &mut Partition, now: Now, limit: usize) -> Promoted {
    let mut promoted = Promoted::default();
    for _ in 0..limit.min(MAX_PROMOTE) {
        let Some((_, item)) = partition.timetable.take_due(now.timestamp()) else { break };
        match item.fields {
            Some(fields) => {
                partition.log.append(now.timestamp(), fields);
                promoted.moved += 1;
            }
            None => promoted.orphans += 1,
        }
    }
    promoted.next = partition.timetable.head().map(|due| now.until(due));
    promoted.recurring = partition.timetable.recurs_now(now.timestamp());
    promoted
}
