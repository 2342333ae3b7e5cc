//! The consumer: a group's work on a topic.

mod config;
mod context;
mod decide;
mod dispatch;
mod fetch;
mod guard;
mod handler;
mod in_flight;
mod ownership;
mod renew;
mod settle;
mod trim;
mod upkeep;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::topic::TopicPartition;
use millstream_core::{
    Backend, DeadLetterPolicy, GroupName, IntoOutcome, MessageId, Retention, RetryPolicy, Start, Topic,
    Upkeep,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

pub use config::ConsumerConfig;

use context::Context;
use handler::Handler;
use ownership::{Guards, Ownership};
use renew::Renewer;

use crate::delivery::Delivery;
use crate::producer::warn_if_other;
use crate::report::Report;
use crate::trouble::Trouble;

/// A running consumer. Errors of the server never end it: it tells, pauses and goes on.
///
/// Dropping it stops it in the background, as [`shutdown`](Consumer::shutdown) does without the waiting.
pub struct Consumer {
    context: Arc<Context>,
    task: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Stops reading, lets the handlers that have started end (up to the shutdown timeout), settles what they said,
    /// and gives the partitions back. What was read and not started goes to the next owner first.
    pub async fn shutdown(mut self) -> Report {
        self.context.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the consumer ended abnormally");
        }
        self.context.counts.report()
    }

    /// What it did so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.context.counts.report()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("topic", &self.context.topic.name)
            .field("group", &self.context.group)
            .field("owner", &self.context.owner)
            .finish_non_exhaustive()
    }
}

/// Sets up a [`Consumer`]. Everything is checked at once when it starts.
#[must_use = "a builder does nothing until it is started"]
#[derive(Debug)]
pub struct ConsumerBuilder<T: 'static> {
    backend: Backend,
    topic: Topic<T>,
    group: String,
    config: ConsumerConfig,
    observer: Arc<dyn Observer>,
    upkeep: Vec<Arc<dyn Upkeep>>,
    /// What was wrong with the parts that were given.
    problems: Vec<Error>,
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// A consumer of `topic` in `group` that tells `observer`.
    pub fn new(
        backend: Backend,
        topic: Topic<T>,
        group: impl Into<String>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let group = group.into();
        let config = ConsumerConfig::default();
        Self { backend, topic, group, config, observer, upkeep: Vec::new(), problems: Vec::new() }
    }

    /// All settings at once.
    pub fn config(self, config: ConsumerConfig) -> Self {
        Self { config, ..self }
    }

    /// When a failed message comes back. Default: [`Exponential`](millstream_core::policy::Exponential).
    pub fn retry(mut self, policy: impl RetryPolicy + 'static) -> Self {
        self.config.retry = Arc::new(policy);
        self
    }

    /// Whether a message that is given up is kept. Default: [`Keep`](millstream_core::policy::Keep).
    pub fn dead_letters(mut self, policy: impl DeadLetterPolicy + 'static) -> Self {
        self.config.dead_letters = Arc::new(policy);
        self
    }

    /// Where a group that does not exist yet starts reading. Default: [`Start::Earliest`].
    pub fn start_from(mut self, start: Start) -> Self {
        self.config.start = start;
        self
    }

    /// How long a partition stays owned without a renewal. Default: 10 s.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.config.lease_ttl = ttl;
        self
    }

    /// The most messages of one partition that are read and not settled yet. Default: 256.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.config.prefetch = messages;
        self
    }

    /// How long handlers may take to end when the consumer is shut down. Default: 30 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.config.shutdown_timeout = timeout;
        self
    }

    /// What people see as the owner of a partition. Default: `consumer`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// One more kind of background work for every owned partition. What could not be set up is reported with
    /// everything else when the consumer starts.
    pub fn upkeep(mut self, upkeep: Result<impl Upkeep + 'static>) -> Self {
        match upkeep {
            Ok(upkeep) => self.upkeep.push(Arc::new(upkeep)),
            Err(error) => self.problems.push(error),
        }
        self
    }

    /// Starts the consumer in the background.
    ///
    /// The handler gets one message of a partition after the other; partitions run side by side.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists every problem; those of
    /// [`Catalog::create_topic`](millstream_core::Catalog::create_topic) and
    /// [`Catalog::create_group`](millstream_core::Catalog::create_group).
    pub async fn start<F, Fut>(mut self, handler: F) -> Result<Consumer>
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let handler = handler::erase(self.topic.codec(), handler);
        let mut problems = Problems::new("consumer");
        let spec = problems.take(self.topic.spec());
        let group = problems.take(GroupName::new(&self.group));
        self.config.check(&mut problems);
        for problem in std::mem::take(&mut self.problems) {
            let _: Option<()> = problems.take(Err(problem));
        }
        problems.finish()?;
        let (Some(spec), Some(group)) = (spec, group) else {
            return Err(Error::new(ErrorKind::InvalidConfig, "invalid consumer"));
        };

        let topic = self.backend.catalog.create_topic(&spec).await?;
        warn_if_other(&spec, &topic);
        self.join(&topic, &group).await?;
        if topic.retention == Retention::Consumed {
            self.upkeep.push(Arc::new(trim::Trimmer(self.backend.log.clone())));
        }
        Ok(self.spawn(topic, group, handler))
    }

    /// Creates the group where it is missing, and tells where it had been lost.
    async fn join(&self, topic: &millstream_core::TopicSpec, group: &GroupName) -> Result<()> {
        let created = self.backend.catalog.create_group(topic, group, self.config.start).await?;
        if created.new {
            return Ok(());
        }
        for partition in created.partitions {
            let topic_partition = TopicPartition { topic: topic.name.clone(), partition };
            let after = match self.config.start {
                Start::After(id) => id,
                _ => MessageId::ZERO,
            };
            tracing::warn!(%topic_partition, %group, "the group was gone and has been created again");
            self.observer.observe(&Event::GroupRestored { topic_partition: &topic_partition, group, after });
        }
        Ok(())
    }

    fn spawn(self, topic: millstream_core::TopicSpec, group: GroupName, handler: Handler) -> Consumer {
        let owner = format!("{}-{}", self.config.label, Uuid::new_v4().simple());
        let context = Arc::new(Context {
            backend: self.backend,
            topic,
            group,
            config: self.config,
            handler,
            observer: self.observer,
            upkeep: self.upkeep,
            counts: crate::report::Counts::default(),
            owner,
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
        });
        let guards = Guards::default();
        let renewer =
            Renewer { context: context.clone(), guards: guards.clone(), trouble: Trouble::new("renew") };
        let ownership = Ownership::new(context.clone(), guards);
        let task = tokio::spawn(async move {
            // Renewed to the very end: a partition is ours until its worker has given it back.
            let _renewals = AbortOnDropHandle::new(tokio::spawn(renewer.run()));
            ownership.run().await;
        });
        Consumer { context, task: Some(task) }
    }

    /// Runs the consumer until `shutdown` is ready, then shuts it down.
    ///
    /// ```no_run
    /// # use millstream_runtime::{ConsumerBuilder, Delivery};
    /// # async fn example(consumer: ConsumerBuilder<u64>, sigterm: impl Future<Output = ()>)
    /// # -> millstream_core::Result<()> {
    /// let report = consumer
    ///     .run_until(sigterm, async |number: Delivery<u64>| println!("{}", *number))
    ///     .await?;
    /// println!("{} handled", report.acked);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn run_until<F, Fut>(self, shutdown: impl Future<Output = ()>, handler: F) -> Result<Report>
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let consumer = self.start(handler).await?;
        shutdown.await;
        Ok(consumer.shutdown().await)
    }

    /// Runs the consumer until this future is dropped; it then stops in the background.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn run<F, Fut>(self, handler: F) -> Result<Report>
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.run_until(std::future::pending(), handler).await
    }
}
