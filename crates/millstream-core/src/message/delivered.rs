//! What a store needs to know about a delivery, to record that the message was handled.

use bytes::Bytes;

use crate::envelope::Headers;
use crate::error::Result;
use crate::id::MessageId;
use crate::message::operation::Operation;
use crate::name::GroupName;
use crate::topic::TopicPartition;

/// Delivery of a message, of any payload type. The runtime's deliveries are; stores that commit effects and markers together
/// take them.
pub trait Delivered {
    /// Returns the topic and partition that the message was read from.
    fn topic_partition(&self) -> &TopicPartition;

    /// Returns the group that reads it.
    fn group(&self) -> &GroupName;

    /// Returns the id of its first entry, which is the same on every attempt.
    fn origin(&self) -> MessageId;

    /// Returns the epoch of the lease under which it was read; 0 if the partition has no owner (shared mode).
    fn epoch(&self) -> u64;

    /// Returns the key.
    fn key(&self) -> Option<&Bytes>;

    /// Returns the headers.
    fn headers(&self) -> &Headers;

    /// Returns what names the message in its topic, the same on every attempt: its partition and [`origin`](Self::origin), or the id
    /// of a task.
    fn message_id(&self) -> String {
        format!("{}-{}", self.topic_partition().partition, self.origin())
    }

    /// Returns the operation with this id in the topic and group of the message.
    ///
    /// # Errors
    /// Those of [`Operation::new`].
    fn operation(&self, id: impl Into<Bytes>) -> Result<Operation>
    where
        Self: Sized,
    {
        Operation::new(self.topic_partition().topic.clone(), self.group().clone(), id)
    }
}
