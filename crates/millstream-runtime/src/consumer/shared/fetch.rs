//! The fetch loop of a shared consumer: reads all partitions while there is room.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Entry, Fetched};
use millstream_core::shared::SharedReader;
use millstream_core::{MessageId, Partition, TopicPartition};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::consumer::context::Subscription;
use crate::consumer::group::restore::unless_deleted;
use crate::consumer::partition::source::Suspects;
use crate::consumer::partition::source::inbox::Page;
use crate::consumer::pauses::Changes;
use crate::consumer::shared::Sharer;
use millstream_loops::LoopMonitor;

/// Number of partitions in which a group is restored at once.
const AT_ONCE: usize = 32;

/// Reads all partitions for one consumer.
pub(in crate::consumer) struct Fetcher {
    sharer: Arc<Sharer>,
    /// Number of partitions of the topic.
    partitions: watch::Receiver<u32>,
    reader: Option<Box<dyn SharedReader>>,
    /// The partitions that the reader reads.
    read: Vec<Partition>,
    paused: Changes,
}

impl Fetcher {
    pub(in crate::consumer) fn new(sharer: Arc<Sharer>, partitions: watch::Receiver<u32>) -> Self {
        let paused = sharer.context.pauses.changes();
        Self { sharer, partitions, reader: None, read: Vec::new(), paused }
    }

    /// Reads until the consumer stops. Errors are reported and do not end the loop.
    pub(in crate::consumer) async fn run(mut self) {
        let sharer = self.sharer.clone();
        let observer = &*sharer.context.observer;
        let monitor = sharer.context.monitor("fetch");
        let work = async {
            loop {
                match self.run_once(&monitor).await {
                    Ok(()) => monitor.succeeded(observer),
                    Err(error) => sleep(monitor.failed(&error, observer)).await,
                }
            }
        };
        tokio::select! {
            biased;
            () = sharer.context.stop.cancelled() => {}
            () = work => {}
        }
        sharer.leases.end_reading();
    }

    /// Waits for room, reads once, and forwards what was read.
    async fn run_once(&mut self, monitor: &LoopMonitor) -> Result<()> {
        let leases = self.sharer.leases.clone();
        let room = leases.room().await;
        if !self.open().is_empty() {
            monitor.begin_round(self.sharer.context.period());
        }
        // Taken before the request: the entries became ours at some time after that.
        let asked = self.sharer.context.lease_clock.now();
        let mut paused = self.sharer.context.pauses.changes();
        let mut grown = self.partitions.clone();
        let read = tokio::select! {
            biased;
            read = self.fetch(room) => read,
            () = changes(&mut paused, &mut grown) => {
                // The request is dropped, and with it perhaps a reply with entries: a new reader starts over with the
                // pending list.
                self.reader = None;
                return Ok(());
            }
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                // A reply with entries may have been lost: the reader starts over with the pending list.
                leases.begin_rewind(&self.read);
                if error.kind() == ErrorKind::GroupMissing {
                    return self.restore_groups(&error).await;
                }
                return Err(error);
            }
        };
        let pending = read.iter().any(|(_, fetched)| fetched.pending);
        if pending && !leases.is_rewinding() {
            // The reader has started over by itself. Read again, and record what is settled meanwhile.
            leases.begin_rewind(&self.read);
            self.reader = None;
            return Ok(());
        }
        if !pending {
            let messages = leases.end_rewind();
            if messages > 0 {
                let group = &self.sharer.member.group;
                tracing::warn!(%group, messages, "no longer pending for this member: handlers are notified");
            }
        }
        for (partition, fetched) in read {
            take_in(&self.sharer, partition, fetched, asked, Origin::Read);
        }
        Ok(())
    }

    async fn fetch(&mut self, room: usize) -> Result<Vec<(Partition, Fetched)>> {
        let open = self.open();
        let context = &self.sharer.context;
        if open != self.read || self.sharer.leases.starts_over() {
            self.reader = None;
        }
        if open.is_empty() {
            // Nothing to read: the caller ends this wait when pauses or partitions change.
            return std::future::pending().await;
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                self.sharer.leases.begin_rewind(&open);
                self.read.clone_from(&open);
                none.insert(context.backend.shared()?.shared_reader(&self.sharer.member, &open).await?)
            }
        };
        // At most one period: entries must still be ours for a while on arrival, and the time counts from the request.
        self.sharer.leases.begin_read();
        reader.fetch(room, context.config.max_wait.min(context.period())).await
    }

    /// Returns the partitions that are not paused.
    fn open(&mut self) -> Vec<Partition> {
        let all = (0..*self.partitions.borrow_and_update()).map(Partition);
        let (member, paused) = (&self.sharer.member, &mut self.paused);
        all.filter(|partition| !paused.is_on(&member.partition(*partition))).collect()
    }

    /// Creates the group again after somebody destroyed it or deleted a stream. The settled entries of all consumers are
    /// not known, so it starts with the oldest entry, and everything is handled (again) rather than lost.
    async fn restore_groups(&mut self, error: &Error) -> Result<()> {
        let Sharer { context, member, .. } = &*self.sharer;
        let (catalog, group, after) = (context.backend.catalog(), &member.group, MessageId::ZERO);
        let on = |error| unless_deleted(context, error);
        // If the server lost all data, the registry is gone as well.
        catalog.restore_topic(&context.topic).await.map_err(on)?;
        let count = *self.partitions.borrow();
        let restores: Vec<_> =
            (0..count).map(|n| restore(context, member.partition(Partition(n)), after)).collect();
        let mut restored = stream::iter(restores).buffered(AT_ONCE);
        while let Some((topic_partition, missing)) = restored.try_next().await.map_err(on)? {
            if !missing {
                continue;
            }
            let topic_partition = &topic_partition;
            tracing::warn!(%topic_partition, %group, %error, "the group was missing and has been created again");
            context.observer.observe(&Event::GroupRestored { topic_partition, group, after });
        }
        Ok(())
    }
}

/// Restores the group in one partition. Returns whether it was missing there.
async fn restore(
    context: &Subscription,
    tp: TopicPartition,
    after: MessageId,
) -> Result<(TopicPartition, bool)> {
    let missing = context.backend.catalog().restore_group(&tp, &context.group, after).await?;
    Ok((tp, missing))
}

/// Waits until the partitions to read have changed.
async fn changes(paused: &mut Changes, grown: &mut watch::Receiver<u32>) {
    let grown = async {
        if grown.changed().await.is_err() {
            // The claim loop has ended: the consumer is about to end.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = paused.changed() => {}
        () = grown => {}
    }
}

/// Origin of entries.
#[derive(Clone)]
pub(in crate::consumer) enum Origin {
    Read,
    /// A consumer returned them without having begun.
    GivenBack,
    /// Their consumer died or was cut off, and one of them may be the reason. The incarnations of the members that are
    /// alive.
    Abandoned(Arc<Vec<String>>),
}

/// Takes in the entries of one partition that a request of the time `asked` read or claimed: emits events, and passes them
/// to the worker of the partition.
pub(in crate::consumer) fn take_in(
    sharer: &Arc<Sharer>,
    partition: Partition,
    fetched: Fetched,
    asked: Instant,
    origin: Origin,
) {
    let Sharer { context, member, leases, .. } = &**sharer;
    let (topic_partition, group) = (&member.partition(partition), &member.group);
    let Fetched { entries, mut ghosts, pending, .. } = fetched;
    if !ghosts.is_empty() {
        let messages = ghosts.len();
        tracing::warn!(%topic_partition, %group, messages, "pending entries were deleted by another client");
        context.observer.observe(&Event::Ghosts { topic_partition, group, messages });
    }
    let (claimed, suspects) = match origin {
        Origin::Read => (false, Suspects::None),
        Origin::GivenBack => (true, Suspects::None),
        Origin::Abandoned(living) => (true, Suspects::Abandoned(living)),
    };
    if claimed {
        // A claim takes ghosts off the pending list by itself.
        ghosts.clear();
    }
    let suspected = |entry: &Entry| suspects.candidate(entry, context.config.crash_limit).is_some();
    let (serials, entries) = leases.admit(partition, entries, asked, claimed, suspected);
    if !entries.is_empty() {
        let messages = entries.len();
        context.observer.observe(&Event::Fetched { topic_partition, group, messages, pending });
    }
    if !entries.is_empty() || !ghosts.is_empty() {
        sharer.deliver(partition, Page { entries, serials, suspects, ghosts });
    }
}
