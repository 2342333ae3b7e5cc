//! Cron rules across changes of clocks, beside a second implementation: it walks through every minute around each change, reads the
//! local clock of that minute, and knows a pattern as sets of numbers.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, NaiveDateTime, Offset, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use millstream_core::Timestamp;

use super::{around, cron};

/// Length of a walk before and after a change of clocks.
const DAYS: i64 = 2;
/// Number of changes that are walked through, and of patterns for each.
const CHANGES: usize = 60;
const PATTERNS: usize = 30;
/// Time between two looks for a change, in seconds.
const STEP: usize = 43_200;
/// Name of a variable with which all changes and patterns are compared, which takes minutes.
const ALL: &str = "MILLSTREAM_TEST_ALL_CLOCKS";

/// A pattern of five fields, in numbers.
struct Plain {
    fields: [BTreeSet<u32>; 5],
    is_any: [bool; 5],
    is_interval: bool,
}

impl Plain {
    fn of(pattern: &str) -> Self {
        let texts: Vec<_> = pattern.split(' ').collect();
        let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
        let field = |at: usize| {
            let (first, last) = bounds[at];
            let items = texts[at].split(',').flat_map(move |item| {
                let (range, step) = item.split_once('/').unwrap_or((item, "1"));
                let (from, to) = match range.split_once('-') {
                    Some((from, to)) => (from.parse().expect("a number"), to.parse().expect("a number")),
                    None if range == "*" => (first, last),
                    None => (range.parse().expect("a number"), range.parse().expect("a number")),
                };
                (from..=to).step_by(step.parse().expect("a number"))
            });
            items.collect::<BTreeSet<u32>>()
        };
        let is_interval = texts[..2].iter().any(|text| text.contains(['*', '/']));
        Self {
            fields: [0, 1, 2, 3, 4].map(field),
            is_any: [0, 1, 2, 3, 4].map(|at| texts[at] == "*"),
            is_interval,
        }
    }

    fn fits(&self, wall: NaiveDateTime) -> bool {
        let has = |at: usize, number: u32| self.fields[at].contains(&number);
        let (day, weekday) = (has(2, wall.day()), has(4, wall.weekday().num_days_from_sunday()));
        // Either, if both are restricted.
        let date = if self.is_any[2] || self.is_any[4] { day && weekday } else { day || weekday };
        has(0, wall.minute()) && has(1, wall.hour()) && date && has(3, wall.month())
    }

    /// Returns the occurrences of these minutes.
    fn occurrences(&self, minutes: &[(i64, NaiveDateTime)]) -> Vec<i64> {
        let (mut found, minute) = (Vec::new(), TimeDelta::minutes(1));
        let mut newest = minutes[0].1 - minute;
        for (at, wall) in minutes {
            let is_due = if self.is_interval {
                self.fits(*wall)
            } else {
                // What the clock shows for the first time, and what it has left out.
                let mut shown = std::iter::successors(Some(newest + minute), |it| Some(*it + minute));
                shown.by_ref().take_while(|it| it <= wall).any(|it| self.fits(it))
            };
            newest = newest.max(*wall);
            found.extend(is_due.then_some(*at));
        }
        found
    }
}

fn wall(zone: Tz, seconds: i64) -> NaiveDateTime {
    let utc = DateTime::<Utc>::from_timestamp(seconds, 0).expect("a time").naive_utc();
    utc + zone.offset_from_utc_datetime(&utc).fix()
}

/// Returns the minutes around a change of clocks, each with what the clock shows.
fn minutes(zone: Tz, change: i64) -> Vec<(i64, NaiveDateTime)> {
    let around = (change - DAYS * 86_400)..(change + DAYS * 86_400);
    around.step_by(60).map(|at| (at, wall(zone, at))).collect()
}

/// Returns the changes of clocks of some years, those that several zones have in common once.
fn changes(years: std::ops::Range<i32>) -> Vec<(Tz, i64)> {
    let time = |year| Utc.with_ymd_and_hms(year, 1, 1, 0, 0, 0).single().expect("a time").timestamp();
    let (from, to) = (time(years.start), time(years.end));
    let mut found = BTreeMap::new();
    for zone in TZ_VARIANTS {
        let offset = |at: i64| (wall(zone, at) - wall(Tz::UTC, at)).num_seconds();
        let mut before = offset(from);
        for at in (from..to).step_by(STEP) {
            let end = at + STEP as i64;
            let after = offset(end);
            if after != before {
                let change = (at..=end).step_by(60).find(|at| offset(*at) != before).expect("in it");
                found.entry((change, before, after)).or_insert((zone, change));
                before = after;
            }
        }
    }
    found.into_values().collect()
}

/// Patterns whose times are around a change: of its weekday, its day, its month, of all days.
fn patterns(zone: Tz, change: i64) -> Vec<String> {
    let (before, after) = (wall(zone, change - 60), wall(zone, change));
    let mut all = Vec::new();
    for at in [before, after] {
        let (day, month, weekday) = (at.day(), at.month(), at.weekday().num_days_from_sunday());
        for hour in [(at.hour() + 23) % 24, at.hour(), (at.hour() + 1) % 24] {
            for date in [
                "* * *".to_owned(),
                format!("* * {weekday}"),
                format!("{day} * *"),
                format!("{day} {month} *"),
                format!("{day} * {}", (weekday + 3) % 7),
                format!("* {month} *"),
            ] {
                for time in ["0", "30", "59", "0,15,30,45", "10-50", "*", "*/20", "7-59/9"] {
                    all.push(format!("{time} {hour} {date}"));
                }
                all.push(format!("30 0-23 {date}"));
                all.push(format!("30 {hour},12 {date}"));
                all.push(format!("0,30 */2 {date}"));
                all.push(format!("*/25 * {date}"));
            }
        }
    }
    all
}

/// Compares both implementations.
fn compare(zone: Tz, minutes: &[(i64, NaiveDateTime)], pattern: &str) {
    let (first, last) = (minutes[0].0, minutes[minutes.len() - 1].0 + 60);
    let millis = |seconds: i64| Timestamp::from_millis(u64::try_from(seconds * 1_000).expect("after 1970"));
    let rule = cron(pattern, zone.name());
    let found: Vec<i64> =
        rule.between(millis(first), millis(last)).map(|at| (at.as_millis() / 1_000) as i64).collect();
    let expected = Plain::of(pattern).occurrences(minutes);
    let shown = |all: &[i64]| all.iter().map(|at| format!("{} ({at})", wall(zone, *at))).collect::<Vec<_>>();
    assert_eq!(found, expected, "{pattern} in {zone}: {:?}, not {:?}", shown(&found), shown(&expected));
}

#[test]
fn both_implementations_agree_around_changes_of_clocks() {
    let is_all = std::env::var_os(ALL).is_some();
    let seed = fastrand::u64(..);
    println!("seed {seed}; with {ALL} all are compared");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut changes = changes(if is_all { 1990..2038 } else { 2024..2032 });
    assert!(changes.len() > CHANGES, "{}", changes.len());
    if !is_all {
        random.shuffle(&mut changes);
        changes.truncate(CHANGES);
    }
    for (zone, change) in changes {
        let (minutes, mut patterns) = (minutes(zone, change), patterns(zone, change));
        if !is_all {
            random.shuffle(&mut patterns);
            patterns.truncate(PATTERNS);
        }
        patterns.iter().for_each(|pattern| compare(zone, &minutes, pattern));
    }
}

/// Changes that have been wrong, or that few zones have: at midnight, by half an hour, over a whole day, twice in a month.
#[test]
fn both_implementations_agree_where_clocks_change_in_an_unusual_way() {
    for (zone, day) in [
        ("America/Nuuk", "2025-03-29 23:00:00"),
        ("America/Scoresbysund", "2025-03-29 23:00:00"),
        ("America/Nuuk", "2025-10-25 23:00:00"),
        ("America/Havana", "2026-03-08 00:00:00"),
        ("America/Santiago", "2026-09-06 00:00:00"),
        ("America/Asuncion", "2023-10-01 00:00:00"),
        ("Asia/Beirut", "2026-03-29 00:00:00"),
        ("Africa/Cairo", "2026-04-24 00:00:00"),
        ("Australia/Lord_Howe", "2026-10-04 02:00:00"),
        ("Australia/Lord_Howe", "2026-04-05 02:00:00"),
        ("Africa/Casablanca", "2026-02-15 03:00:00"),
        ("Antarctica/Troll", "2026-03-29 01:00:00"),
        ("Europe/Dublin", "2026-03-29 01:00:00"),
        ("Pacific/Apia", "2011-12-30 00:00:00"),
        ("Asia/Pyongyang", "2018-05-04 23:30:00"),
        ("America/Caracas", "2016-05-01 02:30:00"),
    ] {
        let zone: Tz = zone.parse().expect("a zone");
        let near =
            NaiveDateTime::parse_from_str(day, "%Y-%m-%d %H:%M:%S").expect("a time").and_utc().timestamp();
        // The clock of the zone is at most 15 hours from that of UTC.
        let offset = |at: i64| (wall(zone, at) - wall(Tz::UTC, at)).num_seconds();
        let change =
            (near - 20 * 3_600..near + 20 * 3_600).step_by(60).find(|at| offset(*at) != offset(at - 60));
        let change = change.unwrap_or_else(|| panic!("{zone}: no change at {day}"));
        let minutes = minutes(zone, change);
        patterns(zone, change).iter().for_each(|pattern| compare(zone, &minutes, pattern));
    }
}

#[test]
fn a_time_that_is_left_out_at_the_end_of_its_day_fires_right_after_it() {
    for zone in ["America/Nuuk", "America/Scoresbysund"] {
        for pattern in ["30 23 * * 6", "0 23 29 3 *", "15,45 23 * * SAT"] {
            assert_eq!(
                around(&cron(pattern, zone), zone, "2025-03-29", 2),
                ["30 01:00"],
                "{pattern} in {zone}"
            );
        }
    }
}
