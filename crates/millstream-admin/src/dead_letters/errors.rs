//! Counts of dead letters by their errors.

use millstream_core::error_groups::ErrorGroups;
use millstream_core::{MessageId, Partition, Result};

use super::{DeadLetterFilter, DeadLetterQueue, PORTION};

impl DeadLetterQueue {
    /// Counts the matching letters by the fingerprint of their last error, in at most `most` groups; the example of a
    /// group is its newest letter. It reads all letters that are present now, page by page, and calls `progress` with the
    /// number of letters examined so far after each.
    ///
    /// The letters of a group are selected by [`DeadLetterFilter::fingerprint`].
    ///
    /// ```
    /// # use millstream_admin::{Admin, DeadLetterFilter, Replay};
    /// # use millstream_core::{GroupName, Result, TopicName};
    /// # async fn example(admin: Admin, topic: TopicName, group: GroupName) -> Result<()> {
    /// let letters = admin.dead_letters(&topic, &group).await?;
    /// let errors = letters.errors(&DeadLetterFilter::default(), 100, |_| {}).await?.into_groups();
    /// if let Some(largest) = errors.first() {
    ///     println!("{} letters: {}", largest.count, largest.pattern);
    ///     let same = DeadLetterFilter { fingerprint: Some(largest.fingerprint), ..Default::default() };
    ///     letters.replayer(&same, Replay::default()).await?.run().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Same as [`list`](Self::list).
    pub async fn errors(
        &self,
        filter: &DeadLetterFilter,
        most: usize,
        mut progress: impl FnMut(u64),
    ) -> Result<ErrorGroups<(Partition, MessageId)>> {
        let mut walk = self.walk(filter, None).await?;
        let mut groups = ErrorGroups::new(most);
        while !walk.is_done() {
            for letter in walk.run_once(PORTION).await? {
                let example = (letter.topic_partition.partition, letter.id);
                groups.add(&letter.error, letter.id.timestamp(), example);
            }
            progress(walk.looked_at());
        }
        Ok(groups)
    }
}
