//! Numbers, times and sizes for people.

use std::time::Duration;

use millstream::admin::human;
pub(crate) use millstream::admin::human::{bytes, count, duration, known, of};
use millstream::crates::core::packing::Packing;
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

/// Formats a duration in its largest unit: `13 min`.
pub(crate) fn largest(time: Duration) -> String {
    let text = duration(time);
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Formats a time as one that is so long ago, or so far away: `13 min ago`, `in 3 min`. One that is further away than two months
/// is a date.
pub(crate) fn ago(time: Timestamp, now: Timestamp) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let (now, time_ms) = (now.as_millis(), time.as_millis());
    let seconds = now.abs_diff(time_ms) / 1_000;
    let Some((unit, name)) = UNITS.iter().find(|(unit, _)| seconds >= *unit) else { return "now".to_owned() };
    match seconds / unit {
        days if *unit == 86_400 && days > 60 => time.to_string().chars().take(10).collect(),
        number if time_ms > now => format!("in {number} {name}"),
        number => format!("{number} {name} ago"),
    }
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

/// Formats how messages are packed in words.
pub(crate) fn packing(of: Option<&Packing>) -> String {
    let Some(it) = of else { return "no: each is an entry".to_owned() };
    let (least, most, size) = (it.least(), it.messages(), bytes(it.bytes() as u64));
    format!("{least} to {most} together, up to {size}, compression {}", it.compressed().as_str())
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
    fn times_are_so_long_ago() {
        let (now, at) = (Timestamp::from_millis(1_769_860_800_000), Timestamp::from_millis);
        for (ms, expected) in [
            (1_769_860_800_000, "now"),
            (1_769_860_799_100, "now"),
            (1_769_860_741_000, "59 s ago"),
            (1_769_860_000_000, "13 min ago"),
            (1_769_860_980_000, "in 3 min"),
            (1_769_850_000_000, "3 h ago"),
            (1_769_600_000_000, "3 d ago"),
            (1_700_000_000_000, "2023-11-14"),
        ] {
            assert_eq!(ago(at(ms), now), expected, "{ms}");
        }
    }

    #[test]
    fn what_is_not_known_is_told() {
        assert_eq!([at_least(None, 20_000), at_least(None, 0)], ["≥ 20,000", "?"]);
        assert_eq!([rate(None), rate(Some(0.25)), rate(Some(12_345.6))], ["?", "0.25", "12,346"]);
    }
}
