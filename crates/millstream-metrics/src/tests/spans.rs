//! Spans of producer and consumer, as an exporter gets them.

use millstream_core::envelope::Headers;
use millstream_core::{MessageId, TopicPartition};
use opentelemetry::trace::{Span, SpanContext, SpanKind, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use crate::otel::{Processing, Sending, headers, sent_in};

fn traced() -> (SdkTracerProvider, InMemorySpanExporter) {
    let exporter = InMemorySpanExporter::default();
    (SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build(), exporter)
}

/// The headers of a message as they are read: what was sent with it and other ones.
fn carried(pairs: Vec<(&'static str, String)>) -> Headers {
    let mut headers = Headers::new();
    headers.append("content-type", "application/json");
    for (name, value) in pairs {
        headers.append(name, value.into_bytes());
    }
    headers
}

fn attributes(span: &SpanData) -> Vec<(String, String)> {
    let mut all: Vec<_> =
        span.attributes.iter().map(|it| (it.key.to_string(), it.value.to_string())).collect();
    all.sort();
    all
}

fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn what_is_processed_links_to_what_was_sent() {
    let (provider, exporter) = traced();
    let tracer = provider.tracer("test");
    let tp = TopicPartition::new("orders".parse().expect("name"), 3);
    let group = "billing".parse().expect("name");

    let mut send = Sending { topic: &tp.topic, messages: 1 }.span().start(&tracer);
    let message = carried(headers(send.span_context()));
    let sent = send.span_context().clone();
    send.end();
    let origin = Some(MessageId::new(1_700_000_000_000, 4));
    let processing = Processing { topic_partition: &tp, group: &group, origin, headers: &[&message] };
    processing.span().start(&tracer).end();

    let spans = exporter.get_finished_spans().expect("spans");
    let [send, process] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*send.name, &send.span_kind), ("send orders", &SpanKind::Producer));
    let of_send = [
        ("messaging.destination.name", "orders"),
        ("messaging.operation.name", "send"),
        ("messaging.operation.type", "send"),
        ("messaging.system", "millstream"),
    ];
    assert_eq!(attributes(send), expected(&of_send));
    assert_eq!((&*process.name, &process.span_kind), ("process orders", &SpanKind::Consumer));
    let of_process = [
        ("messaging.consumer.group.name", "billing"),
        ("messaging.destination.name", "orders"),
        ("messaging.destination.partition.id", "3"),
        ("messaging.message.id", "1700000000000-4"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.system", "millstream"),
    ];
    assert_eq!(attributes(process), expected(&of_process));
    let [link] = &process.links.links[..] else { panic!("{:?}", process.links) };
    assert_eq!(link.span_context.trace_id(), sent.trace_id());
    assert_eq!(link.span_context.span_id(), sent.span_id());
    assert!(link.span_context.is_remote() && link.span_context.is_sampled());
    assert_ne!(process.span_context.trace_id(), sent.trace_id(), "a link, and not a child");
}

#[test]
fn a_batch_links_to_each_that_was_sent_in_a_span() {
    let (provider, exporter) = traced();
    let tracer = provider.tracer("test");
    let tp = TopicPartition::new("orders".parse().expect("name"), 0);
    let group = "billing".parse().expect("name");
    let mut messages = vec![carried(Vec::new()), carried(vec![("traceparent", "00-nonsense".into())])];
    for _ in 0..2 {
        let mut send = Sending { topic: &tp.topic, messages: 1 }.span().start(&tracer);
        messages.push(carried(headers(send.span_context())));
        send.end();
    }
    let all: Vec<&Headers> = messages.iter().collect();
    let processing = Processing { topic_partition: &tp, group: &group, origin: None, headers: &all };
    processing.span().start(&tracer).end();
    let spans = exporter.get_finished_spans().expect("spans");
    let process = spans.last().expect("one");
    assert_eq!(process.links.links.len(), 2);
    let count = attributes(process).into_iter().find(|(name, _)| name == "messaging.batch.message_count");
    assert_eq!(count.map(|(_, count)| count).as_deref(), Some("4"));
}

#[test]
fn without_a_span_there_are_no_headers() {
    assert!(headers(&SpanContext::empty_context()).is_empty());
    assert!(sent_in(&carried(Vec::new())).is_none());
}
