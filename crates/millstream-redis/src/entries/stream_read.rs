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

/// Returns the requests by commands: one reads as many new entries of one stream as of the other.
pub(crate) fn together(asks: &[StreamRead]) -> impl Iterator<Item = &[StreamRead]> {
    let even = asks.iter().all(|ask| ask.after.is_none() && ask.count == asks[0].count);
    asks.chunks(if even { 2 } else { 1 })
}

/// What commands have read for these requests.
pub(crate) struct Read<'a> {
    asks: &'a [StreamRead],
    pub(crate) pages: Vec<Page>,
    /// Whether a command has read nothing, since the gate is gone.
    pub(crate) gone: bool,
}

impl<'a> Read<'a> {
    pub(crate) fn new(asks: &'a [StreamRead]) -> Self {
        Self { asks, pages: asks.iter().map(|_| Page::default()).collect(), gone: false }
    }

    /// Adds the entries of a stream.
    pub(crate) fn add(&mut self, stream: Option<usize>, entries: Vec<RawEntry>) {
        let page = self.asks.iter().zip(&mut self.pages).find(|(ask, _)| Some(ask.stream) == stream);
        if let Some((_, page)) = page {
            page.entries = entries;
        }
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
    /// One page per request; `None` if another reader had begun, and this one has begun anew.
    pub(crate) pages: Option<Vec<Page>>,
    /// Whether pending entries have notes. Only requested together with pending entries, otherwise false.
    pub(crate) noted: bool,
}
