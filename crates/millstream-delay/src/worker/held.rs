//! The claims that a worker holds, as it sees them: deadlines that need nobody's answer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::ScheduleId;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// All claims of a worker, from their answer until they are settled.
#[derive(Debug)]
pub(super) struct Held {
    hold: Duration,
    /// By shard and task.
    claims: Mutex<BTreeMap<(u32, ScheduleId), Claim>>,
    changed: Notify,
}

#[derive(Debug)]
struct Claim {
    token: String,
    /// Up to when it is certainly ours.
    deadline: Instant,
    /// Cancelled when it is not any more.
    cancelled: CancellationToken,
}

impl Held {
    pub(super) fn new(hold: Duration) -> Self {
        Self { hold, claims: Mutex::default(), changed: Notify::new() }
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<(u32, ScheduleId), Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's time began at some time between the request and its answer. Counted from the request, and a fifth
    /// earlier: for clocks that run at different speeds, and for slow handlers.
    fn deadline(&self, asked: Instant) -> Instant {
        asked + self.hold - self.hold / 5
    }

    /// A claim that was asked for at `asked`. Gives back what is cancelled when it is not certainly ours any more; `None`
    /// if the task is in hand already: the claim ran out, and is ours again. Then it is held for the handler that runs.
    pub(super) fn begin(
        &self,
        shard: u32,
        id: &ScheduleId,
        token: &str,
        asked: Instant,
    ) -> Option<CancellationToken> {
        let (token, deadline) = (token.to_owned(), self.deadline(asked));
        let mut claims = self.claims();
        if let Some(claim) = claims.get_mut(&(shard, id.clone())) {
            (claim.token, claim.deadline) = (token, deadline);
            return None;
        }
        let cancelled = CancellationToken::new();
        claims.insert((shard, id.clone()), Claim { token, deadline, cancelled: cancelled.clone() });
        drop(claims);
        self.changed.notify_waiters();
        Some(cancelled)
    }

    /// What settles a task.
    pub(super) fn token(&self, shard: u32, id: &ScheduleId) -> String {
        self.claims().get(&(shard, id.clone())).map(|claim| claim.token.clone()).unwrap_or_default()
    }

    /// It was settled with `token`. False if it has been claimed anew since: then it is to be settled once more.
    pub(super) fn end(&self, shard: u32, id: &ScheduleId, token: &str) -> bool {
        let key = (shard, id.clone());
        let mut claims = self.claims();
        if claims.get(&key).is_some_and(|claim| claim.token != token) {
            return false;
        }
        claims.remove(&key);
        drop(claims);
        self.changed.notify_waiters();
        true
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.claims().len()
    }

    /// Waits until something is claimed or settled. Made before a look, nothing is missed behind it.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The claims of a shard, as (id, token).
    pub(super) fn of_shard(&self, shard: u32) -> Vec<(ScheduleId, String)> {
        let claims = self.claims();
        let of_shard = claims.iter().filter(|((of, _), _)| *of == shard);
        of_shard.map(|((_, id), claim)| (id.clone(), claim.token.clone())).collect()
    }

    /// It was renewed by a request that was made at `asked`.
    pub(super) fn renewed(&self, shard: u32, id: &ScheduleId, token: &str, asked: Instant) {
        let deadline = self.deadline(asked);
        if let Some(claim) = self.claims().get_mut(&(shard, id.clone())).filter(|claim| claim.token == token)
        {
            claim.deadline = claim.deadline.max(deadline);
        }
    }

    /// Somebody else has it. False if that was known, it is settled by now, or ours again.
    pub(super) fn lost(&self, shard: u32, id: &ScheduleId, token: &str) -> bool {
        let claims = self.claims();
        let claim = claims.get(&(shard, id.clone())).filter(|claim| claim.token == token);
        let news = claim.filter(|claim| !claim.cancelled.is_cancelled());
        news.map(|claim| claim.cancelled.cancel()).is_some()
    }

    /// When [`expire`](Self::expire) is to be called; `None` if nothing can run out.
    pub(super) fn earliest(&self) -> Option<Instant> {
        let claims = self.claims();
        let live = claims.values().filter(|claim| !claim.cancelled.is_cancelled());
        live.map(|claim| claim.deadline).min()
    }

    /// Cancels what could not be renewed in time. Gives back how many, by shard.
    pub(super) fn expire(&self) -> BTreeMap<u32, usize> {
        let now = Instant::now();
        let mut expired = BTreeMap::new();
        for ((shard, _), claim) in self.claims().iter() {
            if claim.deadline <= now && !claim.cancelled.is_cancelled() {
                claim.cancelled.cancel();
                *expired.entry(*shard).or_default() += 1;
            }
        }
        expired
    }
}
