//! Relay: reads rows of the outbox, appends them to their topics, and deletes them.

mod answers;
mod batch;
mod config;
mod pace;
mod run;
mod share;
mod spans;
#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests;
mod topics;
mod trimming;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Problems, Result};
use millstream_core::event::Observer;
use millstream_core::panics::Careful;
use millstream_core::{Backend, Capability, Limits, Partitioner, Topic, TopicSpec};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use config::OutboxRelayConfig;

use crate::database::Database;
use run::Run;
use topics::Topics;
use trimming::Trims;

/// Relay that runs. Any number may run for one outbox: they share its shards evenly, and a shard has one of them at a time.
///
/// Dropping it stops it after the batch in flight, without waiting.
#[must_use = "a relay stops when it is dropped"]
pub struct OutboxRelay {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    name: String,
}

impl OutboxRelay {
    /// Returns the name under which it holds its shards: unique to this relay, as it stands in the column `holder`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stops it after the batch in flight, gives its shards to the others, and waits for that.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the relay of the outbox ended abnormally");
        }
    }
}

impl Drop for OutboxRelay {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl fmt::Debug for OutboxRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRelay").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Builder of an [`OutboxRelay`]. All settings are checked together when it is started.
#[must_use = "a builder does nothing until it is started"]
pub struct OutboxRelayBuilder {
    backend: Backend,
    database: Database,
    observer: Arc<dyn Observer>,
    config: OutboxRelayConfig,
    topics: Vec<Result<TopicSpec>>,
}

impl OutboxRelayBuilder {
    /// Creates a builder of a relay from the outbox in `database` to the topics of `backend`.
    pub fn new(backend: Backend, database: Database, observer: Arc<dyn Observer>) -> Self {
        Self { backend, database, observer, config: OutboxRelayConfig::default(), topics: Vec::new() }
    }

    /// Names a topic that rows are for: it is created if it does not exist, as a producer does. A row for a topic that exists needs
    /// no mention here; a row for one that does not is given up.
    pub fn topic<T: 'static>(mut self, topic: impl Borrow<Topic<T>>) -> Self {
        self.topics.push(topic.borrow().spec());
        self
    }

    /// Replaces all settings.
    pub fn config(self, config: OutboxRelayConfig) -> Self {
        Self { config, ..self }
    }

    /// Sets the number of rows of a batch. Default: 500.
    pub fn batch(mut self, rows: usize) -> Self {
        self.config.batch = rows;
        self
    }

    /// Sets the ttl of the leases of shards. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Sets how long a message is recognised when it is appended again. Default: 10 minutes. See
    /// [`OutboxRelayConfig::window`].
    pub fn window(mut self, window: Duration) -> Self {
        self.config.window = window;
        self
    }

    /// Sets whether PostgreSQL notifies it of commits. Default: true. Off behind a pooler in transaction mode: see
    /// [`OutboxRelayConfig::listen`].
    pub fn listen(mut self, listen: bool) -> Self {
        self.config.listen = listen;
        self
    }

    /// Sets the limits on messages. Default: those of [`Limits`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// Sets the partitioner. Default: [`ByKey`](millstream_core::partitioner::ByKey).
    pub fn partitioner(mut self, partitioner: impl Partitioner + 'static) -> Self {
        self.config.partitioner = Arc::new(partitioner);
        self
    }

    /// Starts the relay. From then on it waits for a database or a server that is away.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig), which lists every problem;
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend that cannot recognise repetitions;
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) if the tables do not exist; those of
    /// [`Catalog::create_topic`](millstream_core::Catalog::create_topic) and of the database.
    pub async fn start(self) -> Result<OutboxRelay> {
        let Self { backend, database, observer, config, topics } = self;
        let mut problems = Problems::new("outbox relay");
        problems.take(config.check());
        let specs: Vec<_> = topics.into_iter().filter_map(|spec| problems.take(spec)).collect();
        problems.finish()?;
        backend.require(Capability::Dedup)?;
        let store = super::store::open(&database);
        store.sample().await?;
        let mut known = Topics::new(backend.catalog().clone(), config.partitioner.clone(), config.window);
        for spec in &specs {
            if spec.max_length.is_some() {
                backend.require(Capability::Lengths)?;
            }
            known.declare(spec).await?;
        }
        let name = uuid::Uuid::new_v4().simple().to_string();
        let (stop, stopped) = watch::channel(false);
        let observer = Careful::over(observer);
        let trims = Trims::new(backend.log().clone(), backend.catalog().clone(), observer.clone());
        let run = Run::new(store, &backend, (known, trims), config, observer, name.clone(), stopped);
        Ok(OutboxRelay { stop, task: Some(tokio::spawn(run.run())), name })
    }
}

impl fmt::Debug for OutboxRelayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRelayBuilder")
            .field("database", &self.database)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
