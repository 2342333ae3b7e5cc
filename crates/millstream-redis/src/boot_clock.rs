//! Boot clock of the system, which continues while the machine is suspended.

use std::time::Duration;

use millstream_core::suspension::BootClock;
use rustix::time::{ClockId, clock_gettime};

/// On Linux `CLOCK_BOOTTIME`. On macOS `CLOCK_MONOTONIC`, which includes the time asleep there; the clock of `std` is
/// `CLOCK_UPTIME_RAW`, which does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(target_vendor = "apple")]
const CLOCK: ClockId = ClockId::Monotonic;

/// Boot clock of the system. Reading it takes no system call where the kernel offers that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemBootClock;

impl BootClock for SystemBootClock {
    fn elapsed(&self) -> Duration {
        // Never negative: the clock starts at 0 when the machine boots.
        Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_goes_on_like_the_monotonic_clock_while_nothing_is_suspended() {
        let (clock, boot, start) = (SystemBootClock, SystemBootClock.elapsed(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let counted = clock.elapsed() - boot;
        assert!(counted >= Duration::from_millis(20) && counted <= start.elapsed() + Duration::from_secs(60));
    }

    /// Measures one reading: `cargo test -p millstream-redis --lib boot_clock -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement: it prints how long a reading takes, which depends on the machine"]
    fn what_a_reading_costs() {
        let (start, rounds) = (Instant::now(), 5_000_000);
        let last = (0..rounds).map(|_| SystemBootClock.elapsed()).max();
        println!("boot clock: {:?} each, {last:?}", start.elapsed() / rounds);
        let start = Instant::now();
        let last = (0..rounds).map(|_| Instant::now()).max();
        println!("Instant::now: {:?} each, {last:?}", start.elapsed() / rounds);
    }
}
