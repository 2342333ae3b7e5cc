//! The dead-letters role in memory.

use async_trait::async_trait;
use millstream_core::{DeadLetter, DeadLetters, GroupName, History, MessageId, Result, TopicPartition, wire};

use crate::MemoryBackend;

#[async_trait]
impl DeadLetters for MemoryBackend {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let mut state = self.lock();
        let Some(of_group) = state.group(topic_partition, group) else { return Ok(Vec::new()) };
        let letters = of_group.dead.above(after).take(limit);
        let read = |(id, fields): &(MessageId, wire::Fields)| {
            DeadLetter::from_entry(*id, topic_partition.clone(), group.clone(), fields)
        };
        Ok(letters.map(read).collect())
    }

    async fn replay(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let mut state = self.lock();
        let now = self.now().millis();
        let Some(of_group) = state.group(topic_partition, group) else { return Ok(0) };
        let mut moved = 0;
        for id in ids {
            let Some(fields) = of_group.dead.remove(*id) else { continue };
            let (lead, body) = wire::split_dead(&fields);
            let origin = wire::text(lead, wire::ORIGIN).and_then(|id| id.parse().ok()).unwrap_or(*id);
            of_group.retry.append(now, wire::redelivery(1, origin, "", &History::default(), body));
            moved += 1;
        }
        state.partition(topic_partition).wake.notify_waiters();
        Ok(moved)
    }

    async fn purge(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let mut state = self.lock();
        let Some(of_group) = state.group(topic_partition, group) else { return Ok(0) };
        Ok(ids.iter().filter(|id| of_group.dead.remove(**id).is_some()).count())
    }
}
