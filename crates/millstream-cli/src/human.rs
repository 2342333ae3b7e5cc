//! Formats numbers, times and sizes for people. JSON output has the raw values.

use std::time::Duration;

use indicatif::HumanCount;
use millstream::Timestamp;
use millstream::{DeadLetterRetention, Retention};

/// Formats a count: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Formats a number that may be unknown: `7`, `?`.
pub(crate) fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), count)
}

/// Formats a rate per second: `0`, `0.25`, `12.5`, `1,234`.
pub(crate) fn rate(rate: f64) -> String {
    if rate >= 99.95 {
        count(rate.round() as u64)
    } else if rate == 0.0 {
        "0".to_owned()
    } else if rate < 0.01 {
        "< 0.01".to_owned()
    } else if rate < 0.995 {
        format!("{rate:.2}")
    } else {
        format!("{rate:.1}")
    }
}

/// Formats a number that may be unknown, or known only as a lower bound: `7`, `>= 10,000`, `?`.
pub(crate) fn at_least(known: Option<u64>, at_least: u64) -> String {
    match known {
        Some(number) => count(number),
        None if at_least > 0 => format!(">= {}", count(at_least)),
        None => "?".to_owned(),
    }
}

/// Formats a size: `512 B`, `1.5 KiB`, `3.0 GiB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1_024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1_024.0;
    let mut unit = 0;
    // From this value on it would be shown as 1024.0.
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

/// Formats a duration in the largest unit that is exact: `90m`.
pub(crate) fn exact(time: Duration) -> String {
    let ms = ms(time);
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = UNITS.iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
}

/// Formats a number with its noun: `1 topic`, `2 topics`.
pub(crate) fn of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Shortens the name of a member: its unique part is cut to what distinguishes it from others.
pub(crate) fn member(name: &str) -> String {
    let is_unique = |part: &str| part.len() == 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.rsplit_once('-').filter(|(_, part)| is_unique(part)) {
        Some((label, unique)) => format!("{label}-{}", &unique[..8]),
        None => name.to_owned(),
    }
}

/// Formats a value that may be absent.
pub(crate) fn or_none<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(at_least(Some(0), 0), "0");
        assert_eq!(at_least(None, 20_000), ">= 20,000");
        assert_eq!(at_least(None, 0), "?");
        assert_eq!(
            (of(1, "topic", "topics"), of(0, "topic", "topics")),
            ("1 topic".into(), "0 topics".into())
        );
    }

    #[test]
    fn rates_have_the_digits_that_matter() {
        let texts = [0.0, 0.004, 0.25, 0.996, 12.54, 99.96, 1_234.4].map(rate);
        assert_eq!(texts, ["0", "< 0.01", "0.25", "1.0", "12.5", "100", "1,234"]);
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
    fn sizes_name_their_unit() {
        let sizes = [0, 1_023, 1_024, 1_536, 1_048_575, 1 << 20, 3 << 30, u64::MAX];
        let texts = ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "3.0 GiB", "16.0 EiB"];
        assert_eq!(sizes.map(bytes), texts);
    }

    #[test]
    fn times_have_two_units_at_most() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (12_540, "12.5 s"),
            (59_999, "59.9 s"),
            (60_000, "1 min"),
            (200_000, "3 min 20 s"),
            (3_600_000, "1 h"),
            (7_500_000, "2 h 5 min"),
            (190_800_000, "2 d 5 h"),
            (86_400_000 * 1_500, "1,500 d"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration(Duration::from_millis(ms)), text);
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
