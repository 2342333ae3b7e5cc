//! Encodes values, calls the layers, and chooses partitions.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Append, DedupId, DedupIdentity, Identity, UniqueIdentity, check_window};
use millstream_core::panics::{Panicked, choose_partition, encode};
use millstream_core::schedule::{Place, Scheduling};
use millstream_core::topic::TopicPartition;
use millstream_core::wire::{self, Fields};
use millstream_core::{Durability, Envelope, Partition};

use super::layers::{Encoded, Unfinished};
use super::sink::{Way, only_stored};
use super::{DelayedRecord, Inner, Producer, Record};

/// What an append is recognised by, before its partition is known.
enum Named {
    Plain,
    Number,
    Id(DedupId, Duration),
    Unique(DedupId),
}

impl<T> Producer<T> {
    /// Encodes a record, with the identity of its [way](Self::way_of).
    pub(super) fn encode(&self, mut record: Record<'_, T>) -> Result<Encoded<Append>> {
        let (inner, way) = (&*self.inner, self.way_of(&record));
        if way == Way::Plain {
            return self.encoded(record, None);
        }
        let id = record.dedup.take().or(record.unique.take()).unwrap_or_default();
        let named = inner.named(way, id, record.window)?;
        let (key, is_explicit) = (record.envelope.key.clone(), record.partition.is_some());
        let encoded = self.encoded(record, named.id())?;
        inner.identified(encoded, named, key.as_deref(), is_explicit)
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

    pub(super) fn encode_delayed(&self, record: DelayedRecord<'_, T>) -> Result<Encoded<Scheduling>> {
        let id = record.schedule_id()?;
        let durability = self.durability_of(&record.record);
        if durability != Durability::Stored {
            return Err(only_stored("a delayed message", durability).at(&self.inner.topic));
        }
        let DelayedRecord { record, due, id: given, on_conflict } = record;
        // Without a key, an explicit id chooses the partition: only messages of one partition are compared by id.
        let encoded = self.encoded(record, given.as_ref().map(String::as_bytes))?;
        Ok(encoded.map(|Append { topic_partition, fields, .. }| {
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
                message: Append::new(topic_partition, wire::encode(&envelope)),
                partition,
                body,
                unfinished: None,
            },
            Some(next) => Encoded {
                message: Append::new(topic_partition, Fields::new()),
                partition,
                body,
                unfinished: Some(Box::new(Unfinished { envelope, next })),
            },
        })
    }
}

impl Named {
    /// The id that chooses the partition of a message without a key.
    fn id(&self) -> Option<&[u8]> {
        match self {
            Self::Plain | Self::Number => None,
            Self::Id(id, _) | Self::Unique(id) => Some(id.as_bytes()),
        }
    }
}

impl Inner {
    fn named(&self, way: Way, id: Bytes, window: Option<Duration>) -> Result<Named> {
        Ok(match way {
            Way::Plain => Named::Plain,
            Way::Number => Named::Number,
            Way::Id => {
                let window = window.unwrap_or(self.config.dedup_window);
                check_window(window)?;
                Named::Id(DedupId::new(id)?, window)
            }
            Way::Unique => Named::Unique(DedupId::named(id, "unique id")?),
        })
    }

    /// Adds the identity to a message, with the partitions that it had when the topic had fewer of them.
    fn identified(
        &self,
        encoded: Encoded<Append>,
        named: Named,
        key: Option<&[u8]>,
        is_explicit: bool,
    ) -> Result<Encoded<Append>> {
        let counts = match &named {
            // It gets its number when its batch is closed: then the order is certain.
            Named::Number => {
                let identity = Identity::Number(self.numbering.clone(), 0);
                return Ok(encoded.map(|append| append.with(identity)));
            }
            Named::Plain => return Ok(encoded),
            _ if is_explicit => Vec::new(),
            Named::Id(_, window) => self.partitions.earlier(*window),
            Named::Unique(_) => self.partitions.all_earlier(),
        };
        let mut earlier = Vec::new();
        for count in counts {
            let place = self.partition_of(key.or(named.id()), count)?;
            if place != encoded.partition && !earlier.contains(&place) {
                earlier.push(place);
            }
        }
        let identity = match named {
            Named::Id(id, window) => DedupIdentity { id, window, earlier }.into(),
            Named::Unique(id) => UniqueIdentity { id, send: fastrand::u64(..), earlier }.into(),
            Named::Plain | Named::Number => Identity::None,
        };
        Ok(encoded.map(|append| append.with(identity)))
    }

    /// Calls the partitioner. Its panic is an error of this send only.
    pub(super) fn partition_of(&self, key: Option<&[u8]>, count: NonZeroU32) -> Result<Partition> {
        choose_partition(&*self.config.partitioner, key, count, &*self.observer)
    }
}
