//! A delivery without a queue.

use bytes::Bytes;
use millstream_core::{Delivered, GroupName, Headers, MessageId, TopicPartition};

#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) partition: TopicPartition,
    pub(crate) group: GroupName,
    pub(crate) origin: MessageId,
    pub(crate) epoch: u64,
    pub(crate) headers: Headers,
}

impl Delivery {
    /// The message with this number, read under this epoch.
    pub(crate) fn new(number: u64, epoch: u64) -> Self {
        Self {
            partition: TopicPartition::new("orders".parse().unwrap(), 3),
            group: "billing".parse().unwrap(),
            origin: format!("{number}-0").parse().unwrap(),
            epoch,
            headers: Headers::default(),
        }
    }
}

impl Delivery {
    /// The number of the message.
    pub(crate) fn origin_ms(&self) -> u64 {
        self.origin.timestamp().as_millis()
    }
}

impl Delivered for Delivery {
    fn topic_partition(&self) -> &TopicPartition {
        &self.partition
    }

    fn group(&self) -> &GroupName {
        &self.group
    }

    fn origin(&self) -> MessageId {
        self.origin
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn key(&self) -> Option<&Bytes> {
        None
    }

    fn headers(&self) -> &Headers {
        &self.headers
    }
}
