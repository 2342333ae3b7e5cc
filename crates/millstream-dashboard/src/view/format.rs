//! Numbers, times and sizes for people.

use std::time::Duration;

use millstream::{DeadLetterRetention, Retention, Timestamp};

/// Formats a count: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number that may be unknown: `7`, `?`.
pub(crate) fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), count)
}

/// Formats a number that may be unknown, or known only as a lower bound: `7`, `≥ 10,000`, `?`.
pub(crate) fn at_least(known: Option<u64>, at_least: u64) -> String {
    match known {
        Some(number) => count(number),
        None if at_least > 0 => format!("≥ {}", count(at_least)),
        None => "?".to_owned(),
    }
}

/// Formats a rate per second: `0`, `0.25`, `12.5`, `1,234`; unknown is `?`.
pub(crate) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "?".to_owned(),
        Some(rate) if rate >= 99.95 => count(rate.round() as u64),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 0.01 => "< 0.01".to_owned(),
        Some(rate) if rate < 0.995 => format!("{rate:.2}"),
        Some(rate) => format!("{rate:.1}"),
    }
}

/// Formats a size: `512 B`, `1.5 KiB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1_024 {
        return format!("{number} B");
    }
    let (mut value, mut unit) = (number as f64 / 1_024.0, 0);
    while value >= 1_023.95 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a duration in its two largest units: `350 ms`, `12.5 s`, `3 min 20 s`, `2 d 5 h`.
pub(crate) fn duration(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = time.as_secs();
    if time.as_millis() < 1_000 {
        return format!("{} ms", time.as_millis());
    }
    if seconds < 60 {
        let tenths = time.subsec_millis() / 100;
        return if tenths == 0 { format!("{seconds} s") } else { format!("{seconds}.{tenths} s") };
    }
    let largest = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[largest];
    let (next, next_name) = UNITS[(largest + 1).min(UNITS.len() - 1)];
    match seconds % unit / next {
        0 => format!("{} {name}", count(seconds / unit)),
        rest => format!("{} {name} {rest} {next_name}", count(seconds / unit)),
    }
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
        other => other.to_string(),
    }
}

/// Formats a retention of dead letters in words.
pub(crate) fn dead_letter_retention(of: DeadLetterRetention) -> String {
    let age = of.max_age().map(|age| format!("for {}", duration(age)));
    let length = of.max_length().map(|length| format!("the newest {}", count(length)));
    let rules: Vec<_> = age.into_iter().chain(length).collect();
    if rules.is_empty() { "for ever".to_owned() } else { rules.join(", ") }
}

/// Formats a number with its noun: `1 topic`, `2 topics`.
pub(crate) fn of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([at_least(None, 20_000), at_least(None, 0)], ["≥ 20,000", "?"]);
        assert_eq!([rate(None), rate(Some(0.25)), rate(Some(12_345.6))], ["?", "0.25", "12,346"]);
        assert_eq!([bytes(512), bytes(1_536)], ["512 B", "1.5 KiB"]);
        assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
    }
}
