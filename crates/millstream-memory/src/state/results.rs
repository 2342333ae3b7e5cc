//! Results of the messages of a partition, which expire by themselves.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_core::results::{MessageResult, StoredResult};
use tokio::sync::Notify;

use crate::clock::Now;

/// Number of results below which none is removed before it is looked up.
const FEW: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    all: HashMap<u128, (MessageResult, Now)>,
    /// Number of results at which those that have expired are removed next.
    full: usize,
    /// Notified when one is stored.
    pub(crate) stored: Arc<Notify>,
}

impl Results {
    pub(crate) fn get(&self, number: u128, now: Now) -> Option<&MessageResult> {
        self.all.get(&number).filter(|(_, expires)| *expires > now).map(|(result, _)| result)
    }

    /// Stores a result, unless the one that is there stays.
    pub(crate) fn put(&mut self, StoredResult { request, result }: &StoredResult, now: Now) {
        if self.get(request.number, now).is_some_and(|earlier| !result.replaces(earlier)) {
            return;
        }
        if self.all.len() >= self.full.max(FEW) {
            self.all.retain(|_, (_, expires)| *expires > now);
            // Twice what is left, so that the cost of a removal is spread over as many insertions.
            self.full = 2 * self.all.len();
        }
        self.all.insert(request.number, (result.clone(), now.plus(request.keep)));
        self.stored.notify_waiters();
    }
}
