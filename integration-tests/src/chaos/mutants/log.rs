//! Mistakes of appending and settling.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::dedup::WINDOWS;
use millstream_core::log::{
    Append, Appender, DedupAppend, DedupAppender, DedupId, Deduplicated, Durability, InTurn, Log, Measured,
    NumberedAppend, NumberedAppender, Numbering, Reader, Receipt, Settled, Settlement, Trimmed, UniqueAppend,
    UnleasedTrim, append_by_ids,
};
use millstream_core::{Lease, MessageId, Result, Retention, TopicPartition};

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
    async fn append_cutting(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        let unique = |append: &Append| DedupAppend {
            append: append.clone(),
            id: DedupId::new(uuid::Uuid::new_v4().simple().to_string()).expect("it is short"),
            window: WINDOWS.0,
            earlier: Vec::new(),
        };
        let batch: Vec<_> = batch.iter().map(unique).collect();
        let results = self.inner.append_dedup(&batch).await.into_iter();
        results.map(|result| result.map(|stored| stored.id)).collect()
    }

    /// Records the ids, and then appends what was not recorded before.
    async fn append_after_marker(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        let mut results = self.inner.append_dedup(batch).await;
        let is_new = |result: &Result<Deduplicated>| result.as_ref().is_ok_and(|known| !known.is_duplicate);
        let new: Vec<usize> = (0..results.len()).filter(|at| is_new(&results[*at])).collect();
        if new.is_empty() {
            return results;
        }
        gap::pass().await;
        let appends: Vec<Append> = new.iter().map(|at| batch[*at].append.clone()).collect();
        for (at, stored) in new.into_iter().zip(self.inner.append(&appends).await) {
            let partition = batch[at].append.topic_partition.partition;
            results[at] = stored.map(|id| Deduplicated::new(partition, id, false));
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
    async fn append(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        match self.mutant {
            Mutant::AppendMaxlen => self.append_cutting(batch).await,
            Mutant::WholeBatchResent => {
                let results = self.inner.append(batch).await;
                if results.iter().all(Result::is_ok) { results } else { self.inner.append(batch).await }
            }
            _ => self.inner.append(batch).await,
        }
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        let inner = self.inner.appender(durability)?;
        Some(match self.mutant {
            // The script cannot wait for replicas, so sends that do are as they were.
            Mutant::AppendMaxlen if durability == Durability::Stored => Box::new(InTurn::new(self.clone())),
            Mutant::WholeBatchResent => {
                Box::new(Resending { log: self.inner.clone(), inner, begun: VecDeque::new(), again: None })
            }
            _ => inner,
        })
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        self.inner.trim_unleased(topic_partition, rule).await
    }

    async fn append_dedup(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        match self.mutant {
            Mutant::MarkerBeforeAppend => self.append_after_marker(batch).await,
            _ => self.inner.append_dedup(batch).await,
        }
    }

    fn dedup_appender(&self) -> Option<Box<dyn DedupAppender>> {
        if self.mutant == Mutant::MarkerBeforeAppend { None } else { self.inner.dedup_appender() }
    }

    async fn append_unique(&self, batch: &[UniqueAppend]) -> Vec<Result<Deduplicated>> {
        self.inner.append_unique(batch).await
    }

    async fn append_numbered(
        &self,
        numbering: &Numbering,
        batch: &[NumberedAppend],
    ) -> Vec<Result<MessageId>> {
        match self.mutant {
            Mutant::MarkerBeforeAppend => append_by_ids(self, numbering, batch).await,
            _ => self.inner.append_numbered(numbering, batch).await,
        }
    }

    fn numbered_appender(&self, numbering: Numbering) -> Option<Box<dyn NumberedAppender>> {
        if self.mutant == Mutant::MarkerBeforeAppend { None } else { self.inner.numbered_appender(numbering) }
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
}

/// A batch that is sent again.
type Again = Pin<Box<dyn Future<Output = Vec<Result<MessageId>>> + Send>>;

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

    async fn finish(&mut self) -> Vec<Result<MessageId>> {
        let Some(oldest) = self.begun.front().cloned() else { return Vec::new() };
        if self.again.is_none() {
            let results = self.inner.finish().await;
            if results.iter().all(Result::is_ok) {
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
