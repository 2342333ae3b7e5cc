//! Times as the scripts read them.

use std::time::Duration;

use millstream_core::schedule::Due;
use millstream_core::steps::StepWait;

/// Formats a due time for scripts: `+` and microseconds from now, rounded up, or a time in milliseconds.
pub(crate) fn due(due: Due) -> String {
    match due {
        Due::In(delay) => format!("+{}", delay.min(Due::FAR).as_nanos().div_ceil(1_000)),
        // Lua counts exactly up to 2^53 only; the script's own limit is lower.
        Due::At(at) => at.as_millis().min(1 << 52).to_string(),
    }
}

/// Returns milliseconds, rounded up so that nothing is early, and at most 2^52, since Lua counts exactly up to 2^53.
pub(crate) fn ceil_ms(after: Duration) -> u64 {
    u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(1 << 52)
}

/// Returns the wait of a retry as scripts take it; empty for none.
pub(crate) fn wait_words(wait: Option<&StepWait>) -> String {
    wait.map_or_else(String::new, |wait| format!("{} {}", if wait.signal { 's' } else { '-' }, wait.name))
}

#[cfg(test)]
mod tests {
    use millstream_core::Timestamp;

    use super::*;

    #[test]
    fn after_is_rounded_up_and_never_overflows() {
        assert_eq!(ceil_ms(Duration::ZERO), 0);
        assert_eq!(ceil_ms(Duration::from_nanos(1)), 1);
        assert_eq!(ceil_ms(Duration::from_millis(5)), 5);
        assert_eq!(ceil_ms(Duration::MAX), 1 << 52);
    }

    #[test]
    fn due_times_are_told_exactly_and_never_overflow() {
        assert_eq!(due(Due::NOW), "+0");
        assert_eq!(due(Due::In(Duration::from_nanos(1))), "+1");
        assert_eq!(due(Due::In(Duration::MAX)), format!("+{}", Due::FAR.as_micros()));
        assert_eq!(due(Due::At(Timestamp::from_millis(1_700_000_000_123))), "1700000000123");
        assert_eq!(due(Due::At(Timestamp::from_millis(u64::MAX))), (1u64 << 52).to_string());
    }
}
