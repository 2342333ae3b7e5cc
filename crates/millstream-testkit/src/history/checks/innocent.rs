//! Checks that live processes keep their leases, entries and assignments while others die and while the server is
//! unreachable.
//!
//! Only faults of a single process count against it. After an outage no process can know which others were alive, so
//! none is judged until one ttl later; by then every healthy process has sent a heartbeat.

use std::time::Duration;

use millstream_core::GroupName;

use super::super::story::{Run, Share, Story};
use super::super::{Handing, Origin, Start};
use super::{Lives, Report, Rules};

/// Returns the reason why a process must not be treated as dead, if there is one. `last_heartbeat` is the last time when the
/// server certainly received its heartbeat.
fn is_innocent(
    story: &Story,
    process: &str,
    last_heartbeat: Duration,
    lives: Lives,
    now: Duration,
) -> Option<String> {
    let processes = &story.processes;
    if !processes.knows(process) {
        return None;
    }
    let back = processes.back_since(lives.lease_ttl).unwrap_or_default();
    if !processes.is_well(process, last_heartbeat.max(back)) {
        return None;
    }
    if back > Duration::ZERO && now < back + lives.lease_ttl {
        return Some(format!("{process} lives, and the server is back for {:?} only", now - back));
    }
    (!lives.lossy).then(|| format!("{process} lives, and was not cut off alone"))
}

/// Checks a lease that is granted to another process.
pub(super) fn granted(
    story: &Story,
    share: &Share,
    to: Option<&str>,
    rules: &Rules,
    report: &mut Report<'_>,
) {
    let Some(lives) = rules.lives else { return };
    let (topic_partition, group) = share;
    let bound = 2 * lives.member_ttl.max(lives.lease_ttl) + Duration::from_secs(1);
    if let Some(orphan) = story.processes.orphans.get(share).filter(|_| !lives.lossy)
        && let Some(due) = story.processes.replaced_by(share, orphan, bound)
        && report.at > due
    {
        let (late, process) = (report.at - due, &orphan.process);
        let what = format!("{topic_partition} of {group}, which {process} had, is granted {late:?} late");
        report.breach("REPLACED", what);
    }
    let Some(grant) = story.grants.get(share).filter(|grant| !grant.released) else { return };
    let (Some(before), Some(to)) = (grant.to.as_deref(), to) else { return };
    // A process that is to give up a partition may be too late to release it.
    if before == to || !story.processes.is_assigned(share, before) {
        return;
    }
    if let Some(why) = is_innocent(story, before, grant.renewed, lives, report.at) {
        report.breach("KEPT", format!("{topic_partition} of {group} is granted to {to}: {why}"));
    }
}

/// Checks an entry that is delivered to another process.
pub(super) fn handed(
    story: &Story,
    origin: &Origin,
    to: &str,
    how: Handing,
    rules: &Rules,
    report: &mut Report<'_>,
) {
    let (Some(lives), Handing::Claimed) = (rules.lives, how) else { return };
    let Some((before, since)) = story.holder(origin).filter(|(before, _)| before != to) else { return };
    // The holder extends its entries three times per ttl.
    let last_heartbeat = (*since).max(report.at.saturating_sub(5 * lives.lease_ttl));
    if let Some(why) = is_innocent(story, before, last_heartbeat, lives, report.at) {
        report.breach("KEPT", format!("{origin} is claimed by {to}: {why}"));
    }
}

/// Checks an assignment that leaves a process out.
pub(super) fn published(
    story: &Story,
    group: &GroupName,
    shares: &[(String, Vec<u32>)],
    rules: &Rules,
    report: &mut Report<'_>,
) {
    let Some(lives) = rules.lives else { return };
    for process in story.processes.members(group) {
        if shares.iter().any(|(name, _)| name == process) {
            continue;
        }
        // A member that was apart for its ttl may be dropped before an outage, and the next assignment follow after it.
        let back = story.processes.back_since(lives.lease_ttl);
        if back.is_some_and(|back| story.processes.may_expire_before(process, back, lives.member_ttl)) {
            continue;
        }
        let last_heartbeat = report.at.saturating_sub(lives.member_ttl + 2 * lives.lease_ttl);
        if let Some(why) = is_innocent(story, process, last_heartbeat, lives, report.at) {
            report.breach("KEPT", format!("the assignment of {group} leaves a member out: {why}"));
        }
    }
}

/// Checks a message that was given up for the processes that died while handling it.
pub(super) fn crashed(story: &Story, origin: &Origin, rules: &Rules, report: &mut Report<'_>) {
    if story.is_upset(origin) {
        return;
    }
    // A process that had ended may have had no time to settle.
    let died = |run: &&Run| story.killed.contains(&run.start.instance);
    let deaths = story.runs(origin).iter().filter(died).count();
    if deaths < rules.fewest_crashes {
        let fewest = rules.fewest_crashes;
        let what =
            format!("{origin} was given up as crashed after {deaths} deaths; at least {fewest} are needed");
        report.breach("FALSE-CRASH", what);
    }
}

/// Checks at the end that every process that died during an outage has been replaced.
pub(super) fn orphaned(story: &Story, rules: &Rules, report: &mut Report<'_>) {
    let Some(lives) = rules.lives.filter(|lives| !lives.lossy) else { return };
    let bound = 2 * lives.member_ttl.max(lives.lease_ttl) + Duration::from_secs(1);
    for (share, orphan) in &story.processes.orphans {
        let due = story.processes.replaced_by(share, orphan, bound);
        if due.is_some_and(|due| report.at > due) {
            let ((topic_partition, group), process) = (share, &orphan.process);
            let what = format!("{topic_partition} of {group}, which {process} had, is nobody's");
            report.breach("REPLACED", what);
        }
    }
}

/// Whether a fault of the process of an earlier run explains another run.
pub(super) fn is_explained(story: &Story, before: &Run, start: &Start, rules: &Rules) -> bool {
    let process = &before.start.instance;
    let Some(lives) = rules.lives.filter(|_| story.processes.knows(process)) else {
        return !start.is_shared() || *process != start.instance;
    };
    // A start without a valid lease was caused by a stop, or is reported by another check.
    before.stale || story.is_stale(start) || lives.lossy || !story.processes.is_well(process, before.at)
}
