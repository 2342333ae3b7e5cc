//! State of a topic: each of its groups over all partitions, and the topic as a whole.

mod rates;

use std::time::Duration;

use millstream_core::catalog::PartitionStats;
use millstream_core::schedule::Waiting;
use millstream_core::{Error, ErrorKind, GroupName, Result, Timestamp, TopicName, TopicSpec};

use crate::Admin;

pub use rates::{CatchUp, RateMeter, Rates};

/// Sums over partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries in the logs.
    pub length: u64,
    /// Entries that were never handed out; `None` if that is unknown for a partition.
    pub lag: Option<u64>,
    /// Lower bound of the lag.
    pub lag_at_least: u64,
    /// Age of the oldest entry that is not settled; `None` if there is none.
    pub oldest: Option<Duration>,
    /// Entries handed out and not settled.
    pub pending: u64,
    /// Messages that wait for a retry.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
}

impl Totals {
    /// Returns the sums over these partitions.
    #[must_use]
    pub fn of(partitions: &[PartitionStats]) -> Self {
        let start = Self { lag: Some(0), ..Self::default() };
        partitions.iter().fold(start, |sum, it| Self {
            length: sum.length + it.length,
            lag: sum.lag.zip(it.lag).map(|(a, b)| a + b),
            lag_at_least: sum.lag_at_least + it.lag_at_least,
            oldest: sum.oldest.max(it.oldest),
            pending: sum.pending + it.pending,
            retrying: sum.retrying + it.retrying,
            dead: sum.dead + it.dead,
        })
    }
}

/// State of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// The group.
    pub group: GroupName,
    /// State of each partition.
    pub partitions: Vec<PartitionStats>,
    /// Sums over all partitions.
    pub totals: Totals,
    /// Time since which the whole group is paused, by the server's clock; `None` if it is not.
    pub paused: Option<Timestamp>,
    /// Number of live members.
    pub members: usize,
    /// Number of partitions that have an owner.
    pub owned: usize,
    /// Epoch of the owner of each partition, in the order of partitions; `None` for one without an owner.
    pub epochs: Vec<Option<u64>>,
}

/// State of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStats {
    /// Topic as stored.
    pub topic: TopicSpec,
    /// Delayed messages that wait, due ones included.
    pub delayed: u64,
    /// Delayed messages that are due.
    pub overdue: u64,
    /// State of each group, by name.
    pub groups: Vec<GroupStats>,
}

/// State of a topic, with errors for the parts that cannot be read.
#[derive(Debug)]
pub struct TopicSurvey {
    /// Topic as stored.
    pub topic: TopicSpec,
    /// Delayed messages that wait, or the error of reading them.
    pub delayed: Result<Waiting>,
    /// State of each group, by name, or the error of reading it.
    pub groups: Vec<(GroupName, Result<GroupStats>)>,
}

impl Admin {
    /// Returns the state of a topic with all of its groups. It fails if the state of one group cannot be read;
    /// [`survey`](Self::survey) returns that of the others.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::WrongType`] that names the key; transient ones.
    pub async fn stats(&self, topic: &TopicName) -> Result<TopicStats> {
        let survey = self.survey(topic).await?;
        let delayed = survey.delayed?;
        let groups = survey.groups.into_iter().map(|(_, stats)| stats).collect::<Result<_>>()?;
        Ok(TopicStats { topic: survey.topic, delayed: delayed.total, overdue: delayed.overdue, groups })
    }

    /// Returns the state of a topic with all of its groups, as far as it can be read: an error of one part does not
    /// prevent the others.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; errors of reading its settings or the list of its
    /// groups; transient ones.
    pub async fn survey(&self, topic: &TopicName) -> Result<TopicSurvey> {
        let spec = self.backend.catalog().topic(topic).await?;
        let delayed = lasting(self.delayed(&spec).await)?;
        let mut groups = Vec::new();
        for group in self.backend.catalog().groups(topic).await? {
            let stats = lasting(self.stats_of(&spec, &group).await)?;
            groups.push((group, stats));
        }
        Ok(TopicSurvey { topic: spec, delayed, groups })
    }

    /// Returns the state of one group of a topic, also of one that exists on a log but not in the topic's list.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; [`ErrorKind::WrongType`] that names the key;
    /// transient ones.
    pub async fn group_stats(&self, topic: &TopicName, group: &GroupName) -> Result<GroupStats> {
        let spec = self.backend.catalog().topic(topic).await?;
        let listed = self.backend.catalog().groups(topic).await?.contains(group);
        let stats = self.stats_of(&spec, group).await?;
        if listed || stats.partitions.iter().any(|partition| partition.position.is_some()) {
            return Ok(stats);
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} does not exist"))
            .at(topic))
    }

    /// Returns the number of delayed messages of a topic that wait.
    ///
    /// # Errors
    /// Same as [`group_stats`](Self::group_stats).
    pub async fn waiting(&self, topic: &TopicName) -> Result<Waiting> {
        self.delayed(&self.backend.catalog().topic(topic).await?).await
    }

    async fn delayed(&self, spec: &TopicSpec) -> Result<Waiting> {
        let mut sum = Waiting::default();
        for tp in spec.iter() {
            let waiting = self.backend.schedule().waiting(&tp.into()).await?;
            (sum.total, sum.overdue) = (sum.total + waiting.total, sum.overdue + waiting.overdue);
        }
        Ok(sum)
    }

    async fn stats_of(&self, spec: &TopicSpec, group: &GroupName) -> Result<GroupStats> {
        let partitions = self.backend.catalog().stats(spec, group).await?;
        let members = self.backend.members().roster(&spec.name, group).await?.living().count();
        let owners = self.backend.inspect()?.owners(spec, group).await?;
        let epochs: Vec<_> =
            owners.iter().map(|owner| owner.holder.as_ref().map(|holder| holder.epoch)).collect();
        let owned = epochs.iter().flatten().count();
        let paused = self.backend.catalog().group_state(&spec.name, group).await?.paused;
        let (group, totals) = (group.clone(), Totals::of(&partitions));
        Ok(GroupStats { totals, group, partitions, paused, members, owned, epochs })
    }
}

/// Separates errors: a transient one fails the whole call, any other is the result of this part only.
fn lasting<T>(asked: Result<T>) -> Result<Result<T>> {
    match asked {
        Err(error) if error.is_transient() => Err(error),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::Partition;

    use super::*;

    #[test]
    fn a_sum_is_known_if_every_part_is() {
        let of = |lag: Option<u64>, at_least, oldest: Option<u64>| {
            let mut stats = PartitionStats::empty(Partition(0));
            (stats.lag, stats.lag_at_least, stats.length) = (lag, at_least, 10);
            stats.oldest = oldest.map(Duration::from_secs);
            stats
        };
        let known = Totals::of(&[of(Some(3), 3, Some(5)), of(Some(4), 4, None), of(Some(0), 0, Some(9))]);
        assert_eq!((known.lag, known.lag_at_least, known.length), (Some(7), 7, 30));
        assert_eq!(known.oldest, Some(Duration::from_secs(9)));
        let unknown = Totals::of(&[of(Some(3), 3, None), of(None, 5, None)]);
        assert_eq!((unknown.lag, unknown.lag_at_least, unknown.oldest), (None, 8, None));
        assert_eq!(Totals::of(&[]).lag, Some(0));
    }
}
