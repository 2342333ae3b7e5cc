//! Reader of many partitions on several servers, beside other readers: one reader for each partition.
//!
//! No command blocks over two slots. So each partition waits by itself, which takes nothing and may stay under way between
//! two calls; entries are taken without blocking, and only during a call. As with one reader of all,
//! entries that are pending under our name come first: nothing new is returned before that list was read on every
//! partition.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{Fetched, Source};
use millstream_core::shared::{SharedMember, SharedReader};
use millstream_core::topic::Partition;
use redis::Pipeline;
use tokio::time::{Instant, timeout_at};

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::shared_reader::StreamsReader;

/// Maximum time of one wait, after which the partition is looked at.
const WAIT: Duration = Duration::from_secs(5);

type Read = Vec<(Partition, Fetched)>;

pub(crate) struct SpreadReader {
    inner: Arc<Inner>,
    member: SharedMember,
    partitions: Vec<Partition>,
    readers: Vec<One>,
    /// Waits under way. Each returns the position of its reader, and whether there may be something.
    waits: FuturesUnordered<BoxFuture<'static, (usize, Option<Tails>)>>,
    /// Whether the pending lists of all partitions were read.
    past: bool,
    /// New entries that were read before that.
    early: Read,
    /// Position of the reader that is first to read next.
    next: usize,
}

/// Ids of the newest entries of a log and a retry log.
type Tails = [MessageId; 2];

/// Reader of one partition.
struct One {
    reader: StreamsReader,
    streams: [Key; 2],
    /// Whether it has read its pending list.
    past: bool,
    /// Whether there may be entries to take.
    ready: bool,
    /// Newest entries at a time before it last took some: a wait for newer ones misses none.
    tails: Option<Tails>,
    waiting: bool,
}

impl SpreadReader {
    pub(crate) fn new(inner: Arc<Inner>, member: SharedMember, partitions: &[Partition]) -> Self {
        let mut reader = Self {
            inner,
            member,
            partitions: partitions.to_vec(),
            readers: Vec::new(),
            waits: FuturesUnordered::new(),
            past: false,
            early: Vec::new(),
            next: 0,
        };
        reader.start_over();
        reader
    }

    fn start_over(&mut self) {
        (self.waits, self.past, self.early) = (FuturesUnordered::new(), false, Vec::new());
        let readers = self.partitions.iter().map(|partition| {
            let tp = self.member.partition(*partition);
            One {
                reader: StreamsReader::new(self.inner.clone(), self.member.clone(), &[*partition]),
                streams: [Source::Log, Source::Retry]
                    .map(|source| self.inner.stream(&tp, &self.member.group, source)),
                past: false,
                ready: true,
                tails: None,
                waiting: false,
            }
        });
        self.readers = readers.collect();
    }

    async fn next(&mut self, max: usize, wait: Duration) -> Result<Read> {
        let until = Instant::now() + wait;
        if self.readers.iter().any(|one| one.tails.is_none()) {
            let all = join_all(self.readers.iter().map(|one| tails(&self.inner, &one.streams))).await;
            for (one, tails) in self.readers.iter_mut().zip(all) {
                one.tails = Some(tails?);
            }
        }
        while !self.past {
            let read = self.take(max).await?;
            let pending = read.iter().any(|(_, fetched)| fetched.pending);
            self.past = self.readers.iter().all(|one| one.past);
            let (old, new): (Read, Read) = read.into_iter().partition(|(_, fetched)| fetched.pending);
            self.early.extend(new);
            if pending {
                return Ok(old);
            }
        }
        if !self.early.is_empty() {
            return Ok(std::mem::take(&mut self.early));
        }
        loop {
            let read = self.take(max).await?;
            if !read.is_empty() {
                return Ok(read);
            }
            if self.readers.iter().any(|one| one.ready) {
                continue;
            }
            self.begin_waits();
            let Ok(Some((at, news))) = timeout_at(until, self.waits.next()).await else {
                return Ok(Vec::new());
            };
            if let Some(one) = self.readers.get_mut(at) {
                (one.waiting, one.ready) = (false, true);
                one.tails = news.or(one.tails);
            }
        }
    }

    /// Reads once from each partition that may have something, and from others only while pending lists are read.
    async fn take(&mut self, max: usize) -> Result<Read> {
        let (count, past) = (self.readers.len(), self.past);
        let first = self.next % count.max(1);
        let (before, after) = self.readers.split_at_mut(first);
        let all = after.iter_mut().chain(before);
        let wanted = |one: &&mut One| if past { one.ready } else { !one.past };
        let some: Vec<_> = all.filter(wanted).take(max).collect();
        let share = (max / some.len().max(1)).max(1);
        self.next = (first + some.len()) % count.max(1);
        let reads = some.into_iter().map(|one| async move {
            let read = one.reader.fetch(share, Duration::ZERO).await?;
            let entries: usize =
                read.iter().map(|(_, fetched)| fetched.entries.len() + fetched.ghosts.len()).sum();
            let pending = read.iter().any(|(_, fetched)| fetched.pending);
            (one.past, one.ready) = (!pending, entries > 0);
            Ok(read)
        });
        let mut all = Vec::new();
        for read in join_all(reads).await {
            all.extend(read?);
        }
        Ok(all)
    }

    fn begin_waits(&mut self) {
        for (at, one) in self.readers.iter_mut().enumerate() {
            if one.ready || one.waiting {
                continue;
            }
            one.waiting = true;
            let (inner, streams, last) = (self.inner.clone(), one.streams.clone(), one.tails);
            self.waits.push(Box::pin(async move {
                // A failure shows when the partition is read.
                (at, wait(&inner, &streams, last.unwrap_or_default()).await.unwrap_or(None))
            }));
        }
    }
}

/// Waits for entries behind these. Returns the newest ones then; `None` if there is nothing new.
async fn wait(inner: &Inner, streams: &[Key; 2], last: Tails) -> Result<Option<Tails>> {
    let above = [(&streams[0], last[0]), (&streams[1], last[1])];
    let found = async { inner.changes.of(&streams[0]).await?.entries(&above, WAIT).await };
    if found.await.inspect_err(|error| inner.servers.learn(error))?.is_none() {
        return Ok(None);
    }
    tails(inner, streams).await.map(Some)
}

async fn tails(inner: &Inner, streams: &[Key; 2]) -> Result<Tails> {
    let mut pipe = Pipeline::with_capacity(2);
    for stream in streams {
        pipe.cmd("XREVRANGE").arg(stream.as_str()).arg("+").arg("-").arg("COUNT").arg(1);
    }
    let mut tails = [MessageId::ZERO; 2];
    for (tail, answer) in tails.iter_mut().zip(inner.messages.send(&pipe).await?) {
        *tail = reply::entries(answer)?.first().map_or(MessageId::ZERO, |(id, _)| *id);
    }
    Ok(tails)
}

#[async_trait]
impl SharedReader for SpreadReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Read> {
        if max == 0 || self.partitions.is_empty() {
            return Ok(Vec::new());
        }
        let read = self.next(max, wait).await;
        if read.is_err() {
            self.start_over();
        }
        read
    }
}
