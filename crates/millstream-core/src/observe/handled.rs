//! Results of handling a message, and causes of failures, as events and metrics name them.

use crate::dead_letters::Reason;

/// Result of handling a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Handled {
    /// The handler returned [`Outcome::Ack`](crate::Outcome::Ack) or [`Outcome::Reply`](crate::Outcome::Reply).
    Acked,
    /// The attempt failed, and the message is retried.
    Retried,
    /// The message was given up and kept as a dead letter.
    Dead,
    /// The handler postponed the message, without using an attempt.
    Snoozed,
    /// The message was given up and dropped by the dead-letter policy, or was over a limit that drops.
    Discarded,
    /// The message was acknowledged without the handler: its operation was done already, or another message runs it.
    Duplicate,
    /// The message was acknowledged without the handler: the check before its redelivery found that it was handled.
    Checked,
    /// The message was cancelled from outside, before its handler began or after it was asked to stop.
    Cancelled,
}

impl Handled {
    /// All variants.
    pub const ALL: [Self; 8] = [
        Self::Acked,
        Self::Retried,
        Self::Dead,
        Self::Snoozed,
        Self::Discarded,
        Self::Duplicate,
        Self::Checked,
        Self::Cancelled,
    ];

    /// Returns the word for it in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Retried => "retried",
            Self::Dead => "dead",
            Self::Snoozed => "snoozed",
            Self::Discarded => "discarded",
            Self::Duplicate => "duplicate",
            Self::Checked => "checked",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Cause of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The handler returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The handler exceeded its time limit.
    Timeout,
    /// The handler rejected the message: another attempt would not help.
    Rejected,
    /// The codec could not read the payload.
    Undecodable,
    /// The entry is not a message.
    Malformed,
    /// Processes died while they handled it.
    Crashed,
}

impl Cause {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::Error,
        Self::Panic,
        Self::Timeout,
        Self::Rejected,
        Self::Undecodable,
        Self::Malformed,
        Self::Crashed,
    ];

    /// Returns the word for it in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::Malformed => "malformed",
            Self::Crashed => "crashed",
        }
    }

    /// Returns the reason with which a message is given up for this cause.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Error | Self::Panic | Self::Timeout => Reason::Exhausted,
            Self::Rejected => Reason::Rejected,
            Self::Undecodable => Reason::Undecodable,
            Self::Malformed => Reason::Malformed,
            Self::Crashed => Reason::Crashed,
        }
    }
}
