//! Partitions with packs that this consumer cannot read, since their compression is not known to it or not built in.
//!
//! No order is kept among shared entries, so what can be read is handled, and other partitions go on. Of a partition with such a pack
//! nothing new is taken or claimed: others of the group may be able to read it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::Partition;
use millstream_core::error::Error;
use millstream_core::shared::SharedMember;
use millstream_core::sorted::SortedMap;
use millstream_engine::LoopMonitor;
use tokio::time::Instant;

use crate::consumer::context::Subscription;

/// Time after which a look that found neither is repeated: the reader may have failed.
const UNANSWERED: Duration = Duration::from_secs(60);

/// The partitions that have such packs, as far as is known.
#[derive(Default)]
pub(super) struct UnreadablePartitions(Mutex<SortedMap<Partition, Unreadable>>);

struct Unreadable {
    /// Reports the error, and that it has ended.
    monitor: LoopMonitor,
    /// When such a pack was found last.
    found: Instant,
    /// When to look again whether it is still there.
    again: Instant,
}

impl UnreadablePartitions {
    fn lock(&self) -> MutexGuard<'_, SortedMap<Partition, Unreadable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a pack cannot be read, and reports it.
    pub(super) fn found(
        &self,
        context: &Subscription,
        member: &SharedMember,
        partition: Partition,
        error: &Error,
    ) {
        let monitor = self.lock().remove(&partition).map(|known| known.monitor);
        let monitor = monitor.unwrap_or_else(|| context.monitor_of("fetch", &member.partition(partition)));
        // Observers are user code, and called without the lock.
        let pause = monitor.failed(error, &*context.observer);
        let found = Instant::now();
        self.lock().insert(partition, Unreadable { monitor, found, again: found + pause });
    }

    /// Whether a partition has such packs.
    pub(super) fn contains(&self, partition: Partition) -> bool {
        self.lock().contains_key(&partition)
    }

    /// Returns once whether it is time to look at one of these partitions from the beginning.
    pub(super) fn is_due(&self, partitions: &[Partition]) -> bool {
        let (now, mut all, mut is_due) = (Instant::now(), self.lock(), false);
        for partition in partitions {
            if let Some(known) = all.get_mut(partition).filter(|known| known.again <= now) {
                // Until it is found again, or gone.
                (known.again, is_due) = (now + UNANSWERED, true);
            }
        }
        is_due
    }

    /// Records that all that is pending of these partitions was read by a reader opened at a time. What was not found since then is
    /// gone.
    pub(super) fn were_read(&self, context: &Subscription, partitions: &[Partition], opened: Instant) {
        let gone: Vec<Unreadable> = {
            let mut all = self.lock();
            if all.is_empty() {
                return;
            }
            let mut gone = Vec::new();
            for partition in partitions {
                if all.get(partition).is_some_and(|known| known.found < opened) {
                    gone.extend(all.remove(partition));
                }
            }
            gone
        };
        for Unreadable { monitor, .. } in gone {
            monitor.succeeded(&*context.observer);
        }
    }
}
