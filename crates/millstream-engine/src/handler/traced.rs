//! Spans of handlers, and of messages that are pulled.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::event::Cause;
use millstream_core::span::{ActiveSpan, Failed, MessagingOperation, OperationKind, SpanMessage, Tracing};

use super::{BatchCall, Call, ErasedHandler, Handle, Input, Said, Verdict};
use crate::delivery::DeliveryMetadata;

impl ErasedHandler {
    /// Returns the handler with a span around each of its calls, if there is a tracer.
    pub fn traced(self, tracing: Option<&Tracing>) -> Self {
        let Some(tracing) = tracing.cloned() else { return self };
        match self {
            Self::Each(handler) => Self::Each(Box::new(Arc::new(Traced { tracing, handler }))),
            Self::Batch(config, call) => Self::Batch(config, batch(tracing, call)),
        }
    }
}

/// A handler of single messages with its tracer.
struct Traced {
    tracing: Tracing,
    handler: Box<dyn Call>,
}

impl Handle for Traced {
    fn declines(&self) -> bool {
        self.handler.declines()
    }

    fn replies(&self) -> bool {
        self.handler.replies()
    }

    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        let (kind, body) = (OperationKind::Process, input.payload.len());
        let mut span = of_delivery(&self.tracing, kind, &input.about, body, Duration::ZERO);
        let verdict = span.within(self.handler.one(input, timeout)).await.0;
        span.end(verdict.as_ref().and_then(Verdict::cause).map(|cause| failed(cause, 1)));
        verdict
    }
}

/// Returns a handler of batches with a span around each call.
fn batch(tracing: Tracing, call: Box<BatchCall>) -> Box<BatchCall> {
    let shared = Arc::new((tracing, call));
    Box::new(move |inputs: Vec<Input>, timeout| {
        let shared = shared.clone();
        async move {
            let (tracing, call) = &*shared;
            let span = {
                let messages = inputs.iter().map(|input| (&input.about, input.payload.len()));
                of_batch(tracing, &messages.collect::<Vec<_>>())
            };
            let Some(mut span) = span else { return call(inputs, timeout).await };
            let said: Vec<Said> = span.within(call(inputs, timeout)).await;
            let mut causes = said.iter().filter_map(|said| said.verdict().cause());
            let first = causes.next();
            span.end(first.map(|cause| failed(cause, 1 + causes.count())));
            said
        }
        .boxed()
    })
}

fn failed(cause: Cause, messages: usize) -> Failed {
    Failed { error: cause.as_str(), messages }
}

/// Starts the span of one message that was read, with so many bytes of payload.
pub fn of_delivery(
    tracing: &Tracing,
    kind: OperationKind,
    about: &DeliveryMetadata,
    body: usize,
    since: Duration,
) -> ActiveSpan {
    let mut operation = MessagingOperation::new(kind, about.scope.topic_partition.topic.as_str());
    operation.attempt = Some(about.attempt);
    operation.since = since;
    start(tracing, operation, &[(about, body)])
}

/// Starts the span of a batch of messages of one partition that were read.
fn of_batch(tracing: &Tracing, messages: &[(&DeliveryMetadata, usize)]) -> Option<ActiveSpan> {
    let topic_partition = &messages.first()?.0.scope.topic_partition;
    let mut operation = MessagingOperation::new(OperationKind::Process, topic_partition.topic.as_str());
    operation.batch = Some(messages.len());
    Some(start(tracing, operation, messages))
}

fn start<'a>(
    tracing: &Tracing,
    operation: MessagingOperation<'a>,
    messages: &'a [(&'a DeliveryMetadata, usize)],
) -> ActiveSpan {
    let mut operation = operation;
    let of = |(about, body): &(&'a DeliveryMetadata, usize)| {
        let mut message = SpanMessage::new(&about.headers);
        message.id = Some(about.lasting_id());
        message.body = Some(*body);
        message
    };
    let first = messages.first().map(|(about, _)| about);
    operation.partition = first.map(|about| about.scope.topic_partition.partition.0);
    operation.group = first.and_then(|about| about.group());
    let messages: Vec<_> = messages.iter().map(of).collect();
    operation.messages = &messages;
    tracing.start(&operation)
}
