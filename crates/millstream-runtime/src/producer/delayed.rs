//! A message that is sent now and comes later.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId};
use millstream_core::{Partition, Result};
use uuid::Uuid;

use super::Producer;
use super::record::{Record, SendFuture};

/// A value to be sent for later: `Record::new(&reminder).key("k").delay(Duration::from_secs(60))`.
#[derive(Debug)]
pub struct DelayedRecord<'a, T> {
    pub(super) record: Record<'a, T>,
    pub(super) due: Due,
    pub(super) id: Option<String>,
    pub(super) on_conflict: OnConflict,
}

impl<'a, T> Record<'a, T> {
    /// To be read not before this time has passed, by the server's clock. More than 100 years are 100 years.
    #[must_use]
    pub fn delay(self, delay: Duration) -> DelayedRecord<'a, T> {
        DelayedRecord::new(self, Due::In(delay))
    }

    /// To be read not before this time, by the server's clock. One that is past is due at once.
    #[must_use]
    pub fn at(self, time: SystemTime) -> DelayedRecord<'a, T> {
        DelayedRecord::new(self, Due::from(time))
    }
}

impl<'a, T> DelayedRecord<'a, T> {
    fn new(record: Record<'a, T>, due: Due) -> Self {
        Self { record, due, id: None, on_conflict: OnConflict::Keep }
    }

    /// An id of one's own: 1 to 256 bytes without control characters. While a message waits under it in the same
    /// partition, another one [is kept out](Self::replace). With a key, that is the partition of the key; without, the
    /// one that the id names. Default: a random one.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Takes the place of a message that waits under this id, with its time. Default: the one that waits stays.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.on_conflict = OnConflict::Replace;
        self
    }

    /// Fails with [`ErrorKind::Exists`](millstream_core::ErrorKind::Exists) if a message waits under this id. Default:
    /// the one that waits stays, and this one counts as sent.
    #[must_use]
    pub fn reject(mut self) -> Self {
        self.on_conflict = OnConflict::Reject;
        self
    }

    pub(super) fn schedule_id(&self) -> Result<ScheduleId> {
        match &self.id {
            Some(id) => ScheduleId::new(id),
            None => ScheduleId::new(short(Uuid::new_v4())),
        }
    }
}

/// 122 random bits in 22 characters: an id stands twice on the server, and there may be millions.
fn short(uuid: Uuid) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut rest = uuid.as_u128();
    let mut id = String::with_capacity(22);
    for _ in 0..22 {
        id.push(char::from(DIGITS[(rest & 63) as usize]));
        rest >>= 6;
    }
    id
}

/// A message that was scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delayed {
    /// Into the log of which partition it will go.
    pub partition: Partition,
    /// The id under which it waits there.
    pub id: ScheduleId,
    /// Whether it is new there.
    pub placed: Placed,
}

/// A send for later; it starts when it is awaited.
#[must_use = "a send does nothing until it is awaited"]
#[derive(Debug)]
pub struct SendDelayed<'a, T: 'static> {
    producer: &'a Producer<T>,
    record: DelayedRecord<'a, T>,
}

impl<'a, T> SendFuture<'a, T> {
    /// To be read not before this time has passed, by the server's clock: by all groups. It is stored when this is
    /// awaited.
    pub fn delay(self, delay: Duration) -> SendDelayed<'a, T> {
        SendDelayed { producer: self.producer, record: self.record.delay(delay) }
    }

    /// To be read not before this time, by the server's clock. One that is past is due at once.
    pub fn at(self, time: SystemTime) -> SendDelayed<'a, T> {
        SendDelayed { producer: self.producer, record: self.record.at(time) }
    }
}

impl<T> SendDelayed<'_, T> {
    /// The key: messages of one key go to one partition.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.record.record = self.record.record.key(key);
        self
    }

    /// One more header.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.record.record = self.record.record.header(name, value);
        self
    }

    /// This partition, whatever the key.
    pub fn partition(mut self, partition: u32) -> Self {
        self.record.record = self.record.record.partition(partition);
        self
    }

    /// See [`DelayedRecord::id`].
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.record = self.record.id(id);
        self
    }

    /// See [`DelayedRecord::replace`].
    pub fn replace(mut self) -> Self {
        self.record = self.record.replace();
        self
    }

    /// See [`DelayedRecord::reject`].
    pub fn reject(mut self) -> Self {
        self.record = self.record.reject();
        self
    }
}

impl<'a, T: Sync> IntoFuture for SendDelayed<'a, T> {
    type Output = Result<Delayed>;
    type IntoFuture = BoxFuture<'a, Result<Delayed>>;

    fn into_future(self) -> Self::IntoFuture {
        let encoded = self.producer.encode_delayed(self.record);
        let batcher = self.producer.inner.delayed.clone();
        Box::pin(async move {
            let (partition, scheduling) = encoded?;
            let id = scheduling.id.clone();
            let placed = batcher.send(scheduling).await?;
            Ok(Delayed { partition, id, placed })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_differ() {
        let ids: std::collections::HashSet<_> = (0..1_000).map(|_| short(Uuid::new_v4())).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|id| id.len() == 22 && ScheduleId::new(id).is_ok()));
        assert_ne!(short(Uuid::from_u128(1 << 127)), short(Uuid::nil()), "no bit is left out");
    }
}
