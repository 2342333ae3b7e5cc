//! Dispatcher: passes the messages of one partition to handlers, with the configured concurrency and order.

pub(in crate::consumer) mod decide;
pub(in crate::consumer) mod job;
pub(in crate::consumer) mod key_queues;
pub(in crate::consumer) mod limits;
pub(in crate::consumer) mod retry_timers;
pub(in crate::consumer) mod row;

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::event::{Event, Handled};
use millstream_core::log::{Entry, Receipt};
use millstream_core::panics::discard;
use millstream_loops::Runners;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;
use tokio_util::sync::PollSemaphore;

use crate::consumer::RetryOrder;
use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::handler::{Handler, Said, Verdict};
use crate::consumer::partition::dispatch::decide::decide;
use crate::consumer::partition::dispatch::job::{Job, handle};
use crate::consumer::partition::dispatch::key_queues::{By, KeyQueue, KeyQueues, Ticket};
use crate::consumer::partition::dispatch::limits::turn;
use crate::consumer::partition::dispatch::retry_timers::RetryTimers;
use crate::consumer::partition::dispatch::row::Row;
use crate::consumer::partition::fetch::Read;
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::poison::{Candidate, Plan, Poison};
use crate::consumer::partition::server_clock::ServerClock;
use crate::consumer::partition::settle::Settler;
use crate::consumer::pauses::Pause;
use crate::report::Counts;

/// Maximum number of messages that a task handles one after the other before their results are used: enough that the
/// switches between tasks cost little for each message.
const ROW: usize = 256;

/// Jobs that are passed to a task together: one, a batch, or a row.
type Unit = Vec<(Ticket, Box<Job>)>;

/// Something that happened, for [`Dispatcher::take_in`].
pub(in crate::consumer) enum Happened {
    /// A task returned its jobs, or panicked with this text.
    Ended(Result<Unit, String>),
    /// A candidate may be handled alone.
    Turn(KeyQueue),
    /// A handler may start, with this permit. `None`: the lease is lost.
    Permit(Option<Option<OwnedSemaphorePermit>>),
    /// The partition is paused now, or no longer.
    Pause,
}

/// The messages of one partition that are read and not settled, and the tasks that handle them.
pub(in crate::consumer) struct Dispatcher {
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    clock: Arc<ServerClock>,
    owned: Arc<PartitionHandle>,
    /// Value of the guard's [`trust`](LeaseGuard::trust) when `owned` was created.
    trust: u64,
    queues: KeyQueues<Box<Job>>,
    waits: RetryTimers,
    poison: Poison,
    /// Jobs that start next. A batch is filled until it is full or `full_at` has come.
    picked: Unit,
    full_at: Instant,
    /// Maximum number of messages that start together, and how long a batch waits for more.
    size: usize,
    wait: Duration,
    running: Runners<Unit>,
    /// From rows that wait: jobs that are done already.
    early: (UnboundedSender<Unit>, UnboundedReceiver<Unit>),
    /// Our position in the queue for handlers, if their number is limited.
    turns: Option<PollSemaphore>,
    pause: Pause,
    /// Whether messages are handled one after the other.
    serial: bool,
    warned: bool,
}

impl Dispatcher {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        guard: Arc<LeaseGuard>,
        owned: PartitionHandle,
        clock: Arc<ServerClock>,
    ) -> Self {
        let config = &context.config;
        let (by, at_once) = By::of(config.concurrency, config.retry_order);
        let (size, wait) = match &context.handler {
            // In one queue, a row has the order of the log.
            Handler::Each(_) if by == By::Partition => (ROW, Duration::ZERO),
            Handler::Each(_) => (1, Duration::ZERO),
            Handler::Batch(batch, _) => (batch.size, batch.wait),
        };
        let candidates = PollSemaphore::new(context.limiter.candidates().clone());
        Self {
            // 0 is the oldest value: one that is read after the token was created could belong to a newer token.
            trust: 0,
            queues: KeyQueues::new(by, at_once),
            waits: RetryTimers::default(),
            poison: Poison::new(owned.epoch, candidates),
            picked: Vec::new(),
            full_at: Instant::now(),
            size,
            wait,
            running: Runners::new(),
            early: mpsc::unbounded_channel(),
            turns: context.limiter.handlers().map(|handlers| PollSemaphore::new(handlers.clone())),
            pause: context.pauses.of(&owned.topic_partition),
            serial: at_once == 1,
            warned: false,
            owned: Arc::new(owned),
            context,
            guard,
            clock,
        }
    }

    /// Whether the partition is paused.
    pub(in crate::consumer) fn is_paused(&mut self) -> bool {
        self.pause.is_on()
    }

    /// Whether no handler runs.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Takes in messages that were read.
    pub(in crate::consumer) fn read(&mut self, read: Read, settler: &mut Settler) {
        let now = Instant::now();
        let (config, ends) = (&self.context.config, &self.guard.lease().ends);
        let job = |entry: Entry| {
            let candidate = Candidate::of_owner(&entry, read.ends, ends, config.crash_limit);
            Box::new(Job::new(entry, &config.limits, candidate, now))
        };
        let jobs: Vec<_> = read.entries.into_iter().map(job).collect();
        for job in jobs {
            if !job.left.is_zero() {
                if !self.waits_in_place(&job) {
                    // Noted by an owner with another retry order. Here it is parked, like all failed messages.
                    settler.add(job.receipt, job.parks());
                    continue;
                }
                // The wait began when an earlier owner wrote the note, so only the rest of it is left.
                self.waits.for_rest(job.receipt, job.left, now);
            }
            let key = if self.queues.is_by_key() { job.key().cloned() } else { None };
            self.queues.push(key.as_ref(), job);
        }
    }

    /// Takes in a written note: of a message that waits in place, or of a poison candidate that begins.
    pub(in crate::consumer) fn written(&mut self, receipt: Receipt) {
        if !self.poison.written(receipt) {
            self.waits.written(receipt, Instant::now());
        }
    }

    /// Starts what can start without waiting for anything.
    pub(in crate::consumer) fn advance(&mut self, settler: &mut Settler, in_flight: &mut InFlight) {
        self.collect(settler);
        if self.waits.next().is_some() {
            let now = Instant::now();
            while let Some(lane) = self.waits.ended(now) {
                self.queues.unblock(lane);
            }
        }
        loop {
            self.pick(settler);
            self.count_blocked(in_flight);
            if self.pause.is_on() {
                if let Some(turns) = &mut self.turns {
                    // While we are paused, other partitions get our position in the queue.
                    *turns = turns.clone();
                }
                return;
            }
            let now = Instant::now();
            if self.turns.is_some() || !self.is_complete(now) || !self.guard.is_live(now) {
                return;
            }
            self.start(None);
        }
    }

    /// Takes in the jobs that tasks have returned.
    pub(in crate::consumer) fn collect(&mut self, settler: &mut Settler) {
        while let Ok(unit) = self.early.1.try_recv() {
            self.finish(unit, settler);
        }
        while let Some(ended) = self.running.try_next() {
            self.ended(ended, settler);
        }
    }

    /// Returns when something is to be done although nothing else happens.
    pub(in crate::consumer) fn wakes(&mut self) -> Option<Instant> {
        let waits_for_more =
            !self.picked.is_empty() && !self.pause.is_on() && !self.is_complete(Instant::now());
        let filled = waits_for_more.then_some(self.full_at);
        self.waits.next().into_iter().chain(filled).min()
    }

    /// Waits until something happens. Cancel safe.
    pub(in crate::consumer) async fn changed(&mut self) -> Happened {
        let paused = self.pause.is_on();
        let complete = !paused && self.is_complete(Instant::now());
        let Self { pause, early, running, poison, turns, guard, context, .. } = self;
        tokio::select! {
            biased;
            () = pause.until(!paused) => Happened::Pause,
            Some(unit) = early.1.recv() => Happened::Ended(Ok(unit)),
            Some(ended) = running.next() => Happened::Ended(ended),
            lane = poison.turn(&context.limiter), if !paused => Happened::Turn(lane),
            permit = turn(guard, turns), if complete => Happened::Permit(permit),
        }
    }

    /// Takes in something that happened.
    pub(in crate::consumer) async fn take_in(&mut self, happened: Happened, settler: &mut Settler) {
        match happened {
            Happened::Ended(ended) => self.ended(ended, settler),
            Happened::Turn(lane) => self.queues.unblock(lane),
            Happened::Permit(Some(Some(permit))) => {
                // Lets others that have just released a permit queue up again before we start.
                tokio::task::yield_now().await;
                if !self.pause.is_on()
                    && self.guard.is_live(Instant::now())
                    && !self.guard.revoked().is_cancelled()
                {
                    self.start(Some(permit));
                }
            }
            // The lease can be relied on again, or is lost, which the worker notices by itself.
            Happened::Permit(_) | Happened::Pause => {}
        }
    }

    /// Waits until a task returns its jobs. `None` if none runs. Cancel safe.
    pub(in crate::consumer) async fn next_end(&mut self) -> Option<Happened> {
        tokio::select! {
            biased;
            Some(unit) = self.early.1.recv() => Some(Happened::Ended(Ok(unit))),
            ended = self.running.next() => ended.map(Happened::Ended),
        }
    }

    /// Whether this message waits in place for its next attempt, with others behind it. A message without a key blocks no
    /// other, unless the whole partition waits.
    fn waits_in_place(&self, job: &Job) -> bool {
        match self.context.config.retry_order {
            RetryOrder::Skip => false,
            RetryOrder::BlockKey => job.key().is_some(),
            RetryOrder::BlockPartition => true,
        }
    }

    /// Picks the jobs that start next, and blocks the queues that have to wait.
    fn pick(&mut self, settler: &mut Settler) {
        while self.picked.len() < self.size {
            let first = self.picked.is_empty();
            // A candidate runs alone, never with others in a batch or a row.
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
                let Some(picked) = self.screen((ticket, job), settler) else { continue };
                if first && !self.wait.is_zero() {
                    self.full_at = Instant::now() + self.wait;
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
    }

    /// Returns a message that can start at once. A candidate is kept back until its note is written, or until it can run
    /// alone; or it is given up.
    fn screen(
        &mut self,
        (ticket, mut job): (Ticket, Box<Job>),
        settler: &mut Settler,
    ) -> Option<(Ticket, Box<Job>)> {
        let (is_message, receipt, limiter) = (job.is_message(), job.receipt, &self.context.limiter);
        let Some(candidate) = job.candidate.as_deref_mut().filter(|_| is_message) else {
            return Some((ticket, job));
        };
        let newest = candidate.newest();
        if limiter.is_explained(newest) {
            candidate.exonerate();
        }
        match candidate.plan {
            Plan::GiveUp(crashes) => {
                job.said = Some(Said::Own(Verdict::Crashed(crashes)));
                let PartitionHandle { topic_partition, group, .. } = &*self.owned;
                let origin = job.origin;
                tracing::warn!(%topic_partition, %group, %origin, crashes, "dead-lettered: processes ended while handling it");
                let event = Event::Crashed { topic_partition, group, origin, crashes };
                self.context.observer.observe(&event);
                // The leases before ours ended over this message, so other candidates need not run alone because of them.
                limiter.explain(self.owned.epoch);
                self.finish(vec![(ticket, job)], settler);
                return None;
            }
            Plan::Alone if !self.poison.tries(receipt) => {
                // `None`: another message of its queue runs. It is then put back and comes up again.
                if let Some(lane) = self.queues.block(ticket, job) {
                    self.poison.waits(receipt, lane, newest);
                }
                return None;
            }
            Plan::Note | Plan::Alone => {}
        }
        let note = self.poison.notes(ticket, job)?;
        // The handler starts when the note is written.
        settler.add(receipt, Settlement::Hold(note));
        None
    }

    /// Reports the number of blocked messages. Only with `BlockKey`: if the whole partition waits, reading on is no use.
    fn count_blocked(&mut self, in_flight: &mut InFlight) {
        if self.context.config.retry_order != RetryOrder::BlockKey {
            return;
        }
        if in_flight.blocked(self.queues.blocked()) && !self.warned {
            self.warned = true;
            let PartitionHandle { topic_partition, group, .. } = &*self.owned;
            let messages = self.queues.blocked();
            tracing::warn!(%topic_partition, %group, messages, "too many wait behind messages that failed: no more is read");
        }
    }

    /// Whether the picked jobs may start.
    fn is_complete(&self, now: Instant) -> bool {
        let Some((_, job)) = self.picked.first() else { return false };
        self.wait.is_zero()
            || job.candidate.is_some()
            || self.picked.len() >= self.size
            || now >= self.full_at
    }

    /// Passes the picked jobs to a task.
    fn start(&mut self, permit: Option<OwnedSemaphorePermit>) {
        self.trust_again();
        let mut unit = std::mem::take(&mut self.picked);
        let (context, owned, guard) = (self.context.clone(), self.owned.clone(), self.guard.clone());
        if self.serial && matches!(context.handler, Handler::Each(_)) {
            let row = Row::new(context, owned, guard, self.pause.clone(), unit, self.early.0.clone());
            self.running.spawn(async move {
                let unit = row.run().await;
                drop(permit);
                unit
            });
            return;
        }
        let keep = self.context.config.retry_order != RetryOrder::Skip;
        self.running.spawn(async move {
            // It has waited for a thread, and the lease may be lost meanwhile.
            if !guard.lost().is_cancelled() {
                let started = Instant::now();
                handle(&context, &mut unit, |(_, job)| (owned.clone(), &mut **job), keep).await;
                let elapsed = started.elapsed();
                unit.iter_mut().for_each(|(_, job)| job.elapsed = elapsed);
            }
            drop(permit);
            unit
        });
    }

    /// Creates a new partition handle if the lease could not be relied on for a while: new messages can rely on it again.
    fn trust_again(&mut self) {
        // Compared first, because it is one atomic load, and this runs for every unit.
        let trust = self.guard.trust();
        if trust != std::mem::replace(&mut self.trust, trust)
            && self.owned.cancelled.is_cancelled()
            && let Ok(owned) = PartitionHandle::new(&self.context.context, &self.guard)
        {
            self.owned = Arc::new(owned);
        }
    }

    fn ended(&mut self, ended: Result<Unit, String>, settler: &mut Settler) {
        match ended {
            Ok(unit) => self.finish(unit, settler),
            Err(panic) => {
                // Panics of handlers are caught where they are called, so this one is a defect of ours.
                tracing::error!(panic, "handling a message ended abnormally");
                self.guard.revoke();
            }
        }
    }

    /// Decides the settlements of jobs that a task has returned.
    fn finish(&mut self, unit: Unit, settler: &mut Settler) {
        let mut acked = 0;
        for (ticket, mut job) in unit {
            match job.said.take() {
                Some(said) => {
                    acked += usize::from(self.finish_one(ticket, job, said.verdict(), settler));
                    discard(said, &*self.context.observer);
                }
                // It was not handled: its row ended before its turn, or the consumer is about to end.
                None => self.queues.put_back(ticket, job),
            }
        }
        if acked > 0 {
            // All partitions share this counter, so it is updated once per unit.
            Counts::add(&self.context.counts.acked, acked);
        }
    }

    /// Decides the settlement of one job. True if it was acknowledged.
    fn finish_one(
        &mut self,
        ticket: Ticket,
        mut job: Box<Job>,
        verdict: &Verdict,
        settler: &mut Settler,
    ) -> bool {
        let context = &self.context;
        let policies = context.policies();
        let attempt = || {
            let in_place = self.waits_in_place(&job).then_some(&*context.incarnation);
            job.attempt(Some(&self.clock), in_place)
        };
        let (settlement, handled) = decide(verdict, attempt, &policies);
        let acked = handled == Handled::Acked;
        if !acked {
            context.counts.handled(handled);
        }
        let PartitionHandle { topic_partition, group, .. } = &*self.owned;
        let event = Event::Handled {
            topic_partition,
            group,
            attempt: job.attempt,
            handled,
            elapsed: job.elapsed,
            origin: job.origin,
            source: job.receipt.source,
            cause: verdict.cause(),
        };
        context.observer.observe(&event);
        let receipt = job.receipt;
        self.poison.done(receipt);
        match &settlement {
            Settlement::Hold(note) => {
                let after = job.holds(note, &self.clock);
                self.waits.after_note(receipt, after);
                self.queues.put_back(ticket, job);
            }
            _ => self.queues.done(ticket),
        }
        settler.add(receipt, settlement);
        acked
    }
}
