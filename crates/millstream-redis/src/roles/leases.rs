//! The leases role: scripts over the lease key, which expires, and the fence, which does not.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use millstream_core::continuity::Continuity;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::leases::{Acquired, Holder, Lease, Leases, Resource, renewal_timeout};
use millstream_core::sorted::sort_by;
use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::backend::{Inner, RedisBackend};
use crate::conn::cluster::together::together;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::{fenced, no_answer, unexpected};
use crate::scripts::script;

/// Adds the partition of the resource that an error concerns.
fn of(resource: &Resource, error: Error) -> Error {
    match resource {
        Resource::Partition { topic_partition, .. } => error.at(topic_partition),
        _ => error,
    }
}

impl Inner {
    /// Returns the keys of a resource's lease and fence.
    fn lease_keys(&self, resource: &Resource) -> Result<[Key; 2]> {
        match resource {
            Resource::Partition { topic_partition, group } => {
                Ok([self.keys.lease(topic_partition, group), self.keys.fence(topic_partition, group)])
            }
            other => Err(Error::new(ErrorKind::Unsupported, format!("no key is known for {other}"))),
        }
    }
}

/// Returns a ttl in milliseconds: at least 1, at most 2^52, since Lua counts exactly up to 2^53.
pub(crate) fn ttl_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 52)
}

#[async_trait]
impl Leases for RedisBackend {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        let [lease, fence] = self.inner.lease_keys(resource)?;
        let call = self.inner.scripts.acquire.call([&lease, &fence]);
        let continuity = self.inner.continuity_of(&fence, continuity);
        let call = call.arg(owner).arg(nonce).arg(ttl_ms(ttl)).arg(continuity.to_string());
        let answer = script::run_one(&self.inner.leases, call).await;
        let acquired = answer.and_then(|answer| acquired(resource, nonce, ttl, answer));
        // A damaged fence makes the reply invalid: the error then names the partition too.
        acquired.map_err(|error| of(resource, error.during(format_args!("acquire {resource}"))))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        let keys: Result<Vec<_>> =
            leases.iter().map(|lease| self.inner.lease_keys(&lease.resource)).collect();
        let keys = match keys {
            Ok(keys) => keys,
            Err(error) => return vec![Err(error); leases.len()],
        };
        let servers = self.inner.by_server(keys.iter().map(|[_, fence]| fence));
        // A node that does not answer must not cost the leases at other nodes: their answers are known only when this call
        // returns, and the caller waits no longer than this.
        let ttl = leases.iter().map(|lease| lease.ttl).min().filter(|_| servers.len() > 1);
        let limit = ttl.map_or(Duration::MAX, |ttl| renewal_timeout(ttl) * 3 / 4);
        let request = async |positions: &Vec<usize>| {
            let calls = positions.iter().map(|at| {
                let ([key, fence], lease) = (&keys[*at], &leases[*at]);
                let call = self.inner.scripts.renew.call([key, fence]);
                call.arg(lease.token.as_str()).arg(ttl_ms(lease.ttl))
            });
            let answers = timeout(limit, script::run(&self.inner.leases, calls.collect())).await;
            answers.unwrap_or_else(|_| vec![Err(no_answer(limit)); positions.len()])
        };
        let requests = servers.iter().map(|positions| request(positions).boxed()).collect();
        let answers = servers.iter().flatten().zip(together(requests).await.into_iter().flatten());
        let mut renewed: Vec<(usize, Result<()>)> = answers
            .map(|(at, answer)| match (answer, &leases[*at]) {
                (Ok(_), _) => (*at, Ok(())),
                (Err(error), lease) if error.kind() == ErrorKind::Fenced => (*at, Err(lease.fenced())),
                (Err(error), lease) => (*at, Err(of(&lease.resource, error.during("renew leases")))),
            })
            .collect();
        sort_by(&mut renewed, |(one, _), (other, _)| one.cmp(other));
        renewed.into_iter().map(|(_, renewed)| renewed).collect()
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let [key, fence] = self.inner.lease_keys(&lease.resource)?;
        let call = self.inner.scripts.release.call([&key, &fence]).arg(lease.token.as_str());
        let ends: Vec<_> = lease.ends.iter().map(u64::to_string).collect();
        let call = call.arg(ends.join(" "));
        let answer = script::run_one(&self.inner.leases, call).await;
        answer.map(drop).map_err(|error| fenced(error, lease))
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        let [_, fence] = self.inner.lease_keys(&lease.resource)?;
        let call = self.inner.scripts.withdraw_end.call([&fence]).arg(lease.epoch);
        script::run_one(&self.inner.leases, call).await.map(drop)
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        let [lease, fence] = self.inner.lease_keys(resource)?;
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("HMGET").arg(fence.as_str()).arg(&["owner", "token", "epoch", "ttl"]);
        pipe.cmd("GET").arg(lease.as_str());
        pipe.cmd("PTTL").arg(lease.as_str());
        let answers = self.inner.leases.send(&pipe).await?;
        let [last, held, pttl] = reply::tuple(Value::Array(answers))?;
        let on = |key: &Key| {
            let key = key.clone();
            move |error: Error| of(resource, error.during(format_args!("holder of {key}")))
        };
        let [owner, token, stored, ttl] = reply::tuple(last).map_err(on(&fence))?;
        let held = reply::maybe_bytes(held).map_err(on(&lease))?;
        let pttl = u64::try_from(reply::int(pttl)?).unwrap_or(0);
        let ttl = reply::maybe_bytes(ttl)?.and_then(|ttl| std::str::from_utf8(&ttl).ok()?.parse().ok());
        // The same rule as in the script `acquire`: a lease without an expiry, or with a later one than was set,
        // counts as free.
        let lives = pttl > 0 && pttl <= ttl.unwrap_or(0u64).saturating_mul(2);
        if held.is_none() || held != reply::maybe_bytes(token)? || !lives {
            return Ok(None);
        }
        let (owner, epoch) = (reply::text(owner)?, epoch(stored)?);
        Ok(Some(Holder::new(owner, epoch, Duration::from_millis(pttl))))
    }
}

/// Parses the epochs in a fence. A word that is no number was written by somebody else and is skipped.
pub(crate) fn ends(text: &str) -> Vec<u64> {
    text.split(' ').filter_map(|epoch| epoch.parse().ok()).collect()
}

/// Parses the reply of the script `acquire`.
fn acquired(resource: &Resource, nonce: &str, ttl: Duration, answer: Value) -> Result<Acquired> {
    let mut answer = reply::array(answer)?.into_iter();
    let mut next = || answer.next().ok_or_else(|| unexpected("too few values"));
    if reply::int(next()?)? == 1 {
        let (epoch, ends) = (epoch(next()?)?, ends(&reply::text(next()?)?));
        let lease = Lease::new(resource.clone(), epoch, nonce, ttl);
        return Ok(Acquired::Granted(lease.after_ends(ends)));
    }
    let (owner, epoch) = (reply::text(next()?)?, epoch(next()?)?);
    let expires_in = Duration::from_millis(u64::try_from(reply::int(next()?)?).unwrap_or(0));
    Ok(Acquired::Held(Holder::new(owner, epoch, expires_in)))
}

fn epoch(value: Value) -> Result<u64> {
    let text = reply::text(value)?;
    text.parse().map_err(|_| unexpected(format_args!("{text:?} instead of an epoch")))
}
