//! The builder of a worker: validates all settings together, and starts it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::ready;
use millstream_core::error::{Problems, Result};
use millstream_core::panics::Careful;
use millstream_core::span::Tracing;
use millstream_core::{
    Backend, Capability, Check, DeadLetterPolicy, GroupName, IntoBatchOutcome, IntoCheck, IntoOutcome,
    Limits, Observer, QueueSpec, RetryPolicy, TopicName, TopicSpec,
};
use millstream_engine::delivery::Deliverable;
use millstream_engine::handler::check::{self, CheckCall};
use millstream_engine::handler::{BatchConfig, ErasedHandler, batch, erase};
use millstream_engine::markers::{self, Guarding, MarkerTable};
use millstream_engine::{Idempotent, Layer, Limit, Loops, Scope};

use tokio_util::sync::CancellationToken;

use crate::inner::Inner;
use crate::sleep::LONGEST_SLEEP;
use crate::task::Task;
use crate::worker::context::Context;
use crate::worker::{Worker, WorkerConfig, WorkerReport};

/// Builder for a [`Worker`]. `start` validates all settings together.
#[must_use = "a builder does nothing until it is started"]
pub struct WorkerBuilder<T: 'static> {
    queue: Arc<Inner<T>>,
    config: WorkerConfig,
    observer: Arc<dyn Observer>,
    check: Option<Arc<CheckCall<T>>>,
    /// The outermost first.
    layers: Vec<Arc<dyn Layer>>,
    idempotent: Option<Idempotent>,
}

impl<T: Send + 'static> WorkerBuilder<T> {
    pub(crate) fn new(queue: Arc<Inner<T>>) -> Self {
        let observer = queue.observer.clone();
        let (config, check, layers, idempotent) = (WorkerConfig::default(), None, Vec::new(), None);
        Self { queue, config, observer, check, layers, idempotent }
    }

    /// Sets the whole configuration.
    pub fn config(self, config: WorkerConfig) -> Self {
        Self { config, ..self }
    }

    /// Sets the maximum number of tasks held at once, over all shards. Default: 16.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.config.concurrency = tasks;
        self
    }

    /// Adds a [`Limit`] on how many tasks of a key are handled at once, or begin in a time, or a breaker: the same that consumers take,
    /// and the units of one name are shared with them. Each task comes under up to eight limits.
    ///
    /// A task over a limit stays claimed and waits, without a handler and without an attempt; others begin meanwhile. Up to
    /// [`max_blocked`](WorkerConfig::max_blocked) of this worker wait so. [`Limit::or_cancel`] is refused. Units belong to the worker, as a lease of the [hold time](Self::hold).
    ///
    /// ```
    /// # use millstream_core::{Rate, Result};
    /// # use millstream_delay::{DelayQueue, Task, Worker};
    /// # use millstream_engine::Limit;
    /// # async fn send(_: String) -> std::result::Result<(), String> { Ok(()) }
    /// # async fn example(mails: DelayQueue<String>) -> Result<Worker> {
    /// mails.worker()
    ///     .limit(Limit::by_header("per-tenant", "x-tenant").at_most(2))
    ///     .limit(Limit::global("mail-api").rate(Rate::per_second(10)))
    ///     .start(|mail: Task<String>| async move { send(mail.payload).await })
    ///     .await
    /// # }
    /// ```
    pub fn limit(mut self, limit: Limit) -> Self {
        self.config.limits.push(limit);
        self
    }

    /// Sets how many tasks may wait for limits: see [`WorkerConfig::max_blocked`]. Default: 1,000.
    pub fn max_blocked(mut self, tasks: usize) -> Self {
        self.config.max_blocked = tasks;
        self
    }

    /// Sets the policy that decides when a failed task is retried. Default:
    /// [`Exponential`](millstream_core::policy::Exponential), 10 attempts.
    pub fn retry(mut self, policy: impl RetryPolicy + 'static) -> Self {
        self.config.retry = Arc::new(policy);
        self
    }

    /// Sets the policy that decides whether a task that is given up is kept. Default:
    /// [`Keep`](millstream_core::policy::Keep).
    pub fn dead_letters(mut self, policy: impl DeadLetterPolicy + 'static) -> Self {
        self.config.dead_letters = Arc::new(policy);
        self
    }

    /// Sets how long a claim is valid without a renewal, which is also how long a task waits when its worker dies.
    /// Default: 30 s.
    pub fn hold(mut self, hold: Duration) -> Self {
        self.config.hold = hold;
        self
    }

    /// Sets how many workers may die during one task before it is given up: at least 2, or 0 for no limit. Default: 3.
    pub fn crash_limit(mut self, crashes: u32) -> Self {
        self.config.crash_limit = crashes;
        self
    }

    /// Sets the time limit of a handler. After it the handler is dropped, which counts as a failed attempt. Default: no
    /// limit.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.config.handler_timeout = Some(timeout);
        self
    }

    /// Sets how long the id of a completed task stays in use. A task that is scheduled under it within this window is not
    /// stored, and [`placed`](crate::ScheduledTask::placed) is
    /// [`Placed::Done`](millstream_core::schedule::Placed::Done). So a program may schedule a task again after a lost answer,
    /// or a restart, without knowing whether it ran. A task that was given up frees its id. Default: an id is free once its
    /// task is done. See [`WorkerConfig::done_window`].
    pub fn done_window(mut self, window: Duration) -> Self {
        self.config.done_window = Some(window);
        self
    }

    /// Sets whether the [results](millstream_core::results) of tasks that failed, or were done without a reply, are stored too, for whoever
    /// [asked](crate::ScheduleTask::reply). Default: only if the return type of the handler is a [`Reply`](millstream_core::Reply), or a `Result`
    /// of one.
    pub fn replies(mut self, replies: bool) -> Self {
        self.config.replies = replies;
        self
    }

    /// Sets the time limit of a shutdown: see [`WorkerConfig::shutdown_timeout`]. Default: 25 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.config.shutdown_timeout = timeout;
        self
    }

    /// Sets the longest sleep, which is the maximum delay that a lost wake-up can cause; at most a day. Default: 15 s.
    pub fn longest_sleep(mut self, longest_sleep: Duration) -> Self {
        self.config.longest_sleep = longest_sleep;
        self
    }

    /// Sets the label in the worker's name: people see it as the worker that waits for due tasks. Default: `worker`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// Sets the observer, which receives all events, in place of the queue's observer.
    pub fn observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    /// Adds a [`Layer`] around the handler, inside of those that were added before: the same that consumers take. What it sees of a task
    /// is a delivery whose topic is the queue's name, whose partition is the shard, and whose group is `@tasks`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_core::Result;
    /// # use millstream_delay::{DelayQueue, Task, Worker};
    /// # use millstream_engine::{Timeout, Trace};
    /// # async fn send(_: String) -> std::result::Result<(), String> { Ok(()) }
    /// # async fn example(mails: DelayQueue<String>) -> Result<Worker> {
    /// mails.worker()
    ///     .layer(Trace::new())
    ///     .layer(Timeout::new(Duration::from_secs(10)))
    ///     .start(|mail: Task<String>| async move { send(mail.payload).await })
    ///     .await
    /// # }
    /// ```
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Calls the handler once for each operation, as far as a marker on the server can tell: see [`Idempotent`]. Operations belong to
    /// the queue. [`Idempotent::by_message_id`] names them by the task's id and a checksum of its payload, so a task that is scheduled
    /// again with the same of both within the retention is done already. Markers hold for the [hold time](Self::hold).
    pub fn idempotent(mut self, settings: Idempotent) -> Self {
        self.idempotent = Some(settings);
        self
    }

    /// Sets a check that runs before a task is worked on *again*: on a retry, or after a worker that had it died,
    /// stalled, or dropped its handler at the end of a shutdown, and may have done it. The check should look into the application's own records whether the work is done.
    /// It counts as part of the handler: an error or a panic is a failed attempt.
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
        self.check = Some(Arc::new(move |delivery| match Task::of(delivery) {
            Some(task) => check(task).map(IntoCheck::into_check).boxed(),
            // Whatever it is: the handler refuses it.
            None => ready(Ok(Check::Run)).boxed(),
        }));
        self
    }

    /// Starts the worker in the background.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) that lists all problems.
    pub async fn start<F, Fut>(self, handler: F) -> Result<Worker>
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let handler = erase::<Task<T>, _, _>(self.queue.codec, handler);
        self.launch(handler)
    }

    /// Starts the worker in the background, with a handler that gets several tasks of one shard at once: up to `size` of them, but no
    /// more than the [concurrency](Self::concurrency), or those that were due within `wait` after the first.
    ///
    /// The handler returns one outcome for all tasks, or a `Vec` with one for each. Tasks that the codec cannot decode are given up and
    /// left out. Layers are for handlers of single tasks.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_core::{Outcome, Result};
    /// # use millstream_delay::{DelayQueue, Task, Worker};
    /// # async fn send_all(_: Vec<Task<String>>) -> std::result::Result<(), String> { Ok(()) }
    /// # async fn example(mails: DelayQueue<String>) -> Result<Worker> {
    /// mails.worker().concurrency(100).start_batch((50, Duration::from_millis(200)), send_all).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn start_batch<F, Fut>(self, batch: impl Into<BatchConfig>, handler: F) -> Result<Worker>
    where
        F: Fn(Vec<Task<T>>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoBatchOutcome,
    {
        let handler = batch::erase::<Task<T>, Vec<Task<T>>, _, _>(self.queue.codec, batch.into(), handler);
        self.launch(handler)
    }

    fn launch(self, handler: ErasedHandler) -> Result<Worker> {
        let Self { queue, config, observer, check, layers, idempotent } = self;
        let handler = match check {
            Some(asks) => check::wrap(handler, queue.codec, asks),
            None => handler,
        };
        let parts = Parts {
            backend: queue.backend.clone(),
            spec: queue.spec.clone(),
            limits: queue.limits,
            config,
            observer,
            layers,
            idempotent,
        };
        parts.start(handler)
    }

    /// Runs the worker until `shutdown` completes, then shuts it down.
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
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
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
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.run_until(std::future::pending(), handler).await
    }
}

/// What a builder has, without the type of the payload: starting is compiled once.
struct Parts {
    backend: Backend,
    spec: QueueSpec,
    limits: Limits,
    config: WorkerConfig,
    observer: Arc<dyn Observer>,
    layers: Vec<Arc<dyn Layer>>,
    idempotent: Option<Idempotent>,
}

impl Parts {
    fn start(mut self, handler: ErasedHandler) -> Result<Worker> {
        let mut problems = Problems::new("worker");
        // Dead tasks come again as dead letters of a topic do.
        let queue = TopicSpec::new(TopicName::of_queue(&self.spec.name), 1)?
            .with_dead_letter_retention(self.spec.dead_letter_retention);
        if let ErasedHandler::Batch(config, _) = &handler {
            config.check(&mut problems);
            problems.require(self.layers.is_empty(), || {
                "layers are for handlers of single tasks, not of batches".into()
            });
        }
        self.config.check(&mut problems);
        if let Some(idempotent) = &self.idempotent {
            idempotent.check(&*self.config.retry, std::iter::once(&queue), &mut problems);
        }
        problems.finish()?;
        if self.backend.is_lasting() {
            // No wake-up is lost within a process.
            self.config.longest_sleep = LONGEST_SLEEP;
        }
        let (observer, loops) = (Careful::over(self.observer), Loops::default());
        let tracing = Tracing::of(&observer);
        let kill = CancellationToken::new();
        let mut handler = handler.within(&self.layers).traced(tracing.as_ref()).until(kill.clone());
        let mut markers = None;
        if let Some(settings) = &self.idempotent {
            self.backend.require(Capability::Idempotency)?;
            settings.warn_if_assumed(&queue);
            let table = MarkerTable::default();
            let guarding = Guarding {
                backend: self.backend.clone(),
                scope: (TopicName::of_queue(&self.spec.name), GroupName::of_tasks()),
                ttl: self.config.hold,
                is_ordered: false,
                monitor: loops.monitor("idempotency", Scope::Queue),
                observer: observer.clone(),
                markers: table.clone(),
            };
            handler = markers::wrap(handler, settings, guarding)?;
            markers = Some(table);
        }
        let (observing, handling) = ((observer, tracing), (handler, markers, kill));
        let context =
            Context::new(self.backend, &self.spec, self.config, self.limits, observing, handling, loops)?;
        Ok(Worker::spawn(Arc::new(context)))
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
