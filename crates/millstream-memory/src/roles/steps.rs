//! The steps role in memory.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::cancels::WorkPlace;
use millstream_core::log::ProgressRight;
use millstream_core::steps::{Signalled, StepRecord, Steps, WorkId, check_signal};
use millstream_core::{Due, MessageId, Place, Result, ScheduleId, Timestamp};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::roles::cancels::no_id;
use crate::roles::log::missing;
use crate::state::{Group, State};

#[async_trait]
impl Steps for MemoryBackend {
    async fn read(&self, id: &WorkId) -> Result<(Timestamp, Vec<StepRecord>)> {
        breathe().await;
        let state = self.lock();
        let now = self.now().timestamp();
        let steps = match &id.place {
            WorkPlace::Group(tp, group) => {
                state.peek(tp).and_then(|it| it.groups.get(group)).map(|it| &it.steps)
            }
            WorkPlace::Shard(shard) => state.peek_shard(shard).map(|it| &it.steps),
        };
        let records = steps.map(|steps| steps.get(&id.id)).transpose()?;
        Ok((now, records.unwrap_or_default()))
    }

    async fn store(&self, right: &ProgressRight, id: &str, records: &[StepRecord]) -> Result<()> {
        breathe().await;
        let id = match right {
            ProgressRight::Worker { task, .. } => task.as_ref(),
            _ => id,
        };
        self.lock().steps_under(right)?.add(id, records)
    }

    async fn signal(&self, id: &WorkId, name: &str, value: Bytes) -> Result<Signalled> {
        check_signal(name)?;
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        match &id.place {
            WorkPlace::Group(tp, name_of_group) => {
                let origin: MessageId = id.id.parse().map_err(|_| no_id(&id.id))?;
                let partition = state.partition(tp);
                let is_logged = partition.log.get(origin).is_some();
                let group = partition.groups.get_mut(name_of_group);
                let Some(Group { cursor: Some(cursor), parked, retry, steps, .. }) = group else {
                    return Err(missing(name_of_group, tp));
                };
                let is_parked = parked.contains(origin);
                let is_read = origin <= cursor.delivered;
                let in_log = is_logged && (!is_read || cursor.pending.contains_key(&origin));
                // As in Redis: what may be in the retry log counts as there.
                let is_there = steps.contains(&id.id) || is_parked || in_log || retry.len() > 0;
                if !is_there {
                    return Ok(Signalled::Gone);
                }
                let signalled = steps.signal(&id.id, (name, value), is_parked, now.timestamp())?;
                if signalled == Signalled::Woken {
                    parked.release(origin, now.timestamp());
                    // Owners promote retries when they see a new head.
                    partition.heads += 1;
                    partition.wake.notify_waiters();
                }
                Ok(signalled)
            }
            WorkPlace::Shard(name_of_shard) => {
                let task = ScheduleId::new(&id.id)?;
                let shard = state.shard(name_of_shard);
                if !shard.timetable.is_in_use(&task) {
                    return Ok(Signalled::Gone);
                }
                let waits = !shard.timetable.claimed.contains_key(&task);
                let signalled = shard.steps.signal(&id.id, (name, value), waits, now.timestamp())?;
                if signalled == Signalled::Woken {
                    shard.change(|timetable| timetable.reschedule(&task, now.due(Due::NOW)));
                }
                Ok(signalled)
            }
        }
    }
}

impl State {
    /// Drops the steps of tasks that are there no more, or that others have replaced.
    pub(crate) fn forget_steps<'a>(&mut self, place: &Place, ids: impl IntoIterator<Item = &'a ScheduleId>) {
        // Messages that wait at a partition have no steps yet.
        let Place::Shard(shard) = place else { return };
        let steps = &mut self.shard(shard).steps;
        ids.into_iter().for_each(|id| steps.remove(id.as_ref()));
    }
}
