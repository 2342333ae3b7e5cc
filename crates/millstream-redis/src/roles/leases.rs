//! The leases role: scripts over the lease key, which expires, and the fence, which does not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use millstream_core::continuity::Continuity;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::leases::{Acquired, Holder, Lease, Leases, Resource, renewal_timeout};
use millstream_core::name::GroupName;
use millstream_core::sorted::sort_by;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::backend::{Inner, RedisBackend};
use crate::conn::cluster::together::together;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::{fenced, never_sent, no_answer, unexpected};
use crate::scripts::gate::closing_gate;
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
        let (tp, group) = place(resource)?;
        Ok([self.keys.lease(tp, group), self.keys.fence(tp, group)])
    }
}

/// Number of leases that a call renews: it takes the server less than a millisecond.
const RENEWED_AT_ONCE: usize = 250;

/// Returns the partition and group of a resource.
fn place(resource: &Resource) -> Result<(&TopicPartition, &GroupName)> {
    match resource {
        Resource::Partition { topic_partition, group } => Ok((topic_partition, group)),
        other => Err(Error::new(ErrorKind::Unsupported, format!("no key is known for {other}"))),
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
        let continuity = self.inner.continuity_of(&fence, continuity).to_string();
        let call = |gate: &Key, reader: &str| {
            let call = self.inner.scripts.acquire.call([&lease, &fence, gate]);
            call.arg(owner).arg(nonce).arg(ttl_ms(ttl)).args([&continuity, reader])
        };
        let answer = closing_gate(&self.inner.keys, &self.inner.leases, place(resource)?, call).await;
        let acquired = answer.and_then(|answer| acquired(resource, nonce, ttl, answer));
        // A damaged fence makes the reply invalid: the error then names the partition too.
        acquired.map_err(|error| of(resource, error.during(format_args!("acquire {resource}"))))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        if self.inner.at_once(RENEWED_AT_ONCE) == 1 {
            // A node that does not answer must not delay the renewals at other nodes.
            return self.renew_all(leases).await;
        }
        let backend = self.clone();
        let send = move |all: Vec<Vec<Lease>>| {
            async move {
                let mut renewed = backend.renew_all(&all.concat()).await.into_iter();
                all.iter().map(|leases| renewed.by_ref().take(leases.len()).collect()).collect()
            }
            .boxed()
        };
        let spawn = |task| self.inner.leases.spawn(task);
        let renewed = self.inner.renewals.ask(leases.to_vec(), spawn, send).await;
        renewed.unwrap_or_else(|| vec![Err(never_sent()); leases.len()])
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let [key, fence] = self.inner.lease_keys(&lease.resource)?;
        let ends = lease.ends.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let call = |gate: &Key, reader: &str| {
            let call = self.inner.scripts.release.call([&key, &fence, gate]);
            call.args([lease.token.as_str(), &ends, reader])
        };
        let answer = closing_gate(&self.inner.keys, &self.inner.leases, place(&lease.resource)?, call).await;
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

/// Whether a server refuses a call since its keys are of several slots. Names have no spaces, so no key looks like it.
fn is_of_slots(error: &Error) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    ["same slot", "crossslot keys", "crossslot: keys"].iter().any(|words| text.contains(words))
}

impl Inner {
    /// Returns how many leases or heartbeats a call has: `most`, but on a cluster each has a slot of its own.
    pub(crate) fn at_once(&self, most: usize) -> usize {
        let alone = self.servers.cluster().is_some() || self.sent_alone.load(Ordering::Relaxed);
        if alone { 1 } else { most }
    }

    /// Whether a call with several leases or heartbeats is refused for what may not concern each of them, so that each is to be
    /// sent alone: the right to one of the keys, or keys of several slots, where several servers are behind one address. Then all
    /// further ones are.
    pub(crate) fn is_for_alone(&self, error: &Error) -> bool {
        let of_slots = is_of_slots(error);
        if of_slots {
            self.sent_alone.store(true, Ordering::Relaxed);
        }
        of_slots || error.kind() == ErrorKind::Denied
    }
}

impl RedisBackend {
    async fn renew_all(&self, leases: &[Lease]) -> Vec<Result<()>> {
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
            let of = |at: &usize| (&keys[*at], &leases[*at]);
            let renewals = async {
                let at_once = self.inner.at_once(RENEWED_AT_ONCE);
                let all: Vec<_> = positions.iter().map(of).collect();
                let mut renewed = self.renew_some(&all, at_once).await;
                let alone =
                    |result: &Result<()>| result.as_ref().is_err_and(|error| self.inner.is_for_alone(error));
                let again: Vec<_> =
                    (0..renewed.len()).filter(|at| at_once > 1 && alone(&renewed[*at])).collect();
                if !again.is_empty() {
                    let some: Vec<_> = again.iter().map(|at| all[*at]).collect();
                    for (at, answer) in again.into_iter().zip(self.renew_some(&some, 1).await) {
                        renewed[at] = answer;
                    }
                }
                renewed
            };
            let answers = timeout(limit, renewals).await;
            answers.unwrap_or_else(|_| positions.iter().map(|_| Err(no_answer(limit))).collect())
        };
        let requests = servers.iter().map(|positions| request(positions).boxed()).collect();
        let answers = servers.iter().flatten().zip(together(requests).await.into_iter().flatten());
        let mut renewed: Vec<(usize, Result<()>)> = answers
            .map(|(at, answer)| match (answer, &leases[*at]) {
                (Ok(()), _) => (*at, Ok(())),
                (Err(error), lease) if error.kind() == ErrorKind::Fenced => (*at, Err(lease.fenced())),
                (Err(error), lease) => (*at, Err(of(&lease.resource, error.during("renew leases")))),
            })
            .collect();
        sort_by(&mut renewed, |(one, _), (other, _)| one.cmp(other));
        renewed.into_iter().map(|(_, renewed)| renewed).collect()
    }

    async fn renew_some(&self, all: &[(&[Key; 2], &Lease)], at_once: usize) -> Vec<Result<()>> {
        let calls = all.chunks(at_once).map(|some| {
            let rows: Vec<[Key; 2]> = some.iter().map(|(keys, _)| (*keys).clone()).collect();
            let mut call = self.inner.scripts.renew.call_with_rows([], &rows);
            for (_, lease) in some {
                call.push(lease.token.as_str());
                call.push(ttl_ms(lease.ttl));
            }
            call
        });
        let answers = script::run(&self.inner.leases, calls.collect()).await;
        answers
            .into_iter()
            .zip(all.chunks(at_once))
            .flat_map(|(answer, some)| renewed(answer, some.len()))
            .collect()
    }
}

/// Parses the reply of a call of the script `renew`: one result for each of its leases.
fn renewed(answer: Result<Value>, leases: usize) -> Vec<Result<()>> {
    let answers = answer.and_then(reply::array).and_then(|answers| match answers.len() == leases {
        true => Ok(answers),
        false => Err(unexpected(format_args!("{} answers for {leases} leases", answers.len()))),
    });
    let one = |answer: Value| match answer {
        Value::Int(_) => Ok(()),
        text => {
            let text = reply::text(text)?;
            let kind = match text.split(' ').next() {
                Some("FENCED") => ErrorKind::Fenced,
                Some("WRONGTYPE" | "-WRONGTYPE") => ErrorKind::WrongType,
                _ => ErrorKind::Protocol,
            };
            Err(Error::new(kind, text))
        }
    };
    match answers {
        Ok(answers) => answers.into_iter().map(one).collect(),
        Err(error) => vec![Err(error); leases],
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
