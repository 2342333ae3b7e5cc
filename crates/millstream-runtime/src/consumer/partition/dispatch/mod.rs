//! Dispatcher: passes the messages of one partition to handlers, with the configured concurrency and order.

mod asks;
mod bodies;
mod cancels;
mod ending;
pub(in crate::consumer) mod gate;
pub(in crate::consumer) mod job;
pub(in crate::consumer) mod key_queues;
pub(in crate::consumer) mod limits;
pub(in crate::consumer) mod picked;
pub(in crate::consumer) mod ready;
pub(in crate::consumer) mod retry_timers;
pub(in crate::consumer) mod row;
pub(in crate::consumer) mod running;
pub(in crate::consumer) mod scopes;
mod starting;

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::TopicPartition;
use millstream_core::log::Receipt;
use millstream_engine::Runners;
use millstream_engine::fairness::TenantId;
use millstream_engine::priorities::Rank;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::partition::dispatch::asks::Asks;
use crate::consumer::partition::dispatch::bodies::Bodies;
use crate::consumer::partition::dispatch::cancels::{CancelDesk, CancelNews};
use crate::consumer::partition::dispatch::gate::{Answered, Gate};
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::{Grouping, KeyQueue, KeyQueues, Owner, Ticket};
use crate::consumer::partition::dispatch::limits::{Permits, Turns};
use crate::consumer::partition::dispatch::picked::Picked;
use crate::consumer::partition::dispatch::ready::Ready;
use crate::consumer::partition::dispatch::retry_timers::RetryTimers;
use crate::consumer::partition::dispatch::running::RunningUnits;
use crate::consumer::partition::dispatch::scopes::Scopes;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::leases::WorkerLease;
use crate::consumer::partition::leases::entry_lease::Admitted;
use crate::consumer::partition::poison::{Noted, Poison};
use crate::consumer::partition::server_clock::ServerClock;
use crate::consumer::partition::settle::Settler;
use crate::consumer::partition::source::Read;
use crate::consumer::pauses::Pause;

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
    /// A request for units of limits is answered.
    Answered(Answered),
    /// The partition is paused now, or no longer.
    Pause,
    /// Bodies were read again.
    Bodies(Vec<TenantId>),
    /// Something happened to cancelled messages.
    Cancelled(CancelNews),
}

/// The messages of one partition that are read and not settled, and the tasks that handle them.
pub(in crate::consumer) struct Dispatcher {
    context: Arc<Subscription>,
    topic_partition: TopicPartition,
    lease: WorkerLease,
    scopes: Scopes,
    cancels: CancelDesk,
    clock: Arc<ServerClock>,
    queues: KeyQueues<Box<Job>>,
    retry_timers: RetryTimers,
    poison: Poison,
    /// With fairness or priorities, if the partition has an owner: others read no further ahead than they handle.
    bodies: Option<Bodies>,
    picked: Picked,
    /// If the consumer has limits.
    gate: Option<Gate>,
    /// Permits for handlers that are free, while messages ask for units of limits.
    turn: Option<Permits>,
    /// Messages of which it is not known whether their units of limits were lost: then what came of them does not count.
    unsure: Unit,
    /// Whether the lease could not be relied on when units of limits would have been asked for.
    uncertain_lease: bool,
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
    /// Whether a message was seen whose lane does not exist.
    warned_of_lane: bool,
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
        let shown = context.running.add(topic_partition.partition);
        let in_turns = config.read_ahead().is_some();
        let asks = || in_turns.then(|| Asks::new(config.priorities.as_ref()));
        let ready = if in_turns { Ready::fair(config.priorities.as_ref()) } else { Ready::default() };
        let cancels = CancelDesk::new(&context, &topic_partition, lease.clone());
        let cancelled = cancels.cancelled().clone();
        Self {
            scopes: Scopes::new(context.context.clone(), topic_partition.clone(), lease.clone(), cancelled),
            cancels,
            queues: KeyQueues::new(grouping, concurrency, ready),
            retry_timers: RetryTimers::default(),
            poison: Poison::new(&context, &lease),
            bodies: Some(())
                .filter(|()| in_turns && at_once.is_none())
                .and_then(|()| Bodies::new(&context, &topic_partition)),
            picked: Picked::new(&context.handler, grouping, context.permits.is_some()),
            turn: None,
            unsure: Vec::new(),
            uncertain_lease: false,
            gate: context
                .permits
                .as_ref()
                .map(|pool| Gate::new(pool, &context.observer, concurrency == 1, asks(), &shown)),
            running: Runners::new(),
            shown,
            early: mpsc::unbounded_channel(),
            turns: Turns::new(&context.limiter, at_once),
            pause: context.pauses.of(&topic_partition),
            serial: concurrency == 1,
            warned: false,
            warned_of_lane: false,
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

    /// Whether no handler runs, and what came of all of them is known.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.unsure.is_empty() && self.cancels.is_idle()
    }

    /// Takes in messages that were read.
    pub(in crate::consumer) fn read(&mut self, read: Read, settler: &mut Settler) {
        let (now, context) = (Instant::now(), self.context.clone());
        let config = &context.config;
        let Read { entries, candidates } = read;
        let in_turns = config.read_ahead().is_some();
        if !self.lease.keeps_order() && entries.iter().any(|it| it.entry.deliveries > 1) {
            self.cancels.look_again();
        }
        for Admitted { entry, serial } in entries {
            let candidate = candidates.candidate(&entry, config.crash_limit);
            let mut job = Box::new(Job::new(entry, serial, &config.limits, candidate, now));
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
            // Of what waits for long, a copy: its own would keep what was read with it.
            let copied = |key: &Bytes| {
                if in_turns { Bytes::copy_from_slice(key) } else { key.clone() }
            };
            let key = if self.queues.is_by_key() { job.key().map(copied) } else { None };
            let owner = if in_turns { self.owner_of(&mut job) } else { Owner::default() };
            self.queues.push(key.as_ref(), owner, job.size(), job);
        }
    }

    /// Returns whose a message is that was read, which waits now, and drops its body if it will wait for long.
    fn owner_of(&mut self, job: &mut Job) -> Owner {
        let (context, waiting) = (&self.context, self.queues.waiting());
        let (config, observer) = (&context.config, &*context.observer);
        let (tenant, cost) = match (&config.fairness, job.message()) {
            (Some(fairness), Some(message)) => fairness.of(message, observer),
            (Some(fairness), None) => fairness.of_nobody(),
            (None, _) => (Bytes::new(), None),
        };
        let lane = match (&config.priorities, job.message()) {
            (Some(priorities), Some(message)) => priorities.lane_of(message).unwrap_or_else(|lane| {
                if !std::mem::replace(&mut self.warned_of_lane, true) {
                    let (topic_partition, group, id) =
                        (&self.topic_partition, &context.group, job.receipt.id);
                    tracing::warn!(%topic_partition, %group, %id, "a message names a lane that this consumer has not");
                }
                lane
            }),
            (Some(priorities), None) => priorities.lane_otherwise(),
            (None, _) => 0,
        };
        let rank = Rank { lane, came: job.receipt.id.ms };
        let weight = || config.fairness.as_ref().map_or(1, |fairness| fairness.weight_of(&tenant, observer));
        let ready = self.queues.ready();
        let tenant = ready.enter(&tenant, rank, weight);
        if self.bodies.is_some() {
            let gate = self.gate.as_ref();
            Bodies::drop_one(job, ready.waiting(tenant, lane), waiting, |job| gate?.keys_of(job));
        }
        Owner { tenant, cost, rank }
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
        while let Some(answer) = self.gate.as_mut().and_then(Gate::try_next) {
            self.answered(answer);
        }
        if let Some(bodies) = &mut self.bodies {
            bodies.advance(Instant::now());
            if let Some(gate) = self.gate.as_mut().filter(|_| bodies.is_failing()) {
                // What waits for bodies keeps no units from others.
                gate.give_back();
            }
        }
        self.take_marks();
        while self.cancels.is_read() && self.scopes.is_certain_again() {
            if self.has_nothing_in_hand() {
                return;
            }
            self.pick(settler, in_flight);
            self.count_blocked(in_flight);
            if self.pause.is_on() {
                // While we are paused, other partitions get our positions in the queues.
                return self.stop();
            }
            let now = Instant::now();
            if let Some(gate) = &mut self.gate {
                // What could not start now is for others.
                if !self.turns.has_room() && self.turn.is_none() || self.queues.room() == 0 {
                    gate.give_back();
                }
                if gate.asking() == 0 && !self.picked.is_complete(now) {
                    self.turn = None;
                }
            }
            if !self.picked.is_complete(now) || !self.lease.is_live(now) {
                return;
            }
            let Some(permits) = self.turn.take().or_else(|| self.turns.at_once()) else { return };
            let unit = self.picked.take();
            self.start(unit, permits, settler);
        }
        if let Some(gate) = &mut self.gate {
            // It is not certain that entries are still ours.
            gate.give_back();
            self.turn = None;
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
        if !self.unsure.is_empty() {
            let unsure = std::mem::take(&mut self.unsure);
            self.finish(unsure, settler);
        }
    }

    /// Returns when something is to be done although nothing else happens.
    pub(in crate::consumer) fn wakes(&mut self) -> Option<Instant> {
        let filled = if self.pause.is_on() { None } else { self.picked.full_at() };
        let bodies = self.bodies.as_ref().and_then(Bodies::wakes);
        self.retry_timers.next().into_iter().chain(filled).chain(bodies).min()
    }

    /// Waits until something happens. Cancel safe.
    pub(in crate::consumer) async fn changed(&mut self) -> Happened {
        let paused = self.pause.is_on();
        if paused {
            // Since a moment ago.
            self.stop();
        }
        let may_start = !paused && !self.is_uncertain() && self.cancels.is_read();
        let complete = may_start && self.picked.is_complete(Instant::now());
        let turn = complete && self.turn.is_none() || may_start && self.wants_turn();
        if !turn && self.gate.is_some() && self.turns.is_waiting() {
            // A permit that it got now would be used by nobody.
            self.turns.leave();
        }
        let Self {
            pause,
            early,
            running,
            poison,
            bodies,
            turns,
            lease,
            context,
            gate,
            unsure,
            uncertain_lease,
            cancels,
            ..
        } = self;
        let read = async {
            match bodies {
                Some(bodies) => bodies.read().await,
                None => std::future::pending().await,
            }
        };
        let unsure = !unsure.is_empty();
        let answered = async {
            match gate {
                Some(gate) => gate.next(unsure).await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            () = pause.until(!paused) => Happened::Pause,
            // Before handlers: it goes on only while it is polled.
            read = read => Happened::Bodies(read),
            news = cancels.changed() => Happened::Cancelled(news),
            Some(unit) = early.1.recv() => Happened::Ended(Ok(unit)),
            Some(ended) = running.next() => Happened::Ended(ended),
            queue = poison.turn(&context.limiter), if !paused => Happened::Turn(queue),
            Some(happened) = answered => happened,
            permits = turns.next(lease), if turn => Happened::Permit(permits),
            _ = lease.live(), if poison.has_noted() || *uncertain_lease => Happened::Permit(None),
        }
    }

    /// Takes in something that happened.
    pub(in crate::consumer) async fn take_in(&mut self, happened: Happened, settler: &mut Settler) {
        match happened {
            Happened::Ended(ended) => self.ended(ended, settler),
            Happened::Turn(queue) => self.queues.unblock(queue),
            Happened::Answered(answered) => self.answered(answered),
            Happened::Cancelled(news) => self.cancelled(news, settler),
            Happened::Bodies(tenants) => {
                tenants.into_iter().for_each(|tenant| self.queues.ready().release(tenant));
            }
            Happened::Permit(Some(permits)) => {
                // Lets others that have just released a permit queue up again before we start.
                tokio::task::yield_now().await;
                if !self.pause.is_on()
                    && self.lease.is_live(Instant::now())
                    && !self.lease.revoked().is_cancelled()
                {
                    if self.picked.is_empty() {
                        // Messages ask for units of limits while they hold it.
                        self.turn = Some(permits);
                        return;
                    }
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
        let Self { early, running, gate, unsure, cancels, .. } = self;
        let waits = !running.is_empty() || !cancels.is_idle();
        let changed = async {
            match gate {
                Some(gate) if !unsure.is_empty() => gate.changed().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(unit) = early.1.recv() => Some(Happened::Ended(Ok(unit))),
            () = changed => Some(Happened::Permit(None)),
            // Handlers may still be asked, and messages wait for their answers.
            news = cancels.changed(), if waits => Some(Happened::Cancelled(news)),
            ended = running.next(), if !running.is_empty() || unsure.is_empty() && !waits => ended.map(Happened::Ended),
        }
    }

    /// Gives up what this partition waits for: nothing more is to start. Handlers that run may go on for long, and other
    /// partitions must not wait for a permit that this one would get meanwhile.
    pub(in crate::consumer) fn stop(&mut self) {
        self.turns.leave();
        self.turn = None;
        self.poison.leave();
        if let Some(gate) = &mut self.gate {
            for queue in gate.clear() {
                self.queues.unblock(queue);
            }
            for (ticket, job) in self.picked.take() {
                self.put_back(ticket, job);
            }
        }
    }

    /// Forgets what came of messages while it was not known whether it counts.
    pub(in crate::consumer) fn forget_unsure(&mut self) {
        self.unsure.clear();
    }

    /// Aborts the handlers, and waits for their end.
    pub(in crate::consumer) async fn abort(&mut self) {
        self.running.shutdown().await;
    }

    /// Removes the messages whose handlers do not run. Returns their receipts and serial numbers.
    pub(in crate::consumer) fn drain(&mut self) -> Vec<(Receipt, u64)> {
        let noted = self.poison.drain().into_iter().map(|Noted { ticket, job, .. }| (ticket, job));
        for (ticket, job) in self.picked.take().into_iter().chain(noted) {
            self.put_back(ticket, job);
        }
        self.queues.drain().into_iter().map(|job| (job.receipt, job.serial)).collect()
    }
}
