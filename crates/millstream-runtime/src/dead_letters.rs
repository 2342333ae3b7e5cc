//! A consumer of dead letters: a handler decides the fate of each letter.

mod report;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::dead_letters::MAX_HOLD;
use millstream_core::error::{Problems, Result};
use millstream_core::event::Observer;
use millstream_core::panics::Careful;
use millstream_core::policy::Never;
use millstream_core::span::Tracing;
use millstream_core::{Backend, Capability, Error, ErrorKind, GroupName, Topic, TopicSpec};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use report::DeadLetterReport;

use millstream_engine::handler::{Call, ErasedHandler, erase_letters};
use millstream_engine::limits::{LimitSet, PermitPool};
use millstream_engine::markers::{self, Guarding, MarkerTable, extend_markers};
use millstream_engine::{
    ControlThread, Idempotent, IntoDeadLetterOutcome, Keeper, Layer, LeaseClock, Letter, Limit, Loops, Scope,
};
use report::LetterCounts;
use worker::DeadLetterWorker;

/// Shortest [`poll`](DeadLetterConfig::poll): each sends a request for each partition.
const SHORTEST_POLL: Duration = Duration::from_millis(10);

/// Settings of a dead-letter consumer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterConfig {
    /// Interval at which the consumer reads new letters. Default: 5 s; at least 10 ms.
    pub poll: Duration,
    /// Interval at which the consumer reads all letters again. This finds letters that were left for long enough, and
    /// those of consumers that died. Default: 60 s.
    pub sweep: Duration,
    /// Time for which a claim on letters is valid. It is renewed while a handler runs. After a crash the letters are
    /// handled again when this time is over. Default: 30 s, at least 1 s.
    pub hold: Duration,
    /// Time for which a letter that was left is not handled again by any consumer. Default: 1 h.
    pub leave_for: Duration,
    /// Maximum number of letters of a partition that are handled at once. Default: 1.
    pub concurrency: usize,
    /// Time limit of a handler and its layers. After it the handler is dropped, and its letter is left. Default: no limit.
    pub handler_timeout: Option<Duration>,
    /// Time limit for handlers to end at a shutdown. Default: 25 s.
    pub shutdown_timeout: Duration,
    /// Limits across processes.
    limits: LimitSet,
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(5),
            sweep: Duration::from_secs(60),
            hold: Duration::from_secs(30),
            leave_for: Duration::from_secs(60 * 60),
            concurrency: 1,
            handler_timeout: None,
            shutdown_timeout: Duration::from_secs(25),
            limits: LimitSet::default(),
        }
    }
}

impl DeadLetterConfig {
    fn check(&self, problems: &mut Problems) {
        self.limits.check(problems);
        problems.require(!self.limits.cancels(), || {
            "or_cancel is not for dead letters: one that was cancelled comes back".into()
        });
        problems.require(self.hold <= MAX_HOLD, || {
            format!("hold is {:?}, at most {MAX_HOLD:?} are allowed", self.hold)
        });
        problems.require(self.hold >= Duration::from_secs(1), || {
            format!("hold is {:?}, at least 1s is needed to renew it in time", self.hold)
        });
        problems.require(self.poll >= SHORTEST_POLL, || {
            format!("poll is {:?}, at least {SHORTEST_POLL:?} are needed: less is a busy loop", self.poll)
        });
        problems.require(self.sweep >= self.poll, || {
            format!("sweep is {:?}, shorter than poll {:?}", self.sweep, self.poll)
        });
        problems.require((1..=1_000).contains(&self.concurrency), || {
            format!("concurrency is {}, 1 to 1000 are allowed", self.concurrency)
        });
    }
}

/// Builder of a [`DeadLetterConsumer`].
///
/// ```
/// # use millstream_runtime::{DeadLetterConsumerBuilder, DeadLetterOutcome, Letter};
/// # use millstream_core::Reason;
/// # async fn example(dead: DeadLetterConsumerBuilder<u64>) -> millstream_core::Result<()> {
/// let consumer = dead
///     .start(async |letter: Letter<u64>| match (&letter.payload, &letter.dead.reason) {
///         (Ok(0), _) => DeadLetterOutcome::Delete,
///         (_, Reason::Exhausted) => DeadLetterOutcome::Replay,
///         _ => DeadLetterOutcome::Leave,
///     })
///     .await?;
/// println!("{:?}", consumer.shutdown().await);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it is started"]
pub struct DeadLetterConsumerBuilder<T: 'static> {
    backend: Backend,
    topic: Topic<T>,
    group: String,
    config: DeadLetterConfig,
    /// The outermost first.
    layers: Vec<Arc<dyn Layer>>,
    idempotent: Option<Idempotent>,
    observer: Arc<dyn Observer>,
}

impl<T: Send + 'static> DeadLetterConsumerBuilder<T> {
    /// Creates a builder of a consumer of the messages of `topic` that `group` gave up.
    pub fn new(
        backend: Backend,
        topic: Topic<T>,
        group: impl Into<String>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let (group, config) = (group.into(), DeadLetterConfig::default());
        Self { backend, topic, group, config, layers: Vec::new(), idempotent: None, observer }
    }

    /// Adds a [`Layer`] inside of those that were added before, such as those with which the topic's consumers decrypt or fetch
    /// payloads. It gets the message of the letter: its key and headers, the number of its attempts, and the error of the last one.
    ///
    /// A payload that a layer refuses ([`Answer::undecodable`](crate::Answer::undecodable), `Outcome::DeadLetter`) is passed to the handler as one that the codec
    /// refuses. `Outcome::Snooze` leaves the letter for this time. If a layer fails, or ends without the handler, the letter is left.
    /// What is replayed is the letter as it is stored, whatever layers have changed; a message of `ReplayAs` is stored as it is, so it has to be as
    /// the producer's layers would have left it.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Replaces all settings.
    pub fn config(self, config: DeadLetterConfig) -> Self {
        Self { config, ..self }
    }

    /// Sets the interval at which the consumer reads new letters. Default: 5 s.
    pub fn poll(mut self, every: Duration) -> Self {
        self.config.poll = every;
        self.config.sweep = self.config.sweep.max(every);
        self
    }

    /// Sets how long a letter that was left is not handled again by any consumer. Default: 1 h.
    pub fn leave_for(mut self, time: Duration) -> Self {
        self.config.leave_for = time;
        self
    }

    /// Sets how long a claim on letters lasts. It is renewed while a handler runs. After a crash the letters are handled
    /// again when this time is over. Default: 30 s, at least 1 s.
    pub fn hold(mut self, time: Duration) -> Self {
        self.config.hold = time;
        self
    }

    /// Sets how many letters of a partition are handled at once. Default: 1.
    pub fn concurrency(mut self, letters: usize) -> Self {
        self.config.concurrency = letters;
        self
    }

    /// Adds a [`Limit`] on how many letters of a key are handled at once, or begin in a time, or a breaker: the same that consumers take. The
    /// units of one name are shared with them. A letter over a limit waits in its place for up to a [hold](Self::hold), as one of those that
    /// are handled at once; after that others go on, and it is looked at again with the next sweep. It is left if the limit
    /// [drops](Limit::or_drop). [`or_cancel`](Limit::or_cancel) is refused.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.config.limits.push(limit);
        self
    }

    /// Sets the time limit of a handler and its layers: see [`DeadLetterConfig::handler_timeout`]. Default: no limit.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.config.handler_timeout = Some(timeout);
        self
    }

    /// Calls the handler once for each operation, as far as a marker on the server can tell: see [`Idempotent`]. The operation of a letter
    /// is that of its message in the same group: what is done for one is not done for the other. A letter whose operation is done is
    /// deleted; the operation is done when the handler returns [`Delete`](crate::DeadLetterOutcome::Delete), and abandoned otherwise.
    pub fn idempotent(mut self, settings: Idempotent) -> Self {
        self.idempotent = Some(settings);
        self
    }

    /// Starts the consumer in the background. Any number of consumers and operators may work at the same time: none gets
    /// a letter that another one has claimed.
    ///
    /// The handler decides the fate of a letter; an error or a panic leaves it. Delivery is at least once, as with
    /// messages: a letter is handled again if the process died meanwhile, or if the reply to its settlement was lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], which lists every problem; [`ErrorKind::NotFound`] if the topic does not exist;
    /// transient errors.
    pub async fn start<F, Fut>(self, handler: F) -> Result<DeadLetterConsumer>
    where
        F: Fn(Letter<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoDeadLetterOutcome,
    {
        let mut problems = Problems::new("dead-letter consumer");
        let spec = problems.take(self.topic.spec());
        let group = problems.take(GroupName::new(&self.group));
        self.config.check(&mut problems);
        if let Some(idempotent) = &self.idempotent {
            idempotent.check(&Never, spec.iter(), &mut problems);
        }
        problems.finish()?;
        let (Some(spec), Some(group)) = (spec, group) else {
            return Err(Error::new(ErrorKind::InvalidConfig, "invalid dead-letter consumer"));
        };
        let observer = Careful::over(self.observer);
        let handlers = erase_letters(self.topic.codec(), observer.clone(), &self.layers, handler);
        let parts =
            LetterParts { backend: self.backend, config: self.config, idempotent: self.idempotent, observer };
        parts.start(spec, group, handlers).await
    }
}

/// What a builder has, without the type of the payload: starting is compiled once.
struct LetterParts {
    backend: Backend,
    config: DeadLetterConfig,
    idempotent: Option<Idempotent>,
    observer: Arc<dyn Observer>,
}

impl LetterParts {
    async fn start(
        self,
        spec: TopicSpec,
        group: GroupName,
        (handler, plain): (Box<dyn Call>, Box<dyn Call>),
    ) -> Result<DeadLetterConsumer> {
        let Self { backend, config, idempotent, observer } = self;
        backend.require(Capability::DeadLetters)?;
        let stored = backend.catalog().topic(&spec.name).await?;
        let topic = stored.name.clone();
        let loops = Loops::default();
        let tracing = Tracing::of(&observer);
        let mut handler = ErasedHandler::Each(handler).traced(tracing.as_ref());
        let mut markers = None;
        if let Some(settings) = &idempotent {
            backend.require(Capability::Idempotency)?;
            settings.warn_if_assumed(&stored);
            let table = MarkerTable::default();
            let monitor = |operation| loops.monitor(operation, Scope::Topic(topic.clone()));
            let guarding = Guarding {
                backend: backend.clone(),
                scope: (topic.clone(), group.clone()),
                ttl: config.hold,
                is_ordered: false,
                monitor: monitor("idempotency"),
                observer: observer.clone(),
                markers: table.clone(),
            };
            handler = markers::wrap(handler, settings, guarding)?;
            let keeper = Keeper::new(config.hold, LeaseClock::of(&backend));
            let (extends, watches) = (monitor("extend_markers"), observer.clone());
            let extends = extend_markers(backend.clone(), keeper, extends, watches, table, worker::LOOKS);
            markers = Some(ControlThread::of(&backend).spawn(extends));
        }
        let handler: Box<dyn Call> = match handler {
            ErasedHandler::Each(handler) => handler,
            ErasedHandler::Batch(..) => {
                return Err(Error::new(ErrorKind::InvalidConfig, "a handler of batches"));
            }
        };
        let (stop, counts) = (CancellationToken::new(), Arc::<LetterCounts>::default());
        let timeout = config.shutdown_timeout;
        let by = format!("consumer-{:032x}", fastrand::u128(..));
        let keeper = Keeper::new(config.hold, LeaseClock::of(&backend));
        let permits = PermitPool::of(&backend, &by, keeper, &config.limits, worker::LOOKS)?;
        let scope = Scope::Topic(topic.clone());
        let control = ControlThread::of(&backend);
        let limits = permits.as_ref().map(|pool| pool.spawn(&control, &loops, &scope, &observer));
        let shared = (stop.clone(), counts.clone(), permits);
        let worker =
            DeadLetterWorker::new(backend, topic, (group, by), config, observer, shared, (handler, plain));
        let task = tokio::spawn(async move {
            let _markers = markers;
            worker.run(loops).await;
            if let Some(limits) = limits {
                limits.end().await;
            }
        });
        Ok(DeadLetterConsumer { stop, counts, task: Some(task), timeout })
    }
}

/// A running consumer of dead letters. Server errors never end it: it reports them, pauses and tries again.
///
/// Dropping it stops it in the background, as [`shutdown`](Self::shutdown) does, but without waiting.
#[must_use = "a consumer that is dropped stops: keep it, and end it with `shutdown`"]
pub struct DeadLetterConsumer {
    stop: CancellationToken,
    counts: Arc<LetterCounts>,
    task: Option<JoinHandle<()>>,
    timeout: Duration,
}

impl DeadLetterConsumer {
    /// Stops claiming letters, waits for the handlers that have started, and releases the remaining claims. This takes at
    /// most the shutdown timeout. Handlers that still run then are dropped, and their letters are handled again after the
    /// hold.
    pub async fn shutdown(mut self) -> DeadLetterReport {
        self.stop.cancel();
        if let Some(mut task) = self.task.take() {
            match tokio::time::timeout(self.timeout, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the dead-letter consumer ended abnormally"),
                Err(_) => {
                    tracing::warn!(
                        "handlers of dead letters did not end in time: their letters are handled again"
                    );
                    task.abort();
                }
            }
        }
        self.counts.report()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn report(&self) -> DeadLetterReport {
        self.counts.report()
    }
}

impl Drop for DeadLetterConsumer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for DeadLetterConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterConsumer").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for DeadLetterConsumerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterConsumerBuilder")
            .field("group", &self.group)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
