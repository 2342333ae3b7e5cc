//! The claims that a worker holds, as it sees them: deadlines that need nobody's answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::ScheduleId;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use millstream_loops::LeaseClock;

/// All claims of a worker, from their answer until they are settled.
#[derive(Debug)]
pub(super) struct Held {
    hold: Duration,
    /// What deadlines are counted by.
    pub(super) clock: Arc<LeaseClock>,
    claims: Mutex<Claims>,
    changed: Notify,
}

/// One for each job, not for each id: an id whose task is done may be scheduled and claimed again before the worker has
/// heard that the first one is settled.
#[derive(Debug, Default)]
struct Claims {
    last: u64,
    by_job: BTreeMap<u64, Claim>,
}

#[derive(Debug)]
struct Claim {
    shard: u32,
    id: ScheduleId,
    token: String,
    /// Whether the server is to be told that its handler has begun: it was claimed anew since.
    adopted: bool,
    /// Whether it may be settled already, by ourselves: that the server does not know it any more is no loss then.
    sent: bool,
    /// Up to when it is certainly ours.
    deadline: Instant,
    /// Cancelled when it is not any more.
    cancelled: CancellationToken,
}

/// The claim of one job. Dropped, it is not renewed any more: whatever happened to the job, the task comes back.
#[derive(Debug)]
pub(super) struct Holding {
    held: Arc<Held>,
    job: u64,
    pub(super) cancelled: CancellationToken,
}

/// The claims of a shard: of which jobs, and what each is renewed with.
#[derive(Debug, Default)]
pub(super) struct OfShard {
    pub(super) jobs: Vec<u64>,
    pub(super) claims: Vec<(ScheduleId, String)>,
}

impl Held {
    pub(super) fn new(hold: Duration, clock: Arc<LeaseClock>) -> Arc<Self> {
        Arc::new(Self { hold, clock, claims: Mutex::default(), changed: Notify::new() })
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's time began at some time between the request and its answer. Counted from the request, and a fifth
    /// earlier: for clocks that run at different speeds, and for slow handlers.
    fn deadline(&self, asked: Instant) -> Instant {
        asked + self.hold - self.hold / 5
    }

    /// A claim that was asked for at `asked`, for a new job.
    pub(super) fn begin(
        self: &Arc<Self>,
        shard: u32,
        id: &ScheduleId,
        token: &str,
        asked: Instant,
    ) -> Holding {
        let (token, deadline) = (token.to_owned(), self.deadline(asked));
        let cancelled = CancellationToken::new();
        let claim = Claim {
            shard,
            id: id.clone(),
            token,
            adopted: false,
            sent: false,
            deadline,
            cancelled: cancelled.clone(),
        };
        let mut claims = self.claims();
        claims.last += 1;
        let job = claims.last;
        claims.by_job.insert(job, claim);
        drop(claims);
        self.changed.notify_waiters();
        Holding { held: self.clone(), job, cancelled }
    }

    /// A claim that follows one that ran out, whose token was `before`: if a job here has that in hand, it goes on with
    /// the new token. False if none has.
    pub(super) fn adopt(
        &self,
        shard: u32,
        id: &ScheduleId,
        before: &str,
        token: &str,
        asked: Instant,
    ) -> bool {
        let deadline = self.deadline(asked);
        let mut claims = self.claims();
        let same = |claim: &&mut Claim| claim.shard == shard && claim.token == before && claim.id == *id;
        let Some(claim) = claims.by_job.values_mut().find(same) else { return false };
        (claim.token, claim.deadline) = (token.to_owned(), deadline);
        (claim.adopted, claim.sent) = (true, false);
        true
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.claims().by_job.len()
    }

    /// Waits until something is claimed or settled. Made before a look, nothing is missed behind it.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The claims of a shard: those that were claimed anew for a job that had begun, or not.
    pub(super) fn of_shard(&self, shard: u32, adopted: bool) -> OfShard {
        let mut of_shard = OfShard::default();
        let asked_for = |(_, claim): &(&u64, &Claim)| claim.shard == shard && claim.adopted == adopted;
        for (job, claim) in self.claims().by_job.iter().filter(asked_for) {
            of_shard.jobs.push(*job);
            of_shard.claims.push((claim.id.clone(), claim.token.clone()));
        }
        of_shard
    }

    /// It was renewed, under this token, by a request that was made at `asked`.
    pub(super) fn renewed(&self, job: u64, token: &str, asked: Instant) {
        let deadline = self.deadline(asked);
        if let Some(claim) = self.claims().by_job.get_mut(&job).filter(|claim| claim.token == token) {
            claim.deadline = claim.deadline.max(deadline);
            claim.adopted = false;
        }
    }

    /// It is somebody else's. False if that was known, if we may have settled it, or if it is ours under another token.
    pub(super) fn lost(&self, job: u64, token: &str) -> bool {
        let claims = self.claims();
        let claim = claims.by_job.get(&job).filter(|claim| claim.token == token);
        let news = claim.filter(|claim| !claim.cancelled.is_cancelled() && !claim.sent);
        news.map(|claim| claim.cancelled.cancel()).is_some()
    }

    /// When [`expire`](Self::expire) is to be called; `None` if nothing can run out.
    pub(super) fn earliest(&self) -> Option<Instant> {
        let claims = self.claims();
        let live = claims.by_job.values().filter(|claim| !claim.cancelled.is_cancelled());
        live.map(|claim| claim.deadline).min()
    }

    /// Cancels what could not be renewed in time. Gives back how many, by shard.
    pub(super) fn expire(&self) -> BTreeMap<u32, usize> {
        let now = self.clock.now();
        let mut expired = BTreeMap::new();
        for claim in self.claims().by_job.values() {
            if claim.deadline <= now && !claim.cancelled.is_cancelled() {
                claim.cancelled.cancel();
                *expired.entry(claim.shard).or_default() += 1;
            }
        }
        expired
    }
}

impl Holding {
    /// What settles it, and up to when it is certainly ours.
    pub(super) fn claim(&self) -> (String, Instant) {
        let claims = self.held.claims();
        let claim = claims.by_job.get(&self.job).map(|claim| (claim.token.clone(), claim.deadline));
        // It is there as long as this is.
        claim.unwrap_or_else(|| (String::new(), self.held.clock.now()))
    }

    /// See [`Held::renewed`].
    pub(super) fn renewed(&self, token: &str, asked: Instant) {
        self.held.renewed(self.job, token, asked);
    }

    /// See [`Held::lost`].
    pub(super) fn lost(&self, token: &str) -> bool {
        self.held.lost(self.job, token)
    }

    /// A request that settles it with `token` was sent, and not answered.
    pub(super) fn sent(&self, token: &str) {
        let mut claims = self.held.claims();
        if let Some(claim) = claims.by_job.get_mut(&self.job).filter(|claim| claim.token == token) {
            claim.sent = true;
        }
    }

    /// Whether that is so.
    pub(super) fn was_sent(&self) -> bool {
        self.held.claims().by_job.get(&self.job).is_some_and(|claim| claim.sent)
    }

    /// It was settled with `token`. Given back if it was claimed anew before: then it is to be settled once more.
    pub(super) fn end(self, token: &str) -> Result<(), Self> {
        let mut claims = self.held.claims();
        if claims.by_job.get(&self.job).is_some_and(|claim| claim.token != token) {
            drop(claims);
            return Err(self);
        }
        claims.by_job.remove(&self.job);
        drop(claims);
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.held.claims().by_job.remove(&self.job);
        self.held.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_memory::SuspendableClock;

    #[tokio::test(start_paused = true)]
    async fn claims_of_a_suspended_machine_run_out_meanwhile() {
        let machine = SuspendableClock::new();
        let clock = LeaseClock::new(Some(Arc::new(machine.clone())));
        let held = Held::new(Duration::from_secs(10), clock.clone());
        let id: ScheduleId = "a".parse().expect("an id");
        let first = held.begin(0, &id, "t1", clock.now());
        machine.suspend(Duration::from_secs(7));
        let second = held.begin(1, &id, "t2", clock.now());
        assert!(held.expire().is_empty());
        machine.suspend(Duration::from_secs(1));
        assert_eq!(held.expire(), BTreeMap::from([(0, 1)]), "8 s after it was asked for");
        assert!(first.cancelled.is_cancelled() && !second.cancelled.is_cancelled());
        second.renewed("t2", clock.now());
        clock.add_missed(Duration::from_secs(8));
        assert_eq!(held.expire(), BTreeMap::from([(1, 1)]), "what only the server has counted");
    }
}
