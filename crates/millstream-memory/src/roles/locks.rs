//! The locks role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::{Holder, next_epoch};
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, LockWait, Locks, PLACE_TTL,
};
use millstream_core::sorted::sort;
use millstream_core::{LockName, Result};
use tokio::time::{Instant, timeout_at};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::state::lock::{Record, Waiting};

#[async_trait]
impl Locks for MemoryBackend {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        breathe().await;
        request.check()?;
        let now = self.now();
        let mut state = self.lock();
        let uptime = self.uptime();
        if request.min_uptime.is_some_and(|least| uptime < least) {
            return Ok(LockReply::TooYoung(uptime));
        }
        let server = state.server();
        let last_epoch = state.lock_epoch;
        let lock = state.locks.entry(request.name.clone()).or_default();
        lock.clean(now);
        let again =
            lock.grant.as_ref().filter(|record| record.nonce == request.nonce).map(|record| record.epoch);
        let free_in = match &lock.grant {
            Some(record) if again.is_none() => record.free_in(request, &server, now),
            _ => Duration::ZERO,
        };
        let place = lock.queue.iter().find(|waiting| waiting.nonce == request.nonce);
        let arrived = place
            .map_or_else(|| request.arrived.unwrap_or(u64::MAX).min(now.micros()), |waiting| waiting.arrived);
        let is_before =
            |first: &Waiting| first.nonce != request.nonce && (!request.queued || first.arrived <= arrived);
        let others_first = lock.queue.first().is_some_and(is_before);
        if again.is_some() || free_in.is_zero() && !others_first {
            let epoch = again.unwrap_or_else(|| next_epoch(last_epoch, now.timestamp(), request.fence_above));
            lock.grant = Some(Record {
                owner: request.owner.clone(),
                nonce: request.nonce.clone(),
                epoch,
                ttl: request.ttl,
                expires: now.plus(request.ttl),
            });
            lock.queue.retain(|waiting| waiting.nonce != request.nonce);
            state.lock_epoch = last_epoch.max(epoch);
            if request.announced && again.is_none() {
                state.lock_changed(&request.name, None);
            }
            return Ok(LockReply::Granted(LockGrant::new(request, epoch)));
        }
        let holder = lock.grant.as_ref().map(|record| {
            let expires_in = if record.expires > now { record.expires.since(now) } else { free_in };
            Holder::new(record.owner.clone(), record.epoch, expires_in)
        });
        let mut reply = LockWait::new(holder, free_in, now.timestamp());
        let mut called = None;
        if free_in.is_zero() {
            called = lock.call(now).then(|| lock.called.clone()).flatten();
            let ends = lock.queue.first().map_or(now, |first| first.place_ends);
            reply.retry_in = ends.since(now) + Duration::from_millis(1);
        }
        if request.queued {
            let at = lock.place(&request.nonce, arrived);
            lock.queue[at].place_ends = now.plus(PLACE_TTL);
            (reply.ahead, reply.arrived) = (at as u64, arrived);
            reply.server = server;
        }
        if called.is_some() {
            state.lock_changed(&request.name, called);
        }
        reply.seen = state.locks.get(&request.name).map_or_else(LockRevision::default, |lock| lock.change);
        state.forget_unused_lock(&request.name);
        Ok(LockReply::Wait(reply))
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        let now = self.now();
        let mut state = self.lock();
        let held = |lock: &&mut Record| lock.nonce == grant.nonce && lock.epoch == grant.epoch;
        let record = state.locks.get_mut(&grant.name).and_then(|lock| lock.grant.as_mut()).filter(held);
        let record = record.ok_or_else(|| grant.fenced())?;
        (record.expires, record.ttl) = (now.plus(grant.ttl), grant.ttl);
        Ok(())
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        Ok(self.end_lock(name, nonce, |record| record.nonce == nonce))
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        let now = self.now();
        Ok(self.lock().locks.get(name).and_then(|lock| lock.holder(now)))
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        let until = Instant::now() + wait.min(Duration::from_secs(3_600));
        loop {
            let notice = self.lock().lock_changes.clone();
            // Created before the check, so that a change in between is not missed.
            let mut notified = std::pin::pin!(notice.notified());
            notified.as_mut().enable();
            let newest = self.lock().locks.get(name).map(|lock| (lock.change, lock.called.clone()));
            match newest {
                Some((change, called)) if change > seen => return Ok(LockChange::Called(change, called)),
                // It was removed with its last change.
                None if seen != LockRevision::default() => return Ok(LockChange::Maybe),
                _ => {}
            }
            if timeout_at(until, notified).await.is_err() {
                return Ok(LockChange::Nothing);
            }
            if !self.lock().locks.contains_key(name) {
                return Ok(LockChange::Maybe);
            }
        }
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        breathe().await;
        let now = self.now();
        let unused = || LockState::new(name.clone());
        Ok(self.lock().locks.get(name).map_or_else(unused, |lock| lock.state(name, now)))
    }

    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        breathe().await;
        let now = self.now();
        let state = self.lock();
        let is_next = |name: &&LockName| from.is_none_or(|from| name.as_str() > from.0.as_str());
        let mut names: Vec<&LockName> = state.locks.keys().filter(is_next).collect();
        sort(&mut names);
        let is_cut = names.len() > limit.max(1);
        names.truncate(limit.max(1));
        let next = names.last().filter(|_| is_cut).map(|last| LockCursor(last.to_string()));
        let mut locks: Vec<_> = names.into_iter().map(|name| state.locks[name].state(name, now)).collect();
        locks.retain(|lock| !lock.is_unused());
        Ok(LockPage::new(locks, next))
    }

    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool> {
        breathe().await;
        Ok(self.end_lock(name, "", |record| record.epoch == epoch) == LockRelease::Released)
    }
}

impl MemoryBackend {
    /// Ends the attempt with this nonce, and the grant if it is the one that is meant.
    fn end_lock(&self, name: &LockName, nonce: &str, is_meant: impl Fn(&Record) -> bool) -> LockRelease {
        let now = self.now();
        let mut state = self.lock();
        let Some(lock) = state.locks.get_mut(name) else { return LockRelease::Absent };
        let waited = lock.queue.iter().any(|waiting| waiting.nonce == nonce);
        lock.queue.retain(|waiting| waiting.nonce != nonce);
        lock.clean(now);
        let held = lock.grant.as_ref().is_some_and(is_meant);
        if held {
            lock.grant = None;
        }
        let called = lock.grant.is_none() && lock.call(now);
        let next = if called { lock.called.clone() } else { None };
        if held || called {
            state.lock_changed(name, next);
        }
        state.forget_unused_lock(name);
        match (held, waited) {
            (true, _) => LockRelease::Released,
            (false, true) => LockRelease::Left,
            (false, false) => LockRelease::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Continuity;
    use millstream_core::locks::RECORD_TTL;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_a_released_lock_and_a_dead_holder_is_forgotten() {
        let memory = MemoryBackend::new();
        let name: LockName = "a".parse().expect("name");
        let second = Duration::from_secs(1);
        for n in 0..100 {
            let request = LockRequest::new(name.clone(), "me", format!("n{n}"), second);
            assert!(matches!(memory.acquire(&request).await, Ok(LockReply::Granted(_))));
            assert_eq!(
                Locks::release(&memory, &name, &request.nonce).await.expect("ok"),
                LockRelease::Released
            );
        }
        assert!(memory.lock().locks.is_empty());
        let mut request = LockRequest::new(name.clone(), "me", "dead", second);
        assert!(matches!(memory.acquire(&request).await, Ok(LockReply::Granted(_))));
        tokio::time::advance(second + RECORD_TTL).await;
        (request.nonce, request.continuity) = ("next".into(), Continuity::new(second));
        let granted = memory.acquire(&request).await;
        assert!(
            matches!(granted, Ok(LockReply::Granted(_))),
            "after the bounded time anybody may have it: {granted:?}"
        );
    }
}
