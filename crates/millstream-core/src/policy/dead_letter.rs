//! Policies that decide whether a message that is given up is kept.

use std::fmt;

use crate::dead_letters::Reason;

/// Decision about a message that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep it with the group's dead letters.
    Keep,
    /// Drop it. It is counted as discarded and cannot be replayed.
    Discard,
}

/// Decides whether a message that is given up is kept.
pub trait DeadLetterPolicy: fmt::Debug + Send + Sync {
    /// Returns the verdict on a message that was given up for `reason` after `attempts` attempts, the last of which
    /// failed with `error`.
    fn judge(&self, reason: &Reason, attempts: u32, error: &str) -> Verdict;
}

/// Keeps every dead letter. The default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep;

impl DeadLetterPolicy for Keep {
    fn judge(&self, _: &Reason, _: u32, _: &str) -> Verdict {
        Verdict::Keep
    }
}

/// Drops messages that the handler failed on or rejected. Messages that could not be read are kept all the same: no
/// handler has ever seen them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discard;

impl DeadLetterPolicy for Discard {
    fn judge(&self, reason: &Reason, _: u32, _: &str) -> Verdict {
        match reason {
            Reason::Exhausted | Reason::Rejected => Verdict::Discard,
            _ => Verdict::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_could_read_is_kept() {
        assert_eq!(Discard.judge(&Reason::Exhausted, 3, "x"), Verdict::Discard);
        assert_eq!(Discard.judge(&Reason::Undecodable, 0, "x"), Verdict::Keep);
        assert_eq!(Keep.judge(&Reason::Exhausted, 3, "x"), Verdict::Keep);
    }
}
