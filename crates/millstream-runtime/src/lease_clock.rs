//! The clock that leases are counted by: the runtime's, and the time that this machine was suspended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_core::Backend;
use millstream_core::suspension::BootClock;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often who sleeps until a deadline looks at the clock: a timer stands still while the machine is suspended, and so
/// ends late by that time.
const LOOK: Duration = Duration::from_millis(500);

/// Tokio's clock is `CLOCK_MONOTONIC`, which on Linux does not count suspended time; the server goes on counting. So
/// deadlines of leases, and the times that they are counted from, are taken from this clock and compared with it.
///
/// Where the backend has no [`BootClock`] (in tests, which pause the runtime's clock), this is the runtime's clock and
/// what [`missed`](Self::missed) has added.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    base: Instant,
    /// With its time at `base`.
    boot: Option<(Arc<dyn BootClock>, Duration)>,
    /// What neither clock has counted, in nanoseconds.
    missed: AtomicU64,
    /// Rung when that has grown.
    jumped: Notify,
}

impl LeaseClock {
    pub(crate) fn of(backend: &Backend) -> Arc<Self> {
        let boot = backend.boot_clock.as_ref().map(|clock| (clock.clone(), clock.elapsed()));
        Arc::new(Self { base: Instant::now(), boot, missed: AtomicU64::new(0), jumped: Notify::new() })
    }

    /// What time it is.
    pub(crate) fn now(&self) -> Instant {
        let now = if self.boot.is_some() { self.base } else { Instant::now() };
        self.at(now)
    }

    /// What time it is, if it is `now` by the runtime's clock. Costs one reading of the boot clock, which is a function
    /// call and no system call on Linux.
    pub(crate) fn at(&self, now: Instant) -> Instant {
        let counted = match &self.boot {
            Some((clock, then)) => self.base + clock.elapsed().saturating_sub(*then),
            None => now,
        };
        counted + Duration::from_nanos(self.missed.load(Ordering::Acquire))
    }

    /// The time since this clock was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now().saturating_duration_since(self.base)
    }

    /// So much time has passed that was not counted: from now on it is.
    pub(crate) fn missed(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // It never wraps: that would take 584 years.
        self.missed.fetch_add(nanos, Ordering::AcqRel);
        self.jumped.notify_waiters();
    }

    /// Sleeps until this time. After a suspension it ends at most half a second late.
    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        loop {
            // Made before the look, so that a jump in between is not missed.
            let jumped = self.jumped.notified();
            let left = deadline.saturating_duration_since(self.now());
            if left.is_zero() {
                return;
            }
            let pause = if self.boot.is_some() { left.min(LOOK) } else { left };
            tokio::select! {
                biased;
                () = jumped => {}
                () = sleep(pause) => {}
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The runtime's clock, and what a test says that the machine was suspended.
    #[derive(Clone, Debug)]
    pub(crate) struct Suspended(Arc<Mutex<Duration>>, Instant);

    impl Suspended {
        pub(crate) fn new() -> Self {
            Self(Arc::default(), Instant::now())
        }

        pub(crate) fn for_time(&self, time: Duration) {
            *self.0.lock().expect("lock") += time;
        }

        /// A clock over it.
        pub(crate) fn clock(&self) -> Arc<LeaseClock> {
            let boot: Arc<dyn BootClock> = Arc::new(self.clone());
            let boot = Some((boot.clone(), boot.elapsed()));
            let (missed, jumped) = (AtomicU64::new(0), Notify::new());
            Arc::new(LeaseClock { base: Instant::now(), boot, missed, jumped })
        }
    }

    impl BootClock for Suspended {
        fn elapsed(&self) -> Duration {
            self.1.elapsed() + *self.0.lock().expect("lock")
        }
    }

    /// The runtime's clock alone.
    pub(crate) fn plain() -> Arc<LeaseClock> {
        let (missed, jumped) = (AtomicU64::new(0), Notify::new());
        Arc::new(LeaseClock { base: Instant::now(), boot: None, missed, jumped })
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_counts_suspended_time_and_what_was_missed() {
        let suspended = Suspended::new();
        let clock = suspended.clock();
        let start = clock.now();
        tokio::time::advance(SECOND).await;
        suspended.for_time(60 * SECOND);
        clock.missed(5 * SECOND);
        assert_eq!(clock.now() - start, 66 * SECOND);
        assert_eq!(clock.at(Instant::now()), clock.now());
        let plain = plain();
        tokio::time::advance(SECOND).await;
        assert_eq!((plain.elapsed(), plain.now()), (SECOND, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_notices_a_suspension_soon_and_a_jump_at_once() {
        let suspended = Suspended::new();
        let clock = suspended.clock();
        let sleeping = |seconds: u32| {
            let (clock, deadline) = (clock.clone(), clock.now() + seconds * SECOND);
            tokio::spawn(async move { clock.sleep_until(deadline).await })
        };
        let (soon, late) = (sleeping(60), sleeping(3_600));
        tokio::time::sleep(SECOND).await;
        suspended.for_time(600 * SECOND);
        let start = Instant::now();
        soon.await.expect("no panic");
        assert!(start.elapsed() <= LOOK, "{:?}", start.elapsed());
        assert!(!late.is_finished());
        let start = Instant::now();
        clock.missed(3_600 * SECOND);
        late.await.expect("no panic");
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
