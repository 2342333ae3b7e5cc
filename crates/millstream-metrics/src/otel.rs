//! Spans and metrics of OpenTelemetry, by its conventions for messaging.
//!
//! [`OpenTelemetry`] is an observer: whatever gets it makes a span for each send, handler, pulled message and settlement, and has
//! the four metrics of the conventions. [`semconv`] has all names. For code of one's own, which continues a trace over other ways,
//! [`headers`] and [`sent_in`] write and read the context of a message, and [`Sending`] and [`Processing`] build spans.

mod context;
pub mod semconv;
mod tracer;

use millstream_core::span::{MessagingOperation, OperationKind, SpanMessage};
use millstream_core::{GroupName, Headers, MessageId, TopicName, TopicPartition};
use opentelemetry::trace::SpanBuilder;

pub use context::{headers, sent_in};
pub use tracer::OpenTelemetry;

use tracer::Settings;

/// Sending of messages to a topic.
#[derive(Clone, Copy, Debug)]
pub struct Sending<'a> {
    /// The topic.
    pub topic: &'a TopicName,
    /// Number of messages, 1 for a single one.
    pub messages: usize,
}

impl Sending<'_> {
    /// Returns a span for it, to be started with a tracer.
    #[must_use]
    pub fn span(&self) -> SpanBuilder {
        let mut operation = MessagingOperation::new(OperationKind::Send, self.topic.as_str());
        operation.batch = Some(self.messages).filter(|messages| *messages != 1);
        Settings::default().builder(&operation)
    }
}

/// Handling of one message, or of several at once.
#[derive(Clone, Copy, Debug)]
pub struct Processing<'a> {
    /// Partition that the messages were read from.
    pub topic_partition: &'a TopicPartition,
    /// Group that handles them.
    pub group: &'a GroupName,
    /// Id of the message in its partition's log; `None` for several messages.
    pub origin: Option<MessageId>,
    /// Headers of each message.
    pub headers: &'a [&'a Headers],
}

impl Processing<'_> {
    /// Returns a span for it, to be started with a tracer. It has a link to each span that a message was sent in.
    #[must_use]
    pub fn span(&self) -> SpanBuilder {
        let Self { topic_partition: TopicPartition { topic, partition }, group, origin, headers } = self;
        let mut messages: Vec<_> = headers.iter().map(|headers| SpanMessage::new(headers)).collect();
        if let ([message], Some(origin)) = (&mut messages[..], origin) {
            message.id = Some(origin);
        }
        let mut operation = MessagingOperation::new(OperationKind::Process, topic.as_str());
        (operation.partition, operation.group) = (Some(partition.0), Some(group.as_str()));
        operation.batch = Some(headers.len()).filter(|messages| *messages != 1);
        operation.messages = &messages;
        Settings::default().builder(&operation)
    }
}
