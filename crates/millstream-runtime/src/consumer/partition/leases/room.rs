//! Room for the entries of a consumer that shares its partitions: how many more it may read or claim.

use millstream_core::log::{Receipt, Source};
use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::{MessageId, Partition};

/// Counts what is taken of two limits: that of entries that are read, and that of entries that are claimed.
///
/// Entries of *silent* partitions, whose server gives no answer, cannot be settled until it does. So they are not counted where
/// other partitions are concerned, up to the limit: at most twice the limit is held in all. Those of partitions that are not read,
/// since they are paused, are not counted at all: they stay for as long as the pause does, and no more of them come.
///
/// A pack is held as a whole, and can be more messages than the limit. So that one of them does not keep other partitions from being
/// read, each pack has a *weight* of a quarter of the limit at the most: beside it, other partitions have the rest.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Room {
    reads: Taken,
    claims: Taken,
    /// Number of entries of retry logs among those that were read.
    retries: SortedMap<Partition, usize>,
    silent: SortedSet<Partition>,
    /// The partitions that are read; `None` for all.
    open: Option<SortedSet<Partition>>,
}

/// What is taken of one limit: entries that are held, and those that requests under way may bring.
#[derive(Debug, Default)]
struct Taken {
    limit: usize,
    /// Largest weight of a pack.
    heaviest: usize,
    by_partition: SortedMap<Partition, Load>,
    /// Number of messages that are held of each pack.
    packs: SortedMap<(Partition, MessageId), usize>,
}

/// What is taken by one partition, or by several.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    messages: usize,
    weight: usize,
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, weight: self.weight + other.weight }
    }

    /// Returns it less as much as can be left out.
    fn less(self, other: Self, most: usize) -> Self {
        Self {
            messages: self.messages - other.messages.min(most),
            weight: self.weight - other.weight.min(most),
        }
    }
}

impl Taken {
    fn new(limit: usize) -> Self {
        Self { limit, heaviest: limit.div_ceil(4), ..Self::default() }
    }

    fn add(&mut self, partition: Partition, messages: usize) {
        if messages > 0 {
            let load = self.by_partition.get_or_default(partition);
            *load = load.plus(Load { messages, weight: messages });
        }
    }

    fn remove(&mut self, partition: Partition, messages: usize, weight: usize) {
        let Some(load) = self.by_partition.get_mut(&partition) else { return };
        load.messages = load.messages.saturating_sub(messages);
        load.weight = load.weight.saturating_sub(weight);
        if load.messages == 0 {
            self.by_partition.remove(&partition);
        }
    }

    /// Counts one message of a pack, which weighs nothing if many others of it are held.
    fn add_packed(&mut self, partition: Partition, pack: MessageId) {
        let held = self.packs.get_or_default((partition, pack));
        *held += 1;
        let weight = usize::from(*held <= self.heaviest);
        let load = self.by_partition.get_or_default(partition);
        *load = load.plus(Load { messages: 1, weight });
    }

    fn remove_packed(&mut self, partition: Partition, pack: MessageId) {
        let Some(held) = self.packs.get_mut(&(partition, pack)) else { return };
        let weight = usize::from(*held <= self.heaviest);
        *held -= 1;
        if *held == 0 {
            self.packs.remove(&(partition, pack));
        }
        self.remove(partition, 1, weight);
    }

    fn of(&self, partition: Partition) -> Load {
        self.by_partition.get(&partition).copied().unwrap_or_default()
    }

    /// Returns what is counted if the entries of silent partitions are not, up to the limit.
    fn counted(&self, open: Option<&SortedSet<Partition>>, silent: &SortedSet<Partition>) -> Load {
        let (mut all, mut there) = (Load::default(), Load::default());
        for (partition, load) in &self.by_partition {
            if open.is_some_and(|open| !open.contains(partition)) {
                continue;
            }
            all = all.plus(*load);
            if silent.contains(partition) {
                there = there.plus(*load);
            }
        }
        all.less(there, self.limit)
    }
}

impl Room {
    /// Creates the room for this number of entries that are read, and of entries that are claimed.
    pub(in crate::consumer) fn new(reads: usize, claims: usize) -> Self {
        Self { reads: Taken::new(reads), claims: Taken::new(claims), ..Self::default() }
    }

    fn of(&mut self, claimed: bool) -> &mut Taken {
        if claimed { &mut self.claims } else { &mut self.reads }
    }

    /// Reserves room for entries of a partition that a request may bring.
    pub(in crate::consumer) fn take(&mut self, claimed: bool, partition: Partition, entries: usize) {
        self.of(claimed).add(partition, entries);
    }

    /// Ends a reservation.
    pub(in crate::consumer) fn give(&mut self, claimed: bool, partition: Partition, entries: usize) {
        self.of(claimed).remove(partition, entries, entries);
    }

    /// Counts a message that is held.
    pub(in crate::consumer) fn hold(&mut self, claimed: bool, partition: Partition, receipt: &Receipt) {
        if !claimed && receipt.source == Source::Retry {
            *self.retries.get_or_default(partition) += 1;
        }
        match receipt.pack {
            Some(_) => self.of(claimed).add_packed(partition, receipt.entry()),
            None => self.of(claimed).add(partition, 1),
        }
    }

    /// Counts it no more.
    pub(in crate::consumer) fn release(&mut self, claimed: bool, partition: Partition, receipt: &Receipt) {
        if !claimed
            && receipt.source == Source::Retry
            && let Some(held) = self.retries.get_mut(&partition)
        {
            *held = held.saturating_sub(1);
        }
        match receipt.pack {
            Some(_) => self.of(claimed).remove_packed(partition, receipt.entry()),
            None => self.of(claimed).remove(partition, 1, 1),
        }
    }

    /// Returns what is counted of one limit; with `others`, where partitions are read side by side, silent ones are not.
    fn counted(&self, claimed: bool, others: bool) -> Load {
        let silent = if others { &self.silent } else { const { &SortedSet::new() } };
        let taken = if claimed { &self.claims } else { &self.reads };
        taken.counted(self.open.as_ref(), silent)
    }

    /// Returns how many entries may be read.
    pub(in crate::consumer) fn for_reads(&self, others: bool) -> usize {
        self.reads.limit.saturating_sub(self.counted(false, others).messages)
    }

    /// Returns how many messages of these partitions may be read beside packs that take all the room, and the partitions whose
    /// logs must not be read, since as much is held of them as one pack weighs. `None` if nothing may be read.
    pub(in crate::consumer) fn beside_packs(
        &self,
        partitions: &[Partition],
        others: bool,
    ) -> Option<(usize, Vec<Partition>)> {
        let (counted, Taken { limit, heaviest, .. }) = (self.counted(false, others), &self.reads);
        if counted.messages == counted.weight {
            return None;
        }
        let is_full = |partition: &&Partition| self.reads.of(**partition).weight >= *heaviest;
        let full: Vec<Partition> = partitions.iter().filter(is_full).copied().collect();
        if full.len() < partitions.len() && limit.saturating_sub(counted.weight) >= *heaviest {
            return Some((*heaviest, full));
        }
        // Retries come one by one, so they can always be read. Those of partitions that are not read, or whose server gives no answer,
        // may stay for long.
        let counts = |partition: &Partition| {
            self.open.as_ref().is_none_or(|open| open.contains(partition))
                && !(others && self.silent.contains(partition))
        };
        let held: usize =
            self.retries.iter().filter(|(partition, _)| counts(partition)).map(|(_, held)| held).sum();
        let retries = heaviest.saturating_sub(held);
        (retries > 0).then(|| (retries, partitions.to_vec()))
    }

    /// Whether a pack is held that is larger than its weight.
    pub(in crate::consumer) fn has_large_packs(&self) -> bool {
        let all = self.counted(false, false);
        all.messages > all.weight
    }

    /// Returns how many entries may be claimed in the partition that has most room.
    pub(in crate::consumer) fn for_claims(&self, others: bool) -> usize {
        self.claims.limit.saturating_sub(self.counted(true, others).weight)
    }

    /// Returns how many entries of a partition may be claimed: what it has counts as it is, and packs of others by their weight.
    pub(in crate::consumer) fn for_claims_of(&self, partition: Partition, others: bool) -> usize {
        let Load { messages, weight } = self.claims.of(partition);
        self.for_claims(others).saturating_sub(messages - weight)
    }

    /// Marks whether the server of a partition gives no answer. Returns whether that has changed.
    pub(in crate::consumer) fn set_silent(&mut self, partition: Partition, silent: bool) -> bool {
        if silent { self.silent.insert(partition) } else { self.silent.remove(&partition) }
    }

    /// Whether the server of a partition gives no answer.
    pub(in crate::consumer) fn is_silent(&self, partition: Partition) -> bool {
        self.silent.contains(&partition)
    }

    /// Sets the partitions that are read.
    pub(in crate::consumer) fn set_open(&mut self, open: &[Partition]) {
        self.open = Some(open.iter().copied().collect());
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

    /// Counts a pack of so many messages.
    fn hold(room: &mut Room, claimed: bool, partition: Partition, count: u32) -> Vec<Receipt> {
        let pack = Receipt::of_pack(MessageId::new(u64::from(partition.0), 1_000), count).expect("room");
        pack.inspect(|receipt| room.hold(claimed, partition, receipt)).collect()
    }

    #[test]
    fn beside_a_large_pack_others_are_read_and_beside_four_of_them_retries_alone() {
        let mut room = Room::new(8, 8);
        let all = [0, 1, 2, 3, 4].map(Partition);
        let packs: Vec<_> = all[..4]
            .iter()
            .map(|partition| {
                let pack = hold(&mut room, false, *partition, 100);
                assert_eq!(room.for_reads(true), 0);
                (*partition, pack)
            })
            .collect();
        assert_eq!(room.beside_packs(&all, true), Some((2, all.to_vec())), "retries");
        let retry = Receipt::new(Source::Retry, MessageId::new(1, 0));
        let done = |room: &mut Room, count: usize| {
            packs[0].1[..count].iter().for_each(|receipt| room.release(false, packs[0].0, receipt));
        };
        room.hold(false, all[4], &retry);
        assert_eq!(room.beside_packs(&all, true), Some((1, all.to_vec())));
        room.release(false, all[4], &retry);
        done(&mut room, 98);
        assert_eq!(room.beside_packs(&all, true), Some((2, all.to_vec())), "as heavy as before");
        packs[0].1[98..].iter().for_each(|receipt| room.release(false, packs[0].0, receipt));
        assert_eq!(room.beside_packs(&all, true), Some((2, all[1..4].to_vec())));
        assert_eq!(room.beside_packs(&all[1..2], true), Some((2, all[1..2].to_vec())), "it alone: retries");
        for (partition, pack) in &packs[1..] {
            pack.iter().for_each(|receipt| room.release(false, *partition, receipt));
        }
        assert_eq!((room.for_reads(true), room.beside_packs(&all, true)), (8, None));
    }

    #[test]
    fn small_packs_count_as_their_messages_do() {
        let mut room = Room::new(8, 8);
        let [a, b] = [0, 1].map(Partition);
        hold(&mut room, false, a, 2);
        assert_eq!((room.for_reads(false), room.beside_packs(&[a, b], false)), (6, None));
        room.take(false, a, 6);
        assert_eq!((room.for_reads(false), room.beside_packs(&[a, b], false)), (0, None));
    }

    #[test]
    fn what_is_paused_takes_no_room() {
        let mut room = Room::new(8, 8);
        let [a, b] = [0, 1].map(Partition);
        hold(&mut room, false, a, 100);
        hold(&mut room, true, a, 100);
        room.set_open(&[b]);
        assert_eq!((room.for_reads(false), room.for_claims_of(b, false)), (8, 8));
        room.set_open(&[a, b]);
        assert_eq!((room.for_reads(false), room.for_claims_of(b, false)), (0, 6));
    }

    #[test]
    fn a_large_pack_that_was_claimed_keeps_none_from_claiming_elsewhere() {
        let mut room = Room::new(8, 8);
        let [a, b] = [0, 1].map(Partition);
        let pack = hold(&mut room, true, a, 100);
        assert_eq!((room.for_claims_of(a, true), room.for_claims_of(b, true)), (0, 6));
        pack[..95].iter().for_each(|receipt| room.release(true, a, receipt));
        assert_eq!((room.for_claims_of(a, true), room.for_claims_of(b, true)), (3, 6));
    }
}
