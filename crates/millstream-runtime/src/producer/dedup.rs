//! Sends that are stored once: with a dedup id, or with a number of the producer's. Their requests can be repeated when their
//! answer is lost, so they have batchers of their own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::log::{
    Append, DedupAppend, DedupAppender, Deduplicated, NumberedAppend, NumberedAppender, Numbering,
    UniqueAppend,
};
use millstream_core::wire::Fields;
use millstream_core::{Backend, Capability, Durability, MessageId, Partition, TopicName};
use millstream_engine::LeaseClock;
use tokio::time::Instant;
use uuid::Uuid;

use super::ProducerConfig;
use super::backpressure::{Bound, Bounded};
use super::batcher::{Batcher, closed};
use super::sink::{InTurn, Outgoing, Sink, produced};
use super::unique::ToLogUnique;

/// The sends of a producer that are stored once.
pub(super) struct DedupSends {
    backend: Backend,
    bound: Bound,
    topic: TopicName,
    config: ProducerConfig,
    observer: Arc<dyn Observer>,
    /// Whose the numbers are.
    numbering: Numbering,
    by_id: Lazy<DedupAppend>,
    by_number: Lazy<NumberedAppend>,
    by_unique: Lazy<UniqueAppend>,
}

/// Batcher that is started when something is sent.
struct Lazy<C: Outgoing>(Mutex<Started<C>>);

struct Started<C: Outgoing> {
    batcher: Option<Arc<Batcher<C>>>,
    closed: bool,
}

impl DedupSends {
    pub(super) fn new(
        backend: Backend,
        bound: Bound,
        topic: TopicName,
        config: &ProducerConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        // With a backend in this process nobody else makes names, and simulations repeat themselves with the same seed.
        let producer = if backend.is_in_process() { fastrand::u128(..) } else { Uuid::new_v4().as_u128() };
        let numbering = Numbering { producer, window: config.dedup_window };
        let config = config.clone();
        let (by_id, by_number, by_unique) = (Lazy::new(), Lazy::new(), Lazy::new());
        Self { backend, bound, topic, config, observer, numbering, by_id, by_number, by_unique }
    }

    /// Returns the batcher of sends with a dedup id. To be called within a runtime.
    ///
    /// # Errors
    /// `Unsupported` if the backend recognises no repetitions, or for a durability of more than `Stored`; `Closed`.
    pub(super) fn by_id(&self, durability: Durability) -> Result<Arc<Batcher<DedupAppend>>> {
        self.check(durability, Capability::Dedup, "a send with a dedup id")?;
        self.by_id.batcher(|| {
            let sink = ToLogOnce {
                appender: self.backend.log().dedup_appender(),
                appending: 0,
                failed: false,
                bounded: self.bounded(),
                in_turn: VecDeque::new(),
            };
            self.start(sink)
        })
    }

    /// Returns the batcher of sends with a number. To be called within a runtime.
    ///
    /// # Errors
    /// As [`by_id`](Self::by_id).
    pub(super) fn by_number(&self, durability: Durability) -> Result<Arc<Batcher<NumberedAppend>>> {
        self.check(durability, Capability::Dedup, "a send of an idempotent producer")?;
        self.by_number.batcher(|| {
            let sink = ToLogNumbered {
                numbering: self.numbering,
                appender: self.backend.log().numbered_appender(self.numbering),
                appending: 0,
                bounded: self.bounded(),
                in_turn: InTurn(VecDeque::new()),
            };
            self.start(sink)
        })
    }

    /// Returns the batcher of sends with a unique id. To be called within a runtime.
    ///
    /// # Errors
    /// As [`by_id`](Self::by_id).
    pub(super) fn by_unique(&self, durability: Durability) -> Result<Arc<Batcher<UniqueAppend>>> {
        self.check(durability, Capability::Unique, "a send with a unique id")?;
        self.by_unique.batcher(|| self.start(ToLogUnique::new(self.bounded())))
    }

    fn start<C: Outgoing>(&self, sink: impl Sink<C> + 'static) -> Batcher<C> {
        let (topic, observer) = (self.topic.clone(), self.observer.clone());
        Batcher::start_by(sink, topic, &self.config, observer, Some(LeaseClock::of(&self.backend)))
    }

    fn check(&self, durability: Durability, capability: Capability, what: &str) -> Result<()> {
        if durability != Durability::Stored {
            return Err(only_stored(what, durability).at(&self.topic));
        }
        self.backend.require(capability)
    }

    fn bounded(&self) -> Arc<Bounded> {
        let (log, bound) = (self.backend.log().clone(), self.bound.clone());
        Arc::new(Bounded::new(log, None, bound, self.config.on_full))
    }

    pub(super) async fn flush(&self) {
        tokio::join!(self.by_id.flush(), self.by_number.flush(), self.by_unique.flush());
    }

    pub(super) async fn close(&self) {
        tokio::join!(self.by_id.close(), self.by_number.close(), self.by_unique.close());
    }
}

impl<C: Outgoing> Lazy<C> {
    fn new() -> Self {
        Self(Mutex::new(Started { batcher: None, closed: false }))
    }

    fn batcher(&self, start: impl FnOnce() -> Batcher<C>) -> Result<Arc<Batcher<C>>> {
        let mut started = self.started();
        if started.closed {
            // A send reports it in the same way.
            return started.batcher.clone().ok_or_else(closed);
        }
        Ok(started.batcher.get_or_insert_with(|| Arc::new(start())).clone())
    }

    async fn flush(&self) {
        let batcher = self.started().batcher.clone();
        if let Some(batcher) = batcher {
            batcher.flush().await;
        }
    }

    async fn close(&self) {
        let batcher = {
            let mut started = self.started();
            started.closed = true;
            started.batcher.clone()
        };
        if let Some(batcher) = batcher {
            batcher.close().await;
        }
    }

    fn started(&self) -> MutexGuard<'_, Started<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing for DedupAppend {
    type Done = Deduplicated;

    const IS_REPEATABLE: bool = true;

    fn set_fields(&mut self, fields: Fields) {
        self.append.fields = fields;
    }

    fn order(&self) -> Option<Partition> {
        self.append.order()
    }

    fn charge(&self) -> usize {
        self.append.charge() + self.id.as_bytes().len()
    }
}

impl Outgoing for NumberedAppend {
    type Done = MessageId;

    const IS_REPEATABLE: bool = true;

    const IS_NUMBERED: bool = true;

    fn set_number(&mut self, number: u64) {
        self.number = number;
    }

    fn set_fields(&mut self, fields: Fields) {
        self.append.fields = fields;
    }

    fn order(&self) -> Option<Partition> {
        self.append.order()
    }

    fn charge(&self) -> usize {
        self.append.charge()
    }
}

/// Returns the error of a send that cannot have the durability of its producer, or its own.
pub(super) fn only_stored(what: &str, durability: Durability) -> Error {
    let stored = Durability::Stored;
    let why =
        format!("{what} cannot be {durability}, only {stored}: use a producer whose durability is {stored}");
    Error::new(ErrorKind::Unsupported, why)
}

/// Returns an entry that gets its number when its batch is closed: then the order is certain.
pub(super) fn unnumbered(append: Append) -> NumberedAppend {
    NumberedAppend { append, number: 0 }
}

/// Sink that appends to the log what was not appended before.
struct ToLogOnce {
    /// Appender for partitions without a bound, if the log has one.
    appender: Option<Box<dyn DedupAppender>>,
    /// Number of its requests whose results were not returned yet: see [`ToLog`](super::sink::ToLog).
    appending: usize,
    /// Whether one of its requests has failed since nothing was under way.
    failed: bool,
    bounded: Arc<Bounded>,
    /// Requests that do not go through the appender, with their numbers of messages. They run behind all that do.
    in_turn: VecDeque<(usize, BoxFuture<'static, Vec<Result<Deduplicated>>>)>,
}

impl ToLogOnce {
    fn is_pipelined(&self) -> bool {
        self.appender.is_some() && self.in_turn.is_empty() && !self.bounded.is_bound()
    }
}

#[async_trait]
impl Sink<DedupAppend> for ToLogOnce {
    fn ahead(&self) -> usize {
        if self.is_pipelined() { AHEAD } else { 1 }
    }

    fn full_at(&self) -> usize {
        if self.is_pipelined() { FULL_AT } else { usize::MAX }
    }

    fn begin(&mut self, batch: Arc<Vec<DedupAppend>>, deadline: Instant) {
        let direct = self.in_turn.is_empty() && (self.appending > 0 || !self.bounded.is_bound());
        // The appender does not look at earlier partitions.
        let direct = direct && batch.iter().all(|item| item.earlier.is_empty());
        match &mut self.appender {
            Some(appender) if direct => {
                appender.begin(batch);
                self.appending += 1;
            }
            _ => {
                let (bounded, messages) = (self.bounded.clone(), batch.len());
                let request = async move { bounded.append_dedup(&batch, deadline).await };
                self.in_turn.push_back((messages, Box::pin(request)));
            }
        }
    }

    async fn finish(&mut self) -> Vec<Result<Deduplicated>> {
        let results = match &mut self.appender {
            Some(appender) if self.appending > 0 => {
                let results = appender.finish().await;
                self.appending -= 1;
                self.failed |= results.iter().any(|result| result.as_ref().is_err_and(Error::is_transient));
                results
            }
            _ => match self.in_turn.front_mut() {
                None => Vec::new(),
                // It would overtake what has failed and may be begun again.
                Some((messages, _)) if self.failed => {
                    let error = Error::new(ErrorKind::Unavailable, "not sent, an earlier append failed");
                    let results = (0..*messages).map(|_| Err(error.clone())).collect();
                    self.in_turn.pop_front();
                    results
                }
                Some((_, request)) => {
                    let results = request.await;
                    self.in_turn.pop_front();
                    results
                }
            },
        };
        self.failed &= self.appending > 0 || !self.in_turn.is_empty();
        results
    }

    fn stored(
        &self,
        topic: &TopicName,
        messages: &[DedupAppend],
        results: &[Result<Deduplicated>],
        observer: &dyn Observer,
    ) {
        emit(topic, messages.iter().map(|message| &message.append), results, observer);
    }
}

/// Emits the events for the messages of these results that are stored now or were before.
pub(super) fn emit<'a>(
    topic: &TopicName,
    messages: impl Iterator<Item = &'a Append>,
    results: &[Result<Deduplicated>],
    observer: &dyn Observer,
) {
    let stored = messages.zip(results).filter(|(_, result)| result.as_ref().is_ok_and(|it| !it.is_duplicate));
    produced(stored.map(|(message, _)| &message.topic_partition), observer);
    let duplicates = results.iter().flatten().filter(|done| done.is_duplicate).count();
    if duplicates > 0 {
        observer.observe(&Event::Deduplicated { topic, messages: duplicates });
    }
}

/// Number of requests that are sent without waiting for earlier answers: enough that the server never waits for the next.
const AHEAD: usize = 8;

/// Number of bytes at which a batch is closed meanwhile. The server does a constant work for each partition of a request, so
/// requests are larger than those without numbers.
const FULL_AT: usize = 128 << 10;

/// Sink that appends with numbers.
struct ToLogNumbered {
    numbering: Numbering,
    /// Appender for partitions without a bound, if the log has one.
    appender: Option<Box<dyn NumberedAppender>>,
    /// Number of its requests whose results were not returned yet: see [`ToLog`](super::sink::ToLog).
    appending: usize,
    bounded: Arc<Bounded>,
    in_turn: InTurn<MessageId>,
}

impl ToLogNumbered {
    fn is_pipelined(&self) -> bool {
        self.appender.is_some() && !self.in_turn.is_busy() && !self.bounded.is_bound()
    }
}

#[async_trait]
impl Sink<NumberedAppend> for ToLogNumbered {
    fn ahead(&self) -> usize {
        if self.is_pipelined() { AHEAD } else { 1 }
    }

    fn full_at(&self) -> usize {
        if self.is_pipelined() { FULL_AT } else { usize::MAX }
    }

    fn begin(&mut self, batch: Arc<Vec<NumberedAppend>>, deadline: Instant) {
        let direct = !self.in_turn.is_busy() && (self.appending > 0 || !self.bounded.is_bound());
        match &mut self.appender {
            Some(appender) if direct => {
                appender.begin(batch);
                self.appending += 1;
            }
            _ => {
                let (bounded, numbering) = (self.bounded.clone(), self.numbering);
                self.in_turn.begin(Box::pin(async move {
                    bounded.append_numbered(&numbering, &batch, deadline).await
                }));
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
        messages: &[NumberedAppend],
        results: &[Result<MessageId>],
        observer: &dyn Observer,
    ) {
        let stored = messages.iter().zip(results).filter(|(_, result)| result.is_ok());
        produced(stored.map(|(message, _)| &message.append.topic_partition), observer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use millstream_core::log::DedupId;
    use millstream_core::{Log, TopicPartition};
    use millstream_memory::MemoryBackend;

    use super::super::OnFull;
    use super::*;

    /// Appender over which nothing gets through.
    struct Away(VecDeque<usize>);

    #[async_trait]
    impl DedupAppender for Away {
        fn begin(&mut self, batch: Arc<Vec<DedupAppend>>) {
            self.0.push_back(batch.len());
        }

        async fn finish(&mut self) -> Vec<Result<Deduplicated>> {
            let error = || Err(Error::new(ErrorKind::Unavailable, "away"));
            (0..self.0.pop_front().unwrap_or(0)).map(|_| error()).collect()
        }
    }

    fn batch(id: &str, earlier: &[u32]) -> Arc<Vec<DedupAppend>> {
        let topic_partition = TopicPartition::new("t".parse().expect("a name"), 1);
        let append = Append { topic_partition, fields: vec![(Bytes::from("a"), Bytes::from("b"))] };
        let id = DedupId::new(id.to_owned()).expect("an id");
        let earlier = earlier.iter().copied().map(Partition).collect();
        Arc::new(vec![DedupAppend { append, id, window: Duration::from_secs(60), earlier }])
    }

    #[tokio::test]
    async fn what_looks_into_earlier_partitions_waits_and_does_not_overtake_what_has_failed() {
        let log: Arc<dyn Log> = Arc::new(MemoryBackend::new());
        let bounded = Arc::new(Bounded::new(log.clone(), None, Bound::new(None), OnFull::Wait));
        let appender: Box<dyn DedupAppender> = Box::new(Away(VecDeque::new()));
        let mut sink = ToLogOnce {
            appender: Some(appender),
            appending: 0,
            failed: false,
            bounded,
            in_turn: VecDeque::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        assert_eq!((sink.ahead(), sink.full_at()), (AHEAD, FULL_AT));
        for (id, earlier) in [("1", &[][..]), ("2", &[0]), ("3", &[])] {
            sink.begin(batch(id, earlier), deadline);
        }
        assert_eq!(sink.ahead(), 1, "what comes behind waits too");
        for _ in 0..3 {
            let results = sink.finish().await;
            assert!(matches!(&results[..], [Err(error)] if error.kind() == ErrorKind::Unavailable));
        }
        let tp = batch("1", &[])[0].append.topic_partition.clone();
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
