//! The metadata refresh: reads at intervals whether the topic exists, its number of partitions, and its bound.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::dedup::WINDOWS;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Observer;
use millstream_core::{Catalog, Retention, TopicName, TopicSpec};
use millstream_engine::{Loops, Scope};
use tokio::sync::watch;
use tokio::time::Instant;

use super::backpressure::Bound;

/// Time within which all producers notice that a topic has grown: ten times the default refresh.
const NOTICED: Duration = Duration::from_secs(600);
const LONGEST_WINDOW: Duration = WINDOWS.1;

/// Number of partitions of the topic, shared by all clones of a producer.
#[derive(Clone, Debug)]
pub(super) struct Partitions {
    count: Arc<AtomicU32>,
    /// Earlier numbers, with the time at which each was found to be too low.
    earlier: Arc<Mutex<Vec<(NonZeroU32, Instant)>>>,
    /// All earlier numbers, also those from before the producer was started.
    history: Arc<Mutex<Vec<NonZeroU32>>>,
    /// Whether the topic was deleted on purpose and has not been created again.
    deleted: Arc<AtomicBool>,
}

impl Partitions {
    pub(super) fn new(count: NonZeroU32, earlier: &[u32]) -> Self {
        let count = Arc::new(AtomicU32::new(count.get()));
        let partitions =
            Self { count, earlier: Arc::default(), history: Arc::default(), deleted: Arc::default() };
        partitions.remember(earlier);
        partitions
    }

    pub(super) fn count(&self) -> NonZeroU32 {
        // Never 0: it starts above 0, and no topic has 0 partitions.
        NonZeroU32::new(self.count.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Returns the number of partitions; an error if the topic was deleted.
    pub(super) fn open(&self, topic: &TopicName) -> Result<NonZeroU32> {
        if self.are_deleted() { Err(deleted(topic)) } else { Ok(self.count()) }
    }

    fn are_deleted(&self) -> bool {
        self.deleted.load(Ordering::Relaxed)
    }

    /// Raises the number. True if it was lower before.
    fn grow(&self, count: u32) -> bool {
        let before = self.count.fetch_max(count, Ordering::Relaxed);
        if let Some(known) = NonZeroU32::new(before).filter(|_| before < count) {
            self.earlier_numbers().push((known, Instant::now()));
            self.remember(&[before]);
        }
        before < count
    }

    /// Returns the earlier numbers by which a message may have been sent within this time: each until other producers have
    /// noticed the growth, too.
    pub(super) fn earlier(&self, window: Duration) -> Vec<NonZeroU32> {
        let mut earlier = self.earlier_numbers();
        if earlier.is_empty() {
            return Vec::new();
        }
        earlier.retain(|(_, since)| since.elapsed() < LONGEST_WINDOW + NOTICED);
        let recent = earlier.iter().filter(|(_, since)| since.elapsed() < window + NOTICED);
        recent.map(|(count, _)| *count).collect()
    }

    /// Adds earlier numbers, as the topic has them stored.
    fn remember(&self, earlier: &[u32]) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        for count in earlier.iter().filter_map(|count| NonZeroU32::new(*count)) {
            if !history.contains(&count) {
                history.push(count);
            }
        }
    }

    /// Returns all numbers that the topic had before, as far as that is known.
    pub(super) fn all_earlier(&self) -> Vec<NonZeroU32> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn earlier_numbers(&self) -> MutexGuard<'_, Vec<(NonZeroU32, Instant)>> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the state for a new topic of the same name.
    fn start_over(&self, count: u32) {
        self.count.store(count, Ordering::Relaxed);
        self.deleted.store(false, Ordering::Relaxed);
        self.earlier_numbers().clear();
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn deleted(topic: &TopicName) -> Error {
    Error::new(
        ErrorKind::Deleted,
        format!("topic {topic} was deleted: nothing is sent until it is created again"),
    )
    .at(topic)
}

/// Reads the number of partitions, the bound and the retention of one topic.
pub(super) struct MetadataRefresh {
    catalog: Arc<dyn Catalog>,
    /// The topic as it was last read.
    topic: TopicSpec,
    partitions: Partitions,
    bound: Bound,
    retention: watch::Sender<Retention>,
}

impl MetadataRefresh {
    pub(super) fn new(
        catalog: Arc<dyn Catalog>,
        topic: TopicSpec,
        partitions: Partitions,
        bound: Bound,
        retention: watch::Sender<Retention>,
    ) -> Self {
        Self { catalog, topic, partitions, bound, retention }
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

    /// Refreshes once. A topic that was lost with the data is restored. A topic that was deleted is not, and nothing
    /// is sent to it from then on. A topic created in its place is a new one and may have fewer partitions; otherwise
    /// the number never decreases.
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
        self.partitions.remember(&stored.earlier);
        self.bound.set(stored.max_length);
        self.retention
            .send_if_modified(|known| std::mem::replace(known, stored.retention) != stored.retention);
        self.topic = stored;
        Ok(())
    }

    async fn restored(&self) -> Result<TopicSpec> {
        // This flag outlasts the record of the deletion on the server.
        if self.partitions.are_deleted() {
            return Err(deleted(&self.topic.name));
        }
        let mut lost = self.topic.clone();
        lost.partitions = self.partitions.count().get();
        match self.catalog.restore_topic(&lost).await {
            Err(error) if error.kind() == ErrorKind::Deleted => {
                // If a new topic has the name by now, the next round finds it.
                self.partitions.deleted.store(true, Ordering::Relaxed);
                Err(deleted(&self.topic.name))
            }
            Ok(restored) => {
                tracing::warn!(topic = %restored.name, "the topic was missing and has been created again");
                Ok(restored)
            }
            other => other,
        }
    }
}

/// Whether a stored topic has the settings that a program asks for. What the backend sets is not asked for.
fn is_as_asked(asked: &TopicSpec, stored: &TopicSpec) -> bool {
    let same = asked.clone().with_generation(stored.generation).with_earlier(stored.earlier.clone());
    same.with_dictionary(stored.dictionary) == *stored
}

/// Logs a warning if the stored topic, which is used, differs from the one in the program.
pub(crate) fn warn_if_other(asked: &TopicSpec, stored: &TopicSpec) {
    if !is_as_asked(asked, stored) {
        tracing::warn!(
            topic = %stored.name,
            asked_partitions = asked.partitions,
            partitions = stored.partitions,
            asked_retention = %asked.retention,
            retention = %stored.retention,
            asked_max_length = ?asked.max_length,
            max_length = ?stored.max_length,
            asked_dead_letter_retention = %asked.dead_letter_retention,
            dead_letter_retention = %stored.dead_letter_retention,
            asked_packing = ?asked.packing,
            packing = ?stored.packing,
            "the topic is stored with other settings, which win"
        );
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::packing::DictionaryName;

    use super::*;

    #[test]
    fn what_the_backend_sets_is_no_other_setting() {
        let asked = TopicSpec::new("orders".parse().expect("a name"), 2).expect("valid");
        let stored = asked.clone().with_generation(7).with_earlier(vec![1]);
        let stored = stored.with_dictionary(Some(DictionaryName { version: 1, id: 9 }));
        assert!(is_as_asked(&asked, &stored));
        assert!(!is_as_asked(&asked, &stored.with_retention(Retention::Keep)));
    }
}
