//! Numbers, times and sizes for people, as the command and the dashboard show and read them.

use std::time::Duration;

/// Formats a count: `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
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
#[must_use]
pub fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), count)
}

/// Formats a rate per second: `0`, `0.25`, `12.5`, `1,234`.
#[must_use]
pub fn rate(rate: f64) -> String {
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

/// Formats a size: `512 B`, `1.5 KiB`, `3.0 GiB`.
#[must_use]
pub fn bytes(number: u64) -> String {
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
#[must_use]
pub fn duration(time: Duration) -> String {
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

/// Units of durations as they are typed, in milliseconds, the largest first.
const TYPED: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Formats a duration in the largest unit that is exact, as [`span`] reads it: `90m`. It is rounded up to milliseconds.
#[must_use]
pub fn exact(time: Duration) -> String {
    let ms = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let unit = TYPED.iter().find(|(_, unit)| ms > 0 && ms.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{ms}ms"), |(name, unit)| format!("{}{name}", ms / unit))
}

/// Parses a duration: `500ms`, `30s`, `5m`, `2h`, `7d`, `1h30m`.
#[must_use]
pub fn span(text: &str) -> Option<Duration> {
    let (mut rest, mut sum, mut last) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() || last == u64::MAX {
        let at = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..at].parse().ok()?;
        let end = rest[at..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |more| at + more);
        let name = if &rest[at..end] == "min" { "m" } else { &rest[at..end] };
        let (_, unit) = *TYPED.iter().find(|(unit, _)| *unit == name)?;
        // Units must descend, each used once: `30m1h` is taken for a mistake.
        sum = number.checked_mul(unit).filter(|_| unit < last)?.checked_add(sum)?;
        (rest, last) = (&rest[end..], unit);
    }
    Some(Duration::from_millis(sum))
}

/// Formats a number with its noun: `1 topic`, `2 topics`.
#[must_use]
pub fn of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Shortens the name of a member: its unique part is cut to what distinguishes it from others.
#[must_use]
pub fn member(name: &str) -> String {
    let is_unique = |part: &str| part.len() == 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.rsplit_once('-').filter(|(_, part)| is_unique(part)) {
        Some((label, unique)) => format!("{label}-{}", &unique[..8]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_digits_that_matter() {
        let texts = [0.0, 0.004, 0.25, 0.996, 12.54, 99.96, 1_234.4].map(rate);
        assert_eq!(texts, ["0", "< 0.01", "0.25", "1.0", "12.5", "100", "1,234"]);
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
    fn durations_are_read_as_they_are_written() {
        for (text, ms) in
            [("7d", 604_800_000), ("36h", 129_600_000), ("90s", 90_000), ("5m", 300_000), ("1500ms", 1_500)]
        {
            assert_eq!(span(text), Some(Duration::from_millis(ms)), "{text}");
            assert_eq!(exact(Duration::from_millis(ms)), text);
        }
        assert_eq!(span("1h30m"), Some(Duration::from_secs(5_400)));
        assert_eq!((exact(Duration::from_nanos(1)), exact(Duration::ZERO)), ("1ms".into(), "0ms".into()));
        for wrong in ["", "30m1h", "1s1s", "7", "d", "-1d", "1.5h", "999999999999999d", "7 d", "ü"] {
            assert_eq!(span(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn counts_have_separators() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((of(1, "topic", "topics"), known(None)), ("1 topic".into(), "?".into()));
    }
}
