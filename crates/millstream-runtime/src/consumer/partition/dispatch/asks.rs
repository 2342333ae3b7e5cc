//! How much of a limit each tenant asks for at once, if tenants are served in turns. Without a clock.
//!
//! Who waits for a limit is served in the order of asking. So a tenant that floods a partition may not ask for everything that it has: of one key
//! for a few messages, and for each that got an answer one more. The others wait here, and ask nobody.

use std::collections::{HashMap, HashSet};

use millstream_core::limits::PermitKey;
use millstream_engine::Priorities;
use millstream_engine::fairness::TenantId;
use millstream_engine::limits::Needs;
use millstream_engine::priorities::{Head, LaneQueues, Rank};

use crate::consumer::partition::dispatch::gate::Asker;
use crate::consumer::partition::dispatch::key_queues::KeyQueue;

/// Messages of a tenant that ask for units of one key at once: enough that one waits whenever units come back. Another tenant waits for no more.
const MOST: usize = 8;
/// The same for tokens, of which as many ask as are reserved together, so that a request of the server has as many. A rule of an operator may
/// be much slower than what the program states.
const MOST_OF_TOKENS: usize = 64;
/// Messages that are moved from one key to another at once. So one end of a message costs no more, however many wait.
const MOVED: usize = 16;

/// A key of which a message needs something, and how many messages of its tenant may ask for it at once.
#[derive(Clone, Debug)]
pub(in crate::consumer) struct Asked {
    key: PermitKey,
    most: usize,
}

impl Asked {
    /// Whether it is this key.
    pub(in crate::consumer) fn is(&self, key: &PermitKey) -> bool {
        self.key == *key
    }

    /// Returns the keys of what a message needs.
    pub(in crate::consumer) fn of(needs: &Needs) -> Box<[Self]> {
        let of_tokens =
            |chunk: u32| usize::try_from(chunk).unwrap_or(MOST_OF_TOKENS).clamp(MOST, MOST_OF_TOKENS);
        let units = needs.units.iter().map(|need| (&need.key, MOST));
        let tokens = needs.tokens.iter().map(|need| (&need.key, of_tokens(need.rate.chunk())));
        let breakers = needs.breakers.iter().map(|need| (&need.key, MOST));
        let all = units.chain(tokens).chain(breakers);
        all.map(|(key, most)| Self { key: key.clone(), most }).collect()
    }
}

/// A key, for one tenant.
type Place = (TenantId, PermitKey);

/// A message that asks later.
#[derive(Debug)]
pub(in crate::consumer) struct Later {
    pub(in crate::consumer) asker: Asker,
    /// Its number in the order of arrival, and its lane.
    pub(in crate::consumer) number: u64,
    pub(in crate::consumer) rank: Rank,
    /// What it needs.
    pub(in crate::consumer) keys: Box<[Asked]>,
    /// Its queue, which is blocked.
    pub(in crate::consumer) queue: KeyQueue,
    /// Whether it has been let go before, and there was no room for another key that it needs. Then it asks for all when it is next: or it might
    /// never, since the place that it left is taken at once.
    pub(in crate::consumer) was_next: bool,
}

/// What tenants ask for, and the queues of messages that do not yet.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Asks {
    priorities: Option<Priorities>,
    places: HashMap<Place, OfKey>,
    /// Messages that may ask now, and have not come up since, with `was_next`.
    coming: HashMap<Asker, (Place, bool)>,
    /// Where messages wait although there is room: the first ones need other keys, of which there is none.
    stalled: HashMap<TenantId, HashSet<PermitKey>>,
    /// Queues of messages that may ask, for the caller.
    freed: Vec<KeyQueue>,
}

/// One key for one tenant. While something waits here, at least one message is open or coming, or the place is stalled: so it goes on.
#[derive(Debug, Default)]
struct OfKey {
    most: usize,
    /// Messages that have asked, and may wait for this key.
    open: usize,
    coming: usize,
    /// What waits, by its queue: the highest lane is first, as for handlers.
    waiting: HashMap<usize, Later>,
    lanes: LaneQueues,
}

impl OfKey {
    fn has_room(&self) -> bool {
        self.open + self.coming < self.most.max(1)
    }

    fn push(&mut self, later: Later) {
        let (Rank { lane, came }, at) = (later.rank, later.queue.index());
        self.lanes.enter(lane);
        self.lanes.push(lane, Head { number: later.number, at, came });
        self.waiting.insert(at, later);
    }

    /// Removes the next one, with what its lane is charged.
    fn pop(&mut self, priorities: Option<&Priorities>) -> Option<(Later, u64)> {
        let later = self.waiting.remove(&self.lanes.pop(priorities)?)?;
        let charged = self.lanes.begin(later.rank, priorities);
        Some((later, charged))
    }
}

impl Asks {
    pub(in crate::consumer) fn new(priorities: Option<&Priorities>) -> Self {
        Self { priorities: priorities.cloned(), ..Self::default() }
    }

    /// Returns a key of which the tenant of a message that has come up asks for enough already: then it [waits](Self::wait). Otherwise it is to
    /// ask, or to [pass](Self::passes).
    pub(in crate::consumer) fn full(
        &mut self,
        asker: Asker,
        tenant: TenantId,
        keys: &[Asked],
    ) -> Option<PermitKey> {
        if self.places.is_empty() {
            return None;
        }
        let full = match self.coming.get(&asker) {
            Some((_, true)) => return None,
            Some((own, false)) => self.full_of(Some(own), tenant, keys)?,
            None => self.full_of(None, tenant, keys)?,
        };
        self.passes(asker);
        Some(full)
    }

    /// Returns a key that has no room for a message, which counts itself as coming at this place.
    fn full_of(&self, own: Option<&Place>, tenant: TenantId, keys: &[Asked]) -> Option<PermitKey> {
        let full = keys.iter().find(|asked| {
            let place = (tenant, asked.key.clone());
            let own = usize::from(own == Some(&place));
            self.places.get(&place).is_some_and(|it| it.open + it.coming - own >= asked.most)
        });
        full.map(|asked| asked.key.clone())
    }

    /// Records that the message waits until fewer of its tenant ask for this key.
    pub(in crate::consumer) fn wait(&mut self, tenant: TenantId, key: PermitKey, later: Later) {
        let place = (tenant, key);
        self.places.entry(place.clone()).or_default().push(later);
        self.go_on(&place);
    }

    /// Records that a message has asked, and may wait for any of these keys.
    pub(in crate::consumer) fn open(&mut self, asker: Asker, tenant: TenantId, keys: &[Asked]) {
        for Asked { key, most } in keys {
            let of_key = self.places.entry((tenant, key.clone())).or_default();
            of_key.open += 1;
            of_key.most = *most;
        }
        self.passes(asker);
    }

    /// Records that a message that has asked waits for none of these keys.
    pub(in crate::consumer) fn close(&mut self, tenant: TenantId, keys: impl IntoIterator<Item = Asked>) {
        let places: Vec<_> = keys.into_iter().map(|Asked { key, .. }| (tenant, key)).collect();
        for place in &places {
            if let Some(of_key) = self.places.get_mut(place) {
                of_key.open -= 1;
            }
        }
        places.iter().for_each(|place| self.go_on(place));
        self.go_on_stalled(tenant);
    }

    /// Records that a message which may have been let go has asked, needs not to ask, or is gone.
    pub(in crate::consumer) fn passes(&mut self, asker: Asker) {
        if let Some((place, _)) = self.coming.remove(&asker) {
            if let Some(of_key) = self.places.get_mut(&place) {
                of_key.coming -= 1;
            }
            self.go_on(&place);
            self.go_on_stalled(place.0);
        }
    }

    fn go_on_stalled(&mut self, tenant: TenantId) {
        for key in self.stalled.remove(&tenant).unwrap_or_default() {
            self.go_on(&(tenant, key));
        }
    }

    /// Lets as many of a key ask as may. One that needs another key too, of which there is no room, waits for that one instead.
    fn go_on(&mut self, place: &Place) {
        let mut moved = 0;
        while let Some(of_key) = self.places.get_mut(place)
            && of_key.has_room()
        {
            if moved == MOVED && !of_key.waiting.is_empty() {
                self.stalled.entry(place.0).or_default().insert(place.1.clone());
                return;
            }
            let Some((mut later, charged)) = of_key.pop(self.priorities.as_ref()) else { break };
            let full = if later.was_next { None } else { self.full_of(None, place.0, &later.keys) };
            if let Some(other) = full {
                moved += 1;
                if let Some(of_key) = self.places.get_mut(place) {
                    of_key.lanes.undo(later.rank.lane, charged);
                    of_key.lanes.leave(later.rank.lane);
                }
                later.was_next = true;
                self.places.entry((place.0, other)).or_default().push(later);
                continue;
            }
            if let Some(of_key) = self.places.get_mut(place) {
                of_key.coming += 1;
            }
            self.coming.insert(later.asker, (place.clone(), later.was_next));
            self.freed.push(later.queue);
        }
        let is_over = |it: &OfKey| it.open == 0 && it.coming == 0 && it.waiting.is_empty();
        if self.places.get(place).is_some_and(is_over) {
            self.places.remove(place);
        }
    }

    /// Returns the queues of messages that may ask now.
    pub(in crate::consumer) fn take_freed(&mut self) -> Vec<KeyQueue> {
        std::mem::take(&mut self.freed)
    }

    /// Forgets everything. Returns the queues of what waits.
    pub(in crate::consumer) fn clear(&mut self) -> Vec<KeyQueue> {
        self.coming.clear();
        self.stalled.clear();
        let waiting = self.places.drain().flat_map(|(_, of_key)| of_key.waiting.into_values());
        waiting.map(|later| later.queue).chain(self.freed.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::consumer::partition::dispatch::key_queues::{Grouping, KeyQueues, Owner, Ticket};
    use crate::consumer::partition::dispatch::ready::Ready;
    use millstream_core::MessageId;
    use millstream_core::log::{Receipt, Source};

    fn asker(n: u64) -> Asker {
        (Receipt::new(Source::Log, MessageId::new(n, 0)), 0)
    }

    fn keys(needs: u8) -> Vec<Asked> {
        let key = |n: u8| Asked { key: format!("l:{n}").parse().expect("a key"), most: 2 };
        (0..3).filter(|n| needs >> n & 1 == 1).map(key).collect()
    }

    proptest! {
        /// Whatever is granted when, no more than may of a key ask at once, and all get their turn.
        #[test]
        fn all_messages_get_to_ask(needs in prop::collection::vec((0_usize..2, 0_u8..8), 1..60), order in prop::collection::vec((0_u8..4, any::<usize>()), 1..200)) {
            let mut queues: KeyQueues<u64> = KeyQueues::new(Grouping::Entry, usize::MAX, Ready::default());
            let mut asks = Asks::new(Some(&Priorities::default()));
            let mut open: Vec<(u64, Ticket, Vec<Asked>)> = Vec::new();
            let tenants = [TenantId::default(), {
                let mut two = millstream_engine::fairness::Tenants::default();
                two.enter(&bytes::Bytes::from_static(b"a"), tokio::time::Instant::now(), || 1);
                two.enter(&bytes::Bytes::from_static(b"b"), tokio::time::Instant::now(), || 1)
            }];
            (0..needs.len() as u64).for_each(|n| queues.push(None, Owner::default(), 1, n));
            let (mut done, mut steps) = (0, order.into_iter());
            while done < needs.len() {
                let (step, at) = steps.next().unwrap_or((0, 0));
                let next = if step == 3 && !open.is_empty() { None } else { queues.next() };
                if let Some((ticket, n)) = next {
                    let (tenant, needed) = needs[usize::try_from(n).expect("small")];
                    let (tenant, needed) = (tenants[tenant], keys(needed));
                    if let Some(key) = asks.full(asker(n), tenant, &needed) {
                        let queue = queues.block(ticket, n).expect("nothing else of its queue runs");
                        let (keys, rank) = (needed.into(), Rank { lane: usize::from(n % 3 == 0), came: n });
                        asks.wait(tenant, key, Later { asker: asker(n), number: n, rank, keys, queue, was_next: false });
                    } else if step == 1 {
                        // It has at once what it needs, or is gone.
                        asks.passes(asker(n));
                        queues.done(ticket, None);
                        done += 1;
                    } else {
                        asks.open(asker(n), tenant, &needed);
                        open.push((n, ticket, needed));
                    }
                } else {
                    prop_assert!(!open.is_empty(), "{} of {} and nothing goes on", done, needs.len());
                    let at = at % open.len();
                    let tenant = tenants[needs[usize::try_from(open[at].0).expect("small")].0];
                    if step == 2 && open[at].2.len() > 1 {
                        // It waits for one of them.
                        let rest = open[at].2.split_off(1);
                        asks.close(tenant, rest);
                    } else {
                        let (_, ticket, all) = open.swap_remove(at);
                        asks.close(tenant, all);
                        queues.done(ticket, None);
                        done += 1;
                    }
                }
                asks.take_freed().into_iter().for_each(|queue| queues.unblock(queue));
                for of_key in asks.places.values() {
                    prop_assert!(of_key.open + of_key.coming <= 2 + 3, "{of_key:?}");
                }
            }
            prop_assert!(asks.places.is_empty() && asks.coming.is_empty());
        }
    }

    /// One that needs two keys, of which neither is ever free, while others need one of them each.
    #[test]
    fn a_message_that_needs_two_keys_gets_its_turn() {
        let mut queues: KeyQueues<u64> = KeyQueues::new(Grouping::Entry, usize::MAX, Ready::default());
        let (mut asks, tenant) = (Asks::new(None), TenantId::default());
        let needs = |n: u64| keys(if n == 4 { 3 } else { 1 + u8::try_from(n % 2).expect("small") });
        (0..400).for_each(|n| queues.push(None, Owner::default(), 1, n));
        let (mut open, mut begun) = (Vec::new(), 0);
        loop {
            while let Some((ticket, n)) = queues.next() {
                if let Some(key) = asks.full(asker(n), tenant, &needs(n)) {
                    let queue = queues.block(ticket, n).expect("nothing else of its queue runs");
                    let (keys, rank) = (needs(n).into(), Rank { lane: 0, came: n });
                    let later = Later { asker: asker(n), number: n, rank, keys, queue, was_next: false };
                    asks.wait(tenant, key, later);
                } else {
                    asks.open(asker(n), tenant, &needs(n));
                    open.push((ticket, n));
                }
                asks.take_freed().into_iter().for_each(|queue| queues.unblock(queue));
            }
            let (ticket, n) = open.remove(0);
            begun += 1;
            if n == 4 {
                break;
            }
            asks.close(tenant, needs(n));
            queues.done(ticket, None);
            asks.take_freed().into_iter().for_each(|queue| queues.unblock(queue));
        }
        assert!(begun < 16, "{begun} were before it");
    }
}
