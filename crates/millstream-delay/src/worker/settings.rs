//! The settings of the queue that workers apply: read from time to time, once for all shards.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::{Backend, DeadLetterRetention, QueueName, Timestamp};
use tokio::time::Instant;

/// Time between two reads of the settings.
const EVERY: Duration = Duration::from_secs(60);
/// Time for which settings may be applied, by the server's clock. The time beyond [`EVERY`] is for the request.
const VALID: Duration = Duration::from_secs(120);

/// Settings of a queue, read again when they are a minute old.
pub(super) struct QueueSettings {
    backend: Backend,
    queue: QueueName,
    known: Mutex<Option<Known>>,
    /// Locked while they are being read.
    reading: tokio::sync::Mutex<()>,
}

/// The settings at the last successful read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) dead_letters: DeadLetterRetention,
    /// Latest time at which they may be applied, by the server's clock.
    pub(super) until: Timestamp,
    at: Instant,
}

impl QueueSettings {
    pub(super) fn new(backend: Backend, queue: QueueName) -> Self {
        Self { backend, queue, known: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    pub(super) async fn get(&self) -> Result<Known> {
        let reading = loop {
            let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
            match (known, self.reading.try_lock()) {
                (Some(known), _) if known.at.elapsed() < EVERY => return Ok(known),
                (_, Ok(reading)) => break reading,
                // One of many shards reads them for all; if that fails, the next one tries.
                (Some(known), Err(_)) => return Ok(known),
                (None, Err(_)) => drop(self.reading.lock().await),
            }
        };
        let at = Instant::now();
        // Before the settings: so they were valid at that time.
        let now = self.backend.schedule().now().await?;
        let dead_letters = self.backend.tasks()?.queue(&self.queue).await?.dead_letter_retention;
        let known = Known { dead_letters, until: now.saturating_add(VALID), at };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        drop(reading);
        Ok(known)
    }

    /// Has the settings read again at the next use.
    pub(super) fn forget(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::{QueueChange, QueueSpec};
    use millstream_memory::MemoryBackend;

    #[tokio::test(start_paused = true)]
    async fn settings_are_read_once_a_minute_and_again_after_an_error() {
        let backend = Backend::from(MemoryBackend::new());
        let name: QueueName = "mails".parse().expect("name");
        let settings = QueueSettings::new(backend.clone(), name.clone());
        assert!(settings.get().await.is_err(), "there is no such queue");
        let tasks = backend.tasks().expect("tasks");
        tasks.create_queue(&QueueSpec::new(name.clone(), 1)).await.expect("created");
        let first = settings.get().await.expect("read");
        assert_eq!(first.dead_letters, DeadLetterRetention::KEEP);
        let seven = DeadLetterRetention::length(7);
        let change = QueueChange::new().dead_letter_retention(seven);
        tasks.alter_queue(&name, &change).await.expect("altered");
        tokio::time::advance(EVERY - Duration::from_secs(1)).await;
        assert_eq!(settings.get().await.expect("known").dead_letters, DeadLetterRetention::KEEP);
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = settings.get().await.expect("read");
        assert_eq!(second.dead_letters, seven);
        assert_eq!(second.until, first.until.saturating_add(EVERY));
        tasks
            .alter_queue(&name, &change.dead_letter_retention(DeadLetterRetention::KEEP))
            .await
            .expect("altered");
        settings.forget();
        assert_eq!(settings.get().await.expect("read").dead_letters, DeadLetterRetention::KEEP);
    }
}
