//! The tasks role: a delay queue, without topics and groups.

mod cancelling;
mod claiming;
mod dead;
mod expiring;
mod noting;
mod pausing;
mod queues;
mod settling;
mod stepping;
mod trimming;
mod watching;

use std::time::Duration;

use millstream_core::Reason;
use millstream_core::Timestamp;
use millstream_core::history::History;
use millstream_core::log::Settled;
use millstream_core::schedule::{Due, Place, ScheduleId, Shard};
use millstream_core::tasks::{ClaimRequest, Claimed, ClaimedTask, TaskCounts, Verdict as Says};

use super::schedule::{HOUR, body, id, place_all};
use super::suite;
use crate::case::{Case, Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};

pub(super) fn cases() -> Vec<Case> {
    [
        queues::cases(),
        claiming::cases(),
        settling::cases(),
        expiring::cases(),
        dead::cases(),
        pausing::cases(),
        trimming::cases(),
        watching::cases(),
        cancelling::cases(),
        noting::cases(),
        stepping::cases(),
    ]
    .concat()
}

/// The only shard of a new queue.
struct QueueUnderTest {
    h: Harness,
    shard: Shard,
    place: Place,
}

impl QueueUnderTest {
    async fn new(h: Harness) -> Result<Self, Violation> {
        let shard = Shard::new(h.queue(1).await?.name, 0);
        Ok(Self { h, place: shard.clone().into(), shard })
    }

    /// Schedules new tasks.
    async fn place<'a>(&self, tasks: impl IntoIterator<Item = (&'a str, Due)>) -> Verdict {
        place_all(&self.h, &self.place, tasks).await
    }

    /// Schedules new tasks that are due.
    async fn place_due<const N: usize>(&self, tasks: [&str; N]) -> Verdict {
        self.place((1..).map(|ms| Due::At(Timestamp::from_millis(ms))).zip(tasks).map(|(due, id)| (id, due)))
            .await
    }

    async fn claim(&self, ask: &ClaimRequest) -> Result<Claimed, Violation> {
        Ok(self.h.backend.tasks()?.claim(&self.shard, ask).await?)
    }

    /// Claims until `count` tasks have been returned.
    async fn take(&self, ask: &ClaimRequest, count: usize) -> Result<Vec<ClaimedTask>, Violation> {
        let mut deadline = self.h.wait_for(&format!("{count} tasks to be claimed"));
        let mut tasks = Vec::new();
        while tasks.len() < count {
            let claimed = self.claim(&ClaimRequest { limit: count - tasks.len(), ..ask.clone() }).await?;
            if claimed.tasks.is_empty() {
                deadline.pause().await?;
            }
            tasks.extend(claimed.tasks);
        }
        Ok(tasks)
    }

    /// Claims one task.
    async fn take_one(&self, ask: &ClaimRequest) -> Result<ClaimedTask, Violation> {
        let task = self.take(ask, 1).await?.pop();
        task.ok_or_else(|| Violation::new("one task was claimed, and is not there"))
    }

    /// Expects that no task can be claimed.
    async fn nothing(&self, why: &str) -> Verdict {
        let claimed = self.claim(&ask("nobody", 100)).await?;
        ensure!(claimed.tasks.is_empty(), "claimed ({why}): {:?}", claimed.tasks);
        Ok(())
    }

    async fn settle(&self, task: &ClaimedTask, says: Says) -> Result<Settled, Violation> {
        self.settle_as(&task.id, &task.token, says).await
    }

    async fn settle_as(&self, id: &ScheduleId, token: &str, says: Says) -> Result<Settled, Violation> {
        let batch = [(id.clone(), token.to_owned(), says)];
        Ok(self.h.backend.tasks()?.settle_tasks(&self.shard, &batch).await?)
    }

    /// Settles, and expects that the settlement takes effect.
    async fn settles(&self, task: &ClaimedTask, says: Says) -> Verdict {
        let what = format!("{says:?} of {}", task.id);
        let settled = self.settle(task, says).await?;
        ensure!(settled == APPLIED, "{what}: {settled:?}, expected {APPLIED:?}");
        Ok(())
    }

    async fn extend(&self, task: &ClaimedTask, hold: Duration) -> Result<bool, Violation> {
        let held = self.h.backend.tasks()?.extend(&self.shard, &[claim(task)], hold, false).await?.ours;
        ensure!(held.len() == 1, "{} answers to one extension", held.len());
        Ok(held[0])
    }

    /// Extends the claim, and records that a handler begins.
    async fn begins(&self, task: &ClaimedTask, hold: Duration) -> Verdict {
        let held = self.h.backend.tasks()?.extend(&self.shard, &[claim(task)], hold, true).await?.ours;
        equal!(held, [true], "whether a claim is ours at once");
        Ok(())
    }

    async fn counts(&self) -> Result<TaskCounts, Violation> {
        Ok(self.h.backend.tasks()?.counts(&self.shard).await?)
    }

    /// Waits until the current claims have expired.
    async fn runs_out(&self, hold: Duration) -> Verdict {
        let now = self.h.now().await?;
        self.h.reaches(now.saturating_add(hold + Duration::from_millis(1))).await
    }
}

const APPLIED: Settled = Settled { applied: 1, stale: 0 };
const STALE: Settled = Settled { applied: 0, stale: 1 };

/// Returns a request with a long hold and a long wait.
fn ask(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        worker: worker.to_owned(),
        limit,
        hold: LONG,
        crash_limit: 0,
        longest_sleep: HOUR,
        continuity: millstream_core::Continuity::assured(),
    }
}

fn claim(task: &ClaimedTask) -> (ScheduleId, String) {
    (task.id.clone(), task.token.clone())
}

/// Returns a retry as the next attempt, at the given due time.
fn retry(task: &ClaimedTask, due: Due) -> Says {
    Says::Retry {
        due,
        attempt: task.attempt + 1,
        error: failure(task.attempt),
        history: task.history.clone(),
        wait: None,
    }
}

/// Returns a retry as the same attempt, due now.
fn snooze(task: &ClaimedTask) -> Says {
    let history = task.history.clone();
    Says::Retry { due: Due::NOW, attempt: task.attempt, error: String::new(), history, wait: None }
}

fn dead(task: &ClaimedTask) -> Says {
    Says::Dead {
        reason: Reason::Exhausted,
        attempts: task.attempt,
        error: failure(task.attempt),
        history: task.history.clone(),
        result: None,
    }
}

fn failure(attempt: u32) -> String {
    format!("attempt {attempt} failed")
}

/// Returns the attempts and errors of a history.
fn told(history: &History) -> Vec<(u32, String)> {
    history.failures().iter().map(|failed| (failed.attempt, failed.error.clone())).collect()
}

fn names(tasks: &[ClaimedTask]) -> Vec<&str> {
    tasks.iter().map(|task| task.id.as_str()).collect()
}
