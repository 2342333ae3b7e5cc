//! The delayed messages of a topic.

use std::fmt;

use futures_util::future::try_join_all;
use millstream_core::error::Result;
use millstream_core::schedule::{Due, MAX_PAGE, Place, ScheduleId, Scheduled, Waiting};
use millstream_core::sorted::sort_by;
use millstream_core::{Backend, Envelope, Limits, Timestamp, TopicPartition, TopicSpec, wire};

/// The delayed messages of a topic that are not due yet, over all its partitions.
///
/// An id names a message of one partition. If only the id is known, all partitions are queried at once.
#[derive(Clone)]
pub struct DelayedMessages {
    backend: Backend,
    topic: TopicSpec,
}

/// A delayed message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DelayedMessage {
    /// The partition whose log it will be appended to.
    pub topic_partition: TopicPartition,
    /// The id under which it is scheduled.
    pub id: ScheduleId,
    /// Due time by the server's clock.
    pub due: Timestamp,
    /// Key, headers and payload; or why the entry is malformed.
    pub envelope: Result<Envelope, wire::Malformed>,
}

impl DelayedMessages {
    /// Creates a view of the delayed messages of `topic`.
    #[must_use]
    pub fn new(backend: Backend, topic: TopicSpec) -> Self {
        Self { backend, topic }
    }

    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.topic.iter().map(Place::from)
    }

    /// Removes the message with this `id`. True if it was removed, so it will never be read; false if no such message
    /// waits (it was read, or is about to be).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](millstream_core::ErrorKind::InvalidName) if `id` is not a valid id; those of
    /// [`Schedule::cancel`](millstream_core::Schedule::cancel).
    pub async fn cancel(&self, id: impl AsRef<str>) -> Result<bool> {
        let ids = [ScheduleId::new(id)?];
        let places: Vec<_> = self.places().collect();
        let asked = places.iter().map(|place| self.backend.schedule().cancel(place, &ids));
        Ok(try_join_all(asked).await?.concat().contains(&true))
    }

    /// Sets another due time for the message with this `id`: a [`Duration`](std::time::Duration) from now, a [`Timestamp`]
    /// or a [`SystemTime`](std::time::SystemTime). True if the message still waited.
    ///
    /// # Errors
    /// Those of [`cancel`](Self::cancel).
    pub async fn reschedule(&self, id: impl AsRef<str>, due: impl Into<Due>) -> Result<bool> {
        let (ids, due) = ([ScheduleId::new(id)?], due.into());
        let places: Vec<_> = self.places().collect();
        let asked = places.iter().map(|place| self.backend.schedule().reschedule(place, &ids, due));
        Ok(try_join_all(asked).await?.concat().contains(&true))
    }

    /// Makes the message with this `id` due now. True if it still waited.
    ///
    /// # Errors
    /// Those of [`cancel`](Self::cancel).
    pub async fn run_now(&self, id: impl AsRef<str>) -> Result<bool> {
        self.reschedule(id, Due::NOW).await
    }

    /// Returns the message with this `id`. If several partitions have one, the one that is due first.
    ///
    /// # Errors
    /// Those of [`cancel`](Self::cancel).
    pub async fn get(&self, id: impl AsRef<str>) -> Result<Option<DelayedMessage>> {
        let id = ScheduleId::new(id)?;
        let asked = self.topic.iter().map(|topic_partition| {
            let id = &id;
            async move {
                let place = Place::from(topic_partition.clone());
                let found = self.backend.schedule().get(&place, id).await?;
                Ok(found.map(|found| DelayedMessage::new(topic_partition, found)))
            }
        });
        let found: Vec<Option<_>> = try_join_all(asked).await?;
        Ok(found.into_iter().flatten().min_by_key(|message| message.due))
    }

    /// Returns up to `limit` messages (at most 1,000), ordered by due time, starting behind `after`: the last message of
    /// the page before.
    ///
    /// # Errors
    /// Those of [`Schedule::scheduled`](millstream_core::Schedule::scheduled).
    pub async fn list(&self, after: Option<&DelayedMessage>, limit: usize) -> Result<Vec<DelayedMessage>> {
        let limit = limit.min(MAX_PAGE);
        let asked = self.topic.iter().map(|topic_partition| {
            let cursor = after.map(|after| (after.due, after.id.clone()));
            // Messages with the same id and time are ordered by partition, so those of later partitions come after it.
            let twin = after.filter(|after| topic_partition > after.topic_partition);
            async move {
                let place = Place::from(topic_partition.clone());
                let mut page = self.backend.schedule().scheduled(&place, cursor, limit).await?;
                if let Some(after) = twin {
                    let found = self.backend.schedule().get(&place, &after.id).await?;
                    page.extend(found.filter(|found| found.due == after.due));
                }
                let of = |found| DelayedMessage::new(topic_partition.clone(), found);
                Ok(page.into_iter().map(of).collect::<Vec<_>>())
            }
        });
        let mut found = try_join_all(asked).await?.concat();
        sort_by(&mut found, |a, b| a.order().cmp(&b.order()));
        found.truncate(limit);
        Ok(found)
    }

    /// Returns how many messages wait, and how many of them are due and about to be moved.
    ///
    /// # Errors
    /// Those of [`Schedule::waiting`](millstream_core::Schedule::waiting).
    pub async fn count(&self) -> Result<Waiting> {
        let places: Vec<_> = self.places().collect();
        let asked = places.iter().map(|place| self.backend.schedule().waiting(place));
        let each = try_join_all(asked).await?;
        Ok(each.into_iter().fold(Waiting::default(), Waiting::and))
    }
}

impl DelayedMessage {
    fn new(topic_partition: TopicPartition, scheduled: Scheduled) -> Self {
        let envelope = wire::decode_body(&scheduled.fields, &Limits::NONE);
        Self { topic_partition, id: scheduled.id, due: scheduled.due, envelope }
    }

    fn order(&self) -> (Timestamp, &ScheduleId, &TopicPartition) {
        (self.due, &self.id, &self.topic_partition)
    }
}

impl fmt::Debug for DelayedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedMessages").field("topic", &self.topic.name).finish_non_exhaustive()
    }
}
