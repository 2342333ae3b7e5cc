//! Liveness: when the faults are over, everything works as before.
//!
//! **Rule.**
//!
//! - *rate*: at the latest `recovery` after the phase `Healed` began, handlers end at `rate_share` of the rate of the calm
//!   phase, measured over `rate_window`. If the phase goes on for a window after that, its mean is not below it either.
//!   Calm phases with fewer than `rate_least` messages have no rate.
//! - *places*: each place to which a message was sent and confirmed in the phase `Healed` handles something in it, or
//!   after it.
//! - *ends*: a handler that began more than `handler` before the end of the run has ended, unless its process is gone, was
//!   hit by a fault, has lost the partition, or the message was handed to another one; or a fault of scope `Data` or `Group`
//!   came: it drops handlers.
//! - *processes*: a process that runs at the end has recorded something since the phase `Healed` began, but for the
//!   `quiet_roles`; and none ended in disorder without a fault.
//! - *run*: the run has reached the phase `Ended`, and each fault that is not of a process has ended by `Healed`.
//!
//! **Figures.** *outages*, *takeovers* and *redeliveries*: see `Figures`. They include times in which nothing was to be
//! handled, so their maximum says little if messages are rare.
//!
//! **Limits.** The rate is that of all places together.

use std::collections::HashMap;

use crate::chaos::record::{Phase, Scope, What};

use super::super::limits::{Limits, us};
use super::super::report::{Report, Spread, seconds};
use super::super::story::{Delivery, PlaceId, Story};

const NAME: &str = "liveness";
/// Step in which the window of the rate is moved, in microseconds.
const STEP: u64 = 100_000;

pub(super) fn check(story: &Story<'_>, limits: &Limits, report: &mut Report) {
    for fault in &story.faults {
        *report
            .figures
            .faults
            .entry(fault.kind.split(' ').next().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    rate(story, limits, report);
    places(story, report);
    ends(story, limits, report);
    processes(story, limits, report);
    run(story, report);
    recovery(story, limits, report);
}

fn rate(story: &Story<'_>, limits: &Limits, report: &mut Report) {
    let ends = story.deliveries.iter().filter_map(|delivery| delivery.finish);
    let mut ends: Vec<u64> = ends.map(|finish| finish.at.us).collect();
    ends.sort_unstable();
    let count = |from: u64, to: u64| {
        ends.partition_point(|at| *at < to).saturating_sub(ends.partition_point(|at| *at < from))
    };
    let rate = |from: u64, to: u64| count(from, to) as f64 / ((to.saturating_sub(from)).max(1) as f64 / 1e6);
    let (Some((calm, calm_end)), Some((healed, end))) = (story.span(Phase::Calm), story.span(Phase::Healed))
    else {
        return;
    };
    let (usual, window) = (rate(calm, calm_end), us(limits.rate_window));
    report.figures.rate_calm = usual;
    report.figures.rate_healed = rate(healed, end);
    if count(calm, calm_end) < limits.rate_least {
        return;
    }
    let least = usual * limits.rate_share;
    let latest = healed + us(limits.recovery);
    let starts = (healed..=latest).step_by(STEP as usize).take_while(|at| at + window <= end);
    let reached = starts.into_iter().find(|at| rate(*at, at + window) >= least);
    report.figures.recovered_after_us = reached.map(|at| at - healed);
    let sustained = rate(latest, end);
    if reached.is_none() {
        let what = format!(
            "{usual:.1}/s were handled in the calm phase; within {:?} of the last fault no {:?} reached {least:.1}/s \
             (mean {:.1}/s)",
            limits.recovery,
            limits.rate_window,
            rate(healed, end)
        );
        report.add(NAME, healed, None, what);
    } else if end >= latest + window && sustained < least {
        let what =
            format!("{usual:.1}/s were handled in the calm phase, and {sustained:.1}/s after the recovery");
        report.add(NAME, latest, None, what);
    }
}

fn places(story: &Story<'_>, report: &mut Report) {
    let (Some((from, to)), Some(healed)) = (story.span(Phase::Healed), story.began(Phase::Healed)) else {
        return;
    };
    for (id, place) in story.places.iter().enumerate() {
        let sent = story.messages.values().any(|sent| {
            let confirmed = sent.is_stored() && sent.to.is_some_and(|at| at.us >= from && at.us < to);
            sent.message.to == place.name && confirmed
        });
        let mut handled = story.deliveries.iter().rev().filter(|delivery| delivery.place == id);
        let handled = handled.any(|it| it.finish.is_some_and(|finish| finish.at.index > healed.index));
        if sent && !handled {
            let what = format!("{}: nothing is handled after the last fault", story.label(id));
            report.add(NAME, from, None, what);
        }
    }
}

fn ends(story: &Story<'_>, limits: &Limits, report: &mut Report) {
    for (index, delivery) in story.deliveries.iter().enumerate() {
        let life = &story.lives[delivery.life];
        let in_time = delivery.at.us.saturating_add(us(limits.handler)) >= story.end_us;
        let gone = life.gone.is_some_and(|(gone, _)| gone.us <= story.end_us);
        if delivery.finish.is_some() || in_time || gone || is_dropped(story, delivery, index) {
            continue;
        }
        let what = format!(
            "attempt {} at {}, partition {}: began in {} and has not ended at {}",
            delivery.handling.attempt,
            story.label(delivery.place),
            delivery.handling.partition,
            life.label(),
            seconds(story.end_us)
        );
        report.add(NAME, delivery.at.us, Some(delivery.handling.number), what);
    }
}

/// Whether a handler may have been dropped.
fn is_dropped(story: &Story<'_>, delivery: &Delivery<'_>, index: usize) -> bool {
    let fault = story.faults.iter().any(|fault| {
        let may = matches!(fault.scope, Scope::Data | Scope::Group) || fault.hits(delivery.life);
        may && fault.overlaps(delivery.at.us, story.end_us, 0, 0)
    });
    let lost = story.grant_of(delivery).is_some_and(|grant| grant.end.is_some());
    let again = story.by_message[&(delivery.place, delivery.handling.number)].last() != Some(&index);
    fault || lost || again
}

fn processes(story: &Story<'_>, limits: &Limits, report: &mut Report) {
    let healed = story.began(Phase::Healed);
    for (id, life) in story.lives.iter().enumerate() {
        let Some((_, role)) = life.named else { continue };
        let before_end = life.gone.filter(|(at, _)| at.us < story.end_us);
        match (before_end, healed) {
            (Some((at, false)), _)
                if !story.faults.iter().any(|fault| fault.hits(id) && fault.from.us <= at.us) =>
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

fn run(story: &Story<'_>, report: &mut Report) {
    if story.began(Phase::Ended).is_none() {
        let last = story.phases.last().map(|(phase, _)| phase);
        report.add(NAME, story.end_us, None, format!("the run has not ended: its last phase is {last:?}"));
    }
    let Some(healed) = story.began(Phase::Healed) else { return };
    for fault in &story.faults {
        let of_process = matches!(fault.scope, Scope::Process(_));
        if !of_process && fault.to.is_none_or(|to| to.index > healed.index) {
            let what =
                format!("fault {} ({}) has not ended before the phase Healed", fault.number, fault.kind);
            report.add(NAME, healed.us, None, what);
        }
    }
}

fn recovery(story: &Story<'_>, limits: &Limits, report: &mut Report) {
    let begins: Vec<u64> = story.deliveries.iter().map(|delivery| delivery.at.us).collect();
    // First begin under each epoch, by partition; epochs are in the order of their first begin.
    let mut terms: HashMap<(PlaceId, u32), Vec<(u64, u64)>> = HashMap::new();
    for delivery in story.deliveries.iter().filter(|delivery| delivery.handling.epoch > 0) {
        let terms = terms.entry((delivery.place, delivery.handling.partition)).or_default();
        let epoch = delivery.handling.epoch;
        if terms.last().is_none_or(|(last, _)| *last < epoch) {
            terms.push((epoch, delivery.at.us));
        }
    }
    let (mut outages, mut takeovers, mut redeliveries) = (Vec::new(), Vec::new(), Vec::new());
    for fault in &story.faults {
        let (Some(life), from) = (fault.life, fault.from) else {
            let to = fault.to.map(|to| to.us);
            let next = to.and_then(|to| begins.iter().find(|at| **at >= to).map(|at| at - to));
            outages.extend(next);
            continue;
        };
        let dead = story.lives[life].gone.is_some_and(|(gone, _)| {
            fault.to.is_none_or(|to| gone.us <= to.us.saturating_add(us(limits.notice)))
        });
        let until =
            if dead { u64::MAX } else { fault.to.map_or(u64::MAX, |to| to.us + us(limits.aftermath)) };
        for ((place, partition), grants) in &story.grants {
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
        let running = story.deliveries.iter().take_while(|delivery| delivery.at.index < from.index);
        let running =
            running.filter(|it| it.life == life && it.finish.is_none_or(|end| end.at.us >= from.us));
        for running in running {
            let mut others = story.deliveries_of(running.place, running.handling.number);
            let next = others.find(|other| other.at.us >= from.us && other.life != life);
            redeliveries.extend(next.map(|next| next.at.us - from.us));
        }
    }
    report.figures.outages = Spread::of(outages);
    report.figures.takeovers = Spread::of(takeovers);
    report.figures.redeliveries = Spread::of(redeliveries);
    let locks = story.lines.iter().filter(|line| matches!(line.what, What::Locked { .. }));
    report.figures.locks = locks.count();
}
