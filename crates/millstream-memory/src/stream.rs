//! A stream of entries, and a group's cursor in it, as in Redis.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::inspect;
use millstream_core::log::{Entry, Fetched, Note, Source};
use millstream_core::shared::Claimed;
use millstream_core::sorted::{SortedMap, SortedSet, sort_by};
use millstream_core::wire::{self, Fields};
use millstream_core::{Due, Error, ErrorKind, MemberId, MessageId, Result, Timestamp};

use crate::clock::Now;
use crate::packs::Packs;

/// Entries ordered by id.
///
/// A deque, not a tree: nearly all entries are added at one end and dropped at the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    entries: VecDeque<(MessageId, Fields)>,
    last: MessageId,
    appended: u64,
    /// Ids of lost entries, oldest first, which are used again.
    again: VecDeque<MessageId>,
    /// Entries that were stored together.
    pub(crate) packs: Packs,
}

impl Stream {
    /// Appends an entry under the next id: the clock's time, or the id after the last one if that is higher.
    pub(crate) fn append(&mut self, now: Timestamp, fields: Fields) -> MessageId {
        let id = match self.again.pop_front() {
            Some(lost) => lost,
            None if now > self.last.timestamp() => MessageId::new(now.as_millis(), 0),
            None => self.last.next(),
        };
        self.last = id;
        self.appended += 1;
        self.entries.push_back((id, fields));
        id
    }

    /// Schedules the ids of a later state of this stream that this state does not have: the next entries get them, in
    /// order. Without a later state, no id is used again.
    pub(crate) fn reissue(&mut self, later: Option<&Self>) {
        let ids = |later: &Self| {
            let lost = later.above(self.last).map(|(id, _)| *id);
            lost.chain(later.again.iter().copied()).collect()
        };
        self.again = later.map(ids).unwrap_or_default();
    }

    /// Returns the number of entries ever appended.
    pub(crate) fn appended(&self) -> u64 {
        self.appended
    }

    /// Returns the largest id ever assigned.
    pub(crate) fn last(&self) -> MessageId {
        self.last
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the id above which a new group reads: never beyond the end, or it would skip new entries.
    pub(crate) fn beginning(&self, start: Start) -> Result<MessageId> {
        Ok(self.before(start)?.min(self.last))
    }

    /// Returns the id above which a reader with this start position reads.
    pub(crate) fn before(&self, start: Start) -> Result<MessageId> {
        match start {
            Start::Earliest => Ok(MessageId::ZERO),
            Start::Latest => Ok(self.last),
            Start::After(id) => Ok(id),
            Start::At(time) => Ok(MessageId::new(time.as_millis(), 0).previous()),
            other => {
                let message = format!("reading cannot start at {other:?} here");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// Returns the id of the first entry.
    pub(crate) fn first(&self) -> Option<MessageId> {
        self.entries.front().map(|(id, _)| *id)
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

    /// Returns the entries above one id and below another, oldest first.
    pub(crate) fn between(
        &self,
        after: MessageId,
        before: MessageId,
    ) -> impl DoubleEndedIterator<Item = &(MessageId, Fields)> {
        let first = self.first_above(after);
        let end = self.entries.partition_point(|(entry, _)| *entry < before);
        self.entries.range(first..end.max(first))
    }

    /// Returns the size of all names and values, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|(_, fields)| bytes(fields)).sum()
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

    /// Returns the oldest of the newest `count` entries; `None` if there are no more than that.
    pub(crate) fn newest(&self, count: u64) -> Option<MessageId> {
        let older = self.len().checked_sub(usize::try_from(count).ok()?).filter(|older| *older > 0)?;
        self.entries.get(older).map(|(id, _)| *id).or_else(|| Some(self.last.next()))
    }

    /// Returns the number of entries above `after` and below `end`.
    pub(crate) fn count_between(&self, after: MessageId, end: MessageId) -> usize {
        let below = self.entries.partition_point(|(entry, _)| *entry < end);
        below.saturating_sub(self.first_above(after))
    }

    /// Drops all entries below `id`. Returns their number.
    pub(crate) fn drop_below(&mut self, id: MessageId) -> usize {
        self.packs.drop_below(id);
        let count = self.entries.partition_point(|(entry, _)| *entry < id);
        self.entries.drain(..count).count()
    }
}

/// Returns the size of the names and values, in bytes.
pub(crate) fn bytes(fields: &Fields) -> u64 {
    fields.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

/// Position of a group in a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Entries up to here were handed out.
    pub(crate) delivered: MessageId,
    /// Entries that were handed out and not settled.
    pub(crate) pending: BTreeMap<MessageId, Pending>,
    /// Consumers that have read here, with the time of their last request.
    consumers: SortedMap<By, Now>,
}

/// Returns the displayed name of a consumer.
fn name(by: &By) -> String {
    by.as_ref().map_or_else(|| "owner".to_owned(), ToString::to_string)
}

/// Consumer that an entry is pending for: one of many in shared mode, or `None` for the owner, which is always the same
/// name.
pub(crate) type By = Option<MemberId>;

/// Consumer, source and time of a read.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) by: &'a By,
    pub(crate) source: Source,
    pub(crate) now: Now,
}

/// Entry that was handed out and not settled.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// Number of deliveries.
    pub(crate) deliveries: u32,
    /// Consumer that it is pending for.
    pub(crate) by: By,
    /// Time at which it was last handed out or extended.
    touched: Now,
    given_back: bool,
    /// Note of its owner. Boxed because notes are rare.
    pub(crate) held: Option<Box<Held>>,
}

/// Note with an absolute due time: the `due` of the note itself is not used.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    note: Note,
    /// Due time.
    due: Timestamp,
}

impl Held {
    pub(crate) fn new(note: &Note, now: Now) -> Self {
        let mut note = Note { error: wire::cut(&note.error).to_owned(), ..note.clone() };
        note.history.add(now.timestamp(), note.attempt.saturating_sub(1), &note.error);
        Self { due: now.due(note.due), note }
    }

    fn read(&self, now: Now) -> Note {
        Note { due: Due::In(now.until(self.due)), ..self.note.clone() }
    }
}

impl Cursor {
    pub(crate) fn at(delivered: MessageId) -> Self {
        Self { delivered, ..Self::default() }
    }

    /// Returns the number of entries above `id` that are pending for a consumer, counted up to `most`.
    pub(crate) fn count_pending(&self, by: &By, id: MessageId, most: usize) -> usize {
        let above = self.pending.range((Bound::Excluded(id), Bound::Unbounded));
        above.filter(|(_, pending)| pending.by == *by).take(most).count()
    }

    /// Hands out up to `max` new entries, and the rest of the last one's pack.
    pub(crate) fn read_new(&mut self, stream: &Stream, reading: Reading<'_>, max: usize, out: &mut Fetched) {
        let Reading { by, source, now } = reading;
        self.record_request(by, now);
        let mut last = None;
        for (taken, (id, fields)) in stream.above(self.delivered).enumerate() {
            if taken >= max && last.is_none_or(|last| !stream.packs.around(last).contains(id)) {
                break;
            }
            (self.delivered, last) = (*id, Some(*id));
            let pending =
                Pending { deliveries: 1, by: by.clone(), touched: now, given_back: false, held: None };
            self.pending.insert(*id, pending);
            let receipt = stream.packs.receipt(source, *id);
            out.entries.push(Entry::new(receipt, 1, fields.clone()));
        }
    }

    /// Hands out again up to `max` entries above `after` that are pending for the reader. Returns the last id.
    pub(crate) fn read_pending(
        &mut self,
        stream: &Stream,
        reading: Reading<'_>,
        after: MessageId,
        max: usize,
        out: &mut Fetched,
    ) -> MessageId {
        self.record_request(reading.by, reading.now);
        let mut last = after;
        let above = self.pending.range_mut((Bound::Excluded(after), Bound::Unbounded));
        for (id, pending) in above.filter(|(_, pending)| pending.by == *reading.by).take(max) {
            last = *id;
            pending.hand_out(*id, stream, reading, out);
        }
        last
    }

    fn record_request(&mut self, by: &By, now: Now) {
        match self.consumers.get_mut(by) {
            Some(last) => *last = now,
            None => drop(self.consumers.insert(by.clone(), now)),
        }
    }

    /// Returns what is pending for a consumer of an entry, or of its pack.
    fn held<'a>(
        &'a mut self,
        stream: &Stream,
        by: &'a By,
        id: MessageId,
    ) -> impl Iterator<Item = &'a mut Pending> {
        let pack = self.pending.range_mut(stream.packs.around(id)).map(|(_, pending)| pending);
        pack.filter(move |pending| pending.by == *by)
    }

    /// Extends an entry that a consumer is working on. Returns false if the entry is not pending for it.
    pub(crate) fn extend(&mut self, stream: &Stream, by: &By, id: MessageId, now: Now) -> bool {
        self.record_request(by, now);
        if stream.get(id).is_none() {
            if self.pending.get(&id).is_some_and(|pending| pending.by == *by) {
                self.pending.remove(&id);
            }
            return false;
        }
        let mut held = false;
        for pending in self.held(stream, by, id) {
            (pending.touched, pending.given_back, held) = (now, false, true);
        }
        held
    }

    /// Marks an entry as given back: the consumer has not begun with it and will not.
    pub(crate) fn give_back(&mut self, stream: &Stream, by: &By, id: MessageId) {
        self.held(stream, by, id).for_each(|pending| pending.given_back = true);
    }

    /// Takes over up to `max` entries from consumers that are not alive and have not touched them for `idle`, and
    /// removes consumers without entries. A caller that may judge only after `judges_in` takes over the entries that
    /// were given back, but no others.
    pub(crate) fn claim(
        &mut self,
        stream: &Stream,
        reading: Reading<'_>,
        alive: impl Fn(&By) -> bool,
        (idle, judges_in, max): (Duration, Duration, usize),
        out: &mut Claimed,
    ) -> usize {
        let Reading { by, now, .. } = reading;
        self.record_request(by, now);
        let (mut claimed, mut ghosts) = (0, Vec::new());
        let mut last = None;
        for (id, pending) in &mut self.pending {
            if pending.by == *by || alive(&pending.by) {
                continue;
            }
            let idle_in = || pending.touched.plus(idle).since(now).max(judges_in);
            let free_in = if pending.given_back { Duration::ZERO } else { idle_in() };
            // A pack is claimed as a whole.
            let full = claimed >= max && last.is_none_or(|last| !stream.packs.around(last).contains(id));
            if full || !free_in.is_zero() {
                out.next = Some(out.next.map_or(free_in, |next| next.min(free_in)));
                continue;
            }
            (claimed, last) = (claimed + 1, Some(*id));
            pending.by = by.clone();
            let began = if std::mem::take(&mut pending.given_back) {
                &mut out.given_back
            } else {
                &mut out.abandoned
            };
            began.pending = true;
            pending.hand_out(*id, stream, reading, began);
            if stream.get(*id).is_none() {
                ghosts.push(*id);
            }
        }
        for ghost in ghosts {
            self.pending.remove(&ghost);
        }
        let busy: SortedSet<&By> = self.pending.values().map(|pending| &pending.by).collect();
        let before = self.consumers.len();
        self.consumers.retain(|name, last| {
            name == by
                || alive(name)
                || !judges_in.is_zero()
                || busy.contains(&name)
                || !last.plus(idle).since(now).is_zero()
        });
        out.removed += before - self.consumers.len();
        claimed
    }

    /// Returns up to `limit` pending entries above `after`, of all consumers.
    pub(crate) fn pending_above(&self, after: MessageId, limit: usize, now: Now) -> Vec<inspect::Pending> {
        let above = self.pending.range((Bound::Excluded(after), Bound::Unbounded)).take(limit);
        let shown = above.map(|(id, pending)| inspect::Pending {
            id: *id,
            consumer: name(&pending.by),
            idle: now.since(pending.touched),
            delivered: pending.touched.timestamp(),
            deliveries: u64::from(pending.deliveries),
            note: pending.held.as_ref().map(|held| held.read(now)),
        });
        shown.collect()
    }

    /// Returns the consumers that have read here.
    pub(crate) fn readings(&self, source: Source, now: Now) -> Vec<inspect::Reading> {
        let mut readings: Vec<_> = self
            .consumers
            .iter()
            .map(|(by, last)| inspect::Reading {
                source,
                consumer: name(by),
                pending: self.pending.values().filter(|pending| pending.by == *by).count() as u64,
                idle: now.since(*last),
                inactive: None,
            })
            .collect();
        sort_by(&mut readings, |a, b| a.consumer.cmp(&b.consumer));
        readings
    }

    /// Returns the time of the last request for entries.
    pub(crate) fn last_request(&self) -> Option<Now> {
        self.consumers.values().copied().max()
    }

    /// Returns the id below which no entry of the stream is unread or pending. A pending entry that no longer exists
    /// does not count; and the position may be below pending entries, if somebody set it back.
    pub(crate) fn watermark(&self, stream: &Stream) -> MessageId {
        let unread = self.delivered.next();
        let first = stream.entries.front().map_or(unread, |(id, _)| *id);
        let pending = self.pending.range(first..).map(|(id, _)| *id).take_while(|id| *id < unread);
        pending.into_iter().find(|id| stream.get(*id).is_some()).unwrap_or(unread)
    }
}

impl Pending {
    /// Hands the entry out again, or reports that its body is gone.
    fn hand_out(&mut self, id: MessageId, stream: &Stream, reading: Reading<'_>, out: &mut Fetched) {
        self.deliveries = self.deliveries.saturating_add(1);
        self.touched = reading.now;
        let receipt = stream.packs.receipt(reading.source, id);
        match stream.get(id) {
            Some(fields) => {
                let note = self.held.as_ref().map(|held| held.read(reading.now));
                out.entries.push(Entry::new(receipt, self.deliveries, fields.clone()).with_note(note));
            }
            None => out.ghosts.push(receipt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_also_when_the_clock_stands_or_goes_back() {
        let mut stream = Stream::default();
        let ids: Vec<_> = [5, 5, 4, 6]
            .map(|ms| stream.append(Timestamp::from_millis(ms), Fields::new()).to_string())
            .into();
        assert_eq!(ids, ["5-0", "5-1", "5-2", "6-0"]);
        assert_eq!(stream.count_above(MessageId::new(5, 1)), 2);
        assert!(stream.remove(MessageId::new(5, 1)).is_some());
        assert!(stream.remove(MessageId::new(5, 1)).is_none());
        assert_eq!(stream.drop_below(MessageId::new(6, 0)), 2);
        assert_eq!((stream.len(), stream.last()), (1, MessageId::new(6, 0)));
    }

    #[test]
    fn the_watermark_is_the_oldest_that_is_pending_or_was_not_handed_out() {
        let mut stream = Stream::default();
        let ids = [1, 2, 3].map(|ms| stream.append(Timestamp::from_millis(ms), Fields::new()));
        let mut cursor = Cursor::default();
        let now = crate::clock::Clock::new().now();
        let reading = Reading { by: &None, source: Source::Log, now };
        cursor.read_new(&stream, reading, 2, &mut Fetched::default());
        assert_eq!(cursor.watermark(&stream), ids[0]);
        cursor.pending.remove(&ids[0]);
        assert_eq!(cursor.watermark(&stream), ids[1]);
        let set_back = Cursor { delivered: ids[0].previous(), ..cursor.clone() };
        assert_eq!(set_back.watermark(&stream), ids[0], "the position was set back");
        stream.remove(ids[1]);
        assert_eq!(cursor.watermark(&stream), ids[1].next(), "a ghost keeps nothing");
        cursor.pending.clear();
        assert_eq!(cursor.watermark(&stream), ids[1].next());
    }
}
