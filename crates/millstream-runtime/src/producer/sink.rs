//! Sinks: the destinations of a batcher.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::log::{Append, Appended, Appender, Identity};
use millstream_core::schedule::{Placed, Schedule, Scheduling};
use millstream_core::topic::{Partition, TopicSpec};
use millstream_core::wire::Fields;
use millstream_core::{Durability, Log, TopicName, TopicPartition};
use tokio::time::Instant;

use super::OnFull;
use super::backpressure::{Bound, Bounded};

/// Bytes that a message occupies in the buffer besides its content: about the size of its entry in the queue.
const OVERHEAD: usize = 128;

/// Way on which a message goes to its log. The entries of one request have [identities](millstream_core::log::Identity) of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    /// With a dedup id.
    Id,
    /// With a unique id.
    Unique,
    /// With a number of the producer's.
    Number,
}

/// Returns the error of a send that cannot have the durability of its producer, or its own.
pub(super) fn only_stored(what: &str, durability: Durability) -> Error {
    let stored = Durability::Stored;
    let why =
        format!("{what} cannot be {durability}, only {stored}: use a producer whose durability is {stored}");
    Error::new(ErrorKind::Unsupported, why)
}

/// Message on its way to the server.
pub(super) trait Outgoing: Clone + Send + Sync + 'static {
    /// Result of a stored message.
    type Done: Send + 'static;

    /// Whether it has a number, by which it is recognised when it is sent again.
    fn is_numbered(&self) -> bool {
        false
    }

    /// Sets that number.
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
    type Done = Appended;

    fn is_numbered(&self) -> bool {
        matches!(self.identity, Identity::Number(..))
    }

    fn set_number(&mut self, number: u64) {
        if let Identity::Number(_, its) = &mut self.identity {
            *its = number;
        }
    }

    fn set_fields(&mut self, fields: Fields) {
        self.fields = fields;
    }

    fn order(&self) -> Option<Partition> {
        Some(self.topic_partition.partition)
    }

    fn charge(&self) -> usize {
        let id = match &self.identity {
            Identity::Dedup(dedup) => dedup.id.as_bytes().len(),
            Identity::Unique(unique) => unique.id.as_bytes().len(),
            _ => 0,
        };
        OVERHEAD + id + self.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
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

/// Returns the error of a message that can be sent again: it was not stored because the server is unavailable, or a second
/// one would not be stored.
pub(super) fn away<D>(result: &Result<D>, repeats: bool) -> Option<&Error> {
    result.as_ref().err().filter(|error| match error.kind() {
        ErrorKind::Unavailable => true,
        ErrorKind::Unconfirmed => repeats,
        _ => false,
    })
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
fn produced<'a>(places: impl Iterator<Item = &'a TopicPartition>, observer: &dyn Observer) {
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    for of_partition in places.chunk_by(|one, next| one == next) {
        let (topic_partition, messages) = (of_partition[0], of_partition.len());
        observer.observe(&Event::Produced { topic_partition, messages });
    }
}

/// Requests that run one after the other, oldest first, each with its number of messages.
struct InTurn<D>(VecDeque<(usize, BoxFuture<'static, Vec<Result<D>>>)>);

impl<D> InTurn<D> {
    fn begin(&mut self, messages: usize, request: impl Future<Output = Vec<Result<D>>> + Send + 'static) {
        self.0.push_back((messages, Box::pin(request)));
    }

    fn is_busy(&self) -> bool {
        !self.0.is_empty()
    }

    async fn finish(&mut self) -> Vec<Result<D>> {
        let Some((_, request)) = self.0.front_mut() else { return Vec::new() };
        let results = request.await;
        self.0.pop_front();
        results
    }
}

/// Sink that appends to the log, where messages can be read immediately: those of one [way](Way).
pub(super) struct ToLog {
    /// Appender for partitions without a bound, if the log has one that pipelines requests.
    appender: Option<Box<dyn Appender>>,
    pace: Pace,
    /// Number of requests of the appender whose results were not returned yet. The bound of a topic can be set or
    /// removed at any time. The requests under way determine the path of the next one, so that requests of both paths
    /// never run at the same time.
    appending: usize,
    /// Whether one of its requests has failed since nothing was under way, and is begun again.
    failed: bool,
    /// Whether messages are recognised when they are sent again.
    is_recognised: bool,
    bounded: Arc<Bounded>,
    /// Requests that do not go through the appender. They run behind all that do.
    in_turn: InTurn<Appended>,
}

/// How far requests of an appender go ahead of the answers, and the number of bytes at which one of them takes no further message.
#[derive(Clone, Copy)]
struct Pace {
    ahead: usize,
    full_at: usize,
}

impl ToLog {
    /// `full_at` is that of plain messages. Returns `None` if the log does not support this durability.
    pub(super) fn new(
        log: Arc<dyn Log>,
        bound: Bound,
        on_full: OnFull,
        (way, durability): (Way, Durability),
        full_at: usize,
    ) -> Option<Self> {
        let is_confirmed = durability != Durability::Stored;
        // What looks at the groups first is not pipelined.
        let appender = if way == Way::Unique { None } else { log.appender(durability) };
        if is_confirmed && appender.is_none() {
            return None;
        }
        let durable = if is_confirmed { log.appender(durability) } else { None };
        let pace = match way {
            _ if is_confirmed => Pace { ahead: CONFIRMED_AHEAD, full_at: usize::MAX },
            Way::Plain => Pace { ahead: AHEAD, full_at },
            Way::Id | Way::Number | Way::Unique => Pace { ahead: CALLS_AHEAD, full_at: CALLS_FULL_AT },
        };
        let bounded = Arc::new(Bounded::new(log, durable, bound, on_full));
        let in_turn = InTurn(VecDeque::new());
        let is_recognised = way != Way::Plain;
        Some(Self { appender, pace, appending: 0, failed: false, is_recognised, bounded, in_turn })
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

/// The same for messages that are recognised when they are sent again: enough that the server never waits for the next one.
const CALLS_AHEAD: usize = 8;

/// Number of bytes at which a batch of these is closed. The server does a constant work for each partition of a request, so
/// requests are larger than those of others.
const CALLS_FULL_AT: usize = 128 << 10;

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
        if self.is_pipelined() { self.pace.ahead } else { 1 }
    }

    fn full_at(&self) -> usize {
        // Without a pipeline a request takes everything that waits: otherwise each round trip would carry at most 16
        // KiB.
        if self.is_pipelined() { self.pace.full_at } else { usize::MAX }
    }

    fn begin(&mut self, batch: Arc<Vec<Append>>, deadline: Instant) {
        let direct = !self.in_turn.is_busy() && (self.appending > 0 || !self.bounded.is_bound());
        // What is plain looks at nothing, and is not looked at.
        let looks_first = || batch.iter().any(|append| append.identity.looks_first());
        let direct = direct && !(self.is_recognised && looks_first());
        match &mut self.appender {
            Some(appender) if direct => {
                appender.begin(batch);
                self.appending += 1;
            }
            _ => {
                let bounded = self.bounded.clone();
                self.in_turn.begin(batch.len(), async move { bounded.append(&batch, deadline).await });
            }
        }
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        let results = match &mut self.appender {
            Some(appender) if self.appending > 0 => {
                let results = appender.finish().await;
                self.appending -= 1;
                self.failed |= results.iter().any(|result| away(result, self.is_recognised).is_some());
                results
            }
            // It would overtake what has failed and may be begun again.
            _ if self.failed && self.in_turn.is_busy() => {
                let messages = self.in_turn.0.pop_front().map_or(0, |(messages, _)| messages);
                let error = Error::new(ErrorKind::Unavailable, "not sent, an earlier append failed");
                (0..messages).map(|_| Err(error.clone())).collect()
            }
            _ => self.in_turn.finish().await,
        };
        self.failed &= self.appending > 0 || self.in_turn.is_busy();
        results
    }

    fn stored(
        &self,
        topic: &TopicName,
        messages: &[Append],
        results: &[Result<Appended>],
        observer: &dyn Observer,
    ) {
        let new = messages
            .iter()
            .zip(results)
            .filter(|(_, result)| result.as_ref().is_ok_and(|it| !it.is_duplicate));
        produced(new.map(|(message, _)| &message.topic_partition), observer);
        if !self.is_recognised {
            return;
        }
        let duplicates = results.iter().flatten().filter(|appended| appended.is_duplicate).count();
        if duplicates > 0 {
            observer.observe(&Event::Deduplicated { topic, messages: duplicates });
        }
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
        self.in_turn.begin(batch.len(), async move { schedule.schedule(&batch).await });
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use millstream_core::Partition;
    use millstream_core::log::{DedupId, DedupIdentity};
    use millstream_memory::MemoryBackend;

    use super::*;

    /// Appender over which nothing gets through.
    struct Away(VecDeque<usize>);

    #[async_trait]
    impl Appender for Away {
        fn begin(&mut self, batch: Arc<Vec<Append>>) {
            self.0.push_back(batch.len());
        }

        async fn finish(&mut self) -> Vec<Result<Appended>> {
            let error = || Err(Error::new(ErrorKind::Unavailable, "away"));
            (0..self.0.pop_front().unwrap_or(0)).map(|_| error()).collect()
        }
    }

    fn batch(id: &str, earlier: &[u32]) -> Arc<Vec<Append>> {
        let topic_partition = TopicPartition::new("t".parse().expect("a name"), 1);
        let append = Append::new(topic_partition, vec![(Bytes::from("a"), Bytes::from("b"))]);
        let id = DedupId::new(id.to_owned()).expect("an id");
        let earlier = earlier.iter().copied().map(Partition).collect();
        Arc::new(vec![append.with(DedupIdentity { id, window: Duration::from_secs(60), earlier })])
    }

    #[tokio::test]
    async fn what_looks_into_earlier_partitions_waits_and_does_not_overtake_what_has_failed() {
        let log: Arc<dyn Log> = Arc::new(MemoryBackend::new());
        let bounded = Arc::new(Bounded::new(log.clone(), None, Bound::new(None), OnFull::Wait));
        let appender: Box<dyn Appender> = Box::new(Away(VecDeque::new()));
        let pace = Pace { ahead: CALLS_AHEAD, full_at: CALLS_FULL_AT };
        let in_turn = InTurn(VecDeque::new());
        let mut sink = ToLog {
            appender: Some(appender),
            pace,
            appending: 0,
            failed: false,
            is_recognised: true,
            bounded,
            in_turn,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        assert_eq!((sink.ahead(), sink.full_at()), (CALLS_AHEAD, CALLS_FULL_AT));
        for (id, earlier) in [("1", &[][..]), ("2", &[0]), ("3", &[])] {
            sink.begin(batch(id, earlier), deadline);
        }
        assert_eq!(sink.ahead(), 1, "what comes behind waits too");
        for _ in 0..3 {
            let results = sink.finish().await;
            assert!(matches!(&results[..], [Err(error)] if error.kind() == ErrorKind::Unavailable));
        }
        let tp = batch("1", &[])[0].topic_partition.clone();
        assert_eq!(
            log.lengths(std::slice::from_ref(&tp)).await.expect("a length"),
            [0],
            "nothing overtook it"
        );
        assert!(sink.finish().await.is_empty());
        sink.begin(batch("2", &[0]), deadline);
        assert!(sink.finish().await[0].is_ok());
        assert_eq!(log.lengths(&[tp]).await.expect("a length"), [1]);
    }
}
