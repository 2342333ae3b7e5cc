//! The clock of the backend: tokio's, so that a test that pauses time also pauses this clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_core::{Due, Timestamp};
use tokio::time::Instant;

/// Clock that starts at the system's time, and goes back only if an operator sets it back.
#[derive(Debug)]
pub(crate) struct Clock {
    base: Duration,
    start: Instant,
    /// Time by which it was set back, in microseconds.
    behind: AtomicU64,
}

/// Point in time, in microseconds since 1970.
///
/// Ids and due times are milliseconds. A value that must not be early is rounded up, one that permits something is
/// rounded down: with a precision of one millisecond alone, a retry could come back almost 1 ms early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Now(u64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self::at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    pub(crate) fn at(base: Duration) -> Self {
        Self { base, start: Instant::now(), behind: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> Now {
        let behind = self.behind.load(Ordering::Relaxed);
        Now(micros(self.base + self.start.elapsed()).saturating_sub(behind))
    }

    /// Returns the time since the clock was created.
    pub(crate) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sets the clock back.
    pub(crate) fn set_back(&self, by: Duration) {
        self.behind.fetch_add(micros(by), Ordering::Relaxed);
    }
}

impl Now {
    /// Time later than all others.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// Returns the start of a millisecond, but not before now.
    pub(crate) fn at(self, time: Timestamp) -> Self {
        Self(time.as_millis().saturating_mul(1_000).max(self.0))
    }

    pub(crate) fn micros(self) -> u64 {
        self.0
    }

    /// Returns the current millisecond: ids contain it, and everything that is due up to it is due.
    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_millis(self.0 / 1_000)
    }

    /// Returns the millisecond at which something is due.
    pub(crate) fn due(self, due: Due) -> Timestamp {
        due.timestamp(self.0)
    }

    /// Returns the time until millisecond `due` begins; zero if it has begun.
    pub(crate) fn until(self, due: Timestamp) -> Duration {
        Duration::from_millis(due.as_millis()).saturating_sub(Duration::from_micros(self.0))
    }

    /// Returns the start of the current millisecond.
    pub(crate) fn of_millisecond(self) -> Self {
        Self(self.0 / 1_000 * 1_000)
    }

    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_is_never_early_and_less_than_a_millisecond_late() {
        for now in [5_000, 5_001, 5_500, 5_999] {
            for after in [0, 1, 999, 1_000, 1_001, 7_500] {
                let due = Now(now).due(Due::In(Duration::from_micros(after))).as_millis() * 1_000;
                assert!(due >= now + after, "{now} + {after}: {due}");
                assert!(due < now + after + 1_000, "{now} + {after}: {due}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_back_only_when_it_is_set_back() {
        let clock = Clock::at(Duration::from_secs(100));
        clock.set_back(Duration::from_secs(3));
        assert_eq!(clock.now(), Now(97_000_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now(), Now(98_000_000));
    }

    #[test]
    fn forever_does_not_overflow() {
        let now = Clock::new().now();
        assert!(now.until(Timestamp::from_millis(u64::MAX)) > Duration::from_secs(u64::from(u32::MAX)));
        assert!(now.plus(Duration::MAX) > now);
    }
}
