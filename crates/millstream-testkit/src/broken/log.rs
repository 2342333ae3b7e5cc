//! Mistakes of the log role, except for reading.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::log::{
    Append, Appender, DedupAppend, DedupId, Deduplicated, Durability, InTurn, Log, Measured, Note, Reader,
    Receipt, Settled, Settlement, Source, Trimmed, UniqueAppend, UnleasedTrim,
};
use millstream_core::{
    Capability, Due, Error, ErrorKind, History, Lease, MessageId, Reason, Result, Retention, TopicPartition,
};

use super::reader::BrokenReader;
use super::{Broken, Mutant};

#[async_trait]
impl Log for Broken {
    async fn append(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        let mut batch = batch.to_vec();
        match self.sabotage {
            Mutant::AppendReorders => batch.reverse(),
            Mutant::AppendMangles => {
                for entry in &mut batch {
                    entry.fields = BTreeMap::from_iter(entry.fields.clone()).into_iter().collect();
                }
            }
            Mutant::AppendToOnePartition => {
                let first = batch.first().map(|entry| entry.topic_partition.clone());
                for entry in &mut batch {
                    entry.topic_partition.clone_from(first.as_ref().expect("the batch is not empty"));
                }
            }
            _ => {}
        }
        let mut results = Vec::new();
        for entry in &batch {
            let failed = results.iter().any(Result::is_err);
            results.push(match self.sabotage {
                Mutant::AppendStopsAtBadEntry if failed => Err(Error::new(ErrorKind::Protocol, "aborted")),
                Mutant::AppendForgets if self.every_fifth() => Ok(MessageId::new(u64::MAX / 2, 0)),
                _ => self.append_one(entry).await,
            });
        }
        if self.is(Mutant::AppendReorders) {
            results.reverse();
        }
        results
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        self.inner.log().appender(durability)?;
        let is_claimed = self.supports(Capability::Durability).is_ok();
        is_claimed.then(|| Box::new(InTurn::new(self.clone())) as Box<dyn Appender>)
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let inner = self.inner.log().reader(lease).await?;
        Ok(Box::new(BrokenReader::new(self.clone(), lease.clone(), inner)))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        let lease = self.unfenced(Mutant::FenceIgnoredOnSettle, lease);
        let mut batch = batch.to_vec();
        let count = batch.len();
        match self.sabotage {
            Mutant::ExpiryFences => self.fence_expired(&lease).await?,
            Mutant::AcksForgotten => batch.retain(|(_, settlement)| *settlement != Settlement::Ack),
            Mutant::SettleAllOrNothing => {
                let mut receipts: Vec<_> = batch.iter().map(|(receipt, _)| *receipt).collect();
                receipts.sort_unstable();
                receipts.dedup();
                if receipts.len() < count {
                    return Ok(Settled { applied: 0, stale: count });
                }
            }
            Mutant::RetryToTheLog => {
                for (receipt, settlement) in &mut batch {
                    self.append_again(&lease, *receipt, settlement).await?;
                }
            }
            _ => batch.iter_mut().for_each(|(receipt, settlement)| self.spoil(*receipt, settlement)),
        }
        let (tp, group) = lease.partition()?;
        batch.retain_mut(|(receipt, settlement)| match settlement {
            Settlement::Hold(note) => {
                let key = (tp.clone(), group.clone(), *receipt);
                let keep = self.noted(key, &lease.token, note);
                if self.is(Mutant::HoldIsAck) {
                    *settlement = Settlement::Ack;
                }
                keep
            }
            _ => true,
        });
        if self.is(Mutant::DueTimesMerged) {
            merge_due_times(&mut batch);
        }
        let mut settled = match self.inner.log().settle(&lease, &batch).await {
            Err(error) if error.kind() == ErrorKind::GroupMissing && self.is(Mutant::LostGroupSettles) => {
                Settled { applied: 0, stale: batch.len() }
            }
            other => other?,
        };
        match self.sabotage {
            Mutant::HoldUnchecked if batch.iter().all(|(_, says)| matches!(says, Settlement::Hold(_))) => {
                settled = Settled { applied: count, stale: 0 };
            }
            Mutant::SettledAlways => settled = Settled { applied: count, stale: 0 },
            // Counts the settlements that were confirmed and forgotten.
            _ => settled.applied += count - batch.len(),
        }
        self.memo().groups.insert((tp.clone(), group.clone()));
        Ok(settled)
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        self.supports(Capability::Seek)?;
        self.broken_seek(lease, start).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        let lease = self.unfenced(Mutant::FenceIgnoredOnTrim, lease);
        let retention = match (self.sabotage, retention) {
            (Mutant::TrimIgnoresRetention, _) | (Mutant::TrimIgnoresAge, Retention::ConsumedAfter(_)) => {
                Retention::Consumed
            }
            (Mutant::TrimIgnoresAge, Retention::Age(_)) => Retention::Age(Duration::from_nanos(1)),
            (Mutant::TrimKeepsOneMore, Retention::Length(entries)) => {
                Retention::Length(entries.saturating_add(1))
            }
            _ => retention,
        };
        let mut trimmed = self.inner.log().trim(&lease, retention).await?;
        match self.sabotage {
            Mutant::LossUntold => trimmed.lost.clear(),
            Mutant::LossMixed => {
                for lost in &mut trimmed.lost {
                    (lost.unread, lost.pending) = (lost.unread + lost.pending, 0);
                }
            }
            _ => {}
        }
        let (tp, group) = lease.partition()?;
        let pending = match self.sabotage {
            Mutant::TrimForgetsThePosition => self.oldest_pending(tp).await?,
            _ => None,
        };
        let mut memo = self.memo();
        let last = match self.sabotage {
            Mutant::TrimForgetsThePosition => pending.map(MessageId::previous),
            Mutant::TrimForgotten => return Ok(Trimmed::default()),
            Mutant::TrimsUnread => memo.appended.get(tp).and_then(|entries| entries.last()).map(|e| e.0),
            // Trims by this group's deliveries: `taken` has the last group that saw an entry.
            Mutant::TrimsForOneGroup => {
                let seen = |((of, id), by): (&(_, MessageId), &_)| (of == tp && by == group).then_some(*id);
                memo.taken.iter().filter_map(seen).max()
            }
            _ => return Ok(trimmed),
        };
        let Some(last) = last else { return Ok(trimmed) };
        let before = memo.trimmed.insert(tp.clone(), last).unwrap_or(MessageId::ZERO);
        let entries = memo.appended.get(tp).into_iter().flatten();
        let dropped = entries.filter(|(id, _)| *id > before && *id <= last).count();
        Ok(Trimmed::new(dropped))
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        self.supports(Capability::UnleasedTrim)?;
        let rule = match (self.sabotage, rule) {
            (Mutant::UnleasedTrimForgotten, _) => return Ok(Trimmed::default()),
            (Mutant::UnleasedTrimAnytime, UnleasedTrim::OncePerSecond(retention)) => {
                UnleasedTrim::Now(retention)
            }
            (
                Mutant::UnleasedTrimDropsUnsettled,
                UnleasedTrim::OncePerSecond(retention) | UnleasedTrim::Now(retention),
            ) if !retention.is_lossy() => UnleasedTrim::Below(MessageId::MAX),
            (Mutant::TrimBelowIncludesTheId, UnleasedTrim::Below(id)) => {
                UnleasedTrim::Below(MessageId::new(id.ms, id.seq.saturating_add(1)))
            }
            (Mutant::TrimBelowKeepsUnsettled, UnleasedTrim::Below(_)) => {
                UnleasedTrim::Now(Retention::Consumed)
            }
            _ => rule,
        };
        let is_in_turn = matches!(rule, UnleasedTrim::OncePerSecond(_));
        if is_in_turn
            && self.is(Mutant::UnleasedTrimOnce)
            && !self.memo().turns.insert(topic_partition.clone())
        {
            let mut skipped = Trimmed::default();
            skipped.skipped = true;
            return Ok(skipped);
        }
        let mut trimmed = self.inner.log().trim_unleased(topic_partition, rule).await?;
        if self.is(Mutant::LossUntold) {
            trimmed.lost.clear();
        }
        Ok(trimmed)
    }

    async fn append_dedup(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        if let Err(error) = self.supports(Capability::Dedup) {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        self.broken_dedup(batch).await
    }

    async fn append_unique(&self, batch: &[UniqueAppend]) -> Vec<Result<Deduplicated>> {
        if let Err(error) = self.supports(Capability::Unique) {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        self.broken_unique(batch).await
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let mut partitions: Vec<_> = batch.iter().map(|append| append.topic_partition.clone()).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let before = self.lengths(&partitions).await.unwrap_or_default();
        let results = self.append(batch).await;
        let after = self.lengths(&partitions).await.unwrap_or_default();
        let lengths = if self.is(Mutant::MeasuredBefore) { before } else { after };
        Measured::new(results, partitions.into_iter().zip(lengths).collect())
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.supports(Capability::Lengths)?;
        let mut lengths = self.inner.log().lengths(partitions).await?;
        if self.is(Mutant::LengthsReversed) {
            lengths.reverse();
        }
        Ok(lengths)
    }
}

impl Broken {
    async fn append_one(&self, entry: &Append) -> Result<MessageId> {
        let mut results = self.inner.log().append(std::slice::from_ref(entry)).await;
        let id = results.pop().expect("one result per entry")?;
        let mut memo = self.memo();
        memo.appended.entry(entry.topic_partition.clone()).or_default().push((id, entry.fields.clone()));
        Ok(id)
    }

    /// Returns the oldest entry that is pending in any group.
    async fn oldest_pending(&self, tp: &TopicPartition) -> Result<Option<MessageId>> {
        let mut oldest = None;
        for group in self.inner.catalog().groups(&tp.topic).await? {
            let page = self.inner.inspect()?.pending(tp, &group, Source::Log, MessageId::ZERO, 1).await?;
            oldest = oldest.into_iter().chain(page.items.first().map(|pending| pending.id)).min();
        }
        Ok(oldest)
    }

    fn every_fifth(&self) -> bool {
        let mut memo = self.memo();
        memo.count += 1;
        memo.count.is_multiple_of(5)
    }

    pub(super) async fn fence_expired(&self, lease: &Lease) -> Result<()> {
        let holder = self.inner.leases().holder(&lease.resource).await?;
        holder.map(|_| ()).ok_or_else(|| lease.fenced())
    }

    async fn append_again(&self, lease: &Lease, receipt: Receipt, settlement: &mut Settlement) -> Result<()> {
        let (tp, _) = lease.partition()?;
        if !matches!(settlement, Settlement::Retry { .. }) || receipt.source == Source::Retry {
            return Ok(());
        }
        let entry = {
            let memo = self.memo();
            let entries = memo.appended.get(tp).into_iter().flatten();
            entries.into_iter().find(|(id, _)| *id == receipt.id).map(|(_, fields)| fields.clone())
        };
        if let Some(fields) = entry {
            self.append_one(&Append { topic_partition: tp.clone(), fields }).await?;
            *settlement = Settlement::Ack;
        }
        Ok(())
    }

    /// Spoils the settlement of one entry.
    fn spoil(&self, receipt: Receipt, settlement: &mut Settlement) {
        match (self.sabotage, &mut *settlement) {
            (Mutant::RetryEarly, Settlement::Retry { due, .. }) => *due = earlier(*due),
            (Mutant::RetryTimeIgnored, Settlement::Retry { due: due @ Due::At(_), .. }) => {
                *due = Due::NOW;
            }
            (Mutant::SnoozeCounts, Settlement::Retry { attempt, history, .. })
                if history.tells_of(*attempt - 1) =>
            {
                *attempt += 1;
            }
            (
                Mutant::HistoryForgotten,
                Settlement::Retry { history, .. }
                | Settlement::DeadLetter { history, .. }
                | Settlement::Hold(Note { history, .. }),
            ) => *history = History::default(),
            (
                Mutant::OriginForgotten,
                Settlement::Retry { origin, .. } | Settlement::DeadLetter { origin, .. },
            ) => {
                *origin = receipt.id;
            }
            (Mutant::DeadLetterDropped, Settlement::DeadLetter { .. }) => *settlement = Settlement::Ack,
            (Mutant::DeadLetterLosesStory, Settlement::DeadLetter { reason, attempts, error, .. }) => {
                (*reason, *attempts) = (Reason::parse(""), 0);
                error.clear();
            }
            _ => {}
        }
    }
}

/// Makes all retries of the batch due with the last of them.
fn merge_due_times(batch: &mut [(Receipt, Settlement)]) {
    let after = |settlement: &Settlement| match settlement {
        Settlement::Retry { due: Due::In(after), .. } => *after,
        _ => Duration::ZERO,
    };
    let last = batch.iter().map(|(_, settlement)| after(settlement)).max().unwrap_or_default();
    for (_, settlement) in batch {
        if let Settlement::Retry { due, .. } = settlement {
            *due = Due::In(last);
        }
    }
}

/// Returns a due time that is too early.
pub(super) fn earlier(due: Due) -> Due {
    const EARLY: Duration = Duration::from_millis(100);
    match due {
        Due::In(after) => Due::In(after.saturating_sub(EARLY)),
        Due::At(at) => Due::At(at.saturating_sub(EARLY)),
    }
}

/// Appends with a dedup id.
impl Broken {
    async fn broken_dedup(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        let mut batch = batch.to_vec();
        let long = Duration::from_secs(86_400);
        match self.sabotage {
            Mutant::DedupIgnored => batch.iter_mut().for_each(|item| item.id = self.unique_id()),
            Mutant::DedupWithinBatchIgnored => {
                for at in 1..batch.len() {
                    if batch[..at].iter().any(|before| before.id == batch[at].id) {
                        batch[at].id = self.unique_id();
                    }
                }
            }
            Mutant::DedupForEver => batch.iter_mut().for_each(|item| item.window = item.window.max(long)),
            Mutant::DedupForHalfTheWindow => batch.iter_mut().for_each(|item| {
                item.window = (item.window / 2).max(Duration::from_millis(100));
            }),
            Mutant::DedupAcrossPartitions => {
                batch.iter_mut().for_each(|item| item.append.topic_partition.partition.0 = 0);
            }
            Mutant::DedupEarlierIgnored => batch.iter_mut().for_each(|item| item.earlier.clear()),
            Mutant::DedupWindowCorrected => batch.iter_mut().for_each(|item| {
                item.window = item.window.max(Duration::from_millis(100));
            }),
            Mutant::DedupReorders => {
                batch.reverse();
                let mut results = self.inner.log().append_dedup(&batch).await;
                results.reverse();
                return results;
            }
            _ => {}
        }
        let mut results = self.inner.log().append_dedup(&batch).await;
        if self.is(Mutant::DedupMadeUp) {
            for result in results.iter_mut().flatten().filter(|result| result.is_duplicate) {
                result.id = MessageId::new(result.id.ms, result.id.seq + 1);
            }
        }
        results
    }

    async fn broken_unique(&self, batch: &[UniqueAppend]) -> Vec<Result<Deduplicated>> {
        let mut batch = batch.to_vec();
        match self.sabotage {
            Mutant::UniqueIgnored => batch.iter_mut().for_each(|item| item.id = self.unique_id()),
            Mutant::UniqueForEver => {
                let window = Duration::from_secs(86_400);
                let item =
                    |UniqueAppend { append, id, earlier, .. }| DedupAppend { append, id, window, earlier };
                let batch: Vec<_> = batch.into_iter().map(item).collect();
                return self.inner.log().append_dedup(&batch).await;
            }
            Mutant::UniqueEarlierIgnored => batch.iter_mut().for_each(|item| item.earlier.clear()),
            Mutant::UniqueSendIgnored => batch.iter_mut().for_each(|item| item.send = fastrand::u64(..)),
            _ => {}
        }
        let mut results = self.inner.log().append_unique(&batch).await;
        if self.is(Mutant::UniqueMadeUp) {
            for result in results.iter_mut().flatten().filter(|result| result.is_duplicate) {
                result.id = MessageId::new(result.id.ms, result.id.seq + 1);
            }
        }
        results
    }

    fn unique_id(&self) -> DedupId {
        let mut memo = self.memo();
        memo.count += 1;
        DedupId::new(format!("unique {}", memo.count)).expect("an id")
    }
}
