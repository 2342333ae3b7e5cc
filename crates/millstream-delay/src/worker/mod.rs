//! The worker: a pool that claims tasks of a queue, passes them to a handler, and settles them.

mod builder;
mod claims;
mod config;
mod context;
mod loops;
mod progress;
mod report;
mod rooms;
mod settings;
mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::Shard;
use millstream_core::event::Event;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

pub use builder::WorkerBuilder;
pub use config::WorkerConfig;
pub use millstream_core::{Check, IntoCheck};
pub use progress::{Failing, Progress};
pub use report::WorkerReport;

use context::Context;
use loops::claim::Claimer;
use loops::settle::Settler;
use loops::trim::Trimmer;

use millstream_engine::batches::LOOK_EVERY;
use millstream_engine::markers::extend_markers;
use millstream_engine::{ControlThread, Keeper, Scope};

/// Time reserved for the last settlements after the handlers' time is over; it is part of the shutdown timeout.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(5);

/// Minimum time for the last settlements, whatever the shutdown timeout.
const LEAST_SETTLEMENTS: Duration = Duration::from_millis(250);

/// Running worker pool. Errors of the server never end it: it reports the error, pauses and continues.
///
/// Dropping it stops it in the background, like [`shutdown`](Worker::shutdown) without waiting for the end.
#[must_use = "a worker that is dropped stops: keep it, and end it with `shutdown`"]
pub struct Worker {
    context: Arc<Context>,
    task: Option<JoinHandle<()>>,
}

impl Worker {
    fn spawn(context: Arc<Context>) -> Self {
        let (queue, health) = (&context.queue, &progress::check(&context));
        context.observer.observe(&Event::WorkerStarted { queue, health });
        let ended = context.ended.clone().drop_guard();
        let run = run(context.clone());
        let task = tokio::spawn(async move {
            // Dropped even if `run` panics, so the end is always signalled.
            let _ended = ended;
            run.await;
        });
        Self { context, task: Some(task) }
    }

    /// Shuts down: stops claiming, lets running handlers end, and settles their tasks. All this takes up to the
    /// [shutdown timeout](WorkerConfig::shutdown_timeout). Handlers that still run after four fifths of it (5 s before
    /// its end, if it is long) are dropped, and their tasks are handed back: other workers can claim them immediately,
    /// as the same attempt.
    pub async fn shutdown(self) -> WorkerReport {
        let timeout = self.context.config.shutdown_timeout;
        self.shutdown_within(timeout).await
    }

    /// Same as [`shutdown`](Self::shutdown), with `timeout` instead of the configured one. Settling has at least 250 ms
    /// in any case.
    pub async fn shutdown_within(mut self, timeout: Duration) -> WorkerReport {
        self.context.stop_within(timeout);
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the worker ended abnormally");
        }
        self.context.counts.report()
    }

    /// Works off all tasks that are due now, then shuts down: for programs that run from time to time. Tasks that
    /// become due meanwhile may remain; failed tasks that are due again later do remain.
    ///
    /// There is no time limit: it waits for handlers, and for a server that is not reachable. See
    /// [`drain_within`](Self::drain_within).
    pub async fn drain(self) -> WorkerReport {
        self.drained().await;
        self.shutdown().await
    }

    /// Same as [`drain`](Self::drain), but shuts down after `timeout` in any case; the shutdown itself takes up to the
    /// shutdown timeout. Remaining tasks stay due.
    pub async fn drain_within(self, timeout: Duration) -> WorkerReport {
        if tokio::time::timeout(timeout, self.drained()).await.is_err() {
            tracing::warn!("a drain ended before all due tasks were done");
        }
        self.shutdown().await
    }

    async fn drained(&self) {
        self.context.status.nothing_due().await;
        self.context.flush();
        // Waits without a time limit, so that every claimed task is worked on to its end.
        self.context.nothing_held().await;
    }

    /// Waits until the worker has ended. It never ends by itself.
    pub async fn ended(&self) {
        self.context.ended.cancelled().await;
    }

    /// Returns the counts of settled tasks so far.
    #[must_use]
    pub fn report(&self) -> WorkerReport {
        self.context.counts.report()
    }

    /// Returns the current state: running tasks, failing operations, and the time of each shard's last answer.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::of(&self.context)
    }

    /// Waits until `shutdown` completes, then shuts down.
    async fn until(self, shutdown: impl Future<Output = ()>) -> WorkerReport {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.ended() => {}
        }
        self.shutdown().await
    }
}

/// How long a worker that ends waits until notes of members of batches are taken away.
const LAST_NOTES: Duration = Duration::from_secs(1);

/// Runs all loops of a worker, from start to end.
async fn run(context: Arc<Context>) {
    let control = ControlThread::of(&context.backend);
    let _renewals = control.spawn(loops::renew::run(context.clone()));
    let _markers = context.markers.clone().map(|markers| {
        let monitor = context.loops.monitor("extend_markers", Scope::Queue);
        let keeper = Keeper::new(context.config.hold, context.held.clock.clone());
        let (backend, observer) = (context.backend.clone(), context.observer.clone());
        control.spawn(extend_markers(backend, keeper, monitor, observer, markers, "claim"))
    });
    let limits = context.limited.as_ref();
    let limits = limits.map(|pool| pool.spawn(&control, &context.loops, &Scope::Queue, &context.observer));
    let mut claimers = Vec::new();
    let mut settlers = Vec::new();
    for shard in &context.shards {
        let (sender, settlements) = mpsc::unbounded_channel();
        let settler = Settler::new(context.clone(), shard.clone(), settlements);
        settlers.push(AbortOnDropHandle::new(tokio::spawn(settler.run())));
        let claimer = Claimer::new(context.clone(), shard.clone(), sender);
        claimers.push(AbortOnDropHandle::new(tokio::spawn(claimer.run())));
    }
    let watch = |shard: &Shard| tokio::spawn(loops::cancels::watch(context.clone(), shard.clone()));
    let _watches: Vec<_> = context.shards.iter().map(watch).map(AbortOnDropHandle::new).collect();
    let _notes = AbortOnDropHandle::new(tokio::spawn(look_for_notes(context.clone())));
    let trimmers = Trimmer::of(&context).into_iter();
    let trimmers: Vec<_> = trimmers.map(|it| AbortOnDropHandle::new(tokio::spawn(it.run()))).collect();
    let work = async {
        abnormal(join_all(claimers).await);
        context.handlers.close();
        context.handlers.wait().await;
        // Settlers end when all tasks are settled: by now no job holds a sender of their channels.
        abnormal(join_all(settlers).await);
        abnormal(join_all(trimmers).await);
        if let Some(limits) = limits {
            limits.end().await;
        }
        if let Some(notes) = &context.notes {
            notes.finish(LAST_NOTES).await;
        }
    };
    tokio::pin!(work);
    let handlers_are_over = async {
        context.stop.cancelled().await;
        let timeout = context.shutdown_timeout();
        // Handlers have all of the time except the part reserved for the last settlements.
        let last = LAST_SETTLEMENTS.min(timeout / 5);
        tokio::time::sleep(timeout - last).await;
        last.max(LEAST_SETTLEMENTS)
    };
    let last = tokio::select! {
        biased;
        () = &mut work => return,
        last = handlers_are_over => last,
    };
    context.kill.cancel();
    if tokio::time::timeout(last, work).await.is_err() {
        let tasks = context.held.len();
        tracing::warn!(
            tasks,
            "the worker ended with unsettled tasks: they are handled again when their claims expire"
        );
    }
}

/// Has notes taken away that others have left. What is settled here is taken away at once.
async fn look_for_notes(context: Arc<Context>) {
    let Some(notes) = &context.notes else { return };
    let pause = if context.backend.is_lasting() { LOOK_EVERY * 12 } else { LOOK_EVERY };
    loop {
        context.shards.iter().for_each(|shard| notes.wake(shard.clone()));
        tokio::time::sleep(pause).await;
    }
}

fn abnormal(ends: Vec<Result<(), tokio::task::JoinError>>) {
    for error in ends.into_iter().filter_map(Result::err) {
        tracing::error!(%error, "a loop of a worker ended abnormally");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("name", &self.context.name).finish_non_exhaustive()
    }
}
