//! The schedule role: one script per operation, and a plain wait for a new head.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::audit::{Fault, Finding, Scope};
use millstream_core::cancels::WorkPlace;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::schedule::{
    Due, MAX_PAGE, MAX_PROMOTE, Place, Placed, Promoted, RetryAction, Schedule, ScheduleId, Scheduled,
    Scheduling, Seen, Waiting,
};
use millstream_core::wire::Fields;
use millstream_core::{GroupName, Timestamp, TopicPartition};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::{fenced, unexpected};
use crate::queue::scheduling::{claims, exactly, known, outcomes, pipeline, portions, states, steps, word};
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::scripts::times::due;
use crate::stored::item;

/// Maximum number of ids of one call of the scripts `cancel` and `reschedule`, and of messages of one call of
/// `scheduled`.
const CHUNK: usize = 200;

#[async_trait]
impl Schedule for RedisBackend {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        let (portions, refused) = portions(batch);
        let mut results: Vec<Option<Result<Placed>>> = batch.iter().map(|_| None).collect();
        let mut set = |index: usize, result: Result<Placed>| {
            if let (Some(slot), Some(message)) = (results.get_mut(index), batch.get(index)) {
                let during = || format!("schedule {} at {}", message.id, message.place);
                *slot = Some(result.map_err(|error| error.during(during())));
            }
        };
        for (index, error) in refused {
            set(index, Err(error));
        }
        let (mut rest, mut failed) = (&portions[..], None);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(pipeline(rest).len());
            rest = later;
            // After a lost answer nothing more is sent: the caller may send the whole batch again.
            let answers = match &failed {
                None => {
                    let calls = now.iter().map(|portion| portion.call(&self.inner, batch)).collect();
                    let answers = script::run(&self.inner.messages, calls).await;
                    let lost = |error: &&Error| {
                        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unconfirmed)
                    };
                    failed = answers.iter().filter_map(|answer| answer.as_ref().err()).find(lost).cloned();
                    answers
                }
                Some(error) => {
                    let error = format!("not sent, an earlier one failed: {error}");
                    now.iter().map(|_| Err(Error::new(ErrorKind::Unavailable, error.clone()))).collect()
                }
            };
            for (portion, answer) in now.iter().zip(answers) {
                match answer.and_then(|answer| outcomes(answer, portion.messages.len())) {
                    Ok(placed) => {
                        for ((index, _), placed) in portion.messages.iter().zip(placed) {
                            set(*index, placed);
                        }
                    }
                    Err(error) => {
                        for (index, _) in &portion.messages {
                            set(*index, Err(error.clone()));
                        }
                    }
                }
            }
        }
        let unanswered = || Err(unexpected("no answer to a message that was to be scheduled"));
        results.into_iter().map(|result| result.unwrap_or_else(unanswered)).collect()
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        let (keys, script) = (&self.inner.keys, &self.inner.scripts.cancel);
        let keys = [
            keys.delay(place),
            keys.delay_items(place),
            states(keys, place),
            keys.batch_notes(place),
            steps(keys, place),
        ];
        self.for_each(ids, || script.call(keys.each_ref()).arg(word(place))).await
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], to: Due) -> Result<Vec<bool>> {
        let (keys, script) = (&self.inner.keys, &self.inner.scripts.reschedule);
        let keys = [keys.delay(place), keys.recur(place), keys.wake(place)];
        self.for_each(ids, || script.call(keys.each_ref()).arg(word(place)).arg(due(to))).await
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        let keys = &self.inner.keys;
        let call = self.inner.scripts.find.call([&keys.delay(place), &keys.delay_items(place)]);
        let found = script::run_one(&self.inner.bulk, call.arg(id.as_str())).await?;
        if found == Value::Nil {
            return Ok(None);
        }
        let [due, item] = reply::tuple(found)?;
        let due = reply::score_time(due)?;
        let fields = fields(place, id, reply::maybe_bytes(item)?.as_ref());
        Ok(Some(Scheduled::new(id.clone(), due, fields)))
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        let limit = limit.min(MAX_PAGE);
        let keys = [self.inner.keys.delay(place), self.inner.keys.delay_items(place)];
        let (mut due, mut id) = match after {
            Some((due, id)) => (reply::score_of(due), Bytes::copy_from_slice(id.as_str().as_bytes())),
            None => (Bytes::new(), Bytes::new()),
        };
        let mut page = Vec::new();
        while page.len() < limit {
            let call = self.inner.scripts.scheduled.call(keys.each_ref());
            let call = call.arg(&due[..]).arg(&id[..]).arg((limit - page.len()).min(CHUNK));
            let [more, entries] = reply::tuple(script::run_one(&self.inner.bulk, call).await?)?;
            for entry in reply::array(entries)? {
                let [name, score, item] = reply::tuple(entry)?;
                (id, due) = (reply::bytes(name)?, reply::bytes(score.clone())?);
                match known(&id) {
                    Some(id) => {
                        let fields = fields(place, &id, reply::maybe_bytes(item)?.as_ref());
                        page.push(Scheduled::new(id, reply::score_time(score)?, fields));
                    }
                    None => tracing::warn!(%place, ?id, "a waiting message with an invalid id is skipped"),
                }
            }
            if reply::int(more)? == 0 {
                break;
            }
        }
        Ok(page)
    }

    async fn now(&self) -> Result<Timestamp> {
        time(&self.inner.pool).await.map_err(|error| error.during("read the time"))
    }

    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        // `TIME` has no key that would lead it to the node of the place.
        let time = async { time(&*self.inner.pool.of(&self.inner.keys.delay(place)).await?).await };
        let answer = time.await.inspect_err(|error| self.inner.servers.learn(error));
        answer.map_err(|error| error.during(format_args!("read the time at {place}")))
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        let keys = &self.inner.keys;
        let (delay, claims) = (keys.delay(place), claims(keys, place));
        let call = self.inner.scripts.count_due.call([&delay, &keys.delay_items(place), &claims]);
        let [total, overdue, first] = reply::tuple(script::run_one(&self.inner.pool, call).await?)?;
        let first = reply::maybe(first, reply::score)?;
        Ok(Waiting { total: reply::count(total)? as u64, overdue: reply::count(overdue)? as u64, first })
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        let (tp, group) = lease.partition()?;
        let inner = &self.inner;
        let keys = &inner.keys;
        let fence = keys.fence(tp, group);
        // Usually nothing is due: then this one call, which checks both, is enough.
        let call = self.promote_delayed_call(Some((&fence, lease)), tp, limit);
        let answer = script::run_one(&inner.messages, call).await.map_err(|error| fenced(error, lease));
        let (delayed, failed) = match answer.and_then(|answer| promoted(tp, answer)) {
            Ok((delayed, retry)) if retry.is_none_or(|retry| !retry.is_zero()) => {
                return Ok(Promoted { next: [retry, delayed.next].into_iter().flatten().min(), ..delayed });
            }
            // A retry is due now.
            Ok((delayed, _)) => (delayed, None),
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
            // A failure of delayed messages must not keep the group's retries from being promoted: report it later.
            Err(error) => (Promoted::default(), Some(error)),
        };
        let call = inner
            .scripts
            .promote
            .call([
                &fence,
                &keys.retry_due(tp, group),
                &keys.retry_items(tp, group),
                &keys.retry_log(tp, group),
                &keys.dead_letters(tp, group),
                &keys.unique(tp),
                &keys.unique_retry(tp, group),
                &keys.log(tp),
                &keys.packs(tp),
            ])
            .arg(lease.token.as_str())
            .arg(limit.min(MAX_PROMOTE))
            .arg(tp.topic.as_str())
            .arg(tp.partition.0)
            .arg(group.as_str());
        let answer = script::run_one(&inner.messages, call).await;
        let answer = answer.map_err(|error| fenced(error, lease))?;
        let [moved, orphans, mut next, mended, in_packs] = reply::tuple(answer)?;
        if reply::count(mended.clone())? > 0 {
            let mended = reply::count(mended)?;
            tracing::warn!(%tp, %group, mended, "bodies of retries were gone: they were taken from the log");
        }
        for origin in reply::array(in_packs)? {
            let origin = reply::text(origin)?;
            let scope = Scope::Group(tp.clone(), group.clone());
            match self.repair_group(tp, group, &Finding::new(Fault::RetryLost, &scope, &*origin, "")).await {
                Ok(true) => {
                    tracing::warn!(%tp, %group, origin, "the body of a retry was gone: it was taken from its pack");
                    self.settle_retries(tp, group, &[origin.parse()?], RetryAction::Release).await?;
                    next = Value::Int(0);
                }
                // A pack that cannot be read now: it is tried again when the retry is due once more.
                Ok(false) => {}
                // A user without the right, too: an operator has it.
                Err(error) => {
                    tracing::warn!(%tp, %group, origin, %error, "the body of a retry is left in a pack alone: `verify --repair` takes it from there");
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Promoted {
            moved: reply::count(moved)? + delayed.moved,
            orphans: reply::count(orphans)? + delayed.orphans,
            next: [micros(next)?, delayed.next].into_iter().flatten().min(),
            recurring: delayed.recurring,
        })
    }

    async fn settle_retries(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        let (keys, script) = (&self.inner.keys, &self.inner.scripts.settle_retries);
        let keys = [
            keys.retry_due(tp, group),
            keys.retry_items(tp, group),
            keys.dead_letters(tp, group),
            keys.wake(&tp.clone().into()),
            keys.batch_notes(&tp.clone().into()),
            keys.steps(&WorkPlace::Group(tp.clone(), group.clone())),
        ];
        let action = match action {
            RetryAction::Release => "release",
            RetryAction::Kill => "kill",
        };
        let mut settled = Vec::with_capacity(origins.len());
        while let Some(rest) = origins.get(settled.len()..).filter(|rest| !rest.is_empty()) {
            let chunk = &rest[..rest.len().min(CHUNK)];
            let call = script.call(keys.each_ref()).arg(action).arg(tp.topic.as_str()).arg(tp.partition.0);
            let mut call = call.arg(group.as_str());
            chunk.iter().for_each(|origin| call.push(origin.to_string()));
            // The script stops early if bodies are large, but not before the first one.
            let answers = reply::array(script::run_one(&self.inner.messages, call).await?)?;
            if answers.is_empty() || answers.len() > chunk.len() {
                return Err(unexpected(format_args!(
                    "{} answers for {} retries",
                    answers.len(),
                    chunk.len()
                )));
            }
            for answer in answers {
                settled.push(reply::int(answer)? == 1);
            }
        }
        Ok(settled)
    }

    async fn promote_delayed(&self, tp: &TopicPartition, limit: usize) -> Result<Promoted> {
        let call = self.promote_delayed_call(None, tp, limit);
        Ok(promoted(tp, script::run_one(&self.inner.messages, call).await?)?.0)
    }

    async fn wait(&self, tp: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        let wake = self.inner.keys.wake(&tp.clone().into());
        let on = |error: Error| error.during(format_args!("wait for {wake}"));
        // An invalid id of the caller would end every wait with an error: treat it as no head seen.
        let Ok(last) = MessageId::from_bytes(seen.0.as_bytes()) else {
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("XREVRANGE").arg(wake.as_str()).arg("+").arg("-").arg("COUNT").arg(1);
            let answer = self.inner.pool.send(&pipe).await?.pop();
            let entries = reply::entries(answer.unwrap_or_default()).map_err(on)?;
            let newest = entries.first().map_or(MessageId::ZERO, |(id, _)| *id);
            return Ok(Seen(newest.to_string()));
        };
        let waiting = async { self.inner.changes.of(&wake).await?.entries(&[(&wake, last)], timeout).await };
        let found = waiting.await.inspect_err(|error| self.inner.servers.learn(error)).map_err(on)?;
        let streams = found.map_or_else(|| Ok(Vec::new()), reply::streams).map_err(on)?;
        let newest = streams.iter().flat_map(|(_, entries)| entries).map(|(id, _)| *id).max();
        Ok(newest.map_or_else(|| seen.clone(), |id| Seen(id.to_string())))
    }
}

/// Reads the time of a server.
async fn time(line: &dyn Line) -> Result<Timestamp> {
    let mut pipe = Pipeline::with_capacity(1);
    pipe.cmd("TIME");
    reply::ok(line.send(&pipe).await?.pop().unwrap_or_default()).and_then(reply::time)
}

impl RedisBackend {
    /// Calls a script for these ids, and returns for each whether the script did something.
    async fn for_each<'a>(&'a self, ids: &[ScheduleId], call: impl Fn() -> Call<'a>) -> Result<Vec<bool>> {
        let mut done = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK) {
            let mut call = call();
            chunk.iter().for_each(|id| call.push(id.as_str()));
            let answer = script::run_one(&self.inner.messages, call).await?;
            for value in exactly(answer, chunk.len())? {
                done.push(reply::int(value)? == 1);
            }
        }
        Ok(done)
    }

    /// Builds the call, for the holder of a lease, or for a caller that owns nothing.
    fn promote_delayed_call(
        &self,
        lease: Option<(&Key, &Lease)>,
        tp: &TopicPartition,
        limit: usize,
    ) -> Call<'_> {
        let (keys, place) = (&self.inner.keys, Place::from(tp.clone()));
        let (delay, items) = (keys.delay(&place), keys.delay_items(&place));
        // A script names all of its keys, and all are in one slot: `delay` takes the place of those that it does not read without
        // a lease.
        let (fence, token) = lease.map_or((&delay, ""), |(fence, lease)| (fence, lease.token.as_str()));
        let group = lease.and_then(|(_, lease)| lease.partition().ok()).map(|(_, group)| group);
        let retries = group.map_or_else(|| delay.clone(), |group| keys.retry_due(tp, group));
        let script = &self.inner.scripts.promote_delayed;
        let call = script.call([fence, &delay, &items, &keys.log(tp), &keys.recur(&place), &retries]);
        call.arg(token).arg(limit.min(MAX_PROMOTE))
    }
}

/// Returns the fields of an item; empty if it is gone or invalid.
fn fields(place: &Place, id: &ScheduleId, item: Option<&Bytes>) -> Fields {
    let read = item.map(item::unpack::<0>);
    if let Some(None) = read {
        tracing::warn!(%place, %id, "a waiting message has a body that cannot be read");
    }
    read.flatten().map(|([], fields)| fields).unwrap_or_default()
}

/// Parses a time from now in microseconds; a negative number is `None`.
fn micros(value: Value) -> Result<Option<Duration>> {
    Ok(u64::try_from(reply::int(value)?).ok().map(Duration::from_micros))
}

/// Parses the reply of `promote_delayed`: the result, and the time until the group's next retry is due; `None` without one.
fn promoted(tp: &TopicPartition, answer: Value) -> Result<(Promoted, Option<Duration>)> {
    let [moved, next, recurring, orphans, retry] = reply::tuple(answer)?;
    let orphans: Vec<String> = reply::array(orphans)?.into_iter().map(reply::text).collect::<Result<_>>()?;
    if !orphans.is_empty() {
        tracing::warn!(partition = %tp, ids = ?orphans, "scheduled messages had no readable body");
    }
    let promoted = Promoted {
        moved: reply::count(moved)?,
        orphans: orphans.len(),
        next: micros(next)?,
        recurring: reply::int(recurring)? == 1,
    };
    Ok((promoted, micros(retry)?))
}
