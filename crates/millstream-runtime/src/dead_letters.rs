//! The dead letters of a group over all partitions of a topic.

use std::fmt;

use millstream_core::error::Result;
use millstream_core::{Backend, DeadLetter, GroupName, MessageId, TopicSpec};

/// How many dead letters are read or moved per request.
const PAGE: usize = 100;

/// The dead letters of one group, over all partitions of a topic.
#[derive(Clone)]
pub struct DeadLetterQueue {
    backend: Backend,
    topic: TopicSpec,
    group: GroupName,
}

impl DeadLetterQueue {
    /// The dead letters of `group` in `topic`.
    #[must_use]
    pub fn new(backend: Backend, topic: TopicSpec, group: GroupName) -> Self {
        Self { backend, topic, group }
    }

    /// The first `limit` dead letters, partition by partition, oldest first within each.
    ///
    /// # Errors
    /// Those of [`DeadLetters::list`](millstream_core::DeadLetters::list).
    pub async fn list(&self, limit: usize) -> Result<Vec<DeadLetter>> {
        let mut found = Vec::new();
        for topic_partition in self.topic.iter() {
            let mut after = MessageId::ZERO;
            while found.len() < limit {
                let page = PAGE.min(limit - found.len());
                let letters =
                    self.backend.dead_letters.list(&topic_partition, &self.group, after, page).await?;
                let Some(last) = letters.last() else { break };
                after = last.id;
                found.extend(letters);
            }
        }
        Ok(found)
    }

    /// How many there are.
    ///
    /// # Errors
    /// Those of [`Catalog::stats`](millstream_core::Catalog::stats).
    pub async fn count(&self) -> Result<u64> {
        let stats = self.backend.catalog.stats(&self.topic, &self.group).await?;
        Ok(stats.iter().map(|partition| partition.dead).sum())
    }

    /// Moves one dead letter back to its group. False if it was not there any more.
    ///
    /// # Errors
    /// Those of [`DeadLetters::replay`](millstream_core::DeadLetters::replay).
    pub async fn replay(&self, letter: &DeadLetter) -> Result<bool> {
        let replayed =
            self.backend.dead_letters.replay(&letter.topic_partition, &self.group, &[letter.id]).await?;
        Ok(replayed == 1)
    }

    /// Moves every dead letter that is there now back to its group. Gives back how many.
    ///
    /// What dies again meanwhile is not replayed again.
    ///
    /// # Errors
    /// Those of [`DeadLetters`](millstream_core::DeadLetters); what was replayed stays replayed.
    pub async fn replay_all(&self) -> Result<u64> {
        self.each_page(Deed::Replay).await
    }

    /// Deletes every dead letter that is there now, for good. Gives back how many.
    ///
    /// # Errors
    /// Those of [`DeadLetters`](millstream_core::DeadLetters); what was deleted stays deleted.
    pub async fn purge_all(&self) -> Result<u64> {
        self.each_page(Deed::Purge).await
    }

    async fn each_page(&self, deed: Deed) -> Result<u64> {
        let role = &self.backend.dead_letters;
        let mut done = 0;
        let counts = self.backend.catalog.stats(&self.topic, &self.group).await?;
        for (topic_partition, stats) in self.topic.iter().zip(counts) {
            let mut after = MessageId::ZERO;
            let mut left = usize::try_from(stats.dead).unwrap_or(usize::MAX);
            while left > 0 {
                let letters = role.list(&topic_partition, &self.group, after, PAGE.min(left)).await?;
                let Some(last) = letters.last() else { break };
                after = last.id;
                left -= letters.len();
                let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
                done += match deed {
                    Deed::Replay => role.replay(&topic_partition, &self.group, &ids).await?,
                    Deed::Purge => role.purge(&topic_partition, &self.group, &ids).await?,
                };
            }
        }
        Ok(done as u64)
    }
}

#[derive(Clone, Copy)]
enum Deed {
    Replay,
    Purge,
}

impl fmt::Debug for DeadLetterQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterQueue")
            .field("topic", &self.topic.name)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
