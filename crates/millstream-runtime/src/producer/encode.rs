//! Encodes values, calls the layers, and chooses partitions.

use std::num::NonZeroU32;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Append, DedupAppend, DedupId, check_window};
use millstream_core::panics::{Panicked, choose_partition, encode};
use millstream_core::schedule::{Place, Scheduling};
use millstream_core::topic::TopicPartition;
use millstream_core::wire::{self, Fields};
use millstream_core::{Durability, Envelope, Partition};

use super::dedup::only_stored;
use super::layers::{Encoded, Unfinished};
use super::record::Way;
use super::{DelayedRecord, Inner, Producer, Record};

impl<T> Producer<T> {
    /// Encodes a record with a dedup id.
    pub(super) fn encode_dedup(&self, record: Record<'_, T>) -> Result<Encoded<DedupAppend>> {
        let inner = &*self.inner;
        let window = record.window.unwrap_or(inner.config.dedup_window);
        check_window(window)?;
        let (key, is_explicit) = (record.envelope.key.clone(), record.partition.is_some());
        let id = record.dedup.clone().unwrap_or_default();
        let id = DedupId::new(id)?;
        let encoded = self.encoded(record, Some(id.as_bytes()))?;
        let earlier = if is_explicit { Vec::new() } else { inner.partitions.earlier(window) };
        let routed = key.as_deref().or(Some(id.as_bytes()));
        let earlier =
            earlier.into_iter().map(|count| inner.partition_of(routed, count)).collect::<Result<_>>()?;
        Ok(encoded.map(|append| DedupAppend { append, id, window, earlier }))
    }

    pub(super) fn durability_of(&self, record: &Record<'_, T>) -> Durability {
        record.durability.unwrap_or(self.inner.config.durability)
    }

    pub(super) fn way_of(&self, record: &Record<'_, T>) -> Way {
        match &record.dedup {
            _ if record.unique.is_some() => Way::Unique,
            Some(_) => Way::Id,
            None if self.inner.config.idempotent => Way::Number,
            None => Way::Plain,
        }
    }

    pub(super) fn encode(&self, record: Record<'_, T>) -> Result<Encoded<Append>> {
        self.encoded(record, None)
    }

    pub(super) fn encode_delayed(&self, record: DelayedRecord<'_, T>) -> Result<Encoded<Scheduling>> {
        let id = record.schedule_id()?;
        let durability = self.durability_of(&record.record);
        if durability != Durability::Stored {
            return Err(only_stored("a delayed message", durability).at(&self.inner.topic));
        }
        let DelayedRecord { record, due, id: given, on_conflict } = record;
        // Without a key, an explicit id chooses the partition: only messages of one partition are compared by id.
        let encoded = self.encoded(record, given.as_ref().map(String::as_bytes))?;
        Ok(encoded.map(|Append { topic_partition, fields }| {
            let place = Place::from(topic_partition);
            Scheduling { place, id, due, fields, on_conflict }
        }))
    }

    /// Encodes a message and chooses its partition: the one that it names, else that of its key, else that of
    /// `without_key`.
    pub(super) fn encoded(
        &self,
        record: Record<'_, T>,
        without_key: Option<&[u8]>,
    ) -> Result<Encoded<Append>> {
        let inner = &*self.inner;
        let count = inner.partitions.open(&inner.topic)?;
        let mut envelope = record.envelope;
        envelope.payload = encode(self.codec, record.value).inspect_err(|error| inner.report(error))?;
        self.name_type(&mut envelope)?;
        inner.placed(envelope, record.partition, without_key, count)
    }
}

// What does not depend on the type of the payload is compiled once, here, and not in the crates of users.
impl Inner {
    fn report(&self, error: &Error) {
        if let Some(panicked) = Panicked::within(error) {
            self.observer.observe(&panicked.event());
        }
    }

    /// Calls the layers, and chooses the partition.
    fn placed(
        &self,
        mut envelope: Envelope,
        partition: Option<Partition>,
        without_key: Option<&[u8]>,
        count: NonZeroU32,
    ) -> Result<Encoded<Append>> {
        let body = envelope.payload.len();
        let next = self.layers.apply(&mut envelope)?;
        if next.is_none() {
            envelope.check(&self.config.limits)?;
        }
        let partition = match partition {
            Some(partition) => partition,
            None => self.partition_of(envelope.key.as_deref().or(without_key), count)?,
        };
        if partition.0 >= count.get() {
            let why = format!("partition {partition} of a topic with {count}");
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let topic_partition = TopicPartition { topic: self.topic.clone(), partition };
        Ok(match next {
            None => Encoded {
                message: Append { topic_partition, fields: wire::encode(&envelope) },
                partition,
                body,
                unfinished: None,
            },
            Some(next) => Encoded {
                message: Append { topic_partition, fields: Fields::new() },
                partition,
                body,
                unfinished: Some(Box::new(Unfinished { envelope, next })),
            },
        })
    }
}

impl Inner {
    /// Calls the partitioner. Its panic is an error of this send only.
    pub(super) fn partition_of(&self, key: Option<&[u8]>, count: NonZeroU32) -> Result<Partition> {
        choose_partition(&*self.config.partitioner, key, count, &*self.observer)
    }
}
