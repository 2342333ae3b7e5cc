//! Mistakes of appending and settling.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::dedup::WINDOWS;
use millstream_core::log::ProgressRight;
use millstream_core::log::{
    Append, Appended, Appender, DedupId, DedupIdentity, Durability, Identity, Log, Measured, Reader, Receipt,
    Settled, Settlement, Trimmed, UnleasedTrim,
};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::{Capability, Lease, Result, Retention, TopicPartition};
use std::time::Duration;

use super::reader::NewOnly;
use super::{Mutant, clock, gap};

/// A log with one of the mistakes.
#[derive(Clone)]
pub(super) struct Mutated {
    inner: Arc<dyn Log>,
    mutant: Mutant,
    /// Tokens of the leases under which new entries were read.
    begun: Arc<Mutex<HashSet<String>>>,
}

impl Mutated {
    pub(super) fn new(inner: Arc<dyn Log>, mutant: Mutant) -> Self {
        Self { inner, mutant, begun: Arc::default() }
    }

    /// Appends with the script that drops what is beyond the length: each entry under an id that nobody else has.
    async fn append_cutting(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let unique = |append: &Append| {
            let id = DedupId::new(uuid::Uuid::new_v4().simple().to_string()).expect("it is short");
            append.clone().with(DedupIdentity { id, window: WINDOWS.0, earlier: Vec::new() })
        };
        let batch: Vec<_> = batch.iter().map(unique).collect();
        self.inner.append(&batch).await
    }

    /// Records the ids, and then appends what was not recorded before.
    async fn append_after_marker(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let by_id = |append: &Append| append.by_id().expect("an id of a number is short");
        let by_ids: Vec<_> = batch.iter().map(by_id).collect();
        let mut results = self.inner.append(&by_ids).await;
        let is_new = |result: &Result<Appended>| result.as_ref().is_ok_and(|known| !known.is_duplicate);
        let new: Vec<usize> = (0..results.len()).filter(|at| is_new(&results[*at])).collect();
        for (result, append) in results.iter_mut().zip(batch) {
            *result = result.clone().map(|it| append.identity.told(it));
        }
        if new.is_empty() {
            return results;
        }
        gap::pass().await;
        let plain = |at: &usize| batch[*at].clone().with(Identity::None);
        let appends: Vec<Append> = new.iter().map(plain).collect();
        for (at, stored) in new.into_iter().zip(self.inner.append(&appends).await) {
            results[at] = stored;
        }
        results
    }

    /// Acknowledges the entries of retries with the rest of the batch, and then stores the retries: see the patches.
    async fn settle_in_two_steps(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        let retries = batch.iter().filter(|(_, settlement)| matches!(settlement, Settlement::Retry { .. }));
        let retries: Vec<_> = retries.cloned().collect();
        let settled = self.inner.settle(lease, batch).await?;
        if !retries.is_empty() {
            gap::pass().await;
            self.inner.settle(lease, &retries).await?;
        }
        Ok(settled)
    }
}

#[async_trait]
impl Log for Mutated {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let is_plain = batch.iter().all(|append| !append.identity.is_repeatable());
        match self.mutant {
            Mutant::AppendMaxlen if is_plain => self.append_cutting(batch).await,
            Mutant::WholeBatchResent if is_plain => {
                let results = self.inner.append(batch).await;
                if results.iter().all(Result::is_ok) { results } else { self.inner.append(batch).await }
            }
            Mutant::MarkerBeforeAppend
                if batch.iter().all(|append| append.identity.capability() == Some(Capability::Dedup)) =>
            {
                self.append_after_marker(batch).await
            }
            _ => self.inner.append(batch).await,
        }
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        let inner = self.inner.appender(durability)?;
        Some(match self.mutant {
            // One request at a time: what has failed is sent again before a later one. The script cannot wait for replicas, so
            // sends that do are as they were.
            Mutant::AppendMaxlen | Mutant::MarkerBeforeAppend if durability == Durability::Stored => {
                return None;
            }
            Mutant::WholeBatchResent => {
                Box::new(Resending { log: self.inner.clone(), inner, begun: VecDeque::new(), again: None })
            }
            _ => inner,
        })
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        self.inner.trim_unleased(topic_partition, rule).await
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let inner = self.inner.reader(lease).await?;
        Ok(match self.mutant {
            Mutant::PendingNotReread => Box::new(NewOnly::new(inner, lease, self.begun.clone())),
            _ => inner,
        })
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        match self.mutant {
            Mutant::AckBeforeRetry => self.settle_in_two_steps(lease, batch).await,
            Mutant::ClientClock => self.inner.settle(lease, &clock::settlements(batch)).await,
            _ => self.inner.settle(lease, batch).await,
        }
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        self.inner.seek(lease, start).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.inner.trim(lease, retention).await
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let mut measured = self.inner.append_measured(batch).await;
        if self.mutant == Mutant::WholeBatchResent && measured.results.iter().any(Result::is_err) {
            measured = self.inner.append_measured(batch).await;
        }
        measured
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.inner.lengths(partitions).await
    }

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.inner.result(id, wait).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.inner.report_progress(right, report).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.inner.progress(id, above, wait).await
    }
}

/// A batch that is sent again.
type Again = Pin<Box<dyn Future<Output = Vec<Result<Appended>>> + Send>>;

/// An appender that sends a batch again if one of its entries failed.
struct Resending {
    log: Arc<dyn Log>,
    inner: Box<dyn Appender>,
    /// Batches that are not reported, oldest first.
    begun: VecDeque<Arc<Vec<Append>>>,
    /// The second time of the oldest one.
    again: Option<Again>,
}

#[async_trait]
impl Appender for Resending {
    fn begin(&mut self, batch: Arc<Vec<Append>>) {
        self.begun.push_back(batch.clone());
        self.inner.begin(batch);
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        let Some(oldest) = self.begun.front().cloned() else { return Vec::new() };
        if self.again.is_none() {
            let results = self.inner.finish().await;
            let is_plain = oldest.iter().all(|append| !append.identity.is_repeatable());
            if !is_plain || results.iter().all(Result::is_ok) {
                self.begun.pop_front();
                return results;
            }
            let log = self.log.clone();
            self.again = Some(Box::pin(async move { log.append(&oldest).await }));
        }
        let results = match &mut self.again {
            Some(again) => again.await,
            None => Vec::new(),
        };
        self.again = None;
        self.begun.pop_front();
        results
    }
}
