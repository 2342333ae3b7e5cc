//! Locks: each grant has a larger fence, and nobody is granted what another one holds.
//!
//! **Rule.** For each lock with fences (a fence of 0 is none):
//!
//! - *increase*: fences strictly increase in the order of the grants. Behind a fault of scope `Data` they may decrease: this
//!   is counted. A process that was stopped between the grant and its line may write it too late, and behind a fault of scope
//!   `Data` the answers of two servers come in any order within a ttl; but no two grants have one fence.
//! - *holder*: a fence is shown only by the process to which it was granted.
//! - *writes*: the fences of accepted writes do not decrease; and no write is refused whose fence is the highest so far.
//! - *exclusive*: a lock is granted only when the holder before was about to release it; or said that it is lost, or ended in
//!   good order, until `notice` after the grant; or when its process was killed or stopped, at least three fifths of a ttl
//!   before: it renews after a third of the ttl, and the server grants the lock a ttl after the last renewal. Faults of
//!   scope `Links`, `Server` and `Data` keep renewals away too, and excuse it with their aftermath.
//! - *hand-overs*: the median of the time from a release until the next grant is at most half a ttl. It holds where somebody
//!   always wants each lock.
//!
//! **Limits.** Locks without a fence are only counted.

use std::collections::{BTreeMap, HashMap};

use crate::chaos::record::{Scope, What};

use super::super::digest::{Digest, LifeId, Moment};
use super::super::limits::{Limits, us};
use super::super::report::{Report, Spread, seconds};

const NAME: &str = "locks";

/// A grant of a lock.
struct Holder {
    fence: u64,
    ttl_us: u64,
    life: LifeId,
    at: Moment,
    /// Before it was released, or lost.
    releasing: Option<Moment>,
    end: Option<Moment>,
    released: bool,
}

/// Fewest hand-overs of which the median is judged.
const HAND_OVERS: usize = 10;

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    let mut locks: BTreeMap<&str, Vec<Holder>> = BTreeMap::new();
    for (index, line) in digest.lines.iter().enumerate() {
        let (at, life) = (Moment { index, us: line.at_us }, digest.life_of[index]);
        match &line.what {
            What::Locked { lock, fence, ttl_ms } if *fence > 0 => {
                let ttl_us = ttl_ms * 1_000;
                let (releasing, end, released) = (None, None, false);
                let holder = Holder { fence: *fence, ttl_us, life, at, releasing, end, released };
                locks.entry(lock).or_default().push(holder);
            }
            What::Releasing { lock, fence } | What::Unlocked { lock, fence, .. } => {
                let holders = locks.entry(lock).or_default().iter_mut().rev();
                let of = holders.into_iter().find(|it| it.fence == *fence && it.life == life);
                let Some(holder) = of else { continue };
                if let What::Unlocked { released, .. } = &line.what {
                    holder.released = *released;
                    holder.end.get_or_insert(at);
                } else {
                    holder.releasing.get_or_insert(at);
                }
            }
            _ => {}
        }
    }
    for (lock, holders) in &locks {
        increase(digest, limits, lock, holders, report);
        exclusive(digest, limits, lock, holders, report);
    }
    hand_overs(limits, &locks, report);
    writes(digest, limits, &locks, report);
}

fn may_regress(digest: &Digest<'_>, limits: &Limits, from_us: u64, to_us: u64) -> bool {
    let from_us = from_us.saturating_sub(us(limits.tail));
    limits.epochs_may_regress
        && digest.disturbed(from_us, to_us, us(limits.aftermath), |fault| fault.scope == Scope::Data)
}

fn increase(digest: &Digest<'_>, limits: &Limits, lock: &str, holders: &[Holder], report: &mut Report) {
    let mut highest: Option<&Holder> = None;
    for holder in holders {
        let Some(before) = highest.filter(|before| before.fence >= holder.fence) else {
            highest = Some(holder);
            continue;
        };
        if may_regress(digest, limits, before.at.us, holder.at.us) {
            report.figures.fences_regressed += 1;
            highest = Some(holder);
            continue;
        }
        // The process was stopped; or both the former primary and the one that replaced it granted the lock, and the answer
        // of the first took longer.
        let from = before.at.us.saturating_sub(us(limits.tail));
        let late = digest.disturbed(before.at.us, holder.at.us, 0, |fault| fault.hits(holder.life))
            || holder.at.us - before.at.us <= us(limits.ttl)
                && digest.disturbed(from, holder.at.us, us(limits.aftermath), |it| it.scope == Scope::Data);
        if before.fence == holder.fence || !late {
            let (first, second) = (digest.lives[before.life].label(), digest.lives[holder.life].label());
            let what = format!(
                "{lock}: {second} is granted fence {}, {first} was granted {} at {}",
                holder.fence,
                before.fence,
                seconds(before.at.us)
            );
            report.add(NAME, holder.at.us, None, what);
        }
    }
}

fn exclusive(digest: &Digest<'_>, limits: &Limits, lock: &str, holders: &[Holder], report: &mut Report) {
    let mut by_fence: Vec<&Holder> = holders.iter().collect();
    by_fence.sort_by_key(|holder| (holder.fence, holder.at));
    for pair in by_fence.windows(2) {
        let [before, next] = pair else { continue };
        let at = next.at.us;
        // A holder that was stopped may have written down its grant after the next one.
        let (from, to) = (before.at.us.min(at), before.at.us.max(at));
        if before.releasing.is_some_and(|releasing| releasing.index < next.at.index) {
            continue;
        }
        if before.end.is_some_and(|end| !before.released && end.us <= at.saturating_add(us(limits.notice))) {
            continue;
        }
        let gone = digest.lives[before.life].gone;
        if gone.is_some_and(|(gone, orderly)| orderly && gone.us <= at.saturating_add(us(limits.notice))) {
            continue;
        }
        let expired = |from: u64| at.saturating_sub(from) >= before.ttl_us * 3 / 5;
        let excused = digest.faults.iter().any(|fault| match fault.scope {
            Scope::Process(_) => {
                fault.hits(before.life) && fault.overlaps(from, at, 0, 0) && expired(fault.from.us)
            }
            Scope::Links | Scope::Server => fault.overlaps(from, at, 0, us(limits.aftermath)),
            // Grants may have been undone, and then the order of the fences is not that of the grants.
            Scope::Data => fault.overlaps(from, to, us(limits.tail), us(limits.aftermath)),
            Scope::Leaving(_) | Scope::Partition(_) | Scope::Nothing => false,
        });
        let died = gone.is_some_and(|(gone, _)| gone.us <= at && expired(gone.us));
        if !excused && !died {
            let (first, second) = (digest.lives[before.life].label(), digest.lives[next.life].label());
            let end = before.end.map_or("never".to_owned(), |end| format!("at {}", seconds(end.us)));
            let what = format!(
                "{lock}: {second} is granted it with fence {}, {first} holds it with fence {} since {}, and let it go {end}",
                next.fence,
                before.fence,
                seconds(before.at.us)
            );
            report.add(NAME, at, None, what);
        }
    }
}

fn hand_overs(limits: &Limits, locks: &BTreeMap<&str, Vec<Holder>>, report: &mut Report) {
    let pairs = locks.values().flat_map(|holders| holders.windows(2)).filter(|pair| pair[0].released);
    let times = pairs.filter_map(|pair| pair[1].at.us.checked_sub(pair[0].end?.us));
    let times = Spread::of(times.collect());
    if times.count >= HAND_OVERS && times.p50 > us(limits.ttl / 2) {
        let (count, median) = (times.count, seconds(times.p50));
        let at = locks.values().flatten().map(|holder| holder.at.us).min().unwrap_or(0);
        report.add(
            NAME,
            at,
            None,
            format!("half of {count} releases are followed by a grant after {median} or more"),
        );
    }
}

fn writes(digest: &Digest<'_>, limits: &Limits, locks: &BTreeMap<&str, Vec<Holder>>, report: &mut Report) {
    let mut grants: HashMap<(&str, u64, u32), Moment> = HashMap::new();
    for (lock, holders) in locks {
        for holder in holders {
            grants.entry((lock, holder.fence, digest.lives[holder.life].pid)).or_insert(holder.at);
        }
    }
    let mut highest: HashMap<&str, (u64, u64)> = HashMap::new();
    let mut writers: HashMap<(&str, u64), u32> = HashMap::new();
    for line in digest.lines {
        let What::Write { lock, fence, writer, accepted } = &line.what else { continue };
        let count =
            if *accepted { &mut report.figures.writes_accepted } else { &mut report.figures.writes_refused };
        *count += 1;
        if *fence == 0 {
            continue;
        }
        let mut wrong = |what: String| {
            report.add(
                NAME,
                line.at_us,
                None,
                format!("{lock}: process {writer} shows fence {fence}: {what}"),
            );
        };
        let first = *writers.entry((lock, *fence)).or_insert(*writer);
        if first != *writer && !may_regress(digest, limits, 0, line.at_us) {
            wrong(format!("and so did process {first}"));
        }
        if !grants.contains_key(&(lock.as_str(), *fence, *writer)) {
            wrong("it was not granted it".to_owned());
        }
        let (seen, at) = highest.get(lock.as_str()).copied().unwrap_or_default();
        match accepted {
            true if seen > *fence => wrong(format!("accepted after {seen} at {}", seconds(at))),
            false if seen <= *fence => wrong(format!("refused, and the highest fence was {seen}")),
            true => _ = highest.insert(lock, (*fence, line.at_us)),
            false => {}
        }
    }
}
