//! A queue in memory with a tracer, and what its exporters got.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::policy::Fixed;
use millstream_core::span::OperationKind;
use millstream_core::{Backend, Observer, Topic};
use millstream_delay::{DelayQueue, Promoter, PromoterConfig};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, ProducerBuilder};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use crate::otel::{OpenTelemetry, semconv};

pub(super) const ORDERS: Topic<u64> = Topic::new("orders").partitions(1);
pub(super) const BILLS: Topic<u64> = Topic::new("bills").partitions(1);

/// Pairs of names and values.
pub(super) type Attributes = BTreeMap<String, String>;

pub(super) struct Traced {
    pub(super) backend: Backend,
    pub(super) telemetry: OpenTelemetry,
    spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
    tracers: SdkTracerProvider,
    meters: SdkMeterProvider,
}

impl Traced {
    pub(super) fn new() -> Self {
        let (spans, metrics) = (InMemorySpanExporter::default(), InMemoryMetricExporter::default());
        let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let meters = SdkMeterProvider::builder().with_periodic_exporter(metrics.clone()).build();
        let telemetry = OpenTelemetry::new(&tracers, &meters);
        let backend = Backend::from(MemoryBackend::new());
        Self { backend, telemetry, spans, metrics, tracers, meters }
    }

    /// Changes the settings of the tracer.
    pub(super) fn set(mut self, change: impl FnOnce(OpenTelemetry) -> OpenTelemetry) -> Self {
        self.telemetry = change(self.telemetry);
        self
    }

    fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.telemetry.clone())
    }

    pub(super) fn producer(&self, topic: Topic<u64>) -> ProducerBuilder<u64> {
        ProducerBuilder::new(self.backend.clone(), topic, self.observer())
    }

    /// Builds a consumer of orders that tries twice.
    pub(super) fn consumer(&self) -> ConsumerBuilder<u64> {
        let promoter = Promoter::new(&self.backend, PromoterConfig::default());
        ConsumerBuilder::new(self.backend.clone(), ORDERS, "billing", self.observer())
            .upkeep(promoter)
            .retry(Fixed::new(Duration::from_millis(1)).attempts(2))
    }

    pub(super) async fn mails(&self) -> DelayQueue<u64> {
        let queue = DelayQueue::<u64>::new("mails").observer(self.telemetry.clone());
        queue.open(&self.backend).await.expect("a queue")
    }

    /// Returns the spans that have ended, in the order of their ends. Each keeps to the table of names.
    pub(super) fn spans(&self) -> Vec<Ended> {
        self.tracers.force_flush().expect("flushed");
        let spans = self.spans.get_finished_spans().expect("spans");
        spans.into_iter().map(Ended::new).collect()
    }

    /// Returns the only span of this name.
    pub(super) fn span(&self, name: &str) -> Ended {
        let mut spans = self.spans();
        spans.retain(|span| span.name() == name);
        assert_eq!(spans.len(), 1, "spans named {name:?}");
        spans.remove(0)
    }

    /// Returns the metrics: name and unit, and of each set of attributes the count, for a histogram the number of values.
    pub(super) fn metrics(&self) -> BTreeMap<(String, String), BTreeMap<Attributes, u64>> {
        self.meters.force_flush().expect("flushed");
        let mut found = BTreeMap::new();
        // The last one has all: they are cumulative.
        let all = self.metrics.get_finished_metrics().expect("metrics");
        for scope in all.last().expect("a collection").scope_metrics() {
            assert_eq!(scope.scope().name(), "millstream");
            assert_eq!(scope.scope().schema_url(), Some(semconv::SCHEMA_URL));
            for metric in scope.metrics() {
                let points: BTreeMap<Attributes, u64> = match metric.data() {
                    AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                        assert!(sum.is_monotonic());
                        sum.data_points()
                            .map(|point| (attributes(point.attributes()), point.value()))
                            .collect()
                    }
                    AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                        let point = |point: &opentelemetry_sdk::metrics::data::HistogramDataPoint<f64>| {
                            assert!(point.bounds().eq(semconv::SECONDS), "{}", metric.name());
                            (attributes(point.attributes()), point.count())
                        };
                        histogram.data_points().map(point).collect()
                    }
                    other => panic!("{}: {other:?}", metric.name()),
                };
                found.insert((metric.name().to_owned(), metric.unit().to_owned()), points);
            }
        }
        found
    }
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Ended(pub(super) SpanData);

impl Ended {
    fn new(span: SpanData) -> Self {
        assert_eq!(span.instrumentation_scope.schema_url(), Some(semconv::SCHEMA_URL));
        let ended = Self(span);
        let (operation, _) = ended.name().split_once(' ').expect("an operation and a destination");
        let operation =
            OperationKind::ALL.into_iter().find(|kind| kind.as_str() == operation).expect("a kind");
        for name in ended.attributes().keys() {
            let row = semconv::ATTRIBUTES.iter().find(|row| row.name == name);
            let row = row.unwrap_or_else(|| panic!("{name} is not in the table"));
            assert!(row.spans.contains(&operation), "{name} on {}", ended.name());
        }
        ended
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    pub(super) fn context(&self) -> &SpanContext {
        &self.0.span_context
    }

    pub(super) fn attributes(&self) -> Attributes {
        attributes(self.0.attributes.iter())
    }

    /// Returns the links: the spans, and their attributes.
    pub(super) fn links(&self) -> Vec<(SpanContext, Attributes)> {
        let links = self.0.links.links.iter();
        links.map(|link| (link.span_context.clone(), attributes(link.attributes.iter()))).collect()
    }

    pub(super) fn links_to(&self, span: &Ended) -> bool {
        self.links().iter().any(|(link, _)| link.span_id() == span.context().span_id())
    }

    pub(super) fn is_child_of(&self, span: &Ended) -> bool {
        let same = self.context().trace_id() == span.context().trace_id();
        same && self.0.parent_span_id == span.context().span_id()
    }

    /// Whether it begins a trace.
    pub(super) fn is_root(&self) -> bool {
        self.0.parent_span_id == opentelemetry::trace::SpanId::INVALID
    }
}

fn attributes<'a>(pairs: impl Iterator<Item = &'a KeyValue>) -> Attributes {
    pairs.map(|pair| (pair.key.to_string(), pair.value.to_string())).collect()
}

/// Attributes as a test writes them: those that all have, for this operation and destination, and others.
pub(super) fn expected(operation: &str, destination: &str, others: &[(&str, &str)]) -> Attributes {
    let common = [
        ("messaging.system", "millstream"),
        ("messaging.operation.name", operation),
        ("messaging.destination.name", destination),
    ];
    common.iter().chain(others).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
