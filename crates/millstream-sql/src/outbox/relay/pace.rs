//! Pace at which an outbox is read, as a pure function of what was found.

use std::time::Duration;

/// First pause after a round that found nothing. With every further one it doubles.
const FIRST: Duration = Duration::from_millis(5);

/// Longest pause while the table is empty: the delay of a row whose notification was lost.
const IDLE: Duration = Duration::from_secs(2);

/// Longest pause while rows wait for older transactions to end, of which there is no notification.
const WATCHING: Duration = Duration::from_millis(100);

/// Number of rounds in a row that found nothing to send.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace(u32);

impl Pace {
    /// Begins with the shortest pause again, since something was sent or notified.
    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Returns the pause after a round that found nothing to send. `is_waiting`: there are rows that cannot be sent yet.
    pub(super) fn next(&mut self, is_waiting: bool) -> Duration {
        let pause = FIRST * 2_u32.saturating_pow(self.0.min(16));
        self.0 = self.0.saturating_add(1);
        pause.min(if is_waiting { WATCHING } else { IDLE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit_and_start_again() {
        let mut pace = Pace::default();
        let pauses: Vec<_> = (0..12).map(|_| pace.next(false).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000, 2_000]);
        assert_eq!(pace.next(true).as_millis(), 100);
        pace.reset();
        assert_eq!(pace.next(true).as_millis(), 5);
        (0..100).for_each(|_| assert!(pace.next(false) <= IDLE));
    }
}
