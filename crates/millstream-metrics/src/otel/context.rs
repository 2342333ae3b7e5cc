//! Contexts of spans, as messages carry them.

use std::str::FromStr;

use millstream_core::Headers;
use millstream_core::trace::TraceContext;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Returns the headers of a message that is sent in this span: names and values, for `send(..).header(name, value)`.
/// Empty if the span has no context, which means that nothing is recorded.
#[must_use]
pub fn headers(span: &SpanContext) -> Vec<(&'static str, String)> {
    context_of(span).iter().flat_map(TraceContext::headers).collect()
}

pub(super) fn context_of(span: &SpanContext) -> Option<TraceContext> {
    let (trace, id) = (span.trace_id().to_bytes(), span.span_id().to_bytes());
    let mut context = TraceContext::new(trace, id, span.is_sampled())?;
    context.flags = span.trace_flags().to_u8();
    context.state = span.trace_state().header();
    Some(context)
}

/// Returns the span that a message was sent in; `None` if it was sent without one.
#[must_use]
pub fn sent_in(headers: &Headers) -> Option<SpanContext> {
    Some(span_of(&TraceContext::of(headers)?))
}

pub(super) fn span_of(context: &TraceContext) -> SpanContext {
    let state = TraceState::from_str(&context.state).unwrap_or_default();
    let (trace, span) = (TraceId::from_bytes(context.trace_id), SpanId::from_bytes(context.span_id));
    SpanContext::new(trace, span, TraceFlags::new(context.flags), true, state)
}
