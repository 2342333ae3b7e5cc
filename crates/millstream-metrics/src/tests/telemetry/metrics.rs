//! The four metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::Outcome;
use millstream_core::span::{MessagingOperation, OperationKind, Tracing};
use millstream_delay::Task;
use millstream_runtime::{Delivery, Record};
use std::sync::Arc;

use super::harness::{Attributes, ORDERS, Traced, expected};
use crate::otel::semconv::Instrument;

#[tokio::test(start_paused = true)]
async fn the_four_metrics_count_by_topic_group_operation_and_error() {
    let traced = Traced::new();
    let orders = traced.producer(ORDERS).await.expect("a producer");
    orders.send(&0).await.expect("sent");
    orders.send(&1).partition(9).await.expect_err("there is no such partition");
    let sent = orders.send_all([Record::new(&2), Record::new(&3).partition(9), Record::new(&4)]).await;
    assert_eq!(sent.iter().filter(|it| it.is_ok()).count(), 2);
    // The first attempt of each fails.
    let consumer = traced.consumer().start(|order: Delivery<u64>| async move {
        if order.attempt() == 1 { Outcome::retry("busy") } else { Outcome::Ack }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.acked, 3);
    let mails = traced.mails().await;
    mails.schedule(&1).await.expect("scheduled");
    let worker = mails.worker().start(|_: Task<u64>| async {}).await.expect("started");
    while worker.report().done == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    worker.shutdown().await;

    let mut found = traced.metrics();
    let mut take = |metric: Instrument| {
        let key = (metric.name().to_owned(), metric.unit().to_owned());
        found.remove(&key).unwrap_or_else(|| panic!("{key:?} is missing"))
    };
    let group = ("messaging.consumer.group.name", "billing");
    let invalid = ("error.type", "invalid_config");
    let counts = |all: &[(Attributes, u64)]| all.iter().cloned().collect::<BTreeMap<_, _>>();
    let sent = counts(&[
        (expected("send", "orders", &[]), 3),
        (expected("send", "orders", &[invalid]), 2),
        (expected("schedule", "mails", &[]), 1),
    ]);
    assert_eq!(take(Instrument::SentMessages), sent);
    let processed = counts(&[
        (expected("process", "orders", &[group]), 3),
        (expected("process", "orders", &[group, ("error.type", "error")]), 3),
        (expected("process", "mails", &[]), 1),
    ]);
    assert_eq!(take(Instrument::ConsumedMessages), processed);
    assert_eq!(take(Instrument::ProcessDuration), processed, "one value for each call");
    let mut durations = take(Instrument::OperationDuration);
    let kind = |kind| ("messaging.operation.type", kind);
    let settles = durations.remove(&expected("settle", "orders", &[kind("settle"), group])).expect("settled");
    assert!((2..=6).contains(&settles), "{settles} requests for 6 settlements");
    let operations = counts(&[
        (expected("send", "orders", &[kind("send")]), 1),
        (expected("send", "orders", &[kind("send"), invalid]), 2),
        (expected("schedule", "mails", &[kind("send")]), 1),
        (expected("settle", "mails", &[kind("settle")]), 1),
    ]);
    assert_eq!(durations, operations);
    assert!(found.is_empty(), "{found:?}");
}

/// Who gives up on a send does not know what became of it, and a consumer that is killed drops its handlers.
#[test]
fn what_is_dropped_was_cancelled() {
    let traced = Traced::new();
    let observer: Arc<dyn millstream_core::Observer> = Arc::new(traced.telemetry.clone());
    let tracing = Tracing::of(&observer).expect("a tracer");
    drop(tracing.start(&MessagingOperation::new(OperationKind::Process, "orders")));
    let cancelled = expected("process", "orders", &[("error.type", "cancelled")]);
    assert_eq!(
        traced.span("process orders").attributes().get("error.type").map(String::as_str),
        Some("cancelled")
    );
    let found = traced.metrics();
    assert_eq!(found.len(), 2);
    assert!(found.values().all(|it| *it == BTreeMap::from([(cancelled.clone(), 1)])), "{found:?}");
}
