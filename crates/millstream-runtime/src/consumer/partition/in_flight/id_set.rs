//! A set of receipts that are added in the order of their ids and mostly removed in that order.

use std::collections::VecDeque;

use millstream_core::MessageId;
use millstream_core::log::{Receipt, Source};

/// A set of receipts. Adding an id above all others, and removing the lowest, costs next to nothing.
#[derive(Debug, Default)]
pub(super) struct IdSet {
    log: Ids,
    retry: Ids,
}

impl IdSet {
    /// Adds a receipt. False if it was in the set.
    pub(super) fn insert(&mut self, receipt: Receipt) -> bool {
        self.of(receipt.source).insert(receipt.id)
    }

    /// Removes a receipt. False if it was not in the set.
    pub(super) fn remove(&mut self, receipt: Receipt) -> bool {
        self.of(receipt.source).remove(receipt.id)
    }

    pub(super) fn len(&self) -> usize {
        self.log.held + self.retry.held
    }

    /// Returns the lowest id of the log.
    pub(super) fn first_of_log(&self) -> Option<MessageId> {
        self.log.slots.front().map(|slot| slot.id)
    }

    fn of(&mut self, source: Source) -> &mut Ids {
        match source {
            Source::Log => &mut self.log,
            Source::Retry => &mut self.retry,
        }
    }
}

/// Ids in order. The first one is held; among the others there may be removed ones.
#[derive(Debug, Default)]
struct Ids {
    slots: VecDeque<Slot>,
    held: usize,
}

#[derive(Debug)]
struct Slot {
    id: MessageId,
    held: bool,
}

impl Ids {
    fn insert(&mut self, id: MessageId) -> bool {
        let slot = Slot { id, held: true };
        if self.slots.back().is_none_or(|last| last.id < id) {
            self.slots.push_back(slot);
        } else {
            match self.slots.binary_search_by_key(&id, |slot| slot.id) {
                Ok(at) if self.slots[at].held => return false,
                Ok(at) => self.slots[at].held = true,
                Err(at) => self.slots.insert(at, slot),
            }
        }
        self.held += 1;
        true
    }

    fn remove(&mut self, id: MessageId) -> bool {
        if self.slots.front().is_some_and(|first| first.id == id) {
            self.slots.pop_front();
        } else {
            let Ok(at) = self.slots.binary_search_by_key(&id, |slot| slot.id) else { return false };
            if !std::mem::take(&mut self.slots[at].held) {
                return false;
            }
        }
        self.held -= 1;
        while self.slots.front().is_some_and(|first| !first.held) {
            self.slots.pop_front();
        }
        // An id that stays for long must not keep the slots of all that were added and removed since.
        if self.slots.len() > 2 * self.held + 64 {
            self.slots.retain(|slot| slot.held);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 0u64..300), 0..800)) {
            let (mut ring, mut set) = (IdSet::default(), BTreeSet::new());
            for (add, retry, ms) in steps {
                let source = if retry { Source::Retry } else { Source::Log };
                let receipt = Receipt::new(source, MessageId::new(ms, 0));
                if add {
                    prop_assert_eq!(ring.insert(receipt), set.insert(receipt));
                } else {
                    prop_assert_eq!(ring.remove(receipt), set.remove(&receipt));
                }
                let first = set.iter().find(|receipt| receipt.source == Source::Log);
                prop_assert_eq!(ring.first_of_log(), first.map(|receipt| receipt.id));
                prop_assert_eq!(ring.len(), set.len());
                prop_assert!(ring.log.slots.len() <= 2 * ring.log.held + 65);
            }
        }
    }

    #[test]
    fn what_comes_and_goes_in_order_leaves_nothing() {
        let mut ring = IdSet::default();
        let receipt = |ms| Receipt::new(Source::Log, MessageId::new(ms, 0));
        for ms in 0..1_000 {
            assert!(ring.insert(receipt(ms)));
            if ms >= 10 {
                assert!(ring.remove(receipt(ms - 10)));
            }
            assert!(ring.log.slots.len() <= 11);
        }
    }
}
