//! Rate limit: computes how many letters may be sent now.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum time between two steps: shorter ones would mean one request per message.
const SLICE: Duration = Duration::from_millis(100);
/// Longest interval between two messages, a day: nobody waits for a replay that is slower.
pub(super) const LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// Maximum time that is made up for after a delay.
const BURST: Duration = Duration::from_secs(1);

/// Rate limit per second, or no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Time between two messages; zero for no limit.
    interval: Duration,
    /// Time from which the next message may be sent; `None` before the first one.
    next: Option<Instant>,
}

impl Pace {
    pub(super) fn new(per_second: Option<f64>) -> Self {
        let interval =
            per_second.map(|rate| Duration::try_from_secs_f64(rate.recip()).unwrap_or(LONGEST).min(LONGEST));
        Self { interval: interval.unwrap_or_default(), next: None }
    }

    /// Returns how many messages may be sent now.
    pub(super) fn room(&mut self, now: Instant) -> usize {
        if self.interval.is_zero() {
            return usize::MAX;
        }
        // Time missed before `earliest` is not made up for.
        let earliest = now.checked_sub(BURST.max(self.interval)).unwrap_or(now);
        let next = self.next.unwrap_or(now).max(earliest);
        self.next = Some(next);
        match now.checked_duration_since(next) {
            Some(late) => 1 + usize::try_from(late.as_nanos() / self.interval.as_nanos()).unwrap_or(0),
            None => 0,
        }
    }

    /// Records that `count` messages were sent.
    pub(super) fn spend(&mut self, count: usize, now: Instant) {
        let took = self.interval.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let next = self.next.unwrap_or(now);
        self.next = Some(next.checked_add(took).unwrap_or(next));
    }

    /// Returns how long to wait before the next step.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let next = self.next.filter(|_| !self.interval.is_zero());
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now).max(SLICE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many messages are sent within a time, in steps.
    fn count(rate: f64, time: Duration) -> usize {
        let start = Instant::now();
        let (mut pace, mut now, mut gone) = (Pace::new(Some(rate)), start, 0);
        while now < start + time {
            let room = pace.room(now);
            pace.spend(room, now);
            gone += room;
            now += pace.wait(now);
        }
        gone
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_go_in_a_second() {
        for (rate, seconds, expected) in [(0.5, 10, 5), (1.0, 10, 10), (50.0, 10, 500), (5_000.0, 10, 50_000)]
        {
            let gone = count(rate, Duration::from_secs(seconds));
            let off = gone.abs_diff(expected);
            assert!(off * 50 <= expected.max(50), "{rate} a second: {gone} in {seconds} s");
        }
        let mut free = Pace::new(None);
        let now = Instant::now();
        free.spend(1_000, now);
        assert_eq!((free.room(now), free.wait(now)), (usize::MAX, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_rate_is_one_a_day() {
        let start = Instant::now();
        for rate in [f64::MIN_POSITIVE, 1e-300, 5e-324, 1e-9] {
            let mut pace = Pace::new(Some(rate));
            assert_eq!(pace.room(start), 1);
            pace.spend(1, start);
            assert_eq!((pace.room(start), pace.wait(start)), (0, LONGEST), "{rate}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_made_up_for_by_a_second_at_most() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(10.0));
        assert_eq!(pace.room(start), 1);
        pace.spend(1, start);
        let later = start + Duration::from_secs(3_600);
        assert_eq!(pace.room(later), 11, "those of the last second, and this one");
    }
}
