//! What a batcher carries, and where it brings it.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::log::{Append, Appender};
use millstream_core::schedule::{Placed, Schedule, Scheduling};
use millstream_core::{Log, MessageId, TopicName};
use tokio::time::Instant;

use super::OnFull;
use super::backpressure::{Bound, Bounded};

/// What a message costs in the buffer beside its bytes: about what its entry in the queue takes.
const OVERHEAD: usize = 128;

/// A message on its way to the server.
pub(super) trait Outgoing: Send + Sync + 'static {
    /// What the server answers.
    type Done: Send + 'static;

    /// What it takes of the buffer.
    fn charge(&self) -> usize;
}

impl Outgoing for Append {
    type Done = MessageId;

    fn charge(&self) -> usize {
        OVERHEAD + self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }
}

impl Outgoing for Scheduling {
    type Done = Placed;

    fn charge(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        OVERHEAD + self.id.as_str().len() + fields
    }
}

/// Where messages go.
#[async_trait]
pub(super) trait Sink<C: Outgoing>: Send {
    /// How many requests may be under way, by what is under way now.
    fn ahead(&self) -> usize;

    /// Bytes from which on a batch takes no further message.
    fn full_at(&self) -> usize {
        usize::MAX
    }

    /// Begins a request behind those that were begun before. They go on while [`finish`](Self::finish) is awaited.
    fn begin(&mut self, batch: Arc<Vec<C>>, deadline: Instant);

    /// The results of the oldest request that was begun: one for each message. Dropping the future loses nothing.
    async fn finish(&mut self) -> Vec<Result<C::Done>>;

    /// So many were stored.
    fn stored(&self, topic: &TopicName, messages: usize, observer: &dyn Observer);
}

/// One request after the other, the oldest first.
struct InTurn<D>(VecDeque<BoxFuture<'static, Vec<Result<D>>>>);

impl<D> InTurn<D> {
    fn begin(&mut self, request: BoxFuture<'static, Vec<Result<D>>>) {
        self.0.push_back(request);
    }

    fn is_busy(&self) -> bool {
        !self.0.is_empty()
    }

    async fn finish(&mut self) -> Vec<Result<D>> {
        let Some(request) = self.0.front_mut() else { return Vec::new() };
        let results = request.await;
        self.0.pop_front();
        results
    }
}

/// Into the log, to be read at once.
pub(super) struct ToLog {
    /// Where partitions have no bound, if the log has something better than one request after the other.
    appender: Option<Box<dyn Appender>>,
    /// What was begun there and is not told of. A topic can be given a bound, or lose it, at any time: what is under way
    /// decides where the next one goes, so that none goes beside another.
    appending: usize,
    bounded: Arc<Bounded>,
    in_turn: InTurn<MessageId>,
}

impl ToLog {
    pub(super) fn new(log: Arc<dyn Log>, bound: Bound, on_full: OnFull) -> Self {
        let appender = log.appender();
        let bounded = Arc::new(Bounded::new(log, bound, on_full));
        Self { appender, appending: 0, bounded, in_turn: InTurn(VecDeque::new()) }
    }

    /// Whether requests follow each other without waiting for answers. Not while a bound is checked before each request.
    fn is_pipelined(&self) -> bool {
        self.appender.is_some() && !self.in_turn.is_busy() && !self.bounded.is_bound()
    }
}

/// Requests that follow each other without waiting for answers. More than the 16 to 32 batches that 512 waiting senders form at a
/// time; memory is bounded by the producer's buffer.
const AHEAD: usize = 64;

/// Bytes from which on a batch is closed, where batches follow each other. Redis reads a connection 16 KiB at a time
/// (`PROTO_IOBUF_LEN`) and writes replies after each read: what is larger is only answered later, and nothing is gained.
const FULL_AT: usize = 16 << 10;

#[async_trait]
impl Sink<Append> for ToLog {
    fn ahead(&self) -> usize {
        if self.is_pipelined() { AHEAD } else { 1 }
    }

    fn full_at(&self) -> usize {
        // One request after the other takes all that waits: otherwise each round trip would carry 16 KiB at the most.
        if self.is_pipelined() { FULL_AT } else { usize::MAX }
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

    fn stored(&self, topic: &TopicName, messages: usize, observer: &dyn Observer) {
        observer.observe(&Event::Produced { topic, messages });
    }
}

/// Into the schedule, to be read when due.
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

    fn stored(&self, topic: &TopicName, messages: usize, observer: &dyn Observer) {
        observer.observe(&Event::Delayed { topic, messages });
    }
}
