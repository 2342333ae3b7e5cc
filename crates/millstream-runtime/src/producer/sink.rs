//! Sinks: the destinations of a batcher.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::log::{Append, Appender};
use millstream_core::schedule::{Placed, Schedule, Scheduling};
use millstream_core::topic::{Partition, TopicSpec};
use millstream_core::wire::Fields;
use millstream_core::{Durability, Log, MessageId, TopicName, TopicPartition};
use tokio::time::Instant;

use super::OnFull;
use super::backpressure::{Bound, Bounded};

/// Bytes that a message occupies in the buffer besides its content: about the size of its entry in the queue.
const OVERHEAD: usize = 128;

/// Message on its way to the server.
pub(super) trait Outgoing: Clone + Send + Sync + 'static {
    /// Result of a stored message.
    type Done: Send + 'static;

    /// Whether it can be sent again when it is not known whether it was stored.
    const IS_REPEATABLE: bool = false;

    /// Whether each message has a number, by which it is recognised when it is sent again.
    const IS_NUMBERED: bool = false;

    /// Sets its number.
    fn set_number(&mut self, number: u64) {
        let _ = number;
    }

    /// Sets its fields, which a layer has made.
    fn set_fields(&mut self, fields: Fields);

    /// Returns the partition whose messages are stored in the order in which they were sent; `None` for a message without
    /// an order.
    fn order(&self) -> Option<Partition>;

    /// Returns the number of bytes that it occupies in the buffer.
    fn charge(&self) -> usize;
}

impl Outgoing for Append {
    type Done = MessageId;

    fn set_fields(&mut self, fields: Fields) {
        self.fields = fields;
    }

    fn order(&self) -> Option<Partition> {
        Some(self.topic_partition.partition)
    }

    fn charge(&self) -> usize {
        OVERHEAD + self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }
}

impl Outgoing for Scheduling {
    type Done = Placed;

    fn set_fields(&mut self, fields: Fields) {
        self.fields = fields;
    }

    fn order(&self) -> Option<Partition> {
        None
    }

    fn charge(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        OVERHEAD + self.id.as_str().len() + fields
    }
}

/// Destination of messages.
#[async_trait]
pub(super) trait Sink<C: Outgoing>: Send {
    /// Returns how many requests may be under way, which depends on those that are under way now.
    fn ahead(&self) -> usize;

    /// Returns the number of bytes at which a batch takes no further message.
    fn full_at(&self) -> usize {
        usize::MAX
    }

    /// Begins a request behind the earlier ones. Requests make progress while [`finish`](Self::finish) is awaited.
    fn begin(&mut self, batch: Arc<Vec<C>>, deadline: Instant);

    /// Waits for the results of the oldest request: one for each message. Dropping the future loses nothing.
    async fn finish(&mut self) -> Vec<Result<C::Done>>;

    /// Emits the events for those of these messages whose results say that they are stored: at least one.
    fn stored(&self, topic: &TopicName, messages: &[C], results: &[Result<C::Done>], observer: &dyn Observer);
}

/// Emits an event for each partition in which messages were stored, with one place for each message.
pub(super) fn produced<'a>(places: impl Iterator<Item = &'a TopicPartition>, observer: &dyn Observer) {
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    for of_partition in places.chunk_by(|one, next| one == next) {
        let (topic_partition, messages) = (of_partition[0], of_partition.len());
        observer.observe(&Event::Produced { topic_partition, messages });
    }
}

/// Requests that run one after the other, oldest first.
pub(super) struct InTurn<D>(pub(super) VecDeque<BoxFuture<'static, Vec<Result<D>>>>);

impl<D> InTurn<D> {
    pub(super) fn begin(&mut self, request: BoxFuture<'static, Vec<Result<D>>>) {
        self.0.push_back(request);
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) async fn finish(&mut self) -> Vec<Result<D>> {
        let Some(request) = self.0.front_mut() else { return Vec::new() };
        let results = request.await;
        self.0.pop_front();
        results
    }
}

/// Sink that appends to the log, where messages can be read immediately.
pub(super) struct ToLog {
    /// Appender for partitions without a bound, if the log has one that pipelines requests.
    appender: Option<Box<dyn Appender>>,
    /// Whether each request waits for more than the server's memory.
    is_confirmed: bool,
    /// Number of requests of the appender whose results were not returned yet. The bound of a topic can be set or
    /// removed at any time. The requests under way determine the path of the next one, so that requests of both paths
    /// never run at the same time.
    appending: usize,
    /// Number of bytes at which a pipelined request takes no further message.
    full_at: usize,
    bounded: Arc<Bounded>,
    in_turn: InTurn<MessageId>,
}

impl ToLog {
    /// Returns `None` if the log does not support this durability.
    pub(super) fn new(
        log: Arc<dyn Log>,
        bound: Bound,
        on_full: OnFull,
        durability: Durability,
        full_at: usize,
    ) -> Option<Self> {
        let appender = log.appender(durability);
        let is_confirmed = durability != Durability::Stored;
        if is_confirmed && appender.is_none() {
            return None;
        }
        let durable = if is_confirmed { log.appender(durability) } else { None };
        let bounded = Arc::new(Bounded::new(log, durable, bound, on_full));
        Some(Self {
            appender,
            is_confirmed,
            appending: 0,
            full_at,
            bounded,
            in_turn: InTurn(VecDeque::new()),
        })
    }

    /// Whether requests are sent without waiting for earlier answers. Not while a bound is checked before each
    /// request.
    fn is_pipelined(&self) -> bool {
        self.appender.is_some() && !self.in_turn.is_busy() && !self.bounded.is_bound()
    }
}

/// Maximum number of pipelined requests. More than the 16 to 32 batches that 512 waiting senders form at a time;
/// memory is bounded by the producer's buffer.
const AHEAD: usize = 64;

/// The same where the server waits behind each request until it is durable: one waits, and the next one is filled and
/// sent meanwhile. More would only make each of them smaller.
const CONFIRMED_AHEAD: usize = 2;

/// Number of bytes at which a batch is closed while requests are pipelined. Redis reads 16 KiB at a time from a
/// connection (`PROTO_IOBUF_LEN`) and writes replies after each read: a larger batch is answered later, without a
/// gain.
const FULL_AT: usize = 16 << 10;

/// Largest number of bytes of a pipelined request with packs.
const PACKS_FULL_AT: usize = 1 << 20;

/// Returns the number of bytes at which a pipelined request of a topic takes no further message.
pub(super) fn full_at(topic: &TopicSpec) -> usize {
    topic.packing.map_or(FULL_AT, |packing| {
        let pack = packing.bytes() + packing.messages() * OVERHEAD;
        (packs_at_once(topic.partitions) * pack).clamp(FULL_AT, PACKS_FULL_AT)
    })
}

/// Returns the number of packs, each of another partition, for which a request has room.
pub(super) fn packs_at_once(partitions: u32) -> usize {
    partitions.clamp(1, 8) as usize
}

#[async_trait]
impl Sink<Append> for ToLog {
    fn ahead(&self) -> usize {
        match self.is_pipelined() {
            true if self.is_confirmed => CONFIRMED_AHEAD,
            true => AHEAD,
            false => 1,
        }
    }

    fn full_at(&self) -> usize {
        // Without a pipeline a request takes everything that waits: otherwise each round trip would carry at most 16
        // KiB.
        if self.is_pipelined() && !self.is_confirmed { self.full_at } else { usize::MAX }
    }

    fn begin(&mut self, batch: Arc<Vec<Append>>, deadline: Instant) {
        let direct = !self.in_turn.is_busy() && (self.appending > 0 || !self.bounded.is_bound());
        match &mut self.appender {
            Some(appender) if direct => {
                appender.begin(batch);
                self.appending += 1;
            }
            _ => {
                let bounded = self.bounded.clone();
                self.in_turn.begin(Box::pin(async move { bounded.append(&batch, deadline).await }));
            }
        }
    }

    async fn finish(&mut self) -> Vec<Result<MessageId>> {
        match &mut self.appender {
            Some(appender) if self.appending > 0 => {
                let results = appender.finish().await;
                self.appending -= 1;
                results
            }
            _ => self.in_turn.finish().await,
        }
    }

    fn stored(
        &self,
        _: &TopicName,
        messages: &[Append],
        results: &[Result<MessageId>],
        observer: &dyn Observer,
    ) {
        let stored = messages.iter().zip(results).filter(|(_, result)| result.is_ok());
        produced(stored.map(|(message, _)| &message.topic_partition), observer);
    }
}

/// Sink that stores messages in the schedule, until they are due.
pub(super) struct ToSchedule {
    schedule: Arc<dyn Schedule>,
    in_turn: InTurn<Placed>,
}

impl ToSchedule {
    pub(super) fn new(schedule: Arc<dyn Schedule>) -> Self {
        Self { schedule, in_turn: InTurn(VecDeque::new()) }
    }
}

#[async_trait]
impl Sink<Scheduling> for ToSchedule {
    fn ahead(&self) -> usize {
        1
    }

    fn begin(&mut self, batch: Arc<Vec<Scheduling>>, _: Instant) {
        let schedule = self.schedule.clone();
        self.in_turn.begin(Box::pin(async move { schedule.schedule(&batch).await }));
    }

    async fn finish(&mut self) -> Vec<Result<Placed>> {
        self.in_turn.finish().await
    }

    fn stored(
        &self,
        topic: &TopicName,
        _: &[Scheduling],
        results: &[Result<Placed>],
        observer: &dyn Observer,
    ) {
        let messages = results.iter().flatten().count();
        observer.observe(&Event::Delayed { topic, messages });
    }
}
