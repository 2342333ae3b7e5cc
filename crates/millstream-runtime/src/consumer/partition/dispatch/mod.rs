//! Dispatcher: passes the messages of one partition to handlers, with the configured concurrency and order.

pub(in crate::consumer) mod job;
pub(in crate::consumer) mod key_queues;
pub(in crate::consumer) mod limits;
pub(in crate::consumer) mod picked;
pub(in crate::consumer) mod retry_timers;
pub(in crate::consumer) mod row;
pub(in crate::consumer) mod running;
pub(in crate::consumer) mod scopes;

use std::sync::Arc;

use millstream_core::event::Handled;
use millstream_core::log::Receipt;
use millstream_core::panics::discard;
use millstream_core::{Settlement, TopicPartition};
use millstream_engine::Runners;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::consumer::RetryOrder;
use crate::consumer::context::Subscription;
use crate::consumer::partition::dispatch::job::{Job, handle};
use crate::consumer::partition::dispatch::key_queues::{Grouping, KeyQueue, KeyQueues, Ticket};
use crate::consumer::partition::dispatch::limits::{Permits, Turns};
use crate::consumer::partition::dispatch::picked::Picked;
use crate::consumer::partition::dispatch::retry_timers::RetryTimers;
use crate::consumer::partition::dispatch::row::Row;
use crate::consumer::partition::dispatch::running::RunningUnits;
use crate::consumer::partition::dispatch::scopes::{Scopes, SortedUnit};
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::leases::WorkerLease;
use crate::consumer::partition::leases::entry_lease::Admitted;
use crate::consumer::partition::poison::{Noted, Plan, Poison};
use crate::consumer::partition::server_clock::ServerClock;
use crate::consumer::partition::settle::Settler;
use crate::consumer::partition::source::Read;
use crate::consumer::pauses::Pause;
use crate::report::Counts;
use millstream_engine::handler::{ErasedHandler, Verdict};

/// Jobs that are passed to a task together: one, a batch, or a row.
pub(in crate::consumer) type Unit = Vec<(Ticket, Box<Job>)>;

/// Something that happened, for [`Dispatcher::take_in`].
pub(in crate::consumer) enum Happened {
    /// A task returned its jobs, or panicked with this text.
    Ended(Result<Unit, String>),
    /// A candidate may be handled alone.
    Turn(KeyQueue),
    /// A handler may start, with these permits. `None`: the lease is lost.
    Permit(Option<Permits>),
    /// The partition is paused now, or no longer.
    Pause,
}

/// The messages of one partition that are read and not settled, and the tasks that handle them.
pub(in crate::consumer) struct Dispatcher {
    context: Arc<Subscription>,
    topic_partition: TopicPartition,
    lease: WorkerLease,
    scopes: Scopes,
    clock: Arc<ServerClock>,
    queues: KeyQueues<Box<Job>>,
    retry_timers: RetryTimers,
    poison: Poison,
    picked: Picked,
    running: Runners<Unit>,
    /// What is in handlers, for others.
    shown: Arc<RunningUnits>,
    /// Jobs that a row has finished while its current handler is pending.
    early: (UnboundedSender<Unit>, UnboundedReceiver<Unit>),
    /// Our positions in the queues for handlers, if their number is limited.
    turns: Turns,
    pause: Pause,
    /// Whether messages are handled one after the other.
    serial: bool,
    warned: bool,
}

impl Dispatcher {
    /// `at_once` are the permits for handlers that all partitions of the topic share, in shared mode.
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        topic_partition: TopicPartition,
        lease: WorkerLease,
        at_once: Option<&Arc<Semaphore>>,
    ) -> Self {
        let config = &context.config;
        let (grouping, concurrency) = Grouping::of(config.concurrency, config.retry_order);
        Self {
            scopes: Scopes::new(context.context.clone(), topic_partition.clone(), lease.clone()),
            queues: KeyQueues::new(grouping, concurrency),
            retry_timers: RetryTimers::default(),
            poison: Poison::new(&context, &lease),
            picked: Picked::new(&context.handler, grouping),
            running: Runners::new(),
            shown: context.running.add(topic_partition.partition),
            early: mpsc::unbounded_channel(),
            turns: Turns::new(&context.limiter, at_once),
            pause: context.pauses.of(&topic_partition),
            serial: concurrency == 1,
            warned: false,
            topic_partition,
            context,
            lease,
            clock: Arc::default(),
        }
    }

    /// Returns the estimate of the server's clock. It is not known unless the caller [runs](ServerClock::run) it.
    pub(in crate::consumer) fn clock(&self) -> &Arc<ServerClock> {
        &self.clock
    }

    /// Whether the partition is paused.
    pub(in crate::consumer) fn is_paused(&mut self) -> bool {
        self.pause.is_on()
    }

    /// Whether messages wait until it is known whether their entries are still ours.
    pub(in crate::consumer) fn is_uncertain(&self) -> bool {
        self.scopes.is_uncertain()
    }

    /// Whether no handler runs.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Takes in messages that were read.
    pub(in crate::consumer) fn read(&mut self, read: Read, settler: &mut Settler) {
        let (now, context) = (Instant::now(), self.context.clone());
        let config = &context.config;
        let Read { entries, candidates } = read;
        for Admitted { entry, serial } in entries {
            let candidate = candidates.candidate(&entry, config.crash_limit);
            let job = Box::new(Job::new(entry, serial, &config.limits, candidate, now));
            if !job.left.is_zero() {
                if !self.waits_in_place(&job) {
                    // Noted by an owner with another retry order. Here it is parked, like all failed messages.
                    if self.scopes.decided(&job) {
                        settler.add(job.receipt, job.serial, job.parks());
                    }
                    continue;
                }
                // The wait began when an earlier owner wrote the note, so only the rest of it is left.
                self.retry_timers.for_rest(job.receipt, job.left, now);
            }
            let key = if self.queues.is_by_key() { job.key().cloned() } else { None };
            self.queues.push(key.as_ref(), job);
        }
    }

    /// Takes in a written note: of a message that waits in place, or of a poison candidate that begins.
    pub(in crate::consumer) fn written(&mut self, receipt: Receipt, serial: u64) {
        if !self.poison.written(receipt, serial) {
            self.retry_timers.written(receipt, Instant::now());
        }
    }

    /// Starts what can start without waiting for anything.
    pub(in crate::consumer) fn advance(&mut self, settler: &mut Settler, in_flight: &mut InFlight) {
        self.collect(settler);
        if self.retry_timers.next().is_some() {
            let now = Instant::now();
            while let Some(queue) = self.retry_timers.ended(now) {
                self.queues.unblock(queue);
            }
        }
        for (receipt, serial) in settler.take_gone() {
            // It comes up, and is found to be gone.
            self.poison.written(receipt, serial);
        }
        self.start_noted(settler);
        while self.scopes.is_certain_again() {
            self.pick(settler);
            self.count_blocked(in_flight);
            if self.pause.is_on() {
                // While we are paused, other partitions get our positions in the queues.
                return self.stop();
            }
            let now = Instant::now();
            if !self.picked.is_complete(now) || !self.lease.is_live(now) {
                return;
            }
            let Some(permits) = self.turns.at_once() else { return };
            let unit = self.picked.take();
            self.start(unit, permits, settler);
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
        let filled = if self.pause.is_on() { None } else { self.picked.full_at() };
        self.retry_timers.next().into_iter().chain(filled).min()
    }

    /// Waits until something happens. Cancel safe.
    pub(in crate::consumer) async fn changed(&mut self) -> Happened {
        let paused = self.pause.is_on();
        if paused {
            // Since a moment ago.
            self.stop();
        }
        let complete = !paused && !self.is_uncertain() && self.picked.is_complete(Instant::now());
        let Self { pause, early, running, poison, turns, lease, context, .. } = self;
        tokio::select! {
            biased;
            () = pause.until(!paused) => Happened::Pause,
            Some(unit) = early.1.recv() => Happened::Ended(Ok(unit)),
            Some(ended) = running.next() => Happened::Ended(ended),
            queue = poison.turn(&context.limiter), if !paused => Happened::Turn(queue),
            permits = turns.next(lease), if complete => Happened::Permit(permits),
            _ = lease.live(), if poison.has_noted() => Happened::Permit(None),
        }
    }

    /// Takes in something that happened.
    pub(in crate::consumer) async fn take_in(&mut self, happened: Happened, settler: &mut Settler) {
        match happened {
            Happened::Ended(ended) => self.ended(ended, settler),
            Happened::Turn(queue) => self.queues.unblock(queue),
            Happened::Permit(Some(permits)) => {
                // Lets others that have just released a permit queue up again before we start.
                tokio::task::yield_now().await;
                if !self.pause.is_on()
                    && self.lease.is_live(Instant::now())
                    && !self.lease.revoked().is_cancelled()
                {
                    let unit = self.picked.take();
                    self.start(unit, permits, settler);
                }
            }
            // The lease can be relied on again, or is lost, which the worker notices by itself.
            Happened::Permit(None) | Happened::Pause => {}
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
            _ if !self.lease.keeps_order() => false,
            RetryOrder::Skip => false,
            RetryOrder::BlockKey => job.key().is_some(),
            RetryOrder::BlockPartition => true,
        }
    }

    /// Picks the jobs that start next, and blocks the queues that have to wait.
    fn pick(&mut self, settler: &mut Settler) {
        while !self.picked.is_full() {
            let first = self.picked.is_empty();
            let next = if first { self.queues.next() } else { self.queues.next_in_batch() };
            let Some((ticket, job)) = next else { break };
            let receipt = job.receipt;
            if self.retry_timers.is_over(receipt, Instant::now) {
                if !first && job.candidate.is_some() {
                    // In a batch of several, the culprit could not be told apart.
                    self.queues.put_back(ticket, job);
                    break;
                }
                if let Some((ticket, job)) = self.screen((ticket, job), settler) {
                    self.picked.push(ticket, job);
                }
                continue;
            }
            match self.queues.block(ticket, job) {
                Some(queue) => self.retry_timers.blocks(receipt, queue),
                // Another job of its queue is in this batch: it comes up again after that.
                None => break,
            }
        }
    }

    /// Returns a message that can start at once. A candidate is kept back until it can run alone, or it is given up.
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
                job.give_up(&self.context, &self.topic_partition, crashes);
                if let Some(epoch) = self.lease.epoch() {
                    // The leases before ours ended over this message, so other candidates need not run alone because of
                    // them.
                    limiter.explain(epoch);
                }
                self.finish(vec![(ticket, job)], settler);
                return None;
            }
            Plan::Alone if !self.poison.tries(receipt) => {
                // `None`: another message of its queue runs. It is then put back and comes up again.
                if let Some(queue) = self.queues.block(ticket, job) {
                    self.poison.waits(receipt, queue, newest);
                }
                return None;
            }
            Plan::Note | Plan::Alone => {}
        }
        Some((ticket, job))
    }

    /// Reports the number of blocked messages. Only with `BlockKey`: if the whole partition waits, reading on is no use.
    fn count_blocked(&mut self, in_flight: &mut InFlight) {
        if self.context.config.retry_order != RetryOrder::BlockKey {
            return;
        }
        if in_flight.set_blocked(self.queues.blocked()) && !self.warned {
            self.warned = true;
            let (topic_partition, group) = (&self.topic_partition, &self.context.group);
            let messages = self.queues.blocked();
            tracing::warn!(%topic_partition, %group, messages, "too many wait behind messages that failed: no more is read");
        }
    }

    /// Starts the candidates whose notes are written. They have permits, which others may wait for, unless they gave them up.
    fn start_noted(&mut self, settler: &mut Settler) {
        let paused = self.pause.is_on();
        while self.lease.is_live(Instant::now())
            && let Some(Noted { ticket, job, permits }) = self.poison.next()
        {
            match permits {
                Some(permits) if !paused => self.start(vec![(ticket, job)], permits, settler),
                _ => self.queues.put_back(ticket, job),
            }
        }
    }

    /// Passes jobs to a task.
    fn start(&mut self, unit: Unit, permits: Permits, settler: &mut Settler) {
        let task = self.context.status.task();
        if self.pause.is_on() {
            // Since a moment ago, and somebody may wait for the end of what runs.
            return unit.into_iter().for_each(|(ticket, job)| self.queues.put_back(ticket, job));
        }
        let SortedUnit { live: mut unit, uncertain, gone } = self.scopes.give(unit);
        uncertain.into_iter().for_each(|(ticket, job)| self.queues.put_back(ticket, job));
        for (ticket, job) in gone {
            self.poison.done(job.receipt);
            self.queues.done(ticket);
        }
        // A candidate is alone in its unit. Its handler starts when the note is written.
        if let Some((ticket, job)) = unit.pop_if(|(_, job)| job.needs_note()) {
            let (receipt, serial) = (job.receipt, job.serial);
            if let Some(note) = self.poison.notes(Noted { ticket, job, permits: Some(permits) }) {
                settler.add(receipt, serial, Settlement::Hold(note));
            }
            return;
        }
        if unit.is_empty() {
            return;
        }
        let (context, lease, shown) = (self.context.clone(), self.lease.clone(), self.shown.clone());
        let in_a_row =
            self.serial && lease.keeps_order() && matches!(context.handler, ErasedHandler::Each(_));
        if in_a_row {
            let row = Row::new(context, lease, self.pause.clone(), unit, self.early.0.clone());
            self.running.spawn(async move {
                let unit = row.run(&shown).await;
                drop((permits, task));
                unit
            });
            return;
        }
        // Without a lease on the partition, a message that did not begin may start again.
        let keep = self.context.keeps_messages() || !lease.keeps_order();
        self.running.spawn(async move {
            // It has waited for a thread, and the lease may be lost meanwhile.
            if !lease.lost().is_cancelled() {
                handle(&context, &shown, &mut unit, keep).await;
            }
            drop((permits, task));
            unit
        });
    }

    /// Gives up what this partition waits for: nothing more is to start. Handlers that run may go on for long, and other
    /// partitions must not wait for a permit that this one would get meanwhile.
    pub(in crate::consumer) fn stop(&mut self) {
        self.turns.leave();
        self.poison.leave();
    }

    /// Aborts the handlers, and waits for their end.
    pub(in crate::consumer) async fn abort(&mut self) {
        self.running.shutdown().await;
    }

    /// Removes the messages whose handlers do not run. Returns their receipts and serial numbers.
    pub(in crate::consumer) fn drain(&mut self) -> Vec<(Receipt, u64)> {
        let noted = self.poison.drain().into_iter().map(|Noted { ticket, job, .. }| (ticket, job));
        for (ticket, job) in self.picked.take().into_iter().chain(noted) {
            self.queues.put_back(ticket, job);
        }
        self.queues.drain().into_iter().map(|job| (job.receipt, job.serial)).collect()
    }

    fn ended(&mut self, ended: Result<Unit, String>, settler: &mut Settler) {
        match ended {
            Ok(unit) => self.finish(unit, settler),
            Err(panic) => {
                // Panics of handlers are caught where they are called, so this one is a defect of ours.
                tracing::error!(panic, "handling a message ended abnormally");
                self.lease.revoke();
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
        if !self.scopes.decided(&job) {
            self.poison.done(job.receipt);
            self.queues.done(ticket);
            return false;
        }
        let in_place = self.waits_in_place(&job);
        let (settlement, handled) =
            job.conclude(&self.context, &self.topic_partition, verdict, &self.clock, in_place);
        let (receipt, serial) = (job.receipt, job.serial);
        self.poison.done(receipt);
        match &settlement {
            Settlement::Hold(note) => {
                let after = job.holds(note, &self.clock);
                self.retry_timers.after_note(receipt, after);
                // Not blocked here: others of its queue may still run in the same batch. The queue is blocked when the job is
                // next and its time has not come.
                self.queues.put_back(ticket, job);
            }
            _ => self.queues.done(ticket),
        }
        settler.add(receipt, serial, settlement);
        handled == Handled::Acked
    }
}
