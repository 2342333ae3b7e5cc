//! What recurs in a topic.

use std::fmt;

use millstream_core::error::Result;
use millstream_core::{Backend, Codec, Limits, TopicSpec};

use super::{Home, Recur, RecurringEntry, Spread};

/// What recurs in a topic: messages that are scheduled again and again. Cloning is cheap.
///
/// Each occurrence is an ordinary delayed message, called `<id>@<milliseconds since 1970>`: it goes into the log of its
/// partition when it is due, and from there to every group. Whoever promotes the partition fires it: a consumer that
/// owns it, or a [`DelayedPromoter`](crate::DelayedPromoter). However many there are, each occurrence is fired once.
///
/// Something that recurs is kept at the partition of its key (by the hash of
/// [`ByKey`](millstream_core::partitioner::ByKey), whatever partitioner producers use), or without a key at the one of
/// its id. By its id it is found wherever it is: all partitions are asked, at once.
///
/// ```
/// # use millstream_core::{Backend, Result, Topic, TopicSpec};
/// # use millstream_delay::{Missed, RecurringMessages};
/// # async fn example(backend: Backend, reports: Topic<String>, stored: TopicSpec) -> Result<()> {
/// let recurring = RecurringMessages::new(backend, stored, reports.codec());
/// let report = "sales".to_owned();
/// recurring.id("daily").cron("0 9 * * *", "Europe/Zurich").missed(Missed::Once).payload(&report).key("eu").await?;
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
    /// What recurs in `topic`, which must be there, as `codec` writes it.
    #[must_use]
    pub fn new(backend: Backend, topic: TopicSpec, codec: &'static dyn Codec<T>) -> Self {
        Self { backend, topic, codec, limits: Limits::default() }
    }

    /// How large a message may be. Default: 1 MiB of payload.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Something that recurs under `id` (at most 235 bytes without control characters): set it up and await it, or tell
    /// what to do with what is there.
    pub fn id(&self, id: impl Into<String>) -> Recur<'_, T> {
        Recur::new(self.home(), id.into())
    }

    /// All that recurs, partition by partition, by id.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) if the topic is not there any more; those of
    /// [`Recurring::recurrences`](millstream_core::Recurring::recurrences).
    pub async fn list(&self) -> Result<Vec<RecurringEntry>> {
        self.home().list().await
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
