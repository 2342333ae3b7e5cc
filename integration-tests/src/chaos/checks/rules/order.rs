//! Order of the messages of a key, at places whose partitions are owned.
//!
//! **Rule.** For each place with an order (`PlaceLimits::order`), and each key:
//!
//! - *first*: messages are handled for the first time in the order of their numbers, which is that of their producer. So
//!   a message that was confirmed never begins for the first time after one with a higher number.
//! - *before*: when a message begins for the first time, the one that began for the first time before it has an end, by
//!   whichever process. With `Block`, that is an end for good: acknowledged, rejected, or failed at the last attempt.
//! - *epoch*: within one epoch first attempts begin in the order of the numbers. Under a later epoch a suffix is repeated.
//! - *overlap*: within one epoch no two handlers of the key run at once, whatever their attempts.
//!
//! **Excused.** Delayed messages, and messages of unknown outcome, which may be stored later than others: both are left
//! out of *first*, *before* and *epoch*. A message that is a dead letter as `crashed` needs no end. A fault of scope
//! `Data`, or of the partition, between the two begins, with its aftermath, excuses *before*, *epoch* and *overlap*: messages in
//! flight are dropped, and handed out again under the same epoch.
//!
//! **Limits.** Handlers that never end are not seen by *overlap*: `liveness` finds them. A topic must not get more
//! partitions during the run.

use std::collections::HashMap;

use crate::chaos::record::{End, Scope};

use super::super::digest::{Delivery, Digest, PlaceId};
use super::super::limits::{KeyOrder, Limits, us};
use super::super::report::{Report, seconds};

const NAME: &str = "order";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    first(digest, limits, report);
    within_epochs(digest, limits, report);
    overlaps(digest, limits, report);
}

/// Returns the key of a delivery, if there is an order for it.
fn key(digest: &Digest<'_>, limits: &Limits, delivery: &Delivery<'_>) -> Option<u64> {
    let order = limits.of(digest.places[delivery.place]).order;
    let sent = digest.messages.get(&delivery.handling.number)?;
    sent.message.key.filter(|_| order != KeyOrder::Free && delivery.handling.epoch > 0)
}

/// Whether the message is one of those whose order is that of their numbers.
fn counts(digest: &Digest<'_>, delivery: &Delivery<'_>) -> bool {
    let sent = digest.messages.get(&delivery.handling.number);
    sent.is_some_and(|sent| sent.is_stored() && sent.message.due_ms == 0)
}

/// Whether what was in flight in a partition may have been dropped and handed out again, between two handlings.
fn is_rewound(digest: &Digest<'_>, limits: &Limits, before: &Delivery<'_>, delivery: &Delivery<'_>) -> bool {
    digest.disturbed(before.at.us, delivery.at.us, us(limits.aftermath), |fault| {
        fault.scope == Scope::Data || fault.is_of(delivery)
    })
}

fn first(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    // The last message of each key that began for the first time, and the one with the highest number.
    let mut latest: HashMap<(PlaceId, u64), (&Delivery<'_>, &Delivery<'_>)> = HashMap::new();
    for (index, delivery) in digest.deliveries.iter().enumerate() {
        let number = delivery.handling.number;
        let is_first = digest.by_message[&(delivery.place, number)].first() == Some(&index);
        let Some(key) = key(digest, limits, delivery).filter(|_| is_first && counts(digest, delivery)) else {
            continue;
        };
        let Some((before, highest)) = latest.get(&(delivery.place, key)).copied() else {
            latest.insert((delivery.place, key), (delivery, delivery));
            continue;
        };
        let place = digest.label(delivery.place);
        if highest.handling.number > number {
            let (other, at) = (highest.handling.number, seconds(highest.at.us));
            let what = format!("begins at {place} for the first time, after {other} of key {key} at {at}");
            report.add(NAME, delivery.at.us, Some(number), what);
        }
        if !is_over(digest, limits, before, delivery) && !is_rewound(digest, limits, before, delivery) {
            let (other, at) = (before.handling.number, seconds(before.at.us));
            let what =
                format!("begins at {place} before {other} of key {key}, which began at {at}, has an end");
            report.add(NAME, delivery.at.us, Some(number), what);
        }
        let highest = if highest.handling.number > number { highest } else { delivery };
        latest.insert((delivery.place, key), (delivery, highest));
    }
}

/// Whether a message has come to an end that lets the next one begin.
fn is_over(digest: &Digest<'_>, limits: &Limits, before: &Delivery<'_>, delivery: &Delivery<'_>) -> bool {
    let number = before.handling.number;
    let place = limits.of(digest.places[before.place]);
    let ended = digest.deliveries_of(before.place, number).any(|it| {
        let finish = it.finish.filter(|finish| finish.at.index < delivery.at.index);
        finish.is_some_and(|finish| {
            place.order != KeyOrder::Block
                || finish.end != End::Failed
                || it.handling.attempt >= place.attempts
        })
    });
    ended
        || digest.dead(before.place).iter().any(|(dead, reason)| *dead == Some(number) && reason == "crashed")
}

fn within_epochs(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let mut latest: HashMap<(PlaceId, u32, u64, u64), &Delivery<'_>> = HashMap::new();
    for delivery in digest.deliveries.iter().filter(|delivery| delivery.handling.attempt == 1) {
        let Some(key) = key(digest, limits, delivery).filter(|_| counts(digest, delivery)) else { continue };
        let (number, partition, epoch) =
            (delivery.handling.number, delivery.handling.partition, delivery.handling.epoch);
        let Some(before) = latest.insert((delivery.place, partition, epoch, key), delivery) else { continue };
        if before.handling.number > number && !is_rewound(digest, limits, before, delivery) {
            let (place, other, at) =
                (digest.label(delivery.place), before.handling.number, seconds(before.at.us));
            let what = format!(
                "begins at {place} after {other} of key {key} at {at}, both in epoch {epoch} of partition {partition}"
            );
            report.add(NAME, delivery.at.us, Some(number), what);
        }
    }
}

fn overlaps(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    // The handler of each key that ends last.
    let mut latest: HashMap<(PlaceId, u32, u64, u64), &Delivery<'_>> = HashMap::new();
    for delivery in &digest.deliveries {
        let Some(key) = key(digest, limits, delivery) else { continue };
        let Some(finish) = delivery.finish else { continue };
        let slot = (delivery.place, delivery.handling.partition, delivery.handling.epoch, key);
        let before = latest.get(&slot).copied();
        let open = before.and_then(|before| before.finish.map(|end| (before, end.at)));
        let Some((before, end)) = open else {
            latest.insert(slot, delivery);
            continue;
        };
        if end.index > delivery.at.index && !is_rewound(digest, limits, before, delivery) {
            let (place, other, epoch) =
                (digest.label(delivery.place), before.handling.number, delivery.handling.epoch);
            let (from, to) = (seconds(before.at.us), seconds(end.us));
            let what =
                format!("begins at {place} while {other} of key {key} runs in epoch {epoch}, {from} to {to}");
            report.add(NAME, delivery.at.us, Some(delivery.handling.number), what);
        }
        if finish.at.index > end.index {
            latest.insert(slot, delivery);
        }
    }
}
