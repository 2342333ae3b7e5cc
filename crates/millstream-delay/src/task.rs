//! A task, as passed to a handler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::{
    Delivered, GroupName, Headers, History, MessageId, ScheduleId, Shard, Timestamp, TopicPartition,
};
use millstream_engine::Steps;
use millstream_engine::delivery::{
    AttemptHistory, CancelReason, Deliverable, Delivery, DeliveryMetadata, TaskFacts,
};

/// A task, as passed to a handler: the payload and its metadata.
///
/// It does not deref to its payload, because its own methods would hide the payload's methods of the same name.
#[derive(Clone)]
pub struct Task<T> {
    /// The payload that was scheduled.
    pub payload: T,
    about: DeliveryMetadata,
    facts: Arc<TaskFacts>,
}

impl<T: Send + 'static> Deliverable for Task<T> {
    type Payload = T;

    fn of(delivery: Delivery<T>) -> Option<Self> {
        let facts = delivery.about.scope.task()?.clone();
        let Delivery { payload, about } = delivery;
        Some(Self { payload, about, facts })
    }

    fn into_delivery(self) -> Delivery<T> {
        Delivery { payload: self.payload, about: self.about }
    }
}

impl<T> Task<T> {
    /// Returns the payload.
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// Returns the id. It is the same on every attempt: use it to recognise work that is done already.
    pub fn id(&self) -> &ScheduleId {
        &self.facts.id
    }

    /// Returns the shard of the task.
    pub fn shard(&self) -> &Shard {
        &self.facts.shard
    }

    /// Returns the due time, by the server's clock; for a retry, the due time of the retry.
    pub fn due(&self) -> Timestamp {
        self.facts.due
    }

    /// Returns the time between the due time and the claim, by the server's clock.
    pub fn late(&self) -> Duration {
        self.facts.late
    }

    /// Returns the number of this attempt, from 1. A failed attempt increases it, a worker that died does not.
    pub fn attempt(&self) -> u32 {
        self.about.attempt
    }

    /// Returns how many workers died during this attempt, or stalled for longer than the hold time. If it is above 0,
    /// the work may have been done already.
    pub fn crashes(&self) -> u32 {
        self.facts.crashes
    }

    /// Returns the error of the last attempt.
    pub fn last_error(&self) -> Option<&str> {
        AttemptHistory::last_error(self.about.past.as_ref())
    }

    /// Returns the errors of the earlier attempts: the first one and the newest ones.
    pub fn history(&self) -> &History {
        AttemptHistory::history(self.about.past.as_ref())
    }

    /// Returns the key.
    pub fn key(&self) -> Option<&Bytes> {
        self.about.key.as_ref()
    }

    /// Returns the headers.
    pub fn headers(&self) -> &Headers {
        &self.about.headers
    }

    /// Waits until the handler may stop early, for one of two [reasons](Self::cancel_reason):
    ///
    /// - This worker no longer certainly holds the task, or its units of limits: they could not be renewed within the hold time, or another
    ///   worker has the task. Its outcome is still sent to the server if the units are its own, and is accepted if no other worker has the
    ///   task.
    /// - The task was cancelled from outside, as by `Admin::cancel_task`.
    ///
    /// The handler is not interrupted: one that does not check this runs to its end.
    ///
    /// ```
    /// # use millstream_delay::Task;
    /// # async fn transcode(_: &str) -> Result<(), String> { Ok(()) }
    /// async fn handle(film: Task<String>) -> Result<(), String> {
    ///     tokio::select! {
    ///         done = transcode(&film.payload) => done,
    ///         () = film.cancelled() => Err("no longer wanted here".into()),
    ///     }
    /// }
    /// ```
    pub async fn cancelled(&self) {
        self.about.scope.interrupted(self.id(), self.headers()).await;
    }

    /// Returns whether the handler may stop early. See [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Returns why the handler may stop early; `None` if it should go on. Of both, [`Lost`](CancelReason::Lost).
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.about.scope.cancel_reason(self.id(), self.headers())
    }

    /// Says how much of the work is done, from 0 to 1, and what is done now, for whoever scheduled the task and asks for its result: see
    /// [`Delivery::progress`].
    pub fn progress(&self, fraction: f64, text: &str) {
        self.about.say(Some(fraction), text);
    }

    /// Adds a line to the [progress](Self::progress), without another fraction.
    pub fn log(&self, text: &str) {
        self.about.say(None, text);
    }

    /// Returns the [steps](Steps) of the task: see [`Delivery::steps`]. The steps of a task that is scheduled again under its id are its own.
    pub fn steps(&self) -> Steps {
        self.about.steps()
    }

    /// Lets no message or task of any process begin for this time that comes under a rate limit with a key of this one: see
    /// [`Delivery::close_rates`].
    pub fn close_rates(&self, time: Duration) {
        self.about.scope.close_rates(time);
    }

    /// Says how many tokens of this rate limit the task took in fact: see [`Delivery::correct_cost`].
    pub fn correct_cost(&self, limit: &str, tokens: u32) -> bool {
        self.about.scope.correct_cost(limit, tokens)
    }
}

/// For stores that commit effects and markers together: the queue's name is in the place of a topic, and the id of the task is what names
/// it.
impl<T> Delivered for Task<T> {
    fn topic_partition(&self) -> &TopicPartition {
        &self.about.scope.topic_partition
    }

    fn group(&self) -> &GroupName {
        &self.about.scope.group
    }

    fn origin(&self) -> MessageId {
        self.about.origin
    }

    fn epoch(&self) -> u64 {
        self.about.scope.epoch
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

/// Leaves out the payload, which may be a secret.
impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.facts.id)
            .field("shard", &self.facts.shard)
            .field("attempt", &self.about.attempt)
            .finish_non_exhaustive()
    }
}
