//! Configuration of a producer.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::log::check_window;
use millstream_core::partitioner::ByKey;
use millstream_core::{Durability, Limits, Partitioner};

/// Largest number of messages in one request.
pub(super) const MAX_BATCH: usize = 10_000;

/// Policy for messages to a partition that has as many entries as its topic
/// [allows](millstream_core::TopicSpec::max_length).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Waits for room until the [time limit](ProducerConfig::delivery_timeout) of the send, then fails as `Reject`
    /// does. Messages of this producer to other partitions wait with it. The default.
    #[default]
    Wait,
    /// Fails at once with [`ErrorKind::Backpressure`](millstream_core::ErrorKind::Backpressure).
    Reject,
}

/// Longest time limit of a send: a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Configuration of a [`Producer`](crate::Producer).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProducerConfig {
    /// Maximum number of messages in one request. Default: 500, the size at which a pipeline reaches its full rate.
    pub max_batch: usize,
    /// Time that a request waits for more messages. Default: zero. The next request fills while one is under way, so
    /// waiting helps only with many slow senders.
    pub linger: Duration,
    /// Bytes of messages that may be queued or under way. When the buffer is full, sends wait. Delayed messages, and
    /// those of each [durability](Self::durability), have a buffer of this size of their own. Default: 32 MiB.
    pub buffer_memory: usize,
    /// Time limit of a send, including the wait for room and for a server that is unavailable. Default: 30 s; at most
    /// a year. Messages of one request share the deadline of the first of them. A request that the server refused
    /// while it was going down or coming up fails earlier if a later one was stored meanwhile: sent again, it would
    /// be stored after the later one.
    pub delivery_timeout: Duration,
    /// What a send waits for, unless it [says](crate::SendFuture::durability) otherwise. Default: [`Durability::Stored`].
    pub durability: Durability,
    /// Time for which a [dedup id](crate::SendFuture::dedup) counts, from its first send, by the server's clock. Each id takes
    /// about 100 bytes of the server's memory for one to three windows. Default: 5 minutes; 100 ms to 7 days.
    pub dedup_window: Duration,
    /// Whether sends are numbered, so that one whose answer is lost is repeated until `delivery_timeout` and stored once.
    /// Default: no.
    pub idempotent: bool,
    /// Policy for messages to a full partition. Default: [`OnFull::Wait`]. A topic has no bound unless one is set.
    pub on_full: OnFull,
    /// Size limits of a message.
    pub limits: Limits,
    /// Interval at which the metadata of the topic is read: the number of partitions, the bound, the packing with its
    /// dictionary, and whether the topic exists. A topic that was lost with the data is restored; to a topic that was deleted nothing more is
    /// sent. `None` means never. Default: 60 s.
    pub refresh: Option<Duration>,
    /// Chooses the partition of messages that do not name one. Default: [`ByKey`].
    pub partitioner: Arc<dyn Partitioner>,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            max_batch: 500,
            linger: Duration::ZERO,
            buffer_memory: 32 << 20,
            delivery_timeout: Duration::from_secs(30),
            durability: Durability::default(),
            dedup_window: Duration::from_secs(300),
            idempotent: false,
            on_full: OnFull::default(),
            limits: Limits::default(),
            refresh: Some(Duration::from_secs(60)),
            partitioner: Arc::new(ByKey::new()),
        }
    }
}

impl ProducerConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        problems.require((1..=MAX_BATCH).contains(&self.max_batch), || {
            format!("max_batch is {}, 1 to {MAX_BATCH} are allowed", self.max_batch)
        });
        problems.require(self.buffer_memory >= 1 << 10, || {
            format!("buffer_memory is {} bytes, at least 1024 are needed", self.buffer_memory)
        });
        problems.require(self.buffer_memory <= u32::MAX as usize, || {
            format!("buffer_memory is {} bytes, at most 4 GiB are allowed", self.buffer_memory)
        });
        problems.take(self.durability.check());
        problems.take(check_window(self.dedup_window));
        problems.require(!self.idempotent || self.durability == Durability::Stored, || {
            format!("an idempotent producer cannot be {}, only {}", self.durability, Durability::Stored)
        });
        problems.require(!self.idempotent || self.dedup_window > self.delivery_timeout, || {
            format!(
                "dedup_window ({:?}) is not above delivery_timeout ({:?}), in which an idempotent producer repeats a send",
                self.dedup_window, self.delivery_timeout
            )
        });
        let refresh = self.refresh.unwrap_or(Duration::MAX);
        problems.require(refresh >= Duration::from_millis(100), || {
            format!("refresh is {refresh:?}, at least 100ms are needed")
        });
        problems.require(!self.delivery_timeout.is_zero(), || "delivery_timeout is zero".into());
        problems.require(self.delivery_timeout <= LONGEST, || {
            format!("delivery_timeout is {:?}, at most {LONGEST:?} are allowed", self.delivery_timeout)
        });
        problems.require(self.linger < self.delivery_timeout, || {
            format!("linger ({:?}) is not below delivery_timeout ({:?})", self.linger, self.delivery_timeout)
        });
    }
}
