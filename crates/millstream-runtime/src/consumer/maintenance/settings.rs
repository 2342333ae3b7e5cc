//! The settings of a topic that upkeep applies: read from time to time, once for all partitions.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::{Backend, DeadLetterRetention, Retention, TopicName, TopicSpec};
use tokio::time::Instant;

/// Time between two reads of the settings.
const EVERY: Duration = Duration::from_secs(60);

/// Settings of a topic, read again when they are a minute old.
pub(in crate::consumer) struct TopicSettings {
    pub(super) backend: Backend,
    pub(super) topic: TopicName,
    known: Mutex<Known>,
    /// Locked while they are being read.
    reading: tokio::sync::Mutex<()>,
}

/// The settings at the last successful read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) retention: Retention,
    pub(super) dead_letters: DeadLetterRetention,
    at: Instant,
}

impl Known {
    fn of(topic: &TopicSpec, at: Instant) -> Self {
        Self { retention: topic.retention, dead_letters: topic.dead_letter_retention, at }
    }
}

impl TopicSettings {
    pub(in crate::consumer) fn new(backend: Backend, topic: &TopicSpec) -> Self {
        let known = Mutex::new(Known::of(topic, Instant::now()));
        Self { backend, topic: topic.name.clone(), known, reading: tokio::sync::Mutex::default() }
    }

    /// Returns the maximum time between two looks at what is to be trimmed, if nothing is settled.
    pub(super) fn at_least_every(&self) -> Duration {
        if self.backend.is_lasting() { EVERY * 60 } else { EVERY }
    }

    pub(super) async fn get(&self) -> Result<Known> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.at.elapsed() < EVERY {
            return Ok(known);
        }
        // One of many partitions reads them for all; if that fails, the next one tries.
        let Ok(_reading) = self.reading.try_lock() else { return Ok(known) };
        let at = Instant::now();
        let known = Known::of(&self.backend.catalog().topic(&self.topic).await?, at);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_memory::MemoryBackend;

    #[tokio::test(start_paused = true)]
    async fn settings_that_could_not_be_read_are_read_again() {
        let backend = Backend::from(MemoryBackend::new());
        let topic = TopicSpec::new("t".parse().expect("name"), 1).expect("a topic");
        let settings = TopicSettings::new(backend.clone(), &topic);
        assert_eq!(settings.get().await.expect("known").retention, topic.retention);
        tokio::time::advance(EVERY).await;
        assert!(settings.get().await.is_err(), "there is no such topic");
        let dead = DeadLetterRetention::length(7);
        let other = topic.with_retention(Retention::Keep).with_dead_letter_retention(dead);
        backend.catalog().create_topic(&other).await.expect("created");
        let known = settings.get().await.expect("read");
        assert_eq!((known.retention, known.dead_letters), (Retention::Keep, dead));
    }
}
