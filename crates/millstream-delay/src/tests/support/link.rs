//! A link between one worker and the backend: it counts requests, lets some fail, or is cut.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::Settled;
use millstream_core::tasks::{
    ClaimRequest, Claimed, DeadTask, Extended, FoundTask, QueueChange, QueueSpec, TaskCounts, Tasks,
    TrimTasksBy, TrimmedTasks, Verdict,
};
use millstream_core::{
    Backend, DeadLetterRetention, Error, ErrorKind, MessageId, QueueName, Result, ScheduleId, Shard,
};
use tokio_util::sync::CancellationToken;

/// What is between one worker and everybody else.
#[derive(Default)]
pub struct Link {
    cut: CancellationToken,
    /// All requests fail: the server is away.
    pub away: AtomicBool,
    /// Renewals fail.
    pub no_renewals: AtomicBool,
    /// Settlements that keep a dead task fail, for good.
    pub no_dead: AtomicBool,
    /// Calls are not received.
    pub deaf: AtomicBool,
    /// So many replies of claims are lost.
    pub lose_claims: AtomicUsize,
    /// So many claims panic.
    pub panics: AtomicUsize,
    /// So many renewals panic.
    pub panic_renewals: AtomicUsize,
    /// The next reply of a claim that takes something comes so late, in seconds.
    pub late_claim: AtomicU64,
    /// The next trim arrives so late, in seconds.
    pub late_trim: AtomicU64,
    /// The server's time in the replies of claims is so many seconds ahead.
    pub ahead: AtomicU64,
    /// So many replies of settlements are lost.
    pub lose_settlements: AtomicUsize,
    /// The most that was ever asked for at once.
    pub largest: AtomicUsize,
    calls: Mutex<BTreeMap<&'static str, usize>>,
}

impl Link {
    /// From now on nothing gets through: to all others the worker is dead.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    pub fn calls(&self, what: &str) -> usize {
        self.calls.lock().expect("lock").get(what).copied().unwrap_or_default()
    }

    /// Requests of all kinds, but for waits.
    pub fn commands(&self) -> usize {
        let calls = self.calls.lock().expect("lock");
        calls.iter().filter(|(what, _)| **what != "wait").map(|(_, calls)| calls).sum()
    }

    /// The backend as it is seen through this link.
    pub fn over(self: &Arc<Self>, backend: &Backend) -> Backend {
        let tasks = Linked { link: self.clone(), tasks: backend.tasks().expect("delay queues").clone() };
        backend.clone().with_tasks(Arc::new(tasks))
    }

    async fn pass(&self, what: &'static str) -> Result<()> {
        *self.calls.lock().expect("lock").entry(what).or_default() += 1;
        if self.cut.is_cancelled() {
            std::future::pending::<()>().await;
        }
        if self.away.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the server is unavailable"));
        }
        Ok(())
    }
}

fn lose(left: &AtomicUsize) -> Result<()> {
    match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
        Ok(_) => Err(Error::new(ErrorKind::Unconfirmed, "the reply was lost")),
        Err(_) => Ok(()),
    }
}

struct Linked {
    link: Arc<Link>,
    tasks: Arc<dyn Tasks>,
}

#[async_trait]
impl Tasks for Linked {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        self.tasks.create_queue(spec).await
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        self.tasks.queue(name).await
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        self.tasks.queues().await
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed> {
        self.link.pass("claim").await?;
        assert!(lose(&self.link.panics).is_ok(), "a claim panics");
        self.link.largest.fetch_max(ask.limit, Ordering::Relaxed);
        let mut claimed = self.tasks.claim(shard, ask).await?;
        let ahead = Duration::from_secs(self.link.ahead.load(Ordering::Relaxed));
        claimed.now = claimed.now.saturating_add(ahead);
        if !claimed.tasks.is_empty() {
            lose(&self.link.lose_claims)?;
            let late = self.link.late_claim.swap(0, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(late)).await;
        }
        Ok(claimed)
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        self.link.pass("settle").await?;
        let dead = batch.iter().any(|(_, _, verdict)| matches!(verdict, Verdict::Dead { .. }));
        if dead && self.link.no_dead.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::WrongType, "the dead letters are somebody else's"));
        }
        let settled = self.tasks.settle_tasks(shard, batch).await?;
        lose(&self.link.lose_settlements)?;
        Ok(settled)
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        self.link.pass("extend").await?;
        assert!(lose(&self.link.panic_renewals).is_ok(), "a renewal panics");
        if self.link.no_renewals.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "no renewals"));
        }
        self.tasks.extend(shard, claims, hold, begun).await
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        self.link.pass("find").await?;
        self.tasks.find(shard, id).await
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        self.link.pass("wait").await?;
        if self.link.deaf.load(Ordering::Relaxed) {
            tokio::time::sleep(timeout).await;
            return Ok(false);
        }
        self.tasks.wait(shard, timeout).await
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        self.tasks.counts(shard).await
    }

    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        self.tasks.set_paused(shard, paused).await
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        self.tasks.dead_tasks(shard, after, limit).await
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.tasks.replay_tasks(shard, ids).await
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        self.tasks.purge_tasks(shard, ids).await
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        self.tasks.purge_all(shard).await
    }

    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        self.tasks.alter_queue(name, change).await
    }

    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        self.tasks.delete_queue(name).await
    }

    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        self.link.pass("trim").await?;
        let late = self.link.late_trim.swap(0, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(late)).await;
        self.tasks.trim_dead(shard, retention, by).await
    }
}
