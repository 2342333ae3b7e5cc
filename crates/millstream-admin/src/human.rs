//! Numbers, times and sizes for people, as the command and the dashboard show and read them.

use std::time::Duration;

use millstream_core::Timestamp;

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

/// A point in time, as typed by people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This time.
    At(Timestamp),
    /// This long before now.
    Ago(Duration),
    /// This long after now.
    In(Duration),
}

impl When {
    /// Returns the time, given the current time `now`.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(time) => now.saturating_sub(time),
            Self::In(time) => now.saturating_add(time),
        }
    }
}

/// The smallest number that is read as milliseconds since 1970: a time in seconds stays below it for 3,000 years.
const LEAST_MS: u64 = 100_000_000_000;

/// Parses a point in time: `2026-01-31T12:00:00Z`, `2026-01-31 12:00 UTC`, `2026-01-31T13:00+01:00`, `2026-01-31` (its beginning in UTC),
/// `2h ago`, `13 min ago`, `in 5m`, `now`, or milliseconds since 1970 as shown with messages. A time of the day without a zone is none.
#[must_use]
pub fn when(text: &str) -> Option<When> {
    if text == "now" {
        return Some(When::In(Duration::ZERO));
    }
    if let Some(time) = text.strip_suffix("ago") {
        return shown(time).map(When::Ago);
    }
    if let Some(time) = text.strip_prefix("in ") {
        return shown(time).map(When::In);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|ms| *ms >= LEAST_MS).map(|ms| When::At(Timestamp::from_millis(ms)));
    }
    let (date, time) = match text.get(10..11) {
        None => (text, None),
        Some("T" | "t" | " ") => (text.get(..10)?, text.get(11..)),
        Some(_) => return None,
    };
    let days = days(date)?;
    let ms = time.map_or(Some(0), time_of_day)?;
    u64::try_from(days * 86_400_000 + ms).ok().map(|ms| When::At(Timestamp::from_millis(ms)))
}

/// Parses a duration, also as [`duration`](duration()) shows it: `3 min 20 s`, `12.5 s`.
fn shown(text: &str) -> Option<Duration> {
    let text: String = text.chars().filter(|c| !matches!(c, ' ' | ',')).collect();
    match text.strip_suffix('s').and_then(|text| text.split_once('.')) {
        Some((seconds, tenth)) if tenth.len() == 1 => {
            let tenth: u64 = tenth.parse().ok()?;
            Some(Duration::from_secs(seconds.parse().ok()?) + Duration::from_millis(tenth * 100))
        }
        _ => span(&text),
    }
}

/// Parses a number of so many digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Returns the days since 1970 of a date: `2026-01-31`. A day that its month does not have is none.
fn days(date: &str) -> Option<i64> {
    let [year, month, day] = [(0, 4), (5, 7), (8, 10)].map(|(from, to)| date.get(from..to));
    let (year, month, day) = (digits(year?, 4)?, digits(month?, 2)?, digits(day?, 2)?);
    // A year of the calendar of the Gregorian reform begins in March.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let ms = u64::try_from(days).ok()?.checked_mul(86_400_000)?;
    Timestamp::from_millis(ms).to_string().starts_with(date).then_some(days)
}

/// Returns the milliseconds of a time of the day from the beginning of the day in UTC: `12:00:00.5Z`, `13:00+01:00`.
fn time_of_day(text: &str) -> Option<i64> {
    let at = text.find(|c: char| !matches!(c, '0'..='9' | ':' | '.'))?;
    let (time, zone) = (&text[..at], text[at..].trim_start());
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let ms = digits(format!("{fraction:0<3}").get(..3)?, 3).filter(|_| is_fraction)?;
    let mut parts = time.split(':');
    let mut part = || parts.next().map(|part| digits(part, 2));
    let (hour, minute, second) = (part()??, part()??, part().unwrap_or(Some(0))?);
    let offset = match (zone, zone.get(..1)) {
        ("Z" | "z" | "UTC", _) => 0,
        (_, Some(sign @ ("+" | "-"))) => {
            let zone = zone[1..].replace(':', "");
            let minutes = match zone.len() {
                2 => digits(&zone, 2)? * 60,
                4 => digits(&zone[..2], 2)? * 60 + digits(&zone[2..], 2).filter(|minutes| *minutes < 60)?,
                _ => return None,
            };
            if minutes >= 24 * 60 {
                return None;
            }
            if sign == "+" { minutes } else { -minutes }
        }
        _ => return None,
    };
    let is_time = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
    is_time.then_some((((hour * 60 + minute - offset) * 60) + second) * 1_000 + ms)
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
    fn a_point_in_time_is_that_of_its_zone() {
        let noon = 1_769_860_800_000;
        for (text, ms) in [
            ("1970-01-01", 0),
            ("2026-01-31", noon - 43_200_000),
            ("2026-01-31T12:00Z", noon),
            ("2026-01-31T12:00:00Z", noon),
            ("2026-01-31 12:00:00.000 UTC", noon),
            ("2026-01-31t13:00:00.123456+01:00", noon + 123),
            ("2026-01-31 13:00:00 +0100", noon),
            ("2026-01-31T07:30-04:30", noon),
            ("2026-02-01T01:00+13", noon),
            ("2024-02-29 23:59:59.5Z", 1_709_251_199_500),
            ("1700000000123", 1_700_000_000_123),
        ] {
            assert_eq!(when(text), Some(When::At(Timestamp::from_millis(ms))), "{text}");
        }
        for wrong in [
            "2026-02-31",
            "2026-02-31T12:00Z",
            "2025-02-29T12:00Z",
            "2026-01-31T12:00",
            "2026-01-31 12:00:00",
            "2026-01-31T24:00Z",
            "2026-01-31T12:60Z",
            "2026-01-31T12Z",
            "2026-01-31T12:00:00:00Z",
            "2026-01-31T12:00CET",
            "2026-01-31T12:00+25:00",
            "2026-01-31T12:00+1",
            "2026-01-31x12:00Z",
            "2026-1-31",
            "+026-01-31",
            "1969-12-31T23:00Z",
            "1970-01-01T00:00+01:00",
            "2h",
            "12:00Z",
            "yesterday",
            "ü",
            "",
        ] {
            assert_eq!(when(wrong), None, "{wrong}");
        }
        // As it is shown.
        for ms in [350, 12_500, 200_000, 7_500_000, 190_800_000, 86_400_000 * 1_500] {
            let time = Duration::from_millis(ms);
            assert_eq!(when(&format!("{} ago", duration(time))), Some(When::Ago(time)));
            assert_eq!(when(&format!("in {}", exact(time))), Some(When::In(time)));
        }
        let shown = Timestamp::from_millis(noon + 123);
        assert_eq!(when(&shown.to_string()), Some(When::At(shown)));
    }

    #[test]
    fn counts_have_separators() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((of(1, "topic", "topics"), known(None)), ("1 topic".into(), "?".into()));
    }
}
