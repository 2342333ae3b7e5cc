//! W3C trace context: two headers that link the work of a consumer to the span in which a producer sent the message.
//!
//! Millstream carries headers and inspects none; this module is for senders and handlers, with or without a tracing
//! library.

use std::fmt;

use crate::envelope::Headers;

/// The header with trace, span and flags.
pub const TRACEPARENT: &str = "traceparent";

/// The header with vendor-specific data.
pub const TRACESTATE: &str = "tracestate";

/// Longest `tracestate` that is accepted, in bytes.
pub const MAX_STATE_LEN: usize = 512;

/// Span in which a message was sent.
///
/// ```
/// use millstream_core::trace::TraceContext;
/// use millstream_core::Headers;
///
/// let mut headers = Headers::new();
/// headers.append("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
/// let sent = TraceContext::of(&headers).expect("a trace context");
/// assert!(sent.is_sampled());
/// assert_eq!(sent.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TraceContext {
    /// Id of the trace: not zero.
    pub trace_id: [u8; 16],
    /// Id of the span in it: not zero.
    pub span_id: [u8; 8],
    /// Flags; the lowest bit means that the trace is sampled.
    pub flags: u8,
    /// Vendor-specific data, as it was read; may be empty.
    pub state: String,
}

impl TraceContext {
    /// Creates the context of a span; `None` if either id is zero, which means "none".
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Option<Self> {
        let any = trace_id != [0; 16] && span_id != [0; 8];
        any.then(|| Self { trace_id, span_id, flags: u8::from(sampled), state: String::new() })
    }

    /// Reads the two headers of a message. Returns `None` if there is no `traceparent`, more than one, or an invalid one:
    /// a new trace is then started. A bad `tracestate` is left out.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        let only = |name: &str| {
            let mut all = headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            let first = all.next().map(|(_, value)| value)?;
            all.next().is_none().then_some(first)
        };
        let mut context = Self::parse(std::str::from_utf8(only(TRACEPARENT)?).ok()?)?;
        let state = only(TRACESTATE).and_then(|state| std::str::from_utf8(state).ok());
        let printable =
            |state: &&str| state.len() <= MAX_STATE_LEN && state.bytes().all(|b| (0x20..0x7f).contains(&b));
        context.state = state.filter(printable).unwrap_or_default().to_owned();
        Some(context)
    }

    /// Parses a `traceparent`: `version-trace-span-flags`, in lower-case hexadecimal. Of later versions, the parts that
    /// the first version defines are read.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let [version] = hex(parts.next()?)?;
        let (trace_id, span_id) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags] = hex(parts.next()?)?;
        let more = parts.next().is_some();
        if version == 0xff || (version == 0 && more) {
            return None;
        }
        let context = Self::new(trace_id, span_id, false)?;
        // In a later version only this flag has a known meaning.
        Some(Self { flags: if version == 0 { flags } else { flags & 1 }, ..context })
    }

    /// Whether the trace is sampled.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// Returns the headers of a message that is sent in this span: names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> + use<'_> {
        let state = (!self.state.is_empty()).then(|| (TRACESTATE, self.state.clone()));
        [(TRACEPARENT, self.to_string())].into_iter().chain(state)
    }
}

/// Writes the value of `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        f.write_str("00-")?;
        bytes(f, &self.trace_id)?;
        f.write_str("-")?;
        bytes(f, &self.span_id)?;
        write!(f, "-{:02x}", self.flags)
    }
}

/// Parses exactly `N` bytes in lower-case hexadecimal.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.append(*name, value.as_bytes().to_vec());
        }
        headers
    }

    #[test]
    fn what_is_written_is_read() {
        let context =
            TraceContext::of(&headers(&[("traceparent", GOOD), ("tracestate", "a=1,b=2")])).expect("one");
        assert_eq!((context.trace_id[0], context.span_id[7], context.is_sampled()), (0x4b, 0xb7, true));
        let written: Vec<_> = context.headers().collect();
        assert_eq!(written, [(TRACEPARENT, GOOD.to_owned()), (TRACESTATE, "a=1,b=2".to_owned())]);
        let pairs: Vec<_> = written.iter().map(|(name, value)| (*name, &**value)).collect();
        assert_eq!(TraceContext::of(&headers(&pairs)), Some(context));
    }

    #[test]
    fn a_later_version_may_say_more() {
        let later = format!("cc{}-what-comes", &GOOD[2..]);
        assert_eq!(TraceContext::parse(&later).map(|it| it.to_string()).as_deref(), Some(GOOD));
    }

    #[test]
    fn what_is_no_trace_context_is_none() {
        let upper = GOOD.to_uppercase();
        let more = format!("{GOOD}-more");
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e473ü-00f067aa0ba902b-01",
            &upper,
            &more,
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        assert_eq!(
            TraceContext::of(&headers(&[("traceparent", GOOD), ("Traceparent", GOOD)])),
            None,
            "which?"
        );
        assert_eq!(TraceContext::of(&headers(&[("tracestate", "a=1")])), None);
        let long = "x".repeat(MAX_STATE_LEN + 1);
        for state in ["ü", "a\nb", &long] {
            let context =
                TraceContext::of(&headers(&[("traceparent", GOOD), ("tracestate", state)])).expect("one");
            assert_eq!(context.state, "");
        }
    }
}
