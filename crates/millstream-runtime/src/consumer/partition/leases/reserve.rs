//! Reserves room for the entries of requests: of reads, which wait for it, and of claims.

use millstream_core::Partition;
use tokio::time::timeout;

use crate::consumer::partition::leases::entry_leases::EntryLeases;
use crate::consumer::partition::leases::room::Room;

impl EntryLeases {
    /// Waits until at least a quarter is free, so that reads come in batches, and reserves room for a read of these
    /// partitions: all of it, or half where there are `others` to read. During a rewind that is a quarter at once: most of
    /// what is read then is held already, and waits to be confirmed. Where large packs take the room, it is that for a read
    /// [beside](Reserved::full) them.
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
        let mut wait = self.starved;
        loop {
            let turn = self.turn.lock().await;
            // Created before the look, so that a change right after it is noticed.
            let (freed, lighter) = (self.freed.notified(), self.lighter.notified());
            let free = self.free(others);
            if is_silent() {
                return unreserved(1);
            }
            if free >= enough {
                let room = if others { free.div_ceil(2).max(enough) } else { free };
                return Reserved::new(self, partitions, false, (room, room));
            }
            let (beside, packs) =
                self.with_room(|room| (room.beside_packs(partitions, others), room.has_large_packs()));
            if let Some((room, full)) = beside {
                let reserved = if full.len() < partitions.len() { room } else { 0 };
                let mut reserved = Reserved::new(self, partitions, false, (room, reserved));
                reserved.full = full;
                return reserved;
            }
            let waited = if packs {
                // Others may be read, though these partitions may not.
                drop(turn);
                timeout(wait, lighter).await
            } else if others {
                timeout(wait, freed).await
            } else {
                freed.await;
                Ok(())
            };
            if waited.is_err() {
                // Perhaps all is held at a server that gives no answer: it is asked now.
                self.wanted.notify_one();
                wait *= 2;
            }
        }
    }

    /// Wakes those that wait for room.
    pub(super) fn freed(&self) {
        self.freed.notify_one();
        self.lighter.notify_waiters();
        self.unclaimed.notify_one();
    }

    /// Waits until something that is held is not any more.
    pub(in crate::consumer) async fn lighter(&self) {
        self.lighter.notified().await;
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
            let room = if silent { 0 } else { all.for_claims_of(partition, others).min(most) };
            all.take(true, partition, room);
            room
        });
        Reserved { leases: self, partition, claimed: true, room, reserved: room, full: Vec::new() }
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

    /// Returns how many entries may be claimed in the partition that has most room.
    pub(in crate::consumer) fn claim_room(&self, others: bool) -> usize {
        self.with_room(|room| room.for_claims(others))
    }

    /// Returns how many entries of a partition may be claimed.
    pub(in crate::consumer) fn claim_room_of(&self, partition: Partition, others: bool) -> usize {
        self.with_room(|room| room.for_claims_of(partition, others))
    }

    /// Waits until more entries of one of these partitions may be claimed than before, and any at all: a pack can be many more
    /// than there is room for.
    pub(in crate::consumer) async fn unclaimed(&self, partitions: &[Partition]) {
        loop {
            self.unclaimed.notified().await;
            if partitions.iter().any(|partition| self.claim_room_of(*partition, true) > 0) {
                return;
            }
        }
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
    /// The partitions whose logs must not be read: large packs of them are held, which take the room. Empty if all may be.
    pub(in crate::consumer) full: Vec<Partition>,
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
        Self { leases, partition, claimed, room, reserved, full: Vec::new() }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use millstream_core::MessageId;
    use millstream_core::log::{Entry, Receipt, Source};
    use millstream_engine::LeaseClock;
    use tokio::time::Instant;

    use super::*;

    const NEAR: Partition = Partition(0);
    const AWAY: Partition = Partition(1);
    const TTL: Duration = Duration::from_secs(12);

    fn leases() -> EntryLeases {
        EntryLeases::new(8, 1, TTL, LeaseClock::new(None))
    }

    fn admit(leases: &EntryLeases, partition: Partition, ids: std::ops::Range<u64>, claimed: bool) {
        let entry = |ms| {
            let receipt = Receipt::new(Source::Log, MessageId::new(ms, 0));
            Entry::new(receipt, 1, Vec::new())
        };
        let entries = ids.map(entry).collect();
        leases.admit(partition, entries, Instant::now(), claimed, |_| false);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_at_a_silent_server_brings_one_entry_and_takes_no_room() {
        let leases = leases();
        leases.silent(&[AWAY]);
        let away = leases.reserve(&[AWAY], true).await;
        assert_eq!((away.room, leases.free(true)), (1, 8));
        let near = leases.reserve(&[NEAR], true).await;
        assert_eq!((near.room, leases.free(true)), (4, 4), "half of it, since there are others");
        drop(near);
        // Though as much is held as may be, and nothing is free.
        admit(&leases, NEAR, 1..9, false);
        assert_eq!(leases.reserve(&[AWAY], true).now_or_never().map(|away| away.room), Some(1));
        assert!(leases.reserve(&[NEAR], true).now_or_never().is_none());
        leases.answered(&[AWAY]);
        assert!(leases.reserve(&[AWAY], true).now_or_never().is_none(), "it waits as the others do");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_more_is_claimed_at_a_silent_server() {
        let leases = leases();
        admit(&leases, AWAY, 1..9, true);
        assert_eq!((leases.claim_room(true), leases.reserve_claim(NEAR, 8, true).room), (0, 0));
        leases.silent(&[AWAY]);
        let away = leases.reserve_claim(AWAY, 8, true);
        assert_eq!((away.room, leases.claim_room(true)), (0, 8));
        let near = leases.reserve_claim(NEAR, 8, true);
        assert_eq!((near.room, leases.claim_room(true)), (8, 0), "what is held there takes none of it");
    }

    /// Which of them give no answer is known only when they are asked.
    #[tokio::test(start_paused = true)]
    async fn a_read_that_waits_for_room_has_the_servers_asked_soon() {
        let leases = leases();
        admit(&leases, AWAY, 1..9, false);
        let waiting = async {
            let reserved = leases.reserve(&[NEAR], true).await;
            reserved.room
        };
        let asked = async {
            let begun = Instant::now();
            leases.wanted().await;
            let after = begun.elapsed();
            leases.silent(&[AWAY]);
            after
        };
        let both = async { tokio::join!(waiting, asked) };
        let (room, after) = timeout(TTL, both).await.expect("it is asked");
        assert_eq!((room, after), (4, TTL / 12));
    }
}
