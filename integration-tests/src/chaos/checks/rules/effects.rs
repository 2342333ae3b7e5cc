//! Effects: what is acknowledged has an effect, and no effect comes from nowhere.
//!
//! **Rule.** At places with effects (`PlaceLimits::has_effects`):
//!
//! - *acked*: before a handler ends as acknowledged, the store has accepted its effect, or, at a place whose name ends in
//!   `-once`, an effect of its message.
//! - *bounded*: a handling has at most one accepted effect, and has begun before it.
//! - *once*: at a place whose name ends in `-once`, where marker and effect are in one transaction, no message has two
//!   accepted effects. So each that is acknowledged has exactly one.
//!
//! **Limits.** A handler that did not end may have an effect or not.

use std::collections::HashMap;

use crate::chaos::record::{End, Place, What};

use super::super::digest::{Digest, PlaceId};
use super::super::limits::Limits;
use super::super::report::{Report, seconds};

const NAME: &str = "effects";

/// Whether effects at a place happen once for each message.
pub(super) fn is_once(place: &Place) -> bool {
    place.name.ends_with("-once") || place.group.ends_with("-once")
}

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    // Numbers of begun handlers and accepted effects, by place, message, attempt and epoch.
    type Handled = (PlaceId, u64, u32, u64);
    let mut begun: HashMap<Handled, usize> = HashMap::new();
    let mut effects: HashMap<Handled, usize> = HashMap::new();
    let mut of_message: HashMap<(PlaceId, u64), u64> = HashMap::new();
    for line in digest.lines {
        let (What::Begun { handling, .. } | What::Ended { handling, .. } | What::Effect { handling, .. }) =
            &line.what
        else {
            continue;
        };
        let Some(place) = digest.place(&handling.place) else { continue };
        if !limits.of(&handling.place).has_effects {
            continue;
        }
        let handled = (place, handling.number, handling.attempt, handling.epoch);
        let label = digest.label(place);
        let mut wrong = |what: String| {
            let attempt = handling.attempt;
            let what = format!("{label}, attempt {attempt}, epoch {}: {what}", handling.epoch);
            report.add(NAME, line.at_us, Some(handling.number), what);
        };
        match &line.what {
            What::Begun { .. } => *begun.entry(handled).or_default() += 1,
            What::Effect { accepted: true, .. } => {
                let count = effects.entry(handled).or_default();
                *count += 1;
                let begun = begun.get(&handled).copied().unwrap_or(0);
                if *count > begun {
                    wrong(format!("effect {count} of {begun} handlers"));
                }
                let first = of_message.insert((place, handling.number), line.at_us);
                if let Some(first) = first.filter(|_| is_once(&handling.place)) {
                    wrong(format!("a second effect, the first was at {}", seconds(first)));
                }
            }
            What::Ended { end: End::Acked, .. } => {
                let has_effect = if is_once(&handling.place) {
                    of_message.contains_key(&(place, handling.number))
                } else {
                    effects.contains_key(&handled)
                };
                if !has_effect {
                    wrong("acknowledged without an effect".to_owned());
                }
            }
            _ => {}
        }
    }
}
