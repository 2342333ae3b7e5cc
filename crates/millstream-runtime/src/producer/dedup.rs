//! Sends with a dedup id: a batcher of their own, whose requests can be repeated when their answer is lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::log::{DedupAppend, DedupId, Deduplicated};
use millstream_core::{Backend, Capability, Durability, Partition, TopicName};
use tokio::time::Instant;
use uuid::Uuid;

use super::ProducerConfig;
use super::backpressure::{Bound, Bounded};
use super::batcher::{Batcher, closed};
use super::sink::{InTurn, Outgoing, Sink};

/// The sends of a producer that have a dedup id. Their batcher is started with the first of them.
pub(super) struct DedupSends {
    backend: Backend,
    bound: Bound,
    topic: TopicName,
    config: ProducerConfig,
    observer: Arc<dyn Observer>,
    /// First part of the ids that the producer makes.
    nonce: String,
    count: AtomicU64,
    started: Mutex<Started>,
}

#[derive(Default)]
struct Started {
    batcher: Option<Arc<Batcher<DedupAppend>>>,
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
        let unique =
            if backend.is_in_process() { Uuid::from_u128(fastrand::u128(..)) } else { Uuid::new_v4() };
        let (nonce, count) = (unique.simple().to_string(), AtomicU64::new(0));
        let config = config.clone();
        Self { backend, bound, topic, config, observer, nonce, count, started: Mutex::default() }
    }

    /// Returns an id for one send, unique to this producer.
    pub(super) fn next_id(&self) -> Result<DedupId> {
        DedupId::new(format!("{}-{}", self.nonce, self.count.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the batcher. To be called within a runtime.
    ///
    /// # Errors
    /// `Unsupported` if the backend recognises no repetitions, or for a durability of more than `Stored`; `Closed`.
    pub(super) fn batcher(&self, durability: Durability) -> Result<Arc<Batcher<DedupAppend>>> {
        if durability != Durability::Stored {
            let why = format!("a send with a dedup id cannot be {durability}, only {}", Durability::Stored);
            return Err(Error::new(ErrorKind::Unsupported, why).at(&self.topic));
        }
        let mut started = self.started();
        if let Some(batcher) = &started.batcher {
            return Ok(batcher.clone());
        }
        self.backend.require(Capability::Dedup)?;
        if started.closed {
            return Err(closed());
        }
        let bounded = Bounded::new(self.backend.log().clone(), None, self.bound.clone(), self.config.on_full);
        let sink = ToLogOnce { bounded: Arc::new(bounded), in_turn: InTurn(VecDeque::new()) };
        let batcher = Batcher::start(sink, self.topic.clone(), &self.config, self.observer.clone());
        let batcher = Arc::new(batcher);
        started.batcher = Some(batcher.clone());
        Ok(batcher)
    }

    pub(super) async fn flush(&self) {
        let batcher = self.started().batcher.clone();
        if let Some(batcher) = batcher {
            batcher.flush().await;
        }
    }

    pub(super) async fn close(&self) {
        let batcher = {
            let mut started = self.started();
            started.closed = true;
            started.batcher.clone()
        };
        if let Some(batcher) = batcher {
            batcher.close().await;
        }
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing for DedupAppend {
    type Done = Deduplicated;

    const IS_REPEATABLE: bool = true;

    fn order(&self) -> Option<Partition> {
        self.append.order()
    }

    fn charge(&self) -> usize {
        self.append.charge() + self.id.as_bytes().len()
    }
}

/// Sink that appends to the log what was not appended before. One request at a time: one that is repeated must not come behind a
/// later one.
struct ToLogOnce {
    bounded: Arc<Bounded>,
    in_turn: InTurn<Deduplicated>,
}

#[async_trait]
impl Sink<DedupAppend> for ToLogOnce {
    fn ahead(&self) -> usize {
        1
    }

    fn begin(&mut self, batch: Arc<Vec<DedupAppend>>, deadline: Instant) {
        let bounded = self.bounded.clone();
        self.in_turn.begin(Box::pin(async move { bounded.append_dedup(&batch, deadline).await }));
    }

    async fn finish(&mut self) -> Vec<Result<Deduplicated>> {
        self.in_turn.finish().await
    }

    fn stored(&self, topic: &TopicName, results: &[Result<Deduplicated>], observer: &dyn Observer) {
        let duplicates = results.iter().flatten().filter(|done| done.is_duplicate).count();
        let messages = results.iter().flatten().count() - duplicates;
        if messages > 0 {
            observer.observe(&Event::Produced { topic, messages });
        }
        if duplicates > 0 {
            observer.observe(&Event::Deduplicated { topic, messages: duplicates });
        }
    }
}
