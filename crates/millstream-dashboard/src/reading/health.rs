//! What of a group, a topic or a delay queue needs attention, as a pure function of its state.

use std::time::Duration;

use millstream::Timestamp;
use millstream::admin::CatchUp;
use millstream::crates::core::schedule::Waiting;
use millstream::delay::TaskCounts;

use super::snapshots::{Group, Snapshot};
use crate::audit::pauses::Pauser;
use crate::view::cell::Tone;
use crate::view::format;
use crate::view::text::Text;

/// Something that needs attention, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Concern {
    pub(crate) tone: Tone,
    pub(crate) text: String,
}

fn concern(tone: Tone, text: impl Into<String>) -> Concern {
    Concern { tone, text: text.into() }
}

/// Time after which what is due and was not taken is a concern, and after which it is a bad one.
const LATE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// Returns how it stands out that something is late by this time; `None` while it is not.
pub(crate) fn lateness(late: Duration) -> Option<Tone> {
    match late {
        late if late >= LATE[1] => Some(Tone::Bad),
        late if late >= LATE[0] => Some(Tone::Warn),
        _ => None,
    }
}

/// Returns the concern that messages or tasks are due and were not taken.
fn overdue(waiting: &Waiting, at: Timestamp, [one, some]: [&str; 2]) -> Option<Concern> {
    let late = at.saturating_duration_since(waiting.first.filter(|_| waiting.overdue > 0)?);
    let text = format!("{}, by {}", format::of(waiting.overdue, one, some), format::duration(late));
    lateness(late).map(|tone| concern(tone, text))
}

/// Returns how many of these next times of rules have passed for long enough to be a concern, and how late the first one is.
pub(crate) fn late(next: impl Iterator<Item = Timestamp>, at: Timestamp) -> (u64, Duration) {
    let late = next.map(|next| at.saturating_duration_since(next)).filter(|late| *late >= LATE[1]);
    late.fold((0, Duration::ZERO), |(count, most), late| (count + 1, most.max(late)))
}

/// Returns the concern that rules have not fired.
fn late_rules((rules, late): (u64, Duration)) -> Option<Concern> {
    let text = || {
        format!("{} late, by {}", format::of(rules, "schedule is", "schedules are"), format::duration(late))
    };
    (rules > 0).then(|| concern(Tone::Bad, text()))
}

/// Returns what needs attention in a delay queue with so many late rules, the worst first.
pub(crate) fn of_queue(counts: &TaskCounts, rules: (u64, Duration), at: Timestamp) -> Vec<Concern> {
    let mut found = Vec::new();
    found.extend(late_rules(rules));
    match counts.paused {
        Some(since) => found.push(concern(Tone::Warn, format!("paused since {}", format::time(since)))),
        None => found.extend(overdue(&counts.waiting, at, ["task is overdue", "tasks are overdue"])),
    }
    if counts.expired > 0 {
        let text = format::of(counts.expired, "claim ran out", "claims ran out");
        found.push(concern(Tone::Warn, text));
    }
    if counts.dead > 0 {
        found.push(concern(Tone::Warn, format::of(counts.dead, "dead task", "dead tasks")));
    }
    found.sort_by_key(|concern| std::cmp::Reverse(concern.tone as u8));
    found
}

/// Returns what needs attention in a group, the worst first.
pub(crate) fn of_group(group: &Group) -> Vec<Concern> {
    let (stats, mut found) = (&group.stats, Vec::new());
    let backlog = stats.backlog_at_least();
    if stats.reasons().next().is_some() {
        found.push(concern(Tone::Bad, "cannot be read completely"));
    }
    if stats.members == Some(0) && backlog > 0 {
        found.push(concern(Tone::Bad, "no consumer runs"));
    }
    if let Some(age) = stats.totals.oldest.filter(|_| group.late) {
        found.push(concern(Tone::Warn, format!("{} behind", format::largest(age))));
    }
    if let Some((members, owned)) = stats.members.zip(stats.owned)
        && members > 0
        && owned < stats.partitions.len()
    {
        let free = stats.partitions.len() - owned;
        found.push(concern(
            Tone::Warn,
            format::of(free as u64, "partition has no owner", "partitions have no owner"),
        ));
    }
    if let Some(since) = stats.paused {
        let by = match &group.pauser {
            Pauser::User(user) => format!(" by {}", Text::short(user)),
            Pauser::Unread | Pauser::Unrecorded => String::new(),
        };
        found.push(concern(Tone::Warn, format!("paused since {}{by}", format::time(since))));
    } else if group.rates.catch_up(stats.backlog()) == Some(CatchUp::Never) {
        found.push(concern(Tone::Warn, "backlog does not shrink"));
    }
    if let Some(dead @ 1..) = stats.totals.dead {
        found.push(concern(Tone::Warn, format::of(dead, "dead letter", "dead letters")));
    }
    found.sort_by_key(|concern| std::cmp::Reverse(concern.tone as u8));
    found
}

/// Returns whether a group is further behind than it may be.
pub(crate) fn is_late(group: &Group) -> bool {
    group.late
}

/// Returns how urgent concerns are: the larger, the more.
pub(crate) fn urgency(concerns: &[Concern]) -> u8 {
    concerns.first().map_or(0, |worst| worst.tone as u8)
}

/// Returns what needs attention in a topic, the worst first, with the groups that it concerns.
pub(crate) fn of_topic(snapshot: &Snapshot) -> Vec<Concern> {
    let mut found: Vec<Concern> = Vec::new();
    if !snapshot.unreadable.is_empty() {
        found.push(concern(Tone::Bad, "cannot be read completely"));
    }
    if let Some(waiting) = &snapshot.delayed {
        let words = ["delayed message is overdue", "delayed messages are overdue"];
        found.extend(overdue(waiting, snapshot.at, words));
    }
    found.extend(late_rules(snapshot.late_rules));
    for (name, group) in &snapshot.groups {
        let of_group = of_group(group).into_iter().filter(|it| it.text != "cannot be read completely");
        found.extend(of_group.map(|it| concern(it.tone, format!("{name}: {}", it.text))));
    }
    found.sort_by_key(|concern| std::cmp::Reverse(concern.tone as u8));
    found
}

#[cfg(test)]
mod tests {
    use millstream::admin::{GroupStats, Rates, Totals};
    use millstream::crates::core::catalog::{PartitionStats, PartitionSurvey};
    use millstream::{Partition, Timestamp};

    use super::*;

    fn group(change: impl FnOnce(&mut GroupStats, &mut PartitionStats)) -> Group {
        let mut stats = GroupStats {
            group: "billing".parse().expect("a name"),
            partitions: Vec::new(),
            totals: Totals::default(),
            paused: None,
            members: Some(1),
            owned: Some(1),
            epochs: vec![None],
            unreadable: Vec::new(),
        };
        let mut partition = PartitionStats::empty(Partition(0));
        partition.position = Some(millstream::MessageId::new(1, 0));
        change(&mut stats, &mut partition);
        stats.partitions = vec![PartitionSurvey::new(partition)];
        stats.totals = Totals::of(&stats.partitions);
        Group {
            stats,
            rates: Rates::default(),
            failing: None,
            late: false,
            pauser: Pauser::User("ann".to_owned()),
        }
    }

    fn texts(group: &Group) -> Vec<String> {
        of_group(group).into_iter().map(|it| it.text).collect()
    }

    #[test]
    fn what_is_due_and_not_taken_is_a_concern_once_it_is_late() {
        let at = Timestamp::from_millis(1_000_000);
        let due = |before: u64, overdue| {
            let first = Some(Timestamp::from_millis(1_000_000 - before));
            TaskCounts { waiting: Waiting { first, ..Waiting::new(9, overdue) }, ..TaskCounts::default() }
        };
        let of = |counts: &TaskCounts| {
            of_queue(counts, (0, Duration::ZERO), at).first().map(|it| (it.tone, it.text.clone()))
        };
        assert_eq!(of(&due(4_000, 2)), None, "it is about to be taken");
        assert_eq!(of(&due(5_000, 2)), Some((Tone::Warn, "2 tasks are overdue, by 5 s".to_owned())));
        assert_eq!(of(&due(60_000, 1)), Some((Tone::Bad, "1 task is overdue, by 1 min".to_owned())));
        assert_eq!(of(&due(60_000, 0)), None);
        let paused = TaskCounts { paused: Some(Timestamp::from_millis(1)), dead: 2, ..due(60_000, 1) };
        let texts: Vec<_> = of_queue(&paused, (2, LATE[1]), at).into_iter().map(|it| it.text).collect();
        assert_eq!(
            texts,
            ["2 schedules are late, by 1 min", "paused since 1970-01-01 00:00:00.001 UTC", "2 dead tasks"]
        );
        let times = [1_000_000 - 60_000, 1_000_000 - 90_000, 1_000_000 - 59_000, 2_000_000];
        assert_eq!(late(times.map(Timestamp::from_millis).into_iter(), at), (2, Duration::from_secs(90)));
    }

    #[test]
    fn each_concern_is_named_the_worst_first() {
        assert!(texts(&group(|_, _| {})).is_empty());
        let stopped = group(|stats, partition| {
            (stats.members, stats.owned) = (Some(0), Some(0));
            (partition.lag, partition.lag_at_least, partition.dead) = (Some(5), 5, 2);
        });
        assert_eq!(texts(&stopped), ["no consumer runs", "2 dead letters"]);
        let idle = group(|stats, _| (stats.members, stats.owned) = (Some(0), Some(0)));
        assert!(texts(&idle).is_empty(), "nothing waits for it");
        let free = group(|stats, _| stats.owned = Some(0));
        assert_eq!(texts(&free), ["1 partition has no owner"]);
        let paused = group(|stats, _| stats.paused = Some(Timestamp::from_millis(1)));
        assert_eq!(texts(&paused), ["paused since 1970-01-01 00:00:00.001 UTC by ann"]);
        let damaged = group(|stats, _| stats.unreadable.push("a key".into()));
        assert_eq!(texts(&damaged), ["cannot be read completely"]);
    }
}
