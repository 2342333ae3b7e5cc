//! Record of how long the server of each shard has answered a worker without a gap.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::Continuity;
use tokio::time::Instant;

/// One record per shard, since shards may be on different servers.
#[derive(Debug)]
pub(in crate::worker) struct Heard(Vec<Mutex<Record>>);

#[derive(Debug)]
struct Record {
    continuity: Continuity,
    /// Time of the last answer that the record includes.
    last: Option<Instant>,
}

impl Heard {
    pub(in crate::worker) fn new(shards: usize, hold: Duration) -> Self {
        let record = || Record { continuity: Continuity::new(hold), last: None };
        Self((0..shards).map(|_| Mutex::new(record())).collect())
    }

    fn record(&self, shard: u32) -> Option<MutexGuard<'_, Record>> {
        Some(self.0.get(shard as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the record of a shard, in the form that requests carry.
    pub(in crate::worker) fn of(&self, shard: u32, hold: Duration) -> Continuity {
        self.record(shard).map_or_else(|| Continuity::new(hold), |record| record.continuity.clone())
    }

    /// Records an answer: the request was sent at `asked`, and `server` answered at `now` by its clock. Does nothing if
    /// the answer does not identify the server: in that case the record is recent enough to stay as it is.
    pub(in crate::worker) fn answered(&self, shard: u32, asked: Instant, server: &str, now: u64) {
        let Some(mut record) = self.record(shard).filter(|_| !server.is_empty()) else { return };
        // Claims and renewals use different connections. For two that overlap, the order of the answers is unknown, and
        // a time before the last one would be taken for a clock that was set back. The other answer is sufficient.
        if record.last.is_none_or(|last| asked >= last) {
            record.continuity.advance(server, now);
            record.last = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_overlaps_the_last_one_changes_nothing() {
        let (heard, start) = (Heard::new(2, MS(100)), Instant::now());
        for now in [500, 540, 580, 620] {
            heard.answered(1, start + MS(now - 500), "a", now);
            tokio::time::advance(MS(40)).await;
        }
        // Sent before the last answer arrived, so it may have been answered before that.
        heard.answered(1, start, "a", 610);
        heard.answered(1, Instant::now(), "", 0);
        assert!(heard.of(1, MS(100)).judges("a", 640));
        assert!(!heard.of(0, MS(100)).judges("a", 640), "each shard for itself");
        heard.answered(1, Instant::now(), "a", 610);
        assert!(!heard.of(1, MS(100)).judges("a", 640), "a clock that was set back");
    }
}
