//! The log role in memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::log::{
    Append, Appended, Appender, Durability, Entry, Fetched, Identity, InTurn, Log, Measured, ProgressRight,
    Reader, Receipt, Settled, Settlement, Source, Trimmed, UnleasedTrim,
};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::wire::{self, Fields};
use millstream_core::{
    DeadLetter, Error, ErrorKind, GroupName, Lease, MemberId, MessageId, Result, Retention, TopicPartition,
};
use tokio::sync::Notify;

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;
use crate::results;
use crate::state::{Group, Item, Partition, State};
use crate::stream::{Cursor, Held, Reading};
use crate::trim::{trim, trim_unleased};

#[async_trait]
impl Log for MemoryBackend {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        breathe().await;
        if let Err(error) = Append::kind_of(batch) {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        let mut results = Vec::with_capacity(batch.len());
        let mut state = self.lock();
        let now = self.now();
        let is_plain = |append: &Append| matches!(append.identity, Identity::None);
        // Entries of the same partition are grouped, so that it is looked up and its readers are woken once.
        let same =
            |a: &Append, b: &Append| a.topic_partition == b.topic_partition && is_plain(a) && is_plain(b);
        for run in batch.chunk_by(same) {
            if let [append] = run
                && !is_plain(append)
            {
                results.push(state.append_once(append, now));
                continue;
            }
            let TopicPartition { topic, partition: number } = &run[0].topic_partition;
            let packing = state.topics.get(topic).and_then(|topic| topic.packing);
            let partition = state.partition(&run[0].topic_partition);
            let stored: Vec<_> =
                run.iter().map(|entry| partition.append(now.timestamp(), &entry.fields)).collect();
            partition.pack(packing, &stored);
            partition.wake.notify_waiters();
            results.extend(stored.into_iter().map(|id| id.map(|id| Appended::new(*number, id))));
        }
        results
    }

    /// Everything in memory is as durable as the process: what is stored has any durability.
    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        match durability {
            Durability::Stored => None,
            _ => Some(Box::new(InTurn::new(self.clone()))),
        }
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let (topic_partition, _) = lease.partition()?;
        let (wake, heads) = {
            let mut state = self.lock();
            let partition = state.partition(topic_partition);
            (partition.wake.clone(), partition.heads)
        };
        Ok(Box::new(MemoryReader {
            backend: self.clone(),
            lease: lease.clone(),
            wake,
            heads,
            phase: ReadPhase::default(),
            restart: 0,
            handed: MessageId::ZERO,
            newest: [None; 2],
            tail_lost: false,
            rewound: None,
            retry_first: false,
            rest: VecDeque::new(),
        }))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let (topic_partition, name) = lease.partition()?;
        let (partition, _) = state.owned(lease)?;
        let (mut settled, mut refused) = (Settled::default(), false);
        let gone = partition.groups.get(name).is_none_or(|group| group.cursor.is_none());
        let kept = |receipt: &Receipt, settlement: &Settlement| {
            receipt.source == Source::Log && !settlement.is_ack()
        };
        for (receipt, settlement) in batch {
            if gone && kept(receipt, settlement) {
                refused = true;
                continue;
            }
            let done = settle(partition, (topic_partition, name), None, now, *receipt, settlement);
            *(if done { &mut settled.applied } else { &mut settled.stale }) += 1;
        }
        if refused { Err(missing_of(lease)) } else { Ok(settled) }
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        breathe().await;
        let mut state = self.lock();
        let (partition, name) = state.owned(lease)?;
        let delivered = partition.log.beginning(start)?;
        let Some(group) = partition.groups.get_mut(name).filter(|group| group.cursor.is_some()) else {
            return Err(missing_of(lease));
        };
        group.cursor = Some(Cursor::at(delivered));
        partition.wake.notify_waiters();
        // Entries that were handed out before must not be settled any more: the same ids are handed out again.
        if let Some(fence) = state.fences.get_mut(&lease.resource) {
            fence.token = None;
        }
        Ok(())
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        let mut state = self.lock();
        let now = self.now().timestamp();
        let (partition, _) = state.owned(lease)?;
        let trimmed = trim(partition, retention, now)?;
        partition.clean_unique_unless_recent(now);
        Ok(trimmed)
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        let mut state = self.lock();
        let now = self.now().timestamp();
        let partition = state.partition(topic_partition);
        let trimmed = trim_unleased(partition, rule, now)?;
        partition.clean_unique_unless_recent(now);
        Ok(trimmed)
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let results = self.append(batch).await;
        let state = self.lock();
        let mut lengths: Vec<(TopicPartition, u64)> = Vec::new();
        for Append { topic_partition, .. } in batch {
            if lengths.iter().all(|(known, _)| known != topic_partition) {
                lengths.push((topic_partition.clone(), length(&state, topic_partition)));
            }
        }
        Measured::new(results, lengths)
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        let state = self.lock();
        Ok(partitions.iter().map(|topic_partition| length(&state, topic_partition)).collect())
    }

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        breathe().await;
        Ok(results::within(wait, || self.lock().results(&id.place).look(id.number, self.now())).await)
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        state.results_under(right)?.report(report, now);
        Ok(())
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        breathe().await;
        let look = || self.lock().results(&id.place).lines(id.number, above, self.now());
        Ok(results::within(wait, look).await.unwrap_or_default())
    }
}

fn length(state: &State, topic_partition: &TopicPartition) -> u64 {
    state.peek(topic_partition).map_or(0, |partition| partition.log.len() as u64)
}

/// Settles one entry, which must be pending for `whose` if that is given. Returns false if there was nothing to settle.
pub(crate) fn settle(
    partition: &mut Partition,
    (topic_partition, name): (&TopicPartition, &GroupName),
    whose: Option<&MemberId>,
    now: Now,
    receipt: Receipt,
    settlement: &Settlement,
) -> bool {
    // Not `partition.group(name)`, which would borrow the log too.
    let Some(group) = partition.groups.get_mut(name) else { return false };
    let cursor = match receipt.source {
        Source::Log => group.cursor.as_mut(),
        Source::Retry => Some(&mut group.retry_cursor),
    };
    let Some(cursor) = cursor else { return false };
    let theirs = |by: &Option<MemberId>| whose.is_some() && by.as_ref() != whose;
    if cursor.pending.get(&receipt.id).is_none_or(|pending| theirs(&pending.by)) {
        return false;
    }
    if let Settlement::Hold(note) = settlement {
        let Some(pending) = cursor.pending.get_mut(&receipt.id) else { return false };
        pending.held = Some(Box::new(Held::new(note, now)));
        return true;
    }
    cursor.pending.remove(&receipt.id);
    if let Some(result) = settlement.result() {
        // Also of a message that is gone: nobody will handle it.
        partition.results.put(result, now);
        if settlement.is_ack()
            && let Some(id) = &result.demand.steps
        {
            group.steps.remove(id);
        }
    }
    let entry = match (receipt.source, settlement) {
        // Other groups may still need it: only a trim drops it.
        (Source::Log, Settlement::Ack | Settlement::AckWith(_)) => return true,
        (Source::Log, _) => partition.log.get(receipt.id).cloned(),
        (Source::Retry, _) => group.retry.remove(receipt.id),
    };
    let body = entry.map(|fields| match receipt.source {
        Source::Log => fields,
        Source::Retry => wire::body_of(Source::Retry, &fields).to_vec(),
    });
    match (settlement, body) {
        (Settlement::Ack | Settlement::AckWith(_) | Settlement::Hold(_), _) => true,
        // A ghost: there is nothing left to retry or keep.
        (_, None) => false,
        (Settlement::Retry { due, attempt, origin, error, history, wait }, Some(body)) => {
            let (error, mut history) = (wire::cut(error).to_owned(), history.clone());
            history.add(now.timestamp(), attempt.saturating_sub(1), &error);
            let item = Item { attempt: *attempt, error, history, body };
            let mut due = now.due(*due);
            if let Some(wait) = wait {
                due = group.steps.wait_until(&origin.to_string(), wait, due, now.timestamp());
            }
            group.parked.park(*origin, due, item);
            true
        }
        (Settlement::DeadLetter { reason, attempts, origin, error, history, result: _ }, Some(mut body)) => {
            group.steps.bury(&origin.to_string(), &mut body);
            let mut history = history.clone();
            history.add(now.timestamp(), *attempts, error);
            let letter = DeadLetter {
                id: MessageId::ZERO,
                reason: reason.clone(),
                attempts: *attempts,
                error: error.clone(),
                origin: *origin,
                topic_partition: topic_partition.clone(),
                group: name.clone(),
                history,
                body: Fields::new(),
            };
            group.dead.append(now.timestamp(), wire::dead_letter(&letter, &body));
            true
        }
    }
}

struct MemoryReader {
    backend: MemoryBackend,
    lease: Lease,
    wake: Arc<Notify>,
    /// Number of schedule heads that were reported.
    heads: u64,
    phase: ReadPhase,
    /// Restart number of the group at the last look.
    restart: u64,
    /// Entries of the log up to here were handed out.
    handed: MessageId,
    /// Newest entries of the log and the retry log that were handed out, with the digests of their fields.
    newest: [Option<(MessageId, u64)>; 2],
    /// Whether one of them is lost, and that is not reported yet.
    tail_lost: bool,
    /// Rewind that was found and is not reported yet.
    rewound: Option<(MessageId, MessageId)>,
    /// Whether the retry log comes first when there is room for one entry only.
    retry_first: bool,
    /// New messages of a pack that did not fit into the last result.
    rest: VecDeque<Entry>,
}

/// Next entries to read.
#[derive(Clone, Copy)]
enum ReadPhase {
    /// Entries that are pending above these ids.
    Pending { log: MessageId, retry: MessageId },
    /// New entries.
    New,
}

impl Default for ReadPhase {
    fn default() -> Self {
        Self::Pending { log: MessageId::ZERO, retry: MessageId::ZERO }
    }
}

#[async_trait]
impl Reader for MemoryReader {
    fn start_over(&mut self) {
        self.phase = ReadPhase::default();
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        if max == 0 {
            return Ok(Fetched::default());
        }
        // Taken here and put back at the end: if this future is dropped or fails, the next one starts over.
        let mut phase = std::mem::take(&mut self.phase);
        breathe().await;
        let mut last_look = wait.is_zero();
        // Not a timer yet, since most fetches find something.
        let timeout = async move { tokio::time::sleep(wait).await };
        tokio::pin!(timeout);
        loop {
            // Created before the look, so that an entry that arrives right after it wakes this reader.
            let wake = self.wake.clone();
            let woken = wake.notified();
            let mut fetched = self.look(&mut phase, max).inspect_err(|error| {
                if error.kind() == ErrorKind::GroupMissing {
                    // This error covers all of it: a group that is created again has not lost its position.
                    (self.handed, self.rewound) = (MessageId::ZERO, None);
                    (self.newest, self.tail_lost) = ([None; 2], false);
                }
            })?;
            let found = !fetched.entries.is_empty() || !fetched.ghosts.is_empty();
            if last_look || found || fetched.woken || self.rewound.is_some() || self.tail_lost {
                self.phase = phase;
                self.note(&fetched);
                fetched.rewound = self.rewound.take();
                fetched.tail_lost = std::mem::take(&mut self.tail_lost);
                return Ok(fetched);
            }
            tokio::select! {
                biased;
                () = woken => {}
                () = &mut timeout => last_look = true,
            }
        }
    }
}

impl MemoryReader {
    /// Records the newest entries that are handed out.
    fn note(&mut self, fetched: &Fetched) {
        for (newest, source) in self.newest.iter_mut().zip([Source::Log, Source::Retry]) {
            let of_source = fetched.entries.iter().filter(|entry| entry.receipt.source == source);
            let Some(entry) = of_source.max_by_key(|entry| entry.receipt.id) else { continue };
            if newest.is_none_or(|(id, _)| id < entry.receipt.id) {
                *newest = Some((entry.receipt.id, wire::digest(&entry.fields)));
            }
        }
        self.handed = self.newest[0].map_or(self.handed, |(id, _)| id.max(self.handed));
    }

    /// Hands out the available entries.
    fn look(&mut self, phase: &mut ReadPhase, max: usize) -> Result<Fetched> {
        let mut state = self.backend.lock();
        let now = self.backend.now();
        let (partition, name) = state.owned(&self.lease)?;
        // Not `partition.group(name)`, which would borrow the log too.
        let group = partition.groups.get_mut(name).ok_or_else(|| missing_of(&self.lease))?;
        let Group { cursor: Some(cursor), retry: retry_log, retry_cursor, restart, .. } = group else {
            return Err(missing_of(&self.lease));
        };
        if self.restart != *restart {
            self.restart = *restart;
            *phase = ReadPhase::default();
        }
        if cursor.delivered < self.handed {
            let from = self.rewound.map_or(self.handed, |(from, _)| from);
            (self.rewound, self.handed) = (Some((from, cursor.delivered)), cursor.delivered);
        }
        // The newest entry is enough: if any other entry of the end is lost, the newest one is lost with it.
        let streams = [(&partition.log, cursor.delivered), (&*retry_log, retry_cursor.delivered)];
        for (newest, (stream, delivered)) in self.newest.iter().zip(streams) {
            if let Some((id, digest)) = newest.filter(|(id, _)| delivered < *id) {
                self.tail_lost |= stream.get(id).is_none_or(|fields| wire::digest(fields) != digest);
            }
        }
        if self.tail_lost {
            return Ok(Fetched::default());
        }
        let new = Reading { by: &None, source: Source::Log, now };
        let retries = Reading { source: Source::Retry, ..new };
        // Recorded now, because the result of this look is returned without another wait.
        let woken = std::mem::replace(&mut self.heads, partition.heads) != partition.heads;
        let mut fetched = Fetched::default();
        fetched.woken = woken;
        if let ReadPhase::Pending { log, retry } = phase {
            // It is pending, too.
            self.rest.clear();
            fetched.pending = true;
            let available =
                (cursor.count_pending(&None, *log, max), retry_cursor.count_pending(&None, *retry, max));
            let (from_log, from_retry) = shares(max, available, &mut self.retry_first);
            *retry = retry_cursor.read_pending(retry_log, retries, *retry, from_retry, &mut fetched);
            *log = cursor.read_pending(&partition.log, new, *log, from_log, &mut fetched);
            if !fetched.entries.is_empty() || !fetched.ghosts.is_empty() {
                return Ok(fetched);
            }
            fetched.pending = false;
            *phase = ReadPhase::New;
        }
        let retry = retry_log.count_above(retry_cursor.delivered);
        if !self.rest.is_empty() {
            let (from_log, from_retry) = shares(max, (self.rest.len(), retry), &mut self.retry_first);
            retry_cursor.read_new(retry_log, retries, from_retry, &mut fetched);
            fetched.entries.extend(self.rest.drain(..from_log));
            return Ok(fetched);
        }
        let log = partition.log.count_above(cursor.delivered);
        let (from_log, from_retry) = shares(max, (log, retry), &mut self.retry_first);
        fetched.entries.reserve_exact(from_log + from_retry);
        retry_cursor.read_new(retry_log, retries, from_retry, &mut fetched);
        cursor.read_new(&partition.log, new, from_log, &mut fetched);
        self.rest = fetched.entries.split_off(max.min(fetched.entries.len())).into();
        Ok(fetched)
    }
}

pub(crate) fn missing(group: &GroupName, tp: &TopicPartition) -> Error {
    Error::new(ErrorKind::GroupMissing, format!("group {group} does not exist on {tp}")).at(tp)
}

/// Returns the error for a lease whose group does not exist.
pub(crate) fn missing_of(lease: &Lease) -> Error {
    lease.partition().map_or_else(|error| error, |(tp, group)| missing(group, tp))
}

/// Returns how many of `max` entries come from the log and how many from the retry log. A quarter, at least one, is for
/// retries; what one source does not need is left for the other. So neither can starve the other. If there is room for
/// one entry only, they take turns.
pub(crate) fn shares(max: usize, (log, retry): (usize, usize), retry_first: &mut bool) -> (usize, usize) {
    let quota = if max == 1 {
        *retry_first = !*retry_first;
        usize::from(!*retry_first)
    } else {
        (max / 4).max(1)
    };
    let retry_least = retry.min(quota).min(max);
    let from_log = log.min(max - retry_least);
    (from_log, retry.min(max - from_log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_source_starves_the_other_and_nothing_is_left_free() {
        let many = 1_000;
        let cases = [
            (100, (many, many), (75, 25)),
            (100, (many, 3), (97, 3)),
            (100, (10, many), (10, 90)),
            (2, (many, many), (1, 1)),
            (0, (many, many), (0, 0)),
            (10, (0, 0), (0, 0)),
        ];
        for (max, available, expected) in cases {
            assert_eq!(shares(max, available, &mut false), expected, "{max} {available:?}");
        }
        let mut turn = false;
        let turns: Vec<_> = (0..4).map(|_| shares(1, (many, many), &mut turn)).collect();
        assert_eq!(turns, [(1, 0), (0, 1), (1, 0), (0, 1)]);
        assert_eq!(shares(1, (many, 0), &mut turn), (1, 0));
        assert_eq!(shares(1, (many, 0), &mut turn), (1, 0));
    }
}
