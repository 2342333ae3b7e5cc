//! The worker: reads, handles and settles the messages of one partition.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use millstream_core::TopicPartition;
use millstream_core::log::Receipt;
use tokio::sync::Semaphore;
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::membership::within;
use crate::consumer::maintenance::{self, Triggers};
use crate::consumer::partition::dispatch::{Dispatcher, Happened};
use crate::consumer::partition::in_flight::{InFlight, InFlightGauge};
use crate::consumer::partition::leases::entry_lease::{Admitted, Key};
use crate::consumer::partition::leases::{SharedPartition, WorkerLease};
use crate::consumer::partition::settle::{self, Settler};
use crate::consumer::partition::source::fetch::Fetcher;
use crate::consumer::partition::source::inbox::Inbox;
use crate::consumer::partition::source::{self, Source};
use crate::report::Counts;

/// Number of messages of a page whose handlers begin before the next page is asked for. Their task runs on this thread when ours waits, and
/// to write a request takes as long as a message needs from the server to here. Of more messages the first are handled while the next come.
const FEW: usize = 8;

/// Works on one partition, in one task: during one session of its lease, or, in shared mode, on the entries of it that are
/// pending under our name.
///
/// ```text
///              ┌──────────────────────────── PartitionWorker ────────────────────────────┐
/// reader ────▶ │ Source ───entries──▶ InFlight ──new ones──▶ Dispatcher ──outcomes──▶ Settler │ ────▶ log
///              └──────────────────────────────────┬──────▲───────────────────────────────┘
///                                             jobs│      │verdicts
///                                                 ▼      │
///                                        handlers, on tasks of their own
/// ```
///
/// All state is in its fields. Each round [takes in](Self::take_in) what has happened, [starts](Self::advance) what can
/// start, and waits for what happens next. Requests are futures that own what they need, so nothing is shared with them;
/// each part has at most one under way.
pub(in crate::consumer) struct PartitionWorker {
    context: Arc<Subscription>,
    lease: WorkerLease,
    /// In shared mode it stays empty: the leases of entries tell what is in flight.
    in_flight: InFlight,
    gauge: Arc<InFlightGauge>,
    source: Source,
    dispatcher: Dispatcher,
    settler: Settler,
    /// Version of the leases of entries that was last looked at.
    version: u64,
    /// Whether handlers begin before the next request is written.
    begins: bool,
    /// Messages to give back once no other message of their packs is in flight.
    kept: Vec<Receipt>,
    /// Upkeep of the partition, and the server's clock. They run beside the messages, and end with the session.
    background: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// What a worker waits for.
enum Event {
    /// Nothing new may start: handlers are given up, the partition is to be released, or the lease is lost.
    Stopped,
    Came(source::SourceEnded),
    Settled(settle::SettleEnded),
    Dispatched(Happened),
    /// Something is due.
    Due,
}

impl PartitionWorker {
    /// Creates the worker of a partition whose lease we hold.
    pub(in crate::consumer) fn of_lease(
        context: &Arc<Subscription>,
        guard: &Arc<LeaseGuard>,
        gauge: &Arc<InFlightGauge>,
        triggers: &Arc<Triggers>,
    ) -> Self {
        let topic_partition = guard.topic_partition();
        let fetching = context.monitor_of("fetch", topic_partition);
        let fetcher = Fetcher::new(context.clone(), guard.clone(), triggers.clone(), fetching);
        let (lease, source) = (WorkerLease::of_partition(guard.clone()), Source::Reader(fetcher));
        let mut worker = Self::new(context, topic_partition, lease, source, triggers, None);
        worker.gauge = gauge.clone();
        let (of, with, clock) = (context.clone(), guard.clone(), worker.dispatcher.clock().clone());
        worker.background.push(Box::pin(async move { clock.run(&of, &with).await }));
        let (of, with, triggered) = (context.clone(), guard.clone(), triggers.clone());
        worker.background.push(Box::pin(async move { maintenance::run(&of, &with, &triggered).await }));
        worker
    }

    /// Creates the worker of entries that are pending under our name. `at_once` are the permits for handlers that all
    /// partitions of the topic share.
    pub(in crate::consumer) fn of_entries(
        context: &Arc<Subscription>,
        entries: SharedPartition,
        inbox: Inbox,
        at_once: &Arc<Semaphore>,
    ) -> Self {
        let topic_partition = entries.member.partition(entries.partition);
        let lease = WorkerLease::of_entries(entries);
        let (source, triggers) = (Source::Inbox(inbox), Arc::new(Triggers::new(&[])));
        Self::new(context, &topic_partition, lease, source, &triggers, Some(at_once))
    }

    fn new(
        context: &Arc<Subscription>,
        topic_partition: &TopicPartition,
        lease: WorkerLease,
        source: Source,
        triggers: &Arc<Triggers>,
        at_once: Option<&Arc<Semaphore>>,
    ) -> Self {
        let settling = context.monitor_of("settle", topic_partition);
        let (tp, owned) = (topic_partition, &lease);
        let dispatcher = Dispatcher::new(context.clone(), tp.clone(), owned.clone(), at_once);
        let background = FuturesUnordered::new();
        if let Some(watch) = dispatcher.watch_cancels() {
            let watch: BoxFuture<'static, ()> = Box::pin(watch);
            background.push(watch);
        }
        Self {
            in_flight: context.in_flight(),
            gauge: Arc::default(),
            source,
            dispatcher,
            settler: Settler::new(context.clone(), tp.clone(), owned.clone(), triggers.clone(), settling),
            version: 0,
            begins: false,
            kept: Vec::new(),
            background,
            context: context.clone(),
            lease,
        }
    }

    /// Works until the session ends. Then nothing more is read or started, handlers that run may end, and what they have
    /// decided is stored. Returns early when the lease is lost, with handlers that may still run: see
    /// [`wait_for_handlers`](Self::wait_for_handlers).
    ///
    /// Messages that were read and not started stay pending, and the next owner gets them first. In shared mode they are
    /// given back, so that others can claim them at once.
    pub(in crate::consumer) async fn run(&mut self) {
        while !self.is_stopped() {
            self.advance();
            // Lets other tasks of this thread run.
            if std::mem::take(&mut self.begins) {
                yield_now().await;
            } else {
                consume_budget().await;
            }
            let event = self.next_event().await;
            self.take_in(event).await;
        }
        self.source.stop();
        self.dispatcher.stop();
        self.give_back(Self::unbegun).await;
        self.finish().await;
        if self.context.kill.is_cancelled() && self.lease.entries().is_some() {
            // Only what certainly runs no more may go to others.
            self.dispatcher.abort().await;
            self.give_back(Self::undecided).await;
        }
        // What waited for others of its pack.
        self.give_back(Self::unbegun).await;
        self.background.clear();
        self.gauge.set(&self.in_flight);
    }

    /// Waits for handlers that run after the lease was lost. Their outcomes come too late.
    pub(in crate::consumer) async fn wait_for_handlers(&mut self, timeout: Duration) {
        // The lease is lost: nothing that came of them counts.
        self.dispatcher.forget_unsure();
        let kill = self.context.kill.clone();
        let ended = async {
            while let Some(happened) = self.dispatcher.next_end().await {
                self.dispatcher.take_in(happened, &mut self.settler).await;
                self.dispatcher.forget_unsure();
            }
        };
        tokio::select! {
            biased;
            () = kill.cancelled() => tracing::debug!("a handler is aborted"),
            () = ended => {}
            () = tokio::time::sleep(timeout) => {
                tracing::warn!("a handler did not end after its lease was lost, and is aborted");
            }
        }
    }

    /// Returns what is known of messages in flight.
    pub(in crate::consumer) fn in_flight(self) -> InFlight {
        self.in_flight
    }

    fn is_stopped(&self) -> bool {
        let (context, lease) = (&self.context, &self.lease);
        context.kill.is_cancelled() || lease.revoked().is_cancelled() || lease.lost().is_cancelled()
    }

    /// In shared mode, gives back some of the messages. If that fails, others claim them later.
    async fn give_back(&mut self, some: impl FnOnce(&mut Self, &SharedPartition) -> Vec<Key>) {
        let Some(entries) = self.lease.entries() else { return };
        let entries = entries.clone();
        let keys = some(self, &entries);
        if keys.is_empty() && self.kept.is_empty() {
            return;
        }
        Counts::add(&self.context.counts.handed_back, keys.len());
        self.kept.extend(keys.iter().map(|key| key.receipt));
        // Removed first, so that they are not extended any more.
        entries.leases.settled(keys.into_iter());
        let SharedPartition { member, partition, leases, .. } = &*entries;
        // A pack has one owner, who keeps it while one of its messages is in a handler or being settled.
        let held = leases.held(*partition);
        let receipts: Vec<_> =
            self.kept.extract_if(.., |receipt| !held.contains(&(receipt.source, receipt.entry()))).collect();
        if receipts.is_empty() {
            return;
        }
        let request = async { self.context.backend.shared()?.give_back(member, *partition, &receipts).await };
        if let Err(error) = within(self.context.request_timeout(), request).await {
            tracing::warn!(%error, "entries that are not handled could not be released: they are claimed later");
        }
    }

    /// Removes the messages that did not begin.
    fn unbegun(&mut self, entries: &SharedPartition) -> Vec<Key> {
        let pages = match &mut self.source {
            Source::Inbox(inbox) => inbox.drain(),
            Source::Reader(_) => Vec::new(),
        };
        let unopened = pages.into_iter().flat_map(|page| page.entries);
        let unopened = unopened.map(|Admitted { entry, serial }| (entry.receipt, serial));
        unopened
            .chain(self.dispatcher.drain())
            .map(|(receipt, serial)| entries.key(receipt, serial))
            .collect()
    }

    /// Returns the messages that have no outcome.
    fn undecided(&mut self, entries: &SharedPartition) -> Vec<Key> {
        entries.leases.undecided(entries.partition)
    }

    /// Starts what can start without waiting for anything.
    fn advance(&mut self) {
        self.version = self.lease.version();
        let in_flight = &mut self.in_flight;
        let now = loop {
            self.dispatcher.advance(&mut self.settler, in_flight);
            let now = Instant::now();
            self.settler.advance(now, in_flight);
            // Notes that are not written make room for other messages.
            if !self.settler.has_gone() {
                break now;
            }
        };
        self.source.advance(self.dispatcher.is_paused(), now, in_flight);
        self.gauge.set(in_flight);
    }

    async fn next_event(&mut self) -> Event {
        let uncertain = self.settler.is_unconfirmed() || self.dispatcher.is_uncertain();
        let Self { context, lease, source, dispatcher, settler, background, version, .. } = self;
        let wake = [source.wakes(), dispatcher.wakes(), settler.wakes()].into_iter().flatten().min();
        // Biased: signals that end the session come first, so that nothing starts after them.
        tokio::select! {
            biased;
            () = context.kill.cancelled() => Event::Stopped,
            () = lease.revoked().cancelled() => Event::Stopped,
            () = lease.lost().cancelled() => Event::Stopped,
            // Before handlers: their results may come without a pause, and requests go on only while they are polled.
            settled = settler.ended() => Event::Settled(settled),
            came = source.ended() => Event::Came(came),
            // Before handlers as well: retries have to come back while all handlers are busy.
            () = run(background) => Event::Due,
            happened = dispatcher.changed() => Event::Dispatched(happened),
            () = lease.changed_since(*version), if uncertain => Event::Due,
            () = due(wake) => Event::Due,
        }
    }

    async fn take_in(&mut self, event: Event) {
        match event {
            Event::Stopped | Event::Due => {}
            Event::Dispatched(happened) => self.dispatcher.take_in(happened, &mut self.settler).await,
            Event::Settled(settled) => self.settled(settled),
            Event::Came(came) => match self.source.take_in(came, &mut self.in_flight, &mut self.settler) {
                source::Progress::Read(read) => {
                    self.begins = read.entries.len() <= FEW;
                    self.dispatcher.read(read, &mut self.settler);
                }
                source::Progress::Nothing => {}
                source::Progress::Fenced => self.lease.lose(),
            },
        }
    }

    fn settled(&mut self, settled: settle::SettleEnded) {
        match self.settler.take_in(settled, &mut self.in_flight) {
            settle::SettleProgress::Written(receipts) => {
                receipts.into_iter().for_each(|(receipt, serial)| self.dispatcher.written(receipt, serial));
            }
            settle::SettleProgress::Fenced => self.lease.lose(),
        }
    }

    /// Waits for handlers that run, unless they are given up, and stores their outcomes. Returns when all is stored, when
    /// the lease is lost, or when handlers were given up and storing fails.
    async fn finish(&mut self) {
        let (context, lease) = (self.context.clone(), self.lease.clone());
        while !lease.lost().is_cancelled() {
            let killed = context.kill.is_cancelled();
            self.dispatcher.collect(&mut self.settler);
            // What was not handled after all.
            self.give_back(Self::unbegun).await;
            let handlers_ended = killed || self.dispatcher.is_idle();
            let in_flight = &mut self.in_flight;
            let version = lease.version();
            self.settler.advance(Instant::now(), in_flight);
            if handlers_ended && (self.settler.is_empty() || killed && self.settler.has_failed()) {
                return;
            }
            self.gauge.set(in_flight);
            let Self { dispatcher, settler, background, .. } = self;
            let (wake, unconfirmed) = (settler.wakes(), settler.is_unconfirmed());
            let event = tokio::select! {
                biased;
                () = lease.lost().cancelled() => return,
                () = context.kill.cancelled(), if !killed => Event::Due,
                settled = settler.ended() => Event::Settled(settled),
                Some(happened) = dispatcher.next_end(), if !handlers_ended => Event::Dispatched(happened),
                () = lease.changed_since(version), if unconfirmed => Event::Due,
                () = due(wake) => Event::Due,
                () = run(background) => Event::Due,
            };
            self.take_in(event).await;
        }
    }
}

/// Runs what runs beside the messages. Never ends.
async fn run(background: &mut FuturesUnordered<BoxFuture<'static, ()>>) {
    while background.next().await.is_some() {}
    std::future::pending::<()>().await;
}

async fn due(wake: Option<Instant>) {
    match wake {
        Some(wake) => sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
