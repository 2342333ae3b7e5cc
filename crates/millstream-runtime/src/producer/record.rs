//! A message to be sent, and the producers of one type in a topic with several.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::codec::Json;
use millstream_core::dedup::MAX_DEDUP_ID_LEN;
use millstream_core::log::{Append, Appended};
use millstream_core::policy::{MessageRetry, RETRY_HEADER};
use millstream_core::span::{ActiveSpan, Detail, OperationKind};
use millstream_core::{
    Codec, Delivered, Durability, Envelope, Error, ErrorKind, GroupName, MessageId, Partition, Result,
    TopicPartition,
};
use millstream_engine::priorities::PRIORITY_HEADER;

use super::layers::Encoded;
use super::sink::Way;
use super::{Inner, Producer};
use crate::spans;

/// Header that names the type of a message, in a topic with several: that of [`Producer::typed`] and
/// [`Router`](crate::Router).
pub const TYPE_HEADER: &str = "millstream-type";

/// Value to be sent, with its key, headers and partition.
pub struct Record<'a, T> {
    pub(super) value: &'a T,
    pub(super) partition: Option<Partition>,
    pub(super) durability: Option<Durability>,
    pub(super) dedup: Option<Bytes>,
    pub(super) unique: Option<Bytes>,
    /// Window of the dedup id, if it is not that of the producer.
    pub(super) window: Option<Duration>,
    /// Key and headers; the payload is filled in when the value is encoded.
    pub(super) envelope: Envelope,
}

/// Without the value: it may be a secret.
impl<T> fmt::Debug for Record<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("partition", &self.partition)
            .field("durability", &self.durability)
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}

impl<'a, T> Record<'a, T> {
    /// Creates a record without key and headers.
    #[must_use]
    pub fn new(value: &'a T) -> Self {
        Self {
            value,
            partition: None,
            durability: None,
            dedup: None,
            unique: None,
            window: None,
            envelope: Envelope::default(),
        }
    }

    /// Sets the key: messages with the same key go to the same partition and keep their order.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Appends a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Names the lane of this message, for consumers with [`priorities`](crate::ConsumerBuilder::priorities): a header. The last name counts.
    #[must_use]
    pub fn priority(mut self, lane: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.remove(PRIORITY_HEADER);
        self.header(PRIORITY_HEADER, lane)
    }

    /// Sets the retry policy of this message, for consumers whose policy is a
    /// [`PerMessage`](millstream_core::policy::PerMessage): a header.
    #[must_use]
    pub fn retry(self, policy: MessageRetry) -> Self {
        self.header(RETRY_HEADER, policy.to_string())
    }

    /// Sets the partition, regardless of the key.
    #[must_use]
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(Partition(partition));
        self
    }

    /// Sets what the send waits for. Default: that of the [producer](super::ProducerBuilder::durability).
    ///
    /// Sends of different durability go to the server on different ways: one keeps its order behind another only if it
    /// begins after the other has ended. [`Producer::send_all`] sees to that by itself.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> QualifiedRecord<'a, T> {
        self.durability = Some(durability);
        QualifiedRecord(self)
    }

    /// Sets an id of 1 to 128 bytes by which this send is recognised when it is repeated: see [`SendFuture::dedup`].
    #[must_use]
    pub fn dedup(mut self, id: impl AsRef<[u8]>) -> QualifiedRecord<'a, T> {
        self.dedup = Some(Bytes::copy_from_slice(id.as_ref()));
        QualifiedRecord(self)
    }

    /// Sets an id of 1 to 128 bytes with which no second message is stored while one has still to be settled: see
    /// [`SendFuture::unique`].
    #[must_use]
    pub fn unique(mut self, id: impl AsRef<[u8]>) -> QualifiedRecord<'a, T> {
        self.unique = Some(Bytes::copy_from_slice(id.as_ref()));
        QualifiedRecord(self)
    }

    /// Sets a dedup id that names a delivery and a number: see [`SendFuture::once_for`].
    #[must_use]
    pub fn once_for(self, delivery: &impl Delivered, nth: u32) -> QualifiedRecord<'a, T> {
        self.dedup(id_for(delivery.topic_partition(), delivery.group(), delivery.origin(), nth))
    }

    /// Stores at most one message with this id in a window: see [`SendFuture::throttle`].
    #[must_use]
    pub fn throttle(mut self, id: impl AsRef<[u8]>, window: Duration) -> QualifiedRecord<'a, T> {
        self.window = Some(window);
        self.dedup(id)
    }
}

/// Record with an id, or with a durability of its own. As [`QualifiedSend`], it has no method for what does not go together. In a list
/// with others a [`Record`] becomes one by `into`.
///
/// ```
/// # use millstream_runtime::{Producer, QualifiedRecord, Record};
/// # async fn example(orders: Producer<u64>) {
/// let some: Vec<QualifiedRecord<u64>> = vec![Record::new(&7).dedup("order-7").key("k"), Record::new(&8).into()];
/// orders.send_all(some).await;
/// # }
/// ```
/// ```compile_fail,E0599
/// # use millstream_runtime::Record;
/// let _ = Record::new(&7).dedup("order-7").delay(std::time::Duration::from_secs(60));
/// ```
/// ```compile_fail,E0599
/// # use millstream_runtime::Record;
/// let _ = Record::new(&7).delay(std::time::Duration::from_secs(60)).unique("order-7");
/// ```
/// ```compile_fail,E0599
/// # use millstream_runtime::Record;
/// let _ = Record::new(&7).dedup("order-7").durability(millstream_core::Durability::Fsynced);
/// ```
#[derive(Debug)]
pub struct QualifiedRecord<'a, T>(pub(super) Record<'a, T>);

impl<'a, T> From<Record<'a, T>> for QualifiedRecord<'a, T> {
    fn from(record: Record<'a, T>) -> Self {
        Self(record)
    }
}

impl<T> QualifiedRecord<'_, T> {
    /// Sets the key: messages with the same key go to the same partition and keep their order.
    #[must_use]
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        Self(self.0.key(key))
    }

    /// Appends a header.
    #[must_use]
    pub fn header(self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        Self(self.0.header(name, value))
    }

    /// Names the lane of this message: see [`Record::priority`].
    #[must_use]
    pub fn priority(self, lane: impl AsRef<[u8]>) -> Self {
        Self(self.0.priority(lane))
    }

    /// Sets the retry policy of this message: see [`Record::retry`].
    #[must_use]
    pub fn retry(self, policy: MessageRetry) -> Self {
        Self(self.0.retry(policy))
    }

    /// Sets the partition, regardless of the key.
    #[must_use]
    pub fn partition(self, partition: u32) -> Self {
        Self(self.0.partition(partition))
    }
}

/// Send of a message with an id, or with a durability of its own, which starts when it is awaited.
///
/// The type has no method for what does not go together: a second id, a durability beside an id, and a delay, whose message has an
/// id of its own kind.
///
/// ```
/// # use millstream_runtime::Producer;
/// # async fn example(orders: Producer<u64>) -> millstream_core::Result<()> {
/// orders.send(&7).dedup("order-7").key("k").await?;
/// orders.send(&7).delay(std::time::Duration::from_secs(60)).id("order-7").await?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0599
/// # use millstream_runtime::Producer;
/// # async fn example(orders: Producer<u64>) -> millstream_core::Result<()> {
/// orders.send(&7).dedup("order-7").delay(std::time::Duration::from_secs(60)).await?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0599
/// # use millstream_runtime::Producer;
/// # async fn example(orders: Producer<u64>) -> millstream_core::Result<()> {
/// orders.send(&7).unique("order-7").dedup("order-7").await?;
/// # Ok(()) }
/// ```
#[must_use = "a send does nothing until it is awaited"]
#[derive(Debug)]
pub struct QualifiedSend<'a, T: 'static>(pub(super) SendFuture<'a, T>);

impl<'a, T> SendFuture<'a, T> {
    fn qualified(self, with: impl FnOnce(Record<'a, T>) -> QualifiedRecord<'a, T>) -> QualifiedSend<'a, T> {
        QualifiedSend(SendFuture { record: with(self.record).0, ..self })
    }
}

impl<T> QualifiedSend<'_, T> {
    /// Sets the key: messages with the same key go to the same partition and keep their order.
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        Self(self.0.key(key))
    }

    /// Appends a header.
    pub fn header(self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        Self(self.0.header(name, value))
    }

    /// Names the lane of this message: see [`Record::priority`].
    pub fn priority(self, lane: impl AsRef<[u8]>) -> Self {
        Self(self.0.priority(lane))
    }

    /// Sets the retry policy of this message: see [`Record::retry`].
    pub fn retry(self, policy: MessageRetry) -> Self {
        Self(self.0.retry(policy))
    }

    /// Sets the partition, regardless of the key.
    pub fn partition(self, partition: u32) -> Self {
        Self(self.0.partition(partition))
    }

    /// Limits how long the send waits: see [`SendFuture::timeout`].
    pub fn timeout(self, limit: Duration) -> Self {
        Self(self.0.timeout(limit))
    }
}

impl<'a, T: Sync> IntoFuture for QualifiedSend<'a, T> {
    type Output = Result<Sent>;
    type IntoFuture = BoxFuture<'a, Result<Sent>>;

    fn into_future(self) -> Self::IntoFuture {
        self.0.into_future()
    }
}

/// Place where a message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Partition of the message.
    pub partition: Partition,
    /// Id of the message in this partition.
    pub id: MessageId,
    /// Whether it was stored by an earlier send with the same [dedup id](SendFuture::dedup) or [unique id](SendFuture::unique), and
    /// this one stored nothing.
    pub is_duplicate: bool,
}

/// Send of a message, which starts when it is awaited.
#[must_use = "a send does nothing until it is awaited"]
#[derive(Debug)]
pub struct SendFuture<'a, T: 'static> {
    pub(super) producer: &'a Producer<T>,
    pub(super) record: Record<'a, T>,
    /// Longest time that it waits.
    pub(super) limit: Option<Duration>,
}

impl<'a, T> SendFuture<'a, T> {
    /// Limits how long the send waits, counted from when it is first polled, below the
    /// [`delivery_timeout`](super::ProducerBuilder::delivery_timeout) of the producer. For one send that a user waits for; a producer whose
    /// sends are all like that has a shorter `delivery_timeout`, which also ends the attempts. Default: no other limit.
    ///
    /// It ends the wait and not the send: a message that is queued or under way by then may still be stored, until the
    /// `delivery_timeout`, and is in its place in the order. With zero, a send that is not refused at once is unconfirmed.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_core::{ErrorKind, Result};
    /// # use millstream_runtime::Producer;
    /// # async fn example(orders: Producer<u64>) -> Result<()> {
    /// match orders.send(&7).dedup("order-7").timeout(Duration::from_millis(500)).await {
    ///     Err(error) if error.kind() == ErrorKind::Unconfirmed => println!("accepted, not confirmed yet"),
    ///     sent => println!("stored in partition {}", sent?.partition),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of the awaited future, when the time is over: [`ErrorKind::Unconfirmed`](millstream_core::ErrorKind::Unconfirmed) if the message may still be
    /// stored, and [`ErrorKind::Backpressure`](millstream_core::ErrorKind::Backpressure) if it waited for room in the buffer until then:
    /// it is not stored.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets the key: messages with the same key go to the same partition and keep their order.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.record = self.record.key(key);
        self
    }

    /// Appends a header.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.record = self.record.header(name, value);
        self
    }

    /// Names the lane of this message: see [`Record::priority`].
    pub fn priority(mut self, lane: impl AsRef<[u8]>) -> Self {
        self.record = self.record.priority(lane);
        self
    }

    /// Sets the retry policy of this message: see [`Record::retry`].
    pub fn retry(self, policy: MessageRetry) -> Self {
        self.header(RETRY_HEADER, policy.to_string())
    }

    /// Sets the partition, regardless of the key.
    pub fn partition(mut self, partition: u32) -> Self {
        self.record = self.record.partition(partition);
        self
    }

    /// Sets what the send waits for: see [`Record::durability`].
    ///
    /// # Errors
    /// Of the awaited future: [`ErrorKind::Unconfirmed`](millstream_core::ErrorKind::Unconfirmed) if it was stored and not
    /// confirmed in time, [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) if the backend or its server
    /// cannot confirm it: then nothing was stored.
    pub fn durability(self, durability: Durability) -> QualifiedSend<'a, T> {
        self.qualified(|record| record.durability(durability))
    }
}

impl<'a, T> SendFuture<'a, T> {
    /// Sets an id of 1 to 128 bytes by which this send is recognised when it is repeated: a second send with the same id,
    /// within the [window](super::ProducerBuilder::dedup_window) of the first one, stores nothing and returns the place of the
    /// first. So a send that failed as [`ErrorKind::Unconfirmed`](millstream_core::ErrorKind::Unconfirmed) can be repeated, also by
    /// another process; the producer itself repeats it until its time limit.
    ///
    /// The id counts in one partition: the explicit one, or that of the key, or, without a key, that of the id. Messages of one
    /// key keep their order as without an id; so send repetitions with the same key. When the topic grows, the producer looks
    /// for the id in the partition that it had before, too, for a window and ten minutes after it has noticed. A producer
    /// that was started after the growth does not know of it.
    ///
    /// Such sends go another way than plain ones: one keeps its order behind a plain one only if it begins after the other has
    /// ended. [`Producer::send_all`] sees to that by itself.
    ///
    /// # Errors
    /// Of the awaited future: [`ErrorKind::InvalidName`](millstream_core::ErrorKind::InvalidName) and
    /// [`ErrorKind::TooLarge`](millstream_core::ErrorKind::TooLarge) for an id that is empty or too long;
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) if the producer's durability is more than `Stored`, and for a backend
    /// that cannot recognise repetitions.
    pub fn dedup(self, id: impl AsRef<[u8]>) -> QualifiedSend<'a, T> {
        self.qualified(|record| record.dedup(id))
    }

    /// Stores the message once for a message that is handled, however often that is handled: by a [dedup id](Self::dedup) that names
    /// its topic, partition and id, its group, and `nth`, the number of this send among those of the handler to this topic. So a
    /// handler that reads one topic and sends to another one has its effect once, as long as the window of this producer covers
    /// the time in which the delivery can come again: [`ConsumerBuilder::sends_to`](crate::ConsumerBuilder::sends_to) checks that.
    ///
    /// The handler must send to the same partition each time: with the same key, or with the same `partition`.
    ///
    /// ```
    /// # use millstream_core::Result;
    /// # use millstream_runtime::{Consumer, ConsumerBuilder, Delivery, Producer};
    /// # async fn example(orders: ConsumerBuilder<u64>, bills: Producer<u64>) -> Result<Consumer> {
    /// orders
    ///     .sends_to(&bills, None)
    ///     .start(move |order: Delivery<u64>| {
    ///         let bills = bills.clone();
    ///         async move { bills.send(&(order.payload * 100)).once_for(&order, 0).await.map(drop) }
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`dedup`](Self::dedup).
    pub fn once_for(self, delivery: &impl Delivered, nth: u32) -> QualifiedSend<'a, T> {
        self.qualified(|record| record.once_for(delivery, nth))
    }

    /// Stores at most one message with this id in a window: the first one wins. Others within `window` of it, by the server's
    /// clock, store nothing and return its place, with [`Sent::is_duplicate`]; the first one behind it is stored, and the next
    /// window begins. Use it where messages say the same and one in a while is enough, for example "reload the settings of
    /// tenant 7".
    ///
    /// It is a [dedup id](Self::dedup) with a window of its own, and counts in the same way in one partition. Use one window for
    /// an id: the server remembers when its message was stored, and each send compares that with its own window.
    ///
    /// # Errors
    /// Of the awaited future: [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) unless the window is within
    /// [`WINDOWS`](millstream_core::dedup::WINDOWS), and those of [`dedup`](Self::dedup).
    pub fn throttle(self, id: impl AsRef<[u8]>, window: Duration) -> QualifiedSend<'a, T> {
        self.qualified(|record| record.throttle(id, window))
    }
}

impl<'a, T> SendFuture<'a, T> {
    /// Sets an id of 1 to 128 bytes with which no second message is stored while one has still to be settled: the send then stores
    /// nothing and returns the place of that one, with [`Sent::is_duplicate`]. Use it for work that is to be done once for all that
    /// ask for it until it is done: `producer.send(&job).unique("rebuild-index:42")`.
    ///
    /// A message has to be settled while a group of the topic has not read it, handles it, or waits for its retry; without any
    /// group, while it is stored. The id is free when every group that the topic has by then has acknowledged it or has it as a dead
    /// letter, and when the message was deleted or trimmed. Nothing has to release the id: each send looks at the state of the
    /// message, so a dead worker or a deleted group leaves no id in use. A dead letter that is replayed has its id again, unless another
    /// message has it by then.
    ///
    /// The id counts in one partition, as a [dedup id](Self::dedup). When the topic has grown, sends look at the partitions that it had
    /// before, too. Until all producers have [noticed](super::ProducerBuilder::refresh) the growth, two of them can store a message
    /// each, in two partitions.
    ///
    /// The producer repeats a send whose answer was lost until its time limit, and does not store it twice, unless the message was
    /// settled, and two minutes or another message with its id passed in between. A send that your program repeats is a new one: it is
    /// stored if the first one is settled by then.
    ///
    /// # Errors
    /// Of the awaited future: [`ErrorKind::InvalidName`](millstream_core::ErrorKind::InvalidName) and
    /// [`ErrorKind::TooLarge`](millstream_core::ErrorKind::TooLarge) for an id that is empty or too long;
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) if the producer's durability is more than `Stored`, and for a
    /// backend without unique ids; [`ErrorKind::Denied`](millstream_core::ErrorKind::Denied) for a user of the
    /// server who has only the rights of a producer without them.
    pub fn unique(self, id: impl AsRef<[u8]>) -> QualifiedSend<'a, T> {
        self.qualified(|record| record.unique(id))
    }
}

impl<'a, T: Sync> IntoFuture for SendFuture<'a, T> {
    type Output = Result<Sent>;
    type IntoFuture = BoxFuture<'a, Result<Sent>>;

    fn into_future(self) -> Self::IntoFuture {
        // Encoded here and not in the future, so that the future holds neither value nor codec, and is compiled once for all payloads.
        let Self { producer, mut record, limit } = self;
        let durability = producer.durability_of(&record);
        let inner = &producer.inner;
        let mut span = inner.sends(OperationKind::Send, &mut record.envelope);
        let way = producer.way_of(&record);
        let sending = inner.send(noted(&mut span, producer.encode(record)), (way, durability), limit);
        match span {
            Some(span) => spans::send(span, sending, |sent| &sent.id),
            None => sending,
        }
    }
}

/// Message that is not encoded yet.
pub(super) trait HasEnvelope {
    fn envelope_mut(&mut self) -> &mut Envelope;
}

impl<T> HasEnvelope for Record<'_, T> {
    fn envelope_mut(&mut self) -> &mut Envelope {
        &mut self.envelope
    }
}

/// Messages that are sent together, which carry the context of the span in which they are, if there is one.
pub(super) struct Stamped<'a, I> {
    pub(super) records: I,
    pub(super) span: Option<&'a mut ActiveSpan>,
}

impl<I: Iterator<Item: HasEnvelope>> Iterator for Stamped<'_, I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let mut record = self.records.next()?;
        if let Some(span) = &mut self.span {
            span.stamp_one_of_many(&mut record.envelope_mut().headers);
        }
        Some(record)
    }
}

/// Adds what is known of a message now that it is encoded.
pub(super) fn noted<C>(span: &mut Option<ActiveSpan>, encoded: Result<Encoded<C>>) -> Result<Encoded<C>> {
    if let (Some(span), Ok(encoded)) = (span, &encoded) {
        span.set(Detail::Partition(encoded.partition.0));
        span.set(Detail::BodySize(encoded.body));
    }
    encoded
}

impl Inner {
    /// Starts the span of a send, and has the message carry its context, if there is a tracer.
    pub(super) fn sends(&self, kind: OperationKind, envelope: &mut Envelope) -> Option<ActiveSpan> {
        Some(self.tracing.as_ref()?.sends(kind, self.topic.as_str(), &mut envelope.headers))
    }

    /// Starts the span of a send of several messages, if there is a tracer.
    pub(super) fn sends_all(&self, kind: OperationKind) -> Option<ActiveSpan> {
        Some(self.tracing.as_ref()?.sends_all(kind, self.topic.as_str()))
    }

    pub(super) fn send(
        &self,
        encoded: Result<Encoded<Append>>,
        (way, durability): (Way, Durability),
        limit: Option<Duration>,
    ) -> BoxFuture<'static, Result<Sent>> {
        let (appends, layers, limits) = (self.appends.clone(), self.layers.clone(), self.config.limits);
        Box::pin(async move {
            let encoded = encoded?;
            let batcher = appends.of(way, durability)?;
            Ok(sent(encoded.send(layers, limits, batcher, limit).await?))
        })
    }
}

impl Producer<Bytes> {
    /// Returns a producer that sends values of one type as JSON, and names the type in the header [`millstream-type`](TYPE_HEADER). It shares
    /// buffer, order and settings with this one, and layers see the header. A [`Router`](crate::Router) handles the messages.
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use millstream_core::Result;
    /// # use millstream_runtime::Producer;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { number: u64 }
    /// # async fn example(orders: Producer<Bytes>) -> Result<()> {
    /// let placed = orders.typed::<OrderPlaced>("order.placed");
    /// placed.send(&OrderPlaced { number: 7 }).key("customer-1").await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn typed<T>(&self, kind: impl Into<String>) -> Producer<T>
    where
        Json: Codec<T>,
    {
        self.typed_with(kind, &Json)
    }

    /// Returns the same with another codec than JSON.
    #[must_use]
    pub fn typed_with<T>(&self, kind: impl Into<String>, codec: &'static dyn Codec<T>) -> Producer<T> {
        Producer { inner: self.inner.clone(), codec, kind: Some(kind.into().into()) }
    }
}

impl<T> Producer<T> {
    /// Adds the header with the type, if the producer has one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the message has such a header, which would count in its place, or the type is empty.
    pub(super) fn name_type(&self, envelope: &mut Envelope) -> Result<()> {
        match &self.kind {
            Some(kind) => self.inner.name_type(kind, envelope),
            None => Ok(()),
        }
    }
}

impl Inner {
    fn name_type(&self, kind: &str, envelope: &mut Envelope) -> Result<()> {
        if kind.is_empty() || envelope.headers.get(TYPE_HEADER).is_some() {
            let why = match kind.is_empty() {
                true => "the type of a message is empty".to_owned(),
                false => {
                    format!("the producer sets the header {TYPE_HEADER:?}, and the message has one already")
                }
            };
            return Err(Error::new(ErrorKind::InvalidConfig, why).at(&self.topic));
        }
        envelope.headers.append(TYPE_HEADER, Bytes::copy_from_slice(kind.as_bytes()));
        Ok(())
    }
}

/// Returns the dedup id of the message that a handler sends for a delivery.
fn id_for(topic_partition: &TopicPartition, group: &GroupName, origin: MessageId, nth: u32) -> String {
    let TopicPartition { topic, partition } = topic_partition;
    let mut names = format!("{topic}/{group}");
    if names.len() > MAX_NAMES {
        // FNV-1a of 128 bits: there is no room for two long names.
        let fold = |sum: u128, byte| (sum ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        names = format!("{:032x}", names.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, fold));
    }
    format!("{names}/{partition}/{origin}/{nth}")
}

/// Longest names of topic and group in a dedup id, in bytes: with the numbers behind them it has at most 128.
const MAX_NAMES: usize = MAX_DEDUP_ID_LEN - 64;

/// Returns the place of a message.
pub(super) fn sent(done: Appended) -> Sent {
    Sent { partition: done.partition, id: done.id, is_duplicate: done.is_duplicate }
}
