//! The schedule role in memory.

use async_trait::async_trait;
use millstream_core::schedule::{MAX_PROMOTE, Promoted, Schedule};
use millstream_core::wire::{self, Fields};
use millstream_core::{DeadLetter, Lease, MessageId, Reason, Result};

use crate::MemoryBackend;
use crate::backend::breathe;

#[async_trait]
impl Schedule for MemoryBackend {
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let (topic_partition, _) = lease.partition()?;
        let (partition, name) = state.owned(lease)?;
        let group = partition.group(name);
        let mut promoted = Promoted::default();
        while promoted.moved + promoted.orphans < limit.min(MAX_PROMOTE) {
            let Some((origin, item)) = group.parked.take_due(now.millis()) else { break };
            if let Some(item) = item {
                let fields = wire::redelivery(item.attempt, origin, &item.error, &item.body);
                group.retry.append(now.millis(), fields);
                promoted.moved += 1;
            } else {
                let letter = DeadLetter {
                    id: MessageId::ZERO,
                    reason: Reason::Orphan,
                    attempts: 0,
                    error: String::new(),
                    origin,
                    topic_partition: topic_partition.clone(),
                    group: name.clone(),
                    body: Fields::new(),
                };
                group.dead.append(now.millis(), wire::dead_letter(&letter, &[]));
                promoted.orphans += 1;
            }
        }
        promoted.next = group.parked.head().map(|due| now.until(due));
        if promoted.moved > 0 {
            partition.wake.notify_waiters();
        }
        Ok(promoted)
    }
}
