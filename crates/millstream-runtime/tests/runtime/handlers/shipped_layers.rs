//! The layers that come with the runtime: `Timeout` and `Trace`.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::*;
use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::event::{Cause, Event};
use millstream_core::policy::{Decision, Failure, FailureKind, Fixed, Never};
use millstream_core::trace::TraceContext;
use millstream_core::{Observer, Outcome, RetryPolicy};
use millstream_runtime::{Answer, ConsumerBuilder, Delivery, Layer, Next, Timeout, Trace};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata};

const SECOND: Duration = Duration::from_secs(1);

/// Takes as long before it lets a message through.
struct Waits(Duration);

#[async_trait]
impl Layer for Waits {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        tokio::time::sleep(self.0).await;
        next.run(delivery).await
    }
}

/// Causes and errors of the attempts that failed.
#[derive(Clone, Default)]
struct Failures(Arc<Mutex<Vec<(Cause, String)>>>);

impl Observer for Failures {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Handled { cause: Some(cause), error, .. } = event {
            let error = error.map(ToString::to_string).unwrap_or_default();
            self.0.lock().expect("lock").push((*cause, error));
        }
    }
}

impl Failures {
    fn take(&self) -> Vec<(Cause, String)> {
        std::mem::take(&mut *self.0.lock().expect("lock"))
    }
}

fn consumer(bench: &Bench, failures: &Failures, group: &str) -> ConsumerBuilder<u64> {
    bench.observed(NUMBERS, group, Arc::new(failures.clone()))
}

/// Retries once, and only what ran out of time.
#[derive(Debug)]
struct OnceForTime;

impl RetryPolicy for OnceForTime {
    fn decide(&self, failure: &Failure<'_>) -> Decision {
        match failure.kind {
            FailureKind::Timeout if failure.attempt == 1 => Decision::RetryAfter(SECOND),
            _ => Decision::GiveUp,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_out_of_time_is_dropped_and_its_attempt_has_failed() {
    struct Dropped(Arc<Mutex<Vec<Instant>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.lock().expect("lock").push(Instant::now());
        }
    }
    let (bench, failures) = (bench(), Failures::default());
    bench.produce(1).await;
    let (began, dropped) = (Instant::now(), Arc::<Mutex<Vec<Instant>>>::default());
    let layers = consumer(&bench, &failures, "g").retry(OnceForTime).layer(Timeout::new(5 * SECOND));
    let consumer = layers.start({
        let dropped = dropped.clone();
        move |_: Delivery<u64>| {
            let dropped = Dropped(dropped.clone());
            async move {
                tokio::time::sleep(3_600 * SECOND).await;
                drop(dropped);
            }
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (0, 1, 1));
    let says = || (Cause::Timeout, "handler timed out after 5s".to_owned());
    assert_eq!(failures.take(), [says(), says()]);
    let dropped: Vec<_> = dropped.lock().expect("lock").iter().map(|at| at.duration_since(began)).collect();
    assert!(dropped[0] >= 5 * SECOND && dropped[0] < 6 * SECOND, "dropped at its limit: {dropped:?}");
    assert_eq!(dropped.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_layer_outside_of_a_timeout_uses_none_of_its_time_and_one_inside_does() {
    let failures = Failures::default();
    let handle = |_: Delivery<u64>| async { tokio::time::sleep(2 * SECOND).await };
    for (outside, expected) in [(true, vec![]), (false, vec![Cause::Timeout])] {
        let bench = bench();
        bench.produce(1).await;
        let (waits, limit) = (Waits(2 * SECOND), Timeout::new(3 * SECOND));
        let builder = consumer(&bench, &failures, "g").retry(Never);
        let builder = match outside {
            true => builder.layer(waits).layer(limit),
            false => builder.layer(limit).layer(waits),
        };
        let consumer = builder.start(handle).await.expect("started");
        consumer.wait_idle().await.expect("idle");
        consumer.shutdown().await;
        let causes: Vec<_> = failures.take().into_iter().map(|(cause, _)| cause).collect();
        assert_eq!(causes, expected, "outside: {outside}");
    }
    // The whole limit of the consumer covers both, and the shorter of two limits counts.
    let bench = bench();
    bench.produce(1).await;
    let builder = consumer(&bench, &failures, "g").retry(Never).handler_timeout(SECOND);
    let consumer = builder.layer(Timeout::new(3 * SECOND)).start(handle).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    assert_eq!(failures.take(), [(Cause::Timeout, "handler timed out after 1s".to_owned())]);
}

/// As a layer does that is written without `async_trait`, and panics before its future is there.
#[tokio::test(start_paused = true)]
async fn a_layer_that_panics_before_it_waits_fails_the_attempt() {
    struct Panics;
    impl Layer for Panics {
        fn handle<'a: 'c, 'b: 'c, 'c>(
            &'a self,
            delivery: Delivery<Bytes>,
            next: Next<'b>,
        ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'c>>
        where
            Self: 'c,
        {
            assert!(delivery.attempt() > 1, "the first attempt");
            next.run(delivery)
        }
    }
    for is_outermost in [true, false] {
        let (bench, failures, retry) = (bench(), Failures::default(), Fixed::new(MS(10)).attempts(2));
        bench.produce(3).await;
        let builder = consumer(&bench, &failures, "g");
        let builder = if is_outermost { builder } else { builder.layer(Waits(MS(1))) }.layer(Panics);
        let consumer = builder.retry(retry).start(|_: Delivery<u64>| async {}).await.expect("started");
        consumer.wait_idle().await.expect("idle");
        let report = consumer.shutdown().await;
        assert_eq!((report.acked, report.retried), (3, 3), "outermost: {is_outermost}");
        let failures = failures.take();
        assert_eq!(failures.len(), 3, "each once, under the same lease: {failures:?}");
        assert!(failures.iter().all(|(cause, _)| *cause == Cause::Panic), "{failures:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_any_time_a_handler_that_never_waits_succeeds() {
    let (bench, failures) = (bench(), Failures::default());
    bench.produce(1).await;
    let builder = consumer(&bench, &failures, "g").layer(Timeout::new(Duration::ZERO));
    let consumer = builder.start(|_: Delivery<u64>| async {}).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    assert_eq!(consumer.shutdown().await.acked, 1);
}

/// A span: its level, and its fields as text.
type Shown = (Level, BTreeMap<&'static str, String>);

/// Spans of this thread, and the fields of the span in which each event of the tests happened.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    spans: Vec<Shown>,
    entered: Vec<u64>,
    /// Indexes of the spans in which an event was.
    events: Vec<usize>,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.name() == "process" || about.target() == module_path!()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = BTreeMap::new();
        span.record(&mut Fields(&mut fields));
        let mut recorded = self.0.lock().expect("lock");
        recorded.spans.push((*span.metadata().level(), fields));
        Id::from_u64(recorded.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let at = usize::try_from(id.into_u64()).expect("an index") - 1;
        values.record(&mut Fields(&mut self.0.lock().expect("lock").spans[at].1));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        let mut recorded = self.0.lock().expect("lock");
        let inside = recorded.entered.last().copied().expect("inside of a span");
        recorded.events.push(usize::try_from(inside).expect("an index") - 1);
    }

    fn enter(&self, id: &Id) {
        self.0.lock().expect("lock").entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.0.lock().expect("lock").entered.pop(), Some(id.into_u64()));
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_span_with_its_place_and_its_outcome() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(spans.clone());
    let (bench, failures) = (bench(), Failures::default());
    let context = TraceContext::new([0xab; 16], [1; 8], true).expect("a context");
    let producer = bench.producer(NUMBERS).await;
    let first = producer.send(&77).key("planted-key").header("secret", "planted-value");
    let first = context.headers().fold(first, |send, (name, value)| send.header(name, value));
    let origin = first.await.expect("stored").id;
    let builder = consumer(&bench, &failures, "g").retry(Fixed::new(SECOND).attempts(9));
    let consumer = builder.layer(Trace::new()).layer(Timeout::new(9 * SECOND)).start(
        |delivery: Delivery<u64>| async move {
            tracing::info!("in the handler");
            tokio::time::sleep(SECOND).await;
            tracing::info!("after a wait");
            match delivery.attempt() {
                1 => Outcome::retry("no"),
                2 => {
                    tokio::time::sleep(10 * SECOND).await;
                    Outcome::Ack
                }
                3 if delivery.last_error() == Some("handler timed out after 9s") => panic!("the third"),
                4 => Outcome::dead_letter("at last"),
                _ => Outcome::Ack,
            }
        },
    );
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;

    let recorded = spans.0.lock().expect("lock");
    let outcomes: Vec<_> = recorded.spans.iter().map(|(_, fields)| &*fields["outcome"]).collect();
    assert_eq!(outcomes, ["error", "timeout", "panic", "rejected"]);
    for (at, (level, fields)) in recorded.spans.iter().enumerate() {
        assert_eq!(*level, Level::INFO);
        let expected = [
            ("attempt", (at + 1).to_string()),
            ("group", "g".to_owned()),
            ("origin", origin.to_string()),
            ("outcome", outcomes[at].to_owned()),
            ("partition", fields["partition"].clone()),
            ("sent_trace_id", "ab".repeat(16)),
            ("topic", NUMBERS.spec().expect("a topic").name.to_string()),
        ];
        assert_eq!(*fields, BTreeMap::from(expected), "and nothing of payload, key and headers");
    }
    assert_eq!(recorded.events, [0, 0, 1, 1, 2, 2, 3, 3], "also what a handler says after a wait");
    assert_eq!(recorded.entered, [0; 0], "each span that was entered was left");
}

#[tokio::test(start_paused = true)]
async fn spans_have_the_level_that_was_set_and_say_what_was_no_failure() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(spans.clone());
    let (bench, failures) = (bench(), Failures::default());
    bench.produce(1).await;
    let builder = consumer(&bench, &failures, "g").layer(Trace::new().level(Level::DEBUG));
    let consumer = builder.start({
        let snoozed = Mutex::new(false);
        move |_: Delivery<u64>| {
            let first = !std::mem::replace(&mut *snoozed.lock().expect("lock"), true);
            async move { if first { Outcome::snooze(SECOND) } else { Outcome::Ack } }
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    let recorded = spans.0.lock().expect("lock");
    let shown: Vec<_> = recorded.spans.iter().map(|(level, fields)| (*level, &*fields["outcome"])).collect();
    assert_eq!(shown, [(Level::DEBUG, "snoozed"), (Level::DEBUG, "acked")]);
    assert!(recorded.spans.iter().all(|(_, fields)| !fields.contains_key("sent_trace_id")));
}
