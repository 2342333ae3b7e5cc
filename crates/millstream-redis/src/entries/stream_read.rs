//! What a fenced read asks for, and what it returns.

use millstream_core::id::MessageId;

use crate::conn::replies::reply::RawEntry;

/// Request for entries of one stream.
#[derive(Clone, Copy)]
pub(crate) struct StreamRead {
    pub(crate) stream: usize,
    pub(crate) count: usize,
    /// `None` for new entries, or the id above which to read pending ones.
    pub(crate) after: Option<MessageId>,
}

impl StreamRead {
    /// Returns the number of commands that this request takes in a transaction.
    pub(crate) fn commands(self) -> usize {
        1 + usize::from(self.after.is_some())
    }
}

/// Entries read from one stream.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<RawEntry>,
    /// Delivery count of each pending entry; empty for new entries.
    pub(crate) deliveries: Vec<(MessageId, u32)>,
}

/// Position of the group when a reader starts over.
pub(crate) struct Position {
    /// Last delivered id of each stream.
    pub(crate) delivered: [MessageId; 2],
}

/// Ids above which entries of the streams and heads of the schedule count as new.
#[derive(Clone, Copy)]
pub(crate) struct Above {
    pub(crate) streams: [MessageId; 2],
    /// Last seen id in the stream of schedule heads.
    pub(crate) wake: MessageId,
}

/// What ended a wait: new entries, a new head of the schedule, or neither.
#[derive(Default)]
pub(crate) struct Woke {
    /// Index and first new id of each stream that has a new entry.
    pub(crate) streams: Vec<(usize, MessageId)>,
    /// Id of the newest schedule head, if there is a new one.
    pub(crate) wake: Option<MessageId>,
}

/// Result of a request.
pub(crate) struct Answer {
    pub(crate) woke: Woke,
    /// One page per request; `None` if the fence had been touched and nothing was done.
    pub(crate) pages: Option<Vec<Page>>,
    /// Whether pending entries have notes. Only requested together with pending entries, otherwise false.
    pub(crate) noted: bool,
}
