//! The tasks of a shard that start next: each alone, or several together as a batch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_engine::handler::ErasedHandler;

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
    /// Number of batches that have started: what waits for an earlier one has nothing to do.
    started: u64,
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

    /// Starts what a claim has brought. A batch that is not full waits for more, unless it may not wait.
    pub(in crate::worker) fn add(&self, jobs: Vec<Job>) {
        for job in jobs {
            if self.context.stop.is_cancelled() {
                job.hand_back(&self.context);
                continue;
            }
            let mut batch = self.batch();
            batch.jobs.push(job);
            if batch.jobs.len() >= self.size {
                self.start(&mut batch);
            }
        }
        let mut batch = self.batch();
        match batch.jobs.len() {
            0 => {}
            _ if self.wait.is_zero() => self.start(&mut batch),
            _ => {
                let (this, number) = (self.clone(), batch.started);
                drop(batch);
                self.context.handlers.spawn(async move { this.start_later(number).await });
            }
        }
    }

    /// Starts the batch of this number when it has waited for long enough. The worker's end does not wait for it: the tasks are
    /// handed back.
    async fn start_later(self, number: u64) {
        let over = tokio::select! {
            biased;
            () = self.context.stop.cancelled() => false,
            () = tokio::time::sleep(self.wait) => true,
        };
        let mut batch = self.batch();
        if batch.started != number {
            return;
        }
        if over {
            return self.start(&mut batch);
        }
        batch.jobs.drain(..).for_each(|job| job.hand_back(&self.context));
    }

    fn start(&self, batch: &mut Batch) {
        batch.started += 1;
        let jobs = std::mem::take(&mut batch.jobs);
        self.context.handlers.spawn(run(jobs, self.context.clone()));
    }

    fn batch(&self) -> std::sync::MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
