//! The worker: reads, handles and settles the messages of one owned partition.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use millstream_core::error::Result;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::maintenance::{self, Triggers};
use crate::consumer::partition::dispatch::{Dispatcher, Happened};
use crate::consumer::partition::fetch::{self, Fetcher};
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::partition::in_flight::{InFlight, InFlightGauge};
use crate::consumer::partition::server_clock::ServerClock;
use crate::consumer::partition::settle::{self, Settler};

/// Works on one partition during one session of its lease, in one task.
///
/// ```text
///              ┌──────────────────────────── PartitionWorker ────────────────────────────┐
/// reader ────▶ │ Fetcher ──entries──▶ InFlight ──new ones──▶ Dispatcher ──outcomes──▶ Settler │ ────▶ log
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
    guard: Arc<LeaseGuard>,
    in_flight: InFlight,
    gauge: Arc<InFlightGauge>,
    fetcher: Fetcher,
    dispatcher: Dispatcher,
    settler: Settler,
    /// Upkeep of the partition, and the server's clock. They run beside the messages, and end with the session.
    background: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// What a worker waits for.
enum Event {
    /// Nothing new may start: handlers are given up, the partition is to be released, or the lease is lost.
    Stopped,
    Fetched(fetch::Ended),
    Settled(settle::Ended),
    Dispatched(Happened),
    /// Something is due.
    Due,
}

impl PartitionWorker {
    pub(in crate::consumer) fn new(
        context: &Arc<Subscription>,
        guard: &Arc<LeaseGuard>,
        gauge: &Arc<InFlightGauge>,
        triggers: &Arc<Triggers>,
    ) -> Result<Self> {
        let owned = PartitionHandle::new(&context.context, guard)?;
        let monitor = |operation| context.monitor_of(operation, &owned.topic_partition);
        let (fetching, settling) = (monitor("fetch"), monitor("settle"));
        let clock = Arc::new(ServerClock::default());
        let background = FuturesUnordered::new();
        let (of, with, reads) = (context.clone(), guard.clone(), clock.clone());
        background.push(Box::pin(async move { reads.run(&of, &with).await }) as BoxFuture<'static, ()>);
        let (of, with, triggered) = (context.clone(), guard.clone(), triggers.clone());
        background.push(Box::pin(async move { maintenance::run(&of, &with, &triggered).await }));
        Ok(Self {
            in_flight: context.in_flight(),
            gauge: gauge.clone(),
            fetcher: Fetcher::new(context.clone(), guard.clone(), triggers.clone(), fetching),
            dispatcher: Dispatcher::new(context.clone(), guard.clone(), owned, clock),
            settler: Settler::new(context.clone(), guard.clone(), triggers.clone(), settling),
            background,
            context: context.clone(),
            guard: guard.clone(),
        })
    }

    /// Works until the session ends. Then nothing more is read or started, handlers that run may end, and what they have
    /// decided is stored. Returns early when the lease is lost, with handlers that may still run: see
    /// [`wait_for_handlers`](Self::wait_for_handlers).
    ///
    /// Messages that were read and not started stay pending, and the next owner gets them first.
    pub(in crate::consumer) async fn run(&mut self) {
        while !self.is_stopped() {
            self.advance();
            // Lets other tasks of this thread run.
            consume_budget().await;
            let event = self.next_event().await;
            self.take_in(event).await;
        }
        self.fetcher.stop();
        self.finish().await;
        self.background.clear();
        self.gauge.set(&self.in_flight);
    }

    /// Waits for handlers that run after the lease was lost. Their outcomes come too late.
    pub(in crate::consumer) async fn wait_for_handlers(&mut self, patience: Duration) {
        let kill = self.context.kill.clone();
        let ended = async {
            while let Some(happened) = self.dispatcher.next_end().await {
                self.dispatcher.take_in(happened, &mut self.settler).await;
            }
        };
        tokio::select! {
            biased;
            () = kill.cancelled() => tracing::debug!("a handler is aborted"),
            () = ended => {}
            () = tokio::time::sleep(patience) => {
                tracing::warn!("a handler did not end after its lease was lost, and is aborted");
            }
        }
    }

    /// Returns what is known of messages in flight.
    pub(in crate::consumer) fn in_flight(self) -> InFlight {
        self.in_flight
    }

    fn is_stopped(&self) -> bool {
        let (context, guard) = (&self.context, &self.guard);
        context.kill.is_cancelled() || guard.revoked().is_cancelled() || guard.lost().is_cancelled()
    }

    /// Starts what can start without waiting for anything.
    fn advance(&mut self) {
        self.dispatcher.advance(&mut self.settler, &mut self.in_flight);
        let (now, in_flight) = (Instant::now(), &mut self.in_flight);
        self.settler.advance(now, || in_flight.frontier());
        self.fetcher.advance(self.dispatcher.is_paused(), now, in_flight);
        self.gauge.set(in_flight);
    }

    async fn next_event(&mut self) -> Event {
        let Self { context, guard, fetcher, dispatcher, settler, background, .. } = self;
        let wake = [fetcher.wakes(), dispatcher.wakes(), settler.wakes()].into_iter().flatten().min();
        // Biased: signals that end the session come first, so that nothing starts after them.
        tokio::select! {
            biased;
            () = context.kill.cancelled() => Event::Stopped,
            () = guard.revoked().cancelled() => Event::Stopped,
            () = guard.lost().cancelled() => Event::Stopped,
            // Before handlers: their results may come without a pause, and requests go on only while they are polled.
            settled = settler.ended() => Event::Settled(settled),
            fetched = fetcher.ended() => Event::Fetched(fetched),
            happened = dispatcher.changed() => Event::Dispatched(happened),
            () = due(wake) => Event::Due,
            () = run(background) => Event::Due,
        }
    }

    async fn take_in(&mut self, event: Event) {
        match event {
            Event::Stopped | Event::Due => {}
            Event::Dispatched(happened) => self.dispatcher.take_in(happened, &mut self.settler).await,
            Event::Settled(settled) => self.settled(settled),
            Event::Fetched(fetched) => {
                match self.fetcher.take_in(fetched, &mut self.in_flight, &mut self.settler) {
                    fetch::Progress::Read(read) => self.dispatcher.read(read, &mut self.settler),
                    fetch::Progress::Nothing => {}
                    fetch::Progress::Fenced => self.guard.lose(),
                }
            }
        }
    }

    fn settled(&mut self, settled: settle::Ended) {
        match self.settler.take_in(settled, &mut self.in_flight) {
            settle::Progress::Written(receipts) => {
                receipts.into_iter().for_each(|receipt| self.dispatcher.written(receipt));
            }
            settle::Progress::Fenced => self.guard.lose(),
        }
    }

    /// Waits for handlers that run, unless they are given up, and stores their outcomes. Returns when all is stored, when
    /// the lease is lost, or when handlers were given up and storing fails.
    async fn finish(&mut self) {
        let (context, guard) = (self.context.clone(), self.guard.clone());
        while !guard.lost().is_cancelled() {
            let killed = context.kill.is_cancelled();
            self.dispatcher.collect(&mut self.settler);
            let handlers_ended = killed || self.dispatcher.is_idle();
            let in_flight = &mut self.in_flight;
            self.settler.advance(Instant::now(), || in_flight.frontier());
            if handlers_ended && (self.settler.is_empty() || killed && self.settler.has_failed()) {
                return;
            }
            self.gauge.set(in_flight);
            let Self { dispatcher, settler, background, .. } = self;
            let wake = settler.wakes();
            let event = tokio::select! {
                biased;
                () = guard.lost().cancelled() => return,
                () = context.kill.cancelled(), if !killed => Event::Due,
                settled = settler.ended() => Event::Settled(settled),
                Some(happened) = dispatcher.next_end(), if !handlers_ended => Event::Dispatched(happened),
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
