//! Total queue: what was sent is handled, and nothing else.
//!
//! **Rule.** At each place, with E = messages that were confirmed, A = messages whose send began, D = messages that were
//! acknowledged or are dead letters:
//!
//! - *lost*: E − D is empty, but for what is left over at the end (which `conservation` does not allow, so that a run
//!   that was ended too early is not taken for one that loses). A message that was not `safe` may be undone by a fault
//!   of scope `Data`, if the fault and the send overlap, with `tail` before the fault: it counts as lost by the server.
//!   The same holds for faults of scope `Partition` if `group_faults_lose` says so.
//! - *unexpected*: D − A is empty. No handler begins with a message that was never sent, or not yet, or to another place,
//!   or whose send was refused, or whose body is another one, or at another partition than the confirmed one, or, but behind a
//!   fault of scope `Data`, under another id.
//! - one id of a topic and partition is confirmed for one message, but behind a fault of scope `Data`.
//! - a handler ends as its message says: by fate and attempt. One whose effect was refused may end as failed.
//! - no handler ends that never began, and no outcome comes without a send.
//!
//! **Limits.** A message of unknown outcome may be there or not. `Rest` has numbers of what is left and not which, so
//! while n messages are left over, the first n unhandled ones of the place are not reported as lost.

use std::collections::{BTreeSet, HashMap};

use crate::chaos::record::{End, Fate, Scope};

use super::super::digest::{Delivery, Digest, Fault, Known, Sent};
use super::super::limits::{Limits, us};
use super::super::report::Report;

const NAME: &str = "queue";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    sends(digest, limits, report);
    for delivery in &digest.deliveries {
        was_sent(digest, limits, delivery, report);
        if !(delivery.ended(End::Failed) && digest.refused.contains(delivery.handling)) {
            matches_fate(digest, limits, delivery, report);
        }
    }
    for index in &digest.unmatched {
        let line = &digest.lines[*index];
        report.add(NAME, line.at_us, None, format!("ends without a begin: {:?}", line.what));
    }
    complete(digest, limits, report);
}

fn sends(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let mut ids: HashMap<(&str, u32, &str), &Sent<'_>> = HashMap::new();
    for sent in digest.messages.values() {
        let count = match sent.known {
            Known::Stored(..) => &mut report.figures.sent_stored,
            Known::Refused => &mut report.figures.sent_refused,
            Known::Unknown => &mut report.figures.sent_unknown,
        };
        *count += 1;
        let Known::Stored(partition, id) = sent.known else { continue };
        if id.is_empty() {
            continue;
        }
        if let Some(other) = ids.insert((&sent.message.to, partition, id), sent) {
            let (from, to) = (other.from.us.min(sent.from.us), other.from.us.max(sent.from.us));
            let data = |fault: &Fault<'_>| fault.scope == Scope::Data;
            if !digest.disturbed(from.saturating_sub(us(limits.tail)), to, 0, data) {
                let (to, other) = (&sent.message.to, other.message.number);
                let what = format!("it has the id {id} of message {other} in {to}, partition {partition}");
                report.add(NAME, sent.from.us, Some(sent.message.number), what);
            }
        }
    }
}

fn was_sent(digest: &Digest<'_>, limits: &Limits, delivery: &Delivery<'_>, report: &mut Report) {
    let (number, place) = (delivery.handling.number, digest.label(delivery.place));
    let mut wrong = |what: &str| {
        report.add(NAME, delivery.at.us, Some(number), format!("handled at {place}: {what}"));
    };
    if !delivery.intact {
        wrong("its body is not the one that was sent");
    }
    let Some(sent) = digest.messages.get(&number) else { return wrong("it was never sent") };
    if sent.from.index > delivery.at.index {
        wrong("it was not yet sent");
    }
    if sent.message.to != digest.places[delivery.place].name {
        wrong(&format!("it was sent to {}", sent.message.to));
    }
    match sent.known {
        Known::Refused => wrong("its send was refused"),
        Known::Stored(partition, id) if !id.is_empty() && partition != delivery.handling.partition => {
            let at = delivery.handling.partition;
            wrong(&format!("at partition {at}, and it was confirmed at partition {partition}"));
        }
        Known::Stored(_, id) if !id.is_empty() && id != delivery.handling.origin => {
            // What a fail-over has undone may be stored again.
            let from = sent.from.us.saturating_sub(us(limits.tail));
            let data = |fault: &Fault<'_>| fault.scope == Scope::Data;
            if !digest.disturbed(from, delivery.at.us, us(limits.aftermath), data) {
                wrong(&format!("as {}, and it was confirmed as {id}", delivery.handling.origin));
            }
        }
        _ => {}
    }
}

/// Checks that a handler did what the message says.
fn matches_fate(digest: &Digest<'_>, limits: &Limits, delivery: &Delivery<'_>, report: &mut Report) {
    let handling = delivery.handling;
    let (Some(finish), Some(sent)) = (delivery.finish, digest.messages.get(&handling.number)) else { return };
    let end = match sent.message.fate {
        Fate::Flaky if handling.attempt == 1 && finish.end == End::Failed => End::Failed,
        Fate::Ack | Fate::Flaky => End::Acked,
        Fate::Fail(attempts) if handling.attempt > attempts => End::Acked,
        Fate::Fail(_) | Fate::Hopeless => End::Failed,
        Fate::Reject => End::Rejected,
    };
    let attempts = limits.of(digest.places[delivery.place]).attempts;
    let (at, place) = (finish.at.us, digest.label(delivery.place));
    if finish.end != end {
        let (got, fate) = (finish.end, sent.message.fate);
        let what = format!("at {place}, attempt {} ended as {got:?}, its fate is {fate:?}", handling.attempt);
        report.add(NAME, at, Some(handling.number), what);
    }
    if handling.attempt == 0 || handling.attempt > attempts {
        let what = format!("at {place}, attempt {} of {attempts}", handling.attempt);
        report.add(NAME, at, Some(handling.number), what);
    }
}

/// Whether the data of a message that was confirmed may be gone, because of a fault.
pub(super) fn may_be_undone(digest: &Digest<'_>, limits: &Limits, place: usize, sent: &Sent<'_>) -> bool {
    let Some(to) = sent.to else { return false };
    let tail = us(limits.tail);
    digest.faults.iter().any(|fault| match fault.scope {
        // One whose send waited for the replicas in vain is on none of them.
        Scope::Data => {
            (!sent.message.safe || !sent.is_stored()) && fault.overlaps(sent.from.us, to.us, tail, 0)
        }
        // A delayed message comes into the log when it is due.
        Scope::Partition(lost) => {
            let elsewhere = matches!(sent.known, Known::Stored(at, id) if !id.is_empty() && at != lost);
            limits.of(digest.places[place]).group_faults_lose
                && !elsewhere
                && fault.overlaps(sent.from.us, to.us.saturating_add(tail), tail, 0)
        }
        _ => false,
    })
}

fn complete(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let mut read = BTreeSet::new();
    for (id, place) in digest.places.iter().enumerate() {
        read.insert(&place.name);
        let label = digest.label(id);
        let dead: BTreeSet<u64> = digest.dead(id).iter().filter_map(|(number, _)| *number).collect();
        let mut figures = report.figures.places.remove(&label).unwrap_or_default();
        let left = digest.left.get(&id).map(|(_, rest)| rest.pending + rest.unread + rest.waiting);
        figures.left = left.unwrap_or(0);
        let mut allowance = figures.left;
        for delivery in digest.deliveries.iter().filter(|delivery| delivery.place == id) {
            figures.begun += 1;
            figures.failed += usize::from(delivery.ended(End::Failed));
        }
        for (number, sent) in digest.messages.iter().filter(|(_, sent)| sent.message.to == place.name) {
            figures.stored += usize::from(sent.is_stored());
            figures.safe += usize::from(sent.is_stored() && sent.message.safe);
            let acked = digest.deliveries_of(id, *number).any(|delivery| delivery.ended(End::Acked));
            figures.acked += usize::from(acked);
            figures.dead += usize::from(dead.contains(number));
            let is_there = acked || dead.contains(number);
            figures.recovered += usize::from(is_there && sent.known == Known::Unknown);
            if !sent.is_stored() || is_there {
            } else if may_be_undone(digest, limits, id, sent) {
                figures.lost_by_server += 1;
            } else if allowance > 0 {
                allowance -= 1;
            } else {
                figures.lost += 1;
                let begun = digest.deliveries_of(id, *number).count();
                let what =
                    format!("lost at {label}: confirmed as {:?}, begun {begun} times, {sent:?}", sent.known);
                report.add(NAME, sent.from.us, Some(*number), what);
            }
        }
        report.figures.places.insert(label, figures);
    }
    for (number, sent) in &digest.messages {
        if sent.is_stored() && !read.contains(&sent.message.to) {
            let what = format!("lost: nobody handles what is sent to {}", sent.message.to);
            report.add(NAME, sent.from.us, Some(*number), what);
        }
    }
}
