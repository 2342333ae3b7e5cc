//! What all loops of a worker share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::panics::{Careful, Policies};
use millstream_core::{Backend, Limits, Observer, QueueName, Shard};
use millstream_loops::{LeaseClock, Loops};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::WorkerConfig;
use super::handler::Call;
use super::heard::Heard;
use super::held::Held;
use super::report::Counts;
use crate::sleep::Sleep;

pub(super) struct Context {
    pub(super) backend: Backend,
    pub(super) queue: QueueName,
    pub(super) shards: Vec<Shard>,
    pub(super) config: WorkerConfig,
    pub(super) limits: Limits,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) handler: Box<Call>,
    /// Who we are to others: unique to this start.
    pub(super) name: String,
    pub(super) sleep: Sleep,
    /// One for each task that may be in hand.
    pub(super) permits: Arc<Semaphore>,
    /// How many shards want permits now.
    pub(super) hungry: AtomicUsize,
    pub(super) held: Arc<Held>,
    pub(super) heard: Heard,
    pub(super) handlers: TaskTracker,
    pub(super) counts: Counts,
    pub(super) board: Board,
    pub(super) loops: Loops,
    /// Cancelled: claim no more.
    pub(super) stop: CancellationToken,
    /// Cancelled: give handlers up.
    pub(super) kill: CancellationToken,
    pub(super) ended: CancellationToken,
    /// How long handlers may take to end.
    patience: Mutex<Duration>,
}

impl Context {
    pub(super) fn new(
        backend: Backend,
        queue: QueueName,
        shards: Vec<Shard>,
        config: WorkerConfig,
        limits: Limits,
        observer: Arc<dyn Observer>,
        handler: Box<Call>,
    ) -> Self {
        Self {
            name: format!("{}-{}", config.label, Uuid::new_v4().simple()),
            sleep: Sleep::beside(&backend),
            permits: Arc::new(Semaphore::new(config.concurrency)),
            hungry: AtomicUsize::new(0),
            held: Held::new(config.hold, LeaseClock::of(&backend)),
            heard: Heard::new(shards.len(), config.hold),
            handlers: TaskTracker::new(),
            counts: Counts::default(),
            board: Board::new(shards.len()),
            loops: Loops::default(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            ended: CancellationToken::new(),
            patience: Mutex::new(config.shutdown_timeout),
            backend,
            queue,
            shards,
            config,
            limits,
            observer: Careful::over(observer),
            handler,
        }
    }

    /// The policies, with their fallbacks.
    pub(super) fn policies(&self) -> Policies<'_> {
        let (retry, dead_letters) = (&*self.config.retry, &*self.config.dead_letters);
        Policies { retry, dead_letters, observer: &*self.observer }
    }

    /// Ends the worker; handlers have so long.
    pub(super) fn stop_within(&self, timeout: Duration) {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
        self.stop.cancel();
    }

    /// Waits until nothing is in hand.
    pub(super) async fn nothing_held(&self) {
        loop {
            let changed = self.held.changed();
            if self.held.len() == 0 {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn patience(&self) -> Duration {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the shards of a worker.
pub(super) struct Board {
    shards: Vec<Mutex<Mark>>,
    /// Grows when all shards are to be looked at.
    looks: AtomicU64,
    /// One for each shard: look now.
    look: Vec<Notify>,
    changed: Notify,
}

#[derive(Clone, Copy, Default)]
struct Mark {
    /// When a claim was answered last.
    last: Option<Instant>,
    /// The newest look that found nothing due.
    empty: u64,
}

impl Board {
    fn new(shards: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            looks: AtomicU64::new(0),
            look: (0..shards).map(|_| Notify::new()).collect(),
            changed: Notify::new(),
        }
    }

    fn mark(&self, shard: usize) -> Option<std::sync::MutexGuard<'_, Mark>> {
        Some(self.shards.get(shard)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The look that a claim which begins now belongs to.
    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// A claim was answered: whether it found nothing.
    pub(super) fn claimed(&self, shard: usize, look: u64, nothing: bool) {
        if let Some(mut mark) = self.mark(shard) {
            mark.last = Some(Instant::now());
            if nothing {
                mark.empty = look;
            }
        }
        self.changed.notify_waiters();
    }

    /// Ready when the shard is to be looked at.
    pub(super) async fn asked(&self, shard: usize) {
        match self.look.get(shard) {
            Some(look) => look.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until every shard was looked at from now on and had nothing due.
    pub(super) async fn nothing_due(&self) {
        let look = self.looks.fetch_add(1, Ordering::AcqRel) + 1;
        self.look.iter().for_each(Notify::notify_one);
        loop {
            let changed = self.changed.notified();
            let empty = |shard: usize| self.mark(shard).is_none_or(|mark| mark.empty >= look);
            if (0..self.shards.len()).all(empty) {
                return;
            }
            changed.await;
        }
    }

    /// How long ago a claim was answered, by shard.
    pub(super) fn last(&self, shard: usize) -> Option<Duration> {
        self.mark(shard)?.last.map(|last| last.elapsed())
    }
}
