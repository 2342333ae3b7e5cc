//! Sets up a worker: checks everything at once, and starts it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::error::{Problems, Result};
use millstream_core::{DeadLetterPolicy, IntoOutcome, Observer, RetryPolicy};

use super::context::Context;
use super::handler::{self, CheckCall, IntoCheck};
use super::{Worker, WorkerConfig, WorkerReport};
use crate::queue::Inner;
use crate::task::Task;

/// Sets up a [`Worker`]. Everything is checked at once when it starts.
#[must_use = "a builder does nothing until it is started"]
pub struct WorkerBuilder<T: 'static> {
    queue: Arc<Inner<T>>,
    config: WorkerConfig,
    observer: Arc<dyn Observer>,
    check: Option<Arc<CheckCall<T>>>,
}

impl<T: Send + 'static> WorkerBuilder<T> {
    pub(crate) fn new(queue: Arc<Inner<T>>) -> Self {
        let observer = queue.observer.clone();
        Self { queue, config: WorkerConfig::default(), observer, check: None }
    }

    /// All settings at once.
    pub fn config(self, config: WorkerConfig) -> Self {
        Self { config, ..self }
    }

    /// The most tasks in its hands at once, over all shards. Default: 16.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.config.concurrency = tasks;
        self
    }

    /// When a failed task comes back. Default: [`Exponential`](millstream_core::policy::Exponential), 10 attempts.
    pub fn retry(mut self, policy: impl RetryPolicy + 'static) -> Self {
        self.config.retry = Arc::new(policy);
        self
    }

    /// Whether a task that is given up is kept. Default: [`Keep`](millstream_core::policy::Keep).
    pub fn dead_letters(mut self, policy: impl DeadLetterPolicy + 'static) -> Self {
        self.config.dead_letters = Arc::new(policy);
        self
    }

    /// How long a task stays ours without a renewal, and so how long it waits when its worker dies. Default: 30 s.
    pub fn hold(mut self, hold: Duration) -> Self {
        self.config.hold = hold;
        self
    }

    /// How many workers may die over one task before it is given up, at least 2; 0 for any number. Default: 3.
    pub fn crash_limit(mut self, crashes: u32) -> Self {
        self.config.crash_limit = crashes;
        self
    }

    /// How long a handler may take before it is dropped, which is a failed attempt. Default: any time.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.config.handler_timeout = Some(timeout);
        self
    }

    /// How long a shutdown may take: see [`WorkerConfig::shutdown_timeout`]. Default: 25 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.config.shutdown_timeout = timeout;
        self
    }

    /// The longest sleep, and so the most that a lost wake-up can cost; at most a day. Default: 15 s.
    pub fn longest_sleep(mut self, longest_sleep: Duration) -> Self {
        self.config.longest_sleep = longest_sleep;
        self
    }

    /// What people see as who looks out for what is due. Default: `worker`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// Is told of every event, instead of the queue's observer.
    pub fn observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    /// Asked before a task is worked on *again*: a retry, or one that a worker had who died or stood still, who may have
    /// done it. Ask your own records whether that is so. It counts as part of the handler: an error or a panic is a
    /// failed attempt.
    ///
    /// ```
    /// # use millstream_core::Result;
    /// # use millstream_delay::{Check, DelayQueue, Task};
    /// # async fn was_sent(_: &str) -> std::result::Result<bool, String> { Ok(true) }
    /// # async fn send(_: String) -> std::result::Result<(), String> { Ok(()) }
    /// # async fn example(mails: DelayQueue<String>) -> Result<()> {
    /// let worker = mails.worker()
    ///     .check(|mail: Task<String>| async move {
    ///         Ok::<_, String>(if was_sent(mail.id().as_str()).await? { Check::Complete } else { Check::Run })
    ///     })
    ///     .start(|mail: Task<String>| async move { send(mail.payload).await })
    ///     .await?;
    /// # worker.shutdown().await; Ok(()) }
    /// ```
    pub fn check<F, Fut>(mut self, check: F) -> Self
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoCheck,
    {
        self.check = Some(Arc::new(move |task| check(task).map(IntoCheck::into_check).boxed()));
        self
    }

    /// Starts the worker in the background.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) that lists every problem.
    pub async fn start<F, Fut>(self, handler: F) -> Result<Worker>
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let mut problems = Problems::new("worker");
        self.config.check(&mut problems);
        problems.finish()?;
        let handler = handler::erase(self.queue.clone(), self.check, self.config.handler_timeout, handler);
        let shards = self.queue.spec.iter().collect();
        let (backend, limits) = (self.queue.backend.clone(), self.queue.limits);
        let queue = self.queue.spec.name.clone();
        let context = Context::new(backend, queue, shards, self.config, limits, self.observer, handler);
        Ok(Worker::spawn(Arc::new(context)))
    }

    /// Runs the worker until `shutdown` is ready, then shuts it down.
    ///
    /// ```no_run
    /// # use millstream_delay::{Task, WorkerBuilder};
    /// # async fn example(worker: WorkerBuilder<u64>, sigterm: impl Future<Output = ()>)
    /// # -> millstream_core::Result<()> {
    /// let report = worker.run_until(sigterm, async |number: Task<u64>| println!("{}", number.payload)).await?;
    /// println!("{} done", report.done);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn run_until<F, Fut>(
        self,
        shutdown: impl Future<Output = ()>,
        handler: F,
    ) -> Result<WorkerReport>
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        Ok(self.start(handler).await?.until(shutdown).await)
    }

    /// Runs the worker until this future is dropped; it then stops in the background.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn run<F, Fut>(self, handler: F) -> Result<WorkerReport>
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.run_until(std::future::pending(), handler).await
    }
}

impl<T> fmt::Debug for WorkerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.queue.spec)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
