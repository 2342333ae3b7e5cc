//! Checks which message a handler may receive, how often, and when.

use super::super::story::{Run, Story};
use super::super::{End, Start};
use super::{Report, Rules, innocent};

pub(super) fn started(story: &Story, start: &Start, rules: &Rules, report: &mut Report<'_>) {
    genuine(story, start, report);
    // Messages that existed when the group was rewound may come again in any way.
    if story.is_upset(&start.origin) {
        return;
    }
    // A process that was stopped by force between its last check of the lease and the start cannot know.
    if !story.is_stale(start) {
        not_again(story, start, report);
    }
    repeated(story, start, rules, report);
    deadly(story, start, rules, report);
    in_time(story, start, report);
}

fn genuine(story: &Story, start: &Start, report: &mut Report<'_>) {
    let Start { origin, message, key, .. } = start;
    if story.ever.get(&(origin.place.clone(), message.clone())) != Some(key) {
        let stored = story.appended.get(&origin.place);
        report.breach("NO-GHOST", format!("{message} with key {key:?} at {origin}: stored was {stored:?}"));
    }
}

/// Checks that settlements that certainly took effect hold.
fn not_again(story: &Story, start: &Start, report: &mut Report<'_>) {
    // A deleted entry is settled as done, even while a process still holds it.
    let known = !story.deleted.contains(&start.origin.place);
    let Some(settled) = story.settled.get(&start.origin).filter(|_| known) else { return };
    let Start { origin, message, attempt, .. } = start;
    match settled.next {
        None => {
            let what = format!("{message} at {origin}, of which the server was told {:?}", settled.told);
            report.breach("NO-REDELIVERY", what);
        }
        Some(next) if *attempt < next => {
            let what = format!("{message} at {origin} as attempt {attempt}: the server was told of {next}");
            report.breach("NO-REDELIVERY", what);
        }
        Some(next) if *attempt == next && report.at < settled.due => {
            let early = settled.due - report.at;
            report
                .breach("DELAY-EARLY", format!("{message} at {origin}, attempt {attempt}: {early:?} early"));
        }
        Some(_) => {}
    }
}

/// Checks that every repetition has a cause.
fn repeated(story: &Story, start: &Start, rules: &Rules, report: &mut Report<'_>) {
    let runs = story.runs(&start.origin);
    let Start { origin, message, attempt, epoch, .. } = start;
    let same = runs.iter().rev().find(|run| run.start.attempt == *attempt);
    if let Some(before) = same {
        if matches!(before.end, Some((_, End::Snoozed(_)))) {
            return;
        }
        // The previous process has lost the partition since, or this one had lost it and did not know.
        let takeover = before.start.epoch != *epoch || start.is_shared();
        if !takeover || rules.calm || !innocent::is_explained(story, before, start, rules) {
            let (since, first) = (before.start.epoch, &before.start.instance);
            let second = &start.instance;
            let what = format!(
                "{message} at {origin}, attempt {attempt} again: {first} with epoch {since} and {second} with {epoch}"
            );
            report.breach("DUP-BOUND", what);
        }
        return;
    }
    let failed =
        |run: &Run| run.start.attempt + 1 == *attempt && matches!(run.end, Some((_, End::Failed(_))));
    if *attempt != 1 && !runs.iter().any(failed) {
        let what = format!("{message} at {origin}: attempt {attempt}, and no attempt before it failed");
        report.breach("ATTEMPT", what);
    }
}

/// Checks that not too many processes die while handling one message. A failure or a snooze is a settlement, which
/// resets the count.
fn deadly(story: &Story, start: &Start, rules: &Rules, report: &mut Report<'_>) {
    let deadly = |run: &&Run| {
        run.end.is_none() && run.start.attempt == start.attempt && story.killed.contains(&run.start.instance)
    };
    let snoozed = |run: &&Run| matches!(run.end, Some((_, End::Snoozed(_))));
    let since = story.runs(&start.origin).iter().rev().take_while(|run| !snoozed(run));
    let deaths = since.filter(deadly).count();
    if deaths >= rules.crashes {
        let Start { origin, message, .. } = start;
        report.breach("POISON-BOUND", format!("{message} at {origin} starts after {deaths} deaths"));
    }
}

/// Checks that no attempt starts before the due time that the previous one requested.
fn in_time(story: &Story, start: &Start, report: &mut Report<'_>) {
    let due = story.runs(&start.origin).iter().filter_map(|run| match run.end {
        Some((at, End::Failed(after))) if run.start.attempt + 1 == start.attempt => Some(at + after),
        _ => None,
    });
    if let Some(due) = due.min()
        && report.at < due
    {
        let Start { origin, message, attempt, .. } = start;
        let early = due - report.at;
        report.breach("DELAY-EARLY", format!("{message} at {origin}, attempt {attempt}: {early:?} early"));
    }
}
