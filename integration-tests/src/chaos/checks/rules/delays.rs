//! Delays: nothing is early, and nothing is late without a fault.
//!
//! **Rule.**
//!
//! - *early*: the first attempt of a delayed message never begins before it is due, by the true clock. Zero tolerance, but
//!   for `early`, in runs in which the clock of a server is set.
//! - *late*: it begins for the first time at most `lateness` after it was due, or after it was sent if that was later.
//!   Excused if a fault overlaps this time, extended by `recovery`, as what piled up is worked off; and in the phase
//!   `Starting`.
//! - *retry*: the next attempt begins at least `back_off` after the one before ended as failed, if the place has one. A
//!   thousandth and a millisecond of it are excused, as two clocks measure it.
//!
//! **Limits.** An attempt whose failure another process handled too counts from the first of the failures.

use crate::chaos::record::{End, Phase};

use super::super::digest::{Delivery, Digest};
use super::super::limits::{Limits, us};
use super::super::report::{Report, Spread, seconds};

const NAME: &str = "delays";

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let (mut calm, mut disturbed) = (Vec::new(), Vec::new());
    for (index, delivery) in digest.deliveries.iter().enumerate() {
        retry(digest, limits, delivery, report);
        let number = delivery.handling.number;
        let Some(sent) = digest.messages.get(&number).filter(|sent| sent.message.due_ms > 0) else {
            continue;
        };
        let (at, place) = (delivery.at.us, digest.label(delivery.place));
        if delivery.handling.attempt > 1 {
            continue;
        }
        if delivery.early_ms > 0 && delivery.early_ms.unsigned_abs() * 1_000 > us(limits.early) {
            let what = format!("begins at {place} {} ms early", delivery.early_ms);
            report.add(NAME, at, Some(number), what);
        }
        if digest.by_message[&(delivery.place, number)].first() != Some(&index) {
            continue;
        }
        let late = u64::try_from(-delivery.early_ms).unwrap_or(0).saturating_mul(1_000);
        let sent = sent.to.unwrap_or(sent.from).us.min(at);
        let due = at.saturating_sub(late).max(sent);
        let starting = digest.began(Phase::Calm).is_some_and(|calm| due < calm.us);
        if starting || digest.disturbed(due, at, us(limits.recovery), |_| true) {
            disturbed.push(at - due);
            continue;
        }
        calm.push(at - due);
        if at - due > us(limits.lateness) {
            let what = format!(
                "begins at {place} {} ms late: due at {}, without a fault",
                (at - due) / 1_000,
                seconds(due)
            );
            report.add(NAME, at, Some(number), what);
        }
    }
    report.figures.lateness = Spread::of(calm);
    report.figures.lateness_in_faults = Spread::of(disturbed);
}

fn retry(digest: &Digest<'_>, limits: &Limits, delivery: &Delivery<'_>, report: &mut Report) {
    let back_off = us(limits.of(digest.places[delivery.place]).back_off);
    let (number, attempt) = (delivery.handling.number, delivery.handling.attempt);
    if back_off == 0 || attempt < 2 {
        return;
    }
    let before = digest.deliveries_of(delivery.place, number).filter(|before| {
        before.handling.attempt + 1 == attempt
            && before.at.index < delivery.at.index
            && before.ended(End::Failed)
    });
    let Some(failed) = before.filter_map(|before| before.finish).map(|finish| finish.at.us).min() else {
        return;
    };
    let waited = delivery.at.us.saturating_sub(failed);
    if waited + back_off / 1_000 + 1_000 < back_off {
        let (place, back_off) = (digest.label(delivery.place), back_off / 1_000);
        let what = format!(
            "attempt {attempt} begins at {place} {} ms after attempt {} failed, of {back_off} ms",
            waited / 1_000,
            attempt - 1
        );
        report.add(NAME, delivery.at.us, Some(number), what);
    }
}
