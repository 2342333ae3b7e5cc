//! The dispatch loop: passes the messages of one partition to handlers, with the configured concurrency and order.

pub(in crate::consumer) mod decide;
pub(in crate::consumer) mod inline;
pub(in crate::consumer) mod job;
pub(in crate::consumer) mod key_queues;
pub(in crate::consumer) mod limits;
pub(in crate::consumer) mod retry_timers;

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::event::Event;
use millstream_core::log::{Entry, Receipt};
use millstream_core::panics::discard;
use millstream_loops::Runners;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::PollSemaphore;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::{LeaseGuard, RevokedByPanic};
use crate::consumer::handler::{Handler, Verdict, noticing};
use crate::consumer::partition::dispatch::decide::decide;
use crate::consumer::partition::dispatch::job::{Job, handle};
use crate::consumer::partition::dispatch::key_queues::{By, KeyQueues, Ticket};
use crate::consumer::partition::dispatch::retry_timers::RetryTimers;
use crate::consumer::partition::fetch::Read;
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::poison::{Candidate, Poison};
use crate::consumer::partition::server_clock::ServerClock;
use crate::consumer::partition::settlement_buffer::{SettlementBuffer, Settlements};
use crate::consumer::pauses::Pause;
use crate::consumer::{Concurrency, RetryOrder};

/// Inputs and outputs of the dispatch loop of one partition.
pub(in crate::consumer) struct Dispatcher {
    pub(in crate::consumer) context: Arc<Subscription>,
    pub(in crate::consumer) guard: Arc<LeaseGuard>,
    pub(in crate::consumer) in_flight: Arc<InFlight>,
    pub(in crate::consumer) entries: UnboundedReceiver<Read>,
    pub(in crate::consumer) settlements: UnboundedSender<Settlements>,
    pub(in crate::consumer) clock: Arc<ServerClock>,
    /// From the settler: receipts whose notes are written.
    pub(in crate::consumer) written: UnboundedReceiver<Receipt>,
}

impl Dispatcher {
    /// Works until the consumer stops or the lease is lost; then waits for the handlers that run. Messages that were read
    /// and not started stay pending, and the next owner gets them first.
    pub(in crate::consumer) async fn run(self) {
        let _revoked = RevokedByPanic(self.guard.clone());
        match PartitionHandle::new(&self.context.context, &self.guard) {
            Ok(owned) => {
                let mut dispatch = Dispatch::new(self, owned);
                while dispatch.run_once().await {}
                dispatch.end().await;
            }
            Err(error) => {
                tracing::error!(%error, "a partition cannot be worked on");
                self.guard.revoke();
            }
        }
    }
}

/// Jobs that a handler gets together: one, or a batch.
type Unit = Vec<(Ticket, Box<Job>)>;

/// State of the loop.
pub(in crate::consumer) struct Dispatch {
    pub(in crate::consumer) links: Dispatcher,
    pub(in crate::consumer) owned: Arc<PartitionHandle>,
    /// Value of the guard's [`trust`](LeaseGuard::trust) when `owned` was created.
    trust: u64,
    pub(in crate::consumer) queues: KeyQueues<Box<Job>>,
    pub(in crate::consumer) waits: RetryTimers,
    pub(in crate::consumer) poison: Poison,
    /// Settlements on their way to the settler.
    pub(in crate::consumer) settlement_buffer: SettlementBuffer,
    /// The job that is handled inline now, and when it started.
    pub(in crate::consumer) in_hand: Option<(Ticket, Box<Job>, Instant)>,
    /// Whether a handler of this inline run was not ready at its first poll: the run ends after it.
    pub(in crate::consumer) waited: bool,
    /// Jobs that start next. A batch is filled until it is full or `full_at` has come.
    pub(in crate::consumer) picked: Unit,
    full_at: Instant,
    running: Runners<(Unit, Duration)>,
    /// Our position in the queue for handlers, if their number is limited.
    pub(in crate::consumer) turns: Option<PollSemaphore>,
    pub(in crate::consumer) pause: Pause,
    /// Whether handlers run here, one after the other, instead of as tasks, which can use several threads.
    pub(in crate::consumer) inline: bool,
    warned: bool,
}

impl Dispatch {
    fn new(links: Dispatcher, owned: PartitionHandle) -> Self {
        let config = &links.context.config;
        let (by, at_once) = match (config.concurrency, config.retry_order) {
            // Keys have queues so that one can wait, but messages run one at a time, in the order of the partition.
            (Concurrency::Serial, RetryOrder::BlockKey) => (By::Key, 1),
            (Concurrency::Serial, _) => (By::Partition, 1),
            (Concurrency::PerKey(at_once), _) => (By::Key, at_once),
            (Concurrency::Unordered(at_once), _) => (By::Entry, at_once),
        };
        let turns = links.context.limiter.handlers().map(|handlers| PollSemaphore::new(handlers.clone()));
        let pause = links.context.pauses.of(&owned.topic_partition);
        let candidates = PollSemaphore::new(links.context.limiter.candidates().clone());
        let poison = Poison::new(owned.epoch, candidates);
        Self {
            // 0 is the oldest value: one that is read after the token was created could belong to a newer token.
            trust: 0,
            settlement_buffer: SettlementBuffer::new(links.context.clone(), links.settlements.clone()),
            in_hand: None,
            waited: false,
            links,
            pause,
            owned: Arc::new(owned),
            queues: KeyQueues::new(by, at_once),
            waits: RetryTimers::default(),
            poison,
            picked: Vec::new(),
            full_at: Instant::now(),
            running: Runners::new(),
            turns,
            inline: at_once == 1,
            warned: false,
        }
    }

    /// Takes in all that is available and starts one unit, or waits until something changes. False when the consumer
    /// stops or the lease is lost.
    async fn run_once(&mut self) -> bool {
        self.look_around();
        if self.is_plain() && !self.is_stopped() {
            return self.handle_in_a_row().await;
        }
        self.pick();
        let paused = self.pause.is_on();
        if paused && let Some(turns) = &mut self.turns {
            // While we are paused, other partitions get our position in the queue.
            *turns = turns.clone();
        }
        let complete = !paused && self.is_complete();
        let live = self.links.guard.is_live(Instant::now());
        if complete && self.turns.is_none() && live && !self.is_stopped() {
            // The usual case: nothing to wait for. The budget still lets other tasks of this thread run.
            noticing(consume_budget(), || self.settlement_buffer.flush()).await;
            if !self.links.guard.is_live(Instant::now()) {
                return true;
            }
            return self.start(None).await;
        }
        self.settlement_buffer.flush();
        let links = &mut self.links;
        let filled = (!self.picked.is_empty() && !complete && !paused).then_some(self.full_at);
        // Wake for a retry that becomes due, or when a batch has waited long enough.
        let wake = self.waits.next().into_iter().chain(filled).min();
        let woken = async {
            match wake {
                Some(wake) => sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        // Biased: signals that end the loop come first, so that nothing starts after them.
        tokio::select! {
            biased;
            () = links.context.kill.cancelled() => return false,
            () = links.guard.revoked().cancelled() => return false,
            () = links.guard.lost().cancelled() => return false,
            () = self.pause.until(!paused) => {}
            Some(ended) = self.running.next() => self.ended(ended),
            Some(receipt) = links.written.recv() => self.written(receipt),
            lane = self.poison.turn(&links.context.limiter), if !paused => self.queues.unblock(lane),
            turn = turn(&links.guard, &mut self.turns), if complete => {
                let Some(permit) = turn else { return false };
                if permit.is_some() {
                    // Lets others that have just released a permit queue up again before we start.
                    tokio::task::yield_now().await;
                }
                if self.pause.is_on() || !self.links.guard.is_live(Instant::now()) {
                    return true;
                }
                return self.start(permit).await;
            }
            Some(read) = links.entries.recv() => self.take_in(read),
            () = woken => {}
        }
        true
    }

    /// Whether nothing may start any more.
    fn is_stopped(&self) -> bool {
        let (context, guard) = (&self.links.context, &self.links.guard);
        context.kill.is_cancelled() || guard.revoked().is_cancelled() || guard.lost().is_cancelled()
    }

    /// Processes everything that has happened, without waiting.
    fn look_around(&mut self) {
        while let Ok(read) = self.links.entries.try_recv() {
            self.take_in(read);
        }
        while let Some(ended) = self.running.try_next() {
            self.ended(ended);
        }
        while let Ok(receipt) = self.links.written.try_recv() {
            self.written(receipt);
        }
        if self.waits.next().is_some() {
            let now = Instant::now();
            while let Some(lane) = self.waits.ended(now) {
                self.queues.unblock(lane);
            }
        }
    }

    /// Handles a written note: of a message that waits in place, or of a poison candidate that begins.
    fn written(&mut self, receipt: Receipt) {
        if !self.poison.written(receipt) {
            self.waits.written(receipt, Instant::now());
        }
    }

    fn take_in(&mut self, read: Read) {
        let now = Instant::now();
        let (config, ends) = (&self.links.context.config, &self.links.guard.lease().ends);
        let job = |entry: Entry| {
            let candidate = Candidate::of_owner(&entry, read.ends, ends, config.crash_limit);
            Box::new(Job::new(entry, &config.limits, candidate, now))
        };
        let jobs: Vec<_> = read.entries.into_iter().map(job).collect();
        for job in jobs {
            if !job.left.is_zero() {
                if !self.waits_in_place(&job) {
                    // Noted by an owner with another retry order. Here it is parked, like all failed messages.
                    self.settle(job.receipt, job.parks());
                    continue;
                }
                // The wait began when an earlier owner wrote the note, so only the rest of it is left.
                self.waits.for_rest(job.receipt, job.left, now);
            }
            let key = if self.queues.is_by_key() { job.key().cloned() } else { None };
            self.queues.push(key.as_ref(), job);
        }
    }

    /// Whether this message waits in place for its next attempt, with others behind it. A message without a key blocks no
    /// other, unless the whole partition waits.
    fn waits_in_place(&self, job: &Job) -> bool {
        match self.links.context.config.retry_order {
            RetryOrder::Skip => false,
            RetryOrder::BlockKey => job.key().is_some(),
            RetryOrder::BlockPartition => true,
        }
    }

    /// Picks the jobs that start next, and blocks the queues that have to wait.
    fn pick(&mut self) {
        let (size, wait) = match &self.links.context.handler {
            Handler::Each(_) => (1, Duration::ZERO),
            Handler::Batch(batch, _) => (batch.size, batch.wait),
        };
        while self.picked.len() < size {
            let first = self.picked.is_empty();
            // A candidate runs alone, never in a batch.
            if self.picked.first().is_some_and(|(_, job)| job.candidate.is_some()) {
                break;
            }
            if first && let Some(noted) = self.poison.next() {
                self.picked.push(noted);
                break;
            }
            let next = if first { self.queues.next() } else { self.queues.also() };
            let Some((ticket, job)) = next else { break };
            let receipt = job.receipt;
            if self.waits.is_over(receipt, Instant::now) {
                if !first && job.candidate.is_some() {
                    // In a batch of several, the culprit could not be told apart.
                    self.queues.put_back(ticket, job);
                    break;
                }
                let Some(picked) = self.screen((ticket, job)) else { continue };
                if first && size > 1 {
                    self.full_at = Instant::now() + wait;
                }
                self.picked.push(picked);
                continue;
            }
            match self.queues.block(ticket, job) {
                Some(lane) => self.waits.blocks(receipt, lane),
                // Another job of its queue is in this batch: it comes up again after that.
                None => break,
            }
        }
        self.count_blocked();
    }

    /// Reports the number of blocked messages. Only with `BlockKey`: if the whole partition waits, reading on is no use.
    pub(in crate::consumer) fn count_blocked(&mut self) {
        if self.links.context.config.retry_order != RetryOrder::BlockKey {
            return;
        }
        if self.links.in_flight.blocked(self.queues.blocked()) && !self.warned {
            self.warned = true;
            let PartitionHandle { topic_partition, group, .. } = &*self.owned;
            let messages = self.queues.blocked();
            tracing::warn!(%topic_partition, %group, messages, "too many wait behind messages that failed: no more is read");
        }
    }

    /// Whether the picked jobs start now.
    fn is_complete(&self) -> bool {
        let Some((_, job)) = self.picked.first() else { return false };
        match &self.links.context.handler {
            Handler::Each(_) => true,
            Handler::Batch(batch, _) => {
                job.candidate.is_some() || self.picked.len() >= batch.size || Instant::now() >= self.full_at
            }
        }
    }

    /// Passes the picked jobs to the handler.
    pub(in crate::consumer) async fn start(&mut self, permit: Option<OwnedSemaphorePermit>) -> bool {
        self.trust_again();
        let keep = self.keeps();
        let mut unit = std::mem::take(&mut self.picked);
        let (context, owned) = (&self.links.context, &self.owned);
        if !self.inline {
            let (context, owned) = (context.clone(), owned.clone());
            let guard = self.links.guard.clone();
            self.running.spawn(async move {
                // Jobs wait for a thread, and the lease may be lost meanwhile.
                if guard.lost().is_cancelled() {
                    return (unit, Duration::ZERO);
                }
                let started = Instant::now();
                handle(&context, &mut unit, |(_, job)| (owned.clone(), &mut **job), keep).await;
                drop(permit);
                (unit, started.elapsed())
            });
            return true;
        }
        let started = Instant::now();
        tokio::select! {
            biased;
            () = context.kill.cancelled() => {
                self.picked = unit;
                return false;
            }
            () = noticing(
                handle(context, &mut unit, |(_, job)| (owned.clone(), &mut **job), keep),
                || self.settlement_buffer.flush(),
            ) => {}
        }
        self.finish(&mut unit, started.elapsed());
        // Reuses the allocation for the next unit.
        self.picked = unit;
        true
    }

    /// Whether a message is needed again after its handler was called.
    pub(in crate::consumer) fn keeps(&self) -> bool {
        self.links.context.config.retry_order != RetryOrder::Skip
    }

    /// Creates a new partition handle if the lease could not be relied on for a while: new messages can rely on it again.
    pub(in crate::consumer) fn trust_again(&mut self) {
        // Compared first, because it is one atomic load, and this runs for every message.
        let trust = self.links.guard.trust();
        if trust != std::mem::replace(&mut self.trust, trust)
            && self.owned.cancelled.is_cancelled()
            && let Ok(owned) = PartitionHandle::new(&self.links.context.context, &self.links.guard)
        {
            self.owned = Arc::new(owned);
        }
    }

    fn ended(&mut self, ended: Result<(Unit, Duration), String>) {
        match ended {
            Ok((mut unit, elapsed)) => self.finish(&mut unit, elapsed),
            Err(panic) => {
                // Panics of handlers are caught where they are called, so this one is a defect of ours.
                tracing::error!(panic, "handling a message ended abnormally");
                self.links.guard.revoke();
            }
        }
    }

    pub(in crate::consumer) fn finish(&mut self, unit: &mut Unit, elapsed: Duration) {
        let now = Instant::now();
        for (ticket, mut job) in unit.drain(..) {
            // Without a verdict it was not handled, because the consumer is about to end: it stays pending, and its queue
            // stays closed.
            if let Some(said) = job.said.take() {
                self.finish_one(ticket, job, said.verdict(), elapsed, now);
                discard(said, &*self.links.context.observer);
            }
        }
        if self.settlement_buffer.is_due(now) {
            self.settlement_buffer.flush();
        }
    }

    pub(in crate::consumer) fn finish_one(
        &mut self,
        ticket: Ticket,
        mut job: Box<Job>,
        verdict: &Verdict,
        elapsed: Duration,
        now: Instant,
    ) {
        let context = &self.links.context;
        let policies = context.policies();
        let attempt = || {
            let in_place = self.waits_in_place(&job).then_some(&*context.incarnation);
            job.attempt(Some(&self.links.clock), in_place)
        };
        let (settlement, handled) = decide(verdict, attempt, &policies);
        self.settlement_buffer.count(handled);
        let PartitionHandle { topic_partition, group, .. } = &*self.owned;
        let event = Event::Handled {
            topic_partition,
            group,
            attempt: job.attempt,
            handled,
            elapsed,
            origin: job.origin,
            source: job.receipt.source,
            cause: verdict.cause(),
        };
        context.observer.observe(&event);
        let receipt = job.receipt;
        self.poison.done(receipt);
        match &settlement {
            Settlement::Hold(note) => {
                let after = job.holds(note, &self.links.clock);
                self.waits.after_note(receipt, after);
                self.queues.put_back(ticket, job);
            }
            _ => self.queues.done(ticket),
        }
        // The age counts from the handler's start: the outcome of a slow handler must not wait for the next one, which
        // may be slow, too.
        self.settlement_buffer.add(receipt, settlement, now.checked_sub(elapsed).unwrap_or(now));
    }

    pub(in crate::consumer) fn settle(&mut self, receipt: Receipt, settlement: Settlement) {
        self.settlement_buffer.add(receipt, settlement, Instant::now());
    }

    /// Waits for the handlers that run, up to the time when they are given up.
    async fn end(mut self) {
        loop {
            self.settlement_buffer.flush();
            if self.running.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = self.links.context.kill.cancelled() => return,
                Some(ended) = self.running.next() => self.ended(ended),
            }
        }
    }
}

/// Waits for our turn among the handlers of the consumer, and until the lease can be relied on. `None` if it is lost.
async fn turn(guard: &LeaseGuard, turns: &mut Option<PollSemaphore>) -> Option<Option<OwnedSemaphorePermit>> {
    let permit = match turns {
        // The position in the semaphore's queue is kept when this future is dropped and created again.
        Some(turns) => Some(std::future::poll_fn(|cx| turns.poll_acquire(cx)).await?),
        None => None,
    };
    guard.live().await.then_some(permit)
}
