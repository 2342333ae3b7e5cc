//! A consumer of dead letters: a handler says of each letter what becomes of it.

mod letter;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::dead_letters::MAX_HOLD;
use millstream_core::error::{Problems, Result};
use millstream_core::event::Observer;
use millstream_core::panics::Careful;
use millstream_core::{Backend, Error, ErrorKind, GroupName, Topic};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use letter::{DeadLetterOutcome, DeadLetterReport, IntoDeadLetterOutcome, Letter};

use letter::Counts;
use worker::DeadLetterWorker;

/// How dead letters are consumed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterConfig {
    /// How often it looks for new letters. Default: 5 s.
    pub poll: Duration,
    /// How often it looks at all letters again: for those that were left long enough, and those that somebody died over.
    /// Default: 60 s.
    pub sweep: Duration,
    /// For how long letters are claimed; it is renewed while a handler runs. So long after a crash they are handled again.
    /// Default: 30 s, at least 1 s.
    pub hold: Duration,
    /// How long a letter that was left is not handled again, by any consumer. Default: 1 h.
    pub leave_for: Duration,
    /// How many letters of a partition are handled at once. Default: 1.
    pub concurrency: usize,
    /// How long handlers may take to end at a shutdown. Default: 30 s.
    pub shutdown_timeout: Duration,
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(5),
            sweep: Duration::from_secs(60),
            hold: Duration::from_secs(30),
            leave_for: Duration::from_secs(60 * 60),
            concurrency: 1,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl DeadLetterConfig {
    fn check(&self, problems: &mut Problems) {
        problems.require(self.hold <= MAX_HOLD, || {
            format!("hold is {:?}, at most {MAX_HOLD:?} are allowed", self.hold)
        });
        problems.require(self.hold >= Duration::from_secs(1), || {
            format!("hold is {:?}, at least 1s is needed to renew it in time", self.hold)
        });
        problems.require(!self.poll.is_zero(), || "poll is zero: that is a busy loop".into());
        problems.require(self.sweep >= self.poll, || {
            format!("sweep is {:?}, shorter than poll {:?}", self.sweep, self.poll)
        });
        problems.require((1..=1_000).contains(&self.concurrency), || {
            format!("concurrency is {}, 1 to 1000 are allowed", self.concurrency)
        });
    }
}

/// Sets up a [`DeadLetterConsumer`].
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
    observer: Arc<dyn Observer>,
}

impl<T: Send + 'static> DeadLetterConsumerBuilder<T> {
    /// A consumer of what `group` gave up of `topic`.
    pub fn new(
        backend: Backend,
        topic: Topic<T>,
        group: impl Into<String>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let (group, config) = (group.into(), DeadLetterConfig::default());
        Self { backend, topic, group, config, observer }
    }

    /// All settings at once.
    pub fn config(self, config: DeadLetterConfig) -> Self {
        Self { config, ..self }
    }

    /// How often it looks for new letters. Default: 5 s.
    pub fn poll(mut self, every: Duration) -> Self {
        self.config.poll = every;
        self.config.sweep = self.config.sweep.max(every);
        self
    }

    /// How long a letter that was left is not handled again, by any consumer. Default: 1 h.
    pub fn leave_for(mut self, time: Duration) -> Self {
        self.config.leave_for = time;
        self
    }

    /// For how long letters are claimed; it is renewed while a handler runs. So long after a crash they are handled again.
    /// Default: 30 s, at least 1 s.
    pub fn hold(mut self, time: Duration) -> Self {
        self.config.hold = time;
        self
    }

    /// How many letters of a partition are handled at once. Default: 1.
    pub fn concurrency(mut self, letters: usize) -> Self {
        self.config.concurrency = letters;
        self
    }

    /// Starts to consume in the background. Any number of consumers may do so at the same time, beside operators: none
    /// gets a letter that another one has.
    ///
    /// The handler says what becomes of a letter; an error or a panic leaves it. It may be asked about one again whose
    /// process died, or whose answer was lost: at least once, as with messages.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists every problem; [`ErrorKind::NotFound`] for a topic that is not there;
    /// transient ones.
    pub async fn start<F, Fut>(self, handler: F) -> Result<DeadLetterConsumer>
    where
        F: Fn(Letter<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoDeadLetterOutcome,
    {
        let mut problems = Problems::new("dead-letter consumer");
        let spec = problems.take(self.topic.spec());
        let group = problems.take(GroupName::new(&self.group));
        self.config.check(&mut problems);
        problems.finish()?;
        let (Some(spec), Some(group)) = (spec, group) else {
            return Err(Error::new(ErrorKind::InvalidConfig, "invalid dead-letter consumer"));
        };
        let topic = self.backend.catalog.topic(&spec.name).await?.name;
        let (stop, counts) = (CancellationToken::new(), Arc::<Counts>::default());
        let timeout = self.config.shutdown_timeout;
        let (codec, observer) = (self.topic.codec(), Careful::over(self.observer));
        let worker = DeadLetterWorker::new(
            self.backend,
            topic,
            group,
            self.config,
            observer,
            stop.clone(),
            counts.clone(),
        );
        let task = tokio::spawn(worker.run(codec, handler));
        Ok(DeadLetterConsumer { stop, counts, task: Some(task), timeout })
    }
}

/// A running consumer of dead letters. Errors of the server never end it: it tells, pauses and goes on.
///
/// Dropping it stops it in the background, as [`shutdown`](Self::shutdown) does without the waiting.
#[must_use = "a consumer that is dropped stops: keep it, and end it with `shutdown`"]
pub struct DeadLetterConsumer {
    stop: CancellationToken,
    counts: Arc<Counts>,
    task: Option<JoinHandle<()>>,
    timeout: Duration,
}

impl DeadLetterConsumer {
    /// Takes no more letters, lets the handlers that have started end, and gives back what was claimed. That takes up to
    /// the shutdown timeout; then handlers are given up, and their letters are handled again after the hold.
    pub async fn shutdown(mut self) -> DeadLetterReport {
        self.stop.cancel();
        if let Some(mut task) = self.task.take() {
            match tokio::time::timeout(self.timeout, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the dead-letter consumer ended abnormally"),
                Err(_) => task.abort(),
            }
        }
        self.counts.report()
    }

    /// What it did so far.
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
