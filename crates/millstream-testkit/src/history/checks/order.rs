//! Checks the order in which messages start, and which may run concurrently.

use super::super::story::{Appended, Run, Story};
use super::super::{End, Origin, Place, Start};
use super::{Order, Report, Rules};

pub(super) fn started(story: &Story, start: &Start, rules: &Rules, report: &mut Report<'_>) {
    crowd(story, start, rules, report);
    if rules.order == Order::Free || story.is_stale(start) || story.is_upset(&start.origin) {
        return;
    }
    let by_key = matches!(rules.order, Order::Key | Order::KeyBlocks);
    if by_key && start.key.is_none() {
        return;
    }
    let together = |stored: &Appended| !by_key || stored.key == start.key;
    let origin = |place: &Place| Origin { group: start.origin.group.clone(), place: place.clone() };
    let place = &start.origin.place;

    let first = story.runs(&start.origin).is_empty();
    let mut others =
        story.above(place).filter(|(_, stored)| together(stored)).map(|(place, _)| origin(place));
    if first && let Some(later) = others.find(|other| story.runs(other).iter().any(|run| !run.stale)) {
        let what = format!("{} at {} starts after {later}", start.message, start.origin);
        report.breach("KEY-ORDER", what);
    }

    let all = story.below(place).chain(story.above(place)).filter(|(_, stored)| together(stored));
    let all = all.map(|(place, _)| origin(place)).chain([start.origin.clone()]);
    // A batch can contain several messages of a partition, but only one of a key.
    let in_batch = |run: &Run| rules.batches && !by_key && run.at == report.at;
    let running = |run: &Run| run.end.is_none() && run.start.epoch == start.epoch && !in_batch(run);
    let running: Vec<_> = all.filter(|other| story.runs(other).iter().any(running)).collect();
    for other in running {
        let what = format!("{} at {} starts while {other} runs", start.message, start.origin);
        report.breach("OVERLAP", what);
    }

    if matches!(rules.order, Order::KeyBlocks | Order::PartitionBlocks) {
        let before = story.below(place).filter(|(_, stored)| together(stored) && stored.message.is_some());
        for other in before.map(|(place, _)| origin(place)) {
            if !is_over(story, &other, start.epoch) {
                let what = format!("{} at {} starts before {other} is over", start.message, start.origin);
                report.breach("BLOCKED", what);
            }
        }
    }
}

/// Checks how many handlers run for the partition under this lease.
fn crowd(story: &Story, start: &Start, rules: &Rules, report: &mut Report<'_>) {
    if rules.at_once == usize::MAX {
        return;
    }
    let place = &start.origin.place;
    let all = story.below(place).chain(story.above(place)).map(|(place, _)| place).chain([place]);
    let origin = |place: &Place| Origin { group: start.origin.group.clone(), place: place.clone() };
    let ours = |run: &Run| run.start.epoch == start.epoch && run.start.instance == start.instance;
    let running = |run: &&Run| run.end.is_none() && ours(run);
    let others: usize = all.map(|place| story.runs(&origin(place)).iter().filter(running).count()).sum();
    if others >= rules.at_once {
        let what = format!("{} at {} starts while {others} others run", start.message, start.origin);
        report.breach("CROWD", what);
    }
}

/// Whether a message is done or given up, according to the server or to the handler under this lease.
fn is_over(story: &Story, origin: &Origin, epoch: u64) -> bool {
    let by_server = story.settled.get(origin).is_some_and(|settled| settled.next.is_none());
    let ended = |run: &Run| run.start.epoch == epoch && matches!(run.end, Some((_, End::Acked | End::Dead)));
    by_server
        || story.perhaps.contains(origin)
        || story.unhandled.contains(origin)
        || story.is_upset(origin)
        || story.deleted.contains(&origin.place)
        || story.runs(origin).iter().any(ended)
}
