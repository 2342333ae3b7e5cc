//! The batchers of a producer: one for each way to the log, and for each durability that its sends ask for, since a request
//! waits for one of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::log::Append;
use millstream_core::{Backend, Capability, Durability, TopicName};
use millstream_engine::LeaseClock;

use super::ProducerConfig;
use super::backpressure::Bound;
use super::batcher::{Batcher, closed};
use super::sink::{ToLog, Way, only_stored};

/// Starts a batcher when a way is first taken. Each has a buffer of its own: sends that wait for replicas which
/// do not answer take no room from the others.
pub(super) struct Ways {
    backend: Backend,
    bound: Bound,
    topic: TopicName,
    /// Number of bytes at which a pipelined request of plain messages takes no further one.
    full_at: usize,
    config: ProducerConfig,
    observer: Arc<dyn Observer>,
    started: Mutex<Started>,
}

/// What a batcher is for.
type Taken = (Way, Durability);

#[derive(Default)]
struct Started {
    batchers: Vec<(Taken, Arc<Batcher<Append>>)>,
    closed: bool,
}

impl Ways {
    pub(super) fn new(
        backend: Backend,
        bound: Bound,
        topic: TopicName,
        full_at: usize,
        config: &ProducerConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { backend, bound, topic, full_at, config: config.clone(), observer, started: Mutex::default() }
    }

    /// Returns the batcher of a way, and starts it if there is none. To be called within a runtime.
    ///
    /// # Errors
    /// `InvalidConfig`; `Unsupported` if the backend recognises no repetitions or cannot give this durability, and for a durability
    /// of more than `Stored` beside an id or a number; `Closed`.
    pub(super) fn of(&self, way: Way, durability: Durability) -> Result<Arc<Batcher<Append>>> {
        let mut started = self.started();
        if let Some((_, batcher)) = started.batchers.iter().find(|(known, _)| *known == (way, durability)) {
            return Ok(batcher.clone());
        }
        if way != Way::Plain && durability != Durability::Stored {
            let what = match way {
                Way::Unique => "a send with a unique id",
                Way::Number => "a send of an idempotent producer",
                Way::Id | Way::Plain => "a send with a dedup id",
            };
            return Err(only_stored(what, durability).at(&self.topic));
        }
        durability.check()?;
        match way {
            Way::Plain => {}
            Way::Id | Way::Number => self.backend.require(Capability::Dedup)?,
            Way::Unique => self.backend.require(Capability::Unique)?,
        }
        if started.closed {
            return Err(closed());
        }
        let (log, on_full) = (self.backend.log().clone(), self.config.on_full);
        let sink = ToLog::new(log, self.bound.clone(), on_full, (way, durability), self.full_at);
        let sink = sink.ok_or_else(|| Capability::Durability.missing())?;
        // What is recognised is sent again when its answer is lost.
        let repeats = (way != Way::Plain).then(|| LeaseClock::of(&self.backend));
        let (topic, observer) = (self.topic.clone(), self.observer.clone());
        let batcher = Arc::new(Batcher::start(sink, topic, &self.config, observer, repeats));
        started.batchers.push(((way, durability), batcher.clone()));
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
