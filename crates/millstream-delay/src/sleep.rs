//! Sleeps until a point in time, more precisely than the runtime's timer.
//!
//! Tokio's timer counts milliseconds and rounds up, and so does the poll beneath it: one wakes 1.1 ms late (the median;
//! the test below measures it). For the last stretch a dedicated thread waits instead, one for the whole process. It is
//! 0.1 ms late, and half of that is the slack that Linux gives its timers. It costs nothing while nothing sleeps.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant as Wall};

use millstream_core::Backend;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Part of a sleep that is left to the thread: more than the lateness of the runtime's timer.
const STRETCH: Duration = Duration::from_millis(3);

/// Longest sleep that may be configured: a day.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 3_600);

/// How loops of a backend sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// By the runtime's clock alone, which tests can pause: for a backend in this process, which uses the same clock.
    Runtime,
    /// By the runtime's clock, and by the timer thread for the last milliseconds.
    Precise,
}

impl Sleep {
    /// Returns the kind of sleep for `backend`.
    pub(crate) fn beside(backend: &Backend) -> Self {
        if backend.is_in_process() { Self::Runtime } else { Self::Precise }
    }

    /// Sleeps until `deadline`, never shorter.
    pub(crate) async fn until(self, deadline: Instant) {
        if self == Self::Precise {
            let coarse = deadline.checked_sub(STRETCH).unwrap_or(deadline);
            if Instant::now() < coarse {
                tokio::time::sleep_until(coarse).await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !left.is_zero()
                && let Some(timer) = timer()
            {
                // Waits for the time left, not for the deadline: under a paused clock the deadline may be far away.
                timer.after(left.min(STRETCH)).await;
            }
        }
        if Instant::now() < deadline {
            tokio::time::sleep_until(deadline).await;
        }
    }
}

/// Timer thread, and the sleeps that wait for it.
struct Timer {
    sleepers: Mutex<BinaryHeap<Reverse<Sleeper>>>,
    earlier: Condvar,
}

struct Sleeper {
    at: Wall,
    wake: oneshot::Sender<()>,
}

fn timer() -> Option<&'static Timer> {
    static TIMER: OnceLock<Option<&'static Timer>> = OnceLock::new();
    *TIMER.get_or_init(|| {
        let timer: &'static Timer =
            Box::leak(Box::new(Timer { sleepers: Mutex::default(), earlier: Condvar::new() }));
        let started = thread::Builder::new().name("millstream-timer".into()).spawn(|| timer.run());
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread for precise timers: they are up to a millisecond late");
        }
        started.is_ok().then_some(timer)
    })
}

impl Timer {
    async fn after(&self, left: Duration) {
        let (wake, woken) = oneshot::channel();
        self.sleepers().push(Reverse(Sleeper { at: Wall::now() + left, wake }));
        self.earlier.notify_one();
        // An error would mean that the thread has ended: the caller checks the clock.
        let _ = woken.await;
    }

    fn sleepers(&self) -> MutexGuard<'_, BinaryHeap<Reverse<Sleeper>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut sleepers = self.sleepers();
        loop {
            let Some(Reverse(head)) = sleepers.peek() else {
                sleepers = self.earlier.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = head.at.saturating_duration_since(Wall::now());
            if left.is_zero() {
                if let Some(Reverse(head)) = sleepers.pop() {
                    // An error means that the sleep was cancelled, which the thread need not know.
                    let _ = head.wake.send(());
                }
            } else {
                let waited = self.earlier.wait_timeout(sleepers, left);
                sleepers = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[tokio::test]
    async fn it_never_wakes_early_and_those_who_give_up_do_no_harm() {
        let given_up = Sleep::Precise.until(Instant::now() + MS(1));
        drop(tokio::time::timeout(Duration::ZERO, given_up).await);
        let sleeps = (0..50).map(|nth| async move {
            let deadline = Instant::now() + Duration::from_micros(nth * 137);
            Sleep::Precise.until(deadline).await;
            assert!(Instant::now() >= deadline);
        });
        futures_util::future::join_all(sleeps).await;
    }

    /// Measures how late both are, in microseconds: `cargo test -p millstream-delay --lib late -- --ignored --nocapture`.
    #[tokio::test]
    #[ignore = "a measurement: it prints how late sleeps end, which depends on the machine"]
    async fn how_late_it_is() {
        for sleep in [Sleep::Runtime, Sleep::Precise] {
            let mut late = Vec::new();
            for nth in 0..1_000u64 {
                let deadline = Instant::now() + Duration::from_micros(1_000 + nth * 7_919 % 9_000);
                sleep.until(deadline).await;
                late.push(deadline.elapsed().as_micros());
            }
            late.sort_unstable();
            println!("{sleep:?}: p50 {} p99 {} max {}", late[500], late[990], late[999]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn under_a_paused_clock_it_ends_when_that_says_so() {
        let start = Instant::now();
        Sleep::Runtime.until(start + MS(90_000)).await;
        assert_eq!(start.elapsed(), MS(90_000));
        Sleep::Precise.until(start + MS(180_000)).await;
        assert!(start.elapsed() >= MS(180_000));
    }
}
