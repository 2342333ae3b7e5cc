//! Dead letters: exactly the messages that were given up, each once, with the right reason.
//!
//! **Rule.** At each place:
//!
//! - *complete*: a message that is rejected, or whose attempts all fail, is a dead letter, if it was confirmed; and if it
//!   was not, if a handler rejected it or failed at its last attempt. (A confirmed one that the server has lost is
//!   excused as in `queue`, which counts it, if no handler ended like that.)
//! - *once*: no message is a dead letter twice, but for messages that were handled to that end twice around a fault of scope
//!   `Data`, or of the partition.
//! - *reason*: `rejected` needs the fate `Reject` and a handler that rejected it; `exhausted` a hopeless message and a
//!   handler that failed at the last attempt; `crashed` at least `fewest_crashes` handlers whose process died, or was away for
//!   so long that it lost them, before they ended, for any fate. There is no other reason for what we sent.
//! - *known*: each dead letter is a message that was sent, and not refused.
//! - *either*: a message that was acknowledged is dead only as `crashed`, and only if the acknowledgement may have had no
//!   effect: a fault, or the loss of the partition, is near its end.
//!
//! **Limits.** A handler that rejected a message, and whose process was killed before that was settled, does not make a
//! dead letter by itself; the message is handled again, and then it does.

use std::collections::BTreeMap;

use crate::chaos::record::{End, Fate, Scope};

use super::super::digest::{Delivery, Digest, Fault, Finish, Known, PlaceId, Sent};
use super::super::limits::{Limits, us};
use super::super::report::Report;
use super::queue::may_be_undone;

const NAME: &str = "dead_letters";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for (place, (at, rest)) in &digest.left {
        let label = digest.label(*place);
        let mut letters: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for (number, reason) in &rest.dead {
            match number {
                Some(number) => letters.entry(*number).or_default().push(reason),
                None => {
                    let what = format!("{label}: a dead letter ({reason}) with a body that nobody sent");
                    report.add(NAME, at.us, None, what);
                }
            }
        }
        for (number, reasons) in &letters {
            let wrong = of_message(digest, limits, *place, *number, reasons);
            for what in wrong {
                report.add(
                    NAME,
                    at.us,
                    Some(*number),
                    format!("{label}: dead ({}): {what}", reasons.join(", ")),
                );
            }
        }
        let name = &digest.places[*place].name;
        let sent = digest.messages.iter().filter(|(number, sent)| {
            sent.message.to == *name
                && !letters.contains_key(number)
                && must_be_dead(digest, limits, *place, sent)
        });
        for (number, sent) in sent {
            let (last, undone) =
                (given_up(digest, limits, *place, *number), may_be_undone(digest, limits, *place, sent));
            // A run that was ended before this one was handled to its end is a matter of `queue`.
            let is_required = match sent.known {
                Known::Stored(..) => last.is_some() || !undone,
                Known::Unknown => last.is_some(),
                Known::Refused => false,
            };
            let allowance = last.is_none() && rest.pending + rest.unread + rest.waiting > 0;
            let rewound = last.is_some_and(|last| {
                digest.faults.iter().any(|fault| {
                    fault.scope == Scope::Data && fault.overlaps(sent.from.us, last.at.us, us(limits.tail), 0)
                })
            });
            if is_required && !allowance && !(undone && rewound) {
                let how = last.map_or("never given up".to_owned(), |last| format!("{:?}", last.end));
                let what = format!("{label}: fate {:?} ({how}), and not a dead letter", sent.message.fate);
                report.add(NAME, at.us, Some(*number), what);
            }
        }
    }
}

/// Whether all handlers reject the message, or all attempts fail.
fn must_be_dead(digest: &Digest<'_>, limits: &Limits, place: PlaceId, sent: &Sent<'_>) -> bool {
    sent.message.fate == Fate::Reject
        || is_hopeless(sent.message.fate, limits.of(digest.places[place]).attempts)
}

fn is_hopeless(fate: Fate, attempts: u32) -> bool {
    match fate {
        Fate::Hopeless => true,
        Fate::Fail(failing) => failing >= attempts,
        Fate::Ack | Fate::Reject | Fate::Flaky => false,
    }
}

/// Whether the message is to be given up after this end.
fn gives_up(limits: &Limits, digest: &Digest<'_>, delivery: &Delivery<'_>) -> bool {
    let attempts = limits.of(digest.places[delivery.place]).attempts;
    delivery.ended(End::Rejected) || delivery.ended(End::Failed) && delivery.handling.attempt >= attempts
}

/// Returns the last end after which a message is to be given up.
fn given_up(digest: &Digest<'_>, limits: &Limits, place: PlaceId, number: u64) -> Option<Finish> {
    let ends = digest.deliveries_of(place, number).filter(|it| gives_up(limits, digest, it));
    ends.filter_map(|it| it.finish).last()
}

/// Returns what is wrong with the dead letters of a message.
fn of_message(
    digest: &Digest<'_>,
    limits: &Limits,
    place: PlaceId,
    number: u64,
    reasons: &[&str],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(sent) = digest.messages.get(&number) else { return vec!["it was never sent".to_owned()] };
    if sent.known == Known::Refused {
        wrong.push("its send was refused".to_owned());
    }
    if sent.message.to != digest.places[place].name {
        wrong.push(format!("it was sent to {}", sent.message.to));
    }
    let (fate, attempts) = (sent.message.fate, limits.of(digest.places[place]).attempts);
    let any = |end: End| digest.deliveries_of(place, number).any(|it| it.ended(end));
    let deaths = deaths(digest, limits, place, number);
    let fewest = limits.of(digest.places[place]).fewest_crashes;
    for reason in reasons {
        match *reason {
            "rejected" if fate != Fate::Reject => wrong.push(format!("its fate is {fate:?}")),
            "rejected" if !any(End::Rejected) => wrong.push("no handler rejected it".to_owned()),
            "exhausted" if !is_hopeless(fate, attempts) => wrong.push(format!("its fate is {fate:?}")),
            "exhausted" if given_up(digest, limits, place, number).is_none() => {
                wrong.push(format!("no handler failed at attempt {attempts}"));
            }
            "crashed" if deaths < fewest => {
                wrong.push(format!("{deaths} processes died in its handler, of at least {fewest}"));
            }
            "rejected" | "exhausted" | "crashed" => {}
            other => wrong.push(format!("{other} is no reason to give it up")),
        }
    }
    if reasons.len() > 1 && !twice_explained(digest, limits, place, number, reasons.len()) {
        wrong.push(format!("it is there {} times", reasons.len()));
    }
    let certain =
        digest.deliveries_of(place, number).find(|it| it.ended(End::Acked) && is_certain(digest, limits, it));
    if certain.is_some() {
        wrong.push("it was acknowledged".to_owned());
    }
    wrong
}

/// Returns how many processes died, or were stopped, while they handled the message.
fn deaths(digest: &Digest<'_>, limits: &Limits, place: PlaceId, number: u64) -> usize {
    let deadly = |it: &&Delivery<'_>| {
        let to = it.finish.map_or(u64::MAX, |finish| finish.at.us.saturating_add(us(limits.settle)));
        let gone = digest.lives[it.life].gone;
        let died = gone.is_some_and(|(gone, orderly)| !orderly && gone.us >= it.at.us && gone.us <= to);
        let away = |fault: &Fault<'_>| fault.hits(it.life) && fault.is_long(limits);
        died || digest.faults.iter().any(|fault| away(fault) && fault.overlaps(it.at.us, to, 0, 0))
    };
    digest.deliveries_of(place, number).filter(deadly).count()
}

/// Whether a message was given up as often as it is dead, around a fault that makes a group start again.
fn twice_explained(digest: &Digest<'_>, limits: &Limits, place: PlaceId, number: u64, times: usize) -> bool {
    let given_up = digest.deliveries_of(place, number).filter(|it| gives_up(limits, digest, it));
    let ends: Vec<_> = given_up.filter_map(|it| Some((it, it.finish?.at.us))).collect();
    let (Some((of, first)), Some((_, last))) = (ends.first(), ends.last()) else { return false };
    let rewound = digest.faults.iter().any(|fault| {
        let tail = match fault.scope {
            Scope::Data => limits.tail,
            Scope::Partition(_) if fault.is_of(of) => limits.group_tail,
            _ => return false,
        };
        fault.overlaps(*first, *last, us(tail), us(limits.aftermath))
    });
    ends.len() >= times && rewound
}

/// Whether an acknowledgement had an effect for certain.
fn is_certain(digest: &Digest<'_>, limits: &Limits, delivery: &Delivery<'_>) -> bool {
    let Some(finish) = delivery.finish else { return false };
    let (from, to) = (delivery.at.us, finish.at.us.saturating_add(us(limits.settle)));
    let lost = digest
        .grant_of(delivery)
        .and_then(|grant| grant.end)
        .is_some_and(|(at, lost)| lost && at.us >= from && at.us <= to);
    let gone = digest.lives[delivery.life].gone.is_some_and(|(gone, _)| gone.us <= to);
    let near = digest.faults.iter().any(|fault| {
        let (tail, after) = match fault.scope {
            Scope::Process(_) => return fault.hits(delivery.life) && fault.overlaps(from, to, 0, 0),
            Scope::Links | Scope::Server => (0, us(limits.aftermath)),
            Scope::Data => (us(limits.tail), us(limits.aftermath)),
            Scope::Partition(_) if fault.is_of(delivery) => (us(limits.group_tail), us(limits.aftermath)),
            Scope::Partition(_) | Scope::Leaving(_) | Scope::Nothing => return false,
        };
        fault.overlaps(from, to, tail, after)
    });
    !lost && !gone && !near
}
