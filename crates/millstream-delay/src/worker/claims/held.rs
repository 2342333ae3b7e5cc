//! The claims held by a worker, with local deadlines that need no answer of the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::ScheduleId;
use millstream_core::batches::BatchId;
use millstream_core::leases::reliable;
use millstream_core::sorted::SortedMap;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use millstream_engine::LeaseClock;

/// All claims of a worker, from the answer to the claim until they are settled.
#[derive(Debug)]
pub(in crate::worker) struct Held {
    hold: Duration,
    /// Clock of all deadlines.
    pub(in crate::worker) clock: Arc<LeaseClock>,
    claims: Mutex<Claims>,
    changed: Notify,
}

/// Claims by job, not by id: a task that is done may be scheduled and claimed again under the same id before the worker
/// receives the answer that settles the first one.
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
    /// Whether its handler has begun.
    begun: bool,
    /// Whether the next renewal must report that the handler has begun: the task was claimed again since.
    adopted: bool,
    /// Whether a settlement without an answer may have settled it already: then it is no loss if the server no longer
    /// knows the claim.
    sent: bool,
    /// Time until which the claim is certainly valid.
    deadline: Instant,
    /// Cancelled when the claim is no longer certainly valid.
    cancelled: CancellationToken,
    /// Cancelled when somebody asks that the task ends.
    asked: CancellationToken,
    /// The batch of which it is a member, once its handler begins.
    batch: Option<BatchId>,
}

/// Claim of one job. Dropping it ends the renewals, so the task comes back whatever happened to the job.
#[derive(Debug)]
pub(in crate::worker) struct Holding {
    held: Arc<Held>,
    job: u64,
    pub(in crate::worker) cancelled: CancellationToken,
    pub(in crate::worker) asked: CancellationToken,
}

/// Claims of a shard: the jobs, and the id and token that renew each.
#[derive(Debug, Default)]
pub(in crate::worker) struct OfShard {
    pub(in crate::worker) jobs: Vec<u64>,
    pub(in crate::worker) claims: Vec<(ScheduleId, String)>,
}

impl Held {
    pub(in crate::worker) fn new(hold: Duration, clock: Arc<LeaseClock>) -> Arc<Self> {
        Arc::new(Self { hold, clock, claims: Mutex::default(), changed: Notify::new() })
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the deadline of a claim requested at `asked`.
    fn deadline(&self, asked: Instant) -> Instant {
        asked + reliable(self.hold)
    }

    /// Adds a claim that was requested at `asked`, for a new job.
    pub(in crate::worker) fn begin(
        self: &Arc<Self>,
        shard: u32,
        id: &ScheduleId,
        token: &str,
        asked: Instant,
    ) -> Holding {
        let (token, deadline) = (token.to_owned(), self.deadline(asked));
        let (cancelled, asked) = (CancellationToken::new(), CancellationToken::new());
        let claim = Claim {
            shard,
            id: id.clone(),
            token,
            begun: false,
            adopted: false,
            sent: false,
            deadline,
            cancelled: cancelled.clone(),
            asked: asked.clone(),
            batch: None,
        };
        let mut claims = self.claims();
        claims.last += 1;
        let job = claims.last;
        claims.by_job.insert(job, claim);
        drop(claims);
        self.changed.notify_waiters();
        Holding { held: self.clone(), job, cancelled, asked }
    }

    /// Applies a claim that follows an expired one with the token `before`: if a job of this worker holds that one, the
    /// job continues with the new token. Returns false if none does.
    pub(in crate::worker) fn adopt(
        &self,
        shard: u32,
        id: &ScheduleId,
        before: &str,
        token: &str,
        asked: Instant,
    ) -> bool {
        let deadline = self.deadline(asked);
        let mut claims = self.claims();
        // One that has not begun, and may not begin any more, ends.
        let goes_on = |claim: &Claim| claim.begun || !claim.cancelled.is_cancelled();
        let same = |claim: &&mut Claim| {
            claim.shard == shard && claim.token == before && claim.id == *id && goes_on(claim)
        };
        let Some(claim) = claims.by_job.values_mut().find(same) else { return false };
        (claim.token, claim.deadline) = (token.to_owned(), deadline);
        (claim.adopted, claim.sent) = (claim.begun, false);
        true
    }

    /// Returns the number of claims.
    pub(in crate::worker) fn len(&self) -> usize {
        self.claims().by_job.len()
    }

    /// Waits until something is claimed or settled. Create the future before reading the state: then no later change is
    /// missed.
    pub(in crate::worker) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Returns the claims of a shard, filtered by `adopted`: those that were claimed again for a job that had begun, or
    /// the others.
    pub(in crate::worker) fn of_shard(&self, shard: u32, adopted: bool) -> OfShard {
        let mut of_shard = OfShard::default();
        let asked_for = |(_, claim): &(&u64, &Claim)| claim.shard == shard && claim.adopted == adopted;
        for (job, claim) in self.claims().by_job.iter().filter(asked_for) {
            of_shard.jobs.push(*job);
            of_shard.claims.push((claim.id.clone(), claim.token.clone()));
        }
        of_shard
    }

    /// Records a renewal with this token, requested at `asked`.
    pub(in crate::worker) fn renewed(&self, job: u64, token: &str, asked: Instant) {
        let deadline = self.deadline(asked);
        if let Some(claim) = self.claims().by_job.get_mut(&job).filter(|claim| claim.token == token) {
            claim.deadline = claim.deadline.max(deadline);
            claim.adopted = false;
        }
    }

    /// Records that another worker has the task, and cancels the job. Returns false if that was known, if this worker
    /// may have settled it, or if it holds the task under another token.
    pub(in crate::worker) fn lost(&self, job: u64, token: &str) -> bool {
        let claims = self.claims();
        let claim = claims.by_job.get(&job).filter(|claim| claim.token == token);
        let news = claim.filter(|claim| !claim.cancelled.is_cancelled() && !claim.sent);
        news.map(|claim| claim.cancelled.cancel()).is_some()
    }

    /// Tells the jobs of a shard whose claims somebody asks to end.
    pub(in crate::worker) fn ask(
        &self,
        shard: u32,
        is_asked: impl Fn(&ScheduleId, &str, Option<&BatchId>) -> bool,
    ) {
        let claims = self.claims();
        let of_it = |it: &&Claim| it.shard == shard && is_asked(&it.id, &it.token, it.batch.as_ref());
        let asked = claims.by_job.values().filter(of_it);
        asked.for_each(|claim| claim.asked.cancel());
    }

    /// Returns when to call [`expire`](Self::expire); `None` if no claim can run out.
    pub(in crate::worker) fn earliest(&self) -> Option<Instant> {
        let claims = self.claims();
        let live = claims.by_job.values().filter(|claim| !claim.cancelled.is_cancelled());
        live.map(|claim| claim.deadline).min()
    }

    /// Cancels claims whose deadline has passed. Returns their number by shard.
    pub(in crate::worker) fn expire(&self) -> SortedMap<u32, usize> {
        let now = self.clock.now();
        let mut expired = SortedMap::new();
        for claim in self.claims().by_job.values() {
            if claim.deadline <= now && !claim.cancelled.is_cancelled() {
                claim.cancelled.cancel();
                *expired.get_or_default(claim.shard) += 1;
            }
        }
        expired
    }
}

impl Holding {
    /// Returns the token that settles the task, and the time until which the claim is certainly valid.
    pub(in crate::worker) fn claim(&self) -> (String, Instant) {
        let claims = self.held.claims();
        let claim = claims.by_job.get(&self.job).map(|claim| (claim.token.clone(), claim.deadline));
        // The entry exists as long as this `Holding`.
        claim.unwrap_or_else(|| (String::new(), self.held.clock.now()))
    }

    /// Returns what tells the token that the claim has by then, also when the job has ended: then it is empty.
    pub(in crate::worker) fn token(&self) -> impl Fn() -> String + Clone + Send + Sync + 'static {
        let (held, job) = (self.held.clone(), self.job);
        move || held.claims().by_job.get(&job).map(|claim| claim.token.clone()).unwrap_or_default()
    }

    /// Records that the handler begins.
    pub(in crate::worker) fn begun(&self) {
        if let Some(claim) = self.held.claims().by_job.get_mut(&self.job) {
            claim.begun = true;
        }
    }

    /// Records the batch of which the task is a member.
    pub(in crate::worker) fn in_batch(&self, batch: BatchId) {
        if let Some(claim) = self.held.claims().by_job.get_mut(&self.job) {
            claim.batch = Some(batch);
        }
    }

    /// See [`Held::renewed`].
    pub(in crate::worker) fn renewed(&self, token: &str, asked: Instant) {
        self.held.renewed(self.job, token, asked);
    }

    /// See [`Held::lost`].
    pub(in crate::worker) fn lost(&self, token: &str) -> bool {
        self.held.lost(self.job, token)
    }

    /// Records that a settlement with `token` was sent and not answered.
    pub(in crate::worker) fn sent(&self, token: &str) {
        let mut claims = self.held.claims();
        if let Some(claim) = claims.by_job.get_mut(&self.job).filter(|claim| claim.token == token) {
            claim.sent = true;
        }
    }

    /// Returns whether a settlement was sent without an answer.
    pub(in crate::worker) fn was_sent(&self) -> bool {
        self.held.claims().by_job.get(&self.job).is_some_and(|claim| claim.sent)
    }

    /// Ends the claim after a settlement with `token`. Returns it as an error if the task was claimed again before:
    /// then it must be settled once more.
    pub(in crate::worker) fn end(self, token: &str) -> Result<(), Self> {
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
        assert_eq!(*held.expire(), [(0, 1)], "8 s after it was asked for");
        assert!(first.cancelled.is_cancelled() && !second.cancelled.is_cancelled());
        second.renewed("t2", clock.now());
        clock.add_missed(Duration::from_secs(8));
        assert_eq!(*held.expire(), [(1, 1)], "what only the server has counted");
    }
}
