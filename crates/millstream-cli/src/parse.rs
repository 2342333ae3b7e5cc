//! Parsers of option values.

use std::fmt;
use std::time::Duration;

pub(crate) use millstream::admin::human::When;
use millstream::{DeadLetterRetention, MessageId, Retention, Start, Timestamp};

use super::human;

/// Parses a duration: `500ms`, `30s`, `5m`, `2h`, `7d`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time: 500ms, 30s, 5m, 2h, 7d and 1h30m are");
    millstream::admin::human::span(text).ok_or_else(wrong)
}

/// Parses an interval between two reads of a server: at least 100 ms.
#[allow(dead_code, reason = "commands that are features read at intervals")]
pub(crate) fn reads(text: &str) -> Result<Duration, String> {
    let (interval, least) = (duration(text)?, Duration::from_millis(100));
    if interval < least { Err(format!("at least {} are needed", human::exact(least))) } else { Ok(interval) }
}

/// Parses a point in time: `2026-01-31T12:00:00Z`, `2026-01-31` (its beginning in UTC), `2h ago`, `in 5m`, `now`, or
/// milliseconds since 1970 as shown with messages.
pub(crate) fn when(text: &str) -> Result<When, String> {
    millstream::admin::human::when(text).ok_or_else(|| {
        format!(
            "{text:?} is not a point in time: 2026-01-31T12:00:00Z, 2026-01-31T13:00+01:00, 2026-01-31, \"2h ago\", \"in 5m\", now \
             and 1700000000000 (milliseconds since 1970) are"
        )
    })
}

/// The position at which a group starts or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Earliest,
    Latest,
    /// The entry with this id, or the first one after it.
    Id(MessageId),
    /// The first entry that was appended at this time or later.
    When(When),
}

/// Formats the position as it can be typed.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Id(id) => id.fmt(f),
            Self::When(When::At(time)) => {
                let shown = human::time(*time);
                // A year above 9999 has no date that can be typed.
                if when(&shown).is_ok() { f.write_str(&shown) } else { time.as_millis().fmt(f) }
            }
            Self::When(When::Ago(time)) => write!(f, "{} ago", human::exact(*time)),
            Self::When(When::In(Duration::ZERO)) => f.write_str("now"),
            Self::When(When::In(time)) => write!(f, "in {}", human::exact(*time)),
        }
    }
}

impl Position {
    /// Converts it to the library's type, given the current time `now`.
    pub(crate) fn start(self, now: Timestamp) -> Start {
        match self {
            Self::Earliest => Start::Earliest,
            Self::Latest => Start::Latest,
            Self::Id(id) => Start::After(id.previous()),
            Self::When(when) => Start::At(when.at(now)),
        }
    }
}

/// Parses a position: `earliest`, `latest`, an id, or a point in time.
pub(crate) fn position(text: &str) -> Result<Position, String> {
    match text {
        "earliest" | "beginning" => return Ok(Position::Earliest),
        "latest" | "end" => return Ok(Position::Latest),
        _ => {}
    }
    if let Ok(id) = text.parse() {
        return Ok(Position::Id(id));
    }
    when(text).map(Position::When).map_err(|_| {
        format!("{text:?} is no position: earliest, latest, 1700000000000-0, 2026-01-31T12:00:00Z, 2026-01-31, \"2h ago\", now and \
             1700000000000 are")
    })
}

/// Parses a retention: `consumed`, `consumed-after:7d`, `age:7d`, `length:1000000` or `keep`.
pub(crate) fn retention(text: &str) -> Result<Retention, String> {
    let wrong = || {
        format!("{text:?} is no retention: consumed, consumed-after:7d, age:7d, length:1000000 and keep are")
    };
    let some = |time: Duration| if time.is_zero() { Err(wrong()) } else { Ok(time) };
    match text.split_once(':') {
        None if text == "consumed" => Ok(Retention::Consumed),
        None if text == "keep" => Ok(Retention::Keep),
        Some(("consumed-after", time)) => duration(time).and_then(some).map(Retention::ConsumedAfter),
        Some(("age", time)) => duration(time).and_then(some).map(Retention::Age),
        Some(("length", entries)) => match entries.parse() {
            Ok(entries) if entries > 0 => Ok(Retention::Length(entries)),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

/// Parses a retention of dead letters: `keep`, `age:30d`, `length:100000`, or both of these with a comma.
pub(crate) fn dead_letter_retention(text: &str) -> Result<DeadLetterRetention, String> {
    let wrong = || {
        format!(
            "{text:?} is no retention of dead letters: keep, age:30d, length:100000 and age:30d,length:100000 are"
        )
    };
    if text == "keep" {
        return Ok(DeadLetterRetention::KEEP);
    }
    let mut parsed = DeadLetterRetention::KEEP;
    for rule in text.split(',') {
        parsed = match rule.split_once(':') {
            Some(("age", time)) if parsed.max_age().is_none() => {
                parsed.and_age(duration(time).ok().filter(|time| !time.is_zero()).ok_or_else(wrong)?)
            }
            Some(("length", letters)) if parsed.max_length().is_none() => {
                parsed.and_length(letters.parse().ok().filter(|letters| *letters > 0).ok_or_else(wrong)?)
            }
            _ => return Err(wrong()),
        };
    }
    Ok(parsed)
}

/// Parses a size in bytes: `4096`, `512KiB`, `2MiB`. A string on a server has at most 512 MiB.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = match &text[digits..] {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => 0,
    };
    let size = text[..digits].parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    size.filter(|size| (1..=512 << 20).contains(size))
        .ok_or_else(|| format!("{text:?} is no size: 4096, 512KiB and 2MiB are, up to 512MiB"))
}

/// Parses a refresh interval in seconds: 0.1 to 86400.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no interval: 0.1 to 86400 seconds are");
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| wrong())?;
    (0.1..=86_400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds)).ok_or_else(wrong)
}

/// Parses the maximum number of items of a list. None at all would be a list that says nothing.
pub(crate) fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("0 is not in 1..".to_owned()),
        limit => limit.map_err(|_| format!("{text:?} is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        let seconds = ["1500ms", "30s", "5m", "5min", "2h", "7d", "1h30m", "1d2h3m4s5ms"]
            .map(|text| duration(text).expect(text).as_secs_f64());
        assert_eq!(seconds, [1.5, 30.0, 300.0, 300.0, 7_200.0, 604_800.0, 5_400.0, 93_784.005]);
        for wrong in [
            "",
            "5",
            "s",
            "-5s",
            "1.5h",
            "5 s",
            "5y",
            "30m1h",
            "1h1h",
            "1h5",
            "5m5min",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_is_in_bytes_or_has_a_unit() {
        let sizes = ["1", "4096", "512KiB", "2MiB", "512MiB"].map(|text| size(text).expect(text));
        assert_eq!(sizes, [1, 4_096, 512 << 10, 2 << 20, 512 << 20]);
        for wrong in ["", "0", "-1", "1.5MiB", "2MB", "2 MiB", "MiB", "513MiB", "99999999999999999999KiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_point_in_time_is_absolute_or_from_now() {
        let at = Timestamp::from_millis;
        assert_eq!(when("2023-11-14T22:13:20Z"), Ok(When::At(at(1_700_000_000_000))));
        assert_eq!(when("2023-11-14T23:13:20.5+01:00"), Ok(When::At(at(1_700_000_000_500))));
        assert_eq!(when("2h ago").map(|when| when.at(at(7_200_001))), Ok(at(1)));
        assert_eq!(when("2h ago").map(|when| when.at(at(5))), Ok(at(0)));
        assert_eq!(when("in 5m").map(|when| when.at(at(1))), Ok(at(300_001)));
        assert_eq!(when("2023-11-14"), Ok(When::At(at(1_699_920_000_000))), "its beginning");
        assert_eq!(when("1700000000123"), Ok(When::At(at(1_700_000_000_123))), "as messages show it");
        assert_eq!(when("1h30m ago").map(|when| when.at(at(5_400_007))), Ok(at(7)));
        assert_eq!(when("now").map(|when| when.at(at(7))), Ok(at(7)));
        for wrong in [
            "",
            "yesterday",
            "2023-13-14",
            "1700000000",
            "ago",
            "-1h ago",
            "1960-01-01T00:00:00Z",
            "in",
            "in 5",
        ] {
            assert!(when(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_position_is_an_end_an_entry_or_a_time() {
        let at = |text| position(text).map(|position| position.start(Timestamp::from_millis(10_000)));
        assert_eq!(at("earliest"), Ok(Start::Earliest));
        assert_eq!(at("latest"), Ok(Start::Latest));
        assert_eq!(
            [at("beginning"), at("end")],
            [Ok(Start::Earliest), Ok(Start::Latest)],
            "as other tools say"
        );
        assert_eq!(at("7-3"), Ok(Start::After(MessageId::new(7, 2))), "with this entry");
        assert_eq!(at("1s ago"), Ok(Start::At(Timestamp::from_millis(9_000))));
        assert_eq!(at("1970-01-01T00:00:05Z"), Ok(Start::At(Timestamp::from_millis(5_000))));
        for wrong in ["", "first", "7", "7-", "1s"] {
            assert!(position(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_position_is_shown_as_it_can_be_typed() {
        for (typed, shown) in [
            ("end", "latest"),
            ("7-3", "7-3"),
            ("now", "now"),
            ("2h ago", "2h ago"),
            ("1h30m ago", "90m ago"),
            ("in 200s", "in 200s"),
            ("2026-01-31", "2026-01-31T00:00:00.000Z"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            let read = position(typed).expect(typed);
            assert_eq!(read.to_string(), shown);
            assert_eq!(position(shown), Ok(read), "{typed}");
        }
    }

    #[test]
    fn a_retention_that_keeps_nothing_is_none() {
        let day = Duration::from_secs(86_400);
        assert_eq!(retention("consumed"), Ok(Retention::Consumed));
        assert_eq!(retention("keep"), Ok(Retention::Keep));
        assert_eq!(retention("consumed-after:7d"), Ok(Retention::ConsumedAfter(7 * day)));
        assert_eq!(retention("age:24h"), Ok(Retention::Age(day)));
        assert_eq!(retention("length:5"), Ok(Retention::Length(5)));
        for wrong in ["", "all", "keep:1", "age", "age:0s", "age:7", "length:0", "length:-1", "consumed:1d"] {
            assert!(retention(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_retention_of_dead_letters_is_an_age_a_number_or_both() {
        let month = Duration::from_secs(30 * 86_400);
        assert_eq!(dead_letter_retention("keep"), Ok(DeadLetterRetention::KEEP));
        assert_eq!(dead_letter_retention("age:30d"), Ok(DeadLetterRetention::age(month)));
        assert_eq!(dead_letter_retention("length:5"), Ok(DeadLetterRetention::length(5)));
        let both = DeadLetterRetention::age(month).and_length(5);
        assert_eq!(dead_letter_retention("age:30d,length:5"), Ok(both));
        assert_eq!(dead_letter_retention("length:5,age:720h"), Ok(both));
        for wrong in [
            "",
            "all",
            "keep:1",
            "keep,age:1d",
            "age",
            "age:0s",
            "age:7",
            "length:0",
            "length:-1",
            "age:1d,age:2d",
            "age:1d,",
            "consumed",
        ] {
            assert!(dead_letter_retention(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_interval_is_neither_nothing_nor_for_ever() {
        assert_eq!(
            (interval("2"), interval("0.5s")),
            (Ok(Duration::from_secs(2)), Ok(Duration::from_millis(500)))
        );
        assert!(["0", "-1", "NaN", "inf", "1e9", "x"].into_iter().all(|wrong| interval(wrong).is_err()));
    }
}
