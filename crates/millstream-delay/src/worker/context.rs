//! State shared by all loops of a worker.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::panics::Policies;
use millstream_core::span::Tracing;
use millstream_core::{Backend, Capability, Limits, Observer, QueueName, QueueSpec, Shard};
use millstream_engine::batches::NoteForwarder;
use millstream_engine::decide::Answering;
use millstream_engine::handler::ErasedHandler;
use millstream_engine::limits::PermitPool;
use millstream_engine::markers::MarkerTable;
use millstream_engine::{Keeper, LeaseClock, Loops};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::sleep::Sleep;
use crate::worker::WorkerConfig;
use crate::worker::claims::answers::ShardAnswers;
use crate::worker::claims::blocked::Blocked;
use crate::worker::claims::cancelled::TaskCancels;
use crate::worker::claims::held::Held;
use crate::worker::report::Counts;
use crate::worker::rooms::Rooms;
use crate::worker::settings::QueueSettings;

pub(super) struct Context {
    pub(super) backend: Backend,
    pub(super) queue: QueueName,
    pub(super) shards: Vec<Shard>,
    pub(super) config: WorkerConfig,
    pub(super) limits: Limits,
    pub(super) observer: Arc<dyn Observer>,
    /// Its tracer, if it has one.
    pub(super) tracing: Option<Tracing>,
    pub(super) handler: ErasedHandler,
    /// The markers of handlers that run, if operations take effect once.
    pub(super) markers: Option<MarkerTable>,
    /// Takes the notes of members of batches to these.
    pub(super) notes: Option<NoteForwarder>,
    /// The backend, for steps of tasks.
    pub(super) steps: Arc<Backend>,
    /// What is stored for whoever scheduled a task.
    pub(super) answering: Answering,
    /// Whether a policy needs tasks that failed.
    pub(super) policies_need_message: bool,
    /// Name of this worker, unique to this start.
    pub(super) name: String,
    pub(super) sleep: Sleep,
    /// One for each task that may be held, beside those that wait for limits.
    pub(super) rooms: Arc<Rooms>,
    /// Tasks that wait for limits.
    pub(super) blocked: Arc<Blocked>,
    /// What tasks need of limits, if there are some.
    pub(super) limited: Option<Arc<PermitPool>>,
    /// Number of shards that want room now.
    pub(super) hungry: AtomicUsize,
    pub(super) held: Arc<Held>,
    pub(super) answers: ShardAnswers,
    /// Tasks that were cancelled from outside.
    pub(super) cancels: TaskCancels,
    pub(super) handlers: TaskTracker,
    pub(super) counts: Counts,
    pub(super) status: ShardStatus,
    pub(super) settings: QueueSettings,
    pub(super) loops: Loops,
    /// Cancelled when the worker must not claim any more.
    pub(super) stop: CancellationToken,
    /// Cancelled when handlers must be dropped.
    pub(super) kill: CancellationToken,
    pub(super) ended: CancellationToken,
    /// Changes when batches that are not full have to start.
    pub(super) flushes: watch::Sender<u64>,
    /// Time that running handlers have left to end, once the worker stops.
    shutdown_timeout: Mutex<Duration>,
}

impl Context {
    pub(super) fn new(
        backend: Backend,
        spec: &QueueSpec,
        config: WorkerConfig,
        limits: Limits,
        (observer, tracing): (Arc<dyn Observer>, Option<Tracing>),
        (handler, markers, kill): (ErasedHandler, Option<MarkerTable>, CancellationToken),
        loops: Loops,
    ) -> Result<Self> {
        let name = format!("{}-{}", config.label, Uuid::new_v4().simple());
        let held = Held::new(config.hold, LeaseClock::of(&backend));
        let keeper = Keeper::new(config.hold, held.clock.clone());
        let limited = PermitPool::of(&backend, &name, keeper, &config.limits, "claim")?;
        let (queue, shards) = (spec.name.clone(), spec.iter().collect::<Vec<_>>());
        Ok(Self {
            tracing,
            policies_need_message: Policies {
                retry: &*config.retry,
                dead_letters: &*config.dead_letters,
                observer: &*observer,
            }
            .need_message(),
            name,
            notes: NoteForwarder::of(&backend, &observer),
            steps: Arc::new(backend.clone()),
            answering: Answering {
                kept: (backend.supports(Capability::Results), backend.supports(Capability::Batches)),
                replies: config.replies || handler.replies(),
                limit: limits.payload,
                steps: false,
            },
            sleep: Sleep::beside(&backend),
            rooms: Rooms::new(config.concurrency),
            blocked: Blocked::new(config.max_blocked),
            limited,
            hungry: AtomicUsize::new(0),
            held,
            answers: ShardAnswers::new(shards.len(), config.hold),
            cancels: TaskCancels::of(&backend, shards.len()),
            handlers: TaskTracker::new(),
            counts: Counts::default(),
            status: ShardStatus::new(shards.len()),
            settings: QueueSettings::new(backend.clone(), queue.clone()),
            loops,
            stop: CancellationToken::new(),
            kill,
            flushes: watch::Sender::new(0),
            ended: CancellationToken::new(),
            shutdown_timeout: Mutex::new(config.shutdown_timeout),
            backend,
            queue,
            shards,
            config,
            limits,
            observer,
            handler,
            markers,
        })
    }

    /// Returns the policies, with their fallbacks.
    pub(super) fn policies(&self) -> Policies<'_> {
        let (retry, dead_letters) = (&*self.config.retry, &*self.config.dead_letters);
        Policies { retry, dead_letters, observer: &*self.observer }
    }

    /// Starts the batches that are not full.
    pub(super) fn flush(&self) {
        self.flushes.send_modify(|flushes| *flushes += 1);
    }

    /// Stops the worker; the shutdown may take `timeout`.
    pub(super) fn stop_within(&self, timeout: Duration) {
        *self.shutdown_timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
        self.stop.cancel();
    }

    /// Waits until no task is held.
    pub(super) async fn nothing_held(&self) {
        loop {
            let changed = self.held.changed();
            if self.held.len() == 0 {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn shutdown_timeout(&self) -> Duration {
        *self.shutdown_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of a worker's shards.
pub(super) struct ShardStatus {
    shards: Vec<Mutex<Mark>>,
    /// Number of the current round of checks: incremented to request a check of all shards.
    looks: AtomicU64,
    /// One per shard: requests a check now.
    look: Vec<Notify>,
    /// One per shard: tasks died there.
    deaths: Vec<Notify>,
    changed: Notify,
}

#[derive(Clone, Copy, Default)]
struct Mark {
    /// Time of the last answer to a claim.
    last: Option<Instant>,
    /// Newest round of checks that found nothing due.
    empty: u64,
}

impl ShardStatus {
    fn new(shards: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            looks: AtomicU64::new(0),
            look: (0..shards).map(|_| Notify::new()).collect(),
            deaths: (0..shards).map(|_| Notify::new()).collect(),
            changed: Notify::new(),
        }
    }

    fn mark(&self, shard: usize) -> Option<std::sync::MutexGuard<'_, Mark>> {
        Some(self.shards.get(shard)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the round of checks that a claim which begins now belongs to.
    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// Records the answer to a claim, and whether it found nothing.
    pub(super) fn claimed(&self, shard: usize, look: u64, nothing: bool) {
        if let Some(mut mark) = self.mark(shard) {
            mark.last = Some(Instant::now());
            if nothing {
                mark.empty = look;
            }
        }
        self.changed.notify_waiters();
    }

    /// Completes when a check of the shard is requested.
    pub(super) async fn asked(&self, shard: usize) {
        match self.look.get(shard) {
            Some(look) => look.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Records that tasks of the shard died.
    pub(super) fn deaths(&self, shard: usize) {
        if let Some(deaths) = self.deaths.get(shard) {
            deaths.notify_one();
        }
    }

    /// Completes when tasks of the shard have died since the last time.
    pub(super) async fn died(&self, shard: usize) {
        match self.deaths.get(shard) {
            Some(deaths) => deaths.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until every shard was checked after this call and had nothing due.
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

    /// Returns the time since the last answer to a claim of this shard.
    pub(super) fn last(&self, shard: usize) -> Option<Duration> {
        self.mark(shard)?.last.map(|last| last.elapsed())
    }
}
