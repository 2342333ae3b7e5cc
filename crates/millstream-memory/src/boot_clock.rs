//! A boot clock for tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::suspension::BootClock;
use tokio::time::Instant;

/// Boot clock that a test controls: the runtime's clock, which tests may pause, plus the simulated suspension time of
/// the machine. A clone is another handle to the same clock.
#[derive(Clone, Debug)]
pub struct SuspendableClock {
    start: Instant,
    suspended: Arc<Mutex<Duration>>,
}

impl SuspendableClock {
    /// Creates a clock without a suspension.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it reads the runtime's clock")]
    pub fn new() -> Self {
        Self { start: Instant::now(), suspended: Arc::default() }
    }

    /// Simulates a suspension of the machine: this time passes immediately.
    pub fn suspend(&self, time: Duration) {
        *self.suspended.lock().unwrap_or_else(PoisonError::into_inner) += time;
    }
}

impl BootClock for SuspendableClock {
    fn elapsed(&self) -> Duration {
        self.start.elapsed() + *self.suspended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
