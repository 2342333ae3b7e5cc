//! What one partition has read and not settled: bounds reading, and tells a repetition from a new message.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::MessageId;
use millstream_core::log::{Entry, Receipt, Source};
use tokio::sync::Notify;

/// What one partition has read and not settled.
#[derive(Debug)]
pub(super) struct InFlight {
    state: Mutex<State>,
    /// Rung when something was settled, or waits no longer.
    freed: Notify,
    capacity: usize,
    /// The most that may wait behind messages whose next attempt is not due.
    max_blocked: usize,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeSet<Receipt>,
    /// While the pending list is being read again: what was settled meanwhile. The list may have been read
    /// before the settlement, and then shows as pending what is done.
    settled_meanwhile: Option<BTreeSet<Receipt>>,
    /// The highest id of the log that was ever held.
    highest: MessageId,
    /// How many of those that are held wait in blocked lanes. They have a bound of their own.
    blocked: usize,
}

impl InFlight {
    pub(super) fn new(capacity: usize, max_blocked: usize) -> Self {
        Self { state: Mutex::default(), freed: Notify::new(), capacity, max_blocked }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on what is read may be a repetition.
    pub(super) fn begin_rewind(&self) {
        self.state().settled_meanwhile.get_or_insert_default();
    }

    /// A read begins. While the pending list is read again, only what is settled from now on can be shown by it
    /// although it is done: what was settled before is shown only if the server has forgotten that, and has to be
    /// done again.
    pub(super) fn begin_read(&self) {
        if let Some(settled) = &mut self.state().settled_meanwhile {
            settled.clear();
        }
    }

    /// What is read from now on is new.
    pub(super) fn end_rewind(&self) {
        self.state().settled_meanwhile = None;
    }

    /// Takes entries in, and gives back those that are not held and were not settled just now.
    pub(super) fn admit(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut state = self.state();
        let mut entries = entries;
        entries.retain(|entry| {
            let receipt = entry.receipt;
            if receipt.source == Source::Log {
                state.highest = state.highest.max(receipt.id);
            }
            let done = state.settled_meanwhile.as_ref().is_some_and(|settled| settled.contains(&receipt));
            !done && state.held.insert(receipt)
        });
        entries
    }

    /// These are settled.
    pub(super) fn settled(&self, receipts: impl Iterator<Item = Receipt>) {
        let mut state = self.state();
        for receipt in receipts {
            state.held.remove(&receipt);
            if let Some(settled) = &mut state.settled_meanwhile {
                settled.insert(receipt);
            }
        }
        drop(state);
        self.freed.notify_one();
    }

    /// So many wait in blocked lanes now. True if they are as many as may be: then reading stops.
    pub(super) fn blocked(&self, blocked: usize) -> bool {
        let mut state = self.state();
        let freed = blocked != std::mem::replace(&mut state.blocked, blocked);
        drop(state);
        if freed {
            self.freed.notify_one();
        }
        blocked >= self.max_blocked
    }

    /// Waits until at least a quarter is free, so that reading goes in batches, and says how much is.
    pub(super) async fn room(&self) -> usize {
        loop {
            let free = self.free();
            if free >= self.capacity.div_ceil(4) {
                return free;
            }
            self.freed.notified().await;
        }
    }

    fn free(&self) -> usize {
        let state = self.state();
        if state.blocked >= self.max_blocked {
            return 0;
        }
        let counted = state.held.len().saturating_sub(state.blocked);
        self.capacity.saturating_sub(counted)
    }

    /// How many are held.
    pub(super) fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Everything of the log up to this id is settled; `0-0` if nothing is known.
    pub(super) fn frontier(&self) -> MessageId {
        let state = self.state();
        let oldest = state.held.iter().find(|receipt| receipt.source == Source::Log);
        oldest.map_or(state.highest, |receipt| receipt.id.previous())
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
        let in_flight = InFlight::new(8, 100);
        assert_eq!(ids(&in_flight.admit(vec![entry(1), entry(2)])), [1, 2]);
        assert_eq!(ids(&in_flight.admit(vec![entry(2), entry(3)])), [3]);
    }

    #[test]
    fn what_was_settled_while_the_pending_list_was_read_is_not_handled_again() {
        let in_flight = InFlight::new(8, 100);
        in_flight.admit(vec![entry(1), entry(2)]);
        in_flight.begin_rewind();
        in_flight.settled([entry(1).receipt].into_iter());
        assert!(in_flight.admit(vec![entry(1), entry(2)]).is_empty());
        in_flight.end_rewind();
        assert_eq!(ids(&in_flight.admit(vec![entry(1)])), [1], "later it would be a true redelivery");
    }

    #[test]
    fn what_the_server_forgot_to_be_settled_is_handled_again() {
        let in_flight = InFlight::new(8, 8);
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
        let in_flight = InFlight::new(8, 100);
        assert_eq!(in_flight.frontier(), MessageId::ZERO);
        in_flight.admit(vec![entry(5), entry(7), entry(9)]);
        assert_eq!(in_flight.frontier(), MessageId::new(5, 0).previous());
        in_flight.settled([entry(5).receipt, entry(9).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(7, 0).previous());
        in_flight.settled([entry(7).receipt].into_iter());
        assert_eq!(in_flight.frontier(), MessageId::new(9, 0));
    }

    #[tokio::test]
    async fn room_comes_in_quarters() {
        let in_flight = InFlight::new(4, 2);
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
    async fn what_waits_behind_others_takes_no_room_up_to_a_bound() {
        let in_flight = InFlight::new(4, 2);
        in_flight.admit((1..=4).map(entry).collect());
        assert_eq!(in_flight.free(), 0);
        assert!(!in_flight.blocked(1));
        assert_eq!(in_flight.free(), 1);
        assert!(in_flight.blocked(2));
        assert_eq!(in_flight.free(), 0, "as many as may be");
        in_flight.settled((1..=3).map(|ms| entry(ms).receipt));
        let (room, _) = tokio::join!(in_flight.room(), async { in_flight.blocked(0) });
        assert_eq!(room, 3);
    }
}
