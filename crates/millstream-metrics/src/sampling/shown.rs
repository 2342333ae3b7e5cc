//! What has series where there are too many for the limit: the busiest, and all series of one group together.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use millstream_core::{GroupName, QueueName, Result, TopicName};

use crate::sampling::lag::is_gone;
use crate::sampling::sample::{QueueSample, TopicSample};

/// What was read of a topic, and whether pins were asked for.
pub(crate) type TopicRead = (TopicName, Result<TopicSample>, bool);
pub(crate) type QueueRead = (QueueName, Result<QueueSample>);

/// A group of a topic, or `None` for a topic that no group reads.
type Unit = (TopicName, Option<GroupName>);

/// How much of a group is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    #[default]
    Nothing,
    /// The series of the group as a whole.
    Group,
    /// Those of its partitions, too.
    Partitions,
}

/// What the last round found and showed.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Messages that were ever appended, by topic.
    appended: BTreeMap<TopicName, u64>,
    units: BTreeMap<Unit, Share>,
    queues: BTreeMap<QueueName, Share>,
}

/// How much there is to show of a group, a topic or a delay queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// Messages that were appended since the previous round, and those that are to be handled.
    work: u64,
    /// Number of series of a metric of its partitions or shards.
    series: usize,
    level: Level,
}

/// One takes the place of another only if it has this many times the work: series that come and go are of no use.
const STAYS: u64 = 2;

/// Returns which of these have a level: those with the most work first, each as a whole, as far as there is room.
fn choose<'a>(shares: impl Iterator<Item = &'a mut Share>, level: Level, mut room: usize) {
    let mut order: Vec<&mut Share> = shares.collect();
    // Of those with as much work, one that was shown stays, and otherwise the first one is shown.
    order.sort_by_key(|share| {
        let was_shown = share.level >= level;
        (Reverse(share.work.saturating_mul(if was_shown { STAYS } else { 1 })), !was_shown)
    });
    for share in order {
        let series = if level == Level::Partitions { share.series } else { 1 };
        let fits = series <= room;
        room -= if fits { series } else { 0 };
        share.level = match share.level {
            _ if fits => level,
            Level::Partitions if level == Level::Partitions => Level::Group,
            Level::Group if level == Level::Group => Level::Nothing,
            before => before,
        };
    }
}

impl Shown {
    /// Chooses what has series in a round: at most so many of each metric. What was not read stays.
    pub(crate) fn choose(
        &mut self,
        topics: Option<&[TopicRead]>,
        queues: Option<&[QueueRead]>,
        limit: usize,
    ) {
        if let Some(topics) = topics {
            self.choose_groups(topics, limit);
        }
        if let Some(queues) = queues {
            self.choose_queues(queues, limit);
        }
    }

    fn choose_groups(&mut self, topics: &[TopicRead], limit: usize) {
        let (before, appended) = (std::mem::take(&mut self.units), std::mem::take(&mut self.appended));
        for (topic, read, _) in topics {
            match read {
                Ok(sample) => {
                    let total = sample.appended();
                    let new = appended.get(topic).map_or(0, |before| total.saturating_sub(*before));
                    self.appended.insert(topic.clone(), total);
                    let mut add = |group: Option<GroupName>, backlog: u64| {
                        let unit = (topic.clone(), group);
                        let level = before.get(&unit).map_or(Level::Nothing, |it| it.level);
                        let (work, series) = (new.saturating_add(backlog), sample.partitions.len());
                        self.units.insert(unit, Share { work, series, level });
                    };
                    for group in &sample.groups {
                        add(Some(group.group.clone()), sample.backlog_at_least(group));
                    }
                    if sample.groups.is_empty() {
                        add(None, 0);
                    }
                }
                Err(error) if is_gone(error) => {}
                // Its series stay for some rounds, and so does its place.
                Err(_) => {
                    self.appended.extend(appended.get(topic).map(|before| (topic.clone(), *before)));
                    let its = before.range((topic.clone(), None)..).take_while(|((of, _), _)| of == topic);
                    self.units.extend(its.map(|(unit, share)| (unit.clone(), *share)));
                    // One that could never be read is remembered, too.
                    self.units.entry((topic.clone(), None)).or_default();
                }
            }
        }
        choose(self.units.values_mut(), Level::Partitions, limit);
        let whole = |unit: &Unit, share: &Share| unit.1.is_some() && share.level == Level::Partitions;
        let room = limit.saturating_sub(self.units.iter().filter(|(unit, share)| whole(unit, share)).count());
        let rest = self.units.iter_mut().filter(|(unit, share)| unit.1.is_some() && !whole(unit, share));
        choose(rest.map(|(_, share)| share), Level::Group, room);
    }

    fn choose_queues(&mut self, queues: &[QueueRead], limit: usize) {
        let before = std::mem::take(&mut self.queues);
        for (queue, read) in queues {
            let level = before.get(queue).map_or(Level::Nothing, |it| it.level);
            let share = match read {
                Ok(sample) => {
                    let counts = sample.shards.iter().map(|(_, counts)| counts);
                    let work = counts.map(|it| it.waiting.overdue + it.claimed).sum();
                    Share { work, series: sample.shards.len(), level }
                }
                Err(error) if is_gone(error) => continue,
                Err(_) => before.get(queue).copied().unwrap_or_default(),
            };
            self.queues.insert(queue.clone(), share);
        }
        choose(self.queues.values_mut(), Level::Partitions, limit);
    }

    /// Returns how much of a group, or of a topic that no group reads, is shown.
    pub(crate) fn of(&self, topic: &TopicName, group: Option<&GroupName>) -> Level {
        self.units.get(&(topic.clone(), group.cloned())).map_or(Level::Nothing, |share| share.level)
    }

    /// Returns whether the partitions of a topic are shown: with those of one of its groups.
    pub(crate) fn has_partitions(&self, topic: &TopicName) -> bool {
        let its = self.units.range((topic.clone(), None)..).take_while(|((of, _), _)| of == topic);
        its.map(|(_, share)| share.level).max() == Some(Level::Partitions)
    }

    /// Returns whether a group with this name is shown.
    pub(crate) fn has_group(&self, topic: &TopicName, group: &str) -> bool {
        GroupName::new(group).is_ok_and(|group| self.of(topic, Some(&group)) >= Level::Group)
    }

    pub(crate) fn has_queue(&self, queue: &QueueName) -> bool {
        self.queues.get(queue).is_some_and(|share| share.level == Level::Partitions)
    }

    /// Returns the topics of the last round that were there, or could not be read.
    pub(crate) fn topics(&self) -> Vec<TopicName> {
        let mut topics: Vec<TopicName> = self.units.keys().map(|(topic, _)| topic.clone()).collect();
        topics.dedup();
        topics
    }

    /// Returns the delay queues, in the same way.
    pub(crate) fn queues(&self) -> Vec<QueueName> {
        self.queues.keys().cloned().collect()
    }

    /// Returns how many groups, topics without one, and delay queues have no series, by the series.
    pub(crate) fn left_out(&self) -> [(&'static str, usize); 3] {
        let without = |level| self.units.values().filter(|share| share.level < level).count();
        let groups = self.units.iter().filter(|(unit, share)| unit.1.is_some() && share.level < Level::Group);
        let shards = self.queues.values().filter(|share| share.level < Level::Partitions);
        [("partition", without(Level::Partitions)), ("group", groups.count()), ("shard", shards.count())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(shares: &[(u64, usize, Level)], level: Level, limit: usize) -> Vec<Level> {
        let share = |(work, series, level): &(u64, usize, Level)| Share {
            work: *work,
            series: *series,
            level: *level,
        };
        let mut shares: Vec<Share> = shares.iter().map(share).collect();
        choose(shares.iter_mut(), level, limit);
        shares.into_iter().map(|share| share.level).collect()
    }

    use Level::{Group, Nothing, Partitions};

    #[test]
    fn all_are_shown_while_there_is_room() {
        assert_eq!(levels(&[(0, 4, Nothing), (9, 6, Nothing)], Partitions, 10), [Partitions; 2]);
        assert_eq!(levels(&[], Partitions, 10), []);
    }

    #[test]
    fn the_busiest_are_shown_and_each_as_a_whole() {
        let all = [(1, 4, Nothing), (7, 4, Nothing), (0, 4, Nothing), (3, 4, Nothing)];
        assert_eq!(levels(&all, Partitions, 8), [Nothing, Partitions, Nothing, Partitions]);
        assert_eq!(levels(&all, Partitions, 11), [Nothing, Partitions, Nothing, Partitions]);
        assert_eq!(levels(&all, Partitions, 3), [Nothing; 4]);
        assert_eq!(levels(&all, Group, 3), [Group, Group, Nothing, Group], "one series each");
        assert_eq!(levels(&[(9, 5, Partitions), (1, 3, Nothing)], Partitions, 4), [Group, Partitions]);
    }

    #[test]
    fn one_that_is_shown_stays_until_another_has_twice_the_work() {
        for (other, stays) in [(10, true), (19, true), (20, true), (21, false)] {
            let all = [(other, 4, Nothing), (10, 4, Partitions)];
            let expected = if stays { [Nothing, Partitions] } else { [Partitions, Group] };
            assert_eq!(levels(&all, Partitions, 4), expected, "{other}");
        }
        let idle = [(0, 4, Nothing), (0, 4, Partitions)];
        assert_eq!(levels(&idle, Partitions, 4), [Nothing, Partitions], "without any work");
    }
}
