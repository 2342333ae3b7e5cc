//! Entries of one consumer: in handlers, ready for one, or waiting to be settled; each with the time until which it is
//! ours.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Entry, Receipt};
use millstream_core::shared::{Shared, SharedMember};
use millstream_core::{Partition, wire};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use millstream_loops::LeaseClock;

/// Id of an entry among all partitions.
type Id = (Partition, Receipt);

/// One holding of an entry. After a fail-over that lost the end of a log, the server can assign the id of a lost entry
/// again: then two entries have the same id, one after the other, and what is decided about the first must not touch
/// the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::consumer) struct Key {
    pub(in crate::consumer) partition: Partition,
    pub(in crate::consumer) receipt: Receipt,
    /// Number of the holding. 0 for an entry that was never held: a ghost.
    serial: u64,
}

impl Key {
    /// Returns the key of an entry whose fields are gone: it is settled without ever being held.
    pub(in crate::consumer) fn ghost(partition: Partition, receipt: Receipt) -> Self {
        Self { partition, receipt, serial: 0 }
    }

    fn id(self) -> Id {
        (self.partition, self.receipt)
    }
}

/// Whether a settlement may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Standing {
    /// It may.
    Ours,
    /// Not yet: the reader has started over, and has not found the entry under our name so far.
    Unconfirmed,
    /// No more: somebody else has the entry, or the server has lost it.
    Gone,
}

/// Minimum number of claimed entries that may be in flight beside those that were read.
const FEWEST_CLAIMS: usize = 8;

/// The entries that one consumer holds.
#[derive(Debug)]
pub(in crate::consumer) struct SharedInFlight {
    state: Mutex<State>,
    /// Notified when an entry is no longer in flight.
    freed: Notify,
    /// The same, for the claim loop.
    unclaimed: Notify,
    /// Notified when entries were extended or lost.
    changed: Notify,
    /// Notified when a task waits for an entry to be extended.
    wanted: Notify,
    /// Notified when entries were admitted.
    came: Notify,
    /// Set if an entry is pending under our name and not in flight: the reader must start over.
    stray: AtomicBool,
    /// Maximum number of entries that are read and not settled.
    capacity: usize,
    /// Maximum number of entries that are claimed and not settled.
    claims: usize,
    /// Clock of the `until` of entries.
    pub(in crate::consumer) clock: Arc<LeaseClock>,
    /// How long an entry is certainly ours, counted from the request that read, claimed or extended it.
    trust: Duration,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeMap<Id, Held>,
    /// Number of holdings so far.
    serial: u64,
    /// Number of claimed entries among them.
    claimed: usize,
    /// Entries that were settled while the entries under our name are being read again, with the digests of their fields.
    settled_meanwhile: Option<BTreeMap<Id, u64>>,
    /// The same, of entries that were settled while a claim is under way: what it claimed is pending under our name, so
    /// the reader may have found it there before the answer arrived.
    settled_during_claim: Option<BTreeMap<Id, u64>>,
}

impl State {
    fn find(&mut self, key: Key) -> Option<&mut Held> {
        self.held.get_mut(&key.id()).filter(|held| held.serial == key.serial)
    }
}

#[derive(Debug)]
struct Held {
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
    /// Set once an outcome was decided: the settlement then shows whether the entry was still ours.
    decided: bool,
}

impl SharedInFlight {
    pub(in crate::consumer) fn new(
        capacity: usize,
        at_once: usize,
        ttl: Duration,
        clock: Arc<LeaseClock>,
    ) -> Self {
        Self {
            state: Mutex::default(),
            freed: Notify::new(),
            unclaimed: Notify::new(),
            changed: Notify::new(),
            wanted: Notify::new(),
            came: Notify::new(),
            stray: AtomicBool::new(false),
            capacity,
            clock,
            claims: at_once.max(FEWEST_CLAIMS),
            // A fifth is the margin for clocks that run at different speeds and for slow dispatch.
            trust: ttl - ttl / 5,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start of a rewind of these partitions: entries that are read from now on may be repeated. A held entry
    /// of them is settled only when it has been read again: the reader may have been cut off by a fail-over in which the
    /// server lost it.
    pub(in crate::consumer) fn begin_rewind(&self, partitions: &[Partition]) {
        let mut state = self.state();
        state.settled_meanwhile.get_or_insert_default();
        for ((partition, _), held) in &mut state.held {
            held.confirmed = !partitions.contains(partition);
        }
    }

    /// Marks the start of a read. Entries that were settled before appear in it only if the server has forgotten that,
    /// and must be handled again.
    pub(in crate::consumer) fn begin_read(&self) {
        if let Some(settled) = &mut self.state().settled_meanwhile {
            settled.clear();
        }
    }

    /// Marks the end of a rewind: entries that are read from now on are new, and held ones that were not read again are
    /// not ours any more. Their tokens are cancelled. Returns how many of them had no outcome.
    pub(in crate::consumer) fn end_rewind(&self) -> usize {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.settled_meanwhile.take().is_none() {
            return 0;
        }
        let (mut lost, mut claimed) = (0, 0);
        state.held.retain(|_, held| {
            if !held.confirmed {
                held.cancelled.cancel();
                lost += usize::from(!held.decided);
                claimed += usize::from(held.claimed);
            }
            held.confirmed
        });
        state.claimed -= claimed;
        drop(guard);
        self.notify();
        lost
    }

    /// Marks that nothing more is read: every held entry may be settled.
    pub(in crate::consumer) fn end_reading(&self) {
        self.state().held.values_mut().for_each(|held| held.confirmed = true);
        self.notify();
    }

    /// Marks the start of a claim.
    pub(in crate::consumer) fn begin_claim(&self) {
        self.state().settled_during_claim = Some(BTreeMap::new());
    }

    /// Marks the end of a claim: its entries are admitted.
    pub(in crate::consumer) fn end_claim(&self) {
        self.state().settled_during_claim = None;
    }

    fn notify(&self) {
        self.freed.notify_one();
        self.unclaimed.notify_one();
        self.changed.notify_waiters();
    }

    /// Returns whether a settlement may be sent.
    pub(in crate::consumer) fn standing(&self, key: Key) -> Standing {
        match self.state().find(key) {
            Some(held) if held.confirmed => Standing::Ours,
            Some(_) => Standing::Unconfirmed,
            None if key.serial == 0 => Standing::Ours,
            None => Standing::Gone,
        }
    }

    /// Returns a future that is ready when entries were confirmed, extended or removed since this call.
    pub(in crate::consumer) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(in crate::consumer) fn is_rewinding(&self) -> bool {
        self.state().settled_meanwhile.is_some()
    }

    /// Records that an entry is pending under our name and not in flight.
    pub(in crate::consumer) fn start_over(&self) {
        self.stray.store(true, Ordering::Release);
    }

    /// Returns once whether the reader must start over.
    pub(in crate::consumer) fn starts_over(&self) -> bool {
        self.stray.swap(false, Ordering::AcqRel)
    }

    /// Adds entries that a request of the time `asked` returned. Returns those that are not held yet and were not settled
    /// just now, with their keys.
    pub(in crate::consumer) fn admit(
        &self,
        partition: Partition,
        entries: Vec<Entry>,
        asked: Instant,
        claimed: bool,
    ) -> Vec<(Key, Entry)> {
        let until = asked + self.trust;
        let mut guard = self.state();
        let state = &mut *guard;
        let mut admitted = Vec::with_capacity(entries.len());
        for entry in entries {
            let (receipt, digest) = (entry.receipt, wire::digest(&entry.fields));
            let id = (partition, receipt);
            let meanwhile = if claimed { &state.settled_during_claim } else { &state.settled_meanwhile };
            if meanwhile.as_ref().is_some_and(|settled| settled.get(&id) == Some(&digest)) {
                continue;
            }
            if let Some(held) = state.held.get_mut(&id) {
                if held.digest == digest {
                    held.confirmed |= !claimed;
                    continue;
                }
                // The server has lost the entry that we hold, and assigned its id again.
                held.cancelled.cancel();
                state.claimed -= usize::from(held.claimed);
            }
            state.serial += 1;
            let (serial, cancelled) = (state.serial, CancellationToken::new());
            let held = Held { serial, digest, confirmed: true, until, cancelled, claimed, decided: false };
            state.held.insert(id, held);
            state.claimed += usize::from(claimed);
            admitted.push((Key { partition, receipt, serial }, entry));
        }
        drop(guard);
        self.came.notify_one();
        admitted
    }

    fn remove(&self, keys: impl Iterator<Item = Key>, settled: bool) {
        let mut guard = self.state();
        let state = &mut *guard;
        for key in keys {
            // Another entry with the same id may be held by now.
            if state.find(key).is_none() {
                continue;
            }
            let Some(held) = state.held.remove(&key.id()) else { continue };
            state.claimed -= usize::from(held.claimed);
            if !settled {
                held.cancelled.cancel();
                continue;
            }
            for done in [&mut state.settled_meanwhile, &mut state.settled_during_claim].into_iter().flatten()
            {
                done.insert(key.id(), held.digest);
            }
        }
        drop(guard);
        self.notify();
    }

    /// Removes entries that are settled.
    pub(in crate::consumer) fn settled(&self, keys: impl Iterator<Item = Key>) {
        self.remove(keys, true);
    }

    /// Removes entries that somebody else has, or that were settled, and cancels their tokens. Returns how many of them
    /// were held without an outcome.
    pub(in crate::consumer) fn lost(&self, keys: impl IntoIterator<Item = Key>) -> usize {
        let unknown = |key: &Key| self.state().find(*key).is_some_and(|held| !held.decided);
        let lost: Vec<Key> = keys.into_iter().filter(unknown).collect();
        let count = lost.len();
        self.remove(lost.into_iter(), false);
        count
    }

    /// Records that these entries were still ours at `asked`.
    pub(in crate::consumer) fn extended(&self, keys: impl Iterator<Item = Key>, asked: Instant) {
        let mut state = self.state();
        for key in keys {
            if let Some(held) = state.find(key) {
                held.until = held.until.max(asked + self.trust);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that an outcome was decided. False if the entry is not ours any more: the outcome is then not needed.
    pub(in crate::consumer) fn decided(&self, key: Key) -> bool {
        self.state().find(key).map(|held| held.decided = true).is_some()
    }

    /// Waits until the entry is certainly ours, usually at once, and returns its token. `None` if somebody else has it,
    /// or it is settled.
    pub(in crate::consumer) async fn live(&self, key: Key) -> Option<CancellationToken> {
        loop {
            // Created before the check, so that a change in between is not missed.
            let changed = self.changed.notified();
            match self.state().find(key) {
                None => return None,
                Some(held) if self.clock.now() < held.until => {
                    if held.cancelled.is_cancelled() {
                        held.cancelled = CancellationToken::new();
                    }
                    return Some(held.cancelled.clone());
                }
                Some(_) => {}
            }
            self.wanted.notify_one();
            changed.await;
        }
    }

    /// Waits until a task waits for entries to be extended.
    pub(in crate::consumer) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until entries were admitted.
    pub(in crate::consumer) async fn came(&self) {
        self.came.notified().await;
    }

    /// Cancels the tokens of entries that may belong to somebody else by now. Returns how many were cancelled now, and
    /// the next deadline.
    pub(in crate::consumer) fn expire(&self) -> (usize, Option<Instant>) {
        let (now, mut cancelled, mut next) = (self.clock.now(), 0, None);
        for held in self.state().held.values().filter(|held| !held.cancelled.is_cancelled()) {
            if held.until > now {
                next = Some(next.map_or(held.until, |next: Instant| next.min(held.until)));
            } else {
                held.cancelled.cancel();
                cancelled += 1;
            }
        }
        (cancelled, next)
    }

    /// Returns all entries that are to be extended, by partition.
    pub(in crate::consumer) fn all(&self) -> BTreeMap<Partition, Vec<Key>> {
        let mut all = BTreeMap::<Partition, Vec<Key>>::new();
        for ((partition, receipt), held) in &self.state().held {
            let key = Key { partition: *partition, receipt: *receipt, serial: held.serial };
            all.entry(*partition).or_default().push(key);
        }
        all
    }

    pub(in crate::consumer) fn len(&self) -> usize {
        self.state().held.len()
    }

    /// Waits until at least a quarter is free, so that reads come in batches, and returns how much is free. During a
    /// rewind that is a quarter at once: most of what is read then is held already, and waits to be confirmed.
    pub(in crate::consumer) async fn room(&self) -> usize {
        let enough = self.capacity.div_ceil(4);
        loop {
            let (held, claimed, rewinding) = {
                let state = self.state();
                (state.held.len(), state.claimed, state.settled_meanwhile.is_some())
            };
            let free = self.capacity.saturating_sub(held - claimed);
            if free >= enough || rewinding {
                return free.max(enough);
            }
            self.freed.notified().await;
        }
    }

    /// Returns how many entries may be claimed.
    pub(in crate::consumer) fn claim_room(&self) -> usize {
        self.claims.saturating_sub(self.state().claimed)
    }

    /// Waits until more entries may be claimed than before.
    pub(in crate::consumer) async fn unclaimed(&self) {
        self.unclaimed.notified().await;
    }
}

/// Lease on one entry, held by its handler.
pub(in crate::consumer) struct EntryLease {
    pub(in crate::consumer) in_flight: Arc<SharedInFlight>,
    pub(in crate::consumer) member: Arc<SharedMember>,
    pub(in crate::consumer) key: Key,
}

impl EntryLease {
    /// Asks the server at once whether the entry is still ours, and extends it for another ttl.
    pub(in crate::consumer) async fn extend(self: Arc<Self>, shared: Arc<dyn Shared>) -> Result<()> {
        let Key { partition, receipt, .. } = self.key;
        // Taken before the request: the ttl cannot have started earlier.
        let asked = self.in_flight.clock.now();
        let lost = shared.extend(&self.member, partition, &[receipt]).await?;
        if lost.is_empty() {
            self.in_flight.extended(std::iter::once(self.key), asked);
            return Ok(());
        }
        self.in_flight.lost([self.key]);
        Err(Error::new(
            ErrorKind::Fenced,
            format!("entry {} of partition {partition} is not held by this consumer", receipt.id),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::MessageId;
    use millstream_core::log::Source;
    use millstream_memory::SuspendableClock;

    const TTL: Duration = Duration::from_secs(10);

    fn entry(ms: u64) -> Entry {
        let receipt = Receipt { source: Source::Log, id: MessageId::new(ms, 0) };
        Entry::new(receipt, 1, Vec::new())
    }

    /// The key under which an entry is held; one that was never held if it is not.
    fn key(in_flight: &SharedInFlight, ms: u64) -> Key {
        let receipt = entry(ms).receipt;
        let mut all = in_flight.all().into_values().flatten();
        all.find(|key| key.receipt == receipt).unwrap_or(Key::ghost(Partition(0), receipt))
    }

    fn admit(in_flight: &SharedInFlight, ids: impl IntoIterator<Item = u64>, claimed: bool) -> usize {
        in_flight.admit(Partition(0), ids.into_iter().map(entry).collect(), Instant::now(), claimed).len()
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_live_until_its_deadline_and_again_when_it_was_extended() {
        let in_flight = Arc::new(SharedInFlight::new(8, 1, TTL, LeaseClock::new(None)));
        admit(&in_flight, [1, 3], false);
        let started = in_flight.live(key(&in_flight, 1)).await.expect("ours");
        assert!(in_flight.live(key(&in_flight, 2)).await.is_none());
        tokio::time::advance(TTL - TTL / 5).await;
        assert_eq!((in_flight.expire(), in_flight.expire()), ((2, None), (0, None)));
        assert!(started.is_cancelled(), "2 s before anybody can claim it");
        let wait = |ms| {
            let in_flight = in_flight.clone();
            tokio::spawn(async move { in_flight.live(key(&in_flight, ms)).await })
        };
        let (lost, kept) = (wait(1), wait(3));
        in_flight.wanted().await;
        assert!(!lost.is_finished() && !kept.is_finished());
        in_flight.lost([key(&in_flight, 1)]);
        in_flight.extended([key(&in_flight, 3)].into_iter(), Instant::now());
        assert!(lost.await.expect("no panic").is_none());
        assert!(!kept.await.expect("no panic").expect("ours again").is_cancelled());
        assert_eq!((in_flight.len(), in_flight.expire().1), (1, Some(Instant::now() + TTL - TTL / 5)));
    }

    #[tokio::test(start_paused = true)]
    async fn entries_of_a_suspended_machine_are_not_certain_any_more() {
        let machine = SuspendableClock::new();
        let clock = LeaseClock::new(Some(Arc::new(machine.clone())));
        let in_flight = Arc::new(SharedInFlight::new(8, 1, TTL, clock.clone()));
        in_flight.admit(Partition(0), vec![entry(1)], clock.now(), false);
        let started = in_flight.live(key(&in_flight, 1)).await.expect("ours");
        machine.suspend(TTL);
        let waiting = tokio::spawn({
            let in_flight = in_flight.clone();
            async move { in_flight.live(key(&in_flight, 1)).await }
        });
        in_flight.wanted().await;
        assert!(!waiting.is_finished(), "nothing begins");
        assert_eq!((in_flight.expire().0, started.is_cancelled()), (1, true));
        in_flight.extended([key(&in_flight, 1)].into_iter(), clock.now());
        assert!(waiting.await.expect("no panic").is_some(), "until it is certain again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_is_not_lost_but_settled() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        admit(&in_flight, [1, 2], false);
        assert!(in_flight.decided(key(&in_flight, 1)));
        assert_eq!(in_flight.lost([key(&in_flight, 1), key(&in_flight, 2), key(&in_flight, 3)]), 1);
        assert!(!in_flight.decided(key(&in_flight, 2)), "the outcome is not needed");
        in_flight.settled([key(&in_flight, 1)].into_iter());
        assert_eq!(in_flight.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_forgot_to_be_settled_is_handled_again() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        admit(&in_flight, [1], false);
        in_flight.begin_rewind(&[Partition(0)]);
        in_flight.settled([key(&in_flight, 1)].into_iter());
        assert_eq!(admit(&in_flight, [1], false), 0, "read before it was settled");
        in_flight.begin_read();
        assert_eq!(admit(&in_flight, [1], false), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_or_was_settled_meanwhile_is_not_admitted_again() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        assert_eq!(admit(&in_flight, [1, 2], false), 2);
        in_flight.begin_rewind(&[Partition(0)]);
        in_flight.settled([key(&in_flight, 1)].into_iter());
        assert_eq!(admit(&in_flight, [1, 2, 3], false), 1);
        in_flight.end_rewind();
        assert_eq!(admit(&in_flight, [1], false), 1, "later it would be a true redelivery");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_lost_is_given_up_when_the_reader_has_started_over() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        admit(&in_flight, [1, 2, 3], false);
        let (kept, lost, done) = (key(&in_flight, 1), key(&in_flight, 2), key(&in_flight, 3));
        let token = in_flight.live(lost).await.expect("ours");
        assert!(in_flight.decided(done));
        in_flight.begin_rewind(&[Partition(0)]);
        let standings = || [kept, lost, done].map(|key| in_flight.standing(key));
        assert_eq!(standings(), [Standing::Unconfirmed; 3]);
        assert_eq!((in_flight.room().await, admit(&in_flight, [1], false)), (5, 0));
        assert_eq!(in_flight.end_rewind(), 1, "of the third an outcome is known");
        assert_eq!(standings(), [Standing::Ours, Standing::Gone, Standing::Gone]);
        assert!(token.is_cancelled() && in_flight.len() == 1);
        in_flight.begin_rewind(&[Partition(7)]);
        assert_eq!(in_flight.standing(kept), Standing::Ours, "that partition is not read again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_that_is_assigned_again_is_another_entry() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        admit(&in_flight, [1], false);
        let before = key(&in_flight, 1);
        let token = in_flight.live(before).await.expect("ours");
        in_flight.begin_rewind(&[Partition(0)]);
        let other = || vec![Entry::new(entry(1).receipt, 1, vec![("payload".into(), "another".into())])];
        assert_eq!(in_flight.admit(Partition(0), other(), Instant::now(), false).len(), 1);
        assert!(token.is_cancelled() && !in_flight.decided(before) && in_flight.live(before).await.is_none());
        let after = key(&in_flight, 1);
        in_flight.settled([before].into_iter());
        assert!(in_flight.decided(after), "the outcome of the first does not count for the second");
        in_flight.settled([after].into_iter());
        assert_eq!(admit(&in_flight, [1], false), 1, "nor that of the second for a third");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_and_settled_before_the_answer_to_its_claim_is_not_handled_again() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        in_flight.begin_claim();
        in_flight.begin_rewind(&[Partition(0)]);
        assert_eq!(admit(&in_flight, [1], false), 1, "claimed, so it is pending under our name");
        in_flight.end_rewind();
        in_flight.settled([key(&in_flight, 1)].into_iter());
        assert_eq!(admit(&in_flight, [1, 2], true), 1);
        in_flight.end_claim();
        in_flight.begin_claim();
        assert_eq!(admit(&in_flight, [1], true), 1, "another claim of the same entry is a true redelivery");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_have_room_of_their_own() {
        let in_flight = SharedInFlight::new(4, 2, TTL, LeaseClock::new(None));
        admit(&in_flight, 1..=3, false);
        assert_eq!((in_flight.room().await, in_flight.claim_room()), (1, 8));
        admit(&in_flight, 10..=17, true);
        assert_eq!((in_flight.room().await, in_flight.claim_room()), (1, 0));
        in_flight.settled([key(&in_flight, 10), key(&in_flight, 1)].into_iter());
        assert_eq!((in_flight.room().await, in_flight.claim_room()), (2, 1));
    }
}
