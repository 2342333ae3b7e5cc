//! A breaker as a program states it, and the window in which it counts calls.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::Rate;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::rates::LONGEST_PERIOD;
use tokio::time::Instant;

/// An error of a handler.
type AnyError = dyn StdError + Send + Sync;
type Counts = Arc<dyn Fn(&AnyError) -> bool + Send + Sync>;

/// When a [limit](super::Limit::breaker) lets no message of a key begin: while too many of those before failed.
///
/// A breaker is *closed* as long as all is well. It *opens* when the [share](Self::failure_rate) of failures among the
/// [last calls](Self::calls) of one consumer is reached, and all of them ended in the [window](Self::window): then no message of the key
/// begins, in any process.
/// After [a time](Self::open_for) one message tries. If it fails, the breaker stays open for that time again. If it succeeds, it is closed:
/// each process begins with 2 messages at once and one more for each that succeeds, until 64 are.
///
/// ```
/// use std::time::Duration;
/// use millstream_engine::{Breaker, Limit};
///
/// let breaker = Breaker::new().failure_rate(60).calls(10).open_for(Duration::from_secs(15));
/// let limit = Limit::by_header("payments", "x-provider").breaker(breaker);
/// # let _ = limit;
/// ```
#[derive(Clone)]
pub struct Breaker {
    percent: u8,
    calls: u32,
    window: Duration,
    open_for: Duration,
    counts: Option<Counts>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

impl Breaker {
    /// Creates a breaker with the defaults.
    #[must_use]
    pub const fn new() -> Self {
        let (window, open_for) = (Duration::from_secs(60), Duration::from_secs(30));
        Self { percent: 50, calls: 20, window, open_for, counts: None }
    }

    /// Sets the share of calls that have failed when it opens, in percent, from 1 to 100. Default: 50.
    #[must_use]
    pub fn failure_rate(mut self, percent: u8) -> Self {
        self.percent = percent;
        self
    }

    /// Sets how many of the last calls count, from 1 to 10,000. As many must have ended in the [window](Self::window). Default: 20.
    #[must_use]
    pub fn calls(mut self, calls: u32) -> Self {
        self.calls = calls;
        self
    }

    /// Sets how long a call counts, from 10 milliseconds to an hour. Default: a minute. If fewer than [`calls`](Self::calls) of them end in it, the
    /// breaker never opens: it has to be longer than calls × the time that one takes to fail ÷ the number that run at once.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Sets how long it stays open before a message tries, from 10 milliseconds to 31 days. Default: 30 seconds. While one that tries takes
    /// longer than this, another one tries too.
    #[must_use]
    pub fn open_for(mut self, time: Duration) -> Self {
        self.open_for = time;
        self
    }

    /// Sets which errors count as failures. Default: all, with which a handler asks for a retry. Panics and timeouts always count; dead
    /// letters and snoozed messages never do. What counts neither as a failure nor as a success says nothing.
    #[must_use]
    pub fn counts(mut self, counts: impl Fn(&AnyError) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Some(Arc::new(counts));
        self
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`].
    pub fn check(&self) -> Result<()> {
        let wrong = |why: &str| Err(Error::new(ErrorKind::InvalidConfig, why.to_owned()));
        let shortest = Duration::from_millis(10);
        if !(1..=100).contains(&self.percent) {
            return wrong("a breaker opens at 1 to 100 percent");
        }
        if !(1..=10_000).contains(&self.calls) {
            return wrong("a breaker looks at the last 1 to 10,000 calls");
        }
        if self.window < shortest || self.window > Duration::from_secs(3_600) {
            return wrong("the window of a breaker is 10 ms to 1 hour");
        }
        if self.open_for < shortest || self.open_for > LONGEST_PERIOD {
            return wrong("a breaker is open for 10 ms to 31 days");
        }
        Ok(())
    }

    /// Returns how long it stays open.
    pub(super) const fn open_time(&self) -> Duration {
        self.open_for
    }

    /// Returns how long a call counts at most.
    pub(super) const fn counts_for(&self) -> Duration {
        self.window
    }

    /// Returns the rate at which messages try.
    pub(super) const fn probes(&self) -> Rate {
        Rate::new(1, self.open_for)
    }

    /// Whether this error counts as a failure.
    pub(super) fn counts_error(&self, error: &AnyError) -> bool {
        self.counts.as_ref().is_none_or(|counts| counts(error))
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percent, calls, window, open_for, .. } = self;
        f.debug_struct("Breaker")
            .field("percent", percent)
            .field("calls", calls)
            .field("window", window)
            .field("open_for", open_for)
            .finish_non_exhaustive()
    }
}

/// Calls that are enough after a breaker was open.
const MIN_WHILE_RAMPING: usize = 2;

/// The last calls.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// When each of them ended, and whether it failed, oldest first.
    calls: VecDeque<(Instant, bool)>,
    failures: usize,
}

impl Window {
    /// Records a call that ends now.
    pub(super) fn record(&mut self, breaker: &Breaker, now: Instant, failed: bool) {
        self.calls.push_back((now, failed));
        self.failures += usize::from(failed);
        let is_over = |at: &mut (Instant, bool)| now.saturating_duration_since(at.0) > breaker.window;
        while self.calls.len() > breaker.calls as usize || self.calls.front_mut().is_some_and(is_over) {
            let (_, failed) = self.calls.pop_front().unwrap_or((now, false));
            self.failures -= usize::from(failed);
        }
    }

    /// Returns how many calls there were, and how many of them failed, if that opens the breaker.
    pub(super) fn trips(&self, breaker: &Breaker, ramping: bool) -> Option<(usize, usize)> {
        let (calls, enough) = (self.calls.len(), breaker.calls as usize);
        let enough = if ramping { enough.min(MIN_WHILE_RAMPING) } else { enough };
        let reached = self.failures * 100 >= calls * usize::from(breaker.percent);
        (calls >= enough && self.failures > 0 && reached).then_some((calls, self.failures))
    }

    /// Forgets all calls.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_at_its_share_of_the_last_calls_in_the_window() {
        let breaker = Breaker::new().calls(4).window(Duration::from_secs(10));
        let (mut window, began) = (Window::default(), Instant::now());
        for (time, failed, opens) in [
            (0, true, false),
            (1, true, false),
            (2, false, false),
            (3, false, true),
            // The first failure is no longer one of the last four.
            (4, false, false),
            (5, true, false),
            (6, true, true),
            // Two of them are over.
            (16, true, false),
            (16, true, false),
            (16, true, true),
            (100, true, false),
        ] {
            window.record(&breaker, began + Duration::from_secs(time), failed);
            assert_eq!(window.trips(&breaker, false).is_some(), opens, "at {time}");
        }
    }

    #[test]
    fn two_failures_are_enough_after_it_was_open() {
        let (breaker, mut window, now) = (Breaker::new(), Window::default(), Instant::now());
        window.record(&breaker, now, true);
        assert_eq!(window.trips(&breaker, true), None);
        window.record(&breaker, now, true);
        assert_eq!(window.trips(&breaker, true), Some((2, 2)));
        assert_eq!(window.trips(&breaker, false), None);
        window.clear();
        assert_eq!(window.trips(&breaker, true), None);
    }

    #[test]
    fn numbers_have_bounds() {
        Breaker::new().check().expect("the defaults");
        for wrong in [
            Breaker::new().failure_rate(0),
            Breaker::new().failure_rate(101),
            Breaker::new().calls(0),
            Breaker::new().calls(10_001),
            Breaker::new().window(Duration::ZERO),
            Breaker::new().open_for(Duration::ZERO),
            Breaker::new().open_for(Duration::MAX),
        ] {
            wrong.check().expect_err("refused");
        }
    }
}
