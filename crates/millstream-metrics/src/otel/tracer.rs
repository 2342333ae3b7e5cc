//! The observer and its tracer: an operation becomes a span, and at its end the metrics.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use millstream_core::event::{Event, Observer};
use millstream_core::span::{CANCELLED, Detail, Failed, MessagingOperation, OperationKind, Span, Tracer};
use millstream_core::trace::TraceContext;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry::trace::{self, Link, SpanBuilder, Status, TraceContextExt, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};

use super::context::{context_of, sent_in, span_of};
use super::semconv::{self, Instrument, SYSTEM};

/// Observer that makes spans and metrics of OpenTelemetry. A clone is another handle to the same instruments.
///
/// ```
/// # async fn example() -> millstream_core::Result<()> {
/// use millstream_metrics::otel::OpenTelemetry;
///
/// // After `global::set_tracer_provider` and `global::set_meter_provider`.
/// let telemetry = OpenTelemetry::global().server("redis.example", 6379);
/// # drop(telemetry); Ok(()) }
/// ```
///
/// It makes no metrics of [`MetricsObserver`](crate::MetricsObserver): both may observe the same queue.
#[derive(Clone, Debug)]
pub struct OpenTelemetry {
    tracer: Arc<BoxedTracer>,
    instruments: Arc<Instruments>,
    settings: Settings,
}

impl OpenTelemetry {
    /// Uses the providers of the process. They must be set before: what is made without them records nothing.
    #[must_use]
    pub fn global() -> Self {
        let (tracers, meters) = (global::tracer_provider(), global::meter_provider());
        Self::over(tracers.tracer_with_scope(scope()), &Instruments::new(&meters.meter_with_scope(scope())))
    }

    /// Uses these providers.
    #[must_use]
    pub fn new<P, M>(tracers: &P, meters: &M) -> Self
    where
        P: TracerProvider<Tracer: Send + Sync + 'static>,
        <P::Tracer as trace::Tracer>::Span: Send + Sync + 'static,
        M: MeterProvider,
    {
        let tracer = BoxedTracer::new(Box::new(tracers.tracer_with_scope(scope())));
        Self::over(tracer, &Instruments::new(&meters.meter_with_scope(scope())))
    }

    fn over(tracer: BoxedTracer, instruments: &Arc<Instruments>) -> Self {
        Self { tracer: Arc::new(tracer), instruments: instruments.clone(), settings: Settings::default() }
    }

    /// Adds the address of the server to all spans and metrics. Default: none, since a cluster has several.
    #[must_use]
    pub fn server(mut self, address: impl Into<String>, port: u16) -> Self {
        self.settings.server = vec![
            KeyValue::new(semconv::SERVER_ADDRESS, address.into()),
            KeyValue::new(semconv::SERVER_PORT, i64::from(port)),
        ];
        self
    }

    /// Adds the number of bytes of the payload to spans of single messages. Default: no, as the conventions ask for.
    #[must_use]
    pub fn body_size(mut self, is_added: bool) -> Self {
        self.settings.body_size = is_added;
        self
    }

    /// Makes the span of the handler of a single message a child of the span in which the message was sent, so that both are one
    /// trace. It links to it in any case. Default: no. A message can be handled hours later, several times and by several groups.
    #[must_use]
    pub fn child_of_send(mut self, is_child: bool) -> Self {
        self.settings.child_of_send = is_child;
        self
    }
}

impl Observer for OpenTelemetry {
    fn observe(&self, _: &Event<'_>) {}

    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        Some(Arc::new(self.clone()))
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("millstream")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(semconv::SCHEMA_URL)
        .build()
}

/// What is added to all spans, and how they hang together.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) server: Vec<KeyValue>,
    pub(super) body_size: bool,
    pub(super) child_of_send: bool,
}

impl Settings {
    /// Returns the attributes that spans and metrics share.
    fn common(&self, operation: &MessagingOperation<'_>) -> Vec<KeyValue> {
        let mut all = vec![
            KeyValue::new(semconv::MESSAGING_SYSTEM, SYSTEM),
            KeyValue::new(semconv::OPERATION_NAME, operation.kind.as_str()),
            KeyValue::new(semconv::DESTINATION_NAME, operation.destination.to_owned()),
        ];
        all.extend(operation.group.map(|group| KeyValue::new(semconv::CONSUMER_GROUP, group.to_owned())));
        all.extend(self.server.iter().cloned());
        all
    }

    /// Returns the span of an operation, with a link to each span that a message was sent in.
    pub(super) fn builder(&self, operation: &MessagingOperation<'_>) -> SpanBuilder {
        let MessagingOperation { kind, destination, messages, .. } = *operation;
        let mut attributes = self.common(operation);
        attributes.push(KeyValue::new(semconv::OPERATION_TYPE, semconv::operation_type(kind)));
        attributes.extend(operation.partition.map(partition_id));
        attributes.extend(operation.batch.map(message_count));
        attributes
            .extend(operation.attempt.map(|nth| KeyValue::new(semconv::DELIVERY_ATTEMPT, i64::from(nth))));
        if let ([message], None) = (messages, operation.batch) {
            attributes.extend(message.id.map(|id| KeyValue::new(semconv::MESSAGE_ID, id.to_string())));
            attributes.extend(message.body.filter(|_| self.body_size).map(body_size));
        }
        let mut links = Vec::new();
        for message in messages {
            if let Some(sent) = message.headers.and_then(sent_in) {
                let id = message.id.filter(|_| operation.batch.is_some());
                let id = id.map(|id| KeyValue::new(semconv::MESSAGE_ID, id.to_string()));
                links.push(Link::new(sent, id.into_iter().collect(), 0));
            }
        }
        let is_created = !links.is_empty() || !operation.is_carried;
        SpanBuilder::from_name(format!("{} {destination}", kind.as_str()))
            .with_kind(semconv::span_kind(kind, is_created))
            .with_attributes(attributes)
            .with_links(links)
    }
}

/// The four metrics of the conventions.
#[derive(Debug)]
pub(super) struct Instruments {
    operation: Histogram<f64>,
    sent: Counter<u64>,
    consumed: Counter<u64>,
    process: Histogram<f64>,
}

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Arc<Self> {
        let histogram = |of: Instrument| {
            let builder = meter.f64_histogram(of.name()).with_unit(of.unit()).with_description(of.help());
            builder.with_boundaries(semconv::SECONDS.to_vec()).build()
        };
        let counter = |of: Instrument| {
            meter.u64_counter(of.name()).with_unit(of.unit()).with_description(of.help()).build()
        };
        Arc::new(Self {
            operation: histogram(Instrument::OperationDuration),
            sent: counter(Instrument::SentMessages),
            consumed: counter(Instrument::ConsumedMessages),
            process: histogram(Instrument::ProcessDuration),
        })
    }
}

impl Tracer for OpenTelemetry {
    fn start(&self, operation: &MessagingOperation<'_>) -> Box<dyn Span> {
        let mut builder = self.settings.builder(operation);
        if !operation.since.is_zero() {
            builder = builder.with_start_time(SystemTime::now() - operation.since);
        }
        let around = Context::current();
        let sent = match operation.messages {
            [message] if self.settings.child_of_send && operation.kind == OperationKind::Process => {
                message.headers.and_then(sent_in).filter(|_| operation.batch.is_none())
            }
            _ => None,
        };
        let parent = match sent {
            Some(sent) => around.with_remote_span_context(sent),
            None => around,
        };
        let span = builder.start_with_context(&*self.tracer, &parent);
        let now = Instant::now();
        Box::new(Started {
            instruments: self.instruments.clone(),
            kind: operation.kind,
            context: parent.with_span(span),
            began: now.checked_sub(operation.since).unwrap_or(now),
            messages: operation.batch.unwrap_or(1),
            labels: self.settings.common(operation),
            has_body_size: self.settings.body_size,
            has_ended: false,
        })
    }
}

/// A span that has started.
struct Started {
    instruments: Arc<Instruments>,
    kind: OperationKind,
    /// Context with the span.
    context: Context,
    began: Instant,
    messages: usize,
    /// Attributes of the metrics.
    labels: Vec<KeyValue>,
    has_body_size: bool,
    has_ended: bool,
}

impl Span for Started {
    fn context(&self) -> Option<TraceContext> {
        context_of(self.context.span().span_context())
    }

    fn set(&mut self, detail: Detail<'_>) {
        let span = self.context.span();
        match detail {
            Detail::Partition(partition) => span.set_attribute(partition_id(partition)),
            Detail::MessageId(id) => span.set_attribute(KeyValue::new(semconv::MESSAGE_ID, id.to_string())),
            Detail::BodySize(bytes) if self.has_body_size => span.set_attribute(body_size(bytes)),
            Detail::Messages(messages) => {
                self.messages = messages;
                span.set_attribute(message_count(messages));
            }
            Detail::CreatedIn(context) => span.add_link(span_of(context), Vec::new()),
            _ => {}
        }
    }

    fn enter(&mut self, work: &mut dyn FnMut()) {
        let _current = self.context.clone().attach();
        work();
    }

    fn end(&mut self, failed: Option<Failed>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let error = failed.map(|failed| KeyValue::new(semconv::ERROR_TYPE, failed.error));
        let span = self.context.span();
        if let Some(error) = &error {
            span.set_attribute(error.clone());
            // The type says it. A text may quote the message.
            span.set_status(Status::error(""));
        }
        span.end();
        let Instruments { operation, sent, consumed, process } = &*self.instruments;
        let counter = match self.kind {
            OperationKind::Send | OperationKind::Schedule => Some(sent),
            OperationKind::Receive | OperationKind::Process => Some(consumed),
            _ => None,
        };
        let failures = failed.map_or(0, |failed| failed.messages);
        let done = self.messages.saturating_sub(failures);
        if let Some(counter) = counter.filter(|_| done > 0) {
            counter.add(done as u64, &self.labels);
        }
        self.labels.extend(error);
        if let Some(counter) = counter.filter(|_| failures > 0) {
            counter.add(failures as u64, &self.labels);
        }
        if self.kind == OperationKind::Process {
            process.record(seconds, &self.labels);
        } else {
            let kind = semconv::operation_type(self.kind);
            self.labels.push(KeyValue::new(semconv::OPERATION_TYPE, kind));
            operation.record(seconds, &self.labels);
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end(Some(Failed { error: CANCELLED, messages: self.messages }));
    }
}

fn partition_id(partition: u32) -> KeyValue {
    KeyValue::new(semconv::PARTITION_ID, partition.to_string())
}

fn message_count(messages: usize) -> KeyValue {
    KeyValue::new(semconv::BATCH_MESSAGE_COUNT, Value::I64(i64::try_from(messages).unwrap_or(i64::MAX)))
}

fn body_size(bytes: usize) -> KeyValue {
    KeyValue::new(semconv::BODY_SIZE, Value::I64(i64::try_from(bytes).unwrap_or(i64::MAX)))
}
