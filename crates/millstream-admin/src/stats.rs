//! How a topic stands: each of its groups over all partitions, and the topic as a whole.

use std::time::Duration;

use millstream_core::catalog::PartitionStats;
use millstream_core::{GroupName, Result, TopicName, TopicSpec};

use crate::Admin;

/// Sums over partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries in the logs.
    pub length: u64,
    /// Entries that were never handed out; `None` if that is not known of a partition.
    pub lag: Option<u64>,
    /// The same, at least.
    pub lag_at_least: u64,
    /// The age of the oldest entry that is not settled; `None` if there is none.
    pub oldest: Option<Duration>,
    /// Entries handed out and not settled.
    pub pending: u64,
    /// Messages that wait for a retry.
    pub retrying: u64,
    /// Dead letters.
    pub dead: u64,
}

impl Totals {
    /// The sums of these partitions.
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

/// How a group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// The group.
    pub group: GroupName,
    /// Each partition.
    pub partitions: Vec<PartitionStats>,
    /// All of them together.
    pub totals: Totals,
    /// Since when the whole group is paused, in milliseconds since 1970 by the server's clock; `None` if it is not.
    pub paused: Option<u64>,
    /// Members that live.
    pub members: usize,
    /// Partitions that somebody has.
    pub owned: usize,
}

/// How a topic stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStats {
    /// The topic as it is stored.
    pub topic: TopicSpec,
    /// Messages that were sent for later and wait.
    pub delayed: u64,
    /// Those of them that are due.
    pub overdue: u64,
    /// Each group, by name.
    pub groups: Vec<GroupStats>,
}

impl Admin {
    /// How a topic stands with all of its groups.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that is not there; transient ones.
    pub async fn stats(&self, topic: &TopicName) -> Result<TopicStats> {
        let spec = self.backend.catalog.topic(topic).await?;
        let (mut delayed, mut overdue) = (0, 0);
        for tp in spec.iter() {
            let waiting = self.backend.schedule.waiting(&tp.into()).await?;
            (delayed, overdue) = (delayed + waiting.total, overdue + waiting.overdue);
        }
        let mut groups = Vec::new();
        for group in self.backend.catalog.groups(topic).await? {
            groups.push(self.group_stats(&spec, group).await?);
        }
        Ok(TopicStats { topic: spec, delayed, overdue, groups })
    }

    async fn group_stats(&self, spec: &TopicSpec, group: GroupName) -> Result<GroupStats> {
        let partitions = self.backend.catalog.stats(spec, &group).await?;
        let members = self.backend.members.roster(&spec.name, &group).await?.members.len();
        let owners = self.backend.inspect.owners(spec, &group).await?;
        let owned = owners.iter().filter(|owner| owner.holder.is_some()).count();
        let paused = self.backend.catalog.group_state(&spec.name, &group).await?.paused;
        Ok(GroupStats { totals: Totals::of(&partitions), group, partitions, paused, members, owned })
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
