//! What a process knows of its permits: a state machine without clock, tasks and requests.
//!
//! The server knows units by the number that this holder *has*; the difference to what its messages use is *idle*. While no other
//! holder waits for them, idle units are kept until the second [sweep](Table::sweep), for the next message of their key: it needs no
//! request then. A key that others have waited for lately is *shared*: its units are given back with the next exchange. So are those of
//! a consumer that drops messages over a limit: to another one that drops, units that are only kept would look like used ones.

mod kept;
mod key_state;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::{Call, MAX_KEYS, MAX_STEPS, Step, Take, Taken, Want};

use crate::limits::Need;
use key_state::KeyState;

/// Sweeps for which a key counts as shared: otherwise two holders that take turns would ask each other for every message.
const SHARED_FOR: u8 = 8;
/// Keys of which idle units are kept, and those that are shared: more would make sweeps long, and a crash would hold them for a ttl.
const MOST_KEPT: usize = 50_000;

/// A request of one message, from [`ask`](Table::ask) until it is answered with [`Notice::Granted`] or refused, or is cancelled.
pub(super) type AskId = u64;

/// A notice for those that wait for units or have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// It has all it needs.
    Granted,
    /// It waits for this key.
    Parked(PermitKey),
    /// It does not wait, and this key is short.
    Refused(PermitKey),
}

#[derive(Debug)]
struct Ask {
    needs: Arc<[Need]>,
    waits: bool,
    /// The key for which it waits.
    parked: Option<PermitKey>,
}

/// A take under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    ask: AskId,
    needs: Arc<[Need]>,
    /// The key for which it waited before.
    via: Option<PermitKey>,
}

/// What a process knows of its permits.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Whether idle units are kept.
    keeps: bool,
    keys: HashMap<PermitKey, KeyState>,
    asks: HashMap<AskId, Ask>,
    /// Who is to be asked for next, with the key for which it waited.
    fresh: VecDeque<(AskId, Option<PermitKey>)>,
    dirty: Vec<PermitKey>,
    /// Keys that the next sweep looks at.
    swept: Vec<PermitKey>,
    leaves: Vec<PermitKey>,
    next: AskId,
    rules: LimitRules,
    /// Keys for which others have begun to wait.
    wanted: Vec<PermitKey>,
    /// Notices that were not sent yet.
    notices: Vec<(AskId, Notice)>,
    /// Whether it is uncertain that the units are ours: nothing is passed on then.
    uncertain: bool,
    /// Whether an exchange is under way, and calls that came meanwhile. What it says may be older than they are, and they mean nothing
    /// before it is known.
    under_way: bool,
    later: Vec<Call>,
}

impl Table {
    /// Creates an empty table, which keeps idle units or does not.
    pub(super) fn new(keeps: bool) -> Self {
        Self { keeps, ..Self::default() }
    }

    /// Takes idle units for a message. False if something is short here, or others of this process wait for it.
    pub(super) fn take_idle(&mut self, needs: &[Need]) -> bool {
        if let [need] = needs {
            // The usual case, in one look.
            let has = |key: &&mut KeyState| key.alive == 0 && key.has_idle(need.units);
            let key = self.keys.get_mut(&need.key).filter(has).filter(|_| !self.uncertain);
            return key.map(|key| key.uses(need.units)).is_some();
        }
        let waits = |need: &Need| self.keys.get(&need.key).is_some_and(|key| key.alive > 0);
        let takes = self.is_idle(needs) && !needs.iter().any(waits);
        if takes {
            self.uses(needs);
        }
        takes
    }

    #[cfg(test)]
    pub(super) fn ask(&mut self, needs: &Arc<[Need]>, waits: bool) -> AskId {
        let id = self.new_id();
        self.ask_as(id, needs, waits);
        id
    }

    /// Returns a number for a request.
    pub(super) fn new_id(&mut self) -> AskId {
        self.next += 1;
        self.next - 1
    }

    /// Asks for what a message needs and is not [idle](Self::take_idle). The outcome comes as a [notice](Self::take_notices).
    pub(super) fn ask_as(&mut self, id: AskId, needs: &Arc<[Need]>, waits: bool) {
        // Behind those of this process that wait already, without asking the server for each.
        let behind = needs.iter().find(|need| self.keys.get(&need.key).is_some_and(|key| key.alive > 0));
        let behind = behind.map(|need| need.key.clone());
        self.asks.insert(id, Ask { needs: needs.clone(), waits, parked: None });
        match behind {
            Some(key) if waits => self.park(id, key, false),
            Some(key) => self.refuse(id, key),
            None => self.fresh.push_back((id, None)),
        }
    }

    /// Gives up a request. What it gets meanwhile is given back.
    pub(super) fn cancel(&mut self, id: AskId) {
        let Some(ask) = self.asks.remove(&id) else { return };
        if let Some(key) = ask.parked {
            if let Some(state) = self.keys.get_mut(&key) {
                // It is taken out when it comes up, or with many others: they may give up by the thousand.
                state.alive = state.alive.saturating_sub(1);
                if state.waiting.len() > 64 + 2 * state.alive {
                    let asks = &self.asks;
                    state.waiting.retain(|id| asks.contains_key(id));
                }
            }
            self.tend(&key);
        }
    }

    /// Takes back units that a message has used.
    pub(super) fn release(&mut self, needs: &[Need]) {
        let mut all_quiet = true;
        for need in needs {
            if let Some(key) = self.keys.get_mut(&need.key) {
                key.busy = key.busy.saturating_sub(need.units);
                // Nobody waits for it, here or elsewhere, and the next sweep looks at it.
                all_quiet &= key.swept && !key.gives_back() && !key.registered;
            }
        }
        if !all_quiet {
            needs.iter().for_each(|need| self.serve(&need.key));
        }
    }

    /// Whether there is something to exchange.
    pub(super) fn has_work(&self) -> bool {
        !self.fresh.is_empty() || !self.dirty.is_empty() || !self.leaves.is_empty()
    }

    /// Returns the steps of the next exchange, with its takes.
    pub(super) fn exchange(&mut self) -> (Vec<Step>, Vec<UnderWay>) {
        let (mut steps, mut under_way) = (Vec::new(), Vec::new());
        // A sweep returns many at once, and what is asked for must not wait for all of them; nor may they pile up.
        let returns = match self.dirty.len() {
            _ if self.fresh.is_empty() => MAX_STEPS,
            many if many > 4 * MAX_STEPS => MAX_STEPS * 3 / 4,
            _ => MAX_STEPS / 2,
        };
        while steps.len() < returns
            && let Some(key) = self.dirty.pop()
        {
            steps.extend(self.states(&key, false));
            self.forget(&key);
        }
        while steps.len() < MAX_STEPS
            && let Some(key) = self.leaves.pop()
        {
            // Registered by a take since: then it stays.
            if !self.keys.get(&key).is_some_and(|state| state.registered) {
                steps.push(Step::Leaves(key));
            }
        }
        // A take may bring a step for each of its keys.
        while steps.len() < MAX_STEPS - MAX_KEYS
            && let Some((id, via)) = self.fresh.pop_front()
        {
            let Some(ask) = self.asks.get(&id) else {
                self.asked(via.as_ref());
                continue;
            };
            let (waits, needs) = (ask.waits, ask.needs.clone());
            let mut wants = Vec::with_capacity(needs.len());
            for need in &*needs {
                // All that it needs is taken in one step, and what is kept here must not be in its way.
                steps.extend(self.states(&need.key, true));
                let at_most = self.rules.at_most(&need.key, need.at_most);
                wants.push(Want { key: need.key.clone(), units: need.units, at_most });
            }
            steps.push(Step::Takes(Take { wants, waits }));
            under_way.push(UnderWay { ask: id, needs, via });
        }
        self.under_way = !steps.is_empty();
        (steps, under_way)
    }

    /// Takes in calls that came while the exchange was under way.
    fn ended(&mut self) {
        self.under_way = false;
        for call in std::mem::take(&mut self.later) {
            self.called(&call);
        }
    }

    /// Returns the version of the rules that takes follow.
    pub(super) fn version(&self) -> u64 {
        self.rules.version
    }

    /// Takes in what became of takes.
    pub(super) fn done(&mut self, under_way: Vec<UnderWay>, taken: Vec<Taken>) {
        for (take, taken) in under_way.into_iter().zip(taken) {
            let UnderWay { ask, needs, via } = take;
            if let Some(via) = &via
                && let Some(key) = self.keys.get_mut(via)
            {
                key.asking = key.asking.saturating_sub(1);
            }
            match taken {
                Taken::Granted | Taken::Contended => {
                    for need in &*needs {
                        let at_most = self.rules.at_most(&need.key, need.at_most);
                        let key = self.keys.entry(need.key.clone()).or_default();
                        (key.stated, key.most) = (need.at_most, at_most);
                        key.units += need.units;
                        // Who takes waits no more, by its own rule.
                        (key.registered, key.wanted) = (false, taken == Taken::Contended);
                        if key.wanted {
                            self.wanted.push(need.key.clone());
                            self.shares(&need.key);
                        }
                    }
                    if self.asks.contains_key(&ask) {
                        self.grant(ask);
                        needs.iter().for_each(|need| self.tend(&need.key));
                    } else {
                        needs.iter().for_each(|need| self.serve(&need.key));
                    }
                }
                Taken::Short(at) => self.short(ask, &needs, at, via.as_ref()),
            }
        }
        self.ended();
    }

    /// Takes in that a take got nothing, since this need is short: its holder waits for that key, and for no other of the take.
    fn short(&mut self, ask: AskId, needs: &[Need], at: usize, via: Option<&PermitKey>) {
        let Some(key) = needs.get(at).map(|need| need.key.clone()) else { return };
        let waits = self.asks.get(&ask).map(|ask| ask.waits);
        if waits != Some(false) {
            for need in needs {
                let state = self.keys.entry(need.key.clone()).or_default();
                state.registered = need.key == key;
            }
        }
        match waits {
            Some(true) => self.park(ask, key.clone(), via == Some(&key)),
            // Who does not wait was not noted by the server.
            Some(false) => self.refuse(ask, key),
            None => {}
        }
        // Units that a message gave back meanwhile may be all that was missing.
        needs.iter().for_each(|need| self.serve(&need.key));
    }

    /// Takes in that the rules have changed, so that takes were not done.
    pub(super) fn changed(&mut self, under_way: Vec<UnderWay>, rules: LimitRules) {
        self.follow(rules);
        for take in under_way.into_iter().rev() {
            self.fresh.push_front((take.ask, take.via));
        }
        self.ended();
    }

    /// Takes in that an exchange failed: what became of it is not known.
    pub(super) fn failed(&mut self, steps: Vec<Step>, under_way: Vec<UnderWay>) {
        for take in under_way.into_iter().rev() {
            if let Some(via) = &take.via
                && let Some(key) = self.keys.get_mut(via)
            {
                key.asking = key.asking.saturating_sub(1);
            }
            self.fresh.push_front((take.ask, None));
        }
        for step in steps {
            match step {
                Step::Has(key, _) | Step::Leaves(key) => self.doubts(&key),
                Step::Takes(take) => take.wants.iter().for_each(|want| self.doubts(&want.key)),
            }
        }
        self.ended();
    }

    /// What the server knows of this key is not certain: the next exchange reports what we have, and removes us from those that wait.
    fn doubts(&mut self, key: &PermitKey) {
        let state = self.keys.entry(key.clone()).or_default();
        state.registered = false;
        if !std::mem::replace(&mut state.dirty, true) {
            self.dirty.push(key.clone());
        }
        if !self.leaves.contains(key) {
            self.leaves.push(key.clone());
        }
        self.tend(key);
    }

    /// Takes in a call.
    pub(super) fn called(&mut self, call: &Call) {
        if self.under_way {
            self.later.push(call.clone());
            return;
        }
        match call {
            Call::Free(key) => {
                // What others gave back is not what they wait for.
                if !self.next_of(key)
                    && let Some(state) = self.keys.get_mut(key)
                    && state.asking == 0
                {
                    state.registered = false;
                    self.leaves.push(key.clone());
                    self.forget(key);
                } else if !self.keys.contains_key(key) {
                    self.leaves.push(key.clone());
                }
            }
            Call::Wanted(key) => {
                if let Some(state) = self.keys.get_mut(key) {
                    state.wanted = true;
                    self.wanted.push(key.clone());
                    self.shares(key);
                    self.serve(key);
                }
            }
            // Of rates, or for all.
            Call::Rules | Call::Closed(..) => {}
        }
    }

    /// Forgets all units: the right to them is lost. Everything that was not granted is asked for again.
    pub(super) fn lose(&mut self) {
        self.keys.clear();
        (self.under_way, self.later) = (false, Vec::new());
        (self.dirty, self.swept, self.leaves, self.fresh) =
            (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        let mut ids: Vec<_> = self.asks.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(ask) = self.asks.get_mut(&id) {
                ask.parked = None;
            }
            self.fresh.push_back((id, None));
        }
    }

    /// Whether there are notices that were not sent yet.
    pub(super) fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Returns the notices that were not sent yet.
    pub(super) fn take_notices(&mut self) -> Vec<(AskId, Notice)> {
        std::mem::take(&mut self.notices)
    }

    /// Sets whether it is certain that the units are ours.
    pub(super) fn set_certain(&mut self, certain: bool) {
        self.uncertain = !certain;
    }

    /// Whether something waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.keys.values().any(|key| key.alive > 0)
    }

    /// Returns how many messages wait for each key.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&PermitKey, usize)> {
        self.keys.iter().map(|(key, state)| (key, state.alive)).filter(|(_, waiting)| *waiting > 0)
    }

    fn waited_for(&self) -> Vec<PermitKey> {
        let mut keys: Vec<_> = self.waiting().map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    fn is_idle(&self, needs: &[Need]) -> bool {
        !self.uncertain
            && needs.iter().all(|need| self.keys.get(&need.key).is_some_and(|key| key.has_idle(need.units)))
    }

    /// Gives units that we have to who asks.
    fn grant(&mut self, id: AskId) {
        let Some(ask) = self.asks.remove(&id) else { return };
        self.uses(&ask.needs);
        self.notices.push((id, Notice::Granted));
    }

    fn uses(&mut self, needs: &[Need]) {
        for need in needs {
            match self.keys.get_mut(&need.key) {
                Some(state) => state.uses(need.units),
                None => self.keys.entry(need.key.clone()).or_default().uses(need.units),
            }
        }
    }

    fn refuse(&mut self, id: AskId, key: PermitKey) {
        self.asks.remove(&id);
        self.notices.push((id, Notice::Refused(key)));
    }

    /// Lets who asks wait for this key: as the next one, if it was before.
    fn park(&mut self, id: AskId, key: PermitKey, again: bool) {
        let state = self.keys.entry(key.clone()).or_default();
        if again {
            state.waiting.push_front(id);
        } else {
            state.waiting.push_back(id);
        }
        state.alive += 1;
        let (alive, mut may_wait) = (state.alive, None);
        if let Some(ask) = self.asks.get_mut(&id) {
            ask.parked = Some(key.clone());
            let need = ask.needs.iter().find(|need| need.cancels && need.key == key);
            may_wait = need.map(|need| self.rules.at_most(&key, need.at_most).max(1));
        }
        self.notices.push((id, Notice::Parked(key.clone())));
        // The newest ones wait.
        if may_wait.is_some_and(|most| alive > usize::try_from(most).unwrap_or(usize::MAX))
            && let Some(oldest) = self.front(&key)
        {
            self.pop(&key);
            self.refuse(oldest, key);
        }
    }

    /// Returns the next one that waits for this key.
    fn front(&mut self, key: &PermitKey) -> Option<AskId> {
        let state = self.keys.get_mut(key)?;
        while let Some(id) = state.waiting.front().copied() {
            if self.asks.contains_key(&id) {
                return Some(id);
            }
            state.waiting.pop_front();
        }
        None
    }

    /// Takes out the next one that waits for this key.
    fn pop(&mut self, key: &PermitKey) {
        if let Some(state) = self.keys.get_mut(key) {
            state.waiting.pop_front();
            state.alive = state.alive.saturating_sub(1);
        }
    }

    /// Takes care that somebody is asked for while something waits for this key, and nobody while nothing does.
    fn tend(&mut self, key: &PermitKey) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if state.alive == 0 {
            if std::mem::take(&mut state.registered) {
                if state.asking == 0 {
                    self.leaves.push(key.clone());
                } else {
                    state.registered = true;
                }
            }
        } else if !state.registered && state.asking == 0 {
            self.next_of(key);
        }
        self.forget(key);
    }

    /// Asks for the next one that waits for this key. False if none does.
    fn next_of(&mut self, key: &PermitKey) -> bool {
        let Some(id) = self.front(key) else { return false };
        self.pop(key);
        if let Some(state) = self.keys.get_mut(key) {
            state.asking += 1;
        }
        if let Some(ask) = self.asks.get_mut(&id) {
            ask.parked = None;
        }
        self.fresh.push_back((id, Some(key.clone())));
        true
    }

    /// Notes that a request that waited for this key ended otherwise.
    fn asked(&mut self, via: Option<&PermitKey>) {
        let Some(via) = via else { return };
        if let Some(key) = self.keys.get_mut(via) {
            key.asking = key.asking.saturating_sub(1);
        }
        // It was called: the next one is asked for, or others come.
        self.called(&Call::Free(via.clone()));
    }

    fn forget(&mut self, key: &PermitKey) {
        if self.keys.get(key).is_some_and(KeyState::is_nothing) {
            self.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millstream_core::LimitBound;
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> PermitKey {
        format!("limit:{name}").parse().expect("a key")
    }

    fn needs(keys: &[(&str, u32)]) -> Arc<[Need]> {
        keys.iter()
            .map(|(name, units)| Need { key: key(name), units: *units, at_most: AT_MOST, cancels: false })
            .collect()
    }

    /// Exchanges once with a server that answers like this.
    fn exchange(table: &mut Table, taken: &[Taken]) -> Vec<Step> {
        let (steps, under_way) = table.exchange();
        assert_eq!(under_way.len(), taken.len(), "{steps:?}");
        table.done(under_way, taken.to_vec());
        steps
    }

    fn takes(steps: &[Step]) -> usize {
        steps.iter().filter(|step| matches!(step, Step::Takes(_))).count()
    }

    #[test]
    fn what_is_given_back_goes_to_who_waits_here_first() {
        let mut table = Table::new(true);
        let (one, two) = (table.ask(&needs(&[("a", 1)]), true), table.ask(&needs(&[("a", 1)]), true));
        exchange(&mut table, &[Taken::Granted, Taken::Short(0)]);
        assert_eq!(table.take_notices(), [(one, Notice::Granted), (two, Notice::Parked(key("a")))]);
        assert!(!table.take_idle(&needs(&[("a", 1)])));
        let three = table.ask(&needs(&[("a", 1)]), true);
        assert_eq!(table.take_notices(), [(three, Notice::Parked(key("a")))], "without a question");
        assert!(!table.has_work());
        table.release(&needs(&[("a", 1)]));
        assert_eq!(table.take_notices(), [(two, Notice::Granted)]);
        assert!(!table.has_work(), "nothing is sent to the server");
        table.release(&needs(&[("a", 1)]));
        table.release(&needs(&[("a", 1)]));
        assert_eq!(table.take_notices(), [(three, Notice::Granted)]);
        assert_eq!(exchange(&mut table, &[]), [Step::Leaves(key("a"))]);
    }

    #[test]
    fn what_is_idle_is_kept_for_the_next_message_and_not_for_long() {
        let (mut table, one, two) = (Table::new(true), needs(&[("a", 1)]), needs(&[("a", 2)]));
        table.ask(&two, true);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&two);
        assert!(!table.has_work() && table.has_kept());
        assert!(table.take_idle(&two), "without a request");
        table.release(&two);
        table.sweep();
        assert!(table.take_idle(&one) && !table.has_work(), "both were needed before this sweep");
        table.sweep();
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 1)], "one was not needed since");
        table.release(&one);
        table.sweep();
        table.sweep();
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)]);
        table.sweep();
        assert!(table.keys.is_empty() && !table.has_kept());
    }

    #[test]
    fn a_message_that_needs_more_than_is_kept_takes_all_in_one_step() {
        let (mut table, one) = (Table::new(true), needs(&[("a", 1)]));
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&one);
        let both = needs(&[("a", 1), ("b", 1)]);
        assert!(!table.take_idle(&both));
        table.ask(&both, true);
        let steps = exchange(&mut table, &[Taken::Granted]);
        assert_eq!(
            (&steps[0], steps.len()),
            (&Step::Has(key("a"), 0), 2),
            "nobody holds one and waits for another"
        );
    }

    #[test]
    fn what_others_wanted_lately_is_not_kept() {
        let (mut table, one) = (Table::new(true), needs(&[("a", 1)]));
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&one);
        table.called(&Call::Wanted(key("a")));
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)], "at once");
        for _ in 0..SHARED_FOR - 1 {
            table.sweep();
        }
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&one);
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)]);
        table.sweep();
        assert!(table.keys.is_empty() && !table.has_kept(), "it is forgotten that they did");
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        let mut table = Table::new(false);
        table.ask(&one, false);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&one);
        assert_eq!(
            exchange(&mut table, &[]),
            [Step::Has(key("a"), 0)],
            "nor anything where messages are dropped"
        );
    }

    #[test]
    fn what_ends_during_an_exchange_is_there_for_who_was_refused_by_it() {
        let (mut table, all) = (Table::new(true), needs(&[("a", 2)]));
        table.ask(&all, true);
        exchange(&mut table, &[Taken::Granted]);
        let two = table.ask(&all, true);
        let (_, under_way) = table.exchange();
        table.release(&all);
        table.take_notices();
        table.done(under_way, vec![Taken::Short(0)]);
        assert_eq!(table.take_notices(), [(two, Notice::Parked(key("a"))), (two, Notice::Granted)]);
    }

    #[test]
    fn units_of_a_cost_above_the_limit_are_not_for_several() {
        let (mut table, one) = (Table::new(true), needs(&[("a", 1)]));
        let five = needs(&[("a", 5)]);
        table.ask(&five, true);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&five);
        assert!(table.take_idle(&five), "alone");
        table.release(&five);
        for _ in 0..AT_MOST {
            assert!(table.take_idle(&one));
        }
        assert!(!table.take_idle(&one));
        table.ask(&one, true);
        assert_eq!(exchange(&mut table, &[Taken::Short(0)])[0], Step::Has(key("a"), AT_MOST));
    }

    #[test]
    fn a_server_that_has_lost_units_learns_of_all_that_begin_from_then_on() {
        let (mut table, one) = (Table::new(true), needs(&[("a", 1)]));
        for _ in 0..2 {
            table.ask(&one, true);
        }
        exchange(&mut table, &[Taken::Granted, Taken::Granted]);
        table.look_again(None);
        // It knows of this one, and of no other.
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        for left in [2, 1] {
            table.release(&one);
            assert!(!table.take_idle(&one), "before it was stated that one is given back");
            assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), left)]);
        }
        table.release(&one);
        assert_eq!(exchange(&mut table, &[]), [], "it knows of what is kept");
        assert!(table.take_idle(&one));
    }

    #[test]
    fn what_is_asked_for_does_not_wait_for_all_that_is_returned() {
        let mut table = Table::new(true);
        for n in 0..2 * MAX_STEPS {
            let one = needs(&[(&n.to_string(), 1)]);
            table.ask(&one, true);
            exchange(&mut table, &[Taken::Granted]);
            table.release(&one);
        }
        table.look_again(None);
        table.ask(&needs(&[("a", 1)]), true);
        assert_eq!(exchange(&mut table, &[Taken::Granted]).len(), MAX_STEPS / 2 + 1);
    }

    #[test]
    fn no_more_keys_are_kept_than_may() {
        let mut table = Table::new(true);
        for n in 0..=MOST_KEPT {
            let one = needs(&[(&n.to_string(), 1)]);
            table.ask(&one, true);
            exchange(&mut table, &[Taken::Granted]);
            table.release(&one);
        }
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key(&MOST_KEPT.to_string()), 0)]);
        assert_eq!(table.swept.len(), MOST_KEPT);
    }

    #[test]
    fn new_rules_count_for_what_is_kept() {
        let (mut table, one) = (Table::new(true), needs(&[("a", 1)]));
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        table.release(&one);
        let rules = |of: &str, most| {
            let bound = LimitBound::AtMost(most);
            LimitRules { version: 1, rules: vec![(of.parse().expect("a pattern"), bound)] }
        };
        table.look_again(Some(rules("limit:b", 0)));
        assert!(!table.has_work(), "of another key");
        table.look_again(Some(rules("limit", 0)));
        assert!(!table.take_idle(&one));
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)]);
        // One that runs while the limit is lowered: others have units too.
        table.look_again(Some(rules("limit", 2)));
        table.ask(&one, true);
        exchange(&mut table, &[Taken::Granted]);
        table.look_again(Some(rules("limit", 1)));
        table.release(&one);
        assert!(!table.take_idle(&one), "the server decides who goes on");
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)]);
    }

    #[test]
    fn what_others_wait_for_is_given_back() {
        let mut table = Table::new(true);
        table.ask(&needs(&[("a", 1)]), true);
        exchange(&mut table, &[Taken::Granted]);
        let two = table.ask(&needs(&[("a", 1)]), true);
        exchange(&mut table, &[Taken::Short(0)]);
        table.take_notices();
        table.called(&Call::Wanted(key("a")));
        table.release(&needs(&[("a", 1)]));
        assert_eq!(table.take_notices(), []);
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)]);
        table.called(&Call::Free(key("a")));
        assert_eq!(takes(&exchange(&mut table, &[Taken::Contended])), 1);
        assert_eq!(table.take_notices(), [(two, Notice::Granted)]);
    }

    #[test]
    fn a_call_that_nobody_here_needs_is_passed_on() {
        let mut table = Table::new(true);
        let one = table.ask(&needs(&[("a", 1), ("b", 1)]), true);
        exchange(&mut table, &[Taken::Short(0)]);
        table.called(&Call::Free(key("a")));
        // It is short of the other key now, so it waits for that one alone.
        exchange(&mut table, &[Taken::Short(1)]);
        assert!(!table.has_work());
        table.cancel(one);
        assert_eq!(exchange(&mut table, &[]), [Step::Leaves(key("b"))]);
        table.called(&Call::Free(key("c")));
        assert_eq!(exchange(&mut table, &[]), [Step::Leaves(key("c"))], "one that was forgotten");
        assert!(table.keys.is_empty() && table.asks.is_empty());
    }

    #[test]
    fn what_is_granted_too_late_is_given_back() {
        let mut table = Table::new(true);
        let one = table.ask(&needs(&[("a", 2)]), true);
        let (_, under_way) = table.exchange();
        table.cancel(one);
        table.done(under_way, vec![Taken::Granted]);
        assert_eq!(table.take_notices(), []);
        table.sweep();
        assert_eq!(exchange(&mut table, &[]), [Step::Has(key("a"), 0)]);
        assert!(table.keys.is_empty());
    }

    #[test]
    fn after_a_failure_the_server_is_told_what_is_had() {
        let mut table = Table::new(true);
        let one = table.ask(&needs(&[("a", 1)]), true);
        let (steps, under_way) = table.exchange();
        table.failed(steps, under_way);
        let steps = exchange(&mut table, &[Taken::Granted]);
        assert_eq!(steps[..2], [Step::Has(key("a"), 0), Step::Leaves(key("a"))], "whatever it granted");
        assert_eq!(table.take_notices(), [(one, Notice::Granted)]);
    }

    #[test]
    fn who_does_not_wait_is_refused() {
        let mut table = Table::new(true);
        table.ask(&needs(&[("a", 1)]), true);
        exchange(&mut table, &[Taken::Granted]);
        table.take_notices();
        let two = table.ask(&needs(&[("a", 1)]), false);
        exchange(&mut table, &[Taken::Short(0)]);
        assert_eq!(table.take_notices(), [(two, Notice::Refused(key("a")))]);
        assert!(!table.has_work(), "and leaves no trace");
    }

    #[test]
    fn what_is_lost_is_asked_for_anew() {
        let mut table = Table::new(true);
        let ids: Vec<_> = (0..3).map(|_| table.ask(&needs(&[("a", 1)]), true)).collect();
        exchange(&mut table, &[Taken::Granted, Taken::Short(0), Taken::Short(0)]);
        table.take_notices();
        table.lose();
        table.release(&needs(&[("a", 1)]));
        let steps = exchange(&mut table, &[Taken::Granted, Taken::Short(0)]);
        assert_eq!(takes(&steps), 2, "{steps:?}");
        assert_eq!(table.take_notices(), [(ids[1], Notice::Granted), (ids[2], Notice::Parked(key("a")))]);
    }

    /// A server that keeps the rules, with several holders.
    #[derive(Default)]
    struct Server {
        has: BTreeMap<PermitKey, BTreeMap<usize, u32>>,
        /// Since when each of them waits, the oldest first.
        queue: BTreeMap<PermitKey, Vec<(u64, usize)>>,
        time: u64,
        called: BTreeMap<PermitKey, usize>,
        calls: Vec<(usize, Call)>,
    }

    const AT_MOST: u32 = 2;

    impl Server {
        fn used(&self, key: &PermitKey) -> u32 {
            self.has.get(key).map_or(0, |has| has.values().sum())
        }

        fn fits(&self, key: &PermitKey, units: u32) -> bool {
            self.used(key) == 0 || self.used(key) + units <= AT_MOST
        }

        fn leaves(&mut self, holder: usize, key: &PermitKey) {
            self.queue.entry(key.clone()).or_default().retain(|(_, other)| *other != holder);
            if self.called.get(key) == Some(&holder) {
                self.called.remove(key);
            }
        }

        fn step(&mut self, holder: usize, step: &Step) -> Option<Taken> {
            match step {
                Step::Has(key, units) => {
                    let has = self.has.entry(key.clone()).or_default();
                    let units = has.get(&holder).copied().unwrap_or(0).min(*units);
                    has.insert(holder, units);
                }
                Step::Leaves(key) => self.leaves(holder, key),
                Step::Takes(take) => {
                    self.time += 1;
                    let mut since = self.time;
                    for want in &take.wants {
                        let queue = self.queue.entry(want.key.clone()).or_default();
                        since = queue
                            .iter()
                            .find(|(_, other)| *other == holder)
                            .map_or(since, |it| it.0.min(since));
                    }
                    for (at, want) in take.wants.iter().enumerate() {
                        let front = self.queue[&want.key].first().copied();
                        let others_first = front.is_some_and(|(its, front)| front != holder && its <= since);
                        if others_first || !self.fits(&want.key, want.units) {
                            take.wants.iter().for_each(|other| self.leaves(holder, &other.key));
                            let queue = self.queue.entry(want.key.clone()).or_default();
                            let has = self.has.entry(want.key.clone()).or_default();
                            for other in has.iter().filter(|(_, units)| **units > 0).map(|(other, _)| *other)
                            {
                                if other != holder && queue.iter().all(|(_, waiting)| *waiting == other) {
                                    self.calls.push((other, Call::Wanted(want.key.clone())));
                                }
                            }
                            queue.push((since, holder));
                            queue.sort_unstable();
                            if queue[0].1 == holder {
                                self.called.remove(&want.key);
                            }
                            return Some(Taken::Short(at));
                        }
                    }
                    for want in &take.wants {
                        self.leaves(holder, &want.key);
                        *self.has.entry(want.key.clone()).or_default().entry(holder).or_default() +=
                            want.units;
                    }
                    let contended = take.wants.iter().any(|want| !self.queue[&want.key].is_empty());
                    return Some(if contended { Taken::Contended } else { Taken::Granted });
                }
            }
            None
        }

        fn call(&mut self) {
            let keys: Vec<_> = self.queue.keys().cloned().collect();
            for key in keys {
                if let Some((_, front)) = self.queue[&key].first().copied()
                    && !self.called.contains_key(&key)
                    && self.fits(&key, 1)
                {
                    self.called.insert(key.clone(), front);
                    self.calls.push((front, Call::Free(key)));
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Ask(usize, u8),
        Cancel(usize, usize),
        End(usize, usize),
        /// 0: done, 1: the request is lost, 2: the reply is lost, 3: done, and calls come before the reply, 4: done, and a message ends
        /// and another one asks before the reply.
        Exchange(usize, u8),
        LookAgain(usize),
        Sweep(usize),
        Calls,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..3usize, any::<u8>()).prop_map(|(holder, what)| Act::Ask(holder, what)),
            1 => (0..3usize, any::<usize>()).prop_map(|(holder, which)| Act::Cancel(holder, which)),
            4 => (0..3usize, any::<usize>()).prop_map(|(holder, which)| Act::End(holder, which)),
            7 => (0..3usize, 0..11u8).prop_map(|(holder, how)| Act::Exchange(holder, how.saturating_sub(6))),
            1 => (0..3usize).prop_map(Act::LookAgain),
            2 => (0..3usize).prop_map(Act::Sweep),
            4 => Just(Act::Calls),
        ]
    }

    struct World {
        server: Server,
        tables: Vec<Table>,
        open: Vec<BTreeMap<AskId, Arc<[Need]>>>,
        running: Vec<Vec<Arc<[Need]>>>,
        started: usize,
    }

    impl World {
        fn notified(&mut self, holder: usize) {
            for (id, notice) in self.tables[holder].take_notices() {
                if notice == Notice::Granted
                    && let Some(needs) = self.open[holder].remove(&id)
                {
                    self.running[holder].push(needs);
                    self.started += 1;
                }
            }
            let mut used: BTreeMap<PermitKey, (u32, u32)> = BTreeMap::new();
            for need in self.running.iter().flatten().flat_map(|needs| needs.iter()) {
                let (units, messages) = used.entry(need.key.clone()).or_default();
                (*units, *messages) = (*units + need.units, *messages + 1);
            }
            for (key, (units, messages)) in used {
                assert!(units <= AT_MOST || messages == 1, "{units} of {key} run");
            }
        }

        fn run(&mut self, act: &Act) {
            match *act {
                Act::Ask(holder, what) => {
                    let sets: [&[(&str, u32)]; 6] = [
                        &[("a", 1)],
                        &[("b", 1)],
                        &[("a", 1), ("b", 1)],
                        &[("a", 2)],
                        &[("b", 1), ("c", 2)],
                        &[("a", 3)],
                    ];
                    let needs = needs(sets[usize::from(what) % sets.len()]);
                    if self.tables[holder].take_idle(&needs) {
                        self.running[holder].push(needs);
                        self.started += 1;
                    } else {
                        let id = self.tables[holder].ask(&needs, true);
                        self.open[holder].insert(id, needs);
                    }
                    self.notified(holder);
                }
                Act::Cancel(holder, which) => {
                    let ids: Vec<_> = self.open[holder].keys().copied().collect();
                    if !ids.is_empty() {
                        let id = ids[which % ids.len()];
                        self.open[holder].remove(&id);
                        self.tables[holder].cancel(id);
                        self.notified(holder);
                    }
                }
                Act::End(holder, which) => {
                    let running = self.running[holder].len();
                    if running > 0 {
                        let needs = self.running[holder].remove(which % running);
                        self.tables[holder].release(&needs);
                        self.notified(holder);
                    }
                }
                Act::Exchange(holder, how) => {
                    let (steps, under_way) = self.tables[holder].exchange();
                    let taken: Vec<_> = match how {
                        1 => Vec::new(),
                        _ => steps.iter().filter_map(|step| self.server.step(holder, step)).collect(),
                    };
                    self.server.call();
                    if how == 3 {
                        self.run(&Act::Calls);
                    } else if how == 4 {
                        self.run(&Act::End(holder, 0));
                        self.run(&Act::Ask(holder, 5));
                    }
                    match how {
                        0 | 3 | 4 => self.tables[holder].done(under_way, taken),
                        _ => self.tables[holder].failed(steps, under_way),
                    }
                    self.notified(holder);
                }
                Act::LookAgain(holder) => {
                    self.tables[holder].look_again(None);
                    self.notified(holder);
                }
                Act::Sweep(holder) => self.tables[holder].sweep(),
                Act::Calls => {
                    for (holder, call) in std::mem::take(&mut self.server.calls) {
                        self.tables[holder].called(&call);
                        self.notified(holder);
                    }
                }
            }
        }
    }

    proptest! {
        /// Whatever happens in between: never more run than may, everything that is asked for runs in the end, and nothing is left.
        #[test]
        fn nothing_leaks_and_nothing_is_stuck(acts in prop::collection::vec(act(), 0..120)) {
            let mut world = World {
                server: Server::default(),
                // One of a program that drops messages, too.
                tables: (0..3).map(|holder| Table::new(holder > 0)).collect(),
                open: vec![BTreeMap::new(); 3],
                running: vec![Vec::new(); 3],
                started: 0,
            };
            for act in &acts {
                world.run(act);
            }
            for round in 0..1_000 {
                for holder in 0..3 {
                    // What others wait for is not kept until a sweep.
                    if round == 500 {
                        prop_assert!(world.open.iter().all(BTreeMap::is_empty), "{:?} {:?}", world.open, world.tables);
                    } else if round > 500 {
                        world.run(&Act::Sweep(holder));
                    }
                    while !world.running[holder].is_empty() {
                        world.run(&Act::End(holder, 0));
                    }
                    world.run(&Act::Exchange(holder, 0));
                    world.run(&Act::Calls);
                }
            }
            prop_assert!(world.open.iter().all(BTreeMap::is_empty), "stuck: {:?} {:?}", world.open, world.tables);
            for table in &world.tables {
                prop_assert!(table.keys.is_empty() && table.asks.is_empty() && !table.has_work(), "{table:?}");
            }
            for (key, has) in &world.server.has {
                prop_assert_eq!(has.values().sum::<u32>(), 0, "{} leaks", key);
            }
            prop_assert!(world.server.queue.values().all(Vec::is_empty));
        }
    }
}
