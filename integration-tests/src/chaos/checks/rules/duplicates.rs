//! Duplicates: what is repeated has a cause.
//!
//! **Rule.** A handling is *repeated* if its message was handled at this place with the same attempt before. Let E be the
//! last such handling, and D the repeated one. The settlement of E is certain `settle` after its end; so the window of
//! causes is from the begin of E until then, or until D if that is earlier. (So whatever happens long after a message was
//! acknowledged excuses nothing: NO-REDELIVERY-AFTER-ACK.) D needs one of these causes:
//!
//! - `process`: the process of E ended in the window, and not in good order; or a fault of it overlaps the window that lasted
//!   for so long that a lease can run out (three fifths of a ttl). Or such a fault of the process of D until `notice` before
//!   D, if D has an older epoch, or none: it was stopped between its last look at the lease and the begin.
//! - `moved`: in the window the partition of E was lost by its owner, or granted under a higher epoch. A partition that
//!   was given back in good order before does not count, unless `orderly_moves_repeat`.
//! - `links`: a fault of this scope that lasted as long overlaps the window, extended by `aftermath` behind the fault, and D is
//!   of another process, or has a later epoch.
//! - `data`, `partition`: a fault of this scope overlaps the window, extended by `aftermath` behind the fault, and is that of
//!   the partition of D. Faults of scope `Data` count from `tail` before their begin, those of scope `Partition` from
//!   `group_tail`; both are no cause of a D before they begin.
//!
//! A server that is slow, away, or restarted with its data is none, nor is a process that is asked to shut down.
//!
//! In the phase `Calm` there is no cause. An attempt above 1 that is not repeated needs an end `Failed` of the attempt
//! before, whose effect the store did not refuse, by a process from which no other one had taken the message.
//!
//! Whatever happens but a fault of scope `Data`: a message that was sent once is stored once, so all its handlings show the
//! same origin.
//!
//! **Limits.** Whether a cause led to this very duplicate is not known.

use crate::chaos::record::{End, Phase, Scope};

use super::super::digest::{Delivery, Digest, Fault};
use super::super::limits::{Limits, us};
use super::super::report::{Report, seconds};

const NAME: &str = "duplicates";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for deliveries in digest.by_message.values() {
        stored_once(digest, limits, deliveries, report);
        for (nth, index) in deliveries.iter().enumerate() {
            let before: Vec<_> = deliveries[..nth].iter().map(|index| &digest.deliveries[*index]).collect();
            one(digest, limits, &before, &digest.deliveries[*index], report);
        }
    }
}

/// A message that was sent once is stored once: all its handlings show the same origin.
fn stored_once(digest: &Digest<'_>, limits: &Limits, deliveries: &[usize], report: &mut Report) {
    let mut all = deliveries.iter().map(|index| &digest.deliveries[*index]);
    let Some(first) = all.next() else { return };
    let Some(other) = all.find(|other| other.handling.origin != first.handling.origin) else { return };
    // What a fail-over has undone may be sent again, or be promoted again.
    let from = first.at.us.saturating_sub(us(limits.tail));
    if !digest.disturbed(from, other.at.us, us(limits.aftermath), |fault| fault.scope == Scope::Data) {
        let (one, two) = (&first.handling.origin, &other.handling.origin);
        let what = format!("stored twice at {}: as {one} and as {two}", digest.label(other.place));
        report.add(NAME, other.at.us, Some(other.handling.number), what);
    }
}

fn one(
    digest: &Digest<'_>,
    limits: &Limits,
    before: &[&Delivery<'_>],
    delivery: &Delivery<'_>,
    report: &mut Report,
) {
    let (number, attempt) = (delivery.handling.number, delivery.handling.attempt);
    let place = digest.label(delivery.place);
    let same = before.iter().rev().find(|earlier| earlier.handling.attempt == attempt);
    let Some(earlier) = same else {
        if attempt > 1 && !has_failed(digest, before, delivery) {
            let what = format!("attempt {attempt} at {place}, and no attempt {} failed", attempt - 1);
            report.add(NAME, delivery.at.us, Some(number), what);
        }
        return;
    };
    let calm = digest.phase_at(delivery.at.index) == Phase::Calm;
    match cause(digest, limits, earlier, delivery).filter(|_| !calm) {
        Some(cause) => *report.figures.repeated.entry(cause).or_default() += 1,
        None => {
            report.figures.unexplained += 1;
            let end = earlier.finish.map_or_else(
                || "and did not end".to_owned(),
                |finish| format!("and {:?} at {}", finish.end, seconds(finish.at.us)),
            );
            let (first, second) = (digest.lives[earlier.life].label(), digest.lives[delivery.life].label());
            let why = if calm { "in the calm phase" } else { "without a cause" };
            let what = format!(
                "attempt {attempt} at {place}, partition {}: {first} (epoch {}) began at {} {end}; {second} (epoch {}) \
                 again {why}",
                delivery.handling.partition,
                earlier.handling.epoch,
                seconds(earlier.at.us),
                delivery.handling.epoch,
            );
            report.add(NAME, delivery.at.us, Some(number), what);
        }
    }
}

/// Returns the cause of a repetition.
fn cause(
    digest: &Digest<'_>,
    limits: &Limits,
    earlier: &Delivery<'_>,
    delivery: &Delivery<'_>,
) -> Option<&'static str> {
    let from = earlier.at.us;
    let certain = earlier.finish.map_or(u64::MAX, |finish| finish.at.us.saturating_add(us(limits.settle)));
    let to = certain.min(delivery.at.us);
    let gone = digest.lives[earlier.life].gone;
    let gone = gone.is_some_and(|(gone, orderly)| !orderly && gone.us >= from && gone.us <= to);
    let stale = delivery.handling.epoch < earlier.handling.epoch || delivery.handling.epoch == 0;
    let just_before = delivery.at.us.saturating_sub(us(limits.notice)).max(from);
    let by_process = digest.faults.iter().filter(|fault| fault.is_long(limits)).any(|fault| {
        fault.hits(earlier.life) && fault.overlaps(from, to, 0, 0)
            || stale && fault.hits(delivery.life) && fault.overlaps(just_before, delivery.at.us, 0, 0)
    });
    if gone || by_process {
        return Some("process");
    }
    if has_moved(digest, limits, earlier, to) {
        return Some("moved");
    }
    let after = us(limits.aftermath);
    let other = delivery.life != earlier.life || delivery.handling.epoch > earlier.handling.epoch;
    digest.faults.iter().filter(|fault| fault.from.us <= delivery.at.us).find_map(|fault| {
        let (tail, name) = match fault.scope {
            Scope::Links if other && fault.is_long(limits) => (0, "links"),
            Scope::Data => (us(limits.tail), "data"),
            Scope::Partition(_) if fault.is_of(delivery) => (us(limits.group_tail), "partition"),
            _ => return None,
        };
        fault.overlaps(from, to, tail, after).then_some(name)
    })
}

/// Whether the partition of a handling was lost, or granted to another, until this time.
fn has_moved(digest: &Digest<'_>, limits: &Limits, earlier: &Delivery<'_>, to: u64) -> bool {
    let (partition, epoch) = (earlier.handling.partition, earlier.handling.epoch);
    let within = |us: u64| us >= earlier.at.us && us <= to;
    let end = digest.grant_of(earlier).and_then(|grant| grant.end);
    match end {
        Some((at, true)) if within(at.us) => return true,
        Some((at, false)) if within(at.us) => return limits.orderly_moves_repeat,
        _ => {}
    }
    let grants = digest.grants.get(&(earlier.place, partition));
    grants.into_iter().flatten().any(|grant| grant.epoch > epoch && epoch > 0 && within(grant.at.us))
}

/// Whether the attempt before this one failed.
fn has_failed(digest: &Digest<'_>, before: &[&Delivery<'_>], delivery: &Delivery<'_>) -> bool {
    before.iter().filter(|earlier| earlier.handling.attempt + 1 == delivery.handling.attempt).any(|earlier| {
        earlier.ended(End::Failed)
            && !is_overtaken(digest, before, earlier, delivery)
            && !is_fenced(digest, earlier, delivery)
    })
}

/// Whether the store refused the effect of a handling, and so the server must refuse its settlement. A fail-over may undo the
/// grant of the owner that came later.
fn is_fenced(digest: &Digest<'_>, earlier: &Delivery<'_>, delivery: &Delivery<'_>) -> bool {
    let undone = |fault: &Fault<'_>| fault.scope == Scope::Data;
    digest.refused.contains(earlier.handling) && !digest.disturbed(earlier.at.us, delivery.at.us, 0, undone)
}

/// Whether another process began with the same attempt after this one: then the message was still to be settled when that
/// one got it, and what this one says in the end has no effect. A fail-over may undo that the other one got it.
fn is_overtaken(
    digest: &Digest<'_>,
    before: &[&Delivery<'_>],
    earlier: &Delivery<'_>,
    delivery: &Delivery<'_>,
) -> bool {
    let began_later = |other: &&&Delivery<'_>| {
        other.life != earlier.life
            && other.handling.attempt == earlier.handling.attempt
            && other.at.index > earlier.at.index
    };
    let undone = |fault: &Fault<'_>| fault.scope == Scope::Data || fault.is_of(delivery);
    before.iter().any(|other| began_later(&other))
        && !digest.disturbed(earlier.at.us, delivery.at.us, 0, undone)
}
