//! How a producer works.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::partitioner::ByKey;
use millstream_core::{Limits, Partitioner};

/// What a producer does with messages to a partition that has as many entries as its topic
/// [allows](millstream_core::TopicSpec::max_length).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Waits until there is room, as long as a send may [take](ProducerConfig::delivery_timeout); then as `Reject`. What
    /// this producer sends to other partitions waits with it. The default.
    #[default]
    Wait,
    /// Fails at once with [`ErrorKind::Backpressure`](millstream_core::ErrorKind::Backpressure).
    Reject,
}

/// The longest time that can be waited for: a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

/// How a producer works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProducerConfig {
    /// The most messages in one request. Default: 500, where a pipeline has reached its full rate.
    pub max_batch: usize,
    /// How long a request waits for more messages to join it. Default: zero: while a request is under way the
    /// next one fills by itself, so waiting pays only for many slow senders.
    pub linger: Duration,
    /// Bytes of messages that may wait or be under way. When it is full, sends wait. Default: 32 MiB.
    pub buffer_memory: usize,
    /// How long a send may take altogether, waiting for room and for a server that is away included, before
    /// it fails. Default: 30 s; at most a year. Messages of one request share the time of the first of them. A request that
    /// the server refused while it was coming or going fails earlier if a later one was stored meanwhile: sent again, it
    /// would come after it.
    pub delivery_timeout: Duration,
    /// What is done with messages to a partition that is full. Default: [`OnFull::Wait`]. Topics have no bound unless they
    /// are given one.
    pub on_full: OnFull,
    /// How large a message may be.
    pub limits: Limits,
    /// How often it is asked whether the topic has more partitions by now, and whether it is there: one that was lost with
    /// the data is restored, and to one that was deleted nothing is sent any more. `None` means never. Default: 60 s.
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
            on_full: OnFull::default(),
            limits: Limits::default(),
            refresh: Some(Duration::from_secs(60)),
            partitioner: Arc::new(ByKey::new()),
        }
    }
}

impl ProducerConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        problems.require((1..=10_000).contains(&self.max_batch), || {
            format!("max_batch is {}, 1 to 10000 are allowed", self.max_batch)
        });
        problems.require(self.buffer_memory >= 1 << 10, || {
            format!("buffer_memory is {} bytes, at least 1024 are needed", self.buffer_memory)
        });
        problems.require(self.buffer_memory <= u32::MAX as usize, || {
            format!("buffer_memory is {} bytes, at most 4 GiB are allowed", self.buffer_memory)
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
