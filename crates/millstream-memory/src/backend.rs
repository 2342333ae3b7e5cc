//! The backend itself: a handle to shared state.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::Backend;

use crate::clock::{Clock, Now};
use crate::state::State;

/// All roles in memory. Clones share their state, which is dropped with the last clone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use millstream_core::log::Append;
/// use millstream_core::{Backend, Envelope, TopicPartition, wire};
/// use millstream_memory::MemoryBackend;
///
/// let backend = Backend::from(MemoryBackend::new());
/// let topic_partition = TopicPartition::new("orders".parse().unwrap(), 0);
/// let entry = Append::new(topic_partition, wire::encode(&Envelope::new("hello")));
/// let ids = backend.log().append(&[entry]).await;
/// assert!(ids[0].is_ok());
/// # });
/// ```
#[derive(Clone)]
pub struct MemoryBackend {
    clock: Arc<Clock>,
    state: Arc<Mutex<State>>,
}

impl MemoryBackend {
    /// Creates an empty backend. Its clock starts at the system's time and then follows tokio's clock.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: Arc::new(Clock::new()), state: Arc::default() }
    }

    /// Creates an empty backend whose clock starts at this time after 1970, so that a simulation gets the same ids
    /// every time.
    #[must_use]
    pub fn at(since_1970: Duration) -> Self {
        Self { clock: Arc::new(Clock::at(since_1970)), state: Arc::default() }
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    pub(crate) fn set_clock_back(&self, by: Duration) {
        self.clock.set_back(by);
    }

    /// Locks the state. A panic elsewhere can leave at most one message half changed, so a poisoned lock is no reason
    /// to stop all callers.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

impl From<MemoryBackend> for Backend {
    fn from(backend: MemoryBackend) -> Self {
        Self::new(backend).in_process()
    }
}

/// Yields to other tasks from time to time. Nothing here ever waits for I/O, so a loop over this backend would
/// otherwise never release its thread.
pub(crate) async fn breathe() {
    tokio::task::coop::consume_budget().await;
}
