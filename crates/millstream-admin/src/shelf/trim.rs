//! Trimming by hand: drops what a retention of dead letters does not keep.

use std::collections::BTreeMap;

use millstream_core::dead_letters::TrimmedLetters;
use millstream_core::{DeadLetterRetention, Partition, Result};

use super::Shelf;

/// Dead letters or dead tasks that a trim has dropped, or, in a dry run, would drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Number of items that were too old.
    pub aged: u64,
    /// Number of items that had too many newer ones in their partition.
    pub excess: u64,
    /// Number of dead letters that stay although they are one of these, because they are claimed.
    pub claimed: u64,
    /// Number of dropped items by partition or shard.
    pub partitions: BTreeMap<Partition, u64>,
}

impl Trimmed {
    /// Returns the number of dropped items.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.aged + self.excess
    }
}

impl Shelf {
    /// Returns the stored retention, which running consumers and workers apply by themselves.
    #[must_use]
    pub fn retention(&self) -> DeadLetterRetention {
        self.of.retention()
    }

    /// Drops what a retention does not keep: usually the [stored one](Self::retention). A group without consumers, or a queue
    /// without workers, needs this. Letters that are claimed stay.
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
    /// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported) for a backend that cannot, and for retries; those of
    /// [`DeadLetters::trim`](millstream_core::DeadLetters::trim) and [`Tasks::trim_dead`](millstream_core::Tasks::trim_dead).
    /// What was dropped before the error stays dropped.
    pub async fn trim(&self, retention: DeadLetterRetention) -> Result<Trimmed> {
        self.trim_by(retention, false).await
    }

    /// Counts what [`trim`](Self::trim) would drop at the moment.
    ///
    /// # Errors
    /// Same as [`trim`](Self::trim).
    pub async fn would_trim(&self, retention: DeadLetterRetention) -> Result<Trimmed> {
        self.trim_by(retention, true).await
    }

    async fn trim_by(&self, retention: DeadLetterRetention, is_dry: bool) -> Result<Trimmed> {
        let mut all = Trimmed::default();
        for lane in 0..self.of.lanes() {
            let trimmed = self.of.trim(&self.admin, lane, retention, is_dry).await?;
            let TrimmedLetters { aged, excess, claimed, .. } = trimmed;
            if trimmed.dropped() > 0 {
                all.partitions.insert(Partition(lane), trimmed.dropped());
            }
            (all.aged, all.excess, all.claimed) =
                (all.aged + aged, all.excess + excess, all.claimed + claimed);
        }
        Ok(all)
    }
}
