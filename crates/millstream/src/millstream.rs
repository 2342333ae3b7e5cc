//! The entry point: turns a URL into a backend, and a backend into producers and consumers.

use std::borrow::Borrow;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::time::Duration;

#[cfg(feature = "admin")]
use millstream_admin::{Admin, Cancel, DeadLetterQueue, SeekPreview, Status};
#[cfg(feature = "admin")]
use millstream_core::Start;
use millstream_core::catalog::PartitionStats;
use millstream_core::codec::Json;
use millstream_core::event::Ignore;
use millstream_core::{
    Backend, BatchId, Capability, Codec, Error, ErrorKind, GroupName, Namespace, Observer, Result, ResultId,
    Topic,
};
use millstream_delay::{DelayQueue, DelayQueueBuilder, Promoter, PromoterConfig, RecurringMessages};
#[cfg(feature = "lock")]
use millstream_lock::{LeaderBuilder, LockBuilder, LockClient};
use millstream_memory::MemoryBackend;
#[cfg(feature = "redis")]
use millstream_redis::CredentialsProvider;
#[cfg(feature = "tls")]
use millstream_redis::TlsConfig;
use millstream_runtime::{
    BatchBuilder, ConsumerBuilder, DeadLetterConsumerBuilder, DelayedMessages, Follow, IdempotentCalls,
    OpenBatch, ProducerBuilder, ResultFuture,
};
#[cfg(feature = "sql")]
use millstream_sql::{Database, OutboxRelayBuilder};

/// A connection to a message queue. Cloning is cheap.
#[derive(Clone)]
pub struct Millstream {
    backend: Backend,
    observer: Arc<dyn Observer>,
    #[cfg(feature = "lock")]
    locks: LockClient,
}

impl Millstream {
    /// Connects to a queue.
    ///
    /// - `memory://` for one inside this process.
    /// - `redis://[user:password@]host[:port][/db]` or `redis+unix:///path` for one on Redis or Valkey.
    /// - `redis+cluster://[user:password@]host[:port][,host[:port]…]` for one on a Redis Cluster, by some of its nodes.
    /// - `redis+sentinel://[user:password@]host[:port][,…]/service[/db]` for one on the primary of a Sentinel service.
    /// - Over TLS, with the feature `tls`: `rediss://`, `redis+cluster+tls://`, `redis+sentinel+tls://`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL of another scheme; [`ErrorKind::Unavailable`], [`ErrorKind::Denied`];
    /// [`ErrorKind::Unsupported`] for a server that is too old.
    pub async fn connect(url: impl Into<String>) -> Result<Self> {
        Self::at(url).connect().await
    }

    /// Returns a builder to connect with settings: `Millstream::at(url).namespace("shop").await`. The URLs are those
    /// of [`connect`](Self::connect).
    pub fn at(url: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            namespace: None,
            durable: false,
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "redis")]
            credentials: [None, None],
            #[cfg(feature = "redis")]
            connections: Connections::default(),
            observer: None,
        }
    }

    /// Creates a queue over a custom backend.
    #[must_use]
    pub fn over(backend: Backend) -> Self {
        Self::new(backend, Arc::new(Ignore))
    }

    fn new(backend: Backend, observer: Arc<dyn Observer>) -> Self {
        Self {
            #[cfg(feature = "lock")]
            locks: LockClient::new(&backend).with_observer(observer.clone()),
            backend,
            observer,
        }
    }

    /// Returns the same queue with `observer`: producers, consumers and locks that are made from it send it every event.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        let observer: Arc<dyn Observer> = Arc::new(observer);
        Self {
            #[cfg(feature = "lock")]
            locks: self.locks.with_observer(observer.clone()),
            observer,
            ..self
        }
    }

    /// Builds a producer for `topic`: `let orders = mq.producer(ORDERS).await?;`.
    ///
    /// Here, and wherever a topic is passed, it may be a `Topic` or a reference to one.
    pub fn producer<T: 'static>(&self, topic: impl Borrow<Topic<T>>) -> ProducerBuilder<T> {
        ProducerBuilder::new(self.backend.clone(), topic.borrow().clone(), self.observer.clone())
    }

    /// Builds a consumer of `topic` in `group`. Groups are independent: each gets every message.
    pub fn consumer<T: Send + 'static>(
        &self,
        topic: impl Borrow<Topic<T>>,
        group: impl Into<String>,
    ) -> ConsumerBuilder<T> {
        let mut config = PromoterConfig::default();
        if self.backend.is_lasting() {
            config = config.with_longest_sleep(std::time::Duration::from_secs(24 * 3_600));
        }
        let promoter = Promoter::new(&self.backend, config);
        let topic = topic.borrow().clone();
        ConsumerBuilder::new(self.backend.clone(), topic, group, self.observer.clone()).upkeep(promoter)
    }

    /// Builds the delay queue of this name, with JSON payloads; awaiting the builder opens it, and creates it if it does not exist. Its
    /// workers emit their events to the observer of this handle.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream::{Millstream, Result, delay::Task};
    /// # async fn example(mq: Millstream) -> Result<()> {
    /// let mails = mq.delay_queue::<String>("mails").shards(4).await?;
    /// mails.schedule(&"welcome".to_owned()).delay(Duration::from_secs(3_600)).await?;
    /// let worker = mails.worker().start(|mail: Task<String>| async move { println!("{}", mail.payload) }).await?;
    /// # worker.shutdown().await; Ok(()) }
    /// ```
    pub fn delay_queue<T: 'static>(&self, name: impl Into<String>) -> DelayQueueBuilder<T>
    where
        Json: Codec<T>,
    {
        DelayQueue::with_codec(name, &Json).observer(self.observer.clone()).over(self.backend.clone())
    }

    /// Returns the dead letters of `group` in `topic`, to list, replay and purge them. Takes the topic from a
    /// [`Topic`], where [`Admin::dead_letters`] takes its name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] or [`ErrorKind::InvalidName`] for bad names; [`ErrorKind::NotFound`] for a topic
    /// that does not exist; [`ErrorKind::Unsupported`] for a backend without dead letters; transient errors.
    #[cfg(feature = "admin")]
    pub async fn dead_letters<T: 'static>(
        &self,
        topic: impl Borrow<Topic<T>>,
        group: impl Into<String>,
    ) -> Result<DeadLetterQueue> {
        let (name, group) = (topic.borrow().spec()?.name, GroupName::new(group.into())?);
        self.admin().dead_letters(&name, &group).await
    }

    /// Builds a consumer of the dead letters of `group` in `topic`. Its handler decides for each letter whether it is
    /// deleted, returned to its group, or kept.
    pub fn dead_letter_consumer<T: Send + 'static>(
        &self,
        topic: impl Borrow<Topic<T>>,
        group: impl Into<String>,
    ) -> DeadLetterConsumerBuilder<T> {
        let topic = topic.borrow().clone();
        DeadLetterConsumerBuilder::new(self.backend.clone(), topic, group, self.observer.clone())
    }

    /// Reads the result of a message that was sent with [`reply`](crate::SendFuture::reply), by its id, as often as asked and in any process:
    /// `None` if there is none yet, or it is not kept any longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream::{MessageResult, Millstream, Result, ResultId};
    /// # async fn example(mq: Millstream, id: ResultId) -> Result<()> {
    /// match mq.result(&id).within(Duration::from_secs(10)).await? {
    ///     Some(MessageResult::Replied(reply)) => println!("{} bytes", reply.len()),
    ///     Some(MessageResult::Failed { error, .. }) => println!("given up: {error}"),
    ///     Some(_) => println!("done"),
    ///     None => println!("not yet"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of the awaited read: those of [`Log::result`](millstream_core::Log::result).
    pub fn result(&self, id: impl Borrow<ResultId>) -> ResultFuture {
        ResultFuture::new(&self.backend, id.borrow())
    }

    /// Follows the work on a message that was sent with [`reply`](crate::SendFuture::reply), or a task, by the id of its result, in any process:
    /// what its handler [says](crate::Delivery::progress) of it, and then the result.
    ///
    /// ```
    /// # use millstream::{Followed, Millstream, Result, ResultId};
    /// # async fn example(mq: Millstream, id: ResultId) -> Result<()> {
    /// let mut import = mq.follow(&id);
    /// while let Some(followed) = import.next().await? {
    ///     match followed {
    ///         Followed::Progress(line) => println!("{line}"),    // 40.0 % page 12 of 30
    ///         Followed::Result(result) => println!("{result:?}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn follow(&self, id: impl Borrow<ResultId>) -> Follow {
        Follow::new(&self.backend, id.borrow())
    }

    /// Returns what is known of a message or task that was sent with [`reply`](crate::SendFuture::reply), by the id of its result, in any process:
    /// its result, and where it is, for each group of its topic. It is looked for where it is, so nothing is written for it before.
    ///
    /// ```
    /// # use millstream::{Millstream, Result, ResultId, admin::WorkState};
    /// # async fn example(mq: Millstream, id: ResultId) -> Result<()> {
    /// let status = mq.status(&id).await?;
    /// for work in &status.work {
    ///     match &work.state {
    ///         WorkState::Running(by, since) => println!("since {since} on {by}"),
    ///         WorkState::Retrying { at, .. } => println!("again at {at}, after {}", work.error),
    ///         state => println!("{}", state.as_str()),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Admin::status`].
    #[cfg(feature = "admin")]
    pub async fn status(&self, id: impl Borrow<ResultId>) -> Result<Status> {
        self.admin().status(id.borrow()).await
    }

    /// Cancels the message or task that was sent with [`reply`](crate::SendFuture::reply), by the id of its result, in any process. One that has not begun
    /// does not begin; a handler that runs [is asked](crate::Delivery::cancelled) to stop. The answer says what is known to have stopped, and
    /// nothing else: see [`CancelState`](crate::admin::CancelState). [`Admin`](crate::admin::Admin::cancel_message) cancels any other message.
    ///
    /// ```
    /// # use millstream::{Millstream, Result, ResultId, admin::CancelState};
    /// # async fn example(mq: Millstream, id: ResultId) -> Result<()> {
    /// for end in mq.cancel(&id).await? {
    ///     match end.state {
    ///         CancelState::Cancelled | CancelState::Stopped => println!("nothing of it runs"),
    ///         CancelState::Asked => println!("it may still run"),
    ///         state => println!("{}", state.as_str()),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "admin")]
    pub fn cancel(&self, id: impl Borrow<ResultId>) -> Cancel {
        self.admin().cancel(id.borrow())
    }

    /// Builds a batch: messages and tasks of any topics and queues that are counted together, and the messages that are sent to `topic` when all of
    /// them have ended.
    ///
    /// ```
    /// # use millstream::{Millstream, Result, Topic};
    /// const ROWS: Topic<String> = Topic::new("rows").partitions(8);
    /// const REPORTS: Topic<String> = Topic::new("reports");
    /// # async fn example(mq: Millstream, rows: Vec<String>) -> Result<()> {
    /// let producer = mq.producer(ROWS).await?;
    /// let batch = mq.batch(REPORTS).complete(&"the import of today".to_owned()).create().await?;
    /// for row in &rows {
    ///     batch.add(producer.send(row)).await?;
    /// }
    /// batch.seal().await?;
    /// # Ok(()) }
    /// ```
    pub fn batch<T: 'static>(&self, topic: impl Borrow<Topic<T>>) -> BatchBuilder<T> {
        BatchBuilder::new(self.backend.clone(), topic)
    }

    /// Opens a batch that another process has created, to add members, or to look at its state.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a backend without batches.
    pub fn open_batch(&self, id: impl Borrow<BatchId>) -> Result<OpenBatch> {
        OpenBatch::open(&self.backend, id.borrow())
    }

    /// Returns the delayed messages of `topic` that are still waiting, to inspect, cancel or reschedule them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; transient errors.
    pub async fn delayed<T: 'static>(&self, topic: impl Borrow<Topic<T>>) -> Result<DelayedMessages> {
        let name = topic.borrow().spec()?.name;
        let topic = self.backend.catalog().topic(&name).await?;
        Ok(DelayedMessages::new(self.backend.clone(), topic))
    }

    /// Returns the recurring messages of `topic`: messages that are sent repeatedly, at a fixed rate or, with the feature `cron`, by a
    /// cron pattern. Consumers of the topic fire them, each occurrence once. Creates the topic if it does not exist, as a
    /// producer does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream::{Millstream, Topic};
    /// const REPORTS: Topic<String> = Topic::new("reports").partitions(8);
    /// # async fn example(mq: Millstream) -> millstream::Result<()> {
    /// let recurring = mq.recurring(&REPORTS).await?;
    /// recurring.id("hourly").every(Duration::from_secs(3_600)).payload(&"sales".to_owned()).key("eu").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a bad topic; [`ErrorKind::Unsupported`] for a backend without recurring
    /// schedules; the errors of [`Catalog::create_topic`](millstream_core::Catalog::create_topic).
    pub async fn recurring<T: 'static>(&self, topic: impl Borrow<Topic<T>>) -> Result<RecurringMessages<T>> {
        self.backend.require(Capability::Recurring)?;
        let (spec, codec) = (topic.borrow().spec()?, topic.borrow().codec());
        let stored = self.backend.catalog().create_topic(&spec).await?;
        Ok(RecurringMessages::new(self.backend.clone(), stored, codec))
    }

    /// Returns the statistics of `group` for each partition of `topic`.
    ///
    /// # Errors
    /// The errors of [`dead_letters`](Self::dead_letters).
    pub async fn stats<T: 'static>(
        &self,
        topic: impl Borrow<Topic<T>>,
        group: impl Into<String>,
    ) -> Result<Vec<PartitionStats>> {
        let (name, group) = (topic.borrow().spec()?.name, GroupName::new(group.into())?);
        let topic = self.backend.catalog().topic(&name).await?;
        self.backend.catalog().stats(&topic, &group).await
    }

    /// Adds partitions to `topic` while producers and consumers run, and returns the resulting number. The number
    /// never decreases.
    ///
    /// Consumers take the new partitions with their next heartbeat (within a third of the lease's ttl), producers
    /// with their next refresh (60 s, see [`ProducerConfig::refresh`](crate::ProducerConfig::refresh)). From then on
    /// a key may map to another partition, and its later messages can be handled before its earlier ones. If that
    /// matters, let the groups catch up first.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::InvalidConfig`] for more than 16,384
    /// partitions; transient errors.
    pub async fn expand<T: 'static>(&self, topic: impl Borrow<Topic<T>>, partitions: u32) -> Result<u32> {
        let name = topic.borrow().spec()?.name;
        Ok(self.backend.catalog().expand(&name, partitions).await?.partitions)
    }

    /// Moves the position of a group that is not running: backward to handle messages again, or forward to skip some.
    /// Messages that wait for a retry, and dead letters, are not changed. [`Consumer::seek`](crate::Consumer::seek)
    /// moves a single partition of a running consumer.
    ///
    /// ```
    /// # use millstream::{Millstream, Start, Timestamp, Topic};
    /// # const ORDERS: Topic<u64> = Topic::new("orders").partitions(2);
    /// # async fn example(mq: Millstream, yesterday: Timestamp) -> millstream::Result<()> {
    /// for partition in mq.seek_preview(&ORDERS, "billing", Start::At(yesterday)).await? {
    ///     println!("{}: {} again, {} never", partition.partition, partition.reread, partition.skipped);
    /// }
    /// mq.seek(&ORDERS, "billing", Start::At(yesterday)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; [`ErrorKind::Fenced`] if a partition has an
    /// owner: the error names it, and nothing was changed. After a transient error some partitions may have been
    /// moved: call it again.
    #[cfg(feature = "admin")]
    pub async fn seek<T: 'static>(
        &self,
        topic: impl Borrow<Topic<T>>,
        group: impl Into<String>,
        start: Start,
    ) -> Result<()> {
        let (name, group) = (topic.borrow().spec()?.name, GroupName::new(group.into())?);
        self.admin().reset_group(&name, &group, start).await
    }

    /// Returns the effect that [`seek`](Self::seek) would have on each partition, without changing anything. The
    /// group may be running.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; transient errors.
    #[cfg(feature = "admin")]
    pub async fn seek_preview<T: 'static>(
        &self,
        topic: impl Borrow<Topic<T>>,
        group: impl Into<String>,
        start: Start,
    ) -> Result<Vec<SeekPreview>> {
        let (name, group) = (topic.borrow().spec()?.name, GroupName::new(group.into())?);
        self.admin().reset_group_preview(&name, &group, start).await
    }

    /// Builds a lock on `name`, for work that one process at a time is to do.
    ///
    /// A lock with a ttl does not exclude two holders by itself: let the store that it guards compare the
    /// [fence](crate::lock::LockView::fence).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn example(mq: millstream::Millstream) -> Result<(), Box<dyn std::error::Error>> {
    /// let invoice = mq.lock("invoice:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(30));
    /// invoice.run(|held| async move { pay(42, held.fence()).await }).await?;
    /// # Ok(()) }
    /// # async fn pay(_: u64, _: u64) -> Result<(), std::io::Error> { Ok(()) }
    /// ```
    #[cfg(feature = "lock")]
    pub fn lock(&self, name: impl Into<String>) -> LockBuilder {
        self.locks.lock(name)
    }

    /// Builds a candidate or an observer of the election `name`: of all candidates one leads at a time.
    ///
    /// ```
    /// # async fn example(mq: millstream::Millstream) -> Result<(), Box<dyn std::error::Error>> {
    /// let term = mq.leader("scheduler").candidate("host-1").campaign().await?;
    /// while !term.is_lost() {
    ///     schedule(term.epoch()).await;
    /// }
    /// # Ok(()) }
    /// # async fn schedule(_: u64) {}
    /// ```
    #[cfg(feature = "lock")]
    pub fn leader(&self, name: impl Into<String>) -> LeaderBuilder {
        self.locks.leader(name)
    }

    /// Builds calls that are done once for each key: a later call with a key returns the result of the first one. For handlers of
    /// web requests with an idempotency key, and for parts of message handlers.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize)]
    /// struct Receipt { number: u64 }
    ///
    /// # async fn example(mq: millstream::Millstream) -> Result<(), Box<dyn std::error::Error>> {
    /// let charges = mq.idempotent("charges");
    /// let done = charges.run("8f14e45f", || charge(500)).await?;
    /// println!("receipt {}{}", done.value.number, if done.is_duplicate { ", again" } else { "" });
    /// # Ok(()) }
    /// # async fn charge(_: u64) -> Result<Receipt, std::io::Error> { Ok(Receipt { number: 7 }) }
    /// ```
    pub fn idempotent(&self, name: impl Into<String>) -> IdempotentCalls {
        IdempotentCalls::new(&self.backend, name).with_observer(self.observer.clone())
    }

    /// Builds a relay of the outbox in `database`: it sends the messages that were written there in transactions.
    ///
    /// ```no_run
    /// # use millstream::{Millstream, Topic, sql::{Database, Outbox, migrate}};
    /// const ORDERS: Topic<u64> = Topic::new("orders").partitions(8);
    /// # async fn example(mq: Millstream) -> millstream::Result<()> {
    /// let database = Database::connect("postgres://shop@localhost/shop").await?;
    /// migrate(&database).await?;
    /// let relay = mq.outbox(&database).topic(&ORDERS).start().await?;
    ///
    /// let mut tx = database.begin().await?;
    /// Outbox::new().send(&mut tx, &ORDERS, &7).key("customer-1").await?;
    /// tx.commit().await?;
    /// relay.shutdown().await;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "sql")]
    pub fn outbox(&self, database: &Database) -> OutboxRelayBuilder {
        OutboxRelayBuilder::new(self.backend.clone(), database.clone(), self.observer.clone())
    }

    /// Returns the administration handle: it browses messages, lists pending messages and owners, verifies and
    /// repairs the stored data, and checks the server.
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
    #[cfg(feature = "admin")]
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.backend.clone()).with_observer(self.observer.clone())
    }

    /// Returns the backend with its roles, for operations that have no method here.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.backend
    }
}

impl fmt::Debug for Millstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Millstream").finish_non_exhaustive()
    }
}

/// Builder of a [`Millstream`]; await it to connect.
#[must_use = "a builder does nothing until it is awaited"]
pub struct Builder {
    url: String,
    namespace: Option<String>,
    durable: bool,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
    #[cfg(feature = "redis")]
    credentials: [Option<Arc<dyn CredentialsProvider>>; 2],
    #[cfg(feature = "redis")]
    connections: Connections,
    observer: Option<Arc<dyn Observer>>,
}

/// Settings of connections to servers; `None` for the default.
#[cfg(feature = "redis")]
#[derive(Default)]
struct Connections {
    connect_timeout: Option<Duration>,
    response_timeout: Option<Duration>,
    pool_size: Option<usize>,
    max_reader_connections: Option<usize>,
}

#[cfg(feature = "redis")]
impl Connections {
    fn apply(&self, config: &mut millstream_redis::RedisConfig) {
        config.connect_timeout = self.connect_timeout.unwrap_or(config.connect_timeout);
        config.response_timeout = self.response_timeout.unwrap_or(config.response_timeout);
        config.pool_size = self.pool_size.unwrap_or(config.pool_size);
        config.max_reader_connections = self.max_reader_connections.unwrap_or(config.max_reader_connections);
    }
}

impl Builder {
    /// Sets a prefix for all keys, so that tenants or environments can share one server. Default: none.
    ///
    /// A queue in memory is never shared and needs none.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Refuses a server that may lose messages: without `appendonly` or with `appendfsync no`, with eviction, or with replicas while
    /// `min-replicas-to-write` is 0. Default: warnings in the log. A queue in memory loses everything with its process,
    /// and is refused.
    pub fn require_durability(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Adds an observer, which receives every event of producers and consumers. Earlier observers stay.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(match self.observer.take() {
            Some(first) => Arc::new((first, observer)),
            None => Arc::new(observer),
        });
        self
    }

    /// Records every event in `metrics`, which also reads the health of every consumer.
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

    /// Makes a span for each send, handler, pulled message and settlement, and the metrics of OpenTelemetry's conventions for
    /// messaging, with the providers of the process, which must be set before. For other providers and for settings, pass an
    /// [`OpenTelemetry`](millstream_metrics::otel::OpenTelemetry) to [`observer`](Self::observer).
    ///
    /// ```no_run
    /// # use millstream::Millstream;
    /// # async fn example() -> millstream::Result<()> {
    /// let mq = Millstream::at("redis://127.0.0.1").opentelemetry().await?;
    /// # drop(mq); Ok(()) }
    /// ```
    #[cfg(feature = "opentelemetry")]
    pub fn opentelemetry(self) -> Self {
        self.observer(millstream_metrics::otel::OpenTelemetry::global())
    }

    /// Sets the certificates for a URL that asks for TLS. Default: the authorities of the system, and no client
    /// certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the source of user and password, instead of those in the URL. It is asked for each connection, or once for
    /// as long as its answer is valid.
    ///
    /// ```no_run
    /// # use millstream::{Millstream, PasswordFile};
    /// # async fn example() -> millstream::Result<()> {
    /// let password = PasswordFile::new("/run/secrets/redis").user("orders");
    /// let mq = Millstream::at("rediss://redis.internal").credentials(password).await?;
    /// # drop(mq); Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.credentials[0] = Some(Arc::new(provider));
        self
    }

    /// Sets the source of user and password for Sentinels. Default: none.
    #[cfg(feature = "redis")]
    pub fn sentinel_credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.credentials[1] = Some(Arc::new(provider));
        self
    }

    /// Sets the time limit for opening a connection, log-in included: 1 ms to a day. Default: 5 s. Without effect on a queue in memory.
    #[cfg(feature = "redis")]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connections.connect_timeout = Some(timeout);
        self
    }

    /// Sets the time limit for an answer of a server, without the wait for messages: 1 ms to a day. A long one suits a server that is far away or
    /// runs long commands of others, a short one notices a fail-over sooner. Default: 5 s. Without effect on a queue in memory.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example() -> millstream::Result<()> {
    /// let mq = millstream::Millstream::at("redis://far.example.com")
    ///     .connect_timeout(Duration::from_secs(10))
    ///     .response_timeout(Duration::from_secs(15))
    ///     .await?;
    /// # drop(mq); Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.connections.response_timeout = Some(timeout);
        self
    }

    /// Sets the largest number of connections for catalog, statistics and dead letters, at least 1. Messages do not use them. Default: 4.
    /// Without effect on a queue in memory.
    #[cfg(feature = "redis")]
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.connections.pool_size = Some(connections);
        self
    }

    /// Sets the largest number of connections to one node for reading owned partitions; those beyond share connections. Raise it if more
    /// than 64 partitions of a process are busy at once. Default: 64. Without effect on a queue in memory.
    #[cfg(feature = "redis")]
    pub fn max_reader_connections(mut self, connections: usize) -> Self {
        self.connections.max_reader_connections = Some(connections);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// Those of [`Millstream::connect`]; [`ErrorKind::InvalidName`] for a bad namespace;
    /// [`ErrorKind::InvalidConfig`] for a setting out of its range.
    pub async fn connect(self) -> Result<Millstream> {
        self.into_future().await
    }

    async fn connected(self) -> Result<Millstream> {
        let namespace = self.namespace.clone().map(Namespace::new).transpose()?;
        let backend = match self.url.trim().split_once("://") {
            Some(("memory", rest)) => self.memory(rest)?,
            _ => self.redis(namespace).await?,
        };
        let observer = self.observer.unwrap_or_else(|| Arc::new(Ignore));
        Ok(Millstream::new(backend, observer))
    }

    fn memory(&self, rest: &str) -> Result<Backend> {
        #[cfg(feature = "tls")]
        let has_tls = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let has_tls = false;
        #[cfg(feature = "redis")]
        let has_credentials = self.credentials.iter().any(Option::is_some);
        #[cfg(not(feature = "redis"))]
        let has_credentials = false;
        let why = if self.durable {
            "a queue in memory is not durable: it ends with its process"
        } else if has_tls {
            "a queue in memory has no connection that could be encrypted"
        } else if has_credentials {
            "a queue in memory has no server that could ask for credentials"
        } else if !rest.is_empty() {
            "the URL of a queue in memory is memory:// and nothing else: each has keys of its own"
        } else {
            return Ok(Backend::from(MemoryBackend::new()).lasting());
        };
        Err(Error::new(ErrorKind::InvalidConfig, why))
    }

    #[cfg(feature = "redis")]
    async fn redis(&self, namespace: Option<Namespace>) -> Result<Backend> {
        use millstream_redis::{OnRisk, RedisBackend, RedisConfig};
        let mut config = RedisConfig::new(&self.url);
        if self.durable {
            config = config.with_on_risk(OnRisk::Refuse);
        }
        if let Some(namespace) = namespace {
            config = config.with_namespace(namespace);
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            config = config.with_tls(tls.clone());
        }
        [config.credentials, config.sentinel_credentials] = self.credentials.clone();
        self.connections.apply(&mut config);
        Ok(Backend::from(RedisBackend::connect(config).await?))
    }

    #[cfg(not(feature = "redis"))]
    async fn redis(&self, _: Option<Namespace>) -> Result<Backend> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this build of millstream has no Redis: enable its feature `redis`",
        ))
    }
}

impl IntoFuture for Builder {
    type Output = Result<Millstream>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Millstream>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        // Boxed here, so that it is compiled in this crate and not in each that awaits it.
        Box::pin(self.connected())
    }
}

/// Omits the URL, as it may contain a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_keeps_its_default() {
        let mut config = millstream_redis::RedisConfig::new("redis://127.0.0.1");
        Connections::default().apply(&mut config);
        assert_eq!(
            (config.connect_timeout, config.response_timeout),
            (Duration::from_secs(5), Duration::from_secs(5))
        );
        assert_eq!((config.pool_size, config.max_reader_connections), (4, 64));
        let set = Connections {
            connect_timeout: Some(Duration::from_secs(1)),
            response_timeout: Some(Duration::from_secs(2)),
            pool_size: Some(3),
            max_reader_connections: Some(0),
        };
        set.apply(&mut config);
        assert_eq!(
            (config.connect_timeout, config.response_timeout),
            (Duration::from_secs(1), Duration::from_secs(2))
        );
        assert_eq!((config.pool_size, config.max_reader_connections), (3, 0));
    }
}
