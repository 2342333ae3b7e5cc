//! Permits: the units of each key in use, who waits for more, and the holders.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::{Call, OpenBreaker, PermitHolder, PermitState, Take, Taken, Want};
use millstream_core::rates::RateRecord;
use millstream_core::sorted::SortedMap;
use tokio::sync::Notify;

use crate::clock::Now;

#[derive(Clone, Debug, Default)]
pub(crate) struct PermitTable {
    pub(crate) holders: SortedMap<PermitHolder, HolderState>,
    /// Holders that were ended and still have something.
    pub(crate) ended: SortedMap<PermitHolder, HolderState>,
    records: HashMap<PermitKey, UnitRecord>,
    /// How far the tokens of rates are reserved.
    pub(crate) rates: HashMap<PermitKey, RateRecord>,
    /// Breakers that are not closed.
    pub(crate) breakers: SortedMap<PermitKey, OpenBreaker>,
    pub(crate) rules: LimitRules,
    /// Counter of calls.
    pub(crate) revision: u64,
    /// Notified at each of them.
    pub(crate) wake: Arc<Notify>,
}

#[derive(Clone, Debug)]
pub(crate) struct HolderState {
    pub(crate) expires: Now,
    pub(crate) ttl: Duration,
    /// Number of the last exchange.
    pub(crate) number: u64,
    /// What it has to know, with the number of each call.
    pub(crate) calls: VecDeque<(u64, Call)>,
    /// Keys of which it has units, or for which it waits.
    of: BTreeSet<PermitKey>,
}

#[derive(Clone, Debug)]
struct Waiter {
    holder: PermitHolder,
    cost: u32,
    since: u64,
}

#[derive(Clone, Debug, Default)]
struct UnitRecord {
    at_most: u32,
    has: SortedMap<PermitHolder, u32>,
    /// Who waits, for how many, and since when: the oldest first.
    queue: Vec<Waiter>,
    called: bool,
}

impl UnitRecord {
    fn used(&self) -> u32 {
        self.has.values().sum()
    }

    /// One that needs more than there may be gets it while nobody else has any.
    fn fits(&self, cost: u32) -> bool {
        let used = self.used();
        self.at_most > 0 && (used == 0 || used.saturating_add(cost) <= self.at_most)
    }

    fn place(&self, holder: &PermitHolder) -> Option<usize> {
        self.queue.iter().position(|other| other.holder == *holder)
    }

    fn leaves(&mut self, holder: &PermitHolder) {
        if let Some(place) = self.place(holder) {
            self.queue.remove(place);
            self.called &= place != 0;
        }
    }
}

impl PermitTable {
    /// Lets a holder join, or extends its right. `None` if it was ended, and does not join.
    pub(crate) fn renew(
        &mut self,
        holder: &PermitHolder,
        expires: Now,
        ttl: Duration,
        joining: bool,
    ) -> Option<()> {
        if let Some(known) = self.holders.get_mut(holder) {
            (known.expires, known.ttl) = (expires, ttl);
            return Some(());
        }
        let (calls, of) = (VecDeque::new(), BTreeSet::new());
        let new = HolderState { expires, ttl, number: 0, calls, of };
        joining.then(|| _ = self.holders.insert(holder.clone(), new))
    }

    pub(crate) fn has(&mut self, holder: &PermitHolder, key: &PermitKey, units: u32) {
        self.change(holder, key, |record| match record.has.get(holder).copied().unwrap_or(0).min(units) {
            0 => _ = record.has.remove(holder),
            units => _ = record.has.insert(holder.clone(), units),
        });
    }

    pub(crate) fn leaves(&mut self, holder: &PermitHolder, key: &PermitKey) {
        self.change(holder, key, |record| record.leaves(holder));
    }

    pub(crate) fn take(&mut self, holder: &PermitHolder, take: &Take) -> Taken {
        self.revision += 1;
        let mut since = self.revision;
        for Want { key, at_most, .. } in &take.wants {
            let record = self.records.entry(key.clone()).or_default();
            record.at_most = *at_most;
            since = record.place(holder).map_or(since, |place| record.queue[place].since.min(since));
        }
        for (n, Want { key, units, .. }) in take.wants.iter().enumerate() {
            let record = self.records.entry(key.clone()).or_default();
            // The oldest comes first, wherever it waits: two that are first for a key each, and need both, would turn in circles.
            let others_first =
                record.queue.first().is_some_and(|front| front.holder != *holder && front.since <= since);
            if others_first || !record.fits(*units) {
                if take.waits {
                    for other in &take.wants {
                        if let Some(record) = self.records.get_mut(&other.key) {
                            record.leaves(holder);
                        }
                    }
                    self.waits(holder, key, *units, since);
                }
                // Records that say nothing go.
                take.wants.iter().for_each(|want| self.settle(holder, &want.key));
                return Taken::Short(n);
            }
        }
        let mut contended = false;
        for Want { key, units, .. } in &take.wants {
            self.change(holder, key, |record| {
                record.leaves(holder);
                *record.has.get_or_default(holder.clone()) += units;
                contended |= !record.queue.is_empty();
            });
        }
        if contended { Taken::Contended } else { Taken::Granted }
    }

    fn waits(&mut self, holder: &PermitHolder, key: &PermitKey, cost: u32, since: u64) {
        let record = self.records.entry(key.clone()).or_default();
        // Who has units learns of the first other one that waits.
        let knows =
            |other: &PermitHolder| other == holder || record.queue.iter().any(|it| it.holder != *other);
        let told: Vec<_> = record.has.keys().filter(|other| !knows(other)).cloned().collect();
        let place = record.queue.partition_point(|other| other.since <= since);
        record.queue.insert(place, Waiter { holder: holder.clone(), cost, since });
        record.called &= place != 0;
        told.iter().for_each(|other| self.tell(other, Call::Wanted(key.clone())));
    }

    /// Frees up to `limit` keys of a holder that was ended. True if it has more.
    pub(crate) fn end(&mut self, holder: &PermitHolder, limit: usize) -> bool {
        if let Some(state) = self.holders.remove(holder) {
            self.ended.insert(holder.clone(), state);
        }
        let Some(state) = self.ended.get_mut(holder) else { return false };
        let keys: Vec<_> = std::iter::from_fn(|| state.of.pop_first()).take(limit).collect();
        let more = !state.of.is_empty();
        if !more {
            self.ended.remove(holder);
        }
        for key in keys {
            if let Some(record) = self.records.get_mut(&key) {
                record.has.remove(holder);
                record.leaves(holder);
            }
            self.call_next(&key);
        }
        more
    }

    /// Opens a breaker from this time on, or closes it. True if it was not open before, or is not closed by now.
    pub(crate) fn breaks(&mut self, key: &PermitKey, time: Duration, reason: &str, now_ms: u64) -> bool {
        if time.is_zero() {
            return self.breakers.remove(key).is_some();
        }
        let (now, reason) = (Timestamp::from_millis(now_ms), OpenBreaker::cut(reason).to_owned());
        let (since, until) = (self.breakers.get(key).map_or(now, |it| it.since), now.saturating_add(time));
        self.breakers.insert(key.clone(), OpenBreaker { key: key.clone(), since, until, reason }).is_none()
    }

    pub(crate) fn tell_all(&mut self, call: &Call) {
        let all: Vec<_> = self.holders.keys().cloned().collect();
        all.iter().for_each(|holder| self.tell(holder, call.clone()));
    }

    /// Returns the keys in use, in their order.
    pub(crate) fn usage(&self) -> Vec<PermitState> {
        let mut keys: Vec<_> = self.records.keys().collect();
        millstream_core::sorted::sort(&mut keys);
        let lives = |holder: &PermitHolder| self.holders.contains_key(holder);
        let states = keys.into_iter().map(|key| {
            let record = &self.records[key];
            let mut state = PermitState::new(key.clone(), record.at_most);
            let held = record.has.keys().zip(record.has.values()).filter(|(holder, _)| lives(holder));
            state.held = held.map(|(holder, units)| (holder.clone(), *units)).collect();
            state.waiting = record.queue.iter().map(|waiter| waiter.holder.clone()).filter(lives).collect();
            state
        });
        states.filter(|state| !state.held.is_empty() || !state.waiting.is_empty()).collect()
    }

    fn change(&mut self, holder: &PermitHolder, key: &PermitKey, change: impl FnOnce(&mut UnitRecord)) {
        change(self.records.entry(key.clone()).or_default());
        self.settle(holder, key);
    }

    /// Notes whether the holder has to do with the key, and calls who is next there.
    fn settle(&mut self, holder: &PermitHolder, key: &PermitKey) {
        let Some(record) = self.records.get(key) else { return };
        let has = record.has.contains_key(holder) || record.place(holder).is_some();
        if let Some(state) = self.holders.get_mut(holder) {
            if has {
                state.of.insert(key.clone())
            } else {
                state.of.remove(key)
            };
        }
        self.call_next(key);
    }

    fn call_next(&mut self, key: &PermitKey) {
        let Self { records, holders, .. } = self;
        let Some(record) = records.get_mut(key) else { return };
        // A holder that was ended has nothing any more, whatever the record says.
        record.has.retain(|holder, _| holders.contains_key(holder));
        let front = record.queue.first().map(|front| front.holder.clone());
        record.queue.retain(|waiter| holders.contains_key(&waiter.holder));
        record.called &= record.queue.first().map(|first| &first.holder) == front.as_ref();
        if record.has.is_empty() && record.queue.is_empty() {
            records.remove(key);
            return;
        }
        if let Some(front) = record.queue.first().cloned()
            && !record.called
            && record.fits(front.cost)
        {
            record.called = true;
            self.tell(&front.holder, Call::Free(key.clone()));
        }
    }

    fn tell(&mut self, holder: &PermitHolder, call: Call) {
        self.revision += 1;
        if let Some(state) = self.holders.get_mut(holder) {
            state.calls.push_back((self.revision, call));
            self.wake.notify_waiters();
        }
    }
}
