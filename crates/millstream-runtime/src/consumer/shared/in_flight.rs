//! Entries of one consumer: in handlers, ready for one, or waiting to be settled; each with the time until which it is
//! ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::Partition;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Entry, Receipt};
use millstream_core::shared::{Shared, SharedMember};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use millstream_loops::LeaseClock;

/// Id of an entry among all partitions.
pub(in crate::consumer) type Key = (Partition, Receipt);

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
    held: BTreeMap<Key, Held>,
    /// Number of claimed entries among them.
    claimed: usize,
    /// Entries that were settled while the entries under our name are being read again.
    settled_meanwhile: Option<BTreeSet<Key>>,
}

#[derive(Debug)]
struct Held {
    /// Until then nobody else can have it.
    until: Instant,
    /// Cancelled when somebody else may have it. An entry that has not started gets a new token when it is ours again.
    cancelled: CancellationToken,
    claimed: bool,
    /// Set once an outcome was decided: the settlement then shows whether the entry was still ours.
    said: bool,
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

    /// Marks the start of a rewind: entries that are read from now on may be repeated.
    pub(in crate::consumer) fn begin_rewind(&self) {
        self.state().settled_meanwhile.get_or_insert_default();
    }

    /// Marks the start of a read. Entries that were settled before appear in it only if the server has forgotten that,
    /// and must be handled again.
    pub(in crate::consumer) fn begin_read(&self) {
        if let Some(settled) = &mut self.state().settled_meanwhile {
            settled.clear();
        }
    }

    /// Marks the end of a rewind: entries that are read from now on are new.
    pub(in crate::consumer) fn end_rewind(&self) {
        self.state().settled_meanwhile = None;
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
    /// just now.
    pub(in crate::consumer) fn admit(
        &self,
        partition: Partition,
        entries: Vec<Entry>,
        asked: Instant,
        claimed: bool,
    ) -> Vec<Entry> {
        let until = asked + self.trust;
        let mut guard = self.state();
        let state = &mut *guard;
        let mut admitted = entries;
        admitted.retain(|entry| {
            let key = (partition, entry.receipt);
            let done = state.settled_meanwhile.as_ref().is_some_and(|settled| settled.contains(&key));
            if done || state.held.contains_key(&key) {
                return false;
            }
            state.held.insert(key, Held { until, cancelled: CancellationToken::new(), claimed, said: false });
            state.claimed += usize::from(claimed);
            true
        });
        drop(guard);
        self.came.notify_one();
        admitted
    }

    fn remove(&self, keys: impl Iterator<Item = Key>, settled: bool) {
        let mut guard = self.state();
        let state = &mut *guard;
        for key in keys {
            if let Some(held) = state.held.remove(&key) {
                state.claimed -= usize::from(held.claimed);
                if !settled {
                    held.cancelled.cancel();
                }
            }
            if let (true, Some(done)) = (settled, &mut state.settled_meanwhile) {
                done.insert(key);
            }
        }
        drop(guard);
        self.freed.notify_one();
        self.unclaimed.notify_one();
        self.changed.notify_waiters();
    }

    /// Removes entries that are settled.
    pub(in crate::consumer) fn settled(&self, keys: impl Iterator<Item = Key>) {
        self.remove(keys, true);
    }

    /// Removes entries that somebody else has, or that were settled, and cancels their tokens. Returns how many of them
    /// were held without an outcome.
    pub(in crate::consumer) fn lost(&self, keys: impl IntoIterator<Item = Key>) -> usize {
        let unknown = |key: &Key| self.state().held.get(key).is_some_and(|held| !held.said);
        let lost: Vec<Key> = keys.into_iter().filter(unknown).collect();
        let count = lost.len();
        self.remove(lost.into_iter(), false);
        count
    }

    /// Records that these entries were still ours at `asked`.
    pub(in crate::consumer) fn extended(&self, keys: impl Iterator<Item = Key>, asked: Instant) {
        let mut state = self.state();
        for key in keys {
            if let Some(held) = state.held.get_mut(&key) {
                held.until = held.until.max(asked + self.trust);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that an outcome was decided. False if the entry is not ours any more: the outcome is then not needed.
    pub(in crate::consumer) fn say(&self, key: Key) -> bool {
        self.state().held.get_mut(&key).map(|held| held.said = true).is_some()
    }

    /// Waits until the entry is certainly ours, usually at once, and returns its token. `None` if somebody else has it,
    /// or it is settled.
    pub(in crate::consumer) async fn live(&self, key: Key) -> Option<CancellationToken> {
        loop {
            // Created before the check, so that a change in between is not missed.
            let changed = self.changed.notified();
            match self.state().held.get_mut(&key) {
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
        let (now, mut told, mut next) = (self.clock.now(), 0, None);
        for held in self.state().held.values().filter(|held| !held.cancelled.is_cancelled()) {
            if held.until > now {
                next = Some(next.map_or(held.until, |next: Instant| next.min(held.until)));
            } else {
                held.cancelled.cancel();
                told += 1;
            }
        }
        (told, next)
    }

    /// Returns all entries that are to be extended, by partition.
    pub(in crate::consumer) fn all(&self) -> BTreeMap<Partition, Vec<Receipt>> {
        let mut all = BTreeMap::<Partition, Vec<Receipt>>::new();
        for (partition, receipt) in self.state().held.keys() {
            all.entry(*partition).or_default().push(*receipt);
        }
        all
    }

    pub(in crate::consumer) fn len(&self) -> usize {
        self.state().held.len()
    }

    /// Waits until at least a quarter is free, so that reads come in batches, and returns how much is free.
    pub(in crate::consumer) async fn room(&self) -> usize {
        loop {
            let (held, claimed) = {
                let state = self.state();
                (state.held.len(), state.claimed)
            };
            let free = self.capacity.saturating_sub(held - claimed);
            if free >= self.capacity.div_ceil(4) {
                return free;
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
    pub(in crate::consumer) seat: Arc<SharedMember>,
    pub(in crate::consumer) key: Key,
}

impl EntryLease {
    /// Asks the server at once whether the entry is still ours, and extends it for another ttl.
    pub(in crate::consumer) async fn extend(self: Arc<Self>, shared: Arc<dyn Shared>) -> Result<()> {
        let (partition, receipt) = self.key;
        // Taken before the request: the ttl cannot have started earlier.
        let asked = self.in_flight.clock.now();
        let lost = shared.extend(&self.seat, partition, &[receipt]).await?;
        if lost.is_empty() {
            self.in_flight.extended(std::iter::once(self.key), asked);
            return Ok(());
        }
        self.in_flight.lost([self.key]);
        Err(Error::new(
            ErrorKind::Fenced,
            format!("entry {} of partition {partition} is not ours", receipt.id),
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
        Entry { receipt, deliveries: 1, fields: Vec::new(), note: None }
    }

    fn key(ms: u64) -> Key {
        (Partition(0), entry(ms).receipt)
    }

    fn admit(in_flight: &SharedInFlight, ids: impl IntoIterator<Item = u64>, claimed: bool) -> usize {
        in_flight.admit(Partition(0), ids.into_iter().map(entry).collect(), Instant::now(), claimed).len()
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_live_until_its_deadline_and_again_when_it_was_extended() {
        let in_flight = Arc::new(SharedInFlight::new(8, 1, TTL, LeaseClock::new(None)));
        admit(&in_flight, [1, 3], false);
        let started = in_flight.live(key(1)).await.expect("ours");
        assert!(in_flight.live(key(2)).await.is_none());
        tokio::time::advance(TTL - TTL / 5).await;
        assert_eq!((in_flight.expire(), in_flight.expire()), ((2, None), (0, None)));
        assert!(started.is_cancelled(), "2 s before anybody can claim it");
        let wait = |ms| {
            let in_flight = in_flight.clone();
            tokio::spawn(async move { in_flight.live(key(ms)).await })
        };
        let (lost, kept) = (wait(1), wait(3));
        in_flight.wanted().await;
        assert!(!lost.is_finished() && !kept.is_finished());
        in_flight.lost([key(1)]);
        in_flight.extended([key(3)].into_iter(), Instant::now());
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
        let started = in_flight.live(key(1)).await.expect("ours");
        machine.suspend(TTL);
        let waiting = tokio::spawn({
            let in_flight = in_flight.clone();
            async move { in_flight.live(key(1)).await }
        });
        in_flight.wanted().await;
        assert!(!waiting.is_finished(), "nothing begins");
        assert_eq!((in_flight.expire().0, started.is_cancelled()), (1, true));
        in_flight.extended([key(1)].into_iter(), clock.now());
        assert!(waiting.await.expect("no panic").is_some(), "until it is certain again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_is_not_lost_but_settled() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        admit(&in_flight, [1, 2], false);
        assert!(in_flight.say(key(1)));
        assert_eq!(in_flight.lost([key(1), key(2), key(3)]), 1);
        assert!(!in_flight.say(key(2)), "nobody wants to hear");
        in_flight.settled([key(1)].into_iter());
        assert_eq!(in_flight.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_forgot_to_be_settled_is_handled_again() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        admit(&in_flight, [1], false);
        in_flight.begin_rewind();
        in_flight.settled([key(1)].into_iter());
        assert_eq!(admit(&in_flight, [1], false), 0, "read before it was settled");
        in_flight.begin_read();
        assert_eq!(admit(&in_flight, [1], false), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_or_was_settled_meanwhile_is_not_admitted_again() {
        let in_flight = SharedInFlight::new(8, 1, TTL, LeaseClock::new(None));
        assert_eq!(admit(&in_flight, [1, 2], false), 2);
        in_flight.begin_rewind();
        in_flight.settled([key(1)].into_iter());
        assert_eq!(admit(&in_flight, [1, 2, 3], false), 1);
        in_flight.end_rewind();
        assert_eq!(admit(&in_flight, [1], false), 1, "later it would be a true redelivery");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_have_room_of_their_own() {
        let in_flight = SharedInFlight::new(4, 2, TTL, LeaseClock::new(None));
        admit(&in_flight, 1..=3, false);
        assert_eq!((in_flight.room().await, in_flight.claim_room()), (1, 8));
        admit(&in_flight, 10..=17, true);
        assert_eq!((in_flight.room().await, in_flight.claim_room()), (1, 0));
        in_flight.settled([key(10), key(1)].into_iter());
        assert_eq!((in_flight.room().await, in_flight.claim_room()), (2, 1));
    }
}
