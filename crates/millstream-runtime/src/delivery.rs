//! A message as a handler gets it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use millstream_core::trace::TraceContext;
use millstream_core::{GroupName, Headers, History, MessageId, TopicPartition};

use crate::consumer::PartitionHandle;

/// A message as a handler gets it: the payload, and where it comes from.
///
/// It does not deref to its payload: `order.id()` and `order.is_cancelled()` would then be the delivery's, silently,
/// where the order has methods of these names.
#[derive(Clone)]
pub struct Delivery<T> {
    /// What was sent.
    pub payload: T,
    pub(crate) about: DeliveryMetadata,
}

/// Everything but the payload.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryMetadata {
    pub(crate) owned: Arc<PartitionHandle>,
    pub(crate) id: MessageId,
    pub(crate) origin: MessageId,
    pub(crate) attempt: u32,
    pub(crate) deliveries: u32,
    pub(crate) past: Option<Arc<AttemptHistory>>,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: Headers,
}

/// What is known of earlier attempts. Most messages have none, so it stands apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptHistory {
    /// What the last attempt failed with.
    pub(crate) last_error: Option<String>,
    /// What the attempts before failed with.
    pub(crate) history: History,
}

impl AttemptHistory {
    /// `None` if there is nothing to tell.
    pub(crate) fn of(last_error: Option<String>, history: History) -> Option<Arc<Self>> {
        let any = last_error.is_some() || !history.is_empty();
        any.then(|| Arc::new(Self { last_error, history }))
    }

    pub(crate) fn last_error(past: Option<&Arc<Self>>) -> Option<&str> {
        past?.last_error.as_deref()
    }

    pub(crate) fn history(past: Option<&Arc<Self>>) -> &History {
        static NONE: LazyLock<History> = LazyLock::new(History::default);
        past.map_or(&NONE, |past| &past.history)
    }
}

impl<T> Delivery<T> {
    /// The payload alone.
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// The topic and partition it was read from.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.about.owned.topic_partition
    }

    /// The group that reads it.
    pub fn group(&self) -> &GroupName {
        &self.about.owned.group
    }

    /// The id of this delivery's entry. A retry has an id of its own.
    pub fn id(&self) -> MessageId {
        self.about.id
    }

    /// The id of the message in its partition's log: the same on every attempt. Use it (with topic and partition)
    /// to recognise what was handled before.
    pub fn origin(&self) -> MessageId {
        self.about.origin
    }

    /// The number of this attempt, from 1. It grows when a handler failed, not when a process died or a handler put the
    /// message off.
    pub fn attempt(&self) -> u32 {
        self.about.attempt
    }

    /// How often this entry was read from the server, this time included. 1 means that nobody had it before. More
    /// than 1 means that it may have been handled: an owner died or lost its partition with the message in hand; or
    /// gave it back before it had begun it, or read it again after a lost reply.
    pub fn deliveries(&self) -> u32 {
        self.about.deliveries
    }

    /// The epoch of the lease under which it was read. It grows with every change of owner: a store that
    /// refuses smaller epochs is safe from a paused owner that wakes up late.
    pub fn epoch(&self) -> u64 {
        self.about.owned.epoch
    }

    /// What the last attempt failed with.
    pub fn last_error(&self) -> Option<&str> {
        AttemptHistory::last_error(self.about.past.as_ref())
    }

    /// What earlier attempts failed with, oldest first, and when by the server's clock: the first and the newest of them,
    /// each in one short line. Empty on a first attempt.
    pub fn history(&self) -> &History {
        AttemptHistory::history(self.about.past.as_ref())
    }

    /// Ready when what the handler says comes too late: the lease of the partition was lost, or can no longer be relied
    /// on. The message is (or soon will be) in the hands of another owner, so whatever takes long may end early.
    ///
    /// Nothing is cut short by itself: a handler that does not ask runs to its end.
    ///
    /// ```
    /// # use millstream_runtime::Delivery;
    /// # async fn transcode(_: &str) -> Result<(), String> { Ok(()) }
    /// async fn handle(film: Delivery<String>) -> Result<(), String> {
    ///     tokio::select! {
    ///         done = transcode(&film.payload) => done,
    ///         () = film.cancelled() => Err("no longer ours".into()),
    ///     }
    /// }
    /// ```
    pub async fn cancelled(&self) {
        self.about.owned.cancelled.cancelled().await;
    }

    /// Whether what the handler says would come too late. See [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.about.owned.cancelled.is_cancelled()
    }

    /// The key.
    pub fn key(&self) -> Option<&Bytes> {
        self.about.key.as_ref()
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.about.headers
    }

    /// The span that it was sent in, if its producer put one into the headers `traceparent` and `tracestate` (W3C trace
    /// context); `None` without one, or if it makes no sense. The same on every attempt.
    ///
    /// ```
    /// # use millstream_runtime::Delivery;
    /// fn trace_id(order: &Delivery<u64>) -> Option<String> {
    ///     let sent = order.trace().filter(|sent| sent.is_sampled())?;
    ///     Some(sent.trace_id.iter().map(|byte| format!("{byte:02x}")).collect())
    /// }
    /// ```
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(&self.about.headers)
    }
}

/// Without the payload: it may be a secret.
impl<T> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("topic_partition", &self.about.owned.topic_partition)
            .field("group", &self.about.owned.group)
            .field("id", &self.about.id)
            .field("attempt", &self.about.attempt)
            .finish_non_exhaustive()
    }
}
