//! Liveness: when the faults are over, everything works as before.
//!
//! **Rule.**
//!
//! - *pace*: from `recovery` after the phase `Healed` began, or its middle if that is earlier, until its end, each place
//!   handles for the first time `pace` of the number of messages that are confirmed meanwhile, or more. Both are counted in
//!   the same seconds on the same servers, so a machine that is slower than before slows both. And in each partition to
//!   which plain messages were sent then something is handled. Where fewer than `pace_least` are confirmed, nothing is known.
//!   That the rest of it is handled at last is up to `conservation`.
//! - *places*: each place to which a message was sent and confirmed in the phase `Healed` handles something in it, or
//!   after it.
//! - *ends*: a handler that began more than `handler` before the end of the run has ended, unless its process is gone, was
//!   hit by a fault, has lost the partition, or the message was handed to another one; or a fault of scope `Data`, or of
//!   the partition, came: it drops handlers.
//! - *processes*: a process that runs when nothing more is sent has worked since the phase `Healed` began, but for the
//!   `quiet_roles`; none ended in disorder without a fault; and all did what they were asked to.
//! - *run*: the run has reached the phase `Ended`, and each fault that is not of a process has ended by `Healed`.
//!
//! **Figures.** The rates of the calm phase and of `Healed`, and when four fifths of the first one were reached for two
//! seconds: both depend on what else the machine does, so nothing follows from them. *outages*, *takeovers* and *redeliveries*: see `Figures`. They include times in which nothing was to be
//! handled, so their maximum says little if messages are rare.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::chaos::record::{Phase, Scope, What};

use super::super::digest::{Delivery, Digest, Known, PlaceId};
use super::super::limits::{Limits, us};
use super::super::report::{Report, Spread, seconds};

const NAME: &str = "liveness";
/// Share of the calm rate whose return is a figure.
const USUAL: f64 = 0.8;
/// Time over which it is measured, in microseconds.
const WINDOW: u64 = 2_000_000;
/// Step in which this window is moved, in microseconds.
const STEP: u64 = 100_000;

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for fault in &digest.faults {
        *report
            .figures
            .faults
            .entry(fault.kind.split(' ').next().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    rate(digest, limits, report);
    pace(digest, limits, report);
    places(digest, report);
    ends(digest, limits, report);
    processes(digest, limits, report);
    run(digest, report);
    recovery(digest, limits, report);
}

/// Times at which handlers ended, in order.
struct Ends(Vec<u64>);

impl Ends {
    fn of<'a>(deliveries: impl Iterator<Item = &'a Delivery<'a>>) -> Self {
        let mut ends: Vec<u64> = deliveries.filter_map(|it| Some(it.finish?.at.us)).collect();
        ends.sort_unstable();
        Self(ends)
    }

    fn count(&self, from: u64, to: u64) -> usize {
        let before = |us: u64| self.0.partition_point(|at| *at < us);
        before(to).saturating_sub(before(from))
    }

    /// Per second.
    fn rate(&self, from: u64, to: u64) -> f64 {
        self.count(from, to) as f64 / (to.saturating_sub(from).max(1) as f64 / 1e6)
    }
}

/// Figures alone: what is compared are two moments, and the machine may have been another one then.
fn rate(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let (Some((calm, calm_end)), Some((healed, end))) =
        (digest.span(Phase::Calm), digest.span(Phase::Healed))
    else {
        return;
    };
    let all = Ends::of(digest.deliveries.iter());
    let (usual, latest) = (all.rate(calm, calm_end), healed + us(limits.recovery));
    report.figures.rate_calm = usual;
    report.figures.rate_healed = all.rate(healed, end);
    let mut starts = (healed..=latest).step_by(STEP as usize).take_while(|at| at + WINDOW <= end);
    let reached = starts.find(|at| all.rate(*at, at + WINDOW) >= usual * USUAL);
    report.figures.recovered_after_us = reached.map(|at| at - healed);
}

fn pace(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let Some((healed, end)) = digest.span(Phase::Healed) else { return };
    let from = (healed + us(limits.recovery)).min(healed + end.saturating_sub(healed) / 2);
    let meanwhile = |at: u64| (from..end).contains(&at);
    for (id, place) in digest.places.iter().enumerate() {
        let (mut confirmed, mut sent_to) = (0_usize, BTreeMap::<u32, usize>::new());
        for sent in digest.messages.values().filter(|sent| sent.message.to == place.name) {
            let Known::Stored(partition, _) = sent.known else { continue };
            if sent.to.is_some_and(|to| meanwhile(to.us)) {
                confirmed += 1;
                // A delayed message does not tell its partition.
                if sent.message.due_ms == 0 {
                    *sent_to.entry(partition).or_default() += 1;
                }
            }
        }
        let (mut handled, mut handled_at) = (0_usize, HashSet::new());
        for (_, of) in digest.by_message.range((id, u64::MIN)..=(id, u64::MAX)) {
            let ends = of.iter().filter_map(|index| digest.deliveries[*index].finish);
            handled += usize::from(ends.map(|end| end.at.us).min().is_some_and(meanwhile));
        }
        for delivery in digest.deliveries.iter().filter(|delivery| delivery.place == id) {
            if delivery.finish.is_some_and(|finish| meanwhile(finish.at.us)) {
                handled_at.insert(delivery.handling.partition);
            }
        }
        if confirmed < limits.pace_least {
            continue;
        }
        let share = handled as f64 / confirmed as f64;
        let place = digest.label(id);
        report.figures.pace.insert(place.clone(), share);
        if share < limits.pace {
            let what = format!(
                "{place}: from {} on {confirmed} messages were confirmed, and {handled} were handled meanwhile: no {:.0} %",
                seconds(from),
                limits.pace * 100.0
            );
            report.add(NAME, from, None, what);
        }
        for (partition, sent) in sent_to {
            if sent >= limits.pace_least && !handled_at.contains(&partition) {
                let what = format!(
                    "{place}, partition {partition}: from {} on {sent} messages were confirmed, and none was handled \
                     meanwhile",
                    seconds(from)
                );
                report.add(NAME, from, None, what);
            }
        }
    }
}

fn places(digest: &Digest<'_>, report: &mut Report) {
    let (Some((from, to)), Some(healed)) = (digest.span(Phase::Healed), digest.began(Phase::Healed)) else {
        return;
    };
    for (id, place) in digest.places.iter().enumerate() {
        let sent = digest.messages.values().any(|sent| {
            let confirmed = sent.is_stored() && sent.to.is_some_and(|at| at.us >= from && at.us < to);
            sent.message.to == place.name && confirmed
        });
        let mut handled = digest.deliveries.iter().rev().filter(|delivery| delivery.place == id);
        let handled = handled.any(|it| it.finish.is_some_and(|finish| finish.at.index > healed.index));
        if sent && !handled {
            let what = format!("{}: nothing is handled after the last fault", digest.label(id));
            report.add(NAME, from, None, what);
        }
    }
}

/// Returns when nothing more is sent; processes end after that.
fn working_until(digest: &Digest<'_>) -> u64 {
    digest.began(Phase::Draining).map_or(digest.end_us, |draining| draining.us)
}

fn ends(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let until = working_until(digest);
    for (index, delivery) in digest.deliveries.iter().enumerate() {
        let life = &digest.lives[delivery.life];
        let in_time = delivery.at.us.saturating_add(us(limits.handler)) >= digest.end_us;
        let gone = life.gone.is_some_and(|(gone, _)| gone.us <= until);
        if delivery.finish.is_some() || in_time || gone || is_dropped(digest, delivery, index) {
            continue;
        }
        let what = format!(
            "attempt {} at {}, partition {}: began in {} and has not ended at {}",
            delivery.handling.attempt,
            digest.label(delivery.place),
            delivery.handling.partition,
            life.label(),
            seconds(digest.end_us)
        );
        report.add(NAME, delivery.at.us, Some(delivery.handling.number), what);
    }
}

/// Whether a handler may have been dropped.
fn is_dropped(digest: &Digest<'_>, delivery: &Delivery<'_>, index: usize) -> bool {
    let fault = digest.faults.iter().any(|fault| {
        let may = fault.scope == Scope::Data || fault.is_of(delivery) || fault.hits(delivery.life);
        may && fault.overlaps(delivery.at.us, digest.end_us, 0, 0)
    });
    let lost = digest.grant_of(delivery).is_some_and(|grant| grant.end.is_some());
    let again = digest.by_message[&(delivery.place, delivery.handling.number)].last() != Some(&index);
    fault || lost || again
}

fn processes(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    for line in digest.lines {
        if let What::Disobeyed(what) = &line.what {
            report.add(NAME, line.at_us, None, what.clone());
        }
    }
    let (healed, until) = (digest.began(Phase::Healed), working_until(digest));
    for (id, life) in digest.lives.iter().enumerate() {
        let Some((_, role)) = life.named else { continue };
        let before_end = life.gone.filter(|(at, _)| at.us < until);
        match (before_end, healed) {
            (Some((at, false)), _)
                if !digest.faults.iter().any(|fault| fault.hits(id) && fault.from.us <= at.us) =>
            {
                report.add(NAME, at.us, None, format!("{} ended by itself", life.label()));
            }
            (None, Some(healed))
                if life.last.us < healed.us && !limits.quiet_roles.iter().any(|it| it == role) =>
            {
                let what =
                    format!("{} ({role}) has recorded nothing since {}", life.label(), seconds(life.last.us));
                report.add(NAME, healed.us, None, what);
            }
            _ => {}
        }
    }
}

fn run(digest: &Digest<'_>, report: &mut Report) {
    if digest.began(Phase::Ended).is_none() {
        let last = digest.phases.last().map(|(phase, _)| phase);
        report.add(NAME, digest.end_us, None, format!("the run has not ended: its last phase is {last:?}"));
    }
    let Some(healed) = digest.began(Phase::Healed) else { return };
    for fault in &digest.faults {
        let of_process = matches!(fault.scope, Scope::Process(_) | Scope::Leaving(_));
        if !of_process && fault.to.is_none_or(|to| to.index > healed.index) {
            let what =
                format!("fault {} ({}) has not ended before the phase Healed", fault.number, fault.kind);
            report.add(NAME, healed.us, None, what);
        }
    }
}

fn recovery(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let begins: Vec<u64> = digest.deliveries.iter().map(|delivery| delivery.at.us).collect();
    // First begin under each epoch, by partition; epochs are in the order of their first begin.
    let mut terms: HashMap<(PlaceId, u32), Vec<(u64, u64)>> = HashMap::new();
    for delivery in digest.deliveries.iter().filter(|delivery| delivery.handling.epoch > 0) {
        let terms = terms.entry((delivery.place, delivery.handling.partition)).or_default();
        let epoch = delivery.handling.epoch;
        if terms.last().is_none_or(|(last, _)| *last < epoch) {
            terms.push((epoch, delivery.at.us));
        }
    }
    let (mut outages, mut takeovers, mut redeliveries) = (Vec::new(), Vec::new(), Vec::new());
    for fault in &digest.faults {
        let (Some(life), from) = (fault.life, fault.from) else {
            if matches!(fault.scope, Scope::Leaving(_) | Scope::Nothing) {
                continue;
            }
            let to = fault.to.map(|to| to.us);
            let next = to.and_then(|to| begins.iter().find(|at| **at >= to).map(|at| at - to));
            outages.extend(next);
            continue;
        };
        let dead = digest.lives[life].gone.is_some_and(|(gone, _)| {
            fault.to.is_none_or(|to| gone.us <= to.us.saturating_add(us(limits.notice)))
        });
        let until =
            if dead { u64::MAX } else { fault.to.map_or(u64::MAX, |to| to.us + us(limits.aftermath)) };
        for ((place, partition), grants) in &digest.grants {
            let owned = grants.iter().find(|grant| {
                let held = grant.end.is_none_or(|(end, _)| end.us >= from.us);
                grant.life == life && grant.at.index < from.index && held
            });
            let Some(owned) = owned else { continue };
            let terms = terms.get(&(*place, *partition)).map_or(&[][..], Vec::as_slice);
            let next =
                terms.iter().find(|(epoch, at)| *epoch > owned.epoch && *at >= from.us && *at <= until);
            takeovers.extend(next.map(|(_, at)| at - from.us));
        }
        let running = digest.deliveries.iter().take_while(|delivery| delivery.at.index < from.index);
        let running =
            running.filter(|it| it.life == life && it.finish.is_none_or(|end| end.at.us >= from.us));
        for running in running {
            let mut others = digest.deliveries_of(running.place, running.handling.number);
            let next = others.find(|other| other.at.us >= from.us && other.life != life);
            redeliveries.extend(next.map(|next| next.at.us - from.us));
        }
    }
    report.figures.outages = Spread::of(outages);
    report.figures.takeovers = Spread::of(takeovers);
    report.figures.redeliveries = Spread::of(redeliveries);
    let locks = digest.lines.iter().filter(|line| matches!(line.what, What::Locked { .. }));
    report.figures.locks = locks.count();
}
