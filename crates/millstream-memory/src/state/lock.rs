//! State of one lock: its grant, and the queue of those that wait.

use std::time::Duration;

use millstream_core::LockName;
use millstream_core::leases::Holder;
use millstream_core::locks::{CALL_TTL, LockRequest, LockRevision, LockState, RECORD_KEPT, RECORD_TTL};

use crate::clock::Now;

/// One lock: its grant, and the queue of those that wait. It is removed when it has neither.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub(crate) grant: Option<Record>,
    /// In the order of arrival.
    pub(crate) queue: Vec<Waiting>,
    /// The client that is called.
    pub(crate) called: Option<String>,
    pub(crate) change: LockRevision,
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) owner: String,
    pub(crate) nonce: String,
    pub(crate) epoch: u64,
    pub(crate) ttl: Duration,
    pub(crate) expires: Now,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// In microseconds. Two that arrive in the same one keep their order.
    pub(crate) arrived: u64,
    pub(crate) nonce: String,
    pub(crate) place_ends: Now,
}

impl Lock {
    /// Forgets what has ended by itself.
    pub(crate) fn clean(&mut self, now: Now) {
        self.queue.retain(|waiting| waiting.place_ends > now);
        let kept = |record: &Record| record.expires.plus(RECORD_KEPT) > now;
        self.grant = self.grant.take().filter(kept);
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.grant.is_none() && self.queue.is_empty()
    }

    pub(crate) fn holder(&self, now: Now) -> Option<Holder> {
        let record = self.grant.as_ref().filter(|record| record.expires > now)?;
        Some(Holder::new(record.owner.clone(), record.epoch, record.expires.since(now)))
    }

    /// Returns the state for operators, without what has ended by itself.
    pub(crate) fn state(&self, name: &LockName, now: Now) -> LockState {
        let mut state = LockState::new(name.clone());
        if let Some(record) = self.grant.as_ref().filter(|record| record.expires.plus(RECORD_KEPT) > now) {
            let left = record.expires.since(now);
            // As for a request: a later expiry than any that was set counts as over.
            let left = if left > record.ttl * 2 { Duration::ZERO } else { left };
            state.holder = Some(Holder::new(record.owner.clone(), record.epoch, left));
            state.ttl = record.ttl;
        }
        let mut waiting = self.queue.iter().filter(|waiting| waiting.place_ends > now).peekable();
        let since = |first: &&Waiting| Duration::from_micros(now.micros().saturating_sub(first.arrived));
        state.first_waits = waiting.peek().map(since);
        state.waiting = waiting.count() as u64;
        state
    }

    /// Returns the position of a client in the queue, which it joins if it is not there.
    pub(crate) fn place(&mut self, nonce: &str, arrived: u64) -> usize {
        if let Some(at) = self.queue.iter().position(|waiting| waiting.nonce == nonce) {
            return at;
        }
        let at = self.queue.partition_point(|waiting| waiting.arrived <= arrived);
        self.queue.insert(at, Waiting { arrived, nonce: nonce.to_owned(), place_ends: Now::NEVER });
        at
    }

    /// Shortens the place of the first in the queue to the time that it has to take the lock. True if it was called now.
    pub(crate) fn call(&mut self, now: Now) -> bool {
        let Some(first) = self.queue.first_mut().filter(|it| it.place_ends > now.plus(CALL_TTL)) else {
            return false;
        };
        first.place_ends = now.plus(CALL_TTL);
        self.called = Some(first.nonce.clone());
        true
    }
}

impl Record {
    /// Returns the time until the lock is free for the caller of this request.
    pub(crate) fn free_in(&self, request: &LockRequest, server: &str, now: Now) -> Duration {
        // A remaining time above every granted ttl means that the clock went back: it must not block the lock for ever.
        let far = self.expires.since(now) > self.ttl * 2;
        if self.expires > now && !far {
            return self.expires.since(now);
        }
        // A client that comes anew does not wait for a holder that ended long ago.
        let anew = request.continuity.last().is_none() && !request.continuity.is_assured();
        if anew && !far && self.expires.plus(RECORD_TTL) <= now {
            return Duration::ZERO;
        }
        let expired = if far { now } else { self.expires };
        let longest = request.continuity.ttl().max(self.ttl);
        let deadline = if far { now.timestamp().saturating_sub(longest) } else { expired.timestamp() };
        let free = request.continuity.free_at(server, now.timestamp(), deadline, self.ttl);
        now.until(free)
    }
}
