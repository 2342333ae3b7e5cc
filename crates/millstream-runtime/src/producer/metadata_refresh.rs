//! The growth loop: asks now and then whether the topic has more partitions by now, or another bound, and whether it is
//! there at all.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Observer;
use millstream_core::{Catalog, TopicName, TopicSpec};

use super::backpressure::Bound;
use millstream_loops::{Loops, Scope};

/// How many partitions there are, as all clones of a producer know it.
#[derive(Clone, Debug)]
pub(super) struct Partitions {
    count: Arc<AtomicU32>,
    /// The topic was deleted on purpose, and is not there again.
    deleted: Arc<AtomicBool>,
}

impl Partitions {
    pub(super) fn new(count: NonZeroU32) -> Self {
        Self { count: Arc::new(AtomicU32::new(count.get())), deleted: Arc::default() }
    }

    pub(super) fn count(&self) -> NonZeroU32 {
        // Never 0: it began as another number, and no topic has none.
        NonZeroU32::new(self.count.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// How many there are to send to; an error if the topic was deleted.
    pub(super) fn open(&self, topic: &TopicName) -> Result<NonZeroU32> {
        if self.are_deleted() { Err(deleted(topic)) } else { Ok(self.count()) }
    }

    fn are_deleted(&self) -> bool {
        self.deleted.load(Ordering::Relaxed)
    }

    /// True if there were fewer before.
    fn grow(&self, count: u32) -> bool {
        self.count.fetch_max(count, Ordering::Relaxed) < count
    }

    /// Another topic has the name now.
    fn start_over(&self, count: u32) {
        self.count.store(count, Ordering::Relaxed);
        self.deleted.store(false, Ordering::Relaxed);
    }
}

fn deleted(topic: &TopicName) -> Error {
    Error::new(
        ErrorKind::Deleted,
        format!("topic {topic} was deleted: nothing is sent until it is created again"),
    )
}

/// Asks for the number of partitions of one topic, and for its bound.
pub(super) struct MetadataRefresh {
    catalog: Arc<dyn Catalog>,
    /// As it was seen last.
    topic: TopicSpec,
    partitions: Partitions,
    bound: Bound,
}

impl MetadataRefresh {
    pub(super) fn new(
        catalog: Arc<dyn Catalog>,
        topic: TopicSpec,
        partitions: Partitions,
        bound: Bound,
    ) -> Self {
        Self { catalog, topic, partitions, bound }
    }

    /// Refreshes until dropped. Errors are logged and emitted, and do not end it.
    pub(super) async fn run(mut self, every: Duration, observer: Arc<dyn Observer>) {
        let loops = Loops::default();
        let monitor = loops.monitor("refresh", Scope::Topic(self.topic.name.clone()));
        loops.announce(None, &*observer);
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.run_once().await {
                Ok(()) => {
                    monitor.succeeded(&*observer);
                    every
                }
                Err(error) => monitor.failed(&error, &*observer).max(every.min(Duration::from_secs(1))),
            };
        }
    }

    /// Asks once. A topic that was lost with the data is restored; one that was deleted is not, and nothing is sent to it
    /// from then on. What is created in its place is another topic, which may have fewer partitions; else it never shrinks.
    async fn run_once(&mut self) -> Result<()> {
        let stored = match self.catalog.topic(&self.topic.name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => self.restored().await?,
            stored => stored?,
        };
        let (topic, partitions) = (&stored.name, stored.partitions);
        if self.partitions.are_deleted() || stored.generation > self.topic.generation {
            tracing::warn!(%topic, partitions, "the topic was deleted and created again: sending to the new one");
            self.partitions.start_over(partitions);
        } else if self.partitions.grow(partitions) {
            tracing::info!(%topic, partitions, "the topic has grown");
        }
        self.bound.set(stored.max_length);
        self.topic = stored;
        Ok(())
    }

    async fn restored(&self) -> Result<TopicSpec> {
        // Remembered here for longer than on the server.
        if self.partitions.are_deleted() {
            return Err(deleted(&self.topic.name));
        }
        let mut lost = self.topic.clone();
        lost.partitions = self.partitions.count().get();
        match self.catalog.restore_topic(&lost).await {
            Err(error) if error.kind() == ErrorKind::Deleted => {
                // Unless another one has the name by now: the next time asks for that.
                self.partitions.deleted.store(true, Ordering::Relaxed);
                Err(deleted(&self.topic.name))
            }
            Ok(restored) => {
                tracing::warn!(topic = %restored.name, "the topic was gone and has been created again");
                Ok(restored)
            }
            other => other,
        }
    }
}
