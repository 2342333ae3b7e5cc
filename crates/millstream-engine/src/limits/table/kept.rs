//! How long idle units are kept, and when they are not.

use millstream_core::limits::{LimitRules, PermitKey};

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
}
