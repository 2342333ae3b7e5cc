//! The batchers of a producer: one for each durability that its sends ask for, since a request waits for one of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::log::Append;
use millstream_core::{Capability, Durability, Log, TopicName};

use super::ProducerConfig;
use super::backpressure::Bound;
use super::batcher::{Batcher, closed};
use super::sink::ToLog;

/// Starts a batcher when a durability is first asked for. Each has a buffer of its own: sends that wait for replicas which
/// do not answer take no room from the others.
pub(super) struct ByDurability {
    log: Arc<dyn Log>,
    bound: Bound,
    topic: TopicName,
    /// Number of bytes at which a pipelined request takes no further message.
    full_at: usize,
    config: ProducerConfig,
    observer: Arc<dyn Observer>,
    started: Mutex<Started>,
}

#[derive(Default)]
struct Started {
    batchers: Vec<(Durability, Arc<Batcher<Append>>)>,
    closed: bool,
}

impl ByDurability {
    pub(super) fn new(
        log: Arc<dyn Log>,
        bound: Bound,
        topic: TopicName,
        full_at: usize,
        config: &ProducerConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { log, bound, topic, full_at, config: config.clone(), observer, started: Mutex::default() }
    }

    /// Returns the batcher for a durability, and starts it if there is none. To be called within a runtime.
    ///
    /// # Errors
    /// `InvalidConfig`; `Unsupported` if the backend cannot give this durability; `Closed`.
    pub(super) fn of(&self, durability: Durability) -> Result<Arc<Batcher<Append>>> {
        let mut started = self.started();
        if let Some((_, batcher)) = started.batchers.iter().find(|(known, _)| *known == durability) {
            return Ok(batcher.clone());
        }
        durability.check()?;
        if started.closed {
            return Err(closed());
        }
        let (log, on_full) = (self.log.clone(), self.config.on_full);
        let sink = ToLog::new(log, self.bound.clone(), on_full, durability, self.full_at);
        let sink = sink.ok_or_else(|| Capability::Durability.missing())?;
        let (topic, observer) = (self.topic.clone(), self.observer.clone());
        let batcher = Arc::new(Batcher::start(sink, topic, &self.config, observer));
        started.batchers.push((durability, batcher.clone()));
        Ok(batcher)
    }

    pub(super) async fn flush(&self) {
        let batchers = self.started().batchers.clone();
        join_all(batchers.iter().map(|(_, batcher)| batcher.flush().boxed())).await;
    }

    pub(super) async fn close(&self) {
        let batchers = {
            let mut started = self.started();
            started.closed = true;
            started.batchers.clone()
        };
        join_all(batchers.iter().map(|(_, batcher)| batcher.close().boxed())).await;
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
