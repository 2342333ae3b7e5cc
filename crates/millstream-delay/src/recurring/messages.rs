//! Recurring messages of a topic.

use std::fmt;

use millstream_core::error::Result;
use millstream_core::{Backend, Codec, Limits, Place, TopicSpec};

use super::{Home, Recur, RecurringEntry, Spread};

/// Recurring messages of a topic, scheduled again and again. Cloning is cheap.
///
/// Each occurrence is an ordinary delayed message, called `<id>@<milliseconds since 1970>`: when it is due, it is
/// appended to the log of its partition, and every group receives it. The promoter of the partition fires it: a
/// consumer that owns the partition, or a [`DelayedPromoter`](crate::DelayedPromoter). Each occurrence is fired once,
/// however many promoters run.
///
/// A recurring message is stored at the partition of its key, or of its id if it has no key. The partition is chosen by
/// the hash of [`ByKey`](millstream_core::partitioner::ByKey), whatever partitioner producers use. A lookup by id
/// queries all partitions concurrently, so it finds the message at any of them.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_core::{Backend, Result, Topic, TopicSpec};
/// # use millstream_delay::{Missed, RecurringMessages};
/// # async fn example(backend: Backend, reports: Topic<String>, stored: TopicSpec) -> Result<()> {
/// let recurring = RecurringMessages::new(backend, stored, reports.codec());
/// let report = "sales".to_owned();
/// recurring.id("daily").every(Duration::from_secs(86_400)).missed(Missed::Once).payload(&report).key("eu").await?;
/// recurring.id("daily").pause().await?;
/// # Ok(()) }
/// ```
pub struct RecurringMessages<T: 'static> {
    backend: Backend,
    topic: TopicSpec,
    codec: &'static dyn Codec<T>,
    limits: Limits,
}

impl<T: 'static> RecurringMessages<T> {
    /// Returns the recurring messages of `topic`, which must exist, encoded by `codec`.
    #[must_use]
    pub fn new(backend: Backend, topic: TopicSpec, codec: &'static dyn Codec<T>) -> Self {
        Self { backend, topic, codec, limits: Limits::default() }
    }

    /// Sets the size limits of a message. Default: 1 MiB of payload.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns a builder for the recurring message `id` (at most 235 bytes without control characters): configure and
    /// await it to store it, or call an operation on the stored one.
    pub fn id(&self, id: impl Into<String>) -> Recur<'_, T> {
        Recur::new(self.home(), id.into())
    }

    /// Lists all recurring messages, partition by partition, by id within each.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) if the topic no longer exists; those of
    /// [`Recurring::recurrences`](millstream_core::Recurring::recurrences).
    pub async fn list(&self) -> Result<Vec<RecurringEntry>> {
        self.home().list().await
    }

    /// Lists the recurring messages of each partition by id, or returns why the partition cannot be read.
    ///
    /// # Errors
    /// As [`list`](Self::list), without those of single partitions.
    pub async fn list_by_place(&self) -> Result<Vec<(Place, Result<Vec<RecurringEntry>>)>> {
        self.home().list_by_place().await
    }

    fn home(&self) -> Home<'_, T> {
        let Self { backend, topic, codec, limits } = self;
        Home { backend, codec: *codec, limits, spread: Spread::Partitions(topic) }
    }
}

impl<T: 'static> Clone for RecurringMessages<T> {
    fn clone(&self) -> Self {
        let Self { backend, topic, codec, limits } = self;
        Self { backend: backend.clone(), topic: topic.clone(), codec: *codec, limits: *limits }
    }
}

impl<T> fmt::Debug for RecurringMessages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecurringMessages").field("topic", &self.topic.name).finish_non_exhaustive()
    }
}
