//! Firing what recurs: reads what is due, works out the occurrences, and has them scheduled.

use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::{Error, Place};

use crate::rule::{Plan, Rule};

/// When a rule that cannot be read is looked at again: it is told of so often, and not more.
const UNREADABLE: Duration = Duration::from_secs(3_600);

/// Fires everything at `place` that is due, and tells `observer`. Gives back how many messages were scheduled.
///
/// Any number of instances may do this at the same time: each occurrence is scheduled once, by whoever comes first. A
/// rule that this version cannot read is passed over for an hour, with a warning.
///
/// # Errors
/// Those of [`Recurring::due`] and [`Recurring::fire`]. One that cannot be fired does not keep the others from it.
pub async fn fire_due(recurring: &dyn Recurring, place: &Place, observer: &dyn Observer) -> Result<usize> {
    let due = recurring.due(place).await?;
    let mut failed = None;
    let mut fired = 0;
    for recurrence in &due.recurrences {
        match fire(recurring, place, recurrence, due.now, observer).await {
            Ok(messages) => fired += messages,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(Error::during(error, format_args!("fire what recurs at {place}"))),
        None => Ok(fired),
    }
}

async fn fire(
    recurring: &dyn Recurring,
    place: &Place,
    recurrence: &Recurrence,
    now: u64,
    observer: &dyn Observer,
) -> Result<usize> {
    let Some(expected) = recurrence.next else { return Ok(0) };
    let id = &recurrence.id;
    let plan = match recurrence.rule.parse::<Rule>() {
        Ok(rule) => rule.plan(expected, now),
        Err(error) => {
            let again = now.saturating_add(UNREADABLE.as_millis() as u64);
            tracing::warn!(%place, %id, %error, "a rule that cannot be read is passed over for an hour");
            Plan { next: Some(again), ..Plan::default() }
        }
    };
    let fired = recurring.fire(place, id, &plan.fires, expected, plan.next).await?;
    if !fired {
        return Ok(0);
    }
    if plan.missed > 0 {
        tracing::warn!(%place, %id, missed = plan.missed, "times were missed, and are passed over");
    }
    let (messages, missed) = (plan.fires.len(), plan.missed);
    if messages + missed > 0 {
        observer.observe(&Event::Fired { place, id, messages, missed });
    }
    Ok(messages)
}
