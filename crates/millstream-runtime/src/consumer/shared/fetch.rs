//! The fetch loop of a shared consumer: reads all partitions while there is room.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Entry, Fetched};
use millstream_core::shared::SharedReader;
use millstream_core::{MessageId, Partition, TopicPartition};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::consumer::context::Subscription;
use crate::consumer::group::restore::unless_deleted;
use crate::consumer::partition::source::Candidates;
use crate::consumer::partition::source::inbox::Page;
use crate::consumer::pauses::Changes;
use crate::consumer::shared::Sharer;
use millstream_engine::LoopMonitor;

/// Maximum time of a wait that takes nothing. Each one begins with a look at the server, so that many partitions without
/// messages cost little.
const READY: Duration = Duration::from_secs(5);

/// Pause between two reads beside large packs, if the first one found nothing.
const BESIDE: Duration = Duration::from_millis(100);

/// Number of partitions in which a group is restored at once.
const AT_ONCE: usize = 32;

/// Reads all partitions for one consumer.
pub(in crate::consumer) struct Fetcher {
    sharer: Arc<Sharer>,
    /// Number of partitions of the topic.
    partitions: watch::Receiver<u32>,
    paused: Changes,
}

impl Fetcher {
    pub(in crate::consumer) fn new(sharer: Arc<Sharer>, partitions: watch::Receiver<u32>) -> Self {
        let paused = sharer.context.pauses.changes();
        Self { sharer, partitions, paused }
    }

    /// Reads until the consumer stops.
    pub(in crate::consumer) async fn run(mut self) {
        let sharer = self.sharer.clone();
        let work = async {
            loop {
                let mut changed = (sharer.context.pauses.changes(), self.partitions.clone());
                let open = self.open();
                // What was read before is read again, from its pending entries on: a request may be dropped here, and with
                // it a reply with entries.
                sharer.leases.read_only(&open);
                tokio::select! {
                    biased;
                    () = self.read(&open) => {}
                    () = changes(&mut changed.0, &mut changed.1) => {}
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

    /// Reads these partitions, each portion by itself. Does not end.
    async fn read(&self, open: &[Partition]) {
        let portions = match self.sharer.context.backend.shared() {
            Ok(shared) if !open.is_empty() => shared.portions(open),
            // Nothing to read until pauses or partitions change.
            _ => Vec::new(),
        };
        let others = portions.len() > 1;
        let reads = portions.into_iter().map(|partitions| {
            let reader = PortionReader {
                sharer: &self.sharer,
                partitions,
                others,
                reader: None,
                opened: Instant::now(),
                beside: None,
            };
            reader.run().boxed()
        });
        join_all(reads).await;
        std::future::pending::<()>().await;
    }

    /// Returns the partitions that are not paused.
    fn open(&mut self) -> Vec<Partition> {
        let all = (0..*self.partitions.borrow_and_update()).map(Partition);
        let (member, paused) = (&self.sharer.member, &mut self.paused);
        all.filter(|partition| !paused.is_on(&member.partition(*partition))).collect()
    }
}

/// Reads the partitions of one portion.
struct PortionReader<'a> {
    sharer: &'a Arc<Sharer>,
    partitions: Vec<Partition>,
    /// Whether there are other portions.
    others: bool,
    reader: Option<Box<dyn SharedReader>>,
    /// When it was opened.
    opened: Instant,
    /// When it may be read beside large packs again.
    beside: Option<Instant>,
}

impl PortionReader<'_> {
    /// Reads until dropped. Errors are reported and do not end the loop.
    async fn run(mut self) {
        let context = &self.sharer.context;
        let monitor = match &self.partitions[..] {
            [partition] => context.monitor_of("fetch", &self.sharer.member.partition(*partition)),
            _ => context.monitor("fetch"),
        };
        let observer = &*context.observer;
        loop {
            match self.run_once(&monitor).await {
                Ok(()) => monitor.succeeded(observer),
                Err(error) => sleep(monitor.failed(&error, observer)).await,
            }
        }
    }

    /// Waits for entries and for room, reads once, and forwards what was read.
    async fn run_once(&mut self, monitor: &LoopMonitor) -> Result<()> {
        let Sharer { context, member, leases, .. } = &**self.sharer;
        if leases.starts_over(&self.partitions) || self.sharer.unreadable.is_due(&self.partitions) {
            self.reader = None;
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                leases.begin_rewind(&self.partitions);
                self.opened = Instant::now();
                none.insert(context.backend.shared()?.shared_reader(member, &self.partitions).await?)
            }
        };
        monitor.begin_round(READY);
        let is_ready = tokio::select! {
            biased;
            () = leases.strayed(&self.partitions) => return Ok(()),
            is_ready = reader.ready(READY) => is_ready?,
        };
        if !is_ready {
            return Ok(());
        }
        monitor.idle();
        let reserved = leases.reserve(&self.partitions, self.others).await;
        let beside = !reserved.full.is_empty();
        if let Some(until) = self.beside.filter(|until| beside && Instant::now() < *until) {
            drop(reserved);
            tokio::select! {
                biased;
                // There may be room for all by now.
                () = leases.lighter() => {}
                () = sleep_until(until) => {}
            }
            return Ok(());
        }
        monitor.begin_round(context.period());
        leases.begin_read(&self.partitions);
        // Taken before the request: the entries became ours at some time after that.
        let asked = context.lease_clock.now();
        // At most one period: entries must still be ours for a while on arrival, and the time counts from the request.
        let wait = context.config.max_wait.min(context.period());
        let fetch = async {
            if beside {
                reader.fetch_beside(reserved.room, &reserved.full).await
            } else {
                reader.fetch(reserved.room, wait).await
            }
        };
        let read = if self.others { self.sharer.answer(&self.partitions, fetch).await } else { fetch.await };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                // A reply with entries may have been lost: the reader starts over with the pending list.
                leases.begin_rewind(&self.partitions);
                if error.kind() == ErrorKind::GroupMissing {
                    return restore_groups(self.sharer, &self.partitions, &error).await;
                }
                return Err(error);
            }
        };
        self.beside = (beside && read.is_empty()).then(|| Instant::now() + BESIDE);
        let pending = read.iter().any(|(_, fetched)| fetched.pending);
        if pending && !leases.is_rewinding(&self.partitions) {
            // The reader has started over by itself. Read again, and record what is settled meanwhile.
            self.reader = None;
            return Ok(());
        }
        if !pending {
            self.sharer.unreadable.were_read(context, &self.partitions, self.opened);
            let messages = leases.end_rewind(&self.partitions);
            if messages > 0 {
                let group = &member.group;
                tracing::warn!(%group, messages, "no longer pending for this member: handlers are notified");
            }
        }
        for (partition, fetched) in read {
            let claimed = fetched.pending && leases.may_be_claimed(partition);
            let origin = if claimed { Origin::Unanswered(self.sharer.living()) } else { Origin::Read };
            take_in(self.sharer, partition, fetched, asked, origin);
        }
        Ok(())
    }
}

/// Creates the group again in these partitions after somebody destroyed it or deleted a stream. The settled entries of all
/// consumers are not known, so it starts with the oldest entry, and everything is handled (again) rather than lost.
async fn restore_groups(sharer: &Sharer, partitions: &[Partition], error: &Error) -> Result<()> {
    let Sharer { context, member, .. } = sharer;
    let (catalog, group, after) = (context.backend.catalog(), &member.group, MessageId::ZERO);
    let on = |error| unless_deleted(context, error);
    // If the server lost all data, the registry is gone as well.
    catalog.restore_topic(&context.topic).await.map_err(on)?;
    let restores: Vec<_> =
        partitions.iter().map(|partition| restore(context, member.partition(*partition), after)).collect();
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
    /// We have read them, now or before.
    Read,
    /// They were pending under our name when the reader started over, and may have been claimed by a request whose answer is
    /// lost, or is still on its way: so their consumer may have died because of one of them, as with
    /// [`Abandoned`](Self::Abandoned). The incarnations of the members that are alive.
    Unanswered(Arc<Vec<String>>),
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
    let Fetched { entries, mut ghosts, pending, unreadable, .. } = fetched;
    if let Some(error) = unreadable {
        sharer.unreadable.found(context, member, partition, &error);
    }
    if !ghosts.is_empty() {
        let entries = ghosts.len();
        tracing::warn!(%topic_partition, %group, entries, "pending entries were deleted by another client");
        context.observer.observe(&Event::Ghosts { topic_partition, group, entries });
    }
    let (claimed, candidates) = match origin {
        Origin::Read => (false, Candidates::None),
        Origin::Unanswered(living) => (false, Candidates::Abandoned(living)),
        Origin::GivenBack => (true, Candidates::None),
        Origin::Abandoned(living) => (true, Candidates::Abandoned(living)),
    };
    if claimed {
        // A claim takes ghosts off the pending list by itself.
        ghosts.clear();
    }
    let suspected = |entry: &Entry| candidates.candidate(entry, context.config.crash_limit).is_some();
    let entries = leases.admit(partition, entries, asked, claimed, suspected);
    if !entries.is_empty() {
        let messages = entries.len();
        context.observer.observe(&Event::Fetched { topic_partition, group, messages, pending });
    }
    if !entries.is_empty() || !ghosts.is_empty() {
        sharer.deliver(partition, Page { entries, candidates, ghosts });
    }
}
