//! The steps role: a field for each message in a hash of its group, or of the shard.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::cancels::WorkPlace;
use millstream_core::error::{Error, Result};
use millstream_core::log::ProgressRight;
use millstream_core::schedule::Place;
use millstream_core::steps::{Signalled, StepRecord, Steps, WorkId, check_signal, too_large};
use millstream_core::timestamp::Timestamp;

use crate::backend::RedisBackend;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::error::{fenced, unexpected};
use crate::roles::log::settling::Right;
use crate::scripts::script;

#[async_trait]
impl Steps for RedisBackend {
    async fn read(&self, id: &WorkId) -> Result<(Timestamp, Vec<StepRecord>)> {
        let call = self.inner.scripts.read_steps.call([&self.inner.keys.steps(&id.place)]).arg(&id.id);
        let on = |error: Error| self.on_steps(error, "read the steps of", id);
        let answer = script::run_one(&self.inner.messages, call).await.map_err(on)?;
        let [now, stored] = reply::tuple(answer).map_err(on)?;
        let now = u64::try_from(reply::int(now).map_err(on)?).unwrap_or(0);
        let stored = reply::maybe_bytes(stored).map_err(on)?.unwrap_or_default();
        Ok((Timestamp::from_millis(now), StepRecord::read(&stored).map_err(on)?))
    }

    async fn store(&self, right: &ProgressRight, id: &str, records: &[StepRecord]) -> Result<()> {
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let records = StepRecord::write(records);
        let call = match right {
            ProgressRight::Worker { shard, task, token } => {
                let (claims, states) = (keys.claims(shard), keys.task_states(shard));
                let steps = keys.steps(&WorkPlace::Shard(shard.clone()));
                let call = scripts.store_task_steps.call([&claims, &states, &steps]);
                call.arg(task.as_str()).arg(token)
            }
            ProgressRight::Owner(lease) => {
                let (tp, group) = lease.partition()?;
                let [mode, who] = Right::Owner(lease).words();
                let steps = keys.steps(&WorkPlace::Group(tp.clone(), group.clone()));
                // The entry is not looked at: nobody but the owner can have it.
                let call = scripts.store_steps.call([&keys.fence(tp, group), &keys.log(tp), &steps]);
                call.args([mode, who, group.as_str(), "0-0", id])
            }
            ProgressRight::Consumer { member, partition, receipt } => {
                let (tp, group) = (member.partition(*partition), &member.group);
                let [mode, who] = Right::Consumer(&member.consumer).words();
                let (fence, stream) = (keys.fence(&tp, group), self.inner.stream(&tp, group, receipt.source));
                let steps = keys.steps(&WorkPlace::Group(tp.clone(), group.clone()));
                let call = scripts.store_steps.call([&fence, &stream, &steps]);
                let call = call.args([mode, who, group.as_str()]);
                call.arg(Digits::id(receipt.entry()).as_bytes()).arg(id)
            }
        };
        let stored = script::run_one(&self.inner.messages, call.arg(records)).await;
        let stored = stored.map_err(|error| match right {
            ProgressRight::Owner(lease) => fenced(error, lease),
            _ => error,
        })?;
        if reply::int(stored)? == 1 { Ok(()) } else { Err(too_large()) }
    }

    async fn signal(&self, id: &WorkId, name: &str, value: Bytes) -> Result<Signalled> {
        check_signal(name)?;
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let steps = keys.steps(&id.place);
        let call = match &id.place {
            WorkPlace::Group(tp, group) => {
                let (log, retry_due) = (keys.log(tp), keys.retry_due(tp, group));
                let (retry_log, wake) = (keys.retry_log(tp, group), keys.wake(&tp.clone().into()));
                scripts.signal_message.call([&steps, &log, &retry_due, &retry_log, &wake]).arg(group.as_str())
            }
            WorkPlace::Shard(shard) => {
                let place = Place::from(shard.clone());
                let (claims, states) = (keys.claims(shard), keys.task_states(shard));
                let keys = [&steps, &keys.delay(&place), &claims, &states, &keys.wake(&place)];
                scripts.signal_task.call(keys)
            }
        };
        let call = call.arg(&id.id).arg(name).arg(&value[..]);
        let on = |error: Error| self.on_steps(error, "signal", id);
        let answer = script::run_one(&self.inner.messages, call).await.map_err(on)?;
        match &*reply::text(answer).map_err(on)? {
            "woken" => Ok(Signalled::Woken),
            "stored" => Ok(Signalled::Stored),
            "known" => Ok(Signalled::Known),
            "late" => Ok(Signalled::Late),
            "gone" => Ok(Signalled::Gone),
            "large" => Err(on(too_large())),
            other => Err(on(unexpected(format_args!("{other:?} is nothing that becomes of a signal")))),
        }
    }
}

impl RedisBackend {
    fn on_steps(&self, error: Error, what: &str, id: &WorkId) -> Error {
        self.inner.servers.learn(&error);
        error.during(format_args!("{what} {id}"))
    }
}
