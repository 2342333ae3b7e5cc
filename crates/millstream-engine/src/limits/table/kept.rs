//! What becomes of idle units: they are passed on, kept for a while, or given back. And who waits for units that are in use.

use millstream_core::limits::{LimitRules, PermitKey};
use millstream_core::permits::{MAX_STEPS, Step};

use super::{MOST_KEPT, SHARED_FOR, Table};

impl Table {
    /// Whether there is something to [sweep](Self::sweep).
    pub(in crate::limits) fn has_kept(&self) -> bool {
        !self.swept.is_empty()
    }

    /// Gives back what no message has needed since the sweep before the last one.
    pub(in crate::limits) fn sweep(&mut self) {
        for key in std::mem::take(&mut self.swept) {
            let Some(state) = self.keys.get_mut(&key) else { continue };
            (state.shared, state.swept) = (state.shared.saturating_sub(1), false);
            (state.needed, state.peak) = (state.peak, state.busy);
            let kept = if state.gives_back() { state.busy } else { state.busy.max(state.needed) };
            let returns = state.units > kept;
            if returns && !std::mem::replace(&mut state.dirty, true) {
                self.dirty.push(key.clone());
            }
            // What is returned is looked at again if something is left of it.
            if state.shared > 0 || state.idle() > 0 && !returns {
                self.look_at(&key);
            }
            self.forget(&key);
        }
    }

    /// The next sweep looks at this key.
    pub(super) fn look_at(&mut self, key: &PermitKey) {
        if let Some(state) = self.keys.get_mut(key)
            && !std::mem::replace(&mut state.swept, true)
        {
            self.swept.push(key.clone());
        }
    }

    /// Takes in that others have an interest in this key.
    pub(super) fn shares(&mut self, key: &PermitKey) {
        if self.swept.len() < MOST_KEPT
            && let Some(state) = self.keys.get_mut(key)
        {
            state.shared = SHARED_FOR;
            self.look_at(key);
        }
    }

    /// Follows new rules.
    pub(super) fn follow(&mut self, rules: LimitRules) {
        self.rules = rules;
        for (key, state) in &mut self.keys {
            let most = self.rules.at_most(key, state.stated);
            let before = std::mem::replace(&mut state.most, most);
            if most < before {
                // Others have units too, and only the server counts all of them.
                state.doubtful = state.units;
            }
            let changed = most != before;
            if changed && state.idle() > 0 {
                state.needed = 0;
                if !std::mem::replace(&mut state.dirty, true) {
                    self.dirty.push(key.clone());
                }
            }
        }
    }

    /// Asks for everything again that waits: the rules have changed, or (without new ones) calls may be lost, or what the server knew.
    pub(in crate::limits) fn look_again(&mut self, rules: Option<LimitRules>) {
        match rules {
            Some(rules) => self.follow(rules),
            None => {
                for (key, state) in &mut self.keys {
                    state.doubtful = state.units;
                    if state.idle() > 0 {
                        state.needed = 0;
                        if !std::mem::replace(&mut state.dirty, true) {
                            self.dirty.push(key.clone());
                        }
                    }
                }
            }
        }
        for key in self.waited_for() {
            if let Some(state) = self.keys.get_mut(&key) {
                state.registered = false;
            }
            self.tend(&key);
        }
    }

    /// Passes idle units on to who waits here. The rest is kept for a while, or given back.
    pub(super) fn serve(&mut self, key: &PermitKey) {
        while let Some(id) = self.front(key)
            && let Some(ask) = self.asks.get(&id)
            && self.is_idle(&ask.needs)
        {
            self.pop(key);
            self.grant(id);
        }
        if let Some(state) = self.keys.get_mut(key)
            && state.idle() > 0
        {
            let full = !state.swept && self.swept.len() >= MOST_KEPT;
            let keeps = self.keeps && !full && !state.gives_back();
            if !keeps {
                state.needed = 0;
                let is_dirty = std::mem::replace(&mut state.dirty, true);
                // Others may wait for it: it comes before what a sweep returns, from the end of the list.
                if !is_dirty || self.dirty.len() > MAX_STEPS {
                    self.dirty.push(key.clone());
                }
            } else {
                self.look_at(key);
            }
        }
        self.tend(key);
    }

    /// Returns the step that states how many units we have of a key, if the server has to know. `all` gives back all that are idle.
    pub(super) fn states(&mut self, key: &PermitKey, all: bool) -> Option<Step> {
        let state = self.keys.get_mut(key)?;
        let is_due = std::mem::take(&mut state.dirty) || all && state.idle() > 0;
        if !is_due {
            return None;
        }
        let needed = if all || !self.keeps || state.gives_back() { 0 } else { state.needed };
        let before = state.units;
        state.units = before.min(state.busy.max(needed));
        // Only what is stated counts as given back: a message could take it again before that.
        state.doubtful = state.doubtful.saturating_sub(before - state.units);
        let step = Step::Has(key.clone(), state.units);
        if state.idle() > 0 {
            self.look_at(key);
        }
        Some(step)
    }

    /// Returns the keys for which others have begun to wait.
    pub(in crate::limits) fn take_wanted(&mut self) -> Vec<PermitKey> {
        std::mem::take(&mut self.wanted)
    }

    /// Returns how many messages wait for this key: here, and at least one if others do elsewhere.
    pub(in crate::limits) fn wanting(&self, key: &PermitKey) -> usize {
        self.keys.get(key).map_or(0, |key| key.alive + usize::from(key.wanted))
    }
}
