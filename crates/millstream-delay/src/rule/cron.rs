//! Cron patterns in time zones.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, TimeZone, Utc};
use chrono_tz::Tz;
use millstream_core::error::{Problems, Result};

use super::invalid;

/// Maximum length of a pattern, in bytes.
const MAX_LEN: usize = 512;

/// Maximum number of single-time patterns that one pattern is split into.
const MAX_PARTS: usize = 64;

/// Years in which each date of the calendar falls on each weekday: the leap years among them are seven in a row.
const ALL_DATES: (i32, &str) = (2000, "2000-2027");

/// Cron pattern, with the time zone it is evaluated in.
#[derive(Clone)]
pub(super) struct Cron {
    zone: Tz,
    pattern: String,
    /// Empty if no date matches.
    parts: Vec<croner::Cron>,
}

impl Cron {
    pub(super) fn new(pattern: &str, zone: &str) -> Result<Self> {
        let mut problems = Problems::new("cron rule");
        let pattern = pattern.split_whitespace().collect::<Vec<_>>().join(" ");
        let known = Tz::from_str(zone).map_err(|_| invalid(format!("{zone:?} is no time zone")));
        let known = problems.take(known);
        let parts = problems.take(parse(&pattern));
        problems.finish()?;
        match (known, parts) {
            (Some(zone), Some(parts)) => Ok(Self { zone, pattern, parts }),
            _ => Err(invalid("invalid cron rule")),
        }
    }

    pub(super) fn zone(&self) -> &'static str {
        self.zone.name()
    }

    pub(super) fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns the first time after `time`, both in milliseconds since 1970.
    pub(super) fn next_after(&self, time: u64) -> Option<u64> {
        let seconds = i64::try_from(time / 1_000).ok()?;
        let from = DateTime::<Utc>::from_timestamp(seconds, 0)?.with_timezone(&self.zone);
        let next = |part: &croner::Cron| {
            let next = part.find_next_occurrence(&from, false).ok()?;
            u64::try_from(next.timestamp()).ok()?.checked_mul(1_000)
        };
        self.parts.iter().filter_map(next).min()
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.zone == other.zone && self.pattern == other.pattern
    }
}

impl Eq for Cron {}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.pattern, self.zone.name())
    }
}

fn parse(pattern: &str) -> Result<Vec<croner::Cron>> {
    if pattern.len() > MAX_LEN {
        return Err(invalid(format!("a pattern of {} bytes, at most {MAX_LEN} are allowed", pattern.len())));
    }
    let parse = |part: &String| {
        croner::Cron::from_str(part).map_err(|error| {
            let why = wrong_fields(pattern).unwrap_or_else(|| error.to_string());
            invalid(format!("cron pattern {pattern:?}: {why}"))
        })
    };
    // The whole pattern is parsed first, so that the error quotes the pattern as it was written.
    let whole = parse(&pattern.to_owned())?;
    if !has_date(pattern) {
        return Ok(Vec::new());
    }
    match take_apart(pattern) {
        Some(parts) => parts.iter().map(parse).collect(),
        None => Ok(vec![whole]),
    }
}

/// Fields of a pattern with seconds and years, and what they may hold.
const FIELDS: [(&str, &str); 7] = [
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31"),
    ("month", "1-12 or JAN-DEC"),
    ("weekday", "0-7 or SUN-SAT"),
    ("year", "1-9999"),
];

/// Returns which fields of a wrong pattern are so, each looked at by itself; `None` if each is right.
fn wrong_fields(pattern: &str) -> Option<String> {
    let fields: Vec<_> = pattern.split(' ').filter(|field| !field.is_empty()).collect();
    let names = match fields.len() {
        1 if pattern.starts_with('@') => return None,
        5 => &FIELDS[1..6],
        6 => &FIELDS[..6],
        7 => &FIELDS[..],
        count => {
            let names: Vec<_> = FIELDS[1..6].iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            let fields = if count == 1 { "field" } else { "fields" };
            return Some(format!("{count} {fields}; it has 5 ({names}), or 6 with the second in front"));
        }
    };
    let wrong = fields.iter().zip(names).enumerate().filter_map(|(at, (field, (name, allowed)))| {
        let mut alone = vec!["*"; fields.len()];
        alone[at] = field;
        let error = croner::Cron::from_str(&alone.join(" ")).err()?;
        let why = error.to_string();
        Some(format!("the {name} {field:?} is wrong ({allowed}): {}", why.trim_end_matches('.')))
    });
    let wrong: Vec<_> = wrong.collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// Returns whether a date matches the pattern in any year. A search for one like the 31st of February goes through 3,000
/// years, each time that an occurrence is wanted; this one ends after 28.
fn has_date(pattern: &str) -> bool {
    let fields: Vec<_> = pattern.split(' ').collect();
    let days = match fields.len() {
        5 => &fields[2..5],
        6 | 7 => &fields[3..6],
        // A name like `@daily`, which has dates.
        _ => return true,
    };
    let (first, years) = ALL_DATES;
    let midnights = croner::Cron::from_str(&format!("0 0 0 {} {years}", days.join(" ")));
    let begin = Utc.with_ymd_and_hms(first, 1, 1, 0, 0, 0).single();
    // A pattern that cannot be tried is not one without dates.
    midnights
        .ok()
        .zip(begin)
        .is_none_or(|(midnights, begin)| midnights.find_next_occurrence(&begin, true).is_ok())
}

/// Splits a list of times of day: `0 2,14 * * *` into `0 2 * * *` and `0 14 * * *`. When clocks change, the crate fires
/// a single time of day once, but treats a list of them like a continuous interval. Returns `None` if the pattern is
/// not a list of times of day.
fn take_apart(pattern: &str) -> Option<Vec<String>> {
    let fields: Vec<_> = pattern.split(' ').collect();
    let times = match fields.len() {
        5 => 2,
        6 | 7 => 3,
        _ => return None,
    };
    let mut parts = vec![Vec::new()];
    for field in &fields[..times] {
        let values = numbers(field)?;
        if parts.len() * values.len() > MAX_PARTS {
            return None;
        }
        let with = |part: &Vec<String>, value: &u32| [part.as_slice(), &[value.to_string()]].concat();
        parts = parts.iter().flat_map(|part| values.iter().map(|value| with(part, value))).collect();
    }
    let days = fields[times..].join(" ");
    Some(parts.into_iter().map(|part| format!("{} {days}", part.join(" "))).collect())
}

/// Parses `2,14` or `0-6` as numbers; returns `None` for anything else.
fn numbers(field: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for item in field.split(',') {
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        let (from, to) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
        if from > to || to > 59 {
            return None;
        }
        numbers.extend(from..=to);
    }
    Some(numbers)
}
