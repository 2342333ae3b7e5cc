//! The owner of a partition, for use in cases.

use std::fmt;
use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::log::{Entry, Fetched, Note, Receipt, Settled, Source};
use millstream_core::{Due, History, Lease, MessageId, Reader, Reason, Settlement};

use super::{Harness, LONG, QUIET};
use crate::violation::{Verdict, Violation, ensure};

/// The holder of a lease on a partition, with a reader.
pub struct Owner {
    /// The lease.
    pub lease: Lease,
    /// The reader of that lease.
    pub reader: Box<dyn Reader>,
    pub(crate) harness: Harness,
}

impl Owner {
    /// Opens a second reader under the same lease, as after a lost connection.
    pub(crate) async fn reopen(&mut self) -> Verdict {
        self.reader = self.harness.backend.log().reader(&self.lease).await?;
        Ok(())
    }

    pub(crate) async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched, Violation> {
        Ok(self.reader.fetch(max, wait).await?)
    }

    /// Fetches until `count` entries have arrived.
    pub(crate) async fn take(&mut self, count: usize) -> Result<Vec<Entry>, Violation> {
        self.take_where(count, |_| true).await
    }

    /// Fetches until `count` entries and ghosts have arrived.
    pub(crate) async fn gather(&mut self, count: usize) -> Result<Fetched, Violation> {
        let mut all = Fetched::default();
        let mut deadline = self.harness.wait_for(&format!("{count} entries and ghosts to be handed out"));
        loop {
            let left = count.saturating_sub(all.entries.len() + all.ghosts.len());
            if left == 0 {
                return Ok(all);
            }
            let fetched = self.fetch(left, QUIET).await?;
            if fetched.entries.is_empty() && fetched.ghosts.is_empty() {
                deadline.pause().await?;
            }
            all.entries.extend(fetched.entries);
            all.ghosts.extend(fetched.ghosts);
        }
    }

    /// Fetches until `count` entries of the retry log have arrived; other entries are dropped and stay pending.
    pub(crate) async fn take_retries(&mut self, count: usize) -> Result<Vec<Entry>, Violation> {
        self.take_where(count, |entry| entry.receipt.source == Source::Retry).await
    }

    async fn take_where(
        &mut self,
        count: usize,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<Vec<Entry>, Violation> {
        let mut taken = Vec::new();
        let mut deadline = self.harness.wait_for(&format!("{count} entries to be handed out"));
        while taken.len() < count {
            let fetched = self.fetch(count - taken.len(), QUIET).await?;
            if fetched.entries.is_empty() {
                deadline.pause().await?;
            }
            taken.extend(fetched.entries.into_iter().filter(&wanted));
        }
        Ok(taken)
    }

    /// Expects that no entry arrives.
    pub(crate) async fn nothing(&mut self, why: &str) -> Verdict {
        let fetched = self.fetch(100, QUIET).await?;
        let came = fetched.entries.len() + fetched.ghosts.len();
        ensure!(came == 0, "{came} entries were handed out ({why}): {:?}", fetched.entries);
        Ok(())
    }

    pub(crate) async fn settle(
        &mut self,
        receipt: Receipt,
        settlement: Settlement,
    ) -> Result<Settled, Violation> {
        Ok(self.harness.backend.log().settle(&self.lease, &[(receipt, settlement)]).await?)
    }

    /// Settles many entries in the same way and expects that each settlement takes effect.
    pub(crate) async fn settle_all(&mut self, entries: &[Entry], settlement: &Settlement) -> Verdict {
        let batch: Vec<_> = entries.iter().map(|entry| (entry.receipt, settlement.clone())).collect();
        let settled = self.harness.backend.log().settle(&self.lease, &batch).await?;
        let expected = Settled { applied: batch.len(), stale: 0 };
        ensure!(settled == expected, "settled {settled:?}, expected {expected:?}");
        Ok(())
    }

    /// Seeks, which releases the lease, and continues under a new one.
    pub(crate) async fn seek(&mut self, start: Start) -> Verdict {
        self.harness.backend.log().seek(&self.lease, start).await?;
        self.goes_on().await
    }

    /// Acquires the partition again, immediately.
    pub(crate) async fn goes_on(&mut self) -> Verdict {
        self.lease = self.harness.granted(&self.lease.resource, LONG).await?;
        self.reopen().await
    }

    pub(crate) async fn ack(&mut self, entries: &[Entry]) -> Verdict {
        self.settle_all(entries, &Settlement::Ack).await
    }

    /// Promotes until `count` messages were moved.
    pub(crate) async fn promote(&mut self, count: usize) -> Verdict {
        let mut deadline = self.harness.wait_for("parked messages to be promoted");
        let mut moved = 0;
        loop {
            moved += self.harness.backend.schedule().promote(&self.lease, 100).await?.moved;
            ensure!(moved <= count, "{moved} messages were promoted, {count} were parked");
            if moved == count {
                return Ok(());
            }
            deadline.pause().await?;
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// Returns a retry of `entry` as its second attempt, due after `after`.
pub(crate) fn retry(entry: &Entry, after: Duration) -> Settlement {
    retry_as(2, entry.receipt.id, after)
}

/// Returns a retry with all values given.
pub(crate) fn retry_as(attempt: u32, origin: MessageId, after: Duration) -> Settlement {
    let (due, error) = (Due::In(after), format!("attempt {} failed", attempt - 1));
    Settlement::Retry { due, attempt, origin, error, history: History::default(), wait: None }
}

/// Returns a settlement that leaves the entry in place, with a note.
pub(crate) fn hold(attempt: u32, after: Duration) -> Settlement {
    Settlement::Hold(note(attempt, after))
}

/// Returns a note with all values given.
pub(crate) fn note(attempt: u32, after: Duration) -> Note {
    Note {
        attempt,
        due: Due::In(after),
        suspicions: attempt + 1,
        by: format!("instance-{attempt}"),
        error: format!("attempt {} failed", attempt.saturating_sub(1)),
        history: History::default(),
    }
}

/// Returns a settlement that makes the message a dead letter after `attempts` attempts.
pub(crate) fn dead(reason: Reason, attempts: u32, origin: MessageId) -> Settlement {
    let (error, history) = ("gave up".to_owned(), History::default());
    Settlement::DeadLetter { reason, attempts, origin, error, history, result: None }
}

/// Returns the ids of entries, for comparisons.
pub(crate) fn ids(entries: &[Entry]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.receipt.id).collect()
}
