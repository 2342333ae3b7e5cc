//! A message as commands show it and read it: what `tail`, `consume`, `delayed` and `produce` have in common.

pub(crate) mod content;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod sanitize;
mod template;

use bytes::Bytes;
use millstream::admin::Message;
use millstream::layers::core::wire::{self, Field};
use millstream::{Delivery, Envelope, Limits, MessageId, TopicPartition};

/// A message, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) id: MessageId,
    /// Of a message that a group is given: the number of the attempt.
    pub(crate) attempt: Option<u32>,
    pub(crate) body: Body,
}

/// What an entry is.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Message(Envelope),
    /// Why it is no message, and what stands there instead.
    Malformed(String, Vec<Field>),
}

impl Body {
    /// What fields are. However large: looking at what is there has no limits.
    pub(crate) fn of(fields: &[Field]) -> Self {
        match wire::decode_body(fields, &no_limits()) {
            Ok(envelope) => Self::Message(envelope),
            Err(why) => Self::Malformed(why.to_string(), fields.to_vec()),
        }
    }
}

impl View {
    /// Of an entry of a log.
    pub(crate) fn of(message: &Message) -> Self {
        Self {
            topic_partition: message.topic_partition.clone(),
            id: message.stored.id,
            attempt: None,
            body: Body::of(&message.stored.fields),
        }
    }

    /// Of what a member of a group was given. Its id is that of the first entry, which stays the same.
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

fn no_limits() -> Limits {
    let mut limits = Limits::default().with_payload(usize::MAX);
    limits.key = usize::MAX;
    limits.headers = usize::MAX;
    limits.header_bytes = usize::MAX;
    limits
}
