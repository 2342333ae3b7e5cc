//! Why a topic has no entries.

use std::fmt;

use millstream_core::catalog::PartitionSurvey;
use millstream_core::{GroupName, Partition, Result, TopicName};

use crate::Admin;

/// Reason why the log of a topic has no entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Emptiness {
    /// Nothing was ever appended, as far as the server knows.
    NeverWritten,
    /// All entries have left the log.
    Left {
        /// Number of entries that were appended.
        appended: u64,
    },
    /// The log was deleted in these partitions: a group was there.
    Deleted {
        /// The partitions, in order.
        partitions: Vec<Partition>,
    },
}

impl fmt::Display for Emptiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverWritten => f.write_str("nothing was ever written to it"),
            Self::Left { appended: 1 } => f.write_str("its only entry was trimmed or deleted"),
            Self::Left { appended } => write!(f, "all of its {appended} entries were trimmed or deleted"),
            Self::Deleted { partitions } => {
                let numbers: Vec<_> = partitions.iter().map(|partition| partition.0.to_string()).collect();
                write!(f, "its log was deleted in partition {}", numbers.join(", "))
            }
        }
    }
}

impl Admin {
    /// Returns why a topic has no entries, in these partitions or in all; `None` if it has some, or a log cannot be read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; errors of reading its
    /// groups; transient ones.
    pub async fn why_empty(
        &self,
        topic: &TopicName,
        only: Option<&[Partition]>,
    ) -> Result<Option<Emptiness>> {
        let spec = self.backend.catalog().topic(topic).await?;
        let groups = self.backend.catalog().groups(topic).await?;
        // The catalog returns the logs even for a group that does not exist.
        let group = groups.first().cloned().map_or_else(|| GroupName::new("-"), Ok)?;
        let mut surveys = self.backend.catalog().survey(&spec, &group).await?;
        surveys.retain(|it| only.is_none_or(|some| some.contains(&it.stats.partition)));
        Ok(why(&surveys, !groups.is_empty()))
    }
}

/// Returns the reason by the state of the partitions, for a group that is registered or for none.
fn why(surveys: &[PartitionSurvey], registered: bool) -> Option<Emptiness> {
    if surveys.iter().any(|it| it.length() != Some(0)) {
        return None;
    }
    // Where a log was never written to, a group has nothing to read: its lag is 0. It is unknown only where the group was,
    // and the log is not any more.
    let gone = |it: &&PartitionSurvey| it.stats.appended == Some(0) && it.stats.lag.is_none();
    let partitions: Vec<_> = surveys.iter().filter(gone).map(|it| it.stats.partition).collect();
    if registered && !partitions.is_empty() {
        return Some(Emptiness::Deleted { partitions });
    }
    let appended = surveys.iter().map(|it| it.stats.appended).sum::<Option<u64>>()?;
    Some(if appended == 0 { Emptiness::NeverWritten } else { Emptiness::Left { appended } })
}

#[cfg(test)]
mod tests {
    use millstream_core::catalog::PartitionStats;

    use super::*;

    fn log(partition: u32, length: u64, appended: Option<u64>, lag: Option<u64>) -> PartitionSurvey {
        let mut stats = PartitionStats::empty(Partition(partition));
        (stats.length, stats.appended, stats.lag) = (length, appended, lag);
        PartitionSurvey::new(stats)
    }

    #[test]
    fn an_empty_log_has_one_reason() {
        let never = log(0, 0, Some(0), Some(0));
        assert_eq!(why(std::slice::from_ref(&never), true), Some(Emptiness::NeverWritten));
        let left = log(1, 0, Some(7), Some(0));
        assert_eq!(why(&[never.clone(), left.clone()], true), Some(Emptiness::Left { appended: 7 }));
        assert_eq!(why(&[left, log(2, 1, Some(1), Some(0))], true), None, "it is not empty");
        let gone = log(3, 0, Some(0), None);
        let partitions = vec![Partition(3)];
        assert_eq!(why(&[never, gone.clone()], true), Some(Emptiness::Deleted { partitions }));
        assert_eq!(why(&[log(0, 0, None, Some(0))], true), None, "a server that keeps no count");
    }
}
