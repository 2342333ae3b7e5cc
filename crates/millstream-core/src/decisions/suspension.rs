//! Suspended machines: time that passes while this process does not run and the monotonic clock stands still.
//!
//! A lease expires by the server's clock. Its holder uses a monotonic clock, which on Linux does not count while the
//! machine is suspended: after a night of suspension the holder would believe that its lease has seconds left. So a
//! holder adds the time that a [`BootClock`] counted beyond the monotonic one. A virtual machine that is paused by its
//! host may not see the pause on any of its clocks; then the server's time shows it, with the next answer that carries
//! one: see [`ServerTime`].

use std::fmt;
use std::time::Duration;

use crate::timestamp::Timestamp;

/// Clock that also counts while the machine is suspended.
pub trait BootClock: fmt::Debug + Send + Sync {
    /// Returns the time since a fixed point in the past, suspended time included. Never decreases.
    fn elapsed(&self) -> Duration;
}

/// Returns the shortest time for which this machine must have been suspended, uncounted by its clock, between two answers
/// of a server.
///
/// `local` is the longest time that can have passed by the local clock between the server's two readings of its own: from
/// before the first request to after the second answer. `server` is the time between these readings. Returns `None` if
/// they differ by no more than `margin`: clocks run at slightly different speeds.
#[must_use]
pub fn suspension(local: Duration, server: Duration, margin: Duration) -> Option<Duration> {
    server.checked_sub(local).filter(|away| *away > margin)
}

/// Request whose answer carried the server's time; times by the local clock, since any fixed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    asked: Duration,
    answered: Duration,
    /// The server's time, read between these two.
    server: Timestamp,
}

/// Compares the server's clock with the local one, from answer to answer.
#[derive(Debug, Default)]
pub struct ServerTime {
    last: Option<Reading>,
}

impl ServerTime {
    /// Records an answer with the server's time. `asked` and `answered` are times of the local clock, with suspended time
    /// included as far as it is known.
    ///
    /// Returns the time by which the server's clock has advanced beyond the local one since the previous answer, if that
    /// is more than `margin`: the upper limit of the time that was not counted. A server clock that was set forward looks
    /// the same and has the same effect: leases expire by that clock. The caller adds the returned time to its clock, and
    /// passes later times by the corrected clock.
    pub fn record_answer(
        &mut self,
        asked: Duration,
        answered: Duration,
        server: Timestamp,
        margin: Duration,
    ) -> Option<Duration> {
        let last = self.last.replace(Reading { asked, answered, server })?;
        let passed = server.saturating_duration_since(last.server);
        suspension(answered.saturating_sub(last.asked), passed, margin)?;
        // It is certain that the machine was suspended, but not for how long: the time that the answers took may be part
        // of the difference. Assuming too long a time is safe: the caller merely sends another request.
        // `asked - last.answered` is the shortest local time between the server's two readings, so `away` is the longest
        // suspension that is possible.
        let away = passed.saturating_sub(asked.saturating_sub(last.answered));
        // The caller passes later times by the corrected clock.
        self.last = Some(Reading { asked: asked + away, answered: answered + away, server });
        Some(away)
    }

    /// Discards the previous answer: the next one may come from another server.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn only_what_is_beyond_the_margin_is_a_suspension() {
        assert_eq!(suspension(MS(1_000), MS(1_000), MS(100)), None);
        assert_eq!(suspension(MS(1_000), MS(1_100), MS(100)), None);
        assert_eq!(suspension(MS(1_000), MS(1_101), MS(100)), Some(MS(101)));
        assert_eq!(suspension(MS(5_000), MS(10), MS(100)), None, "the server was suspended, or set back");
    }

    #[test]
    fn slow_answers_are_no_suspension_and_a_pause_is_counted_at_its_longest() {
        let mut time = ServerTime::default();
        let margin = MS(50);
        assert_eq!(time.record_answer(MS(0), MS(400), at(10_000), margin), None, "the first");
        // The server read its clock early in the first request and late in the second.
        assert_eq!(time.record_answer(MS(1_000), MS(3_000), at(12_900), margin), None);
        // 10 s on the server, 1 to 3.1 s here.
        assert_eq!(time.record_answer(MS(4_000), MS(4_100), at(22_900), margin), Some(MS(9_000)));
        assert_eq!(time.record_answer(MS(14_000), MS(14_100), at(23_900), margin), None, "told once");
        assert_eq!(
            time.record_answer(MS(15_000), MS(15_100), at(26_000), margin),
            Some(MS(1_200)),
            "and again"
        );
        assert_eq!(
            time.record_answer(MS(17_000), MS(17_100), at(3_900), margin),
            None,
            "the server's clock was set back"
        );
        time.forget();
        assert_eq!(time.record_answer(MS(18_000), MS(18_100), at(90_000), margin), None, "another server");
    }
}
