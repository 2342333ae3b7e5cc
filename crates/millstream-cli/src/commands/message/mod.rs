//! A message as commands show and read it: shared by `tail`, `consume`, `delayed` and `produce`.

pub(crate) mod cancel;
pub(crate) mod content;
pub(crate) mod find;
pub(crate) mod follow;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod sanitize;
pub(crate) mod status;
pub(crate) mod steps;
mod template;

use bytes::Bytes;
use millstream::admin::Message;
use millstream::crates::core::wire::{self, Field};
use millstream::{Delivery, Envelope, Limits, MessageId, TopicPartition};

/// A message and its position.
#[derive(Clone, Debug)]
pub(crate) struct MessageView {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) id: MessageId,
    /// The number of the attempt, for a message that was delivered to a group.
    pub(crate) attempt: Option<u32>,
    pub(crate) body: Body,
}

/// The content of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Message(Envelope),
    /// Not a message: the reason, and its fields.
    Malformed(String, Vec<Field>),
}

impl Body {
    /// Decodes fields of any size: inspecting stored data has no limits.
    pub(crate) fn of(fields: &[Field]) -> Self {
        match wire::decode_body(fields, &Limits::NONE) {
            Ok(envelope) => Self::Message(envelope),
            Err(why) => Self::Malformed(why.to_string(), fields.to_vec()),
        }
    }
}

impl MessageView {
    /// Creates it from an entry of a log.
    pub(crate) fn of(message: &Message) -> Self {
        Self {
            topic_partition: message.topic_partition.clone(),
            id: message.stored.id,
            attempt: None,
            body: Body::of(&message.stored.fields),
        }
    }

    /// Creates it from a delivery to a member of a group. The id is that of the first entry, which does not change.
    pub(crate) fn given(delivery: &Delivery<Bytes>) -> Self {
        let mut envelope = Envelope::new(delivery.payload.clone());
        envelope.key = delivery.key().cloned();
        envelope.headers = delivery.headers().clone();
        Self {
            topic_partition: delivery.topic_partition().clone(),
            id: delivery.origin(),
            attempt: Some(delivery.attempt()),
            body: Body::Message(envelope),
        }
    }
}
