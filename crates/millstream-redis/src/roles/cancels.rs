//! The cancels role: marks in a hash of the partition and group, or of the shard.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, CancelRequest, Cancels, Marked, WorkPlace};
use millstream_core::error::{Error, Result};
use millstream_core::keys::Key;
use millstream_core::log::ProgressRight;
use millstream_core::results::StoredResult;
use millstream_core::schedule::Place;
use redis::{Pipeline, Value};
use tokio::time::Instant;

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::conn::waits::changes::Change;
use crate::error::{fenced, unexpected};
use crate::roles::log::results::Storing;
use crate::roles::log::settling::Right;
use crate::scripts::script::{self, Call};

/// Field with the number of marks that there were.
const CHANGES: &str = "changes";
/// Beginning of the field of a batch.
const BATCH: &str = "batch:";
/// Beginning of the field of a mark.
const MARK: &str = "mark:";

#[async_trait]
impl Cancels for RedisBackend {
    async fn cancel(
        &self,
        place: &WorkPlace,
        id: &str,
        request: &CancelRequest,
    ) -> Result<Option<CancelMark>> {
        let CancelRequest { number, removes, result } = request;
        let result = result.as_ref();
        let (keys, scripts, cancels) =
            (&self.inner.keys, &self.inner.scripts, self.inner.keys.cancels(place));
        let call = match place {
            WorkPlace::Group(tp, group) => {
                let of = [keys.fence(tp, group), keys.log(tp), keys.retry_due(tp, group)];
                let [fence, log, retry_due] = &of;
                let items = keys.retry_items(tp, group);
                let (storing, notes) = self.storings(tp.clone(), result);
                let steps = self.inner.keys.steps(place);
                let keys = [&cancels, fence, log, retry_due, &items, &notes, &steps];
                let call = scripts.cancel_message.call_with_rows(keys, &rows(&storing));
                with(call.arg(group.as_str()).arg(id).arg(u8::from(*removes)), storing)
            }
            WorkPlace::Shard(shard) => {
                let at = Place::from(shard.clone());
                let of =
                    [keys.delay(&at), keys.delay_items(&at), keys.claims(shard), keys.task_states(shard)];
                let [delay, items, claims, states] = &of;
                let (storing, notes) = self.storings(at.clone(), result);
                let steps = self.inner.keys.steps(place);
                let keys = [&cancels, delay, items, claims, states, &notes, &steps];
                let call = scripts.cancel_task.call_with_rows(keys, &rows(&storing));
                let number = number.map(|number| format!("{number:032x}")).unwrap_or_default();
                with(call.arg(id).arg(number).arg(u8::from(*removes)), storing)
            }
        };
        let on = |error: Error| error.during(format_args!("cancel {id} of {place}"));
        let answer = script::run_one(&self.inner.messages, call).await.map_err(on)?;
        let word = reply::maybe_bytes(answer).map_err(on)?;
        if word.as_deref() == Some(b"full") {
            return Err(place.full());
        }
        word.map(|word| read_word(&word)).transpose().map_err(on)
    }

    async fn cancel_batch(&self, place: &WorkPlace, batch: &BatchId) -> Result<()> {
        let call = self.inner.scripts.cancel_batch.call([&self.inner.keys.cancels(place)]);
        let on = |error: Error| self.on_cancels(error, "cancel a batch at", place);
        script::run_one(&self.inner.messages, call.arg(batch.to_string())).await.map(drop).map_err(on)
    }

    async fn mark(&self, place: &WorkPlace, id: &str, wait: Duration) -> Result<Option<CancelMark>> {
        let key = self.inner.keys.cancels(place);
        let mut look = Pipeline::with_capacity(1);
        look.cmd("HGET").arg(key.as_str()).arg(format!("{MARK}{id}"));
        let is_answered = |found: &Value| !matches!(found, Value::BulkString(mark) if mark.starts_with(CancelMark::Asked.as_str().as_bytes()));
        let on = |error: Error| self.on_cancels(error, "the mark of", place);
        let deadline = Instant::now().checked_add(wait);
        let mut left = wait;
        while !left.is_zero() {
            if let Change::Found(found) =
                self.change(&self.inner.changes, &key, (&look, &is_answered), left).await.map_err(on)?
            {
                return read_mark(found).map_err(on);
            }
            left = deadline.map_or(wait, |it| it.saturating_duration_since(Instant::now()));
        }
        let found = self.inner.messages.send(&look).await.map_err(on)?.pop().unwrap_or_default();
        reply::ok(found).and_then(read_mark).map_err(on)
    }

    async fn forget(&self, place: &WorkPlace, id: &str) -> Result<()> {
        let call = self.inner.scripts.forget_cancel.call([&self.inner.keys.cancels(place)]).arg(id);
        let on = |error: Error| self.on_cancels(error, "forget a mark of", place);
        script::run_one(&self.inner.messages, call).await.map(drop).map_err(on)
    }

    async fn marks(&self, place: &WorkPlace, version: u64, wait: Duration) -> Result<Option<CancelMarks>> {
        let key = self.inner.keys.cancels(place);
        let mut look = Pipeline::with_capacity(1);
        look.cmd("HGET").arg(key.as_str()).arg(CHANGES);
        let has_changed = |found: &Value| reply::number(found) != version;
        let on = |error: Error| self.on_cancels(error, "the marks of", place);
        let deadline = Instant::now().checked_add(wait);
        loop {
            let left = deadline.map_or(wait, |it| it.saturating_duration_since(Instant::now()));
            // The first look is part of the wait, which begins with one.
            let found = if left.is_zero() {
                let found = self.inner.messages.send(&look).await.map_err(on)?.pop().unwrap_or_default();
                Some(reply::ok(found).map_err(on)?).filter(has_changed)
            } else {
                match self.change(&self.inner.changes, &key, (&look, &has_changed), left).await.map_err(on)? {
                    Change::Found(found) => Some(found),
                    Change::Maybe => continue,
                    Change::Nothing => None,
                }
            };
            return match found {
                Some(_) => self.all_marks(&key).await.map(Some).map_err(on),
                None => Ok(None),
            };
        }
    }

    async fn share(&self, place: &WorkPlace) -> Result<()> {
        let call = self.inner.scripts.share_cancels.call([&self.inner.keys.cancels(place)]);
        let on = |error: Error| self.on_cancels(error, "share", place);
        script::run_one(&self.inner.messages, call).await.map(drop).map_err(on)
    }

    async fn answer(
        &self,
        right: &ProgressRight,
        id: &str,
        mark: CancelMark,
        result: Option<&StoredResult>,
    ) -> Result<Option<CancelMark>> {
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let call = match right {
            ProgressRight::Worker { shard, task, token } => {
                let place = WorkPlace::Shard(shard.clone());
                let (cancels, steps) = (keys.cancels(&place), keys.steps(&place));
                let at = Place::from(shard.clone());
                let (claims, states, items) =
                    (keys.claims(shard), keys.task_states(shard), keys.delay_items(&at));
                let (storing, notes) = self.storings(at, result);
                let keys = [&claims, &states, &items, &cancels, &notes, &steps];
                let call = scripts.end_cancelled_task.call_with_rows(keys, &rows(&storing));
                with(call.arg(task.as_str()).args([token, mark.as_str()]), storing)
            }
            ProgressRight::Owner(lease) => {
                let (tp, group) = lease.partition()?;
                let cancels = keys.cancels(&WorkPlace::Group(tp.clone(), group.clone()));
                let [mode, who] = Right::Owner(lease).words();
                let call = scripts.answer_cancel.call([&keys.fence(tp, group), &keys.log(tp), &cancels]);
                call.args([mode, who, group.as_str(), "0-0", id, mark.as_str()])
            }
            ProgressRight::Consumer { member, partition, receipt } => {
                let (tp, group) = (member.partition(*partition), &member.group);
                let cancels = keys.cancels(&WorkPlace::Group(tp.clone(), group.clone()));
                let stream = self.inner.stream(&tp, group, receipt.source);
                let [mode, who] = Right::Consumer(&member.consumer).words();
                let call = scripts.answer_cancel.call([&keys.fence(&tp, group), &stream, &cancels]);
                let call = call.args([mode, who, group.as_str()]);
                call.arg(Digits::id(receipt.entry()).as_bytes()).args([id, mark.as_str()])
            }
        };
        let answered = script::run_one(&self.inner.messages, call).await;
        let answered = answered.map_err(|error| match right {
            ProgressRight::Owner(lease) => fenced(error, lease),
            _ => error,
        })?;
        reply::maybe_bytes(answered)?.map(|word| read_word(&word)).transpose()
    }
}

impl RedisBackend {
    /// Returns what is stored with the end of what is cancelled, and the key of the notes of its place.
    fn storings(&self, place: impl Into<Place>, result: Option<&StoredResult>) -> (Option<Storing>, Key) {
        let place = place.into();
        (result.map(|stored| self.storing(place.clone(), stored)), self.inner.keys.batch_notes(&place))
    }

    async fn all_marks(&self, key: &Key) -> Result<CancelMarks> {
        let mut ask = Pipeline::with_capacity(1);
        ask.cmd("HGETALL").arg(key.as_str());
        let found = self.inner.messages.send(&ask).await?.pop().unwrap_or_default();
        let mut all = CancelMarks::default();
        for (field, value) in reply::pairs(reply::ok(found)?)? {
            let field = reply::text(field)?;
            if field == CHANGES {
                all.version = reply::number(&value);
            } else if let Some(id) = field.strip_prefix(BATCH) {
                all.batches.extend(id.parse::<BatchId>());
            } else if let Some(id) = field.strip_prefix(MARK) {
                // What is no mark was written by somebody else.
                all.marks.extend(marked(id, &reply::text(value)?));
            }
        }
        Ok(all)
    }

    fn on_cancels(&self, error: Error, what: &str, place: &WorkPlace) -> Error {
        self.inner.servers.learn(&error);
        error.during(format_args!("{what} {place}"))
    }
}

fn rows(storing: &Option<Storing>) -> Vec<[Key; 1]> {
    storing.iter().map(|storing| [storing.key.clone()]).collect()
}

fn with(call: Call<'_>, storing: Option<Storing>) -> Call<'_> {
    match storing {
        Some(Storing { keep, result, .. }) => call.arg(keep).arg(result),
        None => call,
    }
}

fn marked(id: &str, text: &str) -> Option<Marked> {
    let mut words = text.splitn(3, ' ');
    let mark = CancelMark::of(words.next()?)?;
    let claim = words.nth(1)?.to_owned();
    Some(Marked { id: id.to_owned(), mark, claim })
}

fn read_mark(found: Value) -> Result<Option<CancelMark>> {
    let Some(text) = reply::maybe_bytes(found)? else { return Ok(None) };
    read_word(text.split(|byte| *byte == b' ').next().unwrap_or_default()).map(Some)
}

fn read_word(word: &[u8]) -> Result<CancelMark> {
    let known = std::str::from_utf8(word).ok().and_then(CancelMark::of);
    known.ok_or_else(|| {
        let shown = String::from_utf8_lossy(word);
        unexpected(format_args!("{shown:?} is no mark of a cancelled message"))
    })
}
