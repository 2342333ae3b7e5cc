//! Recurring rules: any text is a rule or an error; a rule reads back as it is written, and its times go forward.
//!
//! Input: two times, then the text of a rule; the same text is also tried as a cron pattern in several zones.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::error::ErrorKind;
use millstream_core::recurring::MAX_FIRES;
use millstream_delay::{Missed, Rule};

use super::Input;

const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "Antarctica/Troll",
];

/// Number of times up to which a plan counts exactly, and fires at once.
const FEW: usize = 90;
/// The latest time of a rule, in milliseconds.
const FAR: u64 = 1 << 53;

pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input);
    let zone = ZONES[usize::from(input.byte()) % ZONES.len()];
    let missed = match input.byte() {
        0 => Missed::Skip,
        1 => Missed::Once,
        most => Missed::All(u32::from(most) * 4),
    };
    let times = [0; 2].map(|_| input.number());
    let text = String::from_utf8_lossy(input.0);
    for rule in
        [text.parse(), Rule::cron(&text, zone), Rule::cron(&text, text.split(' ').next().unwrap_or_default())]
    {
        match rule {
            Ok(rule) => of(&rule, missed, times),
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text:?}: {error}"),
        }
    }
    let every = Rule::every(Duration::from_millis(times[0]), Timestamp::from_millis(times[1]));
    every.into_iter().for_each(|rule| of(&rule, missed, times));
}

fn of(rule: &Rule, missed: Missed, times: [u64; 2]) {
    // As much as a backend stores.
    let text = rule.to_string();
    assert!(text.len() <= 1_024 && !text.contains(char::is_control), "{text:?}");
    let again: Rule = rule.to_string().parse().unwrap_or_else(|error| panic!("{rule}: {error}"));
    assert_eq!(&again, rule);
    let near = times.map(|time| Timestamp::from_millis(time % (1 << 42)));
    for time in near.into_iter().chain(times.map(Timestamp::from_millis)) {
        let mut last = time;
        for _ in 0..4 {
            let Some(next) = rule.next_after(last) else { break };
            assert!(next > last && next.as_millis() <= FAR, "{rule}: {next} after {last}");
            last = next;
        }
    }
    let [expected, now] = near;
    exact(rule, missed, expected, now);
    let Ok(rule) = rule.clone().missed(missed) else { return };
    let plan = rule.plan(expected, now);
    assert!(plan.fires.len() <= MAX_FIRES && plan.fires.is_sorted(), "{rule}: {plan:?}");
    assert!(plan.fires.iter().all(|fire| (expected..=now).contains(fire)), "{rule}: {plan:?}");
    if plan.fires.len() < MAX_FIRES && expected <= now {
        assert!(plan.next.is_none_or(|next| next > now), "{rule}: {plan:?}");
    }
}

/// Where few times are due, the plan is compared with all of them.
fn exact(rule: &Rule, missed: Missed, expected: Timestamp, now: Timestamp) {
    let grace = Duration::from_millis(now.as_millis() % (1 << 20));
    let Ok(rule) = rule.clone().missed(missed).and_then(|rule| rule.grace(grace)) else { return };
    let due: Vec<_> =
        rule.between(expected, now.saturating_add(Duration::from_millis(1))).take(FEW + 1).collect();
    if due.len() > FEW || now < expected {
        return;
    }
    let fresh = now.saturating_sub(grace).max(expected);
    let late = due.iter().filter(|time| **time < fresh).count();
    let most = match missed {
        Missed::Skip => 0,
        Missed::Once => 1,
        Missed::All(most) => most as usize,
    };
    let skipped = late.saturating_sub(most);
    let plan = rule.plan(expected, now);
    assert_eq!((&plan.fires[..], plan.missed), (&due[skipped..], skipped), "{rule}: {expected} {now}");
    assert_eq!(plan.next, rule.next_after(now), "{rule}");
}
