//! The locks role: one script per operation, and a plain wait for changes.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockGrant, LockRelease, LockReply, LockRequest, LockRevision, LockWait, Locks,
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

/// Field of a change: the nonce that is called.
const NEXT: &[u8] = b"next";

#[async_trait]
impl Locks for RedisBackend {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        request.check()?;
        let keys = LockKeys::new(&self.inner, &request.name);
        let LockKeys { lock, queue, places, changes, epoch } = &keys;
        let call = self.inner.scripts.acquire_lock.call([lock, queue, places, changes, epoch]);
        let call = call.args([&request.owner, &request.nonce]).arg(ttl_ms(request.ttl));
        let call = call.arg(request.heard.to_string()).arg(request.fence_above);
        let queued = if request.queued { "q" } else { "" };
        let announced = if request.announced { "a" } else { "" };
        let call = call.arg(format!("{queued}{announced}"));
        let call = call.arg(request.arrived.map(|arrived| arrived.to_string()).unwrap_or_default());
        // Rounded up: the server counts whole seconds, and a part of one is not enough.
        let least = request.min_uptime.map(|least| least.as_millis().div_ceil(1_000));
        let call = call.arg(least.map(|least| least.to_string()).unwrap_or_default());
        let during = |error: Error| error.during(format_args!("acquire lock {}", request.name));
        let answer = script::run_one(&self.inner.leases, call).await.map_err(during)?;
        acquired(request, answer).map_err(during)
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        let lock = self.inner.keys.lock(&grant.name);
        let call = self.inner.scripts.renew_lock.call([&lock]);
        let call = call.arg(grant.token().as_str()).arg(ttl_ms(grant.ttl));
        script::run_one(&self.inner.leases, call).await.map(drop).map_err(|error| match error.kind() {
            ErrorKind::Fenced => grant.fenced(),
            _ => error.during(format_args!("renew lock {}", grant.name)),
        })
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        let LockKeys { lock, queue, places, changes, .. } = &LockKeys::new(&self.inner, name);
        let call = self.inner.scripts.release_lock.call([lock, queue, places, changes]).arg(nonce);
        let answer = script::run_one(&self.inner.leases, call).await;
        match reply::int(answer.map_err(|error| error.during(format_args!("release lock {name}")))?)? {
            1 => Ok(LockRelease::Released),
            2 => Ok(LockRelease::Left),
            _ => Ok(LockRelease::Absent),
        }
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        let lock = self.inner.keys.lock(name);
        let on = |error: Error| error.during(format_args!("holder of lock {name}"));
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("HMGET").arg(lock.as_str()).arg(&["owner", "epoch", "ttl", "till"]);
        pipe.cmd("TIME");
        let [fields, now] = reply::tuple(Value::Array(self.inner.leases.send(&pipe).await.map_err(on)?))?;
        let [owner, epoch, ttl, till] = reply::tuple(fields).map_err(on)?;
        if till == Value::Nil {
            return Ok(None);
        }
        let now = reply::time(now).map_err(on)?.as_millis();
        let ttl = number(ttl).unwrap_or(0);
        let left = number(till).unwrap_or(0).saturating_sub(now);
        // The same rule as in the script: an expiry that is later than any that was set counts as over.
        if left == 0 || left > ttl.saturating_mul(2) {
            return Ok(None);
        }
        Ok(Some(Holder::new(reply::text(owner)?, number(epoch)?, Duration::from_millis(left))))
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        let changes = self.inner.keys.lock_changes(name);
        let streams = [(&changes, seen.0)];
        let waiting = async { self.inner.changes.of(&changes).await?.wait(&streams, wait).await };
        let changed = waiting.await.and_then(|change| match change {
            Change::Entries(found) => called(found, seen),
            Change::Maybe => Ok(LockChange::Maybe),
            Change::Nothing => Ok(LockChange::Nothing),
        });
        changed.map_err(|error| {
            self.inner.servers.learn(&error);
            error.during(format_args!("wait for {changes}"))
        })
    }
}

/// Keys of one lock. All are in the hash slot of its shard.
struct LockKeys {
    lock: Key,
    queue: Key,
    places: Key,
    changes: Key,
    epoch: Key,
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
        }
    }
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
