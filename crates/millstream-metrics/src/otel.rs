//! Spans with the names and attributes of OpenTelemetry's conventions for messaging, for any tracer.
//!
//! A producer opens a span with [`Sending`] and sends its [`headers`] with the message. A consumer opens a span with
//! [`Processing`], which links to the producer's span. It is a link and not a child, as the conventions define, since a
//! message may be handled much later, several times, and by several groups.

use std::str::FromStr;

use millstream_core::trace::TraceContext;
use millstream_core::{GroupName, Headers, MessageId, TopicName, TopicPartition};
use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{KeyValue, Value};

/// Value of the attribute `messaging.system`.
pub const SYSTEM: &str = "millstream";

/// Returns the headers of a message that is sent in this span: names and values, for `send(..).header(name, value)`.
/// Empty if the span has no context, which means that nothing is recorded.
#[must_use]
pub fn headers(span: &SpanContext) -> Vec<(&'static str, String)> {
    let (trace, id) = (span.trace_id().to_bytes(), span.span_id().to_bytes());
    let Some(mut context) = TraceContext::new(trace, id, span.is_sampled()) else { return Vec::new() };
    context.flags = span.trace_flags().to_u8();
    context.state = span.trace_state().header();
    context.headers().collect()
}

/// Returns the span that a message was sent in; `None` if it was sent without one.
#[must_use]
pub fn sent_in(headers: &Headers) -> Option<SpanContext> {
    let context = TraceContext::of(headers)?;
    let state = TraceState::from_str(&context.state).unwrap_or_default();
    let (trace, span) = (TraceId::from_bytes(context.trace_id), SpanId::from_bytes(context.span_id));
    Some(SpanContext::new(trace, span, TraceFlags::new(context.flags), true, state))
}

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
        let mut attributes = about("send", self.topic);
        attributes.extend(count(self.messages));
        SpanBuilder::from_name(format!("send {}", self.topic))
            .with_kind(SpanKind::Producer)
            .with_attributes(attributes)
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
        let Self { topic_partition: TopicPartition { topic, partition }, group, origin, headers } = *self;
        let mut attributes = about("process", topic);
        attributes.push(KeyValue::new("messaging.destination.partition.id", partition.0.to_string()));
        attributes.push(KeyValue::new("messaging.consumer.group.name", group.to_string()));
        attributes.extend(origin.map(|id| KeyValue::new("messaging.message.id", id.to_string())));
        attributes.extend(count(headers.len()));
        let links = headers.iter().filter_map(|headers| sent_in(headers)).map(Link::with_context);
        SpanBuilder::from_name(format!("process {topic}"))
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes)
            .with_links(links.collect())
    }
}

/// Attributes of every span.
fn about(operation: &'static str, topic: &TopicName) -> Vec<KeyValue> {
    vec![
        KeyValue::new("messaging.system", SYSTEM),
        KeyValue::new("messaging.operation.name", operation),
        KeyValue::new("messaging.operation.type", operation),
        KeyValue::new("messaging.destination.name", topic.to_string()),
    ]
}

/// Attribute with the number of messages, unless it is 1.
fn count(messages: usize) -> Option<KeyValue> {
    let count = Value::I64(i64::try_from(messages).unwrap_or(i64::MAX));
    (messages != 1).then(|| KeyValue::new("messaging.batch.message_count", count))
}
