//! Receipts: references to entries that were handed out.

use crate::id::MessageId;

/// Stream of a partition from which an entry was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The partition's log: new messages, for every group.
    Log,
    /// The group's own retry log.
    Retry,
}

/// Reference to an entry that was handed out, with which it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// The stream that the entry was read from.
    pub source: Source,
    /// Its id there.
    pub id: MessageId,
}
