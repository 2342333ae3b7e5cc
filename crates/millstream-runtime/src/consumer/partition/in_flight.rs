//! Entries of one partition that are read and not settled: bounds reading, and recognises repeated entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::MessageId;
use millstream_core::log::{Entry, Receipt, Source};
use tokio::sync::Notify;

use crate::consumer::partition::id_set::IdSet;

/// Entries of one partition that are read and not settled.
#[derive(Debug)]
pub(in crate::consumer) struct InFlight {
    state: Mutex<State>,
    /// Notified when something was settled, or is no longer blocked.
    freed: Notify,
    /// Notified when something must be read again.
    let_go: Notify,
    capacity: usize,
    /// Number of messages that may be handled at once.
    at_once: usize,
    /// Maximum number of messages that may wait behind messages whose next attempt is not due.
    max_blocked: usize,
}

#[derive(Debug, Default)]
struct State {
    held: IdSet,
    /// Entries that were held and may not be settled: if they are not, they will be read again.
    returning: BTreeSet<Receipt>,
    /// Unsettled entries that earlier owners held when they ended, and whether each is a poison candidate.
    inherited: BTreeMap<Receipt, bool>,
    /// Number of candidates among them.
    candidates: usize,
    /// Whether everything has been read that was pending at first.
    caught_up: bool,
    /// Entries that were settled while the pending list is being read again. The list may have been read before the
    /// settlement, and then shows settled entries as pending.
    settled_meanwhile: Option<BTreeSet<Receipt>>,
    /// The highest id of the log that was ever held.
    highest: MessageId,
    /// Number of held entries in blocked queues. They have a limit of their own.
    blocked: usize,
    /// Whether the last read returned most of what there was room for: then more is waiting, and reads are larger.
    behind: bool,
}

impl State {
    fn disinherit(&mut self, receipt: Receipt) {
        // Usually empty. Checked first, because this runs for every message.
        if !self.inherited.is_empty() && self.inherited.remove(&receipt) == Some(true) {
            self.candidates -= 1;
        }
    }
}

impl InFlight {
    /// Creates a set with room for `capacity` entries, with `at_once` handlers at the same time.
    pub(in crate::consumer) fn new(capacity: usize, at_once: usize, max_blocked: usize) -> Self {
        let (state, freed, let_go) = (Mutex::default(), Notify::new(), Notify::new());
        Self { state, freed, let_go, capacity, at_once, max_blocked }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start of a rewind: entries that are read from now on may be repeated.
    pub(in crate::consumer) fn begin_rewind(&self) {
        self.state().settled_meanwhile.get_or_insert_default();
    }

    /// Whether entries that are read may be repeated.
    pub(in crate::consumer) fn is_rewinding(&self) -> bool {
        self.state().settled_meanwhile.is_some()
    }

    /// Marks the start of a read. During a rewind, only entries that are settled from now on can appear although they are
    /// done. Entries that were settled before appear only if the server has forgotten that, and must be handled again.
    pub(in crate::consumer) fn begin_read(&self) {
        if let Some(settled) = &mut self.state().settled_meanwhile {
            settled.clear();
        }
    }

    /// Marks the end of a rewind: entries that are read from now on are new.
    pub(in crate::consumer) fn end_rewind(&self) {
        let mut state = self.state();
        state.settled_meanwhile = None;
        state.caught_up = true;
    }

    /// Records entries that earlier owners held when they ended.
    pub(in crate::consumer) fn inherit(&self, entries: &[Entry], is_candidate: impl Fn(&Entry) -> bool) {
        let mut state = self.state();
        for entry in entries {
            let candidate = is_candidate(entry);
            if state.inherited.insert(entry.receipt, candidate).is_none() {
                state.candidates += usize::from(candidate);
            }
        }
    }

    /// Returns how many of the entries that earlier owners held are not settled, and how many of those are poison
    /// candidates.
    pub(in crate::consumer) fn inherited(&self) -> (usize, usize) {
        let state = self.state();
        (state.inherited.len(), state.candidates)
    }

    /// Whether all entries that earlier owners held when they ended are settled.
    pub(in crate::consumer) fn is_cleared(&self) -> bool {
        let state = self.state();
        state.caught_up && state.inherited.is_empty()
    }

    /// Adds entries, and returns those that are not held yet and were not settled just now.
    pub(in crate::consumer) fn admit(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut state = self.state();
        let mut entries = entries;
        let newest = entries.iter().rfind(|entry| entry.receipt.source == Source::Log);
        let newest = newest.map(|entry| entry.receipt);
        let mut doubtful = false;
        entries.retain(|entry| {
            let receipt = entry.receipt;
            if receipt.source == Source::Log {
                state.highest = state.highest.max(receipt.id);
            }
            let done = state.settled_meanwhile.as_ref().is_some_and(|settled| settled.contains(&receipt));
            doubtful |= done;
            if done || !state.held.insert(receipt) {
                return false;
            }
            state.returning.remove(&receipt);
            true
        });
        if let (Some(newest), None) = (newest, &state.settled_meanwhile) {
            // New entries come in order: an entry that is lower and was not among them is settled.
            state.returning.retain(|receipt| *receipt > newest);
        }
        drop(state);
        if doubtful {
            // Most likely the list was read before the settlement. But the settlement may also have come too early, for a
            // group that was just created again, and the list shows an entry that was delivered anew since: read once
            // more.
            self.look_again();
        }
        entries
    }

    /// Removes entries that are settled.
    pub(in crate::consumer) fn settled(&self, receipts: impl Iterator<Item = Receipt>) {
        let mut state = self.state();
        for receipt in receipts {
            state.held.remove(receipt);
            state.disinherit(receipt);
            if let Some(settled) = &mut state.settled_meanwhile {
                settled.insert(receipt);
            }
        }
        drop(state);
        self.freed.notify_one();
    }

    /// Removes entries whose settlement is in doubt: if they are not settled, they are read again. Until that is known,
    /// the frontier stays below them.
    pub(in crate::consumer) fn hand_back(&self, receipts: impl Iterator<Item = Receipt>) {
        let mut state = self.state();
        for receipt in receipts {
            state.disinherit(receipt);
            if state.held.remove(receipt) {
                state.returning.insert(receipt);
            }
        }
        drop(state);
        self.let_go.notify_one();
        self.freed.notify_one();
    }

    /// Requests that the pending list is read again: it may show entries that are not held any more.
    pub(in crate::consumer) fn look_again(&self) {
        self.let_go.notify_one();
    }

    /// Waits until something must be read again; returns at once if that was requested since the last call.
    pub(in crate::consumer) async fn let_go(&self) {
        self.let_go.notified().await;
    }

    /// Sets the number of entries in blocked queues. True if the maximum is reached: then reading stops.
    pub(in crate::consumer) fn blocked(&self, blocked: usize) -> bool {
        let mut state = self.state();
        let freed = blocked != std::mem::replace(&mut state.blocked, blocked);
        drop(state);
        if freed {
            self.freed.notify_one();
        }
        blocked >= self.max_blocked
    }

    /// Records how many entries a read requested and how many it returned.
    pub(in crate::consumer) fn brought(&self, asked: usize, brought: usize) {
        self.state().behind = 4 * brought >= 3 * asked;
    }

    /// Waits until enough is free for a read in one batch, and returns how much is free. Enough is half of the capacity
    /// while more is waiting than there is room for, so that one half is read while the other is handled; else a quarter.
    pub(in crate::consumer) async fn room(&self) -> usize {
        loop {
            let (free, parts) = self.free();
            if free >= self.capacity.div_ceil(parts) {
                return free;
            }
            self.freed.notified().await;
        }
    }

    /// Returns how much is free, and the divisor of the capacity that makes a read worthwhile.
    fn free(&self) -> (usize, usize) {
        let state = self.state();
        // Never so much that handlers which could run have nothing to do.
        let parts = if state.behind && 4 * self.at_once <= self.capacity { 2 } else { 4 };
        if state.blocked >= self.max_blocked {
            return (0, parts);
        }
        let counted = state.held.len().saturating_sub(state.blocked);
        (self.capacity.saturating_sub(counted), parts)
    }

    /// Returns the number of entries that are read and not settled.
    pub(in crate::consumer) fn unsettled(&self) -> usize {
        self.state().held.len()
    }

    /// Returns the frontier: all entries of the log up to this id are settled. `0-0` if nothing is known.
    pub(in crate::consumer) fn frontier(&self) -> MessageId {
        let state = self.state();
        let returning = state.returning.iter().find(|receipt| receipt.source == Source::Log);
        let oldest = state.held.first_of_log().into_iter().chain(returning.map(|receipt| receipt.id)).min();
        oldest.map_or(state.highest, MessageId::previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ms: u64) -> Entry {
        let receipt = Receipt { source: Source::Log, id: MessageId::new(ms, 0) };
        Entry { receipt, deliveries: 1, fields: Vec::new(), note: None }
    }

    fn ids(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.receipt.id.ms).collect()
    }

    #[test]
    fn what_is_held_is_not_admitted_twice() {
        let in_flight = InFlight::new(8, 1, 100);
        assert_eq!(ids(&in_flight.admit(vec![entry(1), entry(2)])), [1, 2]);
        assert_eq!(ids(&in_flight.admit(vec![entry(2), entry(3)])), [3]);
    }

    #[test]
    fn what_was_settled_while_the_pending_list_was_read_is_not_handled_again() {
        let in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(1), entry(2)]);
        in_flight.begin_rewind();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(in_flight.admit(vec![entry(1), entry(2)]).is_empty());
        in_flight.end_rewind();
        assert_eq!(ids(&in_flight.admit(vec![entry(1)])), [1], "later it would be a true redelivery");
    }

    #[test]
    fn what_the_server_forgot_to_be_settled_is_handled_again() {
        let in_flight = InFlight::new(8, 1, 8);
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
        let in_flight = InFlight::new(8, 1, 100);
        assert_eq!(in_flight.frontier(), MessageId::ZERO);
        in_flight.admit(vec![entry(5), entry(7), entry(9)]);
        assert_eq!(in_flight.frontier(), MessageId::new(5, 0).previous());
        in_flight.settled([entry(5).receipt, entry(9).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(7, 0).previous());
        in_flight.settled([entry(7).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(9, 0));
    }

    #[tokio::test]
    async fn what_is_handed_back_is_read_once_more_and_not_skipped_before() {
        let in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(5), entry(7)]);
        in_flight.hand_back([entry(5).receipt].into_iter());
        in_flight.let_go().await;
        in_flight.settled([entry(7).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(5, 0).previous());
        assert_eq!(ids(&in_flight.admit(vec![entry(5)])), [5]);
        in_flight.settled([entry(5).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(7, 0));
    }

    #[test]
    fn what_was_settled_after_all_is_known_when_what_is_new_comes() {
        let in_flight = InFlight::new(8, 1, 100);
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
        let in_flight = InFlight::new(8, 1, 100);
        in_flight.begin_rewind();
        assert!(!in_flight.is_cleared(), "nothing has been read yet");
        let entries = in_flight.admit(vec![entry(1), entry(2)]);
        in_flight.inherit(&entries, |entry| entry.receipt.id.ms == 2);
        assert_eq!(in_flight.inherited(), (2, 1));
        in_flight.end_rewind();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(!in_flight.is_cleared(), "one has not been tried");
        assert_eq!(in_flight.inherited(), (1, 1));
        in_flight.settled([entry(2).receipt].into_iter());
        assert!(in_flight.is_cleared());
    }

    #[tokio::test]
    async fn what_is_taken_for_settled_is_looked_at_once_more() {
        let in_flight = InFlight::new(8, 1, 100);
        in_flight.admit(vec![entry(1)]);
        in_flight.begin_rewind();
        in_flight.begin_read();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(in_flight.admit(vec![entry(1)]).is_empty());
        in_flight.let_go().await;
        in_flight.begin_read();
        assert_eq!(ids(&in_flight.admit(vec![entry(1)])), [1], "it came too early: it is pending");
    }

    #[tokio::test]
    async fn room_comes_in_quarters() {
        let in_flight = InFlight::new(4, 1, 2);
        assert_eq!(in_flight.room().await, 4);
        in_flight.admit(vec![entry(1), entry(2), entry(3)]);
        assert_eq!(in_flight.room().await, 1);
        in_flight.admit(vec![entry(4)]);
        let (room, ()) = tokio::join!(in_flight.room(), async {
            in_flight.settled([entry(1).receipt].into_iter());
        });
        assert_eq!(room, 1);
    }

    #[tokio::test]
    async fn room_comes_in_halves_while_there_is_more_to_read() {
        let in_flight = InFlight::new(4, 1, 2);
        in_flight.admit((1..=4).map(entry).collect());
        in_flight.brought(4, 3);
        in_flight.settled([entry(1).receipt].into_iter());
        let (room, ()) = tokio::join!(in_flight.room(), async {
            in_flight.settled([entry(2).receipt].into_iter());
        });
        assert_eq!(room, 2);
        in_flight.admit(vec![entry(5)]);
        in_flight.brought(2, 0);
        assert_eq!(in_flight.room().await, 1);
        let wide = InFlight::new(4, 2, 2);
        wide.admit((1..=4).map(entry).collect());
        wide.brought(4, 4);
        wide.settled([entry(1).receipt].into_iter());
        assert_eq!(wide.room().await, 1, "handlers that may run are not kept waiting");
    }

    #[tokio::test]
    async fn what_waits_behind_others_takes_no_room_up_to_a_bound() {
        let in_flight = InFlight::new(4, 1, 2);
        in_flight.admit((1..=4).map(entry).collect());
        assert_eq!(in_flight.free().0, 0);
        assert!(!in_flight.blocked(1));
        assert_eq!(in_flight.free().0, 1);
        assert!(in_flight.blocked(2));
        assert_eq!(in_flight.free().0, 0, "as many as may be");
        in_flight.settled((1..=3).map(|ms| entry(ms).receipt));
        let (room, _) = tokio::join!(in_flight.room(), async { in_flight.blocked(0) });
        assert_eq!(room, 3);
    }
}
