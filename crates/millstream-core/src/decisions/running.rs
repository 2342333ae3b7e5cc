//! The messages whose handlers run now, as a member says with its heartbeats.

use std::time::Duration;

use crate::id::MessageId;
use crate::message::receipt::Source;
use crate::timestamp::Timestamp;
use crate::topic::Partition;

/// How long a handler has run before its message is named: a shorter one is over before somebody looks.
pub const NAMED_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of messages that a member names.
pub const MAX_NAMED: usize = 100;

/// Messages that a member runs: those whose handlers have run for [`NAMED_AFTER`] or longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// The first [`MAX_NAMED`] of them, longest first.
    pub messages: Vec<RunningMessage>,
    /// Number of the others.
    pub more: u64,
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
