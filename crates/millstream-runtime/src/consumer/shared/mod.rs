//! Shared mode: for more consumers than partitions. Each entry is claimed by one consumer; there is no order.
//!
//! ```text
//! fetch ──pages──▶ a worker for each partition
//!   ▲       ▲                │
//!   │     claim              │
//!   └──── leases of entries ◀┘      extend: all of them, on the control thread
//! ```
//!
//! All consumers read all partitions, each under a name of its own, with one reader. The messages of a partition are then
//! dispatched and settled by the same worker as in exclusive mode; only what it handles is owned entry by entry. A consumer
//! extends its entries, whether in a handler or ready for one, three times per ttl. If there is no reply by its own deadline,
//! it starts nothing and cancels the tokens of its handlers. Partitions are assigned and leased as usual, but only for their
//! upkeep.

mod claim;
mod extend;
mod fetch;
mod unreadable;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::Partition;
use millstream_core::error::Result;
use millstream_core::members::{GroupMembers, Member};
use millstream_core::panics::text_of;
use millstream_core::shared::{SharedMember, consumer_of};
use millstream_core::sorted::SortedMap;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::consumer::context::Subscription;
use crate::consumer::partition::leases::SharedPartition;
use crate::consumer::partition::leases::entry_leases::EntryLeases;
use crate::consumer::partition::source::inbox::{Inbox, Page};
use crate::consumer::partition::worker::PartitionWorker;
use claim::Claimer;
use extend::extend_entries;
use fetch::Fetcher;
use unreadable::UnreadablePartitions;

/// Time after which a server counts as one that gives no answer, unless renewals are given up sooner. A server that answers
/// takes milliseconds; one that is slow for longer costs room for twice the entries and nothing else.
const QUICK: Duration = Duration::from_secs(1);

/// State shared by the loops of this mode.
struct Sharer {
    context: Arc<Subscription>,
    member: Arc<SharedMember>,
    leases: Arc<EntryLeases>,
    inboxes: Inboxes,
    /// The incarnations of the members that were alive before the latest claim.
    living: Mutex<Arc<Vec<String>>>,
    /// The partitions that have packs which cannot be read.
    unreadable: UnreadablePartitions,
    /// The workers of partitions. Each is started by the first page for it.
    workers: Mutex<JoinSet<()>>,
    /// Permits for the handlers of all partitions.
    at_once: Arc<Semaphore>,
    /// Cancelled when nothing more is read.
    ended: CancellationToken,
}

/// The inboxes of workers.
type Inboxes = Arc<Mutex<SortedMap<Partition, UnboundedSender<Page>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sharer {
    /// Records the members that are alive, before entries of others are claimed. Returns their incarnations and ours, which
    /// may be missing in the group.
    fn set_living(&self, roster: &GroupMembers) -> Arc<Vec<String>> {
        let others = roster.members.iter().map(|member| &member.incarnation);
        let living = Arc::new(others.chain([&self.context.incarnation]).cloned().collect());
        *lock(&self.living) = Arc::clone(&living);
        living
    }

    /// Returns the incarnations of the members that were alive before the latest claim: an entry that was claimed has notes
    /// only of members that had it before. Empty until the first one: nothing under our name has a note by then.
    fn living(&self) -> Arc<Vec<String>> {
        lock(&self.living).clone()
    }

    /// Waits for the answer to a request about these partitions, and records whether their server gives one. What is held
    /// at a server that gives none for a while, or fails, takes no room from other partitions.
    async fn answer<T>(
        &self,
        partitions: &[Partition],
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // Before the keeper gives the request up: then nothing is recorded any more.
        let quick = (self.context.keeper().limit() / 2).min(QUICK);
        let mut request = pin!(request);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut request => break answer,
                // Each time: meanwhile another request may have been answered.
                () = sleep(quick) => self.leases.silent(partitions),
            }
        };
        match &answer {
            Err(error) if error.is_transient() => self.leases.silent(partitions),
            _ => self.leases.answered(partitions),
        }
        answer
    }

    /// Passes a page to the worker of its partition.
    fn deliver(&self, partition: Partition, page: Page) {
        let mut inboxes = lock(&self.inboxes);
        let undelivered = match inboxes.get(&partition) {
            Some(inbox) => inbox.send(page).err().map(|error| error.0),
            None => Some(page),
        };
        let Some(page) = undelivered else { return };
        let (pages, inbox) = Inbox::new();
        // The receiver is here.
        let _ = pages.send(page);
        inboxes.insert(partition, pages);
        // Not this value itself, which holds the tasks.
        let (context, at_once, leases) = (self.context.clone(), self.at_once.clone(), self.leases.clone());
        let (member, ended, inboxes) = (self.member.clone(), self.ended.clone(), self.inboxes.clone());
        let (stop, revoked) = (context.stop.clone(), ended.child_token());
        let entries = SharedPartition::new(member, partition, leases.clone(), stop, revoked);
        let work = async move {
            let mut worker = PartitionWorker::of_entries(&context, entries, inbox, &at_once);
            // Panics of user code are caught where it is called, so this one is a defect of ours.
            if let Err(panic) = AssertUnwindSafe(worker.run()).catch_unwind().await {
                tracing::error!(panic = text_of(panic), "the worker of a partition ended abnormally");
            }
            if !ended.is_cancelled() {
                // It ended by a defect: what it held is read again, by the next worker. Leases that are newer than the end
                // of its inbox are that worker's already.
                let newest = {
                    let mut inboxes = lock(&inboxes);
                    inboxes.remove(&partition);
                    leases.newest()
                };
                leases.forget(partition, newest);
            }
        };
        lock(&self.workers).spawn(work.boxed());
    }
}

/// Works until the consumer stops; then waits for the handlers that have started.
pub(in crate::consumer) async fn run(context: Arc<Subscription>) {
    let config = &context.config;
    let group_member = Member::new(context.member.clone(), context.incarnation.clone(), config.lease_ttl);
    let (topic, group) = (context.topic.name.clone(), context.group.clone());
    let member = Arc::new(SharedMember::new(topic, group, consumer_of(&group_member)));
    let at_once = config.concurrency.at_once();
    let clock = context.lease_clock.clone();
    let leases = Arc::new(EntryLeases::new(config.prefetch, at_once, config.lease_ttl, clock));
    context.status.shares(&context.topic.name, leases.clone());
    let at_once = Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS)));
    let sharer = Arc::new(Sharer {
        context: context.clone(),
        member,
        leases,
        inboxes: Inboxes::default(),
        living: Mutex::default(),
        unreadable: UnreadablePartitions::default(),
        workers: Mutex::default(),
        at_once,
        ended: CancellationToken::new(),
    });

    let (grown, partitions) = watch::channel(context.topic.partitions);
    let _extends = context.control.spawn(extend_entries(sharer.clone()).boxed());
    let fetcher = Fetcher::new(sharer.clone(), partitions);
    let claimer = Claimer::new(sharer.clone(), grown);
    let work = async {
        tokio::join!(fetcher.run(), claimer.run());
        // No page comes any more, so workers give back all that did not begin.
        sharer.ended.cancel();
        let mut workers = std::mem::take(&mut *lock(&sharer.workers));
        while let Some(ended) = workers.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a worker of a shared consumer ended abnormally");
            }
        }
    };
    let kill = async {
        context.stop.cancelled().await;
        sleep(context.handlers_timeout()).await;
        context.give_up(context.handlers_timeout());
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = work => {}
        () = kill => {}
        () = killed(&context) => {}
    }
    context.hand_back(sharer.leases.len());
}

/// Returns some time after handlers were given up.
async fn killed(context: &Subscription) {
    context.kill.cancelled().await;
    sleep(context.last_settlements()).await;
    tracing::warn!(
        "not all messages were settled or given back in time: a handler may block its thread, and keeps running"
    );
}
