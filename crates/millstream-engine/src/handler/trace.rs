//! A span of `tracing` for each message.

use std::fmt::Write;

use async_trait::async_trait;
use bytes::Bytes;
use tracing::field::{Empty, display};
use tracing::{Instrument, Level, Span};

use super::layer::{Answer, Layer, Next};
use crate::delivery::Delivery;

/// Layer that runs the layers inside of it and the handler in a span of `tracing`, so that everything they log has the message's
/// place.
///
/// The span is named `process` and has these fields; it never has payload, key or header values, except for the trace id:
///
/// | field | value |
/// |---|---|
/// | `topic`, `partition`, `group` | where the message was read, and for whom; for a task its queue and shard, and no group |
/// | `origin` | id of the message in its partition's log, or of the task: the same on every attempt |
/// | `attempt` | number of the attempt, from 1 |
/// | `sent_trace_id` | trace in which it was sent, if it has a valid header `traceparent` |
/// | `outcome` | at the end: `acked`, `snoozed`, `unhandled` (it stays pending) or the [cause](millstream_core::event::Cause) of the failure, such as `error` or `timeout` |
///
/// The level is `INFO` unless [`level`](Self::level) says otherwise. Add it as the first layer, so that the others are inside. If a layer
/// inside panics or a `handler_timeout` ends it, the span has no `outcome`.
///
/// ```
/// # use millstream_engine::Trace;
/// // mq.consumer(CHARGES, "billing").layer(trace).start(charge)
/// let trace = Trace::new().level(tracing::Level::DEBUG);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    level: Level,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

/// A span at a level, which has to be a constant.
macro_rules! span {
    ($level:expr, $delivery:expr) => {
        tracing::span!(
            $level,
            "process",
            topic = %$delivery.topic_partition().topic,
            partition = $delivery.topic_partition().partition.0,
            group = $delivery.about.group(),
            origin = %$delivery.about.lasting_id(),
            attempt = $delivery.attempt(),
            sent_trace_id = Empty,
            outcome = Empty,
        )
    };
}

impl Trace {
    /// Creates spans of level `INFO`.
    #[must_use]
    pub const fn new() -> Self {
        Self { level: Level::INFO }
    }

    /// Sets the level of the spans. Default: `INFO`.
    #[must_use]
    pub const fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    fn span(self, delivery: &Delivery<Bytes>) -> Span {
        let span = match self.level {
            Level::ERROR => span!(Level::ERROR, delivery),
            Level::WARN => span!(Level::WARN, delivery),
            Level::INFO => span!(Level::INFO, delivery),
            Level::DEBUG => span!(Level::DEBUG, delivery),
            Level::TRACE => span!(Level::TRACE, delivery),
        };
        if !span.is_disabled()
            && let Some(sent) = delivery.trace()
        {
            let mut id = String::with_capacity(32);
            for byte in sent.trace_id {
                // A string has room for all that is written.
                let _ = write!(id, "{byte:02x}");
            }
            span.record("sent_trace_id", display(id));
        }
        span
    }
}

#[async_trait]
impl Layer for Trace {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let span = self.span(&delivery);
        let answer = next.run(delivery).instrument(span.clone()).await;
        span.record("outcome", answer.word());
        answer
    }
}
