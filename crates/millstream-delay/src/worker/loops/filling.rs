//! The tasks of a shard that start next: each alone, or several together as a batch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_engine::handler::ErasedHandler;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::worker::context::Context;
use crate::worker::loops::work::{Job, run};

/// Starts the tasks of one shard. Clones are the same.
#[derive(Clone)]
pub(in crate::worker) struct Filling {
    context: Arc<Context>,
    batch: Arc<Mutex<Batch>>,
    /// Maximum number of tasks that start together, and how long the first of them waits for others.
    size: usize,
    wait: Duration,
}

/// The batch that is being filled.
#[derive(Default)]
struct Batch {
    jobs: Vec<Job>,
    /// Cancelled when it starts. Each batch has its own.
    started: CancellationToken,
}

impl Filling {
    pub(in crate::worker) fn new(context: Arc<Context>) -> Self {
        let (size, wait) = match &context.handler {
            ErasedHandler::Each(_) => (1, Duration::ZERO),
            // No more than this can be held at once, so no batch would ever have more.
            ErasedHandler::Batch(config, _) => (config.size.min(context.config.concurrency), config.wait),
        };
        Self { context, batch: Arc::default(), size, wait }
    }

    /// Starts what a claim has brought. A batch that is not full waits for more, unless it may not wait. A claimer
    /// that finds no room [starts](Context::flush) all that wait: no more would come.
    pub(in crate::worker) fn add(&self, jobs: Vec<Job>) {
        let mut ready = Vec::with_capacity(jobs.len());
        for job in jobs {
            // In their order, before any of them goes on.
            match job.ask(&self.context) {
                Ok(job) => ready.push(job),
                Err(waiting) => {
                    let this = self.clone();
                    self.context.handlers.spawn(async move {
                        let Some(job) = waiting.admitted(&this.context).await else { return };
                        this.admit(vec![job], true);
                        if this.context.rooms.free() == 0 {
                            // No more can join them.
                            this.context.flush();
                        }
                    });
                }
            }
        }
        self.admit(ready, false);
    }

    /// The same for tasks that have what they need of limits.
    /// With `gathers`, those that are granted at the same time come together.
    fn admit(&self, jobs: Vec<Job>, gathers: bool) {
        for job in jobs {
            if self.context.stop.is_cancelled() {
                job.hand_back(&self.context);
            } else if job.task.crashes > 0 {
                // If it is what ends workers, it ends no more than its own.
                self.context.handlers.spawn(run(vec![job], self.context.clone()));
            } else {
                let mut batch = self.batch();
                batch.jobs.push(job);
                if batch.jobs.len() >= self.size {
                    self.start(&mut batch);
                } else if batch.jobs.len() == 1 {
                    let (this, started) = (self.clone(), batch.started.clone());
                    let flushes = self.context.flushes.subscribe();
                    self.context.handlers.spawn(async move { this.start_later(started, flushes).await });
                }
            }
        }
        let mut batch = self.batch();
        if !batch.jobs.is_empty() && self.wait.is_zero() && !gathers {
            self.start(&mut batch);
        }
    }

    /// Starts a batch when it has waited for long enough, or is wanted. The worker's end does not wait for it: the tasks are handed back.
    async fn start_later(self, started: CancellationToken, mut flushes: watch::Receiver<u64>) {
        let is_over = tokio::select! {
            biased;
            () = started.cancelled() => return,
            () = self.context.stop.cancelled() => false,
            _ = flushes.changed() => true,
            () = self.waits() => true,
        };
        let mut batch = self.batch();
        if started.is_cancelled() {
            return;
        }
        if is_over {
            return self.start(&mut batch);
        }
        batch.jobs.drain(..).for_each(|job| job.hand_back(&self.context));
    }

    async fn waits(&self) {
        if self.wait.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.wait).await;
        }
    }

    fn start(&self, batch: &mut Batch) {
        batch.started.cancel();
        let Batch { jobs, .. } = std::mem::take(batch);
        self.context.handlers.spawn(run(jobs, self.context.clone()));
    }

    fn batch(&self) -> std::sync::MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
