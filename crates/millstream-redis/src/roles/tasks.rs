//! The tasks role: scripts that claim, settle and extend, and lists that wake workers.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::cancels::WorkPlace;
use millstream_core::dead_letters::DeadLetterRetention;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::Settled;
use millstream_core::name::QueueName;
use millstream_core::schedule::{Due, Place, Schedule, ScheduleId, Shard};
use millstream_core::tasks::{
    ClaimRequest, Claimed, ClaimedTask, DeadTask, Extended, FoundTask, MAX_CLAIM, MAX_WINDOW, QueueChange,
    QueueSpec, TaskCounts, TaskPlace, Tasks, TrimTasksBy, TrimmedTasks, Verdict,
};
use millstream_core::wire::{self, Fields, PACKED};
use redis::{Pipeline, Value};

use crate::backend::{Inner, RedisBackend};
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::queue::scheduling::known;
use crate::roles::log::results::{Storing, portions};
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::scripts::times;
use crate::scripts::times::wait_words;
use crate::stored::item;
use crate::stored::task_state::{TaskState, adding, one_line};

/// Maximum length of a worker's name, in bytes.
const MAX_WORKER: usize = 128;

/// Returns the keys of the script `claim_tasks`, in their order; `settle_tasks` has one more before the last two.
fn keys(inner: &Inner, shard: &Shard) -> [Key; 10] {
    let (keys, place) = (&inner.keys, Place::from(shard.clone()));
    [
        keys.delay(&place),
        keys.delay_items(&place),
        keys.claims(shard),
        keys.task_states(shard),
        keys.watcher(shard),
        keys.wake(&place),
        keys.dead_tasks(shard),
        keys.recur(&place),
        keys.batch_notes(&place),
        keys.steps(&WorkPlace::Shard(shard.clone())),
    ]
}

/// Returns whole microseconds, rounded up; at most 100 years, since Lua counts exactly up to 2^53.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.min(Due::FAR).as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn check_worker(worker: &str) -> Result<()> {
    if worker.is_empty() || worker.len() > MAX_WORKER || worker.contains(char::is_whitespace) {
        let why = format!("the worker's name {worker:?} is not 1 to {MAX_WORKER} bytes without spaces");
        return Err(Error::new(ErrorKind::InvalidConfig, why));
    }
    Ok(())
}

/// Parses the claimed tasks. Tasks with invalid ids, which somebody else stored, are returned separately with their
/// tokens.
fn claimed(answer: Value) -> Result<(Claimed, Vec<(Bytes, String)>)> {
    let [now, next, recurring, crashed, ids, states, items, befores, server] = reply::tuple(answer)?;
    let number = |value: Value| Ok::<_, Error>(u64::try_from(reply::int(value)?).unwrap_or(0));
    let (ids, states) = (reply::array(ids)?, reply::array(states)?);
    let (items, befores) = (reply::array(items)?, reply::array(befores)?);
    if [&states, &items, &befores].iter().any(|them| them.len() != ids.len()) {
        let what = format!("{} tasks with {} states and {} bodies", ids.len(), states.len(), items.len());
        return Err(unexpected(what));
    }
    let (mut tasks, mut foreign) = (Vec::with_capacity(ids.len()), Vec::new());
    for (((id, state), item), before) in ids.into_iter().zip(states).zip(items).zip(befores) {
        let (id, state, before) = (reply::bytes(id)?, reply::text(state)?, reply::text(before)?);
        let task = TaskState::parse(&state).ok_or_else(|| unexpected(format_args!("the state {state:?}")));
        let fields = reply::maybe_bytes(item)?.as_ref().map_or_else(Fields::new, body);
        let TaskState { due, attempt, crashes, token, error, history } = task?;
        let before = Some(before).filter(|before| !["", "-"].contains(&before.as_str()));
        match known(&id) {
            Some(id) => {
                tasks.push(ClaimedTask { id, token, before, due, attempt, crashes, error, history, fields });
            }
            None => foreign.push((id, token)),
        }
    }
    let mut claimed = Claimed::default();
    claimed.server = reply::text(server)?;
    claimed.tasks = tasks;
    claimed.crashed = reply::count(crashed)?;
    claimed.next = Duration::from_micros(number(next)?);
    claimed.recurring = reply::int(recurring)? == 1;
    claimed.now = Timestamp::from_millis(number(now)?);
    Ok((claimed, foreign))
}

/// Parses the task that was found.
fn found(answer: Value) -> Result<Option<FoundTask>> {
    if answer == Value::Nil {
        return Ok(None);
    }
    let mut parts = reply::array(answer)?.into_iter();
    let mut next = || parts.next().unwrap_or(Value::Nil);
    let (word, time, stored, item) = (reply::text(next())?, reply::score_time(next())?, next(), next());
    let state = match &*word {
        "waiting" => TaskPlace::Waiting(time),
        "claimed" => TaskPlace::Claimed(time),
        "finished" => {
            return Ok(Some(FoundTask::new(TaskPlace::Finished(time), 0, String::new(), Fields::new())));
        }
        _ => return Err(unexpected(format_args!("{word:?} instead of the state of a task"))),
    };
    let stored = reply::maybe_bytes(stored)?;
    let stored = stored.and_then(|text| TaskState::parse(&String::from_utf8_lossy(&text)));
    let (attempt, error) = stored.map_or((1, String::new()), |state| (state.attempt, state.error));
    let fields = reply::maybe_bytes(item)?.as_ref().map_or_else(Fields::new, body);
    Ok(Some(FoundTask::new(state, attempt, error, fields)))
}

/// Returns the fields of an item. Bytes that are no item are returned as they are.
fn body(item: &Bytes) -> Fields {
    let packed = || vec![(Bytes::from_static(PACKED.as_bytes()), item.clone())];
    item::unpack::<0>(item).map_or_else(packed, |(_, fields)| fields)
}

fn push_verdict(
    call: &mut Call<'_>,
    (id, token): (&ScheduleId, &str),
    verdict: &Verdict,
    storing: Option<&Storing>,
) {
    call.push(id.as_str());
    call.push(token);
    if let Some(storing) = storing {
        call.push("result");
        call.push(&*storing.keep);
        call.push(&storing.result[..]);
    }
    match verdict {
        Verdict::Complete | Verdict::CompleteWith { window: None, .. } => call.push("complete"),
        Verdict::CompleteFor(window) | Verdict::CompleteWith { window: Some(window), .. } => {
            call.push("finish");
            call.push(window.min(&MAX_WINDOW).as_nanos().div_ceil(1_000_000).max(1) as u64);
        }
        Verdict::Retry { due, attempt, error, history, wait } => {
            let (kept, failure) = adding(history, error);
            call.push("retry");
            call.push(times::due(*due));
            call.push(*attempt);
            for text in [one_line(error), kept, failure] {
                call.push(text);
            }
            call.push(wait_words(wait.as_deref()));
        }
        Verdict::Dead { reason, attempts, error, history, result: _ } => {
            let (kept, failure) = history.adding(*attempts, error);
            call.push("dead");
            call.push(reason.as_str());
            call.push(*attempts);
            for text in [wire::cut(error), &kept, &failure] {
                call.push(text);
            }
        }
    }
}

impl Inner {
    /// Extends claims as [`Tasks::extend`] does, also of tasks with invalid ids.
    async fn extend_claims(
        &self,
        shard: &Shard,
        claims: &[(&[u8], &str)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        let keys = [self.keys.claims(shard), self.keys.task_states(shard)];
        let mut calls = Vec::with_capacity(claims.len().div_ceil(MAX_CLAIM));
        for chunk in claims.chunks(MAX_CLAIM) {
            let call = self.scripts.extend_tasks.call(keys.each_ref());
            let mut call = call.arg(micros(hold)).arg(u8::from(begun));
            for (id, token) in chunk {
                call = call.arg(*id).arg(*token);
            }
            calls.push(call);
        }
        let mut extended = Extended::default();
        if calls.is_empty() {
            return Ok(extended);
        }
        // Not on the messages connection: a handler that blocks the runtime, or a large answer, would delay this and
        // cost claims.
        for answer in script::run(&self.leases, calls).await {
            let [now, server, ours] = reply::tuple(answer?)?;
            extended.now = Timestamp::from_millis(u64::try_from(reply::int(now)?).unwrap_or(0));
            extended.server = reply::text(server)?;
            for one in reply::array(ours)? {
                extended.ours.push(reply::int(one)? == 1);
            }
        }
        if extended.ours.len() == claims.len() {
            Ok(extended)
        } else {
            Err(unexpected(format_args!("{} answers to {} claims", extended.ours.len(), claims.len())))
        }
    }
}

#[async_trait]
impl Tasks for RedisBackend {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        self.inner.create_queue(spec).await
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        self.inner.queue(name).await
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        self.inner.queues().await
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed> {
        check_worker(&ask.worker)?;
        let keys = keys(&self.inner, shard);
        let call = self.inner.scripts.claim_tasks.call(keys.each_ref());
        let call = call.arg(&ask.worker).arg(ask.limit.min(MAX_CLAIM)).arg(micros(ask.hold));
        let call = call.arg(ask.crash_limit).arg(micros(ask.longest_sleep));
        let call = call.arg(shard.queue.as_str()).arg(shard.shard).arg(ask.continuity.to_string());
        let (claimed, foreign) = claimed(script::run_one(&self.inner.messages, call).await?)?;
        if !foreign.is_empty() {
            tracing::warn!(%shard, ids = ?foreign, "tasks with invalid ids are skipped");
            // No handler can run these tasks. Marked as begun, their claims count as crashes when they expire, until
            // the crash limit gives the tasks up.
            let foreign = foreign.iter().map(|(id, token)| (&id[..], token.as_str())).collect::<Vec<_>>();
            if let Err(error) = self.inner.extend_claims(shard, &foreign, ask.hold, true).await {
                tracing::warn!(%shard, %error, "tasks with invalid ids are not counted as crashed, and are claimed again");
            }
        }
        Ok(claimed)
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        let keys = keys(&self.inner, shard);
        let finished = self.inner.keys.finished(shard);
        let [delay, items, claims, states, watcher, wake, dead, recur, notes, steps] = &keys;
        let keys = [delay, items, claims, states, watcher, wake, dead, recur, &finished, notes, steps];
        let mut total = Settled::default();
        let size =
            |(.., verdict): &(_, _, Verdict)| verdict.result().map_or(0, |stored| stored.result.size());
        let mut chunks: Vec<_> = portions(batch, MAX_CLAIM, size).collect();
        while !chunks.is_empty() {
            let mut calls = Vec::with_capacity(chunks.len());
            for chunk in &chunks {
                let storing = |(.., verdict): &(_, _, Verdict)| {
                    verdict.result().map(|stored| self.storing(shard.clone(), stored))
                };
                let storing: Vec<_> = chunk.iter().map(storing).collect();
                let rows: Vec<_> = storing.iter().flatten().map(|storing| [storing.key.clone()]).collect();
                let call = self.inner.scripts.settle_tasks.call_with_rows(keys, &rows);
                let mut call = call.arg(shard.queue.as_str()).arg(shard.shard).arg(chunk.len());
                for ((id, token, verdict), storing) in chunk.iter().zip(&storing) {
                    push_verdict(&mut call, (id, token), verdict, storing.as_ref());
                }
                calls.push(call);
            }
            // With large bodies of dead tasks a script stops early: send the rest again.
            let mut rest = Vec::new();
            for (chunk, answer) in chunks.iter().zip(script::run(&self.inner.messages, calls).await) {
                let [applied, stale, done] = reply::tuple(answer?)?;
                total.applied += reply::count(applied)?;
                total.stale += reply::count(stale)?;
                rest.push(script::behind(chunk, reply::count(done)?)?);
            }
            chunks = rest;
            chunks.retain(|chunk| !chunk.is_empty());
        }
        Ok(total)
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        let claims: Vec<_> =
            claims.iter().map(|(id, token)| (id.as_str().as_bytes(), token.as_str())).collect();
        self.inner.extend_claims(shard, &claims, hold, begun).await
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        let (keys, place) = (&self.inner.keys, Place::from(shard.clone()));
        let keys = [
            keys.delay(&place),
            keys.delay_items(&place),
            keys.claims(shard),
            keys.task_states(shard),
            keys.finished(shard),
        ];
        let call = self.inner.scripts.find_task.call(keys.each_ref()).arg(id.as_str());
        let on = |error: Error| error.during(format_args!("find task {id} of {shard}"));
        found(script::run_one(&self.inner.bulk, call).await.map_err(on)?).map_err(on)
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        let inner = &self.inner;
        let wake = inner.keys.wake(&shard.clone().into());
        let answers = inner.wait_on(&wake, timeout.min(Due::FAR), |pipe, ms| {
            // The timeout is in seconds, with a fraction. BLPOP removes the element, so that one call wakes one
            // worker.
            pipe.cmd("BLPOP").arg(wake.as_str()).arg(Duration::from_millis(ms).as_secs_f64());
        });
        let on = |error: Error| error.during(format_args!("wait for {wake}"));
        let answer = answers.await.map_err(on)?.pop().unwrap_or_default();
        Ok(reply::ok(answer).map_err(on)? != Value::Nil)
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        let (keys, claims) = (&self.inner.keys, self.inner.keys.claims(shard));
        let waiting = self.waiting(&shard.clone().into()).await?;
        let mut time = Pipeline::with_capacity(2);
        // With a key of the shard: it is the time of the server that has it.
        time.cmd("TIME");
        time.cmd("ZCARD").arg(claims.as_str());
        let now = self.inner.pool.send(&time).await?.into_iter().next().unwrap_or(Value::Nil);
        let now = reply::time(now)?;
        let mut pipe = Pipeline::with_capacity(4);
        pipe.cmd("ZCARD").arg(claims.as_str());
        pipe.cmd("ZCOUNT").arg(claims.as_str()).arg("-inf").arg(now.as_millis());
        pipe.cmd("XLEN").arg(keys.dead_tasks(shard).as_str());
        pipe.cmd("HGET").arg(keys.watcher(shard).as_str()).arg("paused");
        let answers = Value::Array(self.inner.pool.send(&pipe).await?);
        let [claimed, expired, dead, paused] = reply::tuple(answers)?;
        let paused = match reply::ok(paused).map_err(|error| error.during(format_args!("count {shard}")))? {
            Value::Nil => None,
            since => {
                let since = reply::text(since)?;
                let ms = since
                    .parse()
                    .map_err(|_| unexpected(format_args!("{shard} is paused since {since:?}")))?;
                Some(Timestamp::from_millis(ms))
            }
        };
        let number = |value: Value| {
            let number = reply::count(value).map_err(|error| error.during(format_args!("count {shard}")));
            number.map(|number| number as u64)
        };
        Ok(TaskCounts {
            waiting,
            claimed: number(claimed)?,
            expired: number(expired)?,
            dead: number(dead)?,
            paused,
        })
    }

    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        let keys = &self.inner.keys;
        let (watcher, wake) = (keys.watcher(shard), keys.wake(&shard.clone().into()));
        let call = self.inner.scripts.pause_tasks.call([&watcher, &wake]).arg(u8::from(paused));
        let changed = script::run_one(&self.inner.pool, call).await;
        Ok(reply::int(changed.map_err(|error| error.during(format_args!("pause {shard}")))?)? == 1)
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        self.inner.list_dead(shard, after, limit).await
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.inner.replay_dead(shard, ids).await
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.inner.purge_dead(shard, ids).await
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        self.inner.purge_all_dead(shard).await
    }

    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        self.inner.alter_queue(name, change).await
    }

    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        self.inner.delete_queue(name).await
    }

    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        self.inner.trim_dead_tasks(shard, retention, by).await
    }
}
