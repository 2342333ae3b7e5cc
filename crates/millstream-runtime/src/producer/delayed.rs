//! Sends of delayed messages.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling};
use millstream_core::span::OperationKind;
use millstream_core::{Envelope, Partition, Result, Timestamp};
use uuid::Uuid;

use super::layers::Encoded;
use super::record::{HasEnvelope, Record, SendFuture, noted};
use super::{Inner, Producer};
use crate::spans;

/// Value to be sent with a delay: `Record::new(&reminder).key("k").delay(Duration::from_secs(60))`.
#[derive(Debug)]
pub struct DelayedRecord<'a, T> {
    pub(super) record: Record<'a, T>,
    pub(super) due: Due,
    pub(super) id: Option<String>,
    pub(super) on_conflict: OnConflict,
}

impl<'a, T> Record<'a, T> {
    /// Delays the message by this time, by the server's clock. A delay of more than 100 years counts as 100 years.
    #[must_use]
    pub fn delay(self, delay: Duration) -> DelayedRecord<'a, T> {
        DelayedRecord::new(self, Due::In(delay))
    }

    /// Sets the due time, by the server's clock: a [`Timestamp`], or a [`SystemTime`](std::time::SystemTime), which is
    /// rounded up to a whole millisecond. A time in the past is due immediately.
    #[must_use]
    pub fn at(self, time: impl Into<Timestamp>) -> DelayedRecord<'a, T> {
        DelayedRecord::new(self, Due::At(time.into()))
    }
}

impl<T> HasEnvelope for DelayedRecord<'_, T> {
    fn envelope_mut(&mut self) -> &mut Envelope {
        self.record.envelope_mut()
    }
}

impl<'a, T> DelayedRecord<'a, T> {
    fn new(record: Record<'a, T>, due: Due) -> Self {
        Self { record, due, id: None, on_conflict: OnConflict::Keep }
    }

    /// Sets an explicit id: 1 to 256 bytes without control characters. While a message with this id waits in the same
    /// partition, another one is [not scheduled](Self::replace). A message with a key goes to the partition of its
    /// key; without a key, the id determines the partition. Default: a random id.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Replaces a message that waits under this id, including its due time. Default: the waiting message stays.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.on_conflict = OnConflict::Replace;
        self
    }

    /// Fails with [`ErrorKind::Exists`](millstream_core::ErrorKind::Exists) if a message waits under this id.
    /// Default: the waiting message stays, and this one counts as sent.
    #[must_use]
    pub fn reject(mut self) -> Self {
        self.on_conflict = OnConflict::Reject;
        self
    }

    /// Sets the [`id`](Self::id), replaces a message that waits under it and postpones it: it is due at the later of both due
    /// times. So a message that is sent again and again with a delay is read once, when that delay has passed since the last
    /// send, with the last payload. Nothing limits how long it is postponed: [`keep_last`](Self::keep_last) does.
    ///
    /// A message that has moved to the log does not wait any more, even if no group has read it: the next one is a new one.
    ///
    /// Under a random id it would never meet the message before, so there is no way to leave the id out:
    ///
    /// ```compile_fail,E0061
    /// # use millstream_runtime::Record;
    /// let _ = Record::new(&7).delay(std::time::Duration::from_secs(60)).debounce();
    /// ```
    #[must_use]
    pub fn debounce(mut self, id: impl Into<String>) -> Self {
        self.on_conflict = OnConflict::Debounce;
        self.id(id)
    }

    /// Sets the [`id`](Self::id) and replaces the payload of a message that waits under it, whose due time stays: at most one
    /// message waits, the first one determines when it is read, and the last one what.
    #[must_use]
    pub fn keep_last(mut self, id: impl Into<String>) -> Self {
        self.on_conflict = OnConflict::KeepLast;
        self.id(id)
    }

    pub(super) fn schedule_id(&self) -> Result<ScheduleId> {
        match &self.id {
            Some(id) => ScheduleId::new(id),
            None => ScheduleId::new(short(Uuid::new_v4())),
        }
    }
}

/// Encodes 122 random bits in 22 characters: ids are stored twice on the server, and there may be millions.
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

/// Message that was scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delayed {
    /// Partition whose log it will be appended to.
    pub partition: Partition,
    /// Id under which it waits in this partition.
    pub id: ScheduleId,
    /// Whether it was added, replaced another one, or was not needed.
    pub placed: Placed,
}

/// Send of a delayed message, which starts when it is awaited.
#[must_use = "a send does nothing until it is awaited"]
#[derive(Debug)]
pub struct SendDelayed<'a, T: 'static> {
    pub(super) producer: &'a Producer<T>,
    pub(super) record: DelayedRecord<'a, T>,
    limit: Option<Duration>,
}

impl<'a, T> SendFuture<'a, T> {
    /// Delays the message by this time, by the server's clock: no group reads it earlier. It is stored when this is
    /// awaited.
    pub fn delay(self, delay: Duration) -> SendDelayed<'a, T> {
        SendDelayed { producer: self.producer, record: self.record.delay(delay), limit: self.limit }
    }

    /// Sets the due time, by the server's clock: a [`Timestamp`], or a [`SystemTime`](std::time::SystemTime), which is
    /// rounded up to a whole millisecond. A time in the past is due immediately.
    pub fn at(self, time: impl Into<Timestamp>) -> SendDelayed<'a, T> {
        SendDelayed { producer: self.producer, record: self.record.at(time), limit: self.limit }
    }
}

impl<T> SendDelayed<'_, T> {
    /// Sets the key: messages with the same key go to the same partition.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.record.record = self.record.record.key(key);
        self
    }

    /// Names the lane of this message: see [`Record::priority`].
    pub fn priority(mut self, lane: impl AsRef<[u8]>) -> Self {
        self.record.record = self.record.record.priority(lane);
        self
    }

    /// Appends a header.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.record.record = self.record.record.header(name, value);
        self
    }

    /// Sets the partition, regardless of the key.
    pub fn partition(mut self, partition: u32) -> Self {
        self.record.record = self.record.record.partition(partition);
        self
    }

    /// Limits how long the send waits: see [`SendFuture::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
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

    /// See [`DelayedRecord::debounce`].
    pub fn debounce(mut self, id: impl Into<String>) -> Self {
        self.record = self.record.debounce(id);
        self
    }

    /// See [`DelayedRecord::keep_last`].
    pub fn keep_last(mut self, id: impl Into<String>) -> Self {
        self.record = self.record.keep_last(id);
        self
    }
}

impl<'a, T: Sync> IntoFuture for SendDelayed<'a, T> {
    type Output = Result<Delayed>;
    type IntoFuture = BoxFuture<'a, Result<Delayed>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { producer, mut record, limit } = self;
        let mut span = producer.inner.sends(OperationKind::Schedule, &mut record.record.envelope);
        let encoded = noted(&mut span, producer.encode_delayed(record));
        let sending = producer.inner.send_delayed(encoded, limit);
        match span {
            Some(span) => spans::send(span, sending, |delayed| &delayed.id),
            None => sending,
        }
    }
}

impl Inner {
    fn send_delayed(
        &self,
        encoded: Result<Encoded<Scheduling>>,
        limit: Option<Duration>,
    ) -> BoxFuture<'static, Result<Delayed>> {
        let (batcher, layers, limits) = (self.delayed.clone(), self.layers.clone(), self.config.limits);
        Box::pin(async move {
            let encoded = encoded?;
            let (partition, id) = (encoded.partition, encoded.message.id.clone());
            let placed = encoded.send(layers, limits, batcher, limit).await?;
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
