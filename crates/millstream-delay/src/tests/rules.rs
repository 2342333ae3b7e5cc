//! Rules: text, times, time zones, missed times. Pure functions.

mod clock_changes;

use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, TimeZone};
use chrono_tz::Tz;
use millstream_core::ErrorKind;
use millstream_core::Timestamp;
use proptest::prelude::*;

use crate::{GRACE, MAX_MISSED, Missed, Plan, Rule};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

const T: u64 = 1_700_000_000_000;

/// Returns the time that is later than `T` by this many milliseconds.
fn t(ms: u64) -> Timestamp {
    AT(T + ms)
}

const SECS: fn(u64) -> Duration = Duration::from_secs;

fn cron(pattern: &str, zone: &str) -> Rule {
    Rule::cron(pattern, zone).expect("a rule")
}

/// A rule as an earlier version may have stored it.
fn stored(pattern: &str) -> Rule {
    format!("cron UTC once {pattern}").parse().expect("a rule")
}

/// Returns a time on the wall that is there once.
fn wall(zone: &str, text: &str) -> Timestamp {
    let zone: Tz = zone.parse().expect("a zone");
    let local = chrono::NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").expect("a time");
    AT(zone.from_local_datetime(&local).single().expect("once").timestamp_millis() as u64)
}

fn utc(text: &str) -> Timestamp {
    AT(DateTime::parse_from_rfc3339(text).expect("a time").timestamp_millis() as u64)
}

/// The occurrences of a day and the one after, as UTC.
fn around(rule: &Rule, zone: &str, day: &str, days: u64) -> Vec<String> {
    let from = wall(zone, &format!("{day} 00:00:00"));
    let times = rule.between(from, from.saturating_add(SECS(days * 24 * 3_600)));
    times
        .map(|time| DateTime::<chrono::Utc>::from(SystemTime::from(time)).format("%d %H:%M").to_string())
        .collect()
}

#[test]
fn text_is_readable_and_reads_back() {
    let texts = [
        "cron Europe/Zurich once 0 9 * * *",
        "cron UTC skip */5 * * * * *",
        "cron America/New_York all:7 grace:5000 30 2 L * *",
        "every 60000 anchor 1700000000000 skip",
        "every 100 anchor 0 all:1000 grace:0",
    ];
    for text in texts {
        assert_eq!(text.parse::<Rule>().expect(text).to_string(), text);
    }
    let rule = cron("  0   9 * * MON-FRI ", "Europe/Zurich").missed(Missed::All(3)).expect("a rule");
    assert_eq!(rule.to_string(), "cron Europe/Zurich all:3 0 9 * * MON-FRI");
    let rule = Rule::every(SECS(60), t(0)).and_then(|rule| rule.grace(SECS(1))).expect("a rule");
    assert_eq!(rule.to_string(), format!("every 60000 anchor {T} once grace:1000"));
}

#[test]
fn what_is_no_rule_is_refused_with_a_reason() {
    let bad = [
        "",
        "cron",
        "cron Europe/Zurich once",
        "cron Europe/Zurich 0 9 * * *",
        "cron Mars/Olympus once 0 9 * * *",
        "cron UTC once 61 * * * *",
        "cron UTC twice 0 9 * * *",
        "cron UTC all:0 0 9 * * *",
        "cron UTC all:1001 0 9 * * *",
        "cron UTC once grace:x 0 9 * * *",
        "every 60000",
        "every 99 anchor 0 once",
        "every 60000 anchor x once",
        "every 60000 anchor 0",
        "every 60000 anchor 0 once once",
        "every 99999999999999999999 anchor 0 once",
        "solar-eclipse once",
    ];
    for text in bad {
        assert_eq!(text.parse::<Rule>().expect_err(text).kind(), ErrorKind::InvalidConfig, "{text}");
    }
    let long = format!("cron UTC once 0 9 * * {}", "1,".repeat(2_000));
    assert!(long.parse::<Rule>().is_err());
    let error = Rule::cron("nonsense", "nowhere").expect_err("two problems");
    assert_eq!(error.problems().len(), 2, "{error}");
}

/// What users write, and whether it is what they get.
#[test]
fn a_pattern_that_is_not_due_as_it_reads_is_refused() {
    for (pattern, words) in [
        ("*/90 * * * *", "the minute \"*/90\" has one value, 0"),
        ("*/61 * * * *", "has one value"),
        ("0 */25 * * *", "the hour \"*/25\" has one value, 0"),
        ("0 0 */32 * *", "the day of the month \"*/32\" has one value, 1"),
        ("0 0 1 */13 *", "the month"),
        ("0 0 * * */8", "the weekday"),
        (
            "*/90 * * * * *",
            "the second \"*/90\" has one value, 0: a step does not go on into the next minute",
        ),
        ("0 */90 * * * *", "the minute"),
        ("5/90 * * * *", "the minute \"5/90\" is wrong"),
        ("10-20/15 * * * *", "has one value, 10"),
        ("0,*/75 * * * *", "\"*/75\""),
        ("0 0 31 2 *", "no such date"),
        ("0 0 30 FEB *", "no such date"),
        ("0 0 31 4,6,9,11 *", "no such date"),
        ("60 * * * *", "the minute \"60\" is wrong"),
        ("0 24 * * *", "the hour \"24\" is wrong"),
        ("0 0 0 * *", "the day of the month \"0\" is wrong"),
        ("0 0 * 13 *", "the month"),
        ("*/0 * * * *", "the minute"),
        ("* * * *", "4 fields"),
        ("0 9", "2 fields"),
        ("0 0 9 * * MON 2026 x", "8 fields"),
        ("every 5 minutes", "3 fields"),
        ("@every 5m", "2 fields"),
        ("@sometimes", "@sometimes"),
    ] {
        let error = Rule::cron(pattern, "UTC").expect_err(pattern).to_string();
        assert!(error.contains(words), "{pattern}: {error}");
    }
    for (pattern, times) in [
        ("*/60 * * * *", ["01T01:00", "01T02:00"]),
        ("0 */24 * * *", ["02T00:00", "03T00:00"]),
        ("*/45 * * * *", ["01T00:45", "01T01:00"]),
        ("0 */7 * * *", ["01T07:00", "01T14:00"]),
        ("10-20/11 * * * *", ["01T00:10", "01T01:10"]),
        ("0 0 * * 7", ["04T00:00", "11T00:00"]),
        ("0 0 3 * FRI", ["02T00:00", "03T00:00"]),
        ("0 0 3 * +SAT", ["03T00:00", "03T00:00"]),
        ("0 0 12 * * ?", ["01T12:00", "02T12:00"]),
        ("@daily", ["02T00:00", "03T00:00"]),
    ] {
        let found: Vec<_> =
            cron(pattern, "UTC").between(utc("2026-01-01T00:00:01Z"), utc("2027-01-01T00:00:00Z")).collect();
        let shown = |time: Timestamp| {
            DateTime::<chrono::Utc>::from(SystemTime::from(time)).format("%dT%H:%M").to_string()
        };
        assert_eq!([shown(found[0]), shown(found[1])], times, "{pattern}");
    }
    let earlier = stored("*/90 * * * *");
    assert_eq!(
        earlier.next_after(utc("2026-01-01T00:00:00Z")),
        Some(utc("2026-01-01T01:00:00Z")),
        "it goes on"
    );
}

#[test]
fn a_rate_counts_from_its_anchor() {
    let rule = Rule::every(SECS(60), t(0)).expect("a rule");
    assert_eq!(rule.next_after(t(0)), Some(t(60_000)));
    assert_eq!(rule.next_after(t(59_999)), Some(t(60_000)));
    assert_eq!(rule.next_after(t(60_000)), Some(t(120_000)));
    assert_eq!(rule.next_after(AT(T - 1)), Some(t(0)), "an anchor that is to come is the first time");
    assert_eq!(rule.next_after(AT(u64::MAX)), None);
    assert_eq!(rule.between(t(0), t(180_000)).collect::<Vec<_>>(), [t(0), t(60_000), t(120_000)]);
}

#[test]
fn cron_goes_by_the_clock_on_the_wall() {
    let rule = cron("0 9 * * *", "Europe/Zurich");
    assert_eq!(rule.next_after(utc("2026-01-10T12:00:00Z")), Some(utc("2026-01-11T08:00:00Z")));
    assert_eq!(rule.next_after(utc("2026-07-10T12:00:00Z")), Some(utc("2026-07-11T07:00:00Z")));
    assert_eq!(
        rule.next_after(utc("2026-01-11T08:00:00Z")),
        Some(utc("2026-01-12T08:00:00Z")),
        "after, not at"
    );
    let rule = cron("*/15 * * * * *", "UTC");
    assert_eq!(rule.next_after(t(999)), Some(t(10_000)), "22:13:20 and a bit");
    let rule = cron("0 0 29 2 *", "UTC");
    assert_eq!(rule.next_after(utc("2026-01-01T00:00:00Z")), Some(utc("2028-02-29T00:00:00Z")));
    assert_eq!(stored("0 0 30 2 *").next_after(t(0)), None, "never, and not for ever");
    assert_eq!(cron("0 0 0 1 1 * 2026", "UTC").next_after(utc("2026-01-01T00:00:00Z")), None, "over");
}

/// A search for such a date must not go through all years of the calendar, again for each time of day.
#[test]
fn a_date_that_never_comes_is_known_at_once() {
    let times = (0..60).map(|minute| minute.to_string()).collect::<Vec<_>>().join(",");
    let begun = Instant::now();
    for days in ["31 2 *", "30 2 *", "31 4,6,9,11 *", "30,31 FEB +MON", "31 2 * 2030-4000"] {
        let seconds = if days.contains('-') { "0 " } else { "" };
        for rule in [stored(&format!("{seconds}{times} 0 {days}")), stored(&format!("0 */5 * {days}"))] {
            for second in 0..20 {
                assert_eq!(rule.next_after(t(second * 1_000)), None, "{rule}");
            }
            assert_eq!(rule.plan(t(0), t(SECS(86_400).as_millis() as u64)).next, None);
        }
    }
    // Against a hang.
    assert!(begun.elapsed() < SECS(60), "{:?}", begun.elapsed());
    // Dates that come seldom are found.
    let leap = cron("0 0 29 2 +MON", "UTC");
    assert_eq!(leap.next_after(utc("2026-01-01T00:00:00Z")), Some(utc("2044-02-29T00:00:00Z")));
    assert_eq!(leap.next_after(utc("2072-03-01T00:00:00Z")), Some(utc("2112-02-29T00:00:00Z")));
    for (pattern, next) in [
        ("0 0 31 4,5 *", "2026-05-31T00:00:00Z"),
        ("0 0 L 2 *", "2026-02-28T00:00:00Z"),
        ("0 0 * 2 MON#5", "2044-02-29T00:00:00Z"),
        ("0 0 0 29 2 * 2048", "2048-02-29T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
    ] {
        let found = cron(pattern, "UTC").next_after(utc("2026-01-01T00:00:00Z"));
        assert_eq!(found, Some(utc(next)), "{pattern}");
    }
}

#[test]
fn a_time_that_is_skipped_fires_once_after_the_gap() {
    for (zone, day, times) in [
        ("Europe/Zurich", "2026-03-28", ["28 01:30", "29 01:00", "30 00:30"]),
        ("America/New_York", "2026-03-07", ["07 07:30", "08 07:00", "09 06:30"]),
    ] {
        assert_eq!(around(&cron("30 2 * * *", zone), zone, day, 3), times, "{zone}");
        let listed = around(&cron("30 2,14 * * *", zone), zone, day, 3);
        assert_eq!(
            listed.iter().filter(|time| times.contains(&time.as_str())).count(),
            3,
            "{zone}: {listed:?}"
        );
        assert_eq!(listed.len(), 6, "{zone}: {listed:?}");
    }
}

#[test]
fn a_time_that_comes_twice_fires_once() {
    for (zone, day, times) in [
        ("Europe/Zurich", "2026-10-24", ["24 00:30", "25 00:30", "26 01:30"]),
        ("America/New_York", "2026-10-31", ["31 05:30", "01 05:30", "02 06:30"]),
    ] {
        let hour = if zone.starts_with("Europe") { 2 } else { 1 };
        let daily = around(&cron(&format!("30 {hour} * * *"), zone), zone, day, 3);
        assert_eq!(daily, times, "{zone}");
        let listed = around(&cron(&format!("30 {hour},20 * * *"), zone), zone, day, 3);
        assert_eq!(listed.len(), 6, "{zone}: {listed:?}");
        let range = around(&cron("0 0-5 * * *", zone), zone, day, 3);
        assert_eq!(range.len(), 18, "{zone}: {range:?}");
    }
}

#[test]
fn what_goes_on_all_the_time_goes_on_through_both_changes() {
    for zone in ["Europe/Zurich", "America/New_York"] {
        for day in ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01"] {
            let from = wall(zone, &format!("{day} 00:00:00"));
            let times: Vec<_> =
                cron("*/10 * * * *", zone).between(from, from.saturating_add(SECS(24 * 3_600))).collect();
            assert!(
                times.windows(2).all(|two| two[1].saturating_duration_since(two[0]) == SECS(600)),
                "{zone} on {day}"
            );
            assert_eq!(times.len(), 144);
        }
    }
}

#[test]
fn a_whole_year_of_days_has_a_time_each() {
    for (zone, hour) in
        [("Europe/Zurich", 2), ("America/New_York", 1), ("America/New_York", 2), ("Asia/Tokyo", 0)]
    {
        let from = wall(zone, "2026-01-01 00:00:00");
        let to = wall(zone, "2027-01-01 00:00:00");
        let rule = cron(&format!("30 {hour} * * *"), zone);
        assert_eq!(rule.between(from, to).count(), 365, "{zone} at {hour}:30");
    }
}

fn plan(missed: Missed, expected: Timestamp, now: Timestamp) -> crate::Plan {
    Rule::every(SECS(60), t(0)).and_then(|rule| rule.missed(missed)).expect("a rule").plan(expected, now)
}

#[test]
fn what_is_found_in_time_fires_whatever_the_policy() {
    for missed in [Missed::Skip, Missed::Once, Missed::All(5)] {
        let plan = plan(missed, t(60_000), t(60_003));
        assert_eq!((plan.fires, plan.missed, plan.next), (vec![t(60_000)], 0, Some(t(120_000))));
    }
    let early = plan(Missed::Once, t(60_000), t(59_999));
    assert_eq!((early.fires, early.next), (vec![], Some(t(60_000))), "not due");
}

#[test]
fn missed_times_are_skipped_made_up_for_once_or_each() {
    // Away from the first minute to the tenth and a half.
    let (expected, now) = (t(60_000), t(630_000));
    let skip = plan(Missed::Skip, expected, now);
    assert_eq!((skip.fires, skip.missed, skip.next), (vec![t(600_000)], 9, Some(t(660_000))));
    let once = plan(Missed::Once, expected, now);
    assert_eq!((once.fires, once.missed), (vec![t(540_000), t(600_000)], 8));
    let three = plan(Missed::All(3), expected, now);
    assert_eq!((three.fires.first(), three.fires.len(), three.missed), (Some(&t(420_000)), 4, 6));
    let all = plan(Missed::All(100), expected, now);
    assert_eq!((all.fires.len(), all.missed), (10, 0));
}

#[test]
fn too_many_for_one_call_are_due_again_at_once() {
    let rule =
        Rule::every(Duration::from_millis(100), t(0)).and_then(|rule| rule.missed(Missed::All(MAX_MISSED)));
    let rule = rule.expect("a rule");
    let (mut expected, now) = (t(100), t(100_000));
    let mut fired = Vec::new();
    while expected <= now {
        let plan = rule.plan(expected, now);
        assert!(plan.fires.len() <= 100);
        fired.extend(plan.fires);
        expected = plan.next.expect("goes on");
    }
    assert_eq!(fired, (1..=1_000).map(|nth| t(nth * 100)).collect::<Vec<_>>());
}

/// Plans what was missed, in less time than it takes at that moment to go through 20,000 times one by one.
fn plan_soon(rule: &Rule, from: Timestamp, to: Timestamp) -> Plan {
    let walk = || {
        let start = Instant::now();
        let mut at = from;
        for _ in 0..20_000 {
            at = rule.next_after(at).expect("it goes on");
        }
        start.elapsed()
    };
    let before = walk();
    // The shortest of three: others that run meanwhile may take a thread away in the midst of one.
    let planned = || {
        let start = Instant::now();
        let plan = rule.plan(from, to);
        (start.elapsed(), plan)
    };
    let (took, plan) = (0..3).map(|_| planned()).min_by_key(|(took, _)| *took).expect("three");
    let walk = before.max(walk());
    println!("{rule}: {took:?}, one by one {walk:?} for 20,000");
    assert!(took < walk, "{took:?}, and {walk:?} for 20,000 times");
    plan
}

#[test]
fn years_that_were_missed_are_not_gone_through_second_by_second() {
    let rule = cron("* * * * * *", "Europe/Zurich").missed(Missed::Once).expect("a rule");
    let plan = plan_soon(&rule, t(0), t(10 * 365 * 24 * 3_600_000));
    assert!(plan.missed > 0 && !plan.fires.is_empty());
}

#[test]
fn a_month_of_seconds_that_was_missed_is_not_gone_through_either() {
    // From 2025-01-01 to 2025-12-31: the newest of 2.7 million times are eleven months old.
    let (from, to) = (utc("2025-01-01T00:00:00Z"), utc("2025-12-31T00:00:00Z"));
    let (january, february) = (cron("* * * * 1 *", "UTC"), 1_738_368_000_000);
    for (missed, made_up) in [(Missed::Once, 1), (Missed::All(MAX_MISSED), 100)] {
        let rule = january.clone().missed(missed).expect("a rule");
        let plan = plan_soon(&rule, from, to);
        assert_eq!((plan.fires.len(), plan.next > Some(from)), (made_up, true));
        if missed == Missed::Once {
            assert_eq!(plan.fires, [AT(february - 1_000)], "the newest one");
            assert!(plan.missed >= 99, "{}", plan.missed);
        } else {
            assert_eq!(plan.fires[0], AT(february - 1_000 * u64::from(MAX_MISSED)), "the newest thousand");
        }
    }
}

fn any_missed() -> impl Strategy<Value = Missed> {
    prop_oneof![Just(Missed::Skip), Just(Missed::Once), (1..=MAX_MISSED).prop_map(Missed::All)]
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in ".{0,60}|(cron|every) .{0,60}|cron UTC once [0-9*,/L#W ?-]{0,20}") {
        if let Ok(rule) = text.parse::<Rule>() {
            let again: Rule = rule.to_string().parse().expect("its own text");
            prop_assert_eq!(&again, &rule);
            if let Some(next) = rule.next_after(t(0)) {
                prop_assert!(next > t(0));
            }
        }
    }

    #[test]
    fn a_rate_reads_back_and_its_plan_covers_every_time_once(
        period in 100u64..100_000_000, anchor in 0..2 * T, missed in any_missed(), grace in 0u64..1 << 40,
        late in 0u64..1_000_000_000,
    ) {
        let rule = Rule::every(Duration::from_millis(period), AT(anchor)).and_then(|rule| rule.missed(missed));
        let rule = rule.and_then(|rule| rule.grace(Duration::from_millis(grace))).expect("a rule");
        prop_assert_eq!(&rule.to_string().parse::<Rule>().expect("its own text"), &rule);
        let expected = rule.next_after(AT(anchor)).expect("a next");
        let now = expected.saturating_add(Duration::from_millis(late));
        let plan = rule.plan(expected, now);
        prop_assert!(plan.fires.is_sorted() && plan.fires.iter().all(|at| *at >= expected && *at <= now));
        prop_assert!(plan.fires.iter().all(|at| (at.as_millis() - anchor).is_multiple_of(period)));
        let next = plan.next.expect("goes on");
        prop_assert!(plan.fires.iter().all(|at| *at < next), "each once");
        prop_assert!(next > now || plan.fires.len() == 100, "what is left is due at once");
        if late <= grace.min(period) && late < period {
            prop_assert_eq!(plan.fires, vec![expected]);
        }
    }

    #[test]
    fn cron_goes_on_and_reads_back(
        minute in 0u32..60, hour in 0u32..24, zone in 0usize..chrono_tz::TZ_VARIANTS.len(), from in T..2 * T,
    ) {
        let zone = chrono_tz::TZ_VARIANTS[zone].name();
        let rule = Rule::cron(&format!("{minute} {hour} * * *"), zone).expect("a rule");
        prop_assert_eq!(&rule.to_string().parse::<Rule>().expect("its own text"), &rule);
        let (one, two) = (rule.next_after(AT(from)).expect("a next"), rule.next_after(AT(from + 1)).expect("a next"));
        prop_assert!(one > AT(from) && two >= one);
        let passed = one.saturating_duration_since(AT(from));
        prop_assert!(passed <= SECS(26 * 3_600), "a day, with any change of clocks: {passed:?}");
    }
}

#[test]
fn the_grace_is_what_is_documented() {
    assert_eq!(GRACE, SECS(60));
}
