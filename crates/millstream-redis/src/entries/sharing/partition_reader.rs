//! Reader of one partition of a cluster beside other readers.
//!
//! No command blocks over two slots, and a connection that blocks for each partition would be many. So it waits for a notice
//! that something has changed, which takes nothing, and takes entries without blocking.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{Fetched, Source};
use millstream_core::shared::{SharedMember, SharedReader};
use millstream_core::topic::Partition;
use redis::Pipeline;
use tokio::time::Instant;

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::sharing::shared_reader::StreamsReader;

/// Time after which the partition is looked at, whatever is noticed: a fail-over can lose entries, and what comes then has
/// lower ids than those that were seen.
const LOOK: Duration = Duration::from_secs(5);

/// Ids of the newest entries of a log and a retry log.
type Tails = [MessageId; 2];

pub(crate) struct PartitionReader {
    inner: Arc<Inner>,
    reader: StreamsReader,
    streams: [Key; 2],
    /// Whether there may be entries to take.
    ready: bool,
    /// Newest entries at a time before it last took some: a wait for newer ones misses none.
    tails: Option<Tails>,
    /// When it last took entries, or tried to.
    looked: Instant,
}

impl PartitionReader {
    pub(crate) fn new(inner: Arc<Inner>, member: SharedMember, partition: Partition) -> Self {
        let tp = member.partition(partition);
        let streams = [Source::Log, Source::Retry].map(|source| inner.stream(&tp, &member.group, source));
        let reader = StreamsReader::new(inner.clone(), member, &[partition]).apart();
        Self { inner, reader, streams, ready: true, tails: None, looked: Instant::now() }
    }

    async fn tails(&self) -> Result<Tails> {
        let mut pipe = Pipeline::with_capacity(2);
        for stream in &self.streams {
            pipe.cmd("XREVRANGE").arg(stream.as_str()).arg("+").arg("-").arg("COUNT").arg(1);
        }
        let mut tails = [MessageId::ZERO; 2];
        for (tail, answer) in tails.iter_mut().zip(self.inner.messages.send(&pipe).await?) {
            *tail = reply::entries(answer)?.first().map_or(MessageId::ZERO, |(id, _)| *id);
        }
        Ok(tails)
    }
}

#[async_trait]
impl SharedReader for PartitionReader {
    async fn ready(&mut self, wait: Duration) -> Result<bool> {
        let Some(tails) = self.tails.filter(|_| !self.ready) else { return Ok(true) };
        let left = LOOK.saturating_sub(self.looked.elapsed());
        let above = [(&self.streams[0], tails[0]), (&self.streams[1], tails[1])];
        let found =
            async { self.inner.changes.of(&self.streams[0]).await?.entries(&above, wait.min(left)).await };
        match found.await.inspect_err(|error| self.inner.servers.learn(error)) {
            Ok(None) => self.ready = wait >= left,
            Ok(Some(_)) => (self.ready, self.tails) = (true, None),
            // What is wrong shows when the partition is read.
            Err(_) => self.ready = true,
        }
        Ok(self.ready)
    }

    async fn fetch(&mut self, max: usize, _: Duration) -> Result<Vec<(Partition, Fetched)>> {
        // Until it has read and found nothing.
        self.ready = true;
        if self.tails.is_none() {
            let tails = self.tails().await.inspect_err(|error| self.inner.servers.learn(error));
            self.tails = Some(tails?);
        }
        // New entries are taken by the call after the last one for pending entries, which finds none.
        let past = self.reader.is_past();
        let read = self.reader.fetch(max, Duration::ZERO).await?;
        self.looked = Instant::now();
        self.ready = max == 0 || !read.is_empty() || !past;
        Ok(read)
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Vec<(Partition, Fetched)>> {
        // Its log is not looked at, so there may be something whatever comes.
        self.ready = true;
        self.reader.fetch_beside(max, full).await
    }
}
