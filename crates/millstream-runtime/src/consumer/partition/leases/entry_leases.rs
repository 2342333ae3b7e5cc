//! The leases of entries of a consumer that shares its partitions. Its entries are in handlers, ready for one, or waiting to be
//! settled; each has the time until which it is ours.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::log::{Entry, Receipt, Source};
use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::{MessageId, Partition, wire};
use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::partition::leases::entry_lease::{Admitted, Id, Key, Live, NO_LEASE, Standing};
use crate::consumer::partition::leases::room::Room;
use millstream_engine::LeaseClock;

/// Minimum number of claimed entries that may be in flight beside those that were read.
const FEWEST_CLAIMS: usize = 8;

/// The leases of all entries of one consumer, in all partitions. They are shared with the loop that extends them: it runs on
/// the control thread, so that handlers cannot delay it.
#[derive(Debug)]
pub(in crate::consumer) struct EntryLeases {
    table: Mutex<Table>,
    /// Notified when an entry is no longer in flight.
    pub(super) freed: Notify,
    /// The same, for all that wait: reads beside large packs.
    pub(super) lighter: Notify,
    /// The same, for the claim loop.
    pub(super) unclaimed: Notify,
    /// Notified when entries were confirmed, extended or lost.
    changed: Notify,
    /// Number of these changes.
    version: AtomicU64,
    /// Notified when a worker waits for an entry to be extended.
    pub(super) wanted: Notify,
    /// Notified when a reader must start over.
    strayed: Notify,
    /// Notified when an entry has a deadline before the one that is watched.
    sooner: Notify,
    /// Held by the read that waits for room: reads get room in the order in which they ask for it.
    pub(super) turn: Turn<()>,
    /// Maximum number of entries that are read and not settled.
    pub(super) capacity: usize,
    /// Time for which a read waits for room before it is found out which servers give no answer.
    pub(super) starved: Duration,
    /// Clock of the `until` of entries.
    pub(in crate::consumer) clock: Arc<LeaseClock>,
    /// How long an entry is certainly ours, counted from the request that read, claimed or extended it.
    trust: Duration,
}

/// Settled entries, with the digests of their fields.
type Settled = SortedMap<Receipt, u64>;

#[derive(Debug, Default)]
struct Table {
    leases: BTreeMap<Id, LeaseState>,
    /// Number of leases so far.
    serial: u64,
    /// Number of poison candidates among them.
    candidates: usize,
    /// Room for more of them.
    room: Room,
    /// The partitions whose entries under our name are being read again, with those that were settled meanwhile.
    rewinding: SortedMap<Partition, Settled>,
    /// The partitions of which a claim is under way. What it claimed is pending under our name, so the reader may have found
    /// it there before the answer arrived.
    claiming: SortedMap<Partition, Settled>,
    /// The partitions in which an entry is pending under our name and not in flight: their reader must start over.
    stray: SortedSet<Partition>,
    /// The partitions in which a claim had no answer, until their reader has started over and found what it claimed.
    unanswered: SortedSet<Partition>,
    /// The earliest deadline when it was last looked for: the next look comes then. `None` if there was none.
    watched: Option<Instant>,
}

impl Table {
    fn count(&mut self, (partition, receipt): Id, lease: &LeaseState) {
        self.room.hold(lease.claimed, partition, &receipt);
        self.candidates += usize::from(lease.candidate);
    }

    fn discount(&mut self, (partition, receipt): Id, lease: &LeaseState) {
        self.room.release(lease.claimed, partition, &receipt);
        self.candidates -= usize::from(lease.candidate);
    }

    fn find(&mut self, key: Key) -> Option<&mut LeaseState> {
        self.leases.get_mut(&key.id()).filter(|lease| lease.serial == key.serial)
    }

    /// Adds a deadline. Returns whether it is before the one that is watched.
    fn watch(&mut self, until: Instant) -> bool {
        let sooner = self.watched.is_none_or(|watched| until < watched);
        if sooner {
            self.watched = Some(until);
        }
        sooner
    }
}

#[derive(Debug)]
struct LeaseState {
    serial: u64,
    /// Digest of the fields: another entry with the same id has another one.
    digest: u64,
    /// Unset from the moment that the reader starts over until it finds the entry under our name.
    confirmed: bool,
    /// Until then nobody else can have it.
    until: Instant,
    /// Cancelled when somebody else may have it. An entry that has not started gets a new token when it is ours again.
    cancelled: CancellationToken,
    claimed: bool,
    candidate: bool,
    /// Set once an outcome was decided: the settlement then shows whether the entry was still ours.
    decided: bool,
}

impl EntryLeases {
    pub(in crate::consumer) fn new(
        capacity: usize,
        at_once: usize,
        ttl: Duration,
        clock: Arc<LeaseClock>,
    ) -> Self {
        let room = Room::new(capacity, at_once.max(FEWEST_CLAIMS));
        Self {
            table: Mutex::new(Table { room, ..Table::default() }),
            freed: Notify::new(),
            lighter: Notify::new(),
            unclaimed: Notify::new(),
            changed: Notify::new(),
            version: AtomicU64::new(0),
            wanted: Notify::new(),
            strayed: Notify::new(),
            sooner: Notify::new(),
            turn: Turn::default(),
            capacity,
            // A quarter of the period in which entries are extended anyway.
            starved: ttl / 12,
            clock,
            // A fifth is the margin for clocks that run at different speeds and for slow dispatch.
            trust: ttl - ttl / 5,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks that these partitions are read from now on, and no others: entries of others are not read again, and take no room.
    pub(in crate::consumer) fn read_only(&self, partitions: &[Partition]) {
        let mut table = self.table();
        table.rewinding.retain(|partition, _| partitions.contains(partition));
        for ((partition, _), lease) in &mut table.leases {
            lease.confirmed |= !partitions.contains(partition);
        }
        table.room.set_open(partitions);
        drop(table);
        // What is held of a partition that is paused now takes no room from others.
        self.freed();
        self.change();
    }

    /// Marks the start of a rewind of these partitions: entries that are read from now on may be repeated. An entry
    /// of them is settled only when it has been read again: the reader may have been cut off by a fail-over in which the
    /// server lost it.
    pub(in crate::consumer) fn begin_rewind(&self, partitions: &[Partition]) {
        let mut table = self.table();
        for partition in partitions {
            table.rewinding.get_or_default(*partition);
        }
        for ((partition, _), lease) in &mut table.leases {
            lease.confirmed &= !partitions.contains(partition);
        }
    }

    /// Marks the start of a read of these partitions. Entries that were settled before appear in it only if the server has
    /// forgotten that, and must be handled again.
    pub(in crate::consumer) fn begin_read(&self, partitions: &[Partition]) {
        let mut table = self.table();
        for partition in partitions {
            if let Some(settled) = table.rewinding.get_mut(partition) {
                settled.clear();
            }
        }
    }

    /// Marks the end of a rewind of these partitions: entries that are read from now on are new, and those in flight that
    /// were not read again are not ours any more. Their tokens are cancelled. Returns how many of them had no outcome.
    pub(in crate::consumer) fn end_rewind(&self, partitions: &[Partition]) -> usize {
        let mut guard = self.table();
        let table = &mut *guard;
        let mut ended: SortedSet<Partition> = partitions.iter().copied().collect();
        ended.retain(|partition| table.rewinding.remove(partition).is_some());
        if ended.is_empty() {
            return 0;
        }
        // Unless it had no answer since the reader started over.
        table.unanswered.retain(|partition| !ended.contains(partition) || table.stray.contains(partition));
        let mut lost = 0;
        let gone = table.leases.iter().filter(|((of, _), lease)| !lease.confirmed && ended.contains(of));
        let gone: Vec<Id> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            let Some(lease) = table.leases.remove(&id) else { continue };
            lease.cancelled.cancel();
            lost += usize::from(!lease.decided);
            table.discount(id, &lease);
        }
        drop(guard);
        self.freed();
        self.change();
        lost
    }

    /// Marks that nothing more is read: every entry may be settled.
    pub(in crate::consumer) fn end_reading(&self) {
        self.table().leases.values_mut().for_each(|lease| lease.confirmed = true);
        self.change();
    }

    /// Marks the start of a claim of a partition.
    pub(in crate::consumer) fn begin_claim(&self, partition: Partition) {
        self.table().claiming.insert(partition, Settled::new());
    }

    /// Marks the end of a claim: its entries are admitted.
    pub(in crate::consumer) fn end_claim(&self, partition: Partition) {
        self.table().claiming.remove(&partition);
    }

    /// Records that a claim had no answer: what it claimed is pending under our name.
    pub(in crate::consumer) fn claim_unanswered(&self, partition: Partition) {
        self.table().unanswered.insert(partition);
        self.start_over(partition);
    }

    /// Whether an entry that the reader finds under our name may have been claimed: a claim is under way, or had no answer.
    /// Otherwise we have read it ourselves.
    pub(in crate::consumer) fn may_be_claimed(&self, partition: Partition) -> bool {
        let table = self.table();
        table.claiming.contains_key(&partition) || table.unanswered.contains(&partition)
    }

    fn change(&self) {
        self.version.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Returns whether a settlement may be sent.
    pub(in crate::consumer) fn standing(&self, key: Key) -> Standing {
        match self.table().find(key) {
            Some(lease) if lease.confirmed => Standing::Ours,
            Some(_) => Standing::Unconfirmed,
            None if key.serial == NO_LEASE => Standing::Ours,
            None => Standing::Gone,
        }
    }

    /// Returns a number that changes when entries are confirmed, extended or lost.
    pub(in crate::consumer) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until entries were confirmed, extended or lost since this version.
    pub(in crate::consumer) async fn changed_since(&self, version: u64) {
        loop {
            // Created before the check, so that a change in between is not missed.
            let changed = self.changed.notified();
            if self.version() != version {
                return;
            }
            changed.await;
        }
    }

    pub(in crate::consumer) fn is_rewinding(&self, partitions: &[Partition]) -> bool {
        let table = self.table();
        partitions.iter().any(|partition| table.rewinding.contains_key(partition))
    }

    /// Records that an entry of a partition is pending under our name and not in flight.
    pub(in crate::consumer) fn start_over(&self, partition: Partition) {
        self.table().stray.insert(partition);
        self.strayed.notify_waiters();
    }

    /// Waits until the reader of these partitions must start over.
    pub(in crate::consumer) async fn strayed(&self, partitions: &[Partition]) {
        loop {
            // Created before the check, so that one in between is not missed.
            let strayed = self.strayed.notified();
            if partitions.iter().any(|partition| self.table().stray.contains(partition)) {
                return;
            }
            strayed.await;
        }
    }

    /// Returns once whether the reader of these partitions must start over.
    pub(in crate::consumer) fn starts_over(&self, partitions: &[Partition]) -> bool {
        let mut table = self.table();
        partitions.iter().filter(|partition| table.stray.remove(partition)).count() > 0
    }

    /// Adds entries that a request of the time `asked` returned. Returns those that were not in flight yet and were not
    /// settled just now.
    pub(in crate::consumer) fn admit(
        &self,
        partition: Partition,
        entries: Vec<Entry>,
        asked: Instant,
        claimed: bool,
        is_candidate: impl Fn(&Entry) -> bool,
    ) -> Vec<Admitted> {
        let until = asked + self.trust;
        let mut guard = self.table();
        let table = &mut *guard;
        let mut admitted = Vec::with_capacity(entries.len());
        for entry in entries {
            let (receipt, digest) = (entry.receipt, wire::digest(&entry.fields));
            let id = (partition, receipt);
            let meanwhile = if claimed { &table.claiming } else { &table.rewinding };
            if meanwhile.get(&partition).is_some_and(|settled| settled.get(&receipt) == Some(&digest)) {
                continue;
            }
            if let Some(lease) = table.leases.get_mut(&id).filter(|lease| lease.digest == digest) {
                lease.confirmed |= !claimed;
                continue;
            }
            table.serial += 1;
            let (serial, cancelled, candidate) =
                (table.serial, CancellationToken::new(), is_candidate(&entry));
            let lease = LeaseState {
                serial,
                digest,
                confirmed: true,
                until,
                cancelled,
                claimed,
                candidate,
                decided: false,
            };
            table.count(id, &lease);
            if let Some(before) = table.leases.insert(id, lease) {
                // The server has lost the entry of this lease, and assigned its id again.
                before.cancelled.cancel();
                table.discount(id, &before);
            }
            admitted.push(Admitted { entry, serial });
        }
        // A claim that took long brings entries with less time than those that were read or extended meanwhile.
        let sooner = !admitted.is_empty() && table.watch(until);
        drop(guard);
        if sooner {
            self.sooner.notify_one();
        }
        admitted
    }

    fn remove(&self, keys: impl Iterator<Item = Key>, settled: bool) {
        let mut guard = self.table();
        let table = &mut *guard;
        for key in keys {
            // Another entry with the same id may be in flight by now.
            if table.find(key).is_none() {
                continue;
            }
            let Some(lease) = table.leases.remove(&key.id()) else { continue };
            table.discount(key.id(), &lease);
            if !settled {
                lease.cancelled.cancel();
                continue;
            }
            table.room.set_silent(key.partition, false);
            for open in [&mut table.rewinding, &mut table.claiming] {
                if let Some(settled) = open.get_mut(&key.partition) {
                    settled.insert(key.receipt, lease.digest);
                }
            }
        }
        drop(guard);
        self.freed();
        if !settled {
            self.change();
        }
    }

    /// Removes entries that are settled, or about to be given back: they are not extended any more. Their tokens stay as they
    /// are. If a reader or a claim finds them once more, in an answer of before, they are not admitted again.
    pub(in crate::consumer) fn settled(&self, keys: impl Iterator<Item = Key>) {
        self.remove(keys, true);
    }

    /// Removes entries that somebody else has, or that were settled elsewhere, and cancels their tokens. Returns how many. An
    /// entry whose outcome is decided stays: its settlement shows whether it was still ours.
    pub(in crate::consumer) fn lost(&self, keys: impl IntoIterator<Item = Key>) -> usize {
        let unknown = |key: &Key| self.table().find(*key).is_some_and(|lease| !lease.decided);
        let lost: Vec<Key> = keys.into_iter().filter(unknown).collect();
        let count = lost.len();
        self.remove(lost.into_iter(), false);
        count
    }

    /// Records that these entries were still ours at `asked`.
    pub(in crate::consumer) fn extended(&self, keys: impl Iterator<Item = Key>, asked: Instant) {
        let mut table = self.table();
        for key in keys {
            if let Some(lease) = table.find(key) {
                lease.until = lease.until.max(asked + self.trust);
            }
        }
        drop(table);
        self.change();
    }

    /// Records that an outcome was decided. False if the entry is not ours any more: the outcome is then not needed.
    pub(in crate::consumer) fn decided(&self, key: Key) -> bool {
        self.table().find(key).map(|lease| lease.decided = true).is_some()
    }

    /// Whether a handler of the entry may start now, and its token.
    pub(in crate::consumer) fn live(&self, key: Key) -> Live {
        let now = self.clock.now();
        let mut table = self.table();
        let Some(lease) = table.find(key) else { return Live::Gone };
        let until = lease.until;
        if now >= until {
            drop(table);
            self.wanted.notify_one();
            return Live::Uncertain;
        }
        let renewed = lease.cancelled.is_cancelled();
        if renewed {
            lease.cancelled = CancellationToken::new();
        }
        let cancelled = lease.cancelled.clone();
        // The deadline of a cancelled token is not watched.
        let sooner = renewed && table.watch(until);
        drop(table);
        if sooner {
            self.sooner.notify_one();
        }
        Live::Now(cancelled)
    }

    /// Waits until a worker waits for entries to be extended.
    pub(in crate::consumer) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until an entry has a deadline before the one that [`expire`](Self::expire) returned last.
    pub(in crate::consumer) async fn sooner(&self) {
        self.sooner.notified().await;
    }

    /// Cancels the tokens of entries that may belong to somebody else by now. Returns how many were cancelled now, and
    /// the next deadline.
    pub(in crate::consumer) fn expire(&self) -> (usize, Option<Instant>) {
        let (now, mut cancelled, mut next) = (self.clock.now(), 0, None);
        let mut table = self.table();
        for lease in table.leases.values().filter(|lease| !lease.cancelled.is_cancelled()) {
            if lease.until > now {
                next = Some(next.map_or(lease.until, |next: Instant| next.min(lease.until)));
            } else {
                lease.cancelled.cancel();
                cancelled += 1;
            }
        }
        table.watched = next;
        (cancelled, next)
    }

    /// Returns all entries that are to be extended, by partition.
    pub(in crate::consumer) fn all(&self) -> SortedMap<Partition, Vec<Key>> {
        let mut all = SortedMap::<Partition, Vec<Key>>::new();
        for ((partition, receipt), lease) in &self.table().leases {
            let key = Key { partition: *partition, receipt: *receipt, serial: lease.serial };
            all.get_or_default(*partition).push(key);
        }
        all
    }

    pub(in crate::consumer) fn len(&self) -> usize {
        self.table().leases.len()
    }

    /// Returns how many entries are poison candidates.
    pub(in crate::consumer) fn candidates(&self) -> usize {
        self.table().candidates
    }

    /// Returns the entries of a partition that have no outcome.
    pub(in crate::consumer) fn undecided(&self, partition: Partition) -> Vec<Key> {
        let table = self.table();
        let undecided = table.leases.iter().filter(|((of, _), lease)| *of == partition && !lease.decided);
        undecided
            .map(|((_, receipt), lease)| Key { partition, receipt: *receipt, serial: lease.serial })
            .collect()
    }

    /// Returns the entries of a partition that are in flight. One that is a pack is in flight as long as one of its messages is.
    pub(in crate::consumer) fn held(&self, partition: Partition) -> SortedSet<(Source, MessageId)> {
        let table = self.table();
        let first = (partition, Receipt::new(Source::Log, MessageId::ZERO));
        let held = table.leases.range(first..).map(|(id, _)| id).take_while(|(of, _)| *of == partition);
        held.map(|(_, receipt)| (receipt.source, receipt.entry())).collect()
    }

    /// Returns the serial number of the newest lease.
    pub(in crate::consumer) fn newest(&self) -> u64 {
        self.table().serial
    }

    /// Forgets the leases of a partition up to the serial number `newest`, since their worker has ended: the reader starts
    /// over, and finds the entries.
    pub(in crate::consumer) fn forget(&self, partition: Partition, newest: u64) {
        let keys = self.all().remove(&partition).unwrap_or_default();
        self.remove(keys.into_iter().filter(|key| key.serial <= newest), false);
        self.start_over(partition);
    }

    /// Runs this with the room for more entries.
    pub(super) fn with_room<T>(&self, run: impl FnOnce(&mut Room) -> T) -> T {
        run(&mut self.table().room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_memory::SuspendableClock;

    const TTL: Duration = Duration::from_secs(10);

    fn entry(ms: u64) -> Entry {
        let receipt = Receipt::new(Source::Log, MessageId::new(ms, 0));
        Entry::new(receipt, 1, Vec::new())
    }

    /// The key under which an entry is held; one that was never held if it is not.
    fn key(leases: &EntryLeases, ms: u64) -> Key {
        let receipt = entry(ms).receipt;
        let mut all = leases.all().into_values().flatten();
        all.find(|key| key.receipt == receipt).unwrap_or(Key {
            partition: Partition(0),
            receipt,
            serial: NO_LEASE,
        })
    }

    fn admit(leases: &EntryLeases, ids: impl IntoIterator<Item = u64>, claimed: bool) -> usize {
        let entries = ids.into_iter().map(entry).collect();
        leases.admit(Partition(0), entries, Instant::now(), claimed, |_| claimed).len()
    }

    async fn room(leases: &EntryLeases) -> usize {
        leases.reserve(&[Partition(0)], false).await.room
    }

    fn token(leases: &EntryLeases, key: Key) -> CancellationToken {
        match leases.live(key) {
            Live::Now(token) => token,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_live_until_its_deadline_and_again_when_it_was_extended() {
        let leases = Arc::new(EntryLeases::new(8, 1, TTL, LeaseClock::new(None)));
        admit(&leases, [1, 3], false);
        let started = token(&leases, key(&leases, 1));
        assert!(matches!(leases.live(key(&leases, 2)), Live::Gone));
        tokio::time::advance(TTL - TTL / 5).await;
        assert_eq!((leases.expire(), leases.expire()), ((2, None), (0, None)));
        assert!(started.is_cancelled(), "2 s before anybody can claim it");
        let (lost, kept) = (key(&leases, 1), key(&leases, 3));
        assert!(matches!((leases.live(lost), leases.live(kept)), (Live::Uncertain, Live::Uncertain)));
        leases.wanted().await;
        let version = leases.version();
        leases.lost([lost]);
        leases.extended([kept].into_iter(), Instant::now());
        leases.changed_since(version).await;
        assert!(matches!(leases.live(lost), Live::Gone));
        assert!(!token(&leases, kept).is_cancelled(), "ours again");
        assert_eq!((leases.len(), leases.expire().1), (1, Some(Instant::now() + TTL - TTL / 5)));
    }

    #[tokio::test(start_paused = true)]
    async fn entries_of_a_suspended_machine_are_not_certain_any_more() {
        let machine = SuspendableClock::new();
        let clock = LeaseClock::new(Some(Arc::new(machine.clone())));
        let leases = Arc::new(EntryLeases::new(8, 1, TTL, clock.clone()));
        leases.admit(Partition(0), vec![entry(1)], clock.now(), false, |_| false);
        let started = token(&leases, key(&leases, 1));
        machine.suspend(TTL);
        assert!(matches!(leases.live(key(&leases, 1)), Live::Uncertain), "nothing begins");
        leases.wanted().await;
        assert_eq!((leases.expire().0, started.is_cancelled()), (1, true));
        leases.extended([key(&leases, 1)].into_iter(), clock.now());
        assert!(!token(&leases, key(&leases, 1)).is_cancelled(), "until it is certain again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_is_not_lost_but_settled() {
        let leases = EntryLeases::new(8, 1, TTL, LeaseClock::new(None));
        admit(&leases, [1, 2], false);
        assert!(leases.decided(key(&leases, 1)));
        assert_eq!(leases.lost([key(&leases, 1), key(&leases, 2), key(&leases, 3)]), 1);
        assert!(!leases.decided(key(&leases, 2)), "the outcome is not needed");
        leases.settled([key(&leases, 1)].into_iter());
        assert_eq!(leases.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_forgot_to_be_settled_is_handled_again() {
        let leases = EntryLeases::new(8, 1, TTL, LeaseClock::new(None));
        admit(&leases, [1], false);
        leases.begin_rewind(&[Partition(0)]);
        leases.settled([key(&leases, 1)].into_iter());
        assert_eq!(admit(&leases, [1], false), 0, "read before it was settled");
        leases.begin_read(&[Partition(0)]);
        assert_eq!(admit(&leases, [1], false), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_or_was_settled_meanwhile_is_not_admitted_again() {
        let leases = EntryLeases::new(8, 1, TTL, LeaseClock::new(None));
        assert_eq!(admit(&leases, [1, 2], false), 2);
        leases.begin_rewind(&[Partition(0)]);
        leases.settled([key(&leases, 1)].into_iter());
        assert_eq!(admit(&leases, [1, 2, 3], false), 1);
        leases.end_rewind(&[Partition(0)]);
        assert_eq!(admit(&leases, [1], false), 1, "later it would be a true redelivery");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_lost_is_given_up_when_the_reader_has_started_over() {
        let leases = EntryLeases::new(8, 1, TTL, LeaseClock::new(None));
        admit(&leases, [1, 2, 3], false);
        let (kept, lost, done) = (key(&leases, 1), key(&leases, 2), key(&leases, 3));
        let token = token(&leases, lost);
        assert!(leases.decided(done));
        leases.begin_rewind(&[Partition(0)]);
        let standings = || [kept, lost, done].map(|key| leases.standing(key));
        assert_eq!(standings(), [Standing::Unconfirmed; 3]);
        assert_eq!((room(&leases).await, admit(&leases, [1], false)), (5, 0));
        assert_eq!(leases.end_rewind(&[Partition(0)]), 1, "of the third an outcome is known");
        assert_eq!(standings(), [Standing::Ours, Standing::Gone, Standing::Gone]);
        assert!(token.is_cancelled() && leases.len() == 1);
        leases.begin_rewind(&[Partition(7)]);
        assert_eq!(leases.standing(kept), Standing::Ours, "that partition is not read again");
        leases.begin_rewind(&[Partition(0)]);
        assert_eq!(leases.end_rewind(&[Partition(7)]), 0);
        assert_eq!(leases.standing(kept), Standing::Unconfirmed, "another one has ended");
        leases.read_only(&[Partition(7)]);
        assert_eq!(leases.standing(kept), Standing::Ours, "it is not read any more");
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_that_is_assigned_again_is_another_entry() {
        let leases = EntryLeases::new(8, 1, TTL, LeaseClock::new(None));
        admit(&leases, [1], false);
        let before = key(&leases, 1);
        let token = token(&leases, before);
        leases.begin_rewind(&[Partition(0)]);
        let other = || vec![Entry::new(entry(1).receipt, 1, vec![("payload".into(), "another".into())])];
        assert_eq!(leases.admit(Partition(0), other(), Instant::now(), false, |_| false).len(), 1);
        assert!(token.is_cancelled() && !leases.decided(before));
        assert!(matches!(leases.live(before), Live::Gone));
        let after = key(&leases, 1);
        leases.settled([before].into_iter());
        assert!(leases.decided(after), "the outcome of the first does not count for the second");
        leases.settled([after].into_iter());
        assert_eq!(admit(&leases, [1], false), 1, "nor that of the second for a third");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_and_settled_before_the_answer_to_its_claim_is_not_handled_again() {
        let leases = EntryLeases::new(8, 1, TTL, LeaseClock::new(None));
        leases.begin_claim(Partition(0));
        leases.begin_rewind(&[Partition(0)]);
        assert_eq!(admit(&leases, [1], false), 1, "claimed, so it is pending under our name");
        leases.end_rewind(&[Partition(0)]);
        leases.settled([key(&leases, 1)].into_iter());
        assert_eq!(admit(&leases, [1, 2], true), 1);
        leases.end_claim(Partition(0));
        leases.begin_claim(Partition(0));
        assert_eq!(admit(&leases, [1], true), 1, "another claim of the same entry is a true redelivery");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_have_room_of_their_own() {
        let leases = EntryLeases::new(4, 2, TTL, LeaseClock::new(None));
        admit(&leases, 1..=3, false);
        assert_eq!((room(&leases).await, leases.claim_room(false)), (1, 8));
        admit(&leases, 10..=17, true);
        assert_eq!((room(&leases).await, leases.claim_room(false), leases.candidates()), (1, 0, 8));
        leases.settled([key(&leases, 10), key(&leases, 1)].into_iter());
        assert_eq!((room(&leases).await, leases.claim_room(false), leases.candidates()), (2, 1, 7));
        leases.forget(Partition(0), leases.newest());
        assert_eq!((leases.len(), leases.candidates(), leases.starts_over(&[Partition(0)])), (0, 0, true));
    }
}
