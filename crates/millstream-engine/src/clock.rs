//! Clock for leases and claims: the runtime's clock plus the time for which this machine was suspended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millstream_core::Backend;
use millstream_core::suspension::BootClock;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Interval at which a sleep until a deadline compares the clocks. A timer stands still while the machine is
/// suspended, so without the comparison the sleep would end late by the suspended time.
const CHECK_PERIOD: Duration = Duration::from_millis(500);
/// Grid of these comparisons.
const CHECK_STEP: Duration = Duration::from_millis(125);
/// Number of times in a period at which what is done once in it may be due.
const STEPS: u32 = 32;

/// Where the grid of this process begins.
static GRID: OnceLock<Instant> = OnceLock::new();

/// Clock for the deadlines of leases and claims, and for the times from which they are counted.
///
/// Tokio's clock is `CLOCK_MONOTONIC`, which on Linux does not count suspended time; the server's clock does. If the
/// backend has no [`BootClock`] (in tests, which pause the runtime's clock), this is the runtime's clock plus the
/// time added by [`add_missed`](Self::add_missed).
#[derive(Debug)]
pub struct LeaseClock {
    base: Instant,
    /// The boot clock, with its time at `base`.
    boot: Option<(Arc<dyn BootClock>, Duration)>,
    /// Where the grid of [`aligned`](Self::aligned) begins, unless each time is its own: with a backend in this process, whose
    /// users pause the runtime's clock.
    grid: Option<Instant>,
    /// Time that neither clock counted, in nanoseconds.
    missed: AtomicU64,
    /// Notified when `missed` has grown.
    jumped: Notify,
}

impl LeaseClock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn new(boot: Option<Arc<dyn BootClock>>) -> Arc<Self> {
        let boot = boot.map(|clock| (clock.clone(), clock.elapsed()));
        Arc::new(Self::starting(boot, None))
    }

    fn starting(boot: Option<(Arc<dyn BootClock>, Duration)>, grid: Option<Instant>) -> Self {
        Self { base: Instant::now(), boot, grid, missed: AtomicU64::new(0), jumped: Notify::new() }
    }

    /// Creates a clock that starts now, over the backend's boot clock.
    #[must_use]
    pub fn of(backend: &Backend) -> Arc<Self> {
        let boot = backend.boot_clock().map(|clock| (clock.clone(), clock.elapsed()));
        let grid = (!backend.is_in_process()).then(|| *GRID.get_or_init(Instant::now));
        Arc::new(Self::starting(boot, grid))
    }

    /// Returns when to do what is due at `at` and once in each `period`: then, or up to a thirty-second part of the period
    /// earlier, at a time at which others of this process are due too. They wake up together, and their requests are one
    /// write and one read of the connection.
    #[must_use]
    pub fn aligned(&self, at: Instant, period: Duration) -> Instant {
        self.grid.map_or(at, |grid| last_step(grid, at, period / STEPS))
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        let now = if self.boot.is_some() { self.base } else { Instant::now() };
        self.at(now)
    }

    /// Returns the current time, if it is `now` by the runtime's clock. This reads the boot clock once, which on
    /// Linux is a function call and not a system call.
    #[must_use]
    pub fn at(&self, now: Instant) -> Instant {
        let counted = match &self.boot {
            Some((clock, then)) => self.base + clock.elapsed().saturating_sub(*then),
            None => now,
        };
        counted + Duration::from_nanos(self.missed.load(Ordering::Acquire))
    }

    /// Returns the time since this clock started, to compare it with the server's clock.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now().saturating_duration_since(self.base)
    }

    /// Adds time that passed without being counted, as found by a comparison with the server's clock.
    pub fn add_missed(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // It never wraps: that would take 584 years.
        self.missed.fetch_add(nanos, Ordering::AcqRel);
        self.jumped.notify_waiters();
    }

    /// Sleeps until `deadline`. After a suspension it ends at most half a second late.
    pub async fn sleep_until(&self, deadline: Instant) {
        loop {
            // Created before the clock is read, so that a jump in between is not missed.
            let jumped = self.jumped.notified();
            let now = self.now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            let check = || {
                self.grid.map_or(CHECK_PERIOD, |grid| {
                    last_step(grid, now + CHECK_PERIOD, CHECK_STEP).saturating_duration_since(now)
                })
            };
            let pause = if self.boot.is_some() { left.min(check()) } else { left };
            tokio::select! {
                biased;
                () = jumped => {}
                () = sleep(pause) => {}
            }
        }
    }
}

/// Returns the last time of a grid that is not after `at`.
fn last_step(grid: Instant, at: Instant, step: Duration) -> Instant {
    let nanos = at.saturating_duration_since(grid).as_nanos();
    let beyond = nanos.checked_rem(step.as_nanos()).unwrap_or(0);
    at - Duration::from_nanos(u64::try_from(beyond).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use millstream_memory::SuspendableClock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_counts_suspended_and_missed_time() {
        let machine = SuspendableClock::new();
        let clock = LeaseClock::new(Some(Arc::new(machine.clone())));
        let start = clock.now();
        tokio::time::advance(SECOND).await;
        machine.suspend(60 * SECOND);
        clock.add_missed(5 * SECOND);
        assert_eq!(clock.now() - start, 66 * SECOND);
        assert_eq!(clock.at(Instant::now()), clock.now());
        let plain = LeaseClock::new(None);
        tokio::time::advance(SECOND).await;
        assert_eq!((plain.elapsed(), plain.now()), (SECOND, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_at_about_the_same_time_is_done_together_and_never_late() {
        let grid = Instant::now();
        let clock = LeaseClock::starting(None, Some(grid));
        let period = 32 * SECOND;
        for (at, expected) in [(0, 0), (999, 0), (1_000, 1), (1_999, 1), (32_500, 32)] {
            let at = grid + Duration::from_millis(at);
            assert_eq!(clock.aligned(at, period), grid + expected * SECOND);
            assert_eq!(clock.aligned(at, Duration::ZERO), at);
        }
        // A sleep ends exactly at its deadline all the same.
        tokio::time::advance(Duration::from_millis(60)).await;
        let machine = SuspendableClock::new();
        let boot = Some((Arc::new(machine.clone()) as Arc<dyn BootClock>, machine.elapsed()));
        let clock = LeaseClock::starting(boot, Some(grid));
        let deadline = clock.now() + Duration::from_millis(1_234);
        let began = Instant::now();
        clock.sleep_until(deadline).await;
        assert_eq!(began.elapsed(), Duration::from_millis(1_234));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_notices_a_suspension_soon_and_a_jump_at_once() {
        let machine = SuspendableClock::new();
        let clock = LeaseClock::new(Some(Arc::new(machine.clone())));
        let sleeping = |seconds: u32| {
            let (clock, deadline) = (clock.clone(), clock.now() + seconds * SECOND);
            tokio::spawn(async move { clock.sleep_until(deadline).await })
        };
        let (soon, late) = (sleeping(60), sleeping(3_600));
        tokio::time::sleep(SECOND).await;
        machine.suspend(600 * SECOND);
        let start = Instant::now();
        soon.await.expect("no panic");
        assert!(start.elapsed() <= CHECK_PERIOD, "{:?}", start.elapsed());
        assert!(!late.is_finished());
        let start = Instant::now();
        clock.add_missed(3_600 * SECOND);
        late.await.expect("no panic");
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
