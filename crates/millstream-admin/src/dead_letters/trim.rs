//! Trimming by hand: drops the dead letters that a retention does not keep.

use std::collections::BTreeMap;

use millstream_core::dead_letters::{TrimBy, TrimmedLetters};
use millstream_core::{Capability, DeadLetterRetention, Partition, Result};

use super::DeadLetterQueue;

/// Dead letters that a trim has dropped, or, in a dry run, would drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLettersTrimmed {
    /// Number of letters that were too old.
    pub aged: u64,
    /// Number of letters that had too many newer ones in their partition.
    pub excess: u64,
    /// Number of letters that stay although they are one of these, because they are claimed.
    pub claimed: u64,
    /// Number of dropped letters by partition.
    pub partitions: BTreeMap<Partition, u64>,
}

impl DeadLettersTrimmed {
    /// Returns the number of dropped letters.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.aged + self.excess
    }
}

impl DeadLetterQueue {
    /// Drops the letters that a retention does not keep: usually that of the [topic](Self::topic), which the running consumers
    /// of the group apply by themselves. A group without consumers needs this. Letters that are claimed stay.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_admin::Admin;
    /// # use millstream_core::{DeadLetterRetention, GroupName, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let letters = admin.dead_letters(&topic, &group).await?;
    /// let month = DeadLetterRetention::age(Duration::from_secs(30 * 86_400));
    /// println!("{} are older than a month", letters.would_trim(month).await?.dropped());
    /// letters.trim(month).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend that cannot; those of
    /// [`DeadLetters::trim`](millstream_core::DeadLetters::trim). Letters that were dropped before the error stay dropped.
    pub async fn trim(&self, retention: DeadLetterRetention) -> Result<DeadLettersTrimmed> {
        self.trim_by(retention, TrimBy::Operator).await
    }

    /// Counts the letters that [`trim`](Self::trim) would drop at the moment.
    ///
    /// # Errors
    /// Same as [`trim`](Self::trim).
    pub async fn would_trim(&self, retention: DeadLetterRetention) -> Result<DeadLettersTrimmed> {
        self.trim_by(retention, TrimBy::DryRun).await
    }

    async fn trim_by(&self, retention: DeadLetterRetention, by: TrimBy<'_>) -> Result<DeadLettersTrimmed> {
        self.backend.require(Capability::TrimDeadLetters)?;
        let mut all = DeadLettersTrimmed::default();
        for topic_partition in self.topic.iter() {
            let role = self.backend.dead_letters()?;
            let trimmed = role.trim(&topic_partition, &self.group, retention, by).await?;
            let TrimmedLetters { aged, excess, claimed, .. } = trimmed;
            if !matches!(by, TrimBy::DryRun) {
                self.progress.dropped(&topic_partition, aged, excess);
            }
            if trimmed.dropped() > 0 {
                all.partitions.insert(topic_partition.partition, trimmed.dropped());
            }
            (all.aged, all.excess, all.claimed) =
                (all.aged + aged, all.excess + excess, all.claimed + claimed);
        }
        Ok(all)
    }
}
