//! The growth loop: asks now and then whether the topic has more partitions by now, or another bound.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::{Catalog, TopicName};

use super::bound::Bound;
use crate::trouble::{Loops, Place};

/// How many partitions there are, as all clones of a producer know it.
#[derive(Clone, Debug)]
pub(super) struct Partitions(Arc<AtomicU32>);

impl Partitions {
    pub(super) fn new(count: NonZeroU32) -> Self {
        Self(Arc::new(AtomicU32::new(count.get())))
    }

    pub(super) fn count(&self) -> NonZeroU32 {
        // Never 0: it began as another number and only grows.
        NonZeroU32::new(self.0.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// True if there were fewer before.
    fn grow(&self, count: u32) -> bool {
        self.0.fetch_max(count, Ordering::Relaxed) < count
    }
}

/// Asks for the number of partitions of one topic, and for its bound.
pub(super) struct Growth {
    catalog: Arc<dyn Catalog>,
    topic: TopicName,
    partitions: Partitions,
    bound: Bound,
}

impl Growth {
    pub(super) fn new(
        catalog: Arc<dyn Catalog>,
        topic: TopicName,
        partitions: Partitions,
        bound: Bound,
    ) -> Self {
        Self { catalog, topic, partitions, bound }
    }

    /// Asks until dropped. Errors are told, and do not end it.
    pub(super) async fn run(self, every: Duration, observer: Arc<dyn Observer>) {
        let mut trouble = Loops::default().begin("refresh", Place::Topic(self.topic.clone()));
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.run_once().await {
                Ok(()) => {
                    trouble.over(&*observer);
                    every
                }
                Err(error) => trouble.met(&error, &*observer).max(every.min(Duration::from_secs(1))),
            };
        }
    }

    /// Asks once. A topic never shrinks; one that was deleted and created again keeps this producer's number until
    /// it has as many.
    async fn run_once(&self) -> Result<()> {
        let stored = self.catalog.topic(&self.topic).await?;
        if self.partitions.grow(stored.partitions) {
            tracing::info!(topic = %self.topic, partitions = stored.partitions, "the topic has grown");
        }
        self.bound.set(stored.max_length);
        Ok(())
    }
}
