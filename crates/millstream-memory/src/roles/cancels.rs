//! The cancels role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, CancelRequest, Cancels, WorkPlace};
use millstream_core::leases::Resource;
use millstream_core::log::ProgressRight;
use millstream_core::results::{ResultRequest, StoredResult};
use millstream_core::tasks::TaskPlace;
use millstream_core::wire::{self, Fields};
use millstream_core::{Error, ErrorKind, Limits, MessageId, Result, ScheduleId};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::marks::Marks;
use crate::results;
use crate::state::{Group, State};

#[async_trait]
impl Cancels for MemoryBackend {
    async fn cancel(
        &self,
        place: &WorkPlace,
        id: &str,
        request: &CancelRequest,
    ) -> Result<Option<CancelMark>> {
        breathe().await;
        let CancelRequest { number, removes, result } = request;
        let now = self.now();
        let mut state = self.lock();
        let full = || place.full();
        match place {
            WorkPlace::Group(tp, name) => {
                let origin: MessageId = id.parse().map_err(|_| no_id(id))?;
                let resource = Resource::partition(tp.clone(), name.clone());
                // An owner that has lost its lease could still renew it.
                let has_owner = state.fences.get(&resource).is_some_and(|it| it.token.is_some());
                let missing =
                    || Error::new(ErrorKind::GroupMissing, format!("{place} does not exist")).at(tp);
                let partition = state.partition(tp);
                let group = partition.groups.get_mut(name).filter(|it| it.cursor.is_some());
                let group = group.ok_or_else(missing)?;
                let known = group.marks.get(id).map(|(mark, _)| mark);
                if known.is_some_and(CancelMark::is_answered) {
                    return Ok(known);
                }
                let is_read = group.cursor.as_ref().is_none_or(|cursor| origin <= cursor.delivered);
                if group.parked.contains(origin) && !removes {
                    return Ok(Some(CancelMark::Asked));
                }
                let mark = if group.parked.contains(origin) {
                    CancelMark::Cancelled
                } else if !has_owner && !group.marks.shared && !is_read {
                    CancelMark::Ahead
                } else {
                    CancelMark::Asked
                };
                let first = partition.log.first();
                if known != Some(mark) && !group.marks.add(id, mark, "", now.timestamp(), first) {
                    return Err(full());
                }
                if mark == CancelMark::Cancelled {
                    group.parked.take(origin);
                    group.steps.remove(id);
                    result.iter().for_each(|result| partition.results.put(result, now));
                }
                Ok(Some(mark))
            }
            WorkPlace::Shard(name) => {
                let task = ScheduleId::new(id)?;
                let shard = state.shard(name);
                let at = now.timestamp();
                let found = shard.timetable.find(&task, at).filter(|it| is_asked_under(&it.fields, *number));
                let crashes = shard.timetable.crashes(&task);
                match found.map(|it| it.state) {
                    Some(TaskPlace::Waiting(_)) => {
                        // It needs no mark, and one of an earlier claim is not its own.
                        shard.marks.remove(id);
                        if !removes {
                            return Ok(Some(CancelMark::Asked));
                        }
                        shard.timetable.take(&task);
                        shard.steps.remove(id);
                        result.iter().for_each(|result| shard.results.put(result, now));
                        let is_lost = crashes > 0;
                        Ok(Some(if is_lost { CancelMark::Withdrawn } else { CancelMark::Cancelled }))
                    }
                    Some(TaskPlace::Claimed(_)) => {
                        let claim = shard.timetable.claimed.get(&task).map(|it| it.token.clone());
                        let claim = claim.unwrap_or_default();
                        if let Some((known, of)) = shard.marks.get(id)
                            && of == claim
                        {
                            return Ok(Some(known));
                        }
                        let added = shard.marks.add(id, CancelMark::Asked, &claim, at, None);
                        if added { Ok(Some(CancelMark::Asked)) } else { Err(full()) }
                    }
                    _ => Ok(None),
                }
            }
        }
    }

    async fn cancel_batch(&self, place: &WorkPlace, batch: &BatchId) -> Result<()> {
        breathe().await;
        let now = self.now().timestamp();
        of_place(&mut self.lock(), place).add_batch(batch, now);
        Ok(())
    }

    async fn mark(&self, place: &WorkPlace, id: &str, wait: Duration) -> Result<Option<CancelMark>> {
        breathe().await;
        let found = results::within(wait, || of_place(&mut self.lock(), place).look(id)).await;
        Ok(found.unwrap_or(Some(CancelMark::Asked)))
    }

    async fn forget(&self, place: &WorkPlace, id: &str) -> Result<()> {
        breathe().await;
        of_place(&mut self.lock(), place).forget(id);
        Ok(())
    }

    async fn marks(&self, place: &WorkPlace, version: u64, wait: Duration) -> Result<Option<CancelMarks>> {
        breathe().await;
        Ok(results::within(wait, || of_place(&mut self.lock(), place).since(version)).await)
    }

    async fn share(&self, place: &WorkPlace) -> Result<()> {
        breathe().await;
        of_place(&mut self.lock(), place).shared = true;
        Ok(())
    }

    async fn answer(
        &self,
        right: &ProgressRight,
        id: &str,
        mark: CancelMark,
        result: Option<&StoredResult>,
    ) -> Result<Option<CancelMark>> {
        breathe().await;
        let now = self.now();
        let mut state = self.lock();
        state.results_under(right)?;
        let (tp, name) = match right {
            ProgressRight::Worker { shard, task, token } => {
                let shard = state.shard(shard);
                if !shard.marks.answer(id, mark, token, now.timestamp()) {
                    return Ok(None);
                }
                result.into_iter().for_each(|result| shard.results.put(result, now));
                shard.end_cancelled(task, token);
                return Ok(Some(mark));
            }
            ProgressRight::Owner(lease) => {
                let (tp, group) = lease.partition()?;
                (tp.clone(), group.clone())
            }
            ProgressRight::Consumer { member, partition, .. } => {
                (member.partition(*partition), member.group.clone())
            }
        };
        let Some(group) = state.group(&tp, &name) else { return Ok(None) };
        let known = |group: &Group| group.marks.get(id).map(|(mark, _)| mark);
        if mark == CancelMark::Ahead {
            let origin: MessageId = id.parse().map_err(|_| no_id(id))?;
            let is_owner = matches!(right, ProgressRight::Owner(_));
            let is_read = group.cursor.as_ref().is_none_or(|cursor| origin <= cursor.delivered);
            if !is_owner || is_read {
                return Ok(known(group));
            }
        }
        group.marks.answer(id, mark, "", now.timestamp());
        Ok(known(group))
    }
}

fn of_place<'a>(state: &'a mut State, place: &WorkPlace) -> &'a mut Marks {
    match place {
        WorkPlace::Group(tp, group) => {
            &mut state.partition(tp).groups.entry(group.clone()).or_default().marks
        }
        WorkPlace::Shard(shard) => &mut state.shard(shard).marks,
    }
}

/// Whether a task is the one that asks for its result under this number.
fn is_asked_under(fields: &Fields, number: Option<u128>) -> bool {
    let asks = || ResultRequest::of(&wire::decode_body(fields, &Limits::NONE).ok()?.headers);
    number.is_none_or(|number| asks().is_some_and(|asks| asks.number == number))
}

pub(crate) fn no_id(id: &str) -> Error {
    Error::new(ErrorKind::InvalidName, format!("{id:?} is no id of a message"))
}
