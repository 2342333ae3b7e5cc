//! Leases and fencing: epochs increase, and an owner that knows that it is none does nothing.
//!
//! **Rule.**
//!
//! - *increase*: the epochs of the grants of a partition strictly increase in the order of their lines. Behind a fault of
//!   scope `Data` they may decrease: this is counted. A process that was stopped between the grant and its line may
//!   write it too late, and behind a fault of scope `Data` the answers of two servers come in any order within a ttl; but no two grants have
//!   one epoch.
//! - *single*: no two processes handle messages of a partition under one epoch, but behind a fault of scope `Data`.
//! - *granted*: a handler that shows an epoch belongs to a process that was granted it.
//! - *known loss*: no handler begins under an epoch later than `notice` after its process recorded that it no longer owns
//!   the partition under it.
//! - *fenced*: the store accepts no effect whose epoch is lower than one that it accepted before for the partition; it
//!   refuses none without a reason; and behind one that it refused it accepts none of the same epoch. (At places whose
//!   name ends in `-once` the store also refuses what it has already.)
//! - *losses*: a partition is lost, or granted to another while its owner lives and has not given it back, only if a fault
//!   is near, with its aftermath: of its owner, of the partition, of links, of a server or of data. One process may lose up to
//!   `unexplained_losses` within one ttl without: the machine gave it no time.
//! - *epochs*: where partitions are owned, in an order, each handler shows an epoch.
//!
//! **Limits.** That two processes believe to own a partition is no breach: one of them may be stopped.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::chaos::record::{Scope, What};

use super::super::digest::{Digest, Fault, Grant, Moment, PlaceId};
use super::super::limits::{KeyOrder, Limits, us};
use super::super::report::{Report, seconds};
use super::effects::is_once;

const NAME: &str = "leases";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    increase(digest, limits, report);
    handlers(digest, limits, report);
    fenced(digest, report);
    losses(digest, limits, report);
}

fn is_data(fault: &Fault<'_>) -> bool {
    fault.scope == Scope::Data
}

fn increase(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for ((place, partition), grants) in &digest.grants {
        let mut highest: Option<&Grant> = None;
        for grant in grants {
            let Some(before) = highest.filter(|before| before.epoch >= grant.epoch) else {
                highest = Some(grant);
                continue;
            };
            let from = before.at.us.saturating_sub(us(limits.tail));
            if limits.epochs_may_regress && digest.disturbed(from, grant.at.us, us(limits.aftermath), is_data)
            {
                report.figures.epochs_regressed += 1;
                highest = Some(grant);
                continue;
            }
            // See the same rule of `locks`.
            let late = digest.disturbed(before.at.us, grant.at.us, 0, |fault| fault.hits(grant.life))
                || grant.at.us - before.at.us <= us(limits.ttl)
                    && digest.disturbed(from, grant.at.us, us(limits.aftermath), is_data);
            let late = late && before.epoch > grant.epoch;
            if !late {
                let (first, second) = (digest.lives[before.life].label(), digest.lives[grant.life].label());
                let what = format!(
                    "{}, partition {partition}: {second} is granted epoch {}, {first} was granted {} at {}",
                    digest.label(*place),
                    grant.epoch,
                    before.epoch,
                    seconds(before.at.us)
                );
                report.add(NAME, grant.at.us, None, what);
            }
        }
    }
}

fn handlers(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for delivery in digest.deliveries.iter().filter(|delivery| delivery.handling.epoch == 0) {
        let is_owned = limits.of(digest.places[delivery.place]).order != KeyOrder::Free;
        if is_owned && digest.grants.contains_key(&(delivery.place, delivery.handling.partition)) {
            let what = format!("handled at {} without an epoch", digest.label(delivery.place));
            report.add(NAME, delivery.at.us, Some(delivery.handling.number), what);
        }
    }
    let mut owners: HashMap<(PlaceId, u32, u64), usize> = HashMap::new();
    let mut reported: HashSet<(PlaceId, u32, u64)> = HashSet::new();
    for delivery in digest.deliveries.iter().filter(|delivery| delivery.handling.epoch > 0) {
        let (partition, epoch) = (delivery.handling.partition, delivery.handling.epoch);
        let (number, at) = (delivery.handling.number, delivery.at.us);
        let term = (delivery.place, partition, epoch);
        let life = &digest.lives[delivery.life];
        let name = format!("{}, partition {partition}, epoch {epoch}", digest.label(delivery.place));

        let owner = *owners.entry(term).or_insert(delivery.life);
        let from = at.saturating_sub(us(limits.aftermath));
        if owner != delivery.life
            && !digest.disturbed(from.min(at), at, us(limits.aftermath), is_data)
            && reported.insert(term)
        {
            let what =
                format!("{name}: {} handles it, and so did {}", life.label(), digest.lives[owner].label());
            report.add(NAME, at, Some(number), what);
        }

        let Some(grant) = digest.grant_of(delivery) else {
            // A process that is killed right after the grant may not have written it down.
            let dies = life.gone.is_some_and(|(gone, _)| gone.us <= at.saturating_add(us(limits.notice)));
            if !dies {
                report.add(NAME, at, Some(number), format!("{name}: {} was not granted it", life.label()));
            }
            continue;
        };
        if let Some((end, lost)) = grant.end
            && end.index < delivery.at.index
            && end.us.saturating_add(us(limits.notice)) < at
        {
            let how = if lost { "lost it" } else { "gave it back" };
            let what = format!("{name}: {} begins, and {how} at {}", life.label(), seconds(end.us));
            report.add(NAME, at, Some(number), what);
        }
    }
}

fn fenced(digest: &Digest<'_>, report: &mut Report) {
    let mut highest: BTreeMap<(PlaceId, u32), u64> = BTreeMap::new();
    let mut refused: HashMap<(PlaceId, u32, u64), u64> = HashMap::new();
    for line in digest.lines {
        let What::Effect { handling, accepted } = &line.what else { continue };
        let count = if *accepted {
            &mut report.figures.effects_accepted
        } else {
            &mut report.figures.effects_refused
        };
        *count += 1;
        let Some(place) = digest.place(&handling.place).filter(|_| handling.epoch > 0) else { continue };
        let is_once = is_once(&handling.place);
        let (partition, epoch, number) = (handling.partition, handling.epoch, handling.number);
        let name = format!("{}, partition {partition}, epoch {epoch}", digest.label(place));
        let seen = highest.entry((place, partition)).or_default();
        let mut wrong = |what: String| {
            report.add(NAME, line.at_us, Some(number), format!("{name}: an effect is {what}"));
        };
        match accepted {
            true if *seen > epoch => wrong(format!("accepted after one of epoch {seen}")),
            true => *seen = epoch,
            false if is_once => {}
            false if *seen <= epoch => wrong(format!("refused, and the highest epoch was {seen}")),
            false => _ = refused.entry((place, partition, epoch)).or_insert(line.at_us),
        }
        if *accepted && let Some(at) = refused.get(&(place, partition, epoch)) {
            wrong(format!("accepted, and one was refused at {}", seconds(*at)));
        }
    }
}

fn losses(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let mut unexplained = Vec::new();
    for ((place, partition), grants) in &digest.grants {
        for (nth, grant) in grants.iter().enumerate() {
            let Some(at) = lost_at(digest, limits, grant, &grants[nth + 1..]) else { continue };
            report.figures.losses += 1;
            let from = at.us.saturating_sub(us(limits.ttl)).max(grant.at.us.min(at.us));
            let explains = |fault: &Fault<'_>| match fault.scope {
                Scope::Process(_) => fault.hits(grant.life),
                Scope::Partition(of) => of == *partition,
                Scope::Links | Scope::Server | Scope::Data => true,
                Scope::Leaving(_) | Scope::Nothing => false,
            };
            if !digest.disturbed(from, at.us, us(limits.aftermath), explains) {
                unexplained.push((at, *place, *partition, grant));
            }
        }
    }
    unexplained.sort_by_key(|(at, ..)| *at);
    let stalled = unexplained.first().map(|(at, _, _, grant)| (at.us, grant.life));
    let is_stall = |at: Moment, grant: &Grant| {
        stalled.is_some_and(|(first, life)| grant.life == life && at.us - first <= us(limits.ttl))
    };
    for (nth, (at, place, partition, grant)) in unexplained.into_iter().enumerate() {
        if nth < limits.unexplained_losses && is_stall(at, grant) {
            continue;
        }
        let (name, owner) = (digest.label(place), digest.lives[grant.life].label());
        let what = format!(
            "{name}, partition {partition}: {owner} lost epoch {}, granted at {}, without a fault",
            grant.epoch,
            seconds(grant.at.us)
        );
        report.add(NAME, at.us, None, what);
    }
}

/// Returns when a partition was lost: its owner said so, or was alive and another one was granted it.
fn lost_at(digest: &Digest<'_>, limits: &Limits, grant: &Grant, later: &[Grant]) -> Option<Moment> {
    let taken = later.iter().find(|next| next.epoch > grant.epoch).map(|next| next.at).filter(|taken| {
        let until = taken.us.saturating_add(us(limits.notice));
        let gone = digest.lives[grant.life].gone.is_some_and(|(gone, _)| gone.us <= until);
        let ended = grant.end.is_some_and(|(end, _)| end.us <= until);
        !gone && !ended
    });
    let lost = grant.end.filter(|(_, lost)| *lost).map(|(at, _)| at);
    lost.into_iter().chain(taken).min()
}
