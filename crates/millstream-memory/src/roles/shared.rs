//! The shared role in memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::{Fetched, Receipt, Settled, Settlement, Source};
use millstream_core::shared::{Claimed, Shared, SharedMember, SharedReader};
use millstream_core::{Continuity, Lease, MemberId, MessageId, Partition, Result, TopicPartition};
use tokio::sync::Notify;

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;
use crate::roles::log::{missing, missing_of, settle, shares};
use crate::state::{Group, Partition as Place};
use crate::stream::{By, Reading};

#[async_trait]
impl Shared for MemoryBackend {
    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        let mut state = self.lock();
        let place = |partition: &Partition| {
            let topic_partition = member.partition(*partition);
            let wake = state.partition(&topic_partition).wake.clone();
            ReadPlace { topic_partition, wake, restart: 0 }
        };
        let places = partitions.iter().map(place).collect();
        let (backend, by) = (self.clone(), Some(member.consumer.clone()));
        let phase = SharedPhase::default();
        Ok(Box::new(MemorySharedReader {
            backend,
            member: member.clone(),
            by,
            places,
            phase,
            turn: 0,
            retry_first: false,
        }))
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let topic_partition = member.partition(partition);
        let place = state.partition(&topic_partition);
        let mut settled = Settled::default();
        for (receipt, settlement) in batch {
            let of = (&topic_partition, &member.group);
            let done = settle(place, of, Some(&member.consumer), now, *receipt, settlement);
            *(if done { &mut settled.applied } else { &mut settled.stale }) += 1;
        }
        Ok(settled)
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        breathe().await;
        let (mut state, by) = (self.lock(), Some(member.consumer.clone()));
        let now = self.now();
        let place = state.partition(&member.partition(partition));
        let Some(group) = place.groups.get_mut(&member.group) else { return Ok(entries.to_vec()) };
        let Group { cursor, retry, retry_cursor, .. } = group;
        let lost = |receipt: &&Receipt| match (receipt.source, cursor.as_mut()) {
            (Source::Log, Some(cursor)) => !cursor.extend(&place.log, &by, receipt.id, now),
            (Source::Log, None) => true,
            (Source::Retry, _) => !retry_cursor.extend(retry, &by, receipt.id, now),
        };
        Ok(entries.iter().filter(lost).copied().collect())
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        breathe().await;
        let (mut state, by) = (self.lock(), Some(member.consumer.clone()));
        let Place { log, groups, .. } = state.partition(&member.partition(partition));
        let Some(group) = groups.get_mut(&member.group) else { return Ok(()) };
        let Group { cursor, retry, retry_cursor, .. } = group;
        for receipt in entries {
            match (receipt.source, cursor.as_mut()) {
                (Source::Log, Some(cursor)) => cursor.give_back(log, &by, receipt.id),
                (Source::Log, None) => {}
                (Source::Retry, _) => retry_cursor.give_back(retry, &by, receipt.id),
            }
        }
        Ok(())
    }

    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<Claimed> {
        breathe().await;
        let (mut state, by) = (self.lock(), Some(member.consumer.clone()));
        let now = self.now();
        let judges_in = continuity.left(&state.server(), now.timestamp());
        let topic_partition = member.partition(partition);
        let mut claimed = Claimed::default();
        let is_alive = |by: &By| by.as_ref().is_some_and(|name| alive.contains(name));
        let place = state.partition(&topic_partition);
        let Some(group) = place.groups.get_mut(&member.group) else {
            return Err(missing(&member.group, &topic_partition));
        };
        let Group { cursor: Some(cursor), retry, retry_cursor, .. } = group else {
            return Err(missing(&member.group, &topic_partition));
        };
        let log = Reading { by: &by, source: Source::Log, now };
        let count = cursor.claim(&place.log, log, is_alive, (idle, judges_in, max), &mut claimed);
        let retries = Reading { source: Source::Retry, ..log };
        retry_cursor.claim(
            retry,
            retries,
            is_alive,
            (idle, judges_in, max.saturating_sub(count)),
            &mut claimed,
        );
        Ok(claimed)
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let judges_in = continuity.left(&state.server(), now.timestamp());
        let (place, name) = state.owned(lease)?;
        let Some(group) = place.groups.get_mut(name) else { return Err(missing_of(lease)) };
        let Group { cursor: Some(cursor), retry, retry_cursor, .. } = group else {
            return Err(missing_of(lease));
        };
        let mut claimed = Claimed::default();
        let log = Reading { by: &None, source: Source::Log, now };
        let count = cursor.claim(&place.log, log, |_| false, (idle, judges_in, max), &mut claimed);
        let retries = Reading { source: Source::Retry, ..log };
        Ok(count
            + retry_cursor.claim(
                retry,
                retries,
                |_| false,
                (idle, judges_in, max.saturating_sub(count)),
                &mut claimed,
            ))
    }
}

struct MemorySharedReader {
    backend: MemoryBackend,
    member: SharedMember,
    by: By,
    places: Vec<ReadPlace>,
    phase: SharedPhase,
    /// Index of the partition that comes first among new entries.
    turn: usize,
    /// Whether the retry log comes first when there is room for one entry only.
    retry_first: bool,
}

struct ReadPlace {
    topic_partition: TopicPartition,
    wake: Arc<Notify>,
    /// Restart number of the group at the last look.
    restart: u64,
}

/// Next entries to read.
#[derive(Clone, Copy)]
enum SharedPhase {
    /// Pending entries of this place, above these ids.
    Pending { at: usize, log: MessageId, retry: MessageId },
    /// New entries.
    New,
}

impl Default for SharedPhase {
    fn default() -> Self {
        Self::Pending { at: 0, log: MessageId::ZERO, retry: MessageId::ZERO }
    }
}

impl SharedPhase {
    /// Whether some of the pending entries were read, and the end of them was not seen yet.
    fn has_begun(self) -> bool {
        let begun = |ids: [MessageId; 2]| ids.iter().any(|id| *id > MessageId::ZERO);
        matches!(self, Self::Pending { at, log, retry } if at > 0 || begun([log, retry]))
    }
}

type Read = Vec<(Partition, Fetched)>;

#[async_trait]
impl SharedReader for MemorySharedReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Read> {
        if max == 0 {
            return Ok(Read::new());
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
            let wakes: Vec<_> = self.places.iter().map(|place| place.wake.clone()).collect();
            let mut woken: Vec<Pin<Box<_>>> = wakes.iter().map(|wake| Box::pin(wake.notified())).collect();
            let rewound = phase.has_begun();
            let read = self.look(&mut phase, max, &[])?;
            // What was pending takes room: the caller decides anew how many new entries it takes.
            if last_look || !read.is_empty() || rewound {
                self.phase = phase;
                return Ok(read);
            }
            tokio::select! {
                biased;
                () = poll_fn(|context| {
                    let ready = woken.iter_mut().any(|wake| wake.as_mut().poll(context).is_ready());
                    if ready { Poll::Ready(()) } else { Poll::Pending }
                }) => {}
                () = &mut timeout => last_look = true,
            }
        }
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Read> {
        if max == 0 {
            return Ok(Read::new());
        }
        let mut phase = std::mem::take(&mut self.phase);
        breathe().await;
        let read = self.look(&mut phase, max, full)?;
        self.phase = phase;
        Ok(read)
    }
}

impl MemorySharedReader {
    /// Hands out the available entries, but no new ones of the logs of `full` partitions.
    fn look(&mut self, phase: &mut SharedPhase, max: usize, full: &[Partition]) -> Result<Read> {
        let backend = self.backend.clone();
        let mut state = backend.lock();
        let now = backend.now();
        for place in &mut self.places {
            let group = state.group(&place.topic_partition, &self.member.group);
            let Some(group) = group.filter(|group| group.cursor.is_some()) else {
                return Err(missing(&self.member.group, &place.topic_partition));
            };
            if place.restart != group.restart {
                place.restart = group.restart;
                *phase = SharedPhase::default();
            }
        }
        let rewound = phase.has_begun();
        let mut read = Read::new();
        let mut left = max;
        while let SharedPhase::Pending { at, log, retry } = phase {
            let Some(place) = self.places.get(*at).filter(|_| left > 0) else { break };
            let partition = state.partition(&place.topic_partition);
            let fetched = self.pending(partition, now, (log, retry), left);
            left -= fetched.entries.len() + fetched.ghosts.len();
            if !fetched.entries.is_empty() || !fetched.ghosts.is_empty() {
                read.push((place.topic_partition.partition, fetched));
            }
            if left > 0 {
                *phase = SharedPhase::Pending { at: *at + 1, log: MessageId::ZERO, retry: MessageId::ZERO };
            }
        }
        if !read.is_empty() {
            return Ok(read);
        }
        *phase = SharedPhase::New;
        if rewound {
            return Ok(read);
        }
        for at in 0..self.places.len() {
            let place = &self.places[(self.turn + at) % self.places.len()];
            let number = place.topic_partition.partition;
            let partition = state.partition(&place.topic_partition);
            let fetched = self.new_entries(partition, now, left, full.contains(&number));
            left = left.saturating_sub(fetched.entries.len());
            if !fetched.entries.is_empty() {
                read.push((number, fetched));
            }
        }
        self.turn = self.turn.wrapping_add(1);
        Ok(read)
    }

    fn pending(
        &self,
        place: &mut Place,
        now: Now,
        (log_after, retry_after): (&mut MessageId, &mut MessageId),
        max: usize,
    ) -> Fetched {
        let mut fetched = Fetched::of_pending();
        let Some(group) = place.groups.get_mut(&self.member.group) else { return fetched };
        let log = Reading { by: &self.by, source: Source::Log, now };
        if let Some(cursor) = &mut group.cursor {
            *log_after = cursor.read_pending(&place.log, log, *log_after, max, &mut fetched);
        }
        let left = max.saturating_sub(fetched.entries.len() + fetched.ghosts.len());
        let retries = Reading { source: Source::Retry, ..log };
        *retry_after =
            group.retry_cursor.read_pending(&group.retry, retries, *retry_after, left, &mut fetched);
        fetched
    }

    /// Hands out new entries; with `is_full` those of the retry log alone.
    fn new_entries(&mut self, place: &mut Place, now: Now, max: usize, is_full: bool) -> Fetched {
        let mut fetched = Fetched::default();
        let Some(group) = place.groups.get_mut(&self.member.group) else { return fetched };
        let Group { cursor: Some(cursor), retry, retry_cursor, .. } = group else { return fetched };
        let log = Reading { by: &self.by, source: Source::Log, now };
        let in_log = if is_full { 0 } else { place.log.count_above(cursor.delivered) };
        let available = (in_log, retry.count_above(retry_cursor.delivered));
        let (from_log, from_retry) = shares(max, available, &mut self.retry_first);
        retry_cursor.read_new(retry, Reading { source: Source::Retry, ..log }, from_retry, &mut fetched);
        cursor.read_new(&place.log, log, from_log, &mut fetched);
        fetched
    }
}
