//! What handlers do with a message: a pure function of seed, message and attempt, but for how often it is put off.

use std::time::Duration;

use fastrand::Rng;
use millstream_core::{MessageId, Outcome, Timestamp};
use millstream_testkit::history::End;

use super::scenario::Scenario;

/// What a handler says in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    Done,
    Error,
    Panic,
    Reject,
    After(Duration),
    At(Timestamp),
    Snooze(Duration),
    /// The process dies with it.
    Die,
}

/// What a handler does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) takes: Duration,
    pub(crate) say: Say,
}

impl Behaviour {
    pub(crate) fn of(scenario: &Scenario, message: u64, attempt: u32, origin: MessageId) -> Self {
        // What the message is like does not depend on the attempt; how long an attempt takes does.
        let mut rng = Rng::with_seed(scenario.seed ^ message.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (dice, bad_attempts) = (rng.f64(), rng.u32(1..=scenario.attempts + 1));
        let after = Duration::from_millis(rng.u64(0..5_000));
        let bad = match rng.u8(0..10) {
            0..4 => Say::Error,
            4..6 => Say::Panic,
            6 => Say::Reject,
            7 => Say::At(origin.timestamp().saturating_add(4 * after)),
            _ => Say::After(after),
        };
        let say = match () {
            () if dice < scenario.poison => Say::Die,
            () if dice < scenario.poison + scenario.failing && attempt <= bad_attempts => bad,
            // Now and then it is put off: sooner or later it is not.
            () if dice > 1.0 - scenario.failing / 2.0 && fastrand::bool() => Say::Snooze(after),
            () => Say::Done,
        };
        let mut rng = Rng::with_seed(rng.u64(..) ^ u64::from(attempt));
        let takes = match rng.u8(0..20) {
            0..12 => Duration::ZERO,
            12..18 => Duration::from_millis(rng.u64(1..100)),
            18 => Duration::from_millis(rng.u64(100..1_000)),
            _ => scenario.slow.mul_f64(rng.f64()),
        };
        Self { takes, say }
    }

    /// What the history has to say of its end.
    pub(crate) fn end(self, scenario: &Scenario, attempt: u32) -> End {
        let comes_back = |after| if attempt < scenario.attempts { End::Failed(after) } else { End::Dead };
        match self.say {
            Say::Done | Say::Die => End::Acked,
            Say::Error | Say::Panic => comes_back(scenario.retry_delay),
            Say::After(after) => comes_back(after),
            // Which is when it was stored and some time: perhaps now.
            Say::At(_) => comes_back(Duration::ZERO),
            Say::Snooze(after) => End::Snoozed(after),
            Say::Reject => End::Dead,
        }
    }

    pub(crate) fn outcome(self) -> Outcome {
        match self.say {
            Say::Done | Say::Die => Outcome::Ack,
            Say::Error => Outcome::retry("simulated error"),
            // Without the panic hook, which would print each.
            Say::Panic => std::panic::resume_unwind(Box::new("simulated panic")),
            Say::Reject => Outcome::dead_letter("simulated refusal"),
            Say::After(after) => Outcome::retry_after(after, "simulated wait"),
            Say::At(time) => Outcome::retry_at(time, "simulated appointment"),
            Say::Snooze(after) => Outcome::snooze(after),
        }
    }
}
