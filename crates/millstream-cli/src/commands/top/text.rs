//! Formats cells: numbers, ages and names, short enough for a column and safe for a terminal.

use std::time::Duration;

use millstream::Timestamp;

use crate::human;

/// Replaces control characters in external text (names, errors, bytes) by one visible character each, as well as
/// characters that change the direction of writing or are invisible.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c } else { '·' }).collect()
}

fn is_plain(c: char) -> bool {
    let unseen =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !c.is_control() && !unseen
}

/// Formats a count in at most this many characters: `1,234,567`, or `1.23M` where that is too long.
pub(crate) fn count(number: u64, width: usize) -> String {
    let whole = human::count(number);
    if whole.len() <= width { whole } else { short(number as f64) }
}

/// Formats a number with three digits, `1.23M` or `45.6G`, rounded down so that it is never shown larger than it is.
fn short(number: f64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (number / 1e3, 0);
    while value >= 1e3 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1e3, unit + 1);
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let scale = 10_f64.powi(i32::try_from(digits).unwrap_or(0));
    format!("{:.digits$}{}", (value * scale).floor() / scale, UNITS[unit])
}

/// Formats a rate per second: `0`, `0.3`, `12`, `5,012`, `1.23M`; `?` if it is unknown.
pub(crate) fn rate(per_second: Option<f64>, width: usize) -> String {
    match per_second {
        None => "?".to_owned(),
        Some(rate) if rate < 0.05 => "0".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => count(rate.round() as u64, width),
    }
}

/// Formats a count; `?` if it is unknown.
pub(crate) fn known(number: Option<u64>, width: usize) -> String {
    number.map_or_else(|| "?".to_owned(), |number| count(number, width))
}

/// Formats a lag: `7`, `>= 10,000` where counting stopped, `?` where it is unknown.
pub(crate) fn lag(known: Option<u64>, at_least: u64, width: usize) -> String {
    match known {
        Some(lag) => count(lag, width),
        None if at_least > 0 => format!(">= {}", count(at_least, width.saturating_sub(3))),
        None => "?".to_owned(),
    }
}

/// Formats an age in at most six characters: `0.4s`, `12s`, `3m20s`, `5h02m`, `2d05h`, `420d`.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..10 => format!("{}.{}s", seconds, age.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        86_400..8_640_000 => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats an age, or a dash for `None`.
pub(crate) fn age_or_none(it: Option<Duration>) -> String {
    it.map_or_else(|| "-".to_owned(), age)
}

/// Formats partition numbers as ranges: `0-3,7`.
pub(crate) fn ranges(numbers: &[u32]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            Some((_, last)) if *last == number => {}
            _ => parts.push((number, number)),
        }
    }
    let part = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// Formats a time of the server's clock: `01-31 12:00:00`, in UTC.
pub(crate) fn moment(time: Timestamp) -> String {
    human::time(time).get(5..19).map_or_else(|| human::time(time), |short| short.replace('T', " "))
}

/// Shortens a text to at most this many characters and marks the cut.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_reaches_the_terminal_as_a_command() {
        assert_eq!(clean("no gate\x1b[2J\r\n\u{9b}31m\u{7}"), "no gate·[2J···31m·");
        assert_eq!(clean("a\u{202e}b\u{200b}c\u{feff}"), "a·b·c·");
        assert_eq!(clean("Zürich ✈ 東京"), "Zürich ✈ 東京");
    }

    #[test]
    fn counts_are_as_long_as_there_is_room() {
        assert_eq!(count(1_234_567, 9), "1,234,567");
        assert_eq!(count(1_234_567, 8), "1.23M");
        assert_eq!(count(999_999, 6), "999k", "never more than it is");
        assert_eq!(count(12_345, 5), "12.3k");
        assert_eq!(count(u64::MAX, 6), "18.4E");
    }

    #[test]
    fn rates_and_lags_say_what_is_not_known() {
        let rates = [None, Some(0.0), Some(0.04), Some(0.3), Some(9.96), Some(5_012.4), Some(12_345_678.0)];
        assert_eq!(rates.map(|it| rate(it, 8)), ["?", "0", "0", "0.3", "10", "5,012", "12.3M"]);
        assert_eq!(lag(Some(7), 7, 10), "7");
        assert_eq!(lag(None, 20_000, 10), ">= 20,000");
        assert_eq!(lag(None, 1_280_000, 10), ">= 1.28M");
        assert_eq!(lag(None, 0, 10), "?");
    }

    #[test]
    fn ages_are_short() {
        let seconds = [0, 9, 10, 59, 60, 3_599, 3_600, 86_399, 86_400, 8_639_999, 8_640_000];
        let texts =
            ["0.0s", "9.0s", "10s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "99d23h", "100d"];
        assert_eq!(seconds.map(|it| age(Duration::from_secs(it))), texts);
        assert_eq!(age(Duration::from_millis(450)), "0.4s");
        assert_eq!(age_or_none(None), "-");
    }

    #[test]
    fn partitions_are_ranges() {
        assert_eq!(ranges(&[7, 0, 1, 2, 3, 9, 9]), "0-3,7,9");
        assert_eq!((ranges(&[]), ranges(&[u32::MAX])), (String::new(), u32::MAX.to_string()));
    }

    #[test]
    fn texts_fit() {
        assert_eq!(
            (fit("abc", 3), fit("abcd", 3), fit("abcd", 0)),
            ("abc".into(), "ab…".into(), String::new())
        );
        assert_eq!(moment(Timestamp::from_millis(1_700_000_000_123)), "11-14 22:13:20");
    }
}
