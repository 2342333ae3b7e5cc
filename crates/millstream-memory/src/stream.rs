//! A stream of entries and a group's cursor in it, as Redis has them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use millstream_core::catalog::Start;
use millstream_core::log::{Entry, Fetched, Note, Receipt, Source};
use millstream_core::wire::{self, Fields};
use millstream_core::{Error, ErrorKind, MessageId, Result};

use crate::clock::Now;

/// Entries in the order of their ids.
///
/// A deque, not a tree: nearly everything is added at one end and dropped at the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    entries: VecDeque<(MessageId, Fields)>,
    last: MessageId,
}

impl Stream {
    /// Appends under the next id: the clock's, unless that one is not above the last.
    pub(crate) fn append(&mut self, now_ms: u64, fields: Fields) -> MessageId {
        let id = if now_ms > self.last.ms { MessageId::new(now_ms, 0) } else { self.last.next() };
        self.last = id;
        self.entries.push_back((id, fields));
        id
    }

    /// The largest id ever given.
    pub(crate) fn last(&self) -> MessageId {
        self.last
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The id above which whoever starts there reads.
    pub(crate) fn before(&self, start: Start) -> Result<MessageId> {
        match start {
            Start::Earliest => Ok(MessageId::ZERO),
            Start::Latest => Ok(self.last),
            Start::After(id) => Ok(id),
            Start::At(ms) => Ok(MessageId::new(ms, 0).previous()),
            other => {
                let message = format!("reading cannot start at {other:?} here");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    fn first_above(&self, id: MessageId) -> usize {
        self.entries.partition_point(|(entry, _)| *entry <= id)
    }

    pub(crate) fn count_above(&self, id: MessageId) -> usize {
        self.len() - self.first_above(id)
    }

    pub(crate) fn above(&self, id: MessageId) -> impl Iterator<Item = &(MessageId, Fields)> {
        self.entries.range(self.first_above(id)..)
    }

    fn position(&self, id: MessageId) -> Option<usize> {
        self.entries.binary_search_by_key(&id, |(entry, _)| *entry).ok()
    }

    pub(crate) fn get(&self, id: MessageId) -> Option<&Fields> {
        self.position(id).map(|at| &self.entries[at].1)
    }

    pub(crate) fn remove(&mut self, id: MessageId) -> Option<Fields> {
        let at = self.position(id)?;
        self.entries.remove(at).map(|(_, fields)| fields)
    }

    /// Drops everything below `id`; gives back how many.
    pub(crate) fn drop_below(&mut self, id: MessageId) -> usize {
        let count = self.entries.partition_point(|(entry, _)| *entry < id);
        self.entries.drain(..count).count()
    }
}

/// Where a group stands in a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Everything up to here was handed out.
    pub(crate) delivered: MessageId,
    /// What was handed out and not settled.
    pub(crate) pending: BTreeMap<MessageId, Pending>,
}

/// An entry that was handed out and not settled.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// How often it was handed out.
    pub(crate) deliveries: u32,
    /// What its owner noted of it: rare, so it stands elsewhere.
    pub(crate) held: Option<Box<Held>>,
}

/// A note whose wait is absolute: its own `after` says nothing.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    note: Note,
    /// In milliseconds since 1970.
    due: u64,
}

impl Held {
    pub(crate) fn new(note: &Note, now: Now) -> Self {
        let error = wire::cut(&note.error).to_owned();
        Self { due: now.due(note.after), note: Note { error, ..note.clone() } }
    }

    fn read(&self, now: Now) -> Note {
        Note { after: now.until(self.due), ..self.note.clone() }
    }
}

impl Cursor {
    pub(crate) fn at(delivered: MessageId) -> Self {
        Self { delivered, pending: BTreeMap::new() }
    }

    fn pending_above(&self, id: MessageId) -> impl Iterator<Item = (&MessageId, &Pending)> {
        self.pending.range((Bound::Excluded(id), Bound::Unbounded))
    }

    /// How many pending entries stand above `id`, counted up to `most`.
    pub(crate) fn count_pending(&self, id: MessageId, most: usize) -> usize {
        self.pending_above(id).take(most).count()
    }

    /// Hands out up to `max` new entries.
    pub(crate) fn read_new(&mut self, stream: &Stream, source: Source, max: usize, out: &mut Fetched) {
        for (id, fields) in stream.above(self.delivered).take(max) {
            self.delivered = *id;
            self.pending.insert(*id, Pending { deliveries: 1, held: None });
            let receipt = Receipt { source, id: *id };
            out.entries.push(Entry { receipt, deliveries: 1, fields: fields.clone(), note: None });
        }
    }

    /// Hands out up to `max` pending entries above `after` again; gives back the last id.
    pub(crate) fn read_pending(
        &mut self,
        stream: &Stream,
        source: Source,
        (after, now): (MessageId, Now),
        max: usize,
        out: &mut Fetched,
    ) -> MessageId {
        let mut last = after;
        let above = (Bound::Excluded(after), Bound::Unbounded);
        for (id, pending) in self.pending.range_mut(above).take(max) {
            last = *id;
            pending.deliveries = pending.deliveries.saturating_add(1);
            let receipt = Receipt { source, id: *id };
            match stream.get(*id) {
                Some(fields) => {
                    let note = pending.held.as_ref().map(|held| held.read(now));
                    let (deliveries, fields) = (pending.deliveries, fields.clone());
                    out.entries.push(Entry { receipt, deliveries, fields, note });
                }
                None => out.ghosts.push(receipt),
            }
        }
        last
    }

    /// Below this nothing is unread or pending.
    pub(crate) fn watermark(&self) -> MessageId {
        self.pending.first_key_value().map_or_else(|| self.delivered.next(), |(oldest, _)| *oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_also_when_the_clock_stands_or_goes_back() {
        let mut stream = Stream::default();
        let ids: Vec<_> = [5, 5, 4, 6].map(|ms| stream.append(ms, Fields::new()).to_string()).into();
        assert_eq!(ids, ["5-0", "5-1", "5-2", "6-0"]);
        assert_eq!(stream.count_above(MessageId::new(5, 1)), 2);
        assert!(stream.remove(MessageId::new(5, 1)).is_some());
        assert!(stream.remove(MessageId::new(5, 1)).is_none());
        assert_eq!(stream.drop_below(MessageId::new(6, 0)), 2);
        assert_eq!((stream.len(), stream.last()), (1, MessageId::new(6, 0)));
    }

    #[test]
    fn the_watermark_is_the_oldest_pending_else_what_was_handed_out() {
        let mut stream = Stream::default();
        let ids = [1, 2, 3].map(|ms| stream.append(ms, Fields::new()));
        let mut cursor = Cursor::default();
        cursor.read_new(&stream, Source::Log, 2, &mut Fetched::default());
        assert_eq!(cursor.watermark(), ids[0]);
        cursor.pending.remove(&ids[0]);
        assert_eq!(cursor.watermark(), ids[1]);
        cursor.pending.clear();
        assert_eq!(cursor.watermark(), ids[1].next());
    }
}
