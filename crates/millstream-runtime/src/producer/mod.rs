//! The producer: typed sends over batchers, one for each way to the log.

mod backpressure;
mod batch;
mod batcher;
mod config;
mod delayed;
mod encode;
mod layers;
mod members;
mod metadata_refresh;
mod record;
mod request;
mod sender;
mod sink;
mod ways;

use std::fmt;
use std::future::IntoFuture;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::log::Numbering;
use millstream_core::panics::Careful;
use millstream_core::schedule::Scheduling;
use millstream_core::span::{OperationKind, Tracing};
use millstream_core::{
    Backend, Capability, Codec, Durability, Observer, Partitioner, Topic, TopicName, TopicPartition,
    TopicSpec, WorkId,
};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use millstream_engine::requests::ResultStore;

use config::MAX_BATCH;
pub use config::{OnFull, ProducerConfig};
pub use delayed::{Delayed, DelayedRecord, SendDelayed};
pub use layers::{AsyncProducerLayer, ProducerLayer};
pub use record::{QualifiedRecord, QualifiedSend, Record, SendFuture, Sent, TYPE_HEADER};
pub use request::{Request, Requested};

use backpressure::Bound;
use batcher::Batcher;
use layers::{Encoded, Layers, one_by_one};
pub(crate) use metadata_refresh::warn_if_other;
use metadata_refresh::{MetadataRefresh, Partitions};
use record::{Stamped, sent};
use sink::{Outgoing, ToSchedule, Way, full_at, packs_at_once};
use ways::Ways;

use crate::spans;
use crate::trimming::Trims;

/// Sends values of one type to one topic. Cloning is cheap; clones share buffers and requests.
///
/// Sends of many tasks are combined into batches. Messages that one task sends one after the other to one partition
/// keep their order. Every send has a result:
///
/// - `Ok`: the server has stored it.
/// - [`ErrorKind::Unconfirmed`]: the connection broke during the request, so it may or may not be stored. Sending it
///   again can store it twice, unless it has a [dedup id](SendFuture::dedup).
/// - any other error: it was not stored.
pub struct Producer<T: 'static> {
    inner: Arc<Inner>,
    codec: &'static dyn Codec<T>,
    /// Type that the header of each message names, if it sends one of several.
    kind: Option<Arc<str>>,
}

struct Inner {
    topic: TopicName,
    partitions: Partitions,
    /// Metadata refresh, which runs as long as there are clones.
    _growth: Option<AbortOnDropHandle<()>>,
    /// Trims by a lossy retention, as long as there are clones.
    trims: Option<Trims>,
    layers: Arc<Layers>,
    config: ProducerConfig,
    observer: Arc<dyn Observer>,
    tracing: Option<Tracing>,
    appends: Arc<Ways>,
    /// Whose the numbers of its sends are.
    numbering: Arc<Numbering>,
    delayed: Arc<Batcher<Scheduling>>,
    /// Where results of messages are, if the backend keeps them.
    results: Option<ResultStore>,
}

impl<T> Producer<T> {
    /// Sends a value: `producer.send(&order).key(&order.customer).await?`.
    ///
    /// # Errors
    /// Returned by the awaited future: [`ErrorKind::Encode`], also for a codec that panics, [`ErrorKind::TooLarge`],
    /// [`ErrorKind::InvalidConfig`] for a partition that does not exist or a partitioner that panics,
    /// [`ErrorKind::Backpressure`], [`ErrorKind::Unavailable`], [`ErrorKind::Unconfirmed`], [`ErrorKind::WrongType`],
    /// [`ErrorKind::Denied`], [`ErrorKind::Closed`]; [`ErrorKind::Deleted`] from the
    /// [refresh](ProducerConfig::refresh) that finds the topic deleted until the topic is created again.
    pub fn send<'a>(&'a self, value: &'a T) -> SendFuture<'a, T> {
        SendFuture { producer: self, record: Record::new(value), limit: None }
    }

    /// Sends many values in as few requests as possible, and returns one result per value, in the same order.
    ///
    /// Values are taken from the iterator as room becomes free in the buffer.
    ///
    /// ```
    /// # use millstream_runtime::{Producer, Record};
    /// # async fn example(orders: Producer<u64>) {
    /// let numbers = [7, 8];
    /// orders.send_all(numbers.iter().map(|n| Record::new(n).dedup(format!("order-{n}")))).await;
    /// # }
    /// ```
    pub async fn send_all<'a>(
        &self,
        records: impl IntoIterator<Item: Into<QualifiedRecord<'a, T>>>,
    ) -> Vec<Result<Sent>>
    where
        T: 'a,
    {
        let mut span = self.inner.sends_all(OperationKind::Send);
        let records = records.into_iter().map(|record| record.into().0);
        let mut records = Stamped { records, span: span.as_mut() }.peekable();
        let mut outcomes = Vec::new();
        while let Some((way, durability)) = records.peek().map(|it| (self.way_of(it), self.durability_of(it)))
        {
            // Those of another way begin when these have ended, and must not overtake them.
            let goes = |it: &Record<'a, T>| (self.way_of(it), self.durability_of(it)) == (way, durability);
            let same = std::iter::from_fn(|| records.next_if(goes));
            let encoded = same.map(|record| Ok(((), self.encode(record)?)));
            let results = match self.inner.appends.of(way, durability) {
                Ok(batcher) => self.in_chunks(&batcher, encoded).await,
                Err(error) => encoded.map(|encoded| encoded.and(Err(error.clone()))).collect(),
            };
            outcomes.extend(results.into_iter().map(|result| result.map(|((), done)| sent(done))));
        }
        drop(records);
        spans::end_all(span, &outcomes, |sent| sent.partition);
        outcomes
    }

    /// Sends many values with delays in as few requests as possible, and returns one result per value, in the same
    /// order: `producer.send_all_delayed(reminders.iter().map(|it| Record::new(it).delay(it.in_time)))`.
    pub async fn send_all_delayed<'a>(
        &self,
        records: impl IntoIterator<Item = DelayedRecord<'a, T>>,
    ) -> Vec<Result<Delayed>>
    where
        T: 'a,
    {
        let mut span = self.inner.sends_all(OperationKind::Schedule);
        let encoded = Stamped { records: records.into_iter(), span: span.as_mut() }.map(|record| {
            let encoded = self.encode_delayed(record)?;
            Ok(((encoded.partition, encoded.message.id.clone()), encoded))
        });
        let sent = self.in_chunks(&self.inner.delayed, encoded).await.into_iter();
        let sent: Vec<_> = sent
            .map(|sent| sent.map(|((partition, id), placed)| Delayed { partition, id, placed }))
            .collect();
        spans::end_all(span, &sent, |delayed| delayed.partition);
        sent
    }

    /// Sends the messages that could be encoded, chunk by chunk. Each result comes with the value that stood beside
    /// its message.
    async fn in_chunks<C: Outgoing, B>(
        &self,
        batcher: &Arc<Batcher<C>>,
        mut encoded: impl Iterator<Item = Result<(B, Encoded<C>)>>,
    ) -> Vec<Result<(B, C::Done)>> {
        let mut outcomes = Vec::new();
        let mut waiting = Vec::new();
        let mut rest = Vec::new();
        loop {
            let mut chunk = Vec::new();
            let mut slots = Vec::new();
            let mut late = None;
            for message in encoded.by_ref().take(self.inner.config.max_batch) {
                if message.as_ref().is_ok_and(|(_, encoded)| self.inner.layers.has_to_wait(encoded)) {
                    late = Some(message);
                    break;
                }
                slots.push(message.map(|(beside, encoded)| {
                    chunk.push(encoded.message);
                    beside
                }));
            }
            if slots.is_empty() && late.is_none() {
                break;
            }
            if !slots.is_empty() {
                waiting.push((slots, batcher.send_chunk(chunk).await));
            }
            if let Some(late) = late {
                let encoded = std::iter::once(late).chain(encoded);
                rest = one_by_one(&self.inner.layers, &self.inner.config, batcher, encoded).await;
                break;
            }
        }
        for (slots, results) in waiting {
            let mut results = results.wait().await.into_iter();
            for slot in slots {
                let closed = || Err(Error::new(ErrorKind::Closed, "the producer is closed"));
                outcomes.push(
                    slot.and_then(|beside| results.next().unwrap_or_else(closed).map(|done| (beside, done))),
                );
            }
        }
        outcomes.append(&mut rest);
        outcomes
    }

    /// Waits until all earlier sends have their results.
    pub async fn flush(&self) {
        self.inner.layers.flush().await;
        tokio::join!(self.inner.appends.flush(), self.inner.delayed.flush());
    }

    /// Stops accepting messages and waits until all earlier sends have their results. Later sends, of any clone, fail
    /// with [`ErrorKind::Closed`]. If the [retention](millstream_core::Retention) of the topic is lossy, it is applied once more, for at most
    /// a second.
    ///
    /// Dropping the last clone does the same without waiting.
    pub async fn close(&self) {
        self.inner.layers.close().await;
        tokio::join!(self.inner.appends.close(), self.inner.delayed.close());
        Trims::close(self.inner.trims.as_ref()).await;
    }

    /// Returns the number of partitions of the topic, as of the last [refresh](ProducerConfig::refresh).
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.inner.partitions.count().get()
    }

    /// Returns the id by which a message that was sent is [signalled](millstream_core::Steps::signal), as this group handles it. It asks no server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a bad name.
    pub fn work_id(&self, sent: &Sent, group: impl Into<String>) -> Result<WorkId> {
        let place = TopicPartition { topic: self.inner.topic.clone(), partition: sent.partition };
        WorkId::message(&place, sent.id, group)
    }

    /// Returns the topic, and how long dedup ids count.
    pub(crate) fn dedup_window(&self) -> (&TopicName, Duration) {
        (&self.inner.topic, self.inner.config.dedup_window)
    }
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), codec: self.codec, kind: self.kind.clone() }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("topic", &self.inner.topic)
            .field("type", &self.kind)
            .field("config", &self.inner.config)
            .finish()
    }
}

/// Builder of a [`Producer`]; await it to build one. All settings are validated together.
#[must_use = "a builder does nothing until it is awaited"]
#[derive(Debug)]
pub struct ProducerBuilder<T: 'static> {
    backend: Backend,
    topic: Topic<T>,
    config: ProducerConfig,
    layers: Layers,
    observer: Arc<dyn Observer>,
    is_ours: bool,
}

impl<T> ProducerBuilder<T> {
    /// Creates a builder of a producer for `topic`, which emits its events to `observer`.
    pub fn new(backend: Backend, topic: Topic<T>, observer: Arc<dyn Observer>) -> Self {
        let (config, layers) = (ProducerConfig::default(), Layers::default());
        Self { backend, topic, config, layers, observer, is_ours: false }
    }

    /// Also sends to the topic that [`TopicName::check_target`] refuses: for the dashboard, which writes it.
    #[doc(hidden)]
    pub fn to_our_own_topic(self) -> Self {
        Self { is_ours: true, ..self }
    }

    /// Replaces all settings.
    pub fn config(self, config: ProducerConfig) -> Self {
        Self { config, ..self }
    }

    /// Sets the time that a request waits for more messages. Default: zero.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.config.linger = linger;
        self
    }

    /// Sets the maximum number of messages in one request. Default: 500. For a [packed](millstream_core::Topic::packed) topic, at least a full pack
    /// for each of some partitions.
    pub fn max_batch(mut self, messages: usize) -> Self {
        self.config.max_batch = messages;
        self
    }

    /// Sets how many bytes of messages may be queued or under way. Default: 32 MiB.
    pub fn buffer_memory(mut self, bytes: usize) -> Self {
        self.config.buffer_memory = bytes;
        self
    }

    /// Sets the time limit of a send. Default: 30 s.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.config.delivery_timeout = timeout;
        self
    }

    /// Sets what each send waits for, unless it [says](SendFuture::durability) otherwise. Default:
    /// [`Durability::Stored`].
    ///
    /// With more than that, the sends of all producers of a process share one connection, and a send takes the time until
    /// the replicas or the disk have confirmed. Delayed sends and those with an id are refused with [`ErrorKind::Unsupported`],
    /// before anything is sent: they are only ever `Stored`. Use a second producer for them.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Numbers the sends, so that one whose answer is lost is repeated until the
    /// [time limit](Self::delivery_timeout), and stored once. A send can then still fail as
    /// [`ErrorKind::Unconfirmed`], if no answer comes until then. Default: no.
    ///
    /// This covers this producer's own repetitions. For those of your program, also after a restart, pass the id yourself:
    /// [`SendFuture::dedup`].
    pub fn idempotent(mut self, idempotent: bool) -> Self {
        self.config.idempotent = idempotent;
        self
    }

    /// Sets how long a [dedup id](SendFuture::dedup) counts. Default: 5 minutes.
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.config.dedup_window = window;
        self
    }

    /// Sets the policy for messages to a full partition. Default: [`OnFull::Wait`].
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.config.on_full = on_full;
        self
    }

    /// Sets the interval at which the metadata of the topic is read: the number of partitions, the bound, and whether
    /// it was deleted. `None` means never. Default: 60 s.
    ///
    /// After a refresh has found the topic deleted, sends fail with [`ErrorKind::Deleted`] until a topic of that name
    /// exists again. Messages that were sent between the deletion and the refresh have created its log again. A topic
    /// that was lost with the data is restored.
    ///
    /// After a refresh has found more partitions, messages are spread over all of them, and a key may move to another
    /// partition: its later messages can then be handled before its earlier ones. Producers notice at different
    /// times.
    pub fn refresh(mut self, every: impl Into<Option<Duration>>) -> Self {
        self.config.refresh = every.into();
        self
    }

    /// Adds a [`ProducerLayer`] behind those that were added before.
    pub fn layer(mut self, layer: impl ProducerLayer) -> Self {
        self.layers.add(layer);
        self
    }

    /// Adds an [`AsyncProducerLayer`] behind those that were added before.
    pub fn async_layer(mut self, layer: impl AsyncProducerLayer) -> Self {
        self.layers.add_async(layer);
        self
    }

    /// Sets the partitioner. Default: [`ByKey`](millstream_core::partitioner::ByKey).
    pub fn partitioner(mut self, partitioner: impl Partitioner + 'static) -> Self {
        self.config.partitioner = Arc::new(partitioner);
        self
    }

    /// Creates the topic if it does not exist, and starts the producer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], which lists every problem, also a topic that [may not be sent to](TopicName::check_target);
    /// [`ErrorKind::Unsupported`] for a topic with a bound on a backend that does not know the lengths of logs; those of
    /// [`Catalog::create_topic`](millstream_core::Catalog::create_topic).
    pub async fn build(self) -> Result<Producer<T>> {
        let codec = self.topic.codec();
        let Self { backend, topic, config, layers, observer, is_ours } = self;
        let spec = topic.spec();
        let parts = Parts { backend, spec, config, layers, observer, is_ours };
        Ok(Producer { inner: parts.start().await?, codec, kind: None })
    }
}

/// What a builder has, without the type of the payload: starting is compiled once, here, and not in the crates of users.
struct Parts {
    backend: Backend,
    spec: Result<TopicSpec>,
    config: ProducerConfig,
    layers: Layers,
    observer: Arc<dyn Observer>,
    is_ours: bool,
}

impl Parts {
    fn start(self) -> BoxFuture<'static, Result<Arc<Inner>>> {
        Box::pin(self.started())
    }

    async fn started(mut self) -> Result<Arc<Inner>> {
        let mut problems = Problems::new("producer");
        let spec = problems.take(self.spec);
        if let Some(spec) = spec.as_ref().filter(|_| !self.is_ours) {
            problems.take(spec.name.check_target());
        }
        self.config.check(&mut problems);
        problems.finish()?;
        let Some(spec) = spec else { return Err(Error::new(ErrorKind::InvalidConfig, "invalid topic")) };
        let stored = self.backend.catalog().create_topic(&spec).await?;
        warn_if_other(&spec, &stored);
        let Some(count) = NonZeroU32::new(stored.partitions) else {
            return Err(Error::new(ErrorKind::Protocol, format!("topic {} has no partitions", stored.name)));
        };
        if self.config.idempotent {
            self.backend.require(Capability::Dedup)?;
        }
        if stored.max_length.is_some() {
            self.backend.require(Capability::Lengths)?;
        }
        if let Some(packing) = stored.packing {
            // A request carries a pack for each of some partitions.
            let packs = packs_at_once(stored.partitions) * packing.messages();
            self.config.max_batch = self.config.max_batch.max(packs.min(MAX_BATCH));
        }
        let mut observer = Careful::over(self.observer);
        let (retention, trims) = Trims::start(&self.backend, &stored, &mut observer, self.is_ours);
        let partitions = Partitions::new(count, &stored.earlier);
        let bound = Bound::new(stored.max_length);
        let growth = self.config.refresh.map(|every| {
            let (known, bound) = (stored.clone(), bound.clone());
            let growth = MetadataRefresh::new(
                self.backend.catalog().clone(),
                known,
                partitions.clone(),
                bound,
                retention,
            );
            AbortOnDropHandle::new(tokio::spawn(growth.run(every, observer.clone()).boxed()))
        });
        let (config, name) = (&self.config, &stored.name);
        // With a backend in this process nobody else makes names, and simulations repeat themselves with the same seed.
        let producer =
            if self.backend.is_in_process() { fastrand::u128(..) } else { Uuid::new_v4().as_u128() };
        let numbering = Arc::new(Numbering { producer, window: config.dedup_window });
        let full_at = full_at(&stored);
        let backend = self.backend.clone();
        let appends = Ways::new(backend, bound, name.clone(), full_at, config, observer.clone());
        appends.of(Way::Plain, config.durability)?;
        let to_schedule = ToSchedule::new(self.backend.schedule().clone());
        let delayed = Batcher::start(to_schedule, name.clone(), config, observer.clone(), None);
        let results = ResultStore::of(&self.backend);
        let inner = Inner {
            results,
            topic: stored.name,
            partitions,
            _growth: growth,
            trims,
            layers: Arc::new(self.layers),
            config: self.config,
            tracing: Tracing::of(&observer),
            observer,
            appends: Arc::new(appends),
            numbering,
            delayed: Arc::new(delayed),
        };
        Ok(Arc::new(inner))
    }
}

impl<T: std::marker::Sync> IntoFuture for ProducerBuilder<T> {
    type Output = Result<Producer<T>>;
    type IntoFuture = BoxFuture<'static, Result<Producer<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.build())
    }
}
