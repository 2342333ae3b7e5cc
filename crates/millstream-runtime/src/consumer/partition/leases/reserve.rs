//! Reserves room for the entries of requests: of reads, which wait for it, and of claims.

use millstream_core::Partition;
use tokio::time::timeout;

use crate::consumer::partition::leases::entry_leases::EntryLeases;
use crate::consumer::partition::leases::room::Room;

impl EntryLeases {
    /// Waits until at least a quarter is free, so that reads come in batches, and reserves room for a read of these
    /// partitions: all of it, or half where there are `others` to read. During a rewind that is a quarter at once: most of
    /// what is read then is held already, and waits to be confirmed.
    pub(in crate::consumer) async fn reserve(&self, partitions: &[Partition], others: bool) -> Reserved<'_> {
        let enough = self.capacity.div_ceil(4);
        let unreserved = |room| Reserved::new(self, partitions, false, (room, 0));
        if self.is_rewinding(partitions) {
            // Nothing is kept from other reads: this one may be of a server that gives no answer.
            return unreserved(if others { enough } else { self.free(others).max(enough) });
        }
        let is_silent =
            || others && partitions.iter().any(|partition| self.with_room(|room| room.is_silent(*partition)));
        if is_silent() {
            // One entry shows that its server answers again, and keeps nothing from other reads.
            return unreserved(1);
        }
        let _turn = self.turn.lock().await;
        let mut wait = self.starved;
        loop {
            let free = self.free(others);
            if is_silent() {
                return unreserved(1);
            }
            if free >= enough {
                let room = if others { free.div_ceil(2).max(enough) } else { free };
                return Reserved::new(self, partitions, false, (room, room));
            }
            if !others {
                self.freed.notified().await;
            } else if timeout(wait, self.freed.notified()).await.is_err() {
                // Perhaps all is held at a server that gives no answer: it is asked now.
                self.wanted.notify_one();
                wait *= 2;
            }
        }
    }

    /// Reserves room for claimed entries of a partition, at most `most`; none if its server gives no answer, while there
    /// are `others`.
    pub(in crate::consumer) fn reserve_claim(
        &self,
        partition: Partition,
        most: usize,
        others: bool,
    ) -> Reserved<'_> {
        let room = self.with_room(|all| {
            let silent = others && all.is_silent(partition);
            let room = if silent { 0 } else { all.for_claims(others).min(most) };
            all.take(true, partition, room);
            room
        });
        Reserved { leases: self, partition, claimed: true, room, reserved: room }
    }

    /// Marks that the server of these partitions has not answered for a while. What is held there takes no room from others.
    pub(in crate::consumer) fn silent(&self, partitions: &[Partition]) {
        self.set_silent(partitions.iter().copied(), true);
    }

    /// Marks that the server of these partitions answers.
    pub(in crate::consumer) fn answered(&self, partitions: &[Partition]) {
        self.set_silent(partitions.iter().copied(), false);
    }

    fn set_silent(&self, partitions: impl Iterator<Item = Partition>, silent: bool) {
        // Each of them, so no `any`.
        let set = |room: &mut Room| partitions.filter(|it| room.set_silent(*it, silent)).count();
        if self.with_room(set) > 0 {
            self.freed();
        }
    }

    /// Returns how many entries may be read.
    fn free(&self, others: bool) -> usize {
        self.with_room(|room| room.for_reads(others))
    }

    /// Returns how many entries may be claimed.
    pub(in crate::consumer) fn claim_room(&self, others: bool) -> usize {
        self.with_room(|room| room.for_claims(others))
    }

    /// Waits until more entries may be claimed than before.
    pub(in crate::consumer) async fn unclaimed(&self) {
        self.unclaimed.notified().await;
    }
}

/// Room for the entries of a request, until they are admitted.
pub(in crate::consumer) struct Reserved<'a> {
    leases: &'a EntryLeases,
    /// The partition that it is counted for: one of those of the request.
    partition: Partition,
    claimed: bool,
    /// Number of entries.
    pub(in crate::consumer) room: usize,
    /// Number of them that other requests leave room for.
    reserved: usize,
}

impl<'a> Reserved<'a> {
    fn new(
        leases: &'a EntryLeases,
        partitions: &[Partition],
        claimed: bool,
        (room, reserved): (usize, usize),
    ) -> Self {
        let partition = partitions.first().copied().unwrap_or(Partition(0));
        leases.with_room(|room| room.take(claimed, partition, reserved));
        Self { leases, partition, claimed, room, reserved }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.reserved > 0 {
            self.leases.with_room(|room| room.give(self.claimed, self.partition, self.reserved));
            self.leases.freed();
        }
    }
}
