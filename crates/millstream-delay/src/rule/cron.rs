//! Cron patterns in time zones.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use chrono::{DateTime, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use millstream_core::error::{Problems, Result};

use super::invalid;

/// Maximum length of a pattern, in bytes.
const MAX_LEN: usize = 512;

/// Maximum number of minutes that a change of clocks leaves out: a whole day where a country has changed the side of the date line.
const LONGEST_GAP: usize = 48 * 60;

/// Years in which each date of the calendar falls on each weekday: the leap years among them are seven in a row.
const ALL_DATES: (i32, &str) = (2000, "2000-2027");

/// Cron pattern, with the time zone it is evaluated in.
#[derive(Clone)]
pub(super) struct Cron {
    zone: Tz,
    pattern: String,
    /// `None` if no date matches.
    calendar: Option<croner::Cron>,
    /// Whether it is a list of times of day, and not a continuous interval.
    is_list: bool,
}

impl Cron {
    /// Reads a pattern that was stored.
    pub(super) fn new(pattern: &str, zone: &str) -> Result<Self> {
        Self::read(pattern, zone, |_| Ok(()))
    }

    /// Reads a pattern that somebody gives: also refuses one that is never due, or not as often as it reads.
    pub(super) fn given(pattern: &str, zone: &str) -> Result<Self> {
        Self::read(pattern, zone, check_meaning)
    }

    fn read(pattern: &str, zone: &str, check: fn(&str) -> Result<()>) -> Result<Self> {
        let mut problems = Problems::new("cron rule");
        let pattern = pattern.split_whitespace().collect::<Vec<_>>().join(" ");
        let known = Tz::from_str(zone).map_err(|_| invalid(format!("{zone:?} is no time zone")));
        let known = problems.take(known);
        let calendar = problems.take(parse(&pattern).and_then(|calendar| check(&pattern).map(|()| calendar)));
        problems.finish()?;
        match (known, calendar) {
            (Some(zone), Some(calendar)) => {
                let is_list = is_list(&pattern);
                let calendar = has_date(&pattern).then_some(calendar);
                Ok(Self { zone, pattern, calendar, is_list })
            }
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
        let calendar = self.calendar.as_ref()?;
        let seconds = i64::try_from(time / 1_000).ok()?;
        let from = DateTime::<Utc>::from_timestamp(seconds, 0)?;
        let next = if self.is_list {
            self.next_of_list(calendar, from)?
        } else {
            calendar.find_next_occurrence(&from.with_timezone(&self.zone), false).ok()?.to_utc()
        };
        u64::try_from(next.timestamp()).ok()?.checked_mul(1_000)
    }

    /// Returns the first time after `from` of a list of times of day. They are found on a calendar without changes of clocks, and
    /// then looked up on the clock of the zone: so the date of a time that does not exist counts, also if the clock goes on with
    /// the next day.
    fn next_of_list(&self, calendar: &croner::Cron, from: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let offset = self.zone.offset_from_utc_datetime(&from.naive_utc()).fix();
        let mut wall = from.naive_utc().checked_add_offset(offset)?;
        loop {
            wall = calendar.find_next_occurrence(&wall.and_utc(), false).ok()?.naive_utc();
            // In the second pass of a repeated hour its times have been.
            let next = self.first_at(wall)?;
            if next > from {
                return Some(next);
            }
        }
    }

    /// Returns the first moment at which the clock shows this time, or the first one after it if clocks are put forward over it.
    fn first_at(&self, wall: NaiveDateTime) -> Option<DateTime<Utc>> {
        let at = |wall: NaiveDateTime| self.zone.from_local_datetime(&wall).earliest();
        if let Some(first) = at(wall) {
            return Some(first.to_utc());
        }
        let (mut after, minute) = (wall, TimeDelta::minutes(1));
        for _ in 0..LONGEST_GAP {
            after = after.checked_add_signed(minute)?;
            if at(after).is_some() {
                let seconds = (0..60).map(|second| after - minute + TimeDelta::seconds(second + 1));
                return seconds.into_iter().find_map(at).map(|first| first.to_utc());
            }
        }
        None
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

fn parse(pattern: &str) -> Result<croner::Cron> {
    if pattern.len() > MAX_LEN {
        return Err(invalid(format!("a pattern of {} bytes, at most {MAX_LEN} are allowed", pattern.len())));
    }
    croner::Cron::from_str(pattern).map_err(|error| {
        let why = wrong_fields(pattern).unwrap_or_else(|| error.to_string());
        invalid(format!("cron pattern {pattern:?}: {why}"))
    })
}

/// Fails for a valid pattern that cannot mean what it says.
fn check_meaning(pattern: &str) -> Result<()> {
    let refuse = |why: String| Err(invalid(format!("cron pattern {pattern:?}: {why}")));
    let fields: Vec<_> = pattern.split(' ').collect();
    let names = match fields.len() {
        5 => &FIELDS[1..6],
        6 | 7 => &FIELDS[..6],
        // A name like `@daily`.
        _ => return Ok(()),
    };
    for (field, (name, _, numbers)) in fields.iter().zip(names) {
        for item in field.split(',') {
            let Some((range, step)) = item.split_once('/') else { continue };
            let (from, to) = range.split_once('-').unwrap_or((range, ""));
            let last = to.parse().unwrap_or(*numbers.end());
            let first = from.parse().unwrap_or(*numbers.start());
            let Ok(step) = step.parse::<u32>() else { continue };
            if step > (last + 1).saturating_sub(first) {
                return refuse(format!(
                    "the {name} {item:?} has one value, {first}: a step does not go on into the next {}. An interval that is \
                     not part of a calendar is a fixed rate",
                    if *name == "second" { "minute" } else { "hour, day, month or year" }
                ));
            }
        }
    }
    if has_date(pattern) { Ok(()) } else { refuse("there is no such date in any year".to_owned()) }
}

/// Fields of a pattern with seconds and years, what they may hold, and through which numbers a step goes.
const FIELDS: [(&str, &str, RangeInclusive<u32>); 7] = [
    ("second", "0-59", 0..=59),
    ("minute", "0-59", 0..=59),
    ("hour", "0-23", 0..=23),
    ("day of the month", "1-31", 1..=31),
    ("month", "1-12 or JAN-DEC", 1..=12),
    ("weekday", "0-7 or SUN-SAT", 0..=6),
    ("year", "1-9999", 1..=9_999),
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
            let names: Vec<_> = FIELDS[1..6].iter().map(|(name, ..)| *name).collect();
            let names = names.join(", ");
            let fields = if count == 1 { "field" } else { "fields" };
            return Some(format!("{count} {fields}; it has 5 ({names}), or 6 with the second in front"));
        }
    };
    let wrong = fields.iter().zip(names).enumerate().filter_map(|(at, (field, (name, allowed, _)))| {
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

/// Returns whether a pattern is a list of times of day: `0 2,14 * * *`.
fn is_list(pattern: &str) -> bool {
    let fields: Vec<_> = pattern.split(' ').collect();
    let times = match fields.len() {
        5 => 2,
        6 | 7 => 3,
        _ => return false,
    };
    let is_listed = |c: char| c.is_ascii_digit() || matches!(c, ',' | '-');
    fields[..times].iter().all(|field| field.chars().all(is_listed))
}
