//! Entries of one partition that are read and not settled: bounds reading, and recognises repeated entries.

mod id_set;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_core::MessageId;
use millstream_core::log::{Entry, Receipt, Source};
use millstream_core::sorted::SortedSet;

use id_set::IdSet;

/// Maximum number of bytes of payloads that wait in place: 64 of the largest that the default limits allow.
const MAX_BLOCKED_BYTES: usize = 64 * 1024 * 1024;

/// A number of entries, and the bytes of their payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::consumer) struct Load {
    pub(in crate::consumer) items: usize,
    pub(in crate::consumer) bytes: usize,
}

impl Load {
    pub(in crate::consumer) fn add(&mut self, items: usize, bytes: usize) {
        self.items += items;
        self.bytes += bytes;
    }

    pub(in crate::consumer) fn remove(&mut self, items: usize, bytes: usize) {
        self.items -= items;
        self.bytes -= bytes;
    }
}

/// Entries of one partition that are read and not settled.
#[derive(Debug)]
pub(in crate::consumer) struct InFlight {
    capacity: usize,
    /// Number of messages that may be handled at once.
    at_once: usize,
    /// Maximum number of messages that may wait behind messages whose next attempt is not due.
    max_blocked: usize,
    unsettled: IdSet,
    /// Entries that were in flight and may not be settled: if they are not, they will be read again.
    returning: SortedSet<Receipt>,
    /// Unsettled entries that earlier owners held when they ended, and whether each is a poison candidate.
    inherited: BTreeMap<Receipt, bool>,
    /// Number of candidates among them.
    candidates: usize,
    /// Number of entries that earlier owners held, and of candidates among them, whether they are settled by now or not.
    taken_over: (usize, usize),
    /// Whether everything has been read that was pending at first.
    caught_up: bool,
    /// Entries that were settled while the pending list is being read again. The list may have been read before the
    /// settlement, and then shows settled entries as pending.
    settled_meanwhile: Option<SortedSet<Receipt>>,
    /// The highest id of the log that was ever in flight.
    highest: MessageId,
    /// Number of entries in blocked queues. They have a limit of their own.
    blocked: usize,
    /// Whether that limit is reached, or the one of their bytes.
    is_full: bool,
    /// Whether the last read returned most of what there was room for: then more is waiting, and reads are larger.
    behind: bool,
    /// Whether the pending list must be read again.
    look_again: bool,
}

impl InFlight {
    /// Creates a set with room for `capacity` entries, with `at_once` handlers at the same time.
    pub(in crate::consumer) fn new(capacity: usize, at_once: usize, max_blocked: usize) -> Self {
        Self {
            capacity,
            at_once,
            max_blocked,
            unsettled: IdSet::default(),
            returning: SortedSet::new(),
            inherited: BTreeMap::new(),
            candidates: 0,
            taken_over: (0, 0),
            caught_up: false,
            settled_meanwhile: None,
            highest: MessageId::ZERO,
            blocked: 0,
            is_full: false,
            behind: false,
            look_again: false,
        }
    }

    fn disinherit(&mut self, receipt: Receipt) {
        // Usually empty. Checked first, because this runs for every message.
        if !self.inherited.is_empty() && self.inherited.remove(&receipt) == Some(true) {
            self.candidates -= 1;
        }
    }

    /// Marks the start of a rewind: entries that are read from now on may be repeated.
    pub(in crate::consumer) fn begin_rewind(&mut self) {
        self.settled_meanwhile.get_or_insert_default();
    }

    /// Whether entries that are read may be repeated.
    pub(in crate::consumer) fn is_rewinding(&self) -> bool {
        self.settled_meanwhile.is_some()
    }

    /// Marks the start of a read. During a rewind, only entries that are settled from now on can appear although they are
    /// done. Entries that were settled before appear only if the server has forgotten that, and must be handled again.
    pub(in crate::consumer) fn begin_read(&mut self) {
        if let Some(settled) = &mut self.settled_meanwhile {
            settled.clear();
        }
    }

    /// Marks the end of a rewind: entries that are read from now on are new.
    pub(in crate::consumer) fn end_rewind(&mut self) {
        self.settled_meanwhile = None;
        self.caught_up = true;
    }

    /// Records entries that earlier owners held when they ended.
    pub(in crate::consumer) fn inherit(&mut self, entries: &[Entry], is_candidate: impl Fn(&Entry) -> bool) {
        for entry in entries {
            let candidate = is_candidate(entry);
            if self.inherited.insert(entry.receipt, candidate).is_none() {
                self.candidates += usize::from(candidate);
                self.taken_over.0 += 1;
                self.taken_over.1 += usize::from(candidate);
            }
        }
    }

    /// Returns how many of the entries that earlier owners held are not settled, and how many of those are poison
    /// candidates.
    #[cfg(test)]
    pub(in crate::consumer) fn inherited(&self) -> (usize, usize) {
        (self.inherited.len(), self.candidates)
    }

    /// Returns how many entries earlier owners held when they ended, as far as they are read, and how many of those are poison
    /// candidates.
    pub(in crate::consumer) fn taken_over(&self) -> (usize, usize) {
        self.taken_over
    }

    /// Whether all entries that earlier owners held when they ended are settled.
    pub(in crate::consumer) fn is_cleared(&self) -> bool {
        self.caught_up && self.inherited.is_empty()
    }

    /// Adds entries, and returns those that were not in flight yet and were not settled just now.
    pub(in crate::consumer) fn admit(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut entries = entries;
        let newest = entries.iter().rfind(|entry| entry.receipt.source == Source::Log);
        let newest = newest.map(|entry| entry.receipt);
        let mut doubtful = false;
        entries.retain(|entry| {
            let receipt = entry.receipt;
            if receipt.source == Source::Log {
                self.highest = self.highest.max(receipt.id);
            }
            let done = self.settled_meanwhile.as_ref().is_some_and(|settled| settled.contains(&receipt));
            doubtful |= done;
            if done || !self.unsettled.insert(receipt) {
                return false;
            }
            self.returning.remove(&receipt);
            true
        });
        if let (Some(newest), None) = (newest, &self.settled_meanwhile) {
            // New entries come in order: an entry that is lower and was not among them is settled.
            self.returning.retain(|receipt| *receipt > newest);
        }
        if doubtful {
            // Most likely the list was read before the settlement. But the settlement may also have come too early, for a
            // group that was just created again, and the list shows an entry that was delivered anew since: read once
            // more.
            self.look_again();
        }
        entries
    }

    /// Removes entries that are settled.
    pub(in crate::consumer) fn settled(&mut self, receipts: impl Iterator<Item = Receipt>) {
        for receipt in receipts {
            self.unsettled.remove(receipt);
            self.disinherit(receipt);
            if let Some(settled) = &mut self.settled_meanwhile {
                settled.insert(receipt);
            }
        }
    }

    /// Removes entries whose settlement is in doubt: if they are not settled, they are read again. Until that is known,
    /// the frontier stays below them.
    pub(in crate::consumer) fn hand_back(&mut self, receipts: impl Iterator<Item = Receipt>) {
        for receipt in receipts {
            self.disinherit(receipt);
            self.read_again(receipt);
        }
        self.look_again = true;
    }

    /// Forgets an entry, which the pending list shows again if it is there.
    pub(in crate::consumer) fn read_again(&mut self, receipt: Receipt) {
        // It may be settled meanwhile.
        if self.unsettled.remove(receipt) {
            self.disinherit(receipt);
            self.returning.insert(receipt);
            self.look_again = true;
        }
    }

    /// Requests that the pending list is read again: it may show entries that are not in flight any more.
    pub(in crate::consumer) fn look_again(&mut self) {
        self.look_again = true;
    }

    /// Whether the pending list must be read again.
    pub(in crate::consumer) fn is_to_look_again(&self) -> bool {
        self.look_again
    }

    /// Returns whether the pending list must be read again, and assumes that it will be.
    pub(in crate::consumer) fn take_look_again(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    /// Sets what is in blocked queues. True if the maximum is reached: then reading stops.
    pub(in crate::consumer) fn set_blocked(&mut self, blocked: Load) -> bool {
        self.blocked = blocked.items;
        self.is_full = blocked.items >= self.max_blocked || blocked.bytes >= MAX_BLOCKED_BYTES;
        self.is_full
    }

    /// Records how many entries a read requested and how many it returned.
    pub(in crate::consumer) fn brought(&mut self, asked: usize, brought: usize) {
        self.behind = 4 * brought >= 3 * asked;
    }

    /// Returns how much is free, if that is enough for a read in one batch. Enough is half of the capacity while more is
    /// waiting than there is room for, so that one half is read while the other is handled; else a quarter.
    pub(in crate::consumer) fn room(&self) -> Option<usize> {
        let (free, parts) = self.free();
        (free >= self.capacity.div_ceil(parts)).then_some(free)
    }

    /// Returns how many entries are in flight and do not wait in blocked queues: those that are settled now included.
    pub(in crate::consumer) fn in_hand(&self) -> usize {
        self.unsettled.len().saturating_sub(self.blocked)
    }

    /// Whether at least half of the room is free: as much as any read waits for.
    pub(in crate::consumer) fn is_roomy(&self) -> bool {
        2 * self.in_hand() <= self.capacity
    }

    /// Returns how much is free, and the divisor of the capacity that makes a read worthwhile.
    fn free(&self) -> (usize, usize) {
        // Never so much that handlers which could run have nothing to do.
        let parts = if self.behind && 4 * self.at_once <= self.capacity { 2 } else { 4 };
        if self.is_full {
            return (0, parts);
        }
        (self.capacity.saturating_sub(self.in_hand()), parts)
    }

    /// Returns the number of entries that are read and not settled.
    pub(in crate::consumer) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Returns the frontier: all entries of the log up to this id are settled. `0-0` if nothing is known.
    pub(in crate::consumer) fn frontier(&self) -> MessageId {
        let returning = self.returning.iter().find(|receipt| receipt.source == Source::Log);
        let oldest =
            self.unsettled.first_of_log().into_iter().chain(returning.map(|receipt| receipt.id)).min();
        oldest.map_or(self.highest, MessageId::previous)
    }
}

/// Figures of an [`InFlight`] for other tasks. Updated by its owner.
#[derive(Debug, Default)]
pub(in crate::consumer) struct InFlightGauge {
    unsettled: AtomicUsize,
    candidates: AtomicUsize,
}

impl InFlightGauge {
    pub(in crate::consumer) fn set(&self, in_flight: &InFlight) {
        self.unsettled.store(in_flight.unsettled(), Ordering::Relaxed);
        self.candidates.store(in_flight.candidates, Ordering::Relaxed);
    }

    /// Returns the number of entries that are read and not settled.
    pub(in crate::consumer) fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Returns how many unsettled entries are poison candidates.
    pub(in crate::consumer) fn candidates(&self) -> usize {
        self.candidates.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ms: u64) -> Entry {
        let receipt = Receipt::new(Source::Log, MessageId::new(ms, 0));
        Entry::new(receipt, 1, Vec::new())
    }

    fn ids(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.receipt.id.ms).collect()
    }

    #[test]
    fn what_is_in_flight_is_not_admitted_twice() {
        let mut in_flight = InFlight::new(8, 1, 100);
        assert_eq!(ids(&in_flight.admit(vec![entry(1), entry(2)])), [1, 2]);
        assert_eq!(ids(&in_flight.admit(vec![entry(2), entry(3)])), [3]);
    }

    #[test]
    fn what_was_settled_while_the_pending_list_was_read_is_not_handled_again() {
        let mut in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(1), entry(2)]);
        in_flight.begin_rewind();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(in_flight.admit(vec![entry(1), entry(2)]).is_empty());
        in_flight.end_rewind();
        assert_eq!(ids(&in_flight.admit(vec![entry(1)])), [1], "later it would be a true redelivery");
    }

    #[test]
    fn what_the_server_forgot_to_be_settled_is_handled_again() {
        let mut in_flight = InFlight::new(8, 1, 8);
        in_flight.admit(vec![entry(1)]);
        in_flight.begin_rewind();
        in_flight.begin_read();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(in_flight.admit(vec![entry(1)]).is_empty(), "read before it was settled");
        in_flight.begin_read();
        assert_eq!(ids(&in_flight.admit(vec![entry(1)])), [1], "the server went back to an earlier state");
    }

    #[test]
    fn the_frontier_is_below_the_oldest_unsettled() {
        let mut in_flight = InFlight::new(8, 1, 100);
        assert_eq!(in_flight.frontier(), MessageId::ZERO);
        in_flight.admit(vec![entry(5), entry(7), entry(9)]);
        assert_eq!(in_flight.frontier(), MessageId::new(5, 0).previous());
        in_flight.settled([entry(5).receipt, entry(9).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(7, 0).previous());
        in_flight.settled([entry(7).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(9, 0));
    }

    #[test]
    fn what_is_handed_back_is_read_once_more_and_not_skipped_before() {
        let mut in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(5), entry(7)]);
        in_flight.hand_back([entry(5).receipt].into_iter());
        assert!(in_flight.take_look_again());
        in_flight.settled([entry(7).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(5, 0).previous());
        assert_eq!(ids(&in_flight.admit(vec![entry(5)])), [5]);
        in_flight.settled([entry(5).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(7, 0));
    }

    #[test]
    fn what_was_settled_after_all_is_known_when_what_is_new_comes() {
        let mut in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(5)]);
        in_flight.hand_back([entry(5).receipt].into_iter());
        in_flight.begin_rewind();
        in_flight.admit(vec![entry(6)]);
        assert_eq!(in_flight.frontier(), MessageId::new(5, 0).previous(), "that was pending");
        in_flight.settled([entry(6).receipt].into_iter());
        in_flight.end_rewind();
        in_flight.admit(vec![entry(9)]);
        assert_eq!(in_flight.frontier(), MessageId::new(9, 0).previous());
    }

    #[test]
    fn a_lease_is_cleared_when_all_was_read_and_what_is_inherited_is_settled() {
        let mut in_flight = InFlight::new(8, 1, 100);
        in_flight.begin_rewind();
        assert!(!in_flight.is_cleared(), "nothing has been read yet");
        let entries = in_flight.admit(vec![entry(1), entry(2)]);
        in_flight.inherit(&entries, |entry| entry.receipt.id.ms == 2);
        assert_eq!(in_flight.inherited(), (2, 1));
        in_flight.end_rewind();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(!in_flight.is_cleared(), "one has not been tried");
        assert_eq!((in_flight.inherited(), in_flight.taken_over()), ((1, 1), (2, 1)));
        in_flight.settled([entry(2).receipt].into_iter());
        assert!(in_flight.is_cleared());
    }

    #[test]
    fn what_is_taken_for_settled_is_looked_at_once_more() {
        let mut in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(1)]);
        in_flight.begin_rewind();
        in_flight.begin_read();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(in_flight.admit(vec![entry(1)]).is_empty());
        assert!(in_flight.take_look_again());
        in_flight.begin_read();
        assert_eq!(ids(&in_flight.admit(vec![entry(1)])), [1], "it came too early: it is pending");
    }

    #[test]
    fn room_comes_in_quarters() {
        let mut in_flight = InFlight::new(4, 1, 2);
        assert_eq!(in_flight.room(), Some(4));
        in_flight.admit(vec![entry(1), entry(2), entry(3)]);
        assert_eq!(in_flight.room(), Some(1));
        in_flight.admit(vec![entry(4)]);
        assert_eq!(in_flight.room(), None);
        in_flight.settled([entry(1).receipt].into_iter());
        assert_eq!(in_flight.room(), Some(1));
    }

    #[test]
    fn room_comes_in_halves_while_there_is_more_to_read() {
        let mut in_flight = InFlight::new(4, 1, 2);
        in_flight.admit((1..=4).map(entry).collect());
        in_flight.brought(4, 3);
        in_flight.settled([entry(1).receipt].into_iter());
        assert_eq!(in_flight.room(), None);
        in_flight.settled([entry(2).receipt].into_iter());
        assert_eq!(in_flight.room(), Some(2));
        in_flight.admit(vec![entry(5)]);
        in_flight.brought(2, 0);
        assert_eq!(in_flight.room(), Some(1));
        let mut wide = InFlight::new(4, 2, 2);
        wide.admit((1..=4).map(entry).collect());
        wide.brought(4, 4);
        wide.settled([entry(1).receipt].into_iter());
        assert_eq!(wide.room(), Some(1), "handlers that may run are not kept waiting");
    }

    fn items(items: usize) -> Load {
        Load { items, bytes: 0 }
    }

    #[test]
    fn what_waits_behind_others_takes_no_room_up_to_a_bound() {
        let mut in_flight = InFlight::new(4, 1, 2);
        in_flight.admit((1..=4).map(entry).collect());
        assert_eq!(in_flight.free().0, 0);
        assert!(!in_flight.set_blocked(items(1)));
        assert_eq!(in_flight.free().0, 1);
        assert!(in_flight.set_blocked(items(2)));
        assert_eq!(in_flight.free().0, 0, "as many as may be");
        in_flight.settled((1..=3).map(|ms| entry(ms).receipt));
        assert_eq!(in_flight.room(), None);
        in_flight.set_blocked(items(0));
        assert_eq!(in_flight.room(), Some(3));
        assert!(in_flight.set_blocked(Load { items: 1, bytes: MAX_BLOCKED_BYTES }));
        assert_eq!(in_flight.room(), None, "nor more bytes than may");
    }
}
