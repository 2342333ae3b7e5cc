//! Results of the messages of a partition, or the tasks of a shard, which expire by themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::results::{MessageResult, StoredResult};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout_at};

use crate::clock::Now;

/// Number of results below which none is removed before it is looked up.
const FEW: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    all: HashMap<u128, (MessageResult, Now)>,
    /// Number of results at which those that have expired are removed next.
    full: usize,
    /// Notified when one is stored.
    stored: Arc<Notify>,
}

/// Waits for a result; `look` is called at once, and whenever one was stored.
pub(crate) async fn within(
    wait: Duration,
    look: impl Fn() -> Result<MessageResult, OwnedNotified>,
) -> Option<MessageResult> {
    // A time that the clock cannot reach is as good as for ever.
    let until = Instant::now() + wait.min(Duration::from_secs(100 * 365 * 24 * 3_600));
    loop {
        match look() {
            Ok(result) => return Some(result),
            Err(_) if wait.is_zero() => return None,
            Err(notice) => timeout_at(until, notice).await.ok()?,
        }
    }
}

impl Results {
    /// Returns a result, or what tells that one was stored: begun under the same lock, it misses none.
    pub(crate) fn look(&self, number: u128, now: Now) -> Result<MessageResult, OwnedNotified> {
        self.get(number, now).cloned().ok_or_else(|| self.stored.clone().notified_owned())
    }

    fn get(&self, number: u128, now: Now) -> Option<&MessageResult> {
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
