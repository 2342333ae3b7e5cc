//! Markers of operations, which expire by themselves.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::idempotency::Operation;

use crate::clock::Now;

#[derive(Clone, Debug, Default)]
pub(crate) struct Markers {
    all: HashMap<Operation, Stored>,
    /// Number of markers at which those that have expired are removed next.
    full: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) token: String,
    pub(crate) phase: MarkerPhase,
    pub(crate) expires: Now,
}

#[derive(Clone, Debug)]
pub(crate) enum MarkerPhase {
    Running { holder: String, ttl: Duration },
    Done(Bytes),
}

/// Number of markers below which none is removed before it is looked up.
const FEW: usize = 1_024;

impl Markers {
    /// Returns the marker of an operation, unless it has expired.
    pub(crate) fn get(&self, operation: &Operation, now: Now) -> Option<&Stored> {
        self.all.get(operation).filter(|stored| stored.expires > now)
    }

    pub(crate) fn put(&mut self, operation: &Operation, stored: Stored, now: Now) {
        if self.all.len() >= self.full.max(FEW) {
            self.all.retain(|_, stored| stored.expires > now);
            // Twice what is left, so that the cost of a removal is spread over as many insertions.
            self.full = 2 * self.all.len();
        }
        self.all.insert(operation.clone(), stored);
    }

    pub(crate) fn remove(&mut self, operation: &Operation) {
        self.all.remove(operation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn what_has_expired_takes_no_room() {
        let clock = Clock::new();
        let mut markers = Markers::default();
        for id in 0..10 * FEW {
            let operation = Operation::new("t".parse().unwrap(), "g".parse().unwrap(), id.to_string());
            let now = clock.now();
            let stored = Stored {
                token: "token".into(),
                phase: MarkerPhase::Done(Bytes::new()),
                expires: now.plus(Duration::from_millis(100)),
            };
            markers.put(&operation.unwrap(), stored, now);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(markers.all.len() <= 2 * FEW, "{}", markers.all.len());
    }
}
