//! What one partition has read and not settled: bounds reading, and tells a repetition from a new message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::MessageId;
use millstream_core::log::{Entry, Receipt, Source};
use tokio::sync::Notify;

use crate::consumer::partition::id_set::IdSet;

/// What one partition has read and not settled.
#[derive(Debug)]
pub(in crate::consumer) struct InFlight {
    state: Mutex<State>,
    /// Rung when something was settled, or waits no longer.
    freed: Notify,
    /// Rung when something is to be read once more.
    let_go: Notify,
    capacity: usize,
    /// How many may be handled at once.
    at_once: usize,
    /// The most that may wait behind messages whose next attempt is not due.
    max_blocked: usize,
}

#[derive(Debug, Default)]
struct State {
    held: IdSet,
    /// What was held, may not be settled, and then will be read once more.
    returning: BTreeSet<Receipt>,
    /// What owners before had when they ended, and has not been settled since; and whether it is a poison candidate.
    inherited: BTreeMap<Receipt, bool>,
    /// How many of these are candidates.
    candidates: usize,
    /// Whether everything has been read that was pending at first.
    caught_up: bool,
    /// While the pending list is being read again: what was settled meanwhile. The list may have been read
    /// before the settlement, and then shows as pending what is done.
    settled_meanwhile: Option<BTreeSet<Receipt>>,
    /// The highest id of the log that was ever held.
    highest: MessageId,
    /// How many of those that are held wait in blocked queues. They have a bound of their own.
    blocked: usize,
    /// Whether the last read brought most of what there was room for: then there is more, and it is read in larger parts.
    behind: bool,
}

impl State {
    fn disinherit(&mut self, receipt: Receipt) {
        // Nothing at all, as a rule: this is asked for every message.
        if !self.inherited.is_empty() && self.inherited.remove(&receipt) == Some(true) {
            self.candidates -= 1;
        }
    }
}

impl InFlight {
    /// Room for `capacity`, of which `at_once` may be handled at the same time.
    pub(in crate::consumer) fn new(capacity: usize, at_once: usize, max_blocked: usize) -> Self {
        let (state, freed, let_go) = (Mutex::default(), Notify::new(), Notify::new());
        Self { state, freed, let_go, capacity, at_once, max_blocked }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on what is read may be a repetition.
    pub(in crate::consumer) fn begin_rewind(&self) {
        self.state().settled_meanwhile.get_or_insert_default();
    }

    /// Whether what is read may be a repetition.
    pub(in crate::consumer) fn is_rewinding(&self) -> bool {
        self.state().settled_meanwhile.is_some()
    }

    /// A read begins. While the pending list is read again, only what is settled from now on can be shown by it
    /// although it is done: what was settled before is shown only if the server has forgotten that, and has to be
    /// done again.
    pub(in crate::consumer) fn begin_read(&self) {
        if let Some(settled) = &mut self.state().settled_meanwhile {
            settled.clear();
        }
    }

    /// What is read from now on is new.
    pub(in crate::consumer) fn end_rewind(&self) {
        let mut state = self.state();
        state.settled_meanwhile = None;
        state.caught_up = true;
    }

    /// Owners before had these when they ended.
    pub(in crate::consumer) fn inherit(&self, entries: &[Entry], is_candidate: impl Fn(&Entry) -> bool) {
        let mut state = self.state();
        for entry in entries {
            let candidate = is_candidate(entry);
            if state.inherited.insert(entry.receipt, candidate).is_none() {
                state.candidates += usize::from(candidate);
            }
        }
    }

    /// How much is left of what owners before had when they ended, and how much of that are poison candidates.
    pub(in crate::consumer) fn inherited(&self) -> (usize, usize) {
        let state = self.state();
        (state.inherited.len(), state.candidates)
    }

    /// Whether everything is settled that owners before had when they ended.
    pub(in crate::consumer) fn is_cleared(&self) -> bool {
        let state = self.state();
        state.caught_up && state.inherited.is_empty()
    }

    /// Takes entries in, and gives back those that are not held and were not settled just now.
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
            // New entries come in order: what is below and was not among them is settled.
            state.returning.retain(|receipt| *receipt > newest);
        }
        drop(state);
        if doubtful {
            // Most likely the list was read before the settlement. But a settlement may also have come too early, for a
            // group that was just created again, and the list shows what was handed out anew since: look once more.
            self.look_again();
        }
        entries
    }

    /// These are settled.
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

    /// These are not settled for all we know, and are not held any more: if they are not, they are read once more.
    /// Until that is known nothing above them counts as settled.
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

    /// What is pending is to be read once more: it may show something that is not held any more.
    pub(in crate::consumer) fn look_again(&self) {
        self.let_go.notify_one();
    }

    /// Waits until something is to be read once more; at once if that was so since the last time.
    pub(in crate::consumer) async fn let_go(&self) {
        self.let_go.notified().await;
    }

    /// So many wait in blocked queues now. True if they are as many as may be: then reading stops.
    pub(in crate::consumer) fn blocked(&self, blocked: usize) -> bool {
        let mut state = self.state();
        let freed = blocked != std::mem::replace(&mut state.blocked, blocked);
        drop(state);
        if freed {
            self.freed.notify_one();
        }
        blocked >= self.max_blocked
    }

    /// A read asked for so many and brought so many.
    pub(in crate::consumer) fn brought(&self, asked: usize, brought: usize) {
        self.state().behind = 4 * brought >= 3 * asked;
    }

    /// Waits until so much is free that reading goes in batches, and says how much is: half while there is more to read
    /// than there is room for, so that one half is read while the other is handled; else a quarter.
    pub(in crate::consumer) async fn room(&self) -> usize {
        loop {
            let (free, parts) = self.free();
            if free >= self.capacity.div_ceil(parts) {
                return free;
            }
            self.freed.notified().await;
        }
    }

    /// How much is free, and of how many parts one has to be before it is worth a read.
    fn free(&self) -> (usize, usize) {
        let state = self.state();
        // Never so much that handlers which may run have nothing to do.
        let parts = if state.behind && 4 * self.at_once <= self.capacity { 2 } else { 4 };
        if state.blocked >= self.max_blocked {
            return (0, parts);
        }
        let counted = state.held.len().saturating_sub(state.blocked);
        (self.capacity.saturating_sub(counted), parts)
    }

    /// How many are read and not settled.
    pub(in crate::consumer) fn unsettled(&self) -> usize {
        self.state().held.len()
    }

    /// Everything of the log up to this id is settled; `0-0` if nothing is known.
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
