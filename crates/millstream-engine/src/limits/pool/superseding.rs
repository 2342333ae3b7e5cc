//! Messages that are cancelled, since newer ones wait for their units. Without a clock.

use std::collections::{HashMap, VecDeque};

use millstream_core::limits::PermitKey;
use tokio_util::sync::CancellationToken;

/// Messages that run with units of limits whose messages cancel each other.
#[derive(Debug, Default)]
pub(super) struct Superseding {
    /// By key, those that began first at the front.
    running: HashMap<PermitKey, VecDeque<(u64, CancellationToken)>>,
    begun: u64,
    /// Keys for which something waits that did not before.
    wanted: Vec<PermitKey>,
}

impl Superseding {
    /// Records that a message begins. Returns its number, and what is cancelled when a newer one of any of these keys waits for its units.
    pub(super) fn begin(&mut self, keys: impl Iterator<Item = PermitKey>) -> (u64, CancellationToken) {
        let (number, token) = (self.begun, CancellationToken::new());
        self.begun += 1;
        for key in keys {
            self.running.entry(key.clone()).or_default().push_back((number, token.clone()));
            self.wanted.push(key);
        }
        (number, token)
    }

    /// Records that a message of this key has ended.
    pub(super) fn end(&mut self, key: &PermitKey, number: u64) {
        if let Some(running) = self.running.get_mut(key) {
            running.retain(|(other, _)| *other != number);
            if running.is_empty() {
                self.running.remove(key);
            }
        }
    }

    /// Forgets what runs: all of it is cancelled, for another reason.
    pub(super) fn lose(&mut self) {
        self.running.clear();
    }

    /// Records that something waits for this key.
    pub(super) fn wants(&mut self, key: &PermitKey) {
        if self.running.contains_key(key) {
            self.wanted.push(key.clone());
        }
    }

    /// Cancels one message for each that waits for its key, those that began first.
    pub(super) fn settle(&mut self, waiting: impl Fn(&PermitKey) -> usize) {
        for key in std::mem::take(&mut self.wanted) {
            let Some(running) = self.running.get(&key) else { continue };
            let cancelled = running.iter().filter(|(_, token)| token.is_cancelled()).count();
            let others = running.iter().filter(|(_, token)| !token.is_cancelled());
            others.take(waiting(&key).saturating_sub(cancelled)).for_each(|(_, token)| token.cancel());
        }
    }
}
