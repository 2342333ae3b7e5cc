//! Record of how long a server has answered without a gap.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::Continuity;
use millstream_core::Timestamp;
use tokio::time::Instant;

/// Record of how long one server has answered this client without a gap. Requests that judge others carry its
/// [`Continuity`]. Shared by the loops that send such requests.
#[derive(Debug)]
pub struct Answers(Mutex<Record>);

#[derive(Debug)]
struct Record {
    continuity: Continuity,
    /// Time of the last answer that the record includes.
    last: Option<Instant>,
}

impl Answers {
    /// Creates the record of a client before its first answer. `ttl` is that of the leases, heartbeats or claims that the
    /// client judges.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self(Mutex::new(Record { continuity: Continuity::new(ttl), last: None }))
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record in the form that requests carry.
    #[must_use]
    pub fn continuity(&self) -> Continuity {
        self.record().continuity.clone()
    }

    /// Records an answer: the request was sent at `asked`, and `server` answered at `now` by its clock.
    /// Does nothing if the answer does not identify the server: in that case the record is recent enough to stay as it is.
    pub fn record_answer(&self, asked: Instant, server: &str, now: Timestamp) {
        if server.is_empty() {
            return;
        }
        let mut record = self.record();
        // Requests may use different connections. For two that overlap, the order of the answers is unknown, and a time
        // before the last one would be taken for a clock that was set back. The other answer is sufficient.
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

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_overlaps_the_last_one_changes_nothing() {
        let (answers, start) = (Answers::new(MS(100)), Instant::now());
        for now in [500, 540, 580, 620] {
            answers.record_answer(start + MS(now - 500), "a", at(now));
            tokio::time::advance(MS(40)).await;
        }
        // Sent before the last answer arrived, so it may have been answered before that.
        answers.record_answer(start, "a", at(610));
        answers.record_answer(Instant::now(), "", at(0));
        assert!(answers.continuity().judges("a", at(640)));
        answers.record_answer(Instant::now(), "a", at(610));
        assert!(!answers.continuity().judges("a", at(640)), "a clock that was set back");
    }
}
