//! The server's clock, as far as it is known: ids contain its milliseconds, and ages are computed from them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_core::Timestamp;

/// Difference between the server's clock and ours. Until the first reading it is zero.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    ahead: AtomicI64,
}

impl Clock {
    /// Records a reading: the server returned `server` to a request sent at `asked_ms` and answered at `answered_ms`, both
    /// by the local clock.
    pub(crate) fn told(&self, server: Timestamp, asked_ms: u64, answered_ms: u64) {
        // The server read its clock between both times: halfway is the best estimate.
        let between = asked_ms.saturating_add(answered_ms.saturating_sub(asked_ms) / 2);
        let ahead = i128::from(server.as_millis()) - i128::from(between);
        self.ahead.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the server's time.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(our_ms().saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }

    /// Returns the time that passed since `earlier`.
    pub(crate) fn since(&self, earlier: Timestamp) -> Duration {
        self.now().saturating_duration_since(earlier)
    }
}

/// Returns the local time, in milliseconds since 1970.
pub(crate) fn our_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_clock_is_allowed_for() {
        let clock = Clock::default();
        let (now, at) = (our_ms(), Timestamp::from_millis);
        clock.told(at(now + 3_600_000), now - 10, now + 10);
        let age = clock.since(at(now + 3_600_000 - 5_000)).as_millis();
        assert!((5_000..6_000).contains(&age), "{age}");
        clock.told(at(now - 3_600_000), now, now);
        let age = clock.since(at(now - 3_600_000 - 5_000)).as_millis();
        assert!((5_000..6_000).contains(&age), "{age}");
        assert_eq!(clock.since(at(now)), Duration::ZERO, "not born yet");
    }
}
