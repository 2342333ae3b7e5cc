//! The messages whose handlers run now, and those that wait for limits, as a member says with its heartbeats.

use std::time::Duration;

use crate::decisions::limits::PermitKey;
use crate::id::MessageId;
use crate::message::receipt::Source;
use crate::timestamp::Timestamp;
use crate::topic::Partition;

/// How long a handler has run before its message is named: a shorter one is over before somebody looks.
pub const NAMED_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of running messages that a member names.
pub const MAX_NAMED: usize = 100;
/// Maximum number of waiting messages that a member names: each has the text of a key with it.
pub const MAX_WAITING_NAMED: usize = 20;

/// Messages that a member runs: those whose handlers have run for [`NAMED_AFTER`] or longer. And those that have waited for as long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// The first [`MAX_NAMED`] of them, longest first.
    pub messages: Vec<RunningMessage>,
    /// Number of the others.
    pub more: u64,
    /// The first [`MAX_WAITING_NAMED`] of those that wait for units of a limit, longest first.
    pub waiting: Vec<WaitingMessage>,
    /// Number of the others.
    pub more_waiting: u64,
}

/// Message that waits for units of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    /// The message, whose handler has not begun: since when it waits.
    pub message: RunningMessage,
    /// What it waits for.
    pub key: PermitKey,
}

/// Message whose handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningMessage {
    /// Its partition.
    pub partition: Partition,
    /// Stream that it was read from.
    pub source: Source,
    /// Id of the entry that is pending there: that of the pack, of a message in a pack.
    pub entry: MessageId,
    /// Id of the message in the log.
    pub origin: MessageId,
    /// Number of the attempt.
    pub attempt: u32,
    /// When the handler began, by the server's clock.
    pub since: Timestamp,
}
