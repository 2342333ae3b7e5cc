//! A message to be sent.

use std::future::IntoFuture;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::{Durability, Envelope, MessageId, Partition, Result};

use super::Producer;

/// Value to be sent, with its key, headers and partition.
#[derive(Debug)]
pub struct Record<'a, T> {
    pub(super) value: &'a T,
    pub(super) partition: Option<Partition>,
    pub(super) durability: Option<Durability>,
    /// Key and headers; the payload is filled in when the value is encoded.
    pub(super) envelope: Envelope,
}

impl<'a, T> Record<'a, T> {
    /// Creates a record without key and headers.
    #[must_use]
    pub fn new(value: &'a T) -> Self {
        Self { value, partition: None, durability: None, envelope: Envelope::default() }
    }

    /// Sets the key: messages with the same key go to the same partition and keep their order.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Appends a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Sets the partition, regardless of the key.
    #[must_use]
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(Partition(partition));
        self
    }

    /// Sets what the send waits for. Default: that of the [producer](super::ProducerBuilder::durability).
    ///
    /// Sends of different durability go to the server on different ways: one keeps its order behind another only if it
    /// begins after the other has ended. [`Producer::send_all`] sees to that by itself.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }
}

/// Place where a message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Partition of the message.
    pub partition: Partition,
    /// Id of the message in this partition.
    pub id: MessageId,
}

/// Send of a message, which starts when it is awaited.
#[must_use = "a send does nothing until it is awaited"]
#[derive(Debug)]
pub struct SendFuture<'a, T: 'static> {
    pub(super) producer: &'a Producer<T>,
    pub(super) record: Record<'a, T>,
}

impl<T> SendFuture<'_, T> {
    /// Sets the key: messages with the same key go to the same partition and keep their order.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.record = self.record.key(key);
        self
    }

    /// Appends a header.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.record = self.record.header(name, value);
        self
    }

    /// Sets the partition, regardless of the key.
    pub fn partition(mut self, partition: u32) -> Self {
        self.record = self.record.partition(partition);
        self
    }

    /// Sets what the send waits for: see [`Record::durability`].
    ///
    /// # Errors
    /// Of the awaited future: [`ErrorKind::Unconfirmed`](millstream_core::ErrorKind::Unconfirmed) if it was stored and not
    /// confirmed in time, [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) if the backend or its server
    /// cannot confirm it: then nothing was stored.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.record = self.record.durability(durability);
        self
    }
}

impl<'a, T: Sync> IntoFuture for SendFuture<'a, T> {
    type Output = Result<Sent>;
    type IntoFuture = BoxFuture<'a, Result<Sent>>;

    fn into_future(self) -> Self::IntoFuture {
        // Encoded here and not in the future, so that the future holds neither value nor codec.
        let durability = self.producer.durability_of(&self.record);
        let encoded = self.producer.encode(self.record);
        let appends = self.producer.inner.appends.clone();
        Box::pin(async move {
            let append = encoded?;
            let partition = append.topic_partition.partition;
            let id = appends.of(durability)?.send(append).await?;
            Ok(Sent { partition, id })
        })
    }
}
