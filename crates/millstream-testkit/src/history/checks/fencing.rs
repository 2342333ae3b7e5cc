//! Checks which process may act on a partition.

use super::super::story::{Share, Story, share};
use super::super::{Call, Start};
use super::Report;

pub(super) fn granted(story: &Story, share: &Share, epoch: u64, again: bool, report: &mut Report<'_>) {
    let (topic_partition, group) = share;
    let highest = story.highest.get(share).copied().unwrap_or(0);
    // A grant can be returned again as long as it is the last one that the server knows of.
    let current = story.grants.get(share).is_none_or(|grant| grant.epoch == epoch);
    let grows = if again { current } else { epoch > highest };
    if !grows {
        let what = format!("{topic_partition} of {group} is granted with epoch {epoch} after {highest}");
        report.breach("EPOCH-MONO", what);
    }
    if let Some(grant) = story.grants.get(share)
        && !again
        && !grant.released
        && report.at < grant.until
    {
        let left = grant.until - report.at;
        let what = format!("{topic_partition} of {group}: epoch {} had {left:?} left", grant.epoch);
        report.breach("SINGLE-OWNER", what);
    }
}

pub(super) fn accepted(story: &Story, share: &Share, epoch: u64, call: Call, report: &mut Report<'_>) {
    let Some(grant) = story.grants.get(share) else { return };
    if grant.epoch != epoch || grant.released {
        let (topic_partition, group) = share;
        let state = if grant.released { "released" } else { "granted" };
        let current = grant.epoch;
        let what =
            format!("{call:?} on {topic_partition} of {group} with epoch {epoch}: {current} is {state}");
        report.breach("FENCED", what);
    }
}

pub(super) fn started(story: &Story, start: &Start, report: &mut Report<'_>) {
    if !story.is_stale(start) {
        return;
    }
    // A consumer of a shared partition keeps its entries until they would have to be extended, even if the group was
    // destroyed.
    if start.is_shared() && story.is_upset(&start.origin) {
        return;
    }
    // A process can always be stopped between checking its lease and starting a handler.
    let was_stopped = story.resumed.get(&start.instance) == Some(&report.at);
    // A process whose lease the server lost learns it with the next renewal.
    let ttl = story.grants.get(&share(&start.origin)).map(|grant| grant.ttl).unwrap_or_default();
    let forgotten = story.gaps.iter().any(|(_, until)| report.at <= *until + ttl);
    if !was_stopped && !forgotten {
        let Start { instance, origin, message, epoch, .. } = start;
        let what = format!("{instance} starts {message} at {origin} with epoch {epoch}, which is over");
        report.breach("STALE-START", what);
    }
}
