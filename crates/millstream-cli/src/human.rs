//! Formats numbers, times and sizes for people. JSON output has the raw values.

use std::time::Duration;

pub(crate) use millstream::admin::human::{bytes, count, duration, exact, known, member, of, rate};
use millstream::{DeadLetterRetention, Retention, Timestamp};

/// Formats a number that may be unknown, or known only as a lower bound: `7`, `>= 10,000`, `?`.
pub(crate) fn at_least(known: Option<u64>, at_least: u64) -> String {
    match known {
        Some(number) => count(number),
        None if at_least > 0 => format!(">= {}", count(at_least)),
        None => "?".to_owned(),
    }
}

/// Formats a time as `2026-01-31T12:00:00.000Z`.
pub(crate) fn time(time: Timestamp) -> String {
    time.to_string()
}

/// Formats a retention as it can be typed: `age:7d`.
pub(crate) fn retention(of: Retention) -> String {
    match of {
        Retention::ConsumedAfter(time) => format!("consumed-after:{}", exact(time)),
        Retention::Age(time) => format!("age:{}", exact(time)),
        other => other.to_string(),
    }
}

/// Formats a retention of dead letters as it can be typed: `age:30d,length:100000`.
pub(crate) fn dead_letter_retention(of: DeadLetterRetention) -> String {
    let age = of.max_age().map(|age| format!("age:{}", exact(age)));
    let length = of.max_length().map(|length| format!("length:{length}"));
    let rules: Vec<_> = age.into_iter().chain(length).collect();
    if rules.is_empty() { "keep".to_owned() } else { rules.join(",") }
}

/// Converts a duration to whole milliseconds, rounded down.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the step of a curve that has this part of its height.
pub(crate) fn step(part: f64) -> char {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    STEPS[((part * 7.0).round() as usize).min(7)]
}

/// Formats a value that may be absent.
pub(crate) fn or_none<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_only_as_a_bound_says_so() {
        assert_eq!(at_least(Some(0), 0), "0");
        assert_eq!(at_least(None, 20_000), ">= 20,000");
        assert_eq!(at_least(None, 0), "?");
    }

    #[test]
    fn a_member_is_told_in_short() {
        let name = "host-1-0123456789abcdef0123456789abcdef";
        assert_eq!(member(name), "host-1-01234567");
        for short in ["mine", "a-b", "host-0123456789abcdef0123456789abcdeX"] {
            assert_eq!(member(short), short);
        }
    }

    #[test]
    fn instants_are_rfc_3339() {
        assert_eq!(time(Timestamp::from_millis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert_eq!(time(Timestamp::from_millis(u64::MAX)), format!("{} ms", u64::MAX));
    }

    #[test]
    fn a_retention_reads_as_it_is_typed() {
        for text in ["consumed", "keep", "length:5", "age:7d", "consumed-after:90m", "age:25h", "age:1500ms"]
        {
            assert_eq!(super::super::parse::retention(text).map(retention).as_deref(), Ok(text));
        }
        for text in ["keep", "age:90m", "length:5", "age:1500ms,length:7"] {
            let parsed = super::super::parse::dead_letter_retention(text);
            assert_eq!(parsed.map(dead_letter_retention).as_deref(), Ok(text));
        }
    }
}
