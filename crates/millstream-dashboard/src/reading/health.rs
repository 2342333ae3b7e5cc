//! What of a group or topic needs attention, as a pure function of its state.

use millstream::admin::CatchUp;

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
