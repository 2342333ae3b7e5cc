//! The messages of a topic that wait for their time.

use std::fmt;

use futures_util::future::try_join_all;
use millstream_core::error::Result;
use millstream_core::schedule::{Due, MAX_PAGE, Place, ScheduleId, Scheduled, Waiting};
use millstream_core::{Backend, Envelope, Limits, TopicPartition, TopicSpec, wire};

/// The messages of a topic that were sent for later and wait, over all its partitions.
///
/// An id names a message of one partition. Where only the id is known, all partitions are asked at once.
#[derive(Clone)]
pub struct DelayedMessages {
    backend: Backend,
    topic: TopicSpec,
}

/// A message that waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DelayedMessage {
    /// Into whose log it will go.
    pub topic_partition: TopicPartition,
    /// Under which id it waits.
    pub id: ScheduleId,
    /// When it is due: milliseconds since 1970 by the server's clock.
    pub due: u64,
    /// Key, headers and payload; or why it is no message.
    pub envelope: Result<Envelope, wire::Malformed>,
}

impl DelayedMessages {
    /// What waits in `topic`.
    #[must_use]
    pub fn new(backend: Backend, topic: TopicSpec) -> Self {
        Self { backend, topic }
    }

    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.topic.iter().map(Place::from)
    }

    /// Takes the message out that waits under `id`. True if it did, and so will never be read; false if none waits (it
    /// was read, or is about to be).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](millstream_core::ErrorKind::InvalidName) for what is no id; those of
    /// [`Schedule::cancel`](millstream_core::Schedule::cancel).
    pub async fn cancel(&self, id: impl AsRef<str>) -> Result<bool> {
        let ids = [ScheduleId::new(id)?];
        let places: Vec<_> = self.places().collect();
        let asked = places.iter().map(|place| self.backend.schedule.cancel(place, &ids));
        Ok(try_join_all(asked).await?.concat().contains(&true))
    }

    /// Gives the message that waits under `id` another due time: a [`Duration`](std::time::Duration) from now, or a
    /// [`SystemTime`](std::time::SystemTime). True if it still waited.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn reschedule(&self, id: impl AsRef<str>, due: impl Into<Due>) -> Result<bool> {
        let (ids, due) = ([ScheduleId::new(id)?], due.into());
        let places: Vec<_> = self.places().collect();
        let asked = places.iter().map(|place| self.backend.schedule.reschedule(place, &ids, due));
        Ok(try_join_all(asked).await?.concat().contains(&true))
    }

    /// Lets the message that waits under `id` be due now. True if it still waited.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn run_now(&self, id: impl AsRef<str>) -> Result<bool> {
        self.reschedule(id, Due::NOW).await
    }

    /// The message that waits under `id`. If several partitions have one, the one that is due first.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn get(&self, id: impl AsRef<str>) -> Result<Option<DelayedMessage>> {
        let id = ScheduleId::new(id)?;
        let asked = self.topic.iter().map(|topic_partition| {
            let id = &id;
            async move {
                let place = Place::from(topic_partition.clone());
                let found = self.backend.schedule.get(&place, id).await?;
                Ok(found.map(|found| DelayedMessage::new(topic_partition, found)))
            }
        });
        let found: Vec<Option<_>> = try_join_all(asked).await?;
        Ok(found.into_iter().flatten().min_by_key(|message| message.due))
    }

    /// Up to `limit` messages (at most 1,000), those that are due first, behind `after`: the last one of the page before.
    ///
    /// # Errors
    /// Those of [`Schedule::scheduled`](millstream_core::Schedule::scheduled).
    pub async fn list(&self, after: Option<&DelayedMessage>, limit: usize) -> Result<Vec<DelayedMessage>> {
        let limit = limit.min(MAX_PAGE);
        let asked = self.topic.iter().map(|topic_partition| {
            let cursor = after.map(|after| (after.due, after.id.clone()));
            // Of the same id and time, those of later partitions come after it.
            let twin = after.filter(|after| topic_partition > after.topic_partition);
            async move {
                let place = Place::from(topic_partition.clone());
                let mut page = self.backend.schedule.scheduled(&place, cursor, limit).await?;
                if let Some(after) = twin {
                    let found = self.backend.schedule.get(&place, &after.id).await?;
                    page.extend(found.filter(|found| found.due == after.due));
                }
                let of = |found| DelayedMessage::new(topic_partition.clone(), found);
                Ok(page.into_iter().map(of).collect::<Vec<_>>())
            }
        });
        let mut found = try_join_all(asked).await?.concat();
        found.sort_by(|a, b| a.order().cmp(&b.order()));
        found.truncate(limit);
        Ok(found)
    }

    /// How many wait, and how many of them are due and about to be moved.
    ///
    /// # Errors
    /// Those of [`Schedule::waiting`](millstream_core::Schedule::waiting).
    pub async fn count(&self) -> Result<Waiting> {
        let places: Vec<_> = self.places().collect();
        let asked = places.iter().map(|place| self.backend.schedule.waiting(place));
        let each = try_join_all(asked).await?;
        Ok(each.into_iter().fold(Waiting::default(), |sum, one| Waiting {
            total: sum.total + one.total,
            overdue: sum.overdue + one.overdue,
        }))
    }
}

impl DelayedMessage {
    fn new(topic_partition: TopicPartition, scheduled: Scheduled) -> Self {
        let envelope = wire::decode_body(&scheduled.fields, &Limits::default());
        Self { topic_partition, id: scheduled.id, due: scheduled.due, envelope }
    }

    fn order(&self) -> (u64, &ScheduleId, &TopicPartition) {
        (self.due, &self.id, &self.topic_partition)
    }
}

impl fmt::Debug for DelayedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedMessages").field("topic", &self.topic.name).finish_non_exhaustive()
    }
}
