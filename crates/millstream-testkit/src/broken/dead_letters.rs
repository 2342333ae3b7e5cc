//! Mistakes of the dead-letters role.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::log::Append;
use millstream_core::{DeadLetter, DeadLetters, GroupName, Log, MessageId, Result, TopicPartition};

use super::{Broken, Sabotage};

#[async_trait]
impl DeadLetters for Broken {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let after = if self.is(Sabotage::ListUnpaged) { MessageId::ZERO } else { after };
        let inner = &self.inner.dead_letters;
        let mut letters = inner.list(topic_partition, group, after, limit).await?;
        match self.sabotage {
            Sabotage::ListReversed => letters.reverse(),
            Sabotage::DeadLettersShared => {
                let others: Vec<_> = self.memo().groups.iter().cloned().collect();
                for (tp, other) in others {
                    if tp.topic == topic_partition.topic && (&tp, &other) != (topic_partition, group) {
                        letters.extend(inner.list(&tp, &other, after, limit).await?);
                    }
                }
            }
            Sabotage::DeadBodyMangled => {
                for (name, value) in letters.iter_mut().flat_map(|letter| &mut letter.body) {
                    for bytes in [name, value] {
                        *bytes = Bytes::from(String::from_utf8_lossy(bytes).into_owned());
                    }
                }
            }
            Sabotage::ReplayCopies | Sabotage::DeleteKeepsRetries => {
                let replayed = self.memo().replayed.clone();
                let mine = replayed.into_iter().filter(|letter| {
                    (&letter.topic_partition, &letter.group) == (topic_partition, group) && letter.id > after
                });
                letters.extend(mine);
                letters.sort_by_key(|letter| letter.id);
                letters.truncate(limit);
            }
            _ => {}
        }
        Ok(letters)
    }

    async fn replay(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let inner = &self.inner.dead_letters;
        if !matches!(self.sabotage, Sabotage::ReplayCopies | Sabotage::ReplayToTheLog) {
            return inner.replay(topic_partition, group, ids).await;
        }
        let known = inner.list(topic_partition, group, MessageId::ZERO, usize::MAX).await?;
        let letters: Vec<_> = known.into_iter().filter(|letter| ids.contains(&letter.id)).collect();
        if self.is(Sabotage::ReplayCopies) {
            self.memo().replayed.extend(letters);
            inner.replay(topic_partition, group, ids).await?;
            return Ok(ids.len());
        }
        for letter in letters {
            let entry = Append { topic_partition: topic_partition.clone(), fields: letter.body };
            for result in self.append(&[entry]).await {
                result?;
            }
        }
        inner.purge(topic_partition, group, ids).await
    }

    async fn purge(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        if self.is(Sabotage::PurgeForgotten) {
            return Ok(ids.len());
        }
        self.inner.dead_letters.purge(topic_partition, group, ids).await
    }
}
