//! The composition: a URL becomes a backend, a backend becomes producers and consumers.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use millstream_admin::{Admin, DeadLetterQueue, SeekPreview};
use millstream_core::catalog::PartitionStats;
use millstream_core::event::Ignore;
use millstream_core::{
    Backend, Error, ErrorKind, GroupName, Namespace, Observer, Result, Start, Topic, TopicSpec,
};
use millstream_delay::{Promoter, PromoterConfig, RecurringMessages};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, DeadLetterConsumerBuilder, DelayedMessages, ProducerBuilder};

/// A connection to a message queue. Cloning is cheap.
#[derive(Clone)]
pub struct Millstream {
    backend: Backend,
    observer: Arc<dyn Observer>,
}

impl Millstream {
    /// Connects: `memory://` for a queue inside this process, `redis://[user:password@]host[:port][/db]` or
    /// `redis+unix:///path` for one on Redis.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL that is none of these; [`ErrorKind::Unavailable`],
    /// [`ErrorKind::Denied`]; [`ErrorKind::Unsupported`] for a server that is too old.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::at(url).connect().await
    }

    /// As [`connect`](Self::connect), with settings: `Millstream::at(url).namespace("shop").await`.
    pub fn at(url: impl Into<String>) -> Builder {
        Builder { url: url.into(), namespace: None, durable: false, observer: None }
    }

    /// A queue over a backend of your own.
    #[must_use]
    pub fn over(backend: Backend) -> Self {
        Self { backend, observer: Arc::new(Ignore) }
    }

    /// The same queue; producers and consumers that are made from it tell `observer` of every event.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    /// A producer for `topic`: `let orders = mq.producer(ORDERS).await?;`.
    pub fn producer<T>(&self, topic: Topic<T>) -> ProducerBuilder<T> {
        ProducerBuilder::new(self.backend.clone(), topic, self.observer.clone())
    }

    /// A consumer of `topic` in `group`. Groups are independent: each gets every message.
    pub fn consumer<T: Send + 'static>(
        &self,
        topic: Topic<T>,
        group: impl Into<String>,
    ) -> ConsumerBuilder<T> {
        let promoter = Promoter::new(&self.backend, PromoterConfig::default());
        ConsumerBuilder::new(self.backend.clone(), topic, group, self.observer.clone()).upkeep(promoter)
    }

    /// The dead letters of `group` in `topic`: to list, replay and purge them. As [`Admin::dead_letters`], by a topic's type.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] or [`ErrorKind::InvalidName`] for bad names; [`ErrorKind::NotFound`] for a
    /// topic that is not there; transient ones.
    pub async fn dead_letters<T>(&self, topic: &Topic<T>, group: &str) -> Result<DeadLetterQueue> {
        self.admin().dead_letters(&topic.spec()?.name, &GroupName::new(group)?).await
    }

    /// A consumer of what `group` gave up of `topic`: a handler says of each letter whether it is deleted, goes back to
    /// its group, or stays.
    pub fn dead_letter_consumer<T: Send + 'static>(
        &self,
        topic: Topic<T>,
        group: impl Into<String>,
    ) -> DeadLetterConsumerBuilder<T> {
        DeadLetterConsumerBuilder::new(self.backend.clone(), topic, group, self.observer.clone())
    }

    /// The messages of `topic` that were sent for later and still wait: to look at, cancel or reschedule them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that is not there; transient ones.
    pub async fn delayed<T>(&self, topic: &Topic<T>) -> Result<DelayedMessages> {
        let topic = self.backend.catalog.topic(&topic.spec()?.name).await?;
        Ok(DelayedMessages::new(self.backend.clone(), topic))
    }

    /// What recurs in `topic`: messages that are sent again and again, by a cron pattern or at a fixed rate. Consumers
    /// of the topic fire them, each occurrence once. As a producer does, it creates the topic if it is not there.
    ///
    /// ```
    /// # use millstream::{Millstream, Topic};
    /// const REPORTS: Topic<String> = Topic::new("reports").partitions(8);
    /// # async fn example(mq: Millstream) -> millstream::Result<()> {
    /// let recurring = mq.recurring(&REPORTS).await?;
    /// recurring.id("daily").cron("0 9 * * *", "Europe/Zurich").payload(&"sales".to_owned()).key("eu").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a bad topic; those of
    /// [`Catalog::create_topic`](millstream_core::Catalog::create_topic).
    pub async fn recurring<T>(&self, topic: &Topic<T>) -> Result<RecurringMessages<T>> {
        let stored = self.backend.catalog.create_topic(&topic.spec()?).await?;
        Ok(RecurringMessages::new(self.backend.clone(), stored, topic.codec()))
    }

    /// How every partition of `topic` stands with `group`.
    ///
    /// # Errors
    /// As [`dead_letters`](Self::dead_letters).
    pub async fn stats<T>(&self, topic: &Topic<T>, group: &str) -> Result<Vec<PartitionStats>> {
        let (topic, group) = self.stored(topic, group).await?;
        self.backend.catalog.stats(&topic, &group).await
    }

    /// Gives `topic` more partitions while everything runs, and tells how many it has then. It never gets fewer.
    ///
    /// Consumers take the new ones with their next heartbeat (within a third of the lease's ttl), producers with their
    /// next look (60 s, see [`ProducerConfig::refresh`](crate::ProducerConfig::refresh)). A key may go elsewhere from
    /// then on, and its later messages can be handled before its earlier ones: let the groups catch up first if that
    /// matters.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that is not there; [`ErrorKind::InvalidConfig`] for more than 16,384;
    /// transient ones.
    pub async fn expand<T>(&self, topic: &Topic<T>, partitions: u32) -> Result<u32> {
        Ok(self.backend.catalog.expand(&topic.spec()?.name, partitions).await?.partitions)
    }

    /// Lets a group that is not running go on elsewhere: back, to handle messages again, or forward, to skip some.
    /// What waits for a retry, and dead letters, stay as they are. A single partition of a consumer that runs is moved
    /// by [`Consumer::seek`](crate::Consumer::seek).
    ///
    /// ```
    /// # use millstream::{Millstream, Start, Topic};
    /// # const ORDERS: Topic<u64> = Topic::new("orders").partitions(2);
    /// # async fn example(mq: Millstream, yesterday_ms: u64) -> millstream::Result<()> {
    /// for partition in mq.seek_preview(&ORDERS, "billing", Start::At(yesterday_ms)).await? {
    ///     println!("{}: {} again, {} never", partition.partition, partition.reread, partition.skipped);
    /// }
    /// mq.seek(&ORDERS, "billing", Start::At(yesterday_ms)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there; [`ErrorKind::Fenced`] if a partition has an
    /// owner, who is named: nothing was done. After a transient one some partitions may have been moved: ask again.
    pub async fn seek<T>(&self, topic: &Topic<T>, group: &str, start: Start) -> Result<()> {
        self.admin().reset_group(&topic.spec()?.name, &GroupName::new(group)?, start).await
    }

    /// What [`seek`](Self::seek) would mean for each partition, without doing anything. The group may be running.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there; transient ones.
    pub async fn seek_preview<T>(
        &self,
        topic: &Topic<T>,
        group: &str,
        start: Start,
    ) -> Result<Vec<SeekPreview>> {
        self.admin().reset_group_preview(&topic.spec()?.name, &GroupName::new(group)?, start).await
    }

    /// What an operator can ask and do: browse messages, see what is pending and who owns what, verify and repair, ask how
    /// the server does.
    ///
    /// ```
    /// # async fn example(mq: millstream::Millstream) -> millstream::Result<()> {
    /// for report in mq.admin().doctor().await? {
    ///     println!("{report}");
    /// }
    /// let verified = mq.admin().verify(&"orders".parse()?, Default::default()).await?;
    /// println!("{} findings in {} items", verified.verdicts.len(), verified.looked_at);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.backend.clone()).with_observer(self.observer.clone())
    }

    /// The roles beneath, for what has no comfort here.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    async fn stored<T>(&self, topic: &Topic<T>, group: &str) -> Result<(TopicSpec, GroupName)> {
        let group = GroupName::new(group)?;
        let topic = self.backend.catalog.topic(&topic.spec()?.name).await?;
        Ok((topic, group))
    }
}

impl fmt::Debug for Millstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Millstream").finish_non_exhaustive()
    }
}

/// Sets up a [`Millstream`]; await it to connect.
#[must_use = "a builder does nothing until it is awaited"]
pub struct Builder {
    url: String,
    namespace: Option<String>,
    durable: bool,
    observer: Option<Arc<dyn Observer>>,
}

impl Builder {
    /// A prefix for all keys, so that tenants or environments share one server. Default: none.
    ///
    /// A queue in memory is alone in any case and needs none.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Refuses a server that may lose messages: without `appendonly`, with eviction, or with replicas of which none has
    /// to have a message. Default: warnings in the log. A queue in memory loses everything with its process, and is
    /// refused.
    pub fn require_durability(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Is told of every event of producers and consumers, beside those that are told already.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(match self.observer.take() {
            Some(first) => Arc::new((first, observer)),
            None => Arc::new(observer),
        });
        self
    }

    /// Makes metrics of every event, and asks every consumer how it is.
    ///
    /// ```no_run
    /// # use millstream::{Millstream, metrics::{Metrics, ServerConfig}};
    /// # async fn example() -> millstream::Result<()> {
    /// let metrics = Metrics::new()?;
    /// let mq = Millstream::at("memory://").metrics(&metrics).await?;
    /// let server = metrics.serve(mq.backend(), ServerConfig::default()).await?; // http://127.0.0.1:9464/metrics
    /// server.shutdown().await;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(self, metrics: &millstream_metrics::Metrics) -> Self {
        self.observer(metrics.clone())
    }

    /// Connects.
    ///
    /// # Errors
    /// Those of [`Millstream::connect`]; [`ErrorKind::InvalidName`] for a bad namespace.
    pub async fn connect(self) -> Result<Millstream> {
        let namespace = self.namespace.map(Namespace::new).transpose()?;
        let scheme = self.url.split_once("://").map_or("", |(scheme, _)| scheme);
        let backend = match scheme {
            "memory" if self.durable => {
                let why = "a queue in memory is not durable: it ends with its process";
                return Err(Error::new(ErrorKind::InvalidConfig, why));
            }
            "memory" => Backend::from(MemoryBackend::new()),
            "redis" | "redis+unix" | "unix" | "valkey" => redis(&self.url, namespace, self.durable).await?,
            other => {
                let message =
                    format!("unknown URL scheme {other:?}: memory://, redis:// and redis+unix:// are known");
                return Err(Error::new(ErrorKind::InvalidConfig, message));
            }
        };
        let observer = self.observer.unwrap_or_else(|| Arc::new(Ignore));
        Ok(Millstream { backend, observer })
    }
}

#[cfg(feature = "redis")]
async fn redis(url: &str, namespace: Option<Namespace>, durable: bool) -> Result<Backend> {
    use millstream_redis::{Durability, RedisBackend, RedisConfig};
    let mut config = RedisConfig::new(url);
    if durable {
        config = config.with_durability(Durability::Require);
    }
    if let Some(namespace) = namespace {
        config = config.with_namespace(namespace);
    }
    Ok(Backend::from(RedisBackend::connect(config).await?))
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str, _: Option<Namespace>, _: bool) -> Result<Backend> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build of millstream has no Redis: enable its feature `redis`",
    ))
}

impl IntoFuture for Builder {
    type Output = Result<Millstream>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Millstream>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.connect())
    }
}

/// Without the URL: it may hold a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
