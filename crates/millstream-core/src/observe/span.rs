//! Spans: what a tracer gets of sends, receives, handlers and settlements.
//!
//! Whoever runs operations asks the [`Observer`] once, at its start, for a [`Tracer`], and starts a span for each operation
//! through [`Tracing`]. Without a tracer nothing is made for a message.

use std::fmt::{self, Display};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::envelope::Headers;
use crate::error::{Error, ErrorKind};
use crate::event::Observer;
use crate::trace::{TRACEPARENT, TraceContext};
use crate::user_code::{UserCode, catch};

/// Kind of an operation on messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// Messages are sent to a topic.
    Send,
    /// Delayed messages or tasks are stored until they are due.
    Schedule,
    /// A message is handed to a caller that asked for one.
    Receive,
    /// A handler runs.
    Process,
    /// Outcomes are written to the server.
    Settle,
}

impl OperationKind {
    /// All variants.
    pub const ALL: [Self; 5] = [Self::Send, Self::Schedule, Self::Receive, Self::Process, Self::Settle];

    /// Returns the word for it in spans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Schedule => "schedule",
            Self::Receive => "receive",
            Self::Process => "process",
            Self::Settle => "settle",
        }
    }
}

/// Message of an operation.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct SpanMessage<'a> {
    /// Its headers, with the context of the span that it was sent in.
    pub headers: Option<&'a Headers>,
    /// Id of the message in its partition's log, or of the task.
    pub id: Option<&'a dyn Display>,
    /// Bytes of its payload.
    pub body: Option<usize>,
}

impl<'a> SpanMessage<'a> {
    /// Creates a message with these headers.
    #[must_use]
    pub fn new(headers: &'a Headers) -> Self {
        Self { headers: Some(headers), ..Self::default() }
    }
}

/// Operation on messages for which a span is started.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct MessagingOperation<'a> {
    /// Kind.
    pub kind: OperationKind,
    /// Topic or delay queue.
    pub destination: &'a str,
    /// Partition, or shard of a delay queue; `None` if it is not known yet, or differs between the messages.
    pub partition: Option<u32>,
    /// Group that reads the messages.
    pub group: Option<&'a str>,
    /// The messages, as far as they are known.
    pub messages: &'a [SpanMessage<'a>],
    /// Number of messages of an operation on several at once, also if it has only one; `None` for an operation on a single message.
    pub batch: Option<usize>,
    /// Number of the attempt, from 1.
    pub attempt: Option<u32>,
    /// How long ago the operation began.
    pub since: Duration,
    /// Whether messages without a context of their own carry that of this span; not if they are passed on as they were stored.
    pub is_carried: bool,
}

impl<'a> MessagingOperation<'a> {
    /// Creates an operation on one message that begins now.
    #[must_use]
    pub fn new(kind: OperationKind, destination: &'a str) -> Self {
        let (partition, group, batch, attempt) = (None, None, None, None);
        let (messages, since, is_carried) = (&[], Duration::ZERO, true);
        Self { kind, destination, partition, group, messages, batch, attempt, since, is_carried }
    }

    /// Creates an operation that passes on messages as they were stored, and that began some time ago.
    #[must_use]
    pub fn passing_on(kind: OperationKind, destination: &'a str, messages: &'a [SpanMessage<'a>]) -> Self {
        Self { messages, batch: Some(messages.len()), is_carried: false, ..Self::new(kind, destination) }
    }

    /// Makes the span of the operation, which has ended, if the observer has a tracer.
    pub fn record(&self, failed: Option<Failed>, observer: &dyn Observer) {
        let record = || {
            if let Some(tracer) = observer.tracer() {
                tracer.start(self).end(failed);
            }
        };
        if let Err(panicked) = catch(UserCode::Observer, record) {
            observer.observe(&panicked.event());
        }
    }
}

/// What becomes known of an operation after it has begun.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Detail<'a> {
    /// The partition, or the shard.
    Partition(u32),
    /// Id of the only message.
    MessageId(&'a dyn Display),
    /// Bytes of the payload of the only message.
    BodySize(usize),
    /// Number of messages of a batch.
    Messages(usize),
    /// A message of the batch was created in this span, and not in that of the operation.
    CreatedIn(&'a TraceContext),
}

/// Failure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Kind of the error, of which there are few: that of the first message that failed.
    pub error: &'static str,
    /// Number of messages that failed.
    pub messages: usize,
}

/// Error of an operation that was dropped before it had ended.
pub const CANCELLED: &str = "cancelled";

/// Starts spans. An [`Observer`] that returns one gets all operations of whatever emits events to it.
pub trait Tracer: Send + Sync {
    /// Starts the span of an operation, as a child of what runs now.
    fn start(&self, operation: &MessagingOperation<'_>) -> Box<dyn Span>;
}

/// Span of an operation. It ends when it is dropped, as [cancelled](CANCELLED), unless it has ended before.
pub trait Span: Send {
    /// Returns the context that messages carry which are sent in this span; `None` if nothing is to be carried.
    fn context(&self) -> Option<TraceContext>;

    /// Adds what has become known.
    fn set(&mut self, detail: Detail<'_>);

    /// Calls `work` once, in this span: spans that start meanwhile are its children.
    fn enter(&mut self, work: &mut dyn FnMut());

    /// Ends the span.
    fn end(&mut self, failed: Option<Failed>);
}

/// The tracer of an observer, whose panics are caught.
#[derive(Clone)]
pub struct Tracing {
    tracer: Arc<dyn Tracer>,
    observer: Arc<dyn Observer>,
}

impl Tracing {
    /// Returns that of this observer, if it has one.
    #[must_use]
    pub fn of(observer: &Arc<dyn Observer>) -> Option<Self> {
        let tracer = careful(observer, || observer.tracer()).flatten()?;
        Some(Self { tracer, observer: observer.clone() })
    }

    /// Starts the span of an operation.
    #[must_use]
    pub fn start(&self, operation: &MessagingOperation<'_>) -> ActiveSpan {
        let span = careful(&self.observer, || self.tracer.start(operation));
        ActiveSpan { span, observer: self.observer.clone() }
    }

    /// Starts the span of a send, and has the message carry its context.
    #[must_use]
    pub fn sends(&self, kind: OperationKind, destination: &str, headers: &mut Headers) -> ActiveSpan {
        let messages = [SpanMessage::new(headers)];
        let span = self
            .start(&MessagingOperation { messages: &messages, ..MessagingOperation::new(kind, destination) });
        span.stamp(headers);
        span
    }

    /// Starts the span of a send of several messages.
    #[must_use]
    pub fn sends_all(&self, kind: OperationKind, destination: &str) -> ActiveSpan {
        self.start(&MessagingOperation { batch: Some(0), ..MessagingOperation::new(kind, destination) })
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracing")
    }
}

/// A span that was started through [`Tracing`].
pub struct ActiveSpan {
    /// `None` if the tracer panicked.
    span: Option<Box<dyn Span>>,
    observer: Arc<dyn Observer>,
}

impl ActiveSpan {
    /// Adds what has become known.
    pub fn set(&mut self, detail: Detail<'_>) {
        if let Some(span) = &mut self.span {
            careful(&self.observer, || span.set(detail));
        }
    }

    /// Adds the headers with the context of this span, unless the message has one of its own: that was set on purpose, and stays.
    fn stamp(&self, headers: &mut Headers) {
        if !has_context(headers)
            && let Some(context) = self.context()
        {
            context.headers().for_each(|(name, value)| headers.append(name, value));
        }
    }

    /// Does the same for a message of a batch, and links to a context of its own.
    pub fn stamp_one_of_many(&mut self, headers: &mut Headers) {
        if let Some(own) = TraceContext::of(headers) {
            self.set(Detail::CreatedIn(&own));
        }
        self.stamp(headers);
    }

    fn context(&self) -> Option<TraceContext> {
        let span = self.span.as_ref()?;
        careful(&self.observer, || span.context()).flatten()
    }

    /// Awaits a future in this span.
    pub async fn within<R>(&mut self, mut future: Pin<Box<dyn Future<Output = R> + Send + '_>>) -> R {
        poll_fn(|task| {
            let mut polled = None;
            let mut poll = || {
                if polled.is_none() {
                    polled = Some(future.as_mut().poll(task));
                }
            };
            if let Some(span) = &mut self.span {
                careful(&self.observer, || span.enter(&mut poll));
            }
            // Without a span, or if it did not call.
            poll();
            polled.unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Ends the span.
    pub fn end(mut self, failed: Option<Failed>) {
        if let Some(span) = &mut self.span {
            careful(&self.observer, || span.end(failed));
        }
    }

    /// Ends the span of an operation on so many messages that all failed, if there is an error.
    pub fn end_with(self, error: Option<&Error>, messages: usize) {
        self.end(error.map(|error| Failed { error: error.kind().as_str(), messages }));
    }

    /// Ends the span of a batch. The results of its messages are their partitions, and the kinds of errors.
    pub fn end_all(mut self, results: &mut dyn Iterator<Item = Result<u32, ErrorKind>>) {
        let (mut messages, mut partitions, mut failed) = (0, None, None::<Failed>);
        for result in results {
            messages += 1;
            match result {
                Ok(partition) => {
                    let (first, same) = partitions.get_or_insert((partition, true));
                    *same &= *first == partition;
                }
                Err(error) => {
                    failed.get_or_insert(Failed { error: error.as_str(), messages: 0 }).messages += 1;
                }
            }
        }
        self.set(Detail::Messages(messages));
        if let Some((partition, true)) = partitions {
            self.set(Detail::Partition(partition));
        }
        self.end(failed);
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            careful(&self.observer, || drop(span));
        }
    }
}

impl fmt::Debug for ActiveSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ActiveSpan")
    }
}

/// Whether a message has a trace context, also an invalid one.
fn has_context(headers: &Headers) -> bool {
    headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT))
}

/// Calls the tracer. `None` if it panics.
fn careful<R>(observer: &Arc<dyn Observer>, call: impl FnOnce() -> R) -> Option<R> {
    catch(UserCode::Observer, call).inspect_err(|panicked| observer.observe(&panicked.event())).ok()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use super::*;
    use crate::event::Event;

    /// Observer whose tracer panics in the call with this number, and that counts the panics that it receives.
    #[derive(Default)]
    struct Panics {
        at: usize,
        calls: AtomicUsize,
        told: AtomicUsize,
    }

    impl Panics {
        fn call(&self) {
            assert_ne!(self.calls.fetch_add(1, Ordering::Relaxed), self.at, "the tracer panics");
        }
    }

    struct Seen(Arc<Panics>);

    impl Observer for Seen {
        fn observe(&self, event: &Event<'_>) {
            assert!(matches!(event, Event::Panicked { code: UserCode::Observer, .. }), "{event:?}");
            self.0.told.fetch_add(1, Ordering::Relaxed);
        }

        fn tracer(&self) -> Option<Arc<dyn Tracer>> {
            self.0.call();
            Some(Arc::new(self.0.clone()))
        }
    }

    impl Tracer for Arc<Panics> {
        fn start(&self, _: &MessagingOperation<'_>) -> Box<dyn Span> {
            self.call();
            Box::new(Panicking(self.clone()))
        }
    }

    struct Panicking(Arc<Panics>);

    impl Span for Panicking {
        fn context(&self) -> Option<TraceContext> {
            self.0.call();
            TraceContext::new([1; 16], [2; 8], true)
        }

        fn set(&mut self, _: Detail<'_>) {
            self.0.call();
        }

        fn enter(&mut self, work: &mut dyn FnMut()) {
            self.0.call();
            work();
        }

        fn end(&mut self, _: Option<Failed>) {
            self.0.call();
        }
    }

    #[test]
    fn a_tracer_that_panics_neither_stops_the_work_nor_repeats_it() {
        for at in 0..7 {
            let panics = Arc::new(Panics { at, ..Panics::default() });
            let observer: Arc<dyn Observer> = Arc::new(Seen(panics.clone()));
            let tracing = Tracing::of(&observer);
            let mut headers = Headers::new();
            let mut span = tracing.map(|it| it.sends(OperationKind::Send, "orders", &mut headers));
            if let Some(span) = &mut span {
                span.set(Detail::Partition(0));
                let mut runs = 0;
                {
                    let mut within = pin!(span.within(Box::pin(async { runs += 1 })));
                    let polled = within.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    assert!(polled.is_ready(), "{at}");
                }
                assert_eq!(runs, 1, "{at}");
            }
            if let Some(span) = span {
                span.end(None);
            }
            let expected = usize::from(at < 6);
            assert_eq!(panics.told.load(Ordering::Relaxed), expected, "a panic in call {at}");
            assert_eq!(headers.len(), usize::from(at > 2), "{at}");
        }
    }
}
