//! The locks role: one script per operation, a plain wait for changes, and reads for operators.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::{Key, LOCK_SHARDS};
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, LockWait, Locks,
};
use millstream_core::name::LockName;
use millstream_core::timestamp::Timestamp;
use redis::{Pipeline, Value};

use crate::backend::{Inner, RedisBackend};
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::waits::changes::Change;
use crate::error::unexpected;
use crate::roles::leases::ttl_ms;
use crate::scripts::script;

/// Fields of the record of a grant.
const GRANT: [&str; 4] = ["owner", "epoch", "ttl", "till"];

/// Shards whose lists are read in one request.
const SHARDS_AT_ONCE: u64 = 64;

/// Bounds of the number of names of one shard that a server is asked for at a time: well below a millisecond.
const MIN_SCAN: usize = 10;
const MAX_SCAN: usize = 500;

/// Locks whose state is read in one request.
const STATES_AT_ONCE: usize = 200;

/// Field of a change: the nonce that is called.
const NEXT: &[u8] = b"next";

#[async_trait]
impl Locks for RedisBackend {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        request.check()?;
        let keys = LockKeys::new(&self.inner, &request.name);
        let LockKeys { lock, queue, places, changes, epoch, index } = &keys;
        let call = self.inner.scripts.acquire_lock.call([lock, queue, places, changes, epoch, index]);
        let call = call.args([&request.owner, &request.nonce]).arg(ttl_ms(request.ttl));
        let call = call.arg(request.continuity.to_string()).arg(request.fence_above);
        let queued = if request.queued { "q" } else { "" };
        let announced = if request.announced { "a" } else { "" };
        let call = call.arg(format!("{queued}{announced}"));
        let call = call.arg(request.arrived.map(|arrived| arrived.to_string()).unwrap_or_default());
        // Rounded up: the server counts whole seconds, and a part of one is not enough.
        let least = request.min_uptime.map(|least| least.as_millis().div_ceil(1_000));
        let call = call.arg(least.map(|least| least.to_string()).unwrap_or_default());
        let call = call.arg(request.name.as_str());
        let during = |error: Error| error.during(format_args!("acquire lock {}", request.name));
        let answer = script::run_one(&self.inner.leases, call).await.map_err(during)?;
        acquired(request, answer).map_err(during)
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        let LockKeys { lock, index, .. } = &LockKeys::new(&self.inner, &grant.name);
        let call = self.inner.scripts.renew_lock.call([lock, index]);
        let call = call.arg(grant.token().as_str()).arg(ttl_ms(grant.ttl)).arg(grant.name.as_str());
        script::run_one(&self.inner.leases, call).await.map(drop).map_err(|error| match error.kind() {
            ErrorKind::Fenced => grant.fenced(),
            _ => error.during(format_args!("renew lock {}", grant.name)),
        })
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        self.end_lock(name, nonce, "").await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        let lock = self.inner.keys.lock(name);
        let on = |error: Error| error.during(format_args!("holder of lock {name}"));
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("HMGET").arg(lock.as_str()).arg(&GRANT);
        pipe.cmd("TIME");
        let [fields, now] = reply::tuple(Value::Array(self.inner.leases.send(&pipe).await.map_err(on)?))?;
        let now = reply::time(now).map_err(on)?.as_millis();
        let granted = granted(fields, now).map_err(on)?;
        Ok(granted.map(|(holder, _)| holder).filter(|holder| !holder.expires_in.is_zero()))
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        let changes = self.inner.keys.lock_changes(name);
        let streams = [(&changes, seen.0)];
        let waiting = async { self.inner.changes.of(&changes).await?.wait(&streams, wait).await };
        let changed = waiting.await.and_then(|change| match change {
            Change::Found(found) => called(found, seen),
            Change::Maybe => Ok(LockChange::Maybe),
            Change::Nothing => Ok(LockChange::Nothing),
        });
        changed.map_err(|error| {
            self.inner.servers.learn(&error);
            error.during(format_args!("wait for {changes}"))
        })
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        let states = self.lock_states(vec![name.clone()]).await;
        let mut states = states.map_err(|error| error.during(format_args!("state of lock {name}")))?;
        states.pop().ok_or_else(|| unexpected("no reply"))
    }

    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        let (mut shard, mut at) = from.map_or(Ok((0, 0)), position)?;
        let on = |error: Error| error.during("list locks");
        let mut names = Vec::new();
        // Empty shards cost little, so that many are read in one request. The one in which a page ends is read alone.
        while names.len() < limit.max(1) && shard < LOCK_SHARDS {
            let ahead = if at == 0 { SHARDS_AT_ONCE.min(LOCK_SHARDS - shard) } else { 1 };
            let count = (limit / ahead as usize).clamp(MIN_SCAN, MAX_SCAN);
            let indexes: Vec<Key> =
                (shard..shard + ahead).map(|each| self.inner.keys.lock_index_of(each)).collect();
            let mut pipe = Pipeline::with_capacity(indexes.len());
            for index in &indexes {
                pipe.cmd("ZSCAN").arg(index.as_str()).arg(at).arg("COUNT").arg(count);
            }
            for value in self.inner.leases.send(&pipe).await.map_err(on)? {
                let [next, found] = reply::tuple(reply::ok(value).map_err(on)?).map_err(on)?;
                // Names and their times alternate.
                for name in reply::array(found).map_err(on)?.into_iter().step_by(2) {
                    names.extend(LockName::new(&reply::text(name)?).ok());
                }
                at = number(next).map_err(on)?;
                if at != 0 {
                    break;
                }
                shard += 1;
            }
        }
        let next = (shard < LOCK_SHARDS).then(|| LockCursor(format!("{shard}:{at}")));
        let mut locks = self.lock_states(names).await.map_err(on)?;
        // Those that ended by themselves are listed until their shard is used again.
        locks.retain(|lock| !lock.is_unused());
        Ok(LockPage::new(locks, next))
    }

    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool> {
        let ended = self.end_lock(name, "", &epoch.to_string()).await?;
        Ok(ended == LockRelease::Released)
    }
}

impl RedisBackend {
    /// Ends the attempt with this nonce, or the grant with this epoch.
    async fn end_lock(&self, name: &LockName, nonce: &str, epoch: &str) -> Result<LockRelease> {
        let LockKeys { lock, queue, places, changes, index, .. } = &LockKeys::new(&self.inner, name);
        let call = self.inner.scripts.release_lock.call([lock, queue, places, changes, index]);
        let call = call.args([nonce, name.as_str(), epoch]);
        let answer = script::run_one(&self.inner.leases, call).await;
        match reply::int(answer.map_err(|error| error.during(format_args!("release lock {name}")))?)? {
            1 => Ok(LockRelease::Released),
            2 => Ok(LockRelease::Left),
            _ => Ok(LockRelease::Absent),
        }
    }

    /// Returns the state of each of these locks, in a few requests.
    async fn lock_states(&self, names: Vec<LockName>) -> Result<Vec<LockState>> {
        let mut states = Vec::with_capacity(names.len());
        for names in names.chunks(STATES_AT_ONCE) {
            let mut pipe = Pipeline::with_capacity(names.len() * 3 + 1);
            for name in names {
                let LockKeys { lock, queue, .. } = LockKeys::new(&self.inner, name);
                pipe.cmd("HMGET").arg(lock.as_str()).arg(&GRANT);
                pipe.cmd("ZCARD").arg(queue.as_str());
                pipe.cmd("ZRANGE").arg(queue.as_str()).arg(0).arg(0).arg("WITHSCORES");
            }
            pipe.cmd("TIME");
            let mut values = self.inner.leases.send(&pipe).await?;
            let now = reply::time(values.pop().unwrap_or_default())?.as_millis();
            let mut values = values.into_iter();
            for name in names {
                let [fields, waiting, first] = [(); 3].map(|()| values.next().unwrap_or_default());
                let mut state = LockState::new(name.clone());
                if let Some((holder, ttl)) = granted(fields, now)? {
                    (state.holder, state.ttl) = (Some(holder), ttl);
                }
                state.waiting = reply::count(reply::ok(waiting)?)? as u64;
                let since = |arrived| Duration::from_micros((now * 1_000).saturating_sub(arrived));
                state.first_waits = arrival(first)?.map(since);
                states.push(state);
            }
        }
        Ok(states)
    }
}

/// Keys of one lock. All are in the hash slot of its shard.
struct LockKeys {
    lock: Key,
    queue: Key,
    places: Key,
    changes: Key,
    epoch: Key,
    index: Key,
}

impl LockKeys {
    fn new(inner: &Inner, name: &LockName) -> Self {
        let keys = &inner.keys;
        Self {
            lock: keys.lock(name),
            queue: keys.lock_queue(name),
            places: keys.lock_places(name),
            changes: keys.lock_changes(name),
            epoch: keys.lock_epoch(name),
            index: keys.lock_index(name),
        }
    }
}

/// Returns the holder and the ttl of a grant, from the fields of its record. The time left of a holder that was not renewed in
/// time is zero.
fn granted(fields: Value, now: u64) -> Result<Option<(Holder, Duration)>> {
    let [owner, epoch, ttl, till] = reply::tuple(reply::ok(fields)?)?;
    if till == Value::Nil {
        return Ok(None);
    }
    let (ttl, left) = (number(ttl)?, number(till)?.saturating_sub(now));
    // The same rule as in the script: an expiry that is later than any that was set counts as over.
    let left = if left > ttl.saturating_mul(2) { 0 } else { left };
    let holder = Holder::new(reply::text(owner)?, number(epoch)?, Duration::from_millis(left));
    Ok(Some((holder, Duration::from_millis(ttl))))
}

/// Parses the first of a queue with its arrival: flat in RESP2, nested with a float in RESP3.
fn arrival(first: Value) -> Result<Option<u64>> {
    let mut first = reply::array(first)?;
    if let Some(Value::Array(nested)) = first.first_mut() {
        first = std::mem::take(nested);
    }
    match first.into_iter().nth(1) {
        None => Ok(None),
        // Microseconds since 1970 are exact in a float until the year 2255.
        Some(Value::Double(arrived)) => Ok(Some(arrived as u64)),
        Some(arrived) => number(arrived).map(Some),
    }
}

/// Parses a cursor: the shard, and the position in its index.
fn position(cursor: &LockCursor) -> Result<(u64, u64)> {
    let parts =
        cursor.0.split_once(':').and_then(|(shard, at)| Some((shard.parse().ok()?, at.parse().ok()?)));
    let why = || {
        Error::new(ErrorKind::InvalidConfig, format!("{:?} is no position in the list of locks", cursor.0))
    };
    parts.filter(|(shard, _)| *shard < LOCK_SHARDS).ok_or_else(why)
}

fn number(value: Value) -> Result<u64> {
    let text = reply::text(value)?;
    text.parse().map_err(|_| unexpected(format_args!("{text:?} instead of a number")))
}

fn millis(value: Value) -> Result<Duration> {
    Ok(Duration::from_millis(u64::try_from(reply::int(value)?).unwrap_or(0)))
}

fn acquired(request: &LockRequest, answer: Value) -> Result<LockReply> {
    let mut answer = reply::array(answer)?;
    let rest = answer.split_off(answer.len().min(1));
    match reply::int(answer.pop().unwrap_or_default())? {
        1 => {
            let [epoch] = reply::tuple(Value::Array(rest))?;
            Ok(LockReply::Granted(LockGrant::new(request, number(epoch)?)))
        }
        2 => {
            let [uptime] = reply::tuple(Value::Array(rest))?;
            Ok(LockReply::TooYoung(Duration::from_secs(reply::count(uptime)? as u64)))
        }
        _ => {
            let [owner, epoch, left, retry, ahead, arrived, revision, server, now] =
                reply::tuple(Value::Array(rest))?;
            let epoch = number(epoch)?;
            let holder = Holder::new(reply::text(owner)?, epoch, millis(left)?);
            let now = Timestamp::from_millis(number(now)?);
            let mut wait = LockWait::new((epoch > 0).then_some(holder), millis(retry)?, now);
            (wait.ahead, wait.arrived) = (reply::count(ahead)? as u64, number(arrived)?);
            (wait.seen, wait.server) = (LockRevision(reply::id(revision)?), reply::text(server)?);
            Ok(LockReply::Wait(wait))
        }
    }
}

/// Parses the newest change of a stream.
fn called(found: Value, seen: LockRevision) -> Result<LockChange> {
    let entries = reply::streams(found)?.into_iter().flat_map(|(_, entries)| entries);
    let (mut id, mut next) = (MessageId::ZERO, None);
    for (newer, fields) in entries {
        let fields = fields.unwrap_or_default();
        let nonce = fields.iter().find(|(name, _)| &name[..] == NEXT).map(|(_, nonce)| nonce);
        (id, next) = (newer, nonce.map(|nonce| String::from_utf8_lossy(nonce).into_owned()));
    }
    Ok(if id > seen.0 { LockChange::Called(LockRevision(id), next) } else { LockChange::Maybe })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> LockRequest {
        LockRequest::new("a".parse().expect("name"), "me", "n", Duration::from_secs(1))
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn replies_are_read() {
        let granted = acquired(&request(), Value::Array(vec![Value::Int(1), bulk("7")])).expect("a grant");
        assert_eq!(granted, LockReply::Granted(LockGrant::new(&request(), 7)));
        let young = acquired(&request(), Value::Array(vec![Value::Int(2), Value::Int(3)])).expect("young");
        assert_eq!(young, LockReply::TooYoung(Duration::from_secs(3)));
    }

    #[test]
    fn arrivals_are_read_in_both_protocols() {
        let flat = Value::Array(vec![bulk("n"), bulk("1700000000000001")]);
        let nested =
            Value::Array(vec![Value::Array(vec![bulk("n"), Value::Double(1_700_000_000_000_001.0)])]);
        for reply in [flat, nested] {
            assert_eq!(arrival(reply).expect("an arrival"), Some(1_700_000_000_000_001));
        }
        assert_eq!(arrival(Value::Array(vec![])).expect("nobody"), None);
    }

    #[test]
    fn a_cursor_of_another_backend_is_refused() {
        assert_eq!(position(&LockCursor("7:123".into())).expect("a position"), (7, 123));
        for text in ["", "7", "7:", "256:0", "-1:0", "invoice:42"] {
            let error = position(&LockCursor(text.into())).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
        }
    }

    #[test]
    fn a_grant_that_was_not_renewed_has_no_time_left() {
        let fields = |till: u64| {
            Value::Array(
                [&"me".to_owned(), &"7".into(), &"1000".into(), &till.to_string()].map(|it| bulk(it)).into(),
            )
        };
        let left = |till, now| granted(fields(till), now).expect("a grant").expect("a holder").0.expires_in;
        assert_eq!(left(5_000, 4_400).as_millis(), 600);
        assert_eq!(left(5_000, 5_000).as_millis(), 0);
        assert_eq!(left(9_000, 5_000).as_millis(), 0, "the clock went back");
        assert_eq!(granted(Value::Array(vec![Value::Nil; 4]), 1).expect("a reply"), None);
    }

    #[test]
    fn nonsense_is_refused() {
        let numbers = [Value::Int(0), bulk("you"), bulk("7"), Value::Int(5), Value::Int(6), Value::Int(2)];
        let texts = [bulk("1700000000000000"), bulk("5-0"), bulk("a.b"), bulk("1700000000000")];
        let values = [&numbers[..], &texts[..]].concat();
        let LockReply::Wait(wait) = acquired(&request(), Value::Array(values.clone())).expect("a reply")
        else {
            panic!("it is no grant");
        };
        assert_eq!((wait.ahead, wait.arrived, wait.retry_in.as_millis()), (2, 1_700_000_000_000_000, 6));
        // The owner and the server's name for itself may be any text.
        for at in [0, 2, 3, 4, 5, 6, 7, 9] {
            let mut values = values.clone();
            values[at] = bulk("x");
            let error = acquired(&request(), Value::Array(values)).expect_err("nonsense");
            assert_eq!(error.kind(), ErrorKind::Protocol, "{at}");
        }
        for too_few in [vec![], vec![Value::Int(1)], vec![Value::Int(0), bulk("you")]] {
            assert!(acquired(&request(), Value::Array(too_few)).is_err());
        }
    }
}
