//! Mistakes of the log role, except for reading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::log::{
    Append, Appended, Appender, DedupId, DedupIdentity, Durability, Identity, InTurn, Log, Measured, Note,
    ProgressRight, Reader, Receipt, Settled, Settlement, Source, Trimmed, UniqueIdentity, UnleasedTrim,
};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::{
    Capability, Due, Error, ErrorKind, History, Lease, MessageId, Reason, Result, Retention, TopicPartition,
};

use super::reader::BrokenReader;
use super::{Broken, Mutant};

#[async_trait]
impl Log for Broken {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let mut batch = batch.to_vec();
        if let Err(error) = Append::kind_of(&batch) {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        if let Some(capability) = batch.first().and_then(|append| append.identity.capability()) {
            if let Err(error) = self.supports(capability) {
                return batch.iter().map(|_| Err(error.clone())).collect();
            }
            return match capability {
                Capability::Unique => self.broken_unique(batch).await,
                _ => self.broken_dedup(batch).await,
            };
        }
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
                Mutant::AppendForgets if self.every_fifth() => {
                    Ok(Appended::new(entry.topic_partition.partition, MessageId::new(u64::MAX / 2, 0)))
                }
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
        self.forget_results(&mut batch);
        let answer = self.inner.log().settle(&lease, &batch).await;
        self.note_results(tp, &batch, &answer);
        let mut settled = match answer {
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

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.broken_result(id, wait).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.broken_report(right, report).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.broken_progress(id, above, wait).await
    }
}

impl Broken {
    async fn append_one(&self, entry: &Append) -> Result<Appended> {
        let mut results = self.inner.log().append(std::slice::from_ref(entry)).await;
        let appended = results.pop().expect("one result per entry")?;
        let mut memo = self.memo();
        let of_partition = memo.appended.entry(entry.topic_partition.clone()).or_default();
        of_partition.push((appended.id, entry.fields.clone()));
        Ok(appended)
    }

    fn every_fifth(&self) -> bool {
        let mut memo = self.memo();
        memo.count += 1;
        memo.count.is_multiple_of(5)
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
            self.append_one(&Append::new(tp.clone(), fields)).await?;
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
    /// Numbers too, as ids.
    async fn broken_dedup(&self, asked: Vec<Append>) -> Vec<Result<Appended>> {
        let mut batch: Vec<_> = asked.iter().map(|append| append.by_id().expect("a short id")).collect();
        let long = Duration::from_secs(86_400);
        match self.sabotage {
            Mutant::DedupIgnored => dedups(&mut batch).for_each(|item| item.id = self.unique_id()),
            Mutant::DedupWithinBatchIgnored => {
                let mut known = BTreeSet::new();
                for item in dedups(&mut batch) {
                    if !known.insert(item.id.clone()) {
                        item.id = self.unique_id();
                    }
                }
            }
            Mutant::DedupForEver => dedups(&mut batch).for_each(|item| item.window = item.window.max(long)),
            Mutant::DedupForHalfTheWindow => dedups(&mut batch).for_each(|item| {
                item.window = (item.window / 2).max(Duration::from_millis(100));
            }),
            Mutant::DedupAcrossPartitions => {
                batch.iter_mut().for_each(|item| item.topic_partition.partition.0 = 0);
            }
            Mutant::DedupEarlierIgnored => dedups(&mut batch).for_each(|item| item.earlier.clear()),
            Mutant::DedupWindowCorrected => dedups(&mut batch).for_each(|item| {
                item.window = item.window.max(Duration::from_millis(100));
            }),
            Mutant::DedupReorders => {
                batch.reverse();
                let mut results = self.inner.log().append(&batch).await;
                results.reverse();
                return results;
            }
            _ => {}
        }
        let results = self.made_up(Mutant::DedupMadeUp, self.inner.log().append(&batch).await);
        let told = |(result, append): (Result<Appended>, &Append)| result.map(|it| append.identity.told(it));
        results.into_iter().zip(&asked).map(told).collect()
    }

    async fn broken_unique(&self, mut batch: Vec<Append>) -> Vec<Result<Appended>> {
        match self.sabotage {
            Mutant::UniqueIgnored => uniques(&mut batch).for_each(|item| item.id = self.unique_id()),
            Mutant::UniqueForEver => {
                for append in &mut batch {
                    if let Identity::Unique(unique) = &append.identity {
                        let UniqueIdentity { id, earlier, .. } = (**unique).clone();
                        let window = Duration::from_secs(86_400);
                        append.identity = DedupIdentity { id, window, earlier }.into();
                    }
                }
            }
            Mutant::UniqueEarlierIgnored => uniques(&mut batch).for_each(|item| item.earlier.clear()),
            Mutant::UniqueSendIgnored => uniques(&mut batch).for_each(|item| item.send = fastrand::u64(..)),
            _ => {}
        }
        self.made_up(Mutant::UniqueMadeUp, self.inner.log().append(&batch).await)
    }

    /// Gives duplicates another id.
    fn made_up(&self, mistake: Mutant, mut results: Vec<Result<Appended>>) -> Vec<Result<Appended>> {
        if self.is(mistake) {
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

fn dedups(batch: &mut [Append]) -> impl Iterator<Item = &mut DedupIdentity> {
    batch.iter_mut().filter_map(|append| match &mut append.identity {
        Identity::Dedup(dedup) => Some(Arc::make_mut(dedup)),
        _ => None,
    })
}

fn uniques(batch: &mut [Append]) -> impl Iterator<Item = &mut UniqueIdentity> {
    batch.iter_mut().filter_map(|append| match &mut append.identity {
        Identity::Unique(unique) => Some(Arc::make_mut(unique)),
        _ => None,
    })
}
