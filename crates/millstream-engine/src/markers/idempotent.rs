//! Settings of handlers whose operations take effect once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::Problems;
use millstream_core::retention::{REPLAYS_WITHIN, Remembered};
use millstream_core::{RetryPolicy, TopicSpec};

use crate::delivery::Delivery;

type ByFunction = dyn Fn(&Delivery<Bytes>) -> Option<Bytes> + Send + Sync;

/// Source of the id of an operation.
#[derive(Clone)]
pub(crate) enum IdSource {
    Message,
    Header(Arc<str>),
    Function(Arc<ByFunction>),
}

/// What becomes of a message whose operation runs already, for another message or at another instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhileRunning {
    /// It waits in its place until the other has ended, with its permit for a handler: messages behind it wait too. The
    /// default with `Concurrency::Serial` and `PerKey`, since it keeps the order. In a batch
    /// messages never wait: they come back later.
    Wait,
    /// It comes back later, as the same attempt, like a message that a handler snoozes. The default with `Unordered`, and for
    /// batches.
    Later,
    /// It is acknowledged, if the operation runs for *another* message. If that one fails for good, the operation is not
    /// done: it is then among the dead letters. If the operation runs for this same message (its last owner died, or is slow),
    /// it comes back later.
    Skip,
}

/// Settings of an idempotent handler: the operation of each message is done once, as far as a marker on the server can tell.
///
/// Before the handler starts, the operation is *begun*: its marker is a lease, which is extended while the handler runs. When
/// the handler succeeds, the marker becomes *done* and stays for the [retention](Self::retention); only then the message is
/// acknowledged. A message whose operation is done is acknowledged without the handler. When the handler fails, the marker is
/// deleted, and the next attempt runs.
///
/// What stays open: the handler has had its effect, and the process ends before the marker is done. Then the handler runs again,
/// after at most one `lease_ttl`. Only a store that commits the effect and the marker together closes that window.
///
/// ```
/// # use std::time::Duration;
/// use millstream_engine::{Idempotent, WhileRunning};
///
/// let by_id = Idempotent::by_message_id();
/// let by_header = Idempotent::by_header("payment-id").while_running(WhileRunning::Later);
/// let by_key = Idempotent::by(|order| order.key().cloned()).retention(Duration::from_secs(30 * 86_400));
/// # let _ = (by_id, by_header, by_key);
/// ```
#[derive(Clone)]
pub struct Idempotent {
    pub(crate) id: IdSource,
    pub(crate) while_running: Option<WhileRunning>,
    remembered: Remembered,
}

impl Idempotent {
    fn new(id: IdSource) -> Self {
        Self { id, while_running: None, remembered: Remembered::default() }
    }

    /// Identifies the operation by the message: its partition, the id of its first entry, and a checksum of its payload. It is
    /// the same in every attempt and after a replay of dead letters to the group. A message that a producer stored twice is
    /// two operations.
    #[must_use]
    pub fn by_message_id() -> Self {
        Self::new(IdSource::Message)
    }

    /// Identifies the operation by the value of a header, the first one of this name. Messages with the same value, in any
    /// partition of the topic, are one operation. A message without the header, or with an empty value or one above 256 bytes,
    /// becomes a dead letter with the reason `rejected`.
    #[must_use]
    pub fn by_header(name: impl Into<String>) -> Self {
        Self::new(IdSource::Header(name.into().into()))
    }

    /// Identifies the operation by a function of the message, whose payload is not decoded yet. Messages for which it returns
    /// `None` are handled without a marker. An id that is empty or above 256 bytes makes the message a dead letter with the
    /// reason `rejected`; a panic is a failed attempt.
    #[must_use]
    pub fn by<K: Into<Bytes>>(id: impl Fn(&Delivery<Bytes>) -> Option<K> + Send + Sync + 'static) -> Self {
        Self::new(IdSource::Function(Arc::new(move |delivery| id(delivery).map(Into::into))))
    }

    /// Sets what becomes of a message whose operation runs already. Default: it [waits](WhileRunning::Wait), or comes back
    /// [later](WhileRunning::Later) where there is no order to keep.
    #[must_use]
    pub fn while_running(self, choice: WhileRunning) -> Self {
        Self { while_running: Some(choice), ..self }
    }

    /// Sets how long it is known that an operation is done. Default: 7 days. It must cover the longest time in which the same
    /// message can come again, which is checked when the consumer starts. Each marker takes about 230 bytes of the server's
    /// memory for that time.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.remembered.retention = retention;
        self
    }

    /// Sets within which time after its death a dead letter is replayed at the latest, as you operate it: the retention has to
    /// cover it. Zero if dead letters are never replayed.
    ///
    /// Default: the age up to which the topic [keeps](millstream_core::DeadLetterRetention) dead letters, and at most a minute
    /// until they are dropped. Where it keeps them without a limit of time, no retention covers every replay: then a day is
    /// assumed, and the consumer logs a warning when it starts.
    #[must_use]
    pub fn replays_within(mut self, time: Duration) -> Self {
        self.remembered.replays_within = Some(time);
        self
    }

    /// Sets the longest time from the first failure of a message to its last attempt. Default: what the retry policy
    /// [states](RetryPolicy::longest). Needed for a policy of your own that states nothing, and where handlers ask for longer
    /// delays.
    #[must_use]
    pub fn retries_within(mut self, time: Duration) -> Self {
        self.remembered.retries_within = Some(time);
        self
    }

    /// Returns for how long it is known that an operation is done.
    pub(crate) fn kept(&self) -> Duration {
        self.remembered.retention
    }

    /// Checks the retention against the time in which a message of these topics can come again.
    pub fn check<'a>(
        &self,
        retry: &dyn RetryPolicy,
        topics: impl Iterator<Item = &'a TopicSpec> + Clone,
        problems: &mut Problems,
    ) {
        if let IdSource::Header(name) = &self.id {
            problems.require(!name.is_empty(), || "idempotent: the name of the header is empty".into());
        }
        self.remembered.check("idempotent", Some(retry), topics, problems);
    }

    /// Logs a warning if it is only assumed within which time dead letters of this topic are replayed.
    pub fn warn_if_assumed(&self, topic: &TopicSpec) {
        if self.remembered.assumes_replays(topic) {
            tracing::warn!(
                topic = %topic.name,
                retention = ?self.remembered.retention,
                assumed = ?REPLAYS_WITHIN,
                "the topic keeps dead letters without a limit of time: one that is replayed after the retention is handled \
                 again, though its operation is done. Limit their age (dead_letter_retention), or state replays_within"
            );
        }
    }
}

impl fmt::Debug for Idempotent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match &self.id {
            IdSource::Message => "message id".to_owned(),
            IdSource::Header(name) => format!("header {name:?}"),
            IdSource::Function(_) => "function".to_owned(),
        };
        f.debug_struct("Idempotent")
            .field("id", &id)
            .field("while_running", &self.while_running)
            .field("retention", &self.remembered.retention)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::policy::Fixed;

    #[test]
    fn a_retention_that_is_too_short_is_refused() {
        let problem = |settings: &Idempotent| {
            let mut problems = Problems::new("consumer");
            let retry = Fixed::new(Duration::from_secs(60)).attempts(11);
            settings.check(&retry, [].into_iter(), &mut problems);
            problems.finish().err().map(|error| error.problems().join("; "))
        };
        let settings = Idempotent::by_header("id").replays_within(Duration::ZERO);
        assert_eq!(problem(&settings.clone().retention(Duration::from_secs(600))), None);
        let short = problem(&settings.clone().retention(Duration::from_secs(599))).expect("a problem");
        assert!(short.contains("599s") && short.contains("600s"), "{short}");
        assert!(problem(&settings.retries_within(Duration::from_secs(8 * 86_400))).is_some());
        assert!(problem(&Idempotent::by_header("")).is_some());
    }
}
