//! Numbers, times and sizes for people.

use millstream::admin::human;
pub(crate) use millstream::admin::human::{bytes, count, duration, known, of};
use millstream::{DeadLetterRetention, Retention, Timestamp};

/// Formats a number that may be unknown, or known only as a lower bound: `7`, `≥ 10,000`, `?`.
pub(crate) fn at_least(known: Option<u64>, at_least: u64) -> String {
    match known {
        Some(number) => count(number),
        None if at_least > 0 => format!("≥ {}", count(at_least)),
        None => "?".to_owned(),
    }
}

/// Formats a rate per second, or `?`.
pub(crate) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "?".to_owned(), human::rate)
}

/// Formats a time: `2026-01-31T12:00:00.123Z` is read more easily with a space.
pub(crate) fn time(time: Timestamp) -> String {
    time.to_string().replace('T', " ").replace('Z', " UTC")
}

/// Formats a retention in words.
pub(crate) fn retention(of: Retention) -> String {
    match of {
        Retention::Consumed => "until every group has settled them".to_owned(),
        Retention::ConsumedAfter(time) => {
            format!("until every group has settled them, at least {}", duration(time))
        }
        Retention::Age(time) => format!("for {}, read or not", duration(time)),
        Retention::Length(entries) => format!("the newest {} of a partition, read or not", count(entries)),
        Retention::Keep => "for ever".to_owned(),
    }
}

/// Formats a retention of dead letters in words.
pub(crate) fn dead_letter_retention(of: DeadLetterRetention) -> String {
    let age = of.max_age().map(|age| format!("for {}", duration(age)));
    let length = of.max_length().map(|length| format!("the newest {}", count(length)));
    let rules: Vec<_> = age.into_iter().chain(length).collect();
    if rules.is_empty() { "for ever".to_owned() } else { rules.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_told() {
        assert_eq!([at_least(None, 20_000), at_least(None, 0)], ["≥ 20,000", "?"]);
        assert_eq!([rate(None), rate(Some(0.25)), rate(Some(12_345.6))], ["?", "0.25", "12,346"]);
    }
}
