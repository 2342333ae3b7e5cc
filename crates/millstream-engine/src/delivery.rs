//! A message as a handler receives it.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::trace::TraceContext;
use millstream_core::{BatchEvent, Delivered, GroupName, Headers, History, MessageId, TopicPartition};

pub use crate::cancelled::Cancelled;
use crate::requests::Reports;
pub use crate::scope::{CancelReason, DeliveryScope, Right, TaskFacts};
use crate::steps::Steps;

/// A message as a handler receives it: the payload and its metadata.
///
/// It does not deref to its payload: if an order has methods `id()` and `is_cancelled()`, then `order.id()` and
/// `order.is_cancelled()` would silently call those of the delivery.
#[derive(Clone)]
pub struct Delivery<T> {
    /// The decoded payload.
    pub payload: T,
    #[doc(hidden)]
    pub about: DeliveryMetadata,
}

/// Everything but the payload.
#[derive(Clone, Debug)]
pub struct DeliveryMetadata {
    /// Where it was read, and the right under which it is handled.
    pub scope: Arc<DeliveryScope>,
    /// Id of the entry of this delivery; zero for a task.
    pub id: MessageId,
    /// Id of the message in its partition's log; zero for a task.
    pub origin: MessageId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// How often it was handed out, from 1.
    pub deliveries: u32,
    /// Errors of earlier attempts, if any failed.
    pub past: Option<Arc<AttemptHistory>>,
    /// The key.
    pub key: Option<Bytes>,
    /// The headers.
    pub headers: Headers,
    /// What its handler says of its work, if the message asks for its result.
    pub reports: Option<Reports>,
}

/// Errors of earlier attempts. Kept behind a pointer, because most messages have none.
#[derive(Clone, Debug, Default)]
pub struct AttemptHistory {
    /// Error of the last attempt.
    pub last_error: Option<String>,
    /// Errors of all earlier attempts.
    pub history: History,
}

impl AttemptHistory {
    /// Creates the history. `None` if there were no failed attempts.
    pub fn of(last_error: Option<String>, history: History) -> Option<Arc<Self>> {
        let any = last_error.is_some() || !history.is_empty();
        any.then(|| Arc::new(Self { last_error, history }))
    }

    /// Returns the error of the last attempt.
    #[must_use]
    pub fn last_error(past: Option<&Arc<Self>>) -> Option<&str> {
        past?.last_error.as_deref()
    }

    /// Returns the errors of all earlier attempts.
    #[must_use]
    pub fn history(past: Option<&Arc<Self>>) -> &History {
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
        &self.about.scope.topic_partition
    }

    /// Returns the group that reads the message.
    pub fn group(&self) -> &GroupName {
        &self.about.scope.group
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

    /// Returns what names the message in its topic or queue, the same on every attempt: its partition and [`origin`](Self::origin), or
    /// the id of a task.
    pub fn message_id(&self) -> String {
        self.about.message_id()
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
        self.about.scope.epoch
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

    /// Waits until the handler may stop early, for one of three [reasons](Self::cancel_reason):
    ///
    /// - The outcome would come too late: the lease of the partition, or units of limits, were lost, or can no longer be relied on. Another owner has the message, or
    ///   will have it soon.
    /// - A newer message waits for its units, and the limit says that it [cancels](crate::Limit::or_cancel) this one.
    /// - The message was cancelled from outside, as by `Millstream::cancel`.
    ///
    /// Nothing is interrupted automatically: a handler that does not call this runs to its end.
    ///
    /// ```
    /// # use millstream_engine::Delivery;
    /// # async fn transcode(_: &str) -> Result<(), String> { Ok(()) }
    /// async fn handle(film: Delivery<String>) -> Result<(), String> {
    ///     tokio::select! {
    ///         done = transcode(&film.payload) => done,
    ///         () = film.cancelled() => Err("no longer ours".into()),
    ///     }
    /// }
    /// ```
    pub async fn cancelled(&self) {
        self.about.scope.interrupted(self.about.lasting_id(), &self.about.headers).await;
    }

    /// Returns whether the handler may stop early. See [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Returns why the handler may stop early; `None` if it should go on. Of several, [`Lost`](CancelReason::Lost).
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.about.scope.cancel_reason(self.about.lasting_id(), &self.about.headers)
    }

    /// Lets no message of any process begin for this time, at least, that comes under a rate limit with a key of this one: what an API means
    /// by HTTP 429 with `Retry-After`. At most 31 days; no time opens the keys again. Quotas stay open. Nothing happens if the message came
    /// under no rate limit.
    ///
    /// ```
    /// # use millstream_engine::Delivery;
    /// # use millstream_core::Outcome;
    /// # use std::time::Duration;
    /// # async fn call(_: &str) -> Result<(), Duration> { Ok(()) }
    /// async fn handle(mail: Delivery<String>) -> Outcome {
    ///     match call(&mail.payload).await {
    ///         Ok(()) => Outcome::Ack,
    ///         Err(retry_after) => {
    ///             mail.close_rates(retry_after);
    ///             Outcome::Snooze(retry_after)
    ///         }
    ///     }
    /// }
    /// ```
    pub fn close_rates(&self, time: Duration) {
        self.about.scope.close_rates(time);
    }

    /// Says how many tokens of this rate limit the message took in fact, such as the tokens of a language model: the
    /// [cost](crate::Limit::cost) was an estimate. The difference to what was charged is charged too, or given back. The last call counts.
    /// False if it came under no rate limit of this name.
    pub fn correct_cost(&self, limit: &str, tokens: u32) -> bool {
        self.about.scope.correct_cost(limit, tokens)
    }

    /// Says how much of the work is done, from 0 to 1, and what is done now: for whoever sent the message and
    /// [follows](crate::requests::Follow) it. An empty text changes the fraction alone; any other is a line, of which the newest
    /// [100](millstream_core::progress::MAX_LINES) stay.
    ///
    /// It does not wait: what is said is stored at once, then once in 250 ms, and before the message is settled. A former owner stores
    /// nothing. Nothing is stored either if the sender does not ask for the [result](millstream_core::results), or if this consumer is not there
    /// to reply: its handler returns no [`Reply`](millstream_core::Reply), and `replies(true)` is not set.
    ///
    /// ```
    /// # use millstream_engine::Delivery;
    /// # async fn import(_: &str) -> Result<(), String> { Ok(()) }
    /// async fn handle(pages: Delivery<Vec<String>>) -> Result<(), String> {
    ///     for (at, page) in pages.payload.iter().enumerate() {
    ///         pages.progress(at as f64 / pages.payload.len() as f64, &format!("page {}", at + 1));
    ///         import(page).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn progress(&self, fraction: f64, text: &str) {
        self.about.say(Some(fraction), text);
    }

    /// Adds a line to the [progress](Self::progress), without another fraction.
    pub fn log(&self, text: &str) {
        self.about.say(None, text);
    }

    /// Returns the [steps](Steps) of the message: what its handler has done in earlier runs, and waits for days that hold no slot. Where there are none, as for a dead
    /// letter, each step fails.
    ///
    /// ```
    /// # use millstream_engine::Delivery;
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// # async fn charge(_: u64) -> Result<String, BoxError> { Ok(String::new()) }
    /// # async fn ship(_: &str) -> Result<(), BoxError> { Ok(()) }
    /// async fn handle(cents: Delivery<u64>) -> Result<(), BoxError> {
    ///     let steps = cents.steps();
    ///     let receipt = steps.step("charge", || charge(cents.payload)).await?;
    ///     steps.step("ship", || ship(&receipt)).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn steps(&self) -> Steps {
        self.about.steps()
    }

    /// Returns the key.
    pub fn key(&self) -> Option<&Bytes> {
        self.about.key.as_ref()
    }

    /// Returns the headers, for layers that change them. The next attempt begins with those that were sent.
    pub fn headers_mut(&mut self) -> &mut Headers {
        &mut self.about.headers
    }

    /// Returns the event for which a [batch](millstream_core::batches) has sent this message; `None` for any other message.
    pub fn batch_event(&self) -> Option<BatchEvent> {
        BatchEvent::of(&self.about.headers)
    }

    /// Returns the headers.
    pub fn headers(&self) -> &Headers {
        &self.about.headers
    }

    /// Returns the span in which the message was sent, if its producer put one into the headers `traceparent` and
    /// `tracestate` (W3C trace context). `None` if there is none, or if it is malformed. The same on every attempt.
    ///
    /// ```
    /// # use millstream_engine::Delivery;
    /// fn trace_id(order: &Delivery<u64>) -> Option<String> {
    ///     let sent = order.trace().filter(|sent| sent.is_sampled())?;
    ///     Some(sent.trace_id.iter().map(|byte| format!("{byte:02x}")).collect())
    /// }
    /// ```
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(&self.about.headers)
    }
}

/// What a handler is called with: a [`Delivery`], or the task of a delay queue.
pub trait Deliverable: Sized + Send + 'static {
    /// Type of the payload.
    type Payload: Send + 'static;

    /// Converts a delivery. `None` if it is none of this kind.
    fn of(delivery: Delivery<Self::Payload>) -> Option<Self>;

    /// Returns the delivery.
    fn into_delivery(self) -> Delivery<Self::Payload>;
}

impl<T: Send + 'static> Deliverable for Delivery<T> {
    type Payload = T;

    fn of(delivery: Self) -> Option<Self> {
        Some(delivery)
    }

    fn into_delivery(self) -> Self {
        self
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

    fn message_id(&self) -> String {
        self.about.message_id()
    }
}

impl DeliveryMetadata {
    /// Returns its steps.
    #[must_use]
    pub fn steps(&self) -> Steps {
        Steps::of(&self.scope, self.origin, &self.headers)
    }

    /// Returns the id that is the same on every attempt: of the message in its partition's log, or of the task.
    #[must_use]
    pub fn lasting_id(&self) -> &(dyn fmt::Display + Sync) {
        match self.scope.task() {
            Some(task) => &task.id,
            None => &self.origin,
        }
    }

    /// Returns the name of the group; `None` for a task.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.scope.task().is_none().then(|| self.scope.group.as_str())
    }

    /// Returns what names the message in its topic or queue: see [`Delivered::message_id`].
    #[must_use]
    pub fn message_id(&self) -> String {
        match self.scope.task() {
            Some(task) => task.id.to_string(),
            None => format!("{}-{}", self.scope.topic_partition.partition, self.origin),
        }
    }

    /// Says something of the work on it, if it asks for its result. Without a fraction the last one counts.
    pub fn say(&self, fraction: Option<f64>, text: &str) {
        if let Some(reports) = &self.reports {
            reports.say(fraction, text);
        }
    }

    /// Whether the message may have been handled before: it is a later attempt or a replay, or was handed out before.
    #[must_use]
    pub fn may_have_been_handled(&self) -> bool {
        let again = self.attempt > 1 || self.deliveries > 1 || self.id != self.origin;
        // A task whose handler was dropped by a shutdown comes back as the same attempt, with an error in its history.
        again
            || (self.scope.task().is_some()
                && self.past.as_ref().is_some_and(|past| !past.history.is_empty()))
    }
}

/// Omits the payload: it may be a secret.
impl<T> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("topic_partition", &self.about.scope.topic_partition)
            .field("group", &self.about.scope.group)
            .field("id", &self.about.id)
            .field("attempt", &self.about.attempt)
            .finish_non_exhaustive()
    }
}
