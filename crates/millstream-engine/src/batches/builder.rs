//! Creates batches.

use std::borrow::Borrow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::batches::{BATCHES, BatchEventKind, BatchId, BatchMember, BatchParent, BatchSpec};
use millstream_core::error::Problems;
use millstream_core::wire::{self, Fields};
use millstream_core::{Backend, Envelope, Result, Topic, TopicPartition, partitioner};
use uuid::Uuid;

use super::{BatchItem, OpenBatch, repeated};

/// Longest time for which a batch is kept after its end: 90 days.
const LONGEST: Duration = Duration::from_secs(90 * 24 * 3_600);

/// Builder of a batch: the messages that it sends, to one topic, each an ordinary message with a value of that topic. A handler reads the event and the
/// counts from its headers: [`Delivery::batch_event`](crate::Delivery::batch_event).
#[must_use = "a batch does not exist until it is created"]
pub struct BatchBuilder<T: 'static> {
    backend: Backend,
    topic: Topic<T>,
    callbacks: Vec<(BatchEventKind, Result<Bytes>)>,
    key: Option<Bytes>,
    keep: Duration,
}

impl<T> fmt::Debug for BatchBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.callbacks.iter().map(|(kind, _)| kind).collect();
        f.debug_struct("BatchBuilder").field("callbacks", &kinds).finish_non_exhaustive()
    }
}

impl<T> BatchBuilder<T> {
    /// Begins a batch that sends its messages to this topic.
    pub fn new(backend: Backend, topic: impl Borrow<Topic<T>>) -> Self {
        Self {
            backend,
            topic: topic.borrow().clone(),
            callbacks: Vec::new(),
            key: None,
            keep: Duration::ZERO,
        }
    }

    fn on(mut self, kind: BatchEventKind, value: &T) -> Self {
        self.callbacks.retain(|(other, _)| other.as_str() != kind.as_str());
        self.callbacks.push((kind, millstream_core::panics::encode(self.topic.codec(), value)));
        self
    }

    /// Sets the message for the end of all members, whether they are done or dead.
    pub fn complete(self, value: &T) -> Self {
        self.on(BatchEventKind::Complete, value)
    }

    /// Sets the message for the time when all members are done. If some are dead letters, it comes when the last of them was replayed and handled.
    pub fn success(self, value: &T) -> Self {
        self.on(BatchEventKind::Success, value)
    }

    /// Sets the message for the first member that is dead: a dead letter, or dropped by its policy, or cancelled.
    pub fn death(self, value: &T) -> Self {
        self.on(BatchEventKind::Death, value)
    }

    /// Sets the message that is sent each time when this many percent more have ended, 1 to 100: a divisor of 100, or none says that all have. When several steps are reached at
    /// once, one message with the last of them is sent.
    pub fn progress(self, percent: u8, value: &T) -> Self {
        self.on(BatchEventKind::Progress(percent), value)
    }

    /// Sets the key of these messages. Default: none. All messages of a batch are in one partition in any case, in their order.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Sets how long the batch is kept after its end, for dead letters that are replayed and for whoever looks at it. Default: 7 days; 1 s to 90 days.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    fn check(&self) -> Result<()> {
        let mut problems = Problems::new("batch");
        for (kind, _) in &self.callbacks {
            let is_valid = !matches!(kind, BatchEventKind::Progress(percent) if !(1..=100).contains(percent));
            problems.require(is_valid, || format!("{kind:?}: 1 to 100 percent are allowed"));
        }
        let keep = self.keep;
        let is_valid = keep.is_zero() || (Duration::from_secs(1)..=LONGEST).contains(&keep);
        problems.require(is_valid, || format!("keep is {keep:?}, 1 s to 90 days are allowed"));
        problems.finish()
    }

    /// Creates the batch, and the topic if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) for percents or a time that are not allowed, and for a bad topic; [`ErrorKind::Encode`](millstream_core::ErrorKind::Encode) for a value that cannot be
    /// encoded; [`ErrorKind::TooLarge`](millstream_core::ErrorKind::TooLarge) for one of more than [`MAX_CALLBACK`](millstream_core::batches::MAX_CALLBACK);
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend without batches; transient errors.
    pub async fn create(self) -> Result<OpenBatch> {
        self.prepared()?.create(None).await
    }

    /// Returns what does not depend on the type of the payload.
    fn prepared(self) -> Result<Prepared> {
        self.check()?;
        let topic = self.topic.spec()?;
        let message = |(kind, payload): (_, Result<Bytes>)| -> Result<(BatchEventKind, Fields)> {
            let envelope = Envelope { key: self.key.clone(), payload: payload?, ..Envelope::default() };
            Ok((kind, wire::encode(&envelope)))
        };
        let callbacks = self.callbacks.into_iter().map(message).collect::<Result<_>>()?;
        Ok(Prepared { backend: self.backend, topic, callbacks, key: self.key, keep: self.keep })
    }
}

struct Prepared {
    backend: Backend,
    topic: millstream_core::TopicSpec,
    callbacks: Vec<(BatchEventKind, Fields)>,
    key: Option<Bytes>,
    keep: Duration,
}

impl Prepared {
    async fn create(self, parent: Option<BatchParent>) -> Result<OpenBatch> {
        let Self { backend, topic, callbacks, key, keep } = self;
        let role = backend.batches()?.clone();
        let partitions = backend.catalog().create_topic(&topic).await?.partitions;
        let number = if backend.is_in_process() { fastrand::u128(..) } else { Uuid::new_v4().as_u128() };
        let partition = match &key {
            Some(key) => partitioner::by_hash(key, partitions),
            None => partitioner::by_hash(&number.to_be_bytes(), partitions),
        };
        let id = BatchId::new(TopicPartition::new(topic.name, partition), number);
        let spec = BatchSpec { callbacks, parent, keep };
        repeated(|| role.create(&id, &spec)).await?;
        OpenBatch::open(&backend, &id)
    }
}

/// A batch that is a member of another one: it is done with its success, and dead when it is complete without.
impl<T: 'static> BatchItem for BatchBuilder<T> {
    type Stored = OpenBatch;

    fn target(&self) -> String {
        self.topic.spec().map(|spec| format!("{BATCHES}{}", spec.name)).unwrap_or_default()
    }

    fn store<'a>(self, member: &BatchMember) -> BoxFuture<'a, Result<OpenBatch>>
    where
        Self: 'a,
    {
        let (prepared, member) = (self.prepared(), member.clone());
        Box::pin(async move { prepared?.create(Some(BatchParent::Batch(member))).await })
    }
}
