//! A message as a handler receives it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use millstream_core::trace::TraceContext;
use millstream_core::{Delivered, GroupName, Headers, History, MessageId, TopicPartition};

use crate::consumer::PartitionHandle;

/// A message as a handler receives it: the payload and its metadata.
///
/// It does not deref to its payload: if an order has methods `id()` and `is_cancelled()`, then `order.id()` and
/// `order.is_cancelled()` would silently call those of the delivery.
#[derive(Clone)]
pub struct Delivery<T> {
    /// The decoded payload.
    pub payload: T,
    pub(crate) about: DeliveryMetadata,
}

/// Everything but the payload.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryMetadata {
    pub(crate) handle: Arc<PartitionHandle>,
    pub(crate) id: MessageId,
    pub(crate) origin: MessageId,
    pub(crate) attempt: u32,
    pub(crate) deliveries: u32,
    pub(crate) past: Option<Arc<AttemptHistory>>,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: Headers,
}

/// Errors of earlier attempts. Kept behind a pointer, because most messages have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptHistory {
    /// Error of the last attempt.
    pub(crate) last_error: Option<String>,
    /// Errors of all earlier attempts.
    pub(crate) history: History,
}

impl AttemptHistory {
    /// Creates the history. `None` if there were no failed attempts.
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
    /// Returns the payload alone.
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// Returns the topic and partition that the message was read from.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.about.handle.topic_partition
    }

    /// Returns the group that reads the message.
    pub fn group(&self) -> &GroupName {
        &self.about.handle.group
    }

    /// Returns the id of this delivery's entry. A retry has an id of its own.
    pub fn id(&self) -> MessageId {
        self.about.id
    }

    /// Returns the id of the message in its partition's log, which is the same on every attempt. Use it (with topic and
    /// partition) to recognise messages that were handled before.
    pub fn origin(&self) -> MessageId {
        self.about.origin
    }

    /// Returns the number of this attempt, from 1. It grows when a handler fails, not when a process dies or a handler
    /// snoozes the message.
    pub fn attempt(&self) -> u32 {
        self.about.attempt
    }

    /// Returns how often this entry was read from the server, including this time. 1 means that it is the first time.
    /// More than 1 means that it may have been handled: an owner died or lost its partition while it held the message.
    /// But an owner may also have released it before it began, or may have read it again after a lost reply.
    pub fn deliveries(&self) -> u32 {
        self.about.deliveries
    }

    /// Returns the epoch of the lease under which the message was read. It grows with every change of owner: a store that
    /// refuses smaller epochs is safe from an owner that was suspended and resumes late.
    pub fn epoch(&self) -> u64 {
        self.about.handle.epoch
    }

    /// Returns the error of the last attempt.
    pub fn last_error(&self) -> Option<&str> {
        AttemptHistory::last_error(self.about.past.as_ref())
    }

    /// Returns the errors of earlier attempts, oldest first, each with its time by the server's clock. Only the first and
    /// the newest ones are kept, each cut to one short line. Empty on a first attempt.
    pub fn history(&self) -> &History {
        AttemptHistory::history(self.about.past.as_ref())
    }

    /// Waits until the outcome of the handler would come too late: the lease of the partition was lost, or can no longer
    /// be relied on. Another owner has the message, or will have it soon, so a long operation may stop early.
    ///
    /// Nothing is interrupted automatically: a handler that does not call this runs to its end.
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
        self.about.handle.cancelled.cancelled().await;
    }

    /// Returns whether the outcome of the handler would come too late. See [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.about.handle.cancelled.is_cancelled()
    }

    /// Returns the key.
    pub fn key(&self) -> Option<&Bytes> {
        self.about.key.as_ref()
    }

    /// Returns the headers, for layers that change them. The next attempt begins with those that were sent.
    pub fn headers_mut(&mut self) -> &mut Headers {
        &mut self.about.headers
    }

    /// Returns the headers.
    pub fn headers(&self) -> &Headers {
        &self.about.headers
    }

    /// Returns the span in which the message was sent, if its producer put one into the headers `traceparent` and
    /// `tracestate` (W3C trace context). `None` if there is none, or if it is malformed. The same on every attempt.
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

impl<T> Delivered for Delivery<T> {
    fn topic_partition(&self) -> &TopicPartition {
        self.topic_partition()
    }

    fn group(&self) -> &GroupName {
        self.group()
    }

    fn origin(&self) -> MessageId {
        self.origin()
    }

    fn epoch(&self) -> u64 {
        self.epoch()
    }

    fn key(&self) -> Option<&Bytes> {
        self.key()
    }

    fn headers(&self) -> &Headers {
        self.headers()
    }
}

/// Omits the payload: it may be a secret.
impl<T> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("topic_partition", &self.about.handle.topic_partition)
            .field("group", &self.about.handle.group)
            .field("id", &self.about.id)
            .field("attempt", &self.about.attempt)
            .finish_non_exhaustive()
    }
}
