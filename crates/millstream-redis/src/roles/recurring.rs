//! The recurring role: one script per operation. A recurrence is stored as an item that begins with its rule, pause
//! and next time.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::recurring::{DueRecurrences, MAX_DUE, MAX_FIRES, Recurrence, Recurring};
use millstream_core::schedule::{OnConflict, Place, Placed, ScheduleId};
use millstream_core::sorted::sort;
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::queue::scheduling::{claims, conflict, known, placed, word};
use crate::scripts::script;
use crate::stored::item;

/// Largest time: scores of a sorted set are exact up to 2^53.
const MAX_MS: u64 = 1 << 52;
/// Maximum number of items that are read at once, since they may be large.
const PORTION: usize = 20;
const PAUSED: &str = "1";
const RUNNING: &str = "0";

#[async_trait]
impl Recurring for RedisBackend {
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        let Recurrence { id, rule, fields, next, paused } = recurrence;
        let during = |error: Error| error.during(format_args!("put {id} at {place}"));
        recurrence.check().map_err(during)?;
        let next = time(*next);
        let lead = [rule.as_str(), if *paused { PAUSED } else { RUNNING }, &next];
        let item = item::pack(&lead, fields).map_err(during)?;
        let keys = self.recur_keys(place);
        let call = self.inner.scripts.recur_put.call(keys.each_ref());
        let on_conflict = match on_conflict {
            // The times of a rule are its own.
            OnConflict::Debounce | OnConflict::KeepLast => OnConflict::Replace,
            other => other,
        };
        let call = call.args([word(place), id.as_str(), &next, conflict(on_conflict)]).arg(&item[..]);
        placed(script::run_one(&self.inner.pool, call).await?, "it").map_err(during)
    }

    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        let [recur, items, ..] = self.recur_keys(place);
        let call = self.inner.scripts.recur_remove.call([&recur, &items]).arg(id.as_str());
        Ok(reply::int(script::run_one(&self.inner.pool, call).await?)? == 1)
    }

    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool> {
        let call = self.inner.scripts.recur_pause.call(self.recur_keys(place).each_ref());
        let call = call.args([word(place), id.as_str(), &time(next)]);
        Ok(reply::int(script::run_one(&self.inner.pool, call).await?)? == 1)
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        let items = self.inner.keys.recur_items(place);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HGET").arg(items.as_str()).arg(id.as_str());
        let answer = self.inner.bulk.send(&pipe).await?.pop().unwrap_or_default();
        let during = |error: Error| error.during(format_args!("read {items}"));
        let Some(item) = reply::ok(answer).and_then(reply::maybe_bytes).map_err(during)? else {
            return Ok(None);
        };
        let found = recurrence(id.clone(), &item);
        if found.is_none() {
            tracing::warn!(%place, %id, "a recurring rule cannot be read and is skipped");
        }
        Ok(found)
    }

    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>> {
        let items = self.inner.keys.recur_items(place);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HKEYS").arg(items.as_str());
        let mut ids = Vec::new();
        for id in self.read(&items, &pipe).await? {
            let id = reply::bytes(id)?;
            match known(&id) {
                Some(id) if after.as_ref().is_none_or(|after| id > *after) => ids.push(id),
                Some(_) => {}
                None => tracing::warn!(%place, ?id, "a recurring rule with an invalid id is skipped"),
            }
        }
        sort(&mut ids);
        let (limit, mut found) = (limit.min(MAX_DUE), Vec::new());
        for ids in ids.chunks(PORTION) {
            if found.len() >= limit {
                break;
            }
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("HMGET").arg(items.as_str());
            for id in ids {
                pipe.arg(id.as_str());
            }
            for (id, item) in ids.iter().zip(self.read(&items, &pipe).await?) {
                // Removed since its id was read.
                let Some(item) = reply::maybe_bytes(item)? else { continue };
                match recurrence(id.clone(), &item) {
                    Some(recurrence) => found.push(recurrence),
                    None => tracing::warn!(%place, %id, "a recurring rule cannot be read and is skipped"),
                }
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn due(&self, place: &Place) -> Result<DueRecurrences> {
        let [recur, items, ..] = self.recur_keys(place);
        let call = self.inner.scripts.recur_due.call([&recur, &items]).arg(MAX_DUE);
        let [now, entries, orphans] = reply::tuple(script::run_one(&self.inner.bulk, call).await?)?;
        let orphans: Vec<_> = reply::array(orphans)?.into_iter().map(reply::text).collect::<Result<_>>()?;
        if !orphans.is_empty() {
            tracing::warn!(%place, ids = ?orphans, "recurring rules without a message are no longer due");
        }
        let now = Timestamp::from_millis(u64::try_from(reply::int(now)?).unwrap_or(0));
        let (mut due, mut foreign) = (DueRecurrences::new(now, Vec::new()), Vec::new());
        for entry in reply::array(entries)? {
            let [id, score, item] = reply::tuple(entry)?;
            let (id, score, item) = (reply::bytes(id)?, reply::score_time(score)?, reply::bytes(item)?);
            match known(&id).and_then(|id| recurrence(id, &item)) {
                // The score in the sorted set decides when it is due, not the time in the item.
                Some(one) => {
                    due.recurrences.push(Recurrence { next: Some(score), paused: false, ..one });
                }
                None => foreign.push(id),
            }
        }
        if !foreign.is_empty() {
            // A recurrence with such an id can never be fired, and would stay due for ever: take it off the sorted
            // set.
            tracing::warn!(%place, ids = ?foreign, "recurring rules with invalid ids are no longer due");
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("ZREM").arg(recur.as_str());
            for id in &foreign {
                pipe.arg(&id[..]);
            }
            self.inner
                .pool
                .send(&pipe)
                .await?
                .into_iter()
                .try_for_each(|answer| reply::ok(answer).map(drop))?;
        }
        Ok(due)
    }

    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>> {
        if fires.len() > MAX_FIRES {
            let why = format!("{} messages of {id} at once, at most {MAX_FIRES} are allowed", fires.len());
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let (keys, [recur, items, delay, wake]) = (&self.inner.keys, self.recur_keys(place));
        let script = &self.inner.scripts.recur_fire;
        let (mut done, mut due) = (0, expected);
        loop {
            let left: Vec<_> = fires[done..].iter().map(|at| time(Some(*at))).collect();
            let call =
                script.call([&recur, &items, &delay, &keys.delay_items(place), &claims(keys, place), &wake]);
            let call = call.args([word(place), id.as_str()]).arg(&reply::score_of(due)[..]);
            let call = call.arg(time(next)).arg(left.join(" "));
            let answer = reply::int(script::run_one(&self.inner.messages, call).await?)?;
            let Ok(stored) = usize::try_from(answer) else { return Ok((done > 0).then_some(done)) };
            // With large bodies the script stores the first messages only, and is due at the next time.
            done += stored;
            match fires.get(done) {
                Some(next) if stored > 0 => due = *next,
                _ => return Ok(Some(done)),
            }
        }
    }
}

impl RedisBackend {
    fn recur_keys(&self, place: &Place) -> [Key; 4] {
        let keys = &self.inner.keys;
        [keys.recur(place), keys.recur_items(place), keys.delay(place), keys.wake(place)]
    }

    /// Sends one command and returns its reply.
    async fn read(&self, key: &Key, pipe: &Pipeline) -> Result<Vec<Value>> {
        let answer = self.inner.bulk.send(pipe).await?.pop().unwrap_or_default();
        reply::array(answer).map_err(|error| error.during(format_args!("read {key}")))
    }
}

/// Formats a time for the scripts.
fn time(at: Option<Timestamp>) -> String {
    at.map(|at| at.as_millis().min(MAX_MS).to_string()).unwrap_or_default()
}

/// Parses a recurrence. A rule that is not UTF-8 becomes one that no version understands.
fn recurrence(id: ScheduleId, item: &Bytes) -> Option<Recurrence> {
    let ([rule, paused, next], fields) = item::unpack::<3>(item)?;
    let rule = String::from_utf8_lossy(&rule).into_owned();
    let next = std::str::from_utf8(&next).ok().and_then(|next| next.parse().ok()).map(Timestamp::from_millis);
    Some(Recurrence { id, rule, fields, next, paused: paused == PAUSED })
}
