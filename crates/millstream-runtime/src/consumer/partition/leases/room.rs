//! Room for the entries of a consumer that shares its partitions: how many more it may read or claim.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::Partition;

/// Counts what is taken of two limits: that of entries that are read, and that of entries that are claimed.
///
/// Entries of *silent* partitions, whose server gives no answer, cannot be settled until it does. So they are not counted where
/// other partitions are concerned, up to the limit: at most twice the limit is held in all.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Room {
    reads: Taken,
    claims: Taken,
    silent: BTreeSet<Partition>,
}

/// What is taken of one limit: entries that are held, and those that requests under way may bring.
#[derive(Debug, Default)]
struct Taken {
    limit: usize,
    total: usize,
    by_partition: BTreeMap<Partition, usize>,
}

impl Taken {
    fn add(&mut self, partition: Partition, entries: usize) {
        if entries > 0 {
            self.total += entries;
            *self.by_partition.entry(partition).or_default() += entries;
        }
    }

    fn remove(&mut self, partition: Partition, entries: usize) {
        let Some(taken) = self.by_partition.get_mut(&partition) else { return };
        let entries = entries.min(*taken);
        *taken -= entries;
        self.total -= entries;
        if *taken == 0 {
            self.by_partition.remove(&partition);
        }
    }

    /// Returns what is free if the entries of these partitions are not counted.
    fn free_without(&self, silent: &BTreeSet<Partition>) -> usize {
        let there = silent.iter().filter_map(|partition| self.by_partition.get(partition)).sum::<usize>();
        self.limit.saturating_sub(self.total - there.min(self.limit))
    }
}

impl Room {
    /// Creates the room for this number of entries that are read, and of entries that are claimed.
    pub(in crate::consumer) fn new(reads: usize, claims: usize) -> Self {
        let of = |limit| Taken { limit, ..Taken::default() };
        Self { reads: of(reads), claims: of(claims), silent: BTreeSet::new() }
    }

    fn of(&mut self, claimed: bool) -> &mut Taken {
        if claimed { &mut self.claims } else { &mut self.reads }
    }

    /// Counts entries of a partition that are held, or that a request may bring.
    pub(in crate::consumer) fn take(&mut self, claimed: bool, partition: Partition, entries: usize) {
        self.of(claimed).add(partition, entries);
    }

    /// Counts them no more.
    pub(in crate::consumer) fn give(&mut self, claimed: bool, partition: Partition, entries: usize) {
        self.of(claimed).remove(partition, entries);
    }

    /// Returns how many entries may be read; with `others`, where partitions are read side by side, silent ones are not
    /// counted.
    pub(in crate::consumer) fn for_reads(&self, others: bool) -> usize {
        self.reads.free_without(if others { &self.silent } else { const { &BTreeSet::new() } })
    }

    /// The same for claims.
    pub(in crate::consumer) fn for_claims(&self, others: bool) -> usize {
        self.claims.free_without(if others { &self.silent } else { const { &BTreeSet::new() } })
    }

    /// Marks whether the server of a partition gives no answer. Returns whether that has changed.
    pub(in crate::consumer) fn set_silent(&mut self, partition: Partition, silent: bool) -> bool {
        if silent { self.silent.insert(partition) } else { self.silent.remove(&partition) }
    }

    /// Whether the server of a partition gives no answer.
    pub(in crate::consumer) fn is_silent(&self, partition: Partition) -> bool {
        self.silent.contains(&partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_a_silent_server_takes_no_room_from_others_up_to_the_limit() {
        let mut room = Room::new(8, 4);
        let [near, away] = [0, 1].map(Partition);
        room.take(false, away, 8);
        room.take(true, away, 4);
        assert_eq!((room.for_reads(true), room.for_claims(true)), (0, 0));
        assert!(room.set_silent(away, true) && !room.set_silent(away, true));
        assert_eq!((room.for_reads(true), room.for_claims(true)), (8, 4));
        assert_eq!((room.for_reads(false), room.for_claims(false)), (0, 0), "there are no others");
        room.take(false, near, 8);
        assert_eq!(room.for_reads(true), 0, "twice the limit is held");
        room.take(false, away, 3);
        room.give(false, near, 8);
        assert_eq!(room.for_reads(true), 5, "no more than the limit is left out");
        assert!(room.set_silent(away, false));
        room.take(false, near, 1);
        assert_eq!(room.for_reads(true), 0, "it answers again, and more than the limit is held");
        room.give(false, away, 11);
        assert_eq!(room.for_reads(true), 7);
        room.give(false, away, 1);
        assert_eq!(room.for_reads(true), 7, "nothing was taken there");
    }
}
