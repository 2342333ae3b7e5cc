//! Scales a case to a smaller or larger one of the same kind.

use std::time::Duration;

use crate::run::Case;

/// Minimum number of messages: fewer are meaningless, and some cases need one for each task or partition.
const LEAST_MESSAGES: f64 = 1_000.0;
const LEAST_STORED: f64 = 10.0;
const LEAST_SECONDS: f64 = 0.3;

impl Case {
    /// Multiplies its messages and seconds, within reasonable limits.
    pub(super) fn scale(&mut self, factor: f64) {
        // A factor of 1 leaves the entry unchanged.
        if (factor - 1.0).abs() < f64::EPSILON {
            return;
        }
        let messages = |it: &mut u64| *it = (*it as f64 * factor).ceil().max(LEAST_MESSAGES) as u64;
        let stored = |it: &mut u64| {
            if *it > 0 {
                *it = (*it as f64 * factor).ceil().max(LEAST_STORED) as u64;
            }
        };
        let lasts = |it: &mut Duration| {
            *it = Duration::from_secs_f64((it.as_secs_f64() * factor).max(LEAST_SECONDS));
        };
        match self {
            Self::Produce(it) => messages(&mut it.messages.messages),
            Self::Consume(it) => {
                messages(&mut it.messages.messages);
                stored(&mut it.pending);
            }
            Self::E2e(it, _) => lasts(&mut it.seconds),
            Self::Schedule(it) => {
                messages(&mut it.messages.messages);
                stored(&mut it.waiting);
            }
            Self::Late(it, _) => lasts(&mut it.seconds),
            Self::Retry(it) => {
                messages(&mut it.messages.messages);
                stored(&mut it.parked);
            }
            Self::Memory(it, _) => messages(&mut it.messages.messages),
            Self::Operate(it, _) => messages(&mut it.messages),
            Self::Idle(it) => {
                lasts(&mut it.settle);
                lasts(&mut it.seconds);
            }
            // Its duration is determined by the ttl of the lease.
            Self::Takeover(_) => {}
        }
    }
}
