//! What starts next: messages are picked in their order, have what they need, and are passed to tasks.

use std::sync::Arc;

use millstream_core::Settlement;
use millstream_core::limits::PermitKey;
use tokio::time::Instant;

use crate::consumer::RetryOrder;
use crate::consumer::partition::dispatch::Dispatcher;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::asks::Later;
use crate::consumer::partition::dispatch::bodies::{Bodies, Body};
use crate::consumer::partition::dispatch::ending::is_gone;
use crate::consumer::partition::dispatch::gate::Pass;
use crate::consumer::partition::dispatch::gate::{Answered, Asker, Gate};
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::job::handle;
use crate::consumer::partition::dispatch::key_queues::Ticket;
use crate::consumer::partition::dispatch::limits::Permits;
use crate::consumer::partition::dispatch::row::Row;
use crate::consumer::partition::dispatch::scopes::SortedUnit;
use crate::consumer::partition::in_flight::{InFlight, Load};
use crate::consumer::partition::poison::Noted;
use crate::consumer::partition::poison::Plan;
use crate::consumer::partition::settle::Settler;
use millstream_engine::handler::ErasedHandler;
use millstream_engine::handler::Said;
use millstream_engine::handler::Verdict;
use millstream_engine::limits::Begun;

impl Dispatcher {
    /// Picks the jobs that start next, and blocks the queues that have to wait.
    pub(super) fn pick(&mut self, settler: &mut Settler, in_flight: &mut InFlight) {
        while !self.picked.is_full() && self.may_ask() {
            let first = self.picked.is_empty();
            let next = if first { self.queues.next() } else { self.queues.next_in_batch() };
            let Some((ticket, mut job)) = next else {
                if self.let_ask() {
                    continue;
                }
                break;
            };
            let (receipt, serial) = (job.receipt, job.serial);
            if self.cancels.has(&job) {
                if !first && self.queues.is_one() {
                    // What is behind it would come before it, if it is not cancelled after all.
                    self.put_back(ticket, job);
                    break;
                }
                if is_gone(&self.lease, &job) {
                    self.poison.done(receipt);
                    self.queues.done(ticket, None);
                    continue;
                }
                self.gate.as_mut().and_then(|gate| gate.leave((receipt, serial)));
                self.passes((receipt, serial));
                self.retry_timers.end(receipt);
                self.cancels.hold(ticket, job, false);
                continue;
            }
            if self.retry_timers.is_over(receipt, Instant::now) {
                if !first && job.candidate.is_some() {
                    // In a batch of several, the culprit could not be told apart.
                    self.put_back(ticket, job);
                    break;
                }
                let tenant = ticket.tenant();
                if job.is_bare()
                    && let Some(key) = self.gate.as_mut().and_then(|gate| gate.is_full(&job, tenant))
                {
                    if self.ask_later((ticket, job), key) {
                        continue;
                    }
                    break;
                }
                let body = self.bodies.as_mut().map(|bodies| bodies.restore(&mut job, tenant));
                match body.unwrap_or(Body::There) {
                    Body::There => {}
                    Body::Coming => {
                        self.put_back(ticket, job);
                        self.queues.ready().hold(tenant);
                        continue;
                    }
                    Body::Later => {
                        self.put_back(ticket, job);
                        break;
                    }
                    Body::Gone => {
                        self.queues.done(ticket, None);
                        self.passes((receipt, serial));
                        in_flight.read_again(receipt);
                        continue;
                    }
                }
                let ticket = ticket.of_bytes(job.size());
                // One that is given up needs nothing.
                let gives_up = job.candidate.as_ref().is_some_and(|it| matches!(it.plan, Plan::GiveUp(_)));
                if gives_up {
                    self.passes((receipt, serial));
                }
                let pass = |gate: &mut Gate| gate.pass(&mut job, tenant);
                match self.gate.as_mut().filter(|_| !gives_up).map_or(Pass::Go, pass) {
                    Pass::Go => {
                        self.let_ask();
                    }
                    Pass::Wait => {
                        self.let_ask();
                        match (self.queues.block(ticket, job), &mut self.gate) {
                            (Some(queue), Some(gate)) => {
                                gate.blocks((receipt, serial), queue);
                                continue;
                            }
                            // As below.
                            _ => break,
                        }
                    }
                    Pass::Later(key) => {
                        if self.ask_later((ticket, job), key) {
                            continue;
                        }
                        // As below.
                        break;
                    }
                    Pass::Drop(key) => {
                        job.said = Some(Said::Own(Verdict::OverLimit(key)));
                        self.finish(vec![(ticket, job)], settler);
                        continue;
                    }
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

    /// Blocks the queue of a message whose tenant asks for enough of a key, until it asks for less. False if another message of its queue is in
    /// this batch: it comes up again after that.
    fn ask_later(&mut self, (ticket, mut job): (Ticket, Box<Job>), key: PermitKey) -> bool {
        let (asker, tenant) = ((job.receipt, job.serial), ticket.tenant());
        let (number, rank) = ticket.place();
        if self.poison.tries(job.receipt) {
            // It may wait for long. Others that have to run alone need not wait for that.
            self.poison.done(job.receipt);
        }
        let keys = match &job.asks {
            Some(keys) if job.is_bare() => keys.clone(),
            _ => self.gate.as_ref().and_then(|gate| gate.keys_of(&job)).unwrap_or_default(),
        };
        let of_tenant = self.queues.ready().waiting(tenant, rank.lane);
        if self.bodies.is_some() && Bodies::is_too_much(&job, of_tenant, self.queues.waiting()) {
            job.asks = Some(keys.clone());
            job.drop_body();
        }
        let ticket = ticket.of_bytes(job.size());
        let queue = self.queues.block(ticket, job);
        if let (Some(queue), Some(gate)) = (queue, &mut self.gate) {
            let later = Later { asker, number, rank, keys, queue, was_next: false };
            gate.asks_later(tenant, key, later);
        }
        self.let_ask();
        queue.is_some()
    }

    /// Takes in which messages are cancelled, and says of those that have not begun that they will not.
    pub(super) fn take_marks(&mut self) {
        let (mut new, new_batches) = self.cancels.take_new();
        if new.is_empty() && !new_batches {
            return;
        }
        let mut over = Vec::new();
        let lease = &self.lease;
        if new_batches {
            // They need no answer.
            let ours =
                self.queues.items().filter(|job| self.cancels.is_of_batch(job) && !is_gone(lease, job));
            over.extend(ours.map(|job| (job.receipt, job.serial, job.origin)));
        }
        let ours = |job: &Job| new.contains(&job.origin) && !is_gone(lease, job);
        for job in self.queues.items().map(|job| &**job).filter(|job| ours(job)) {
            over.push((job.receipt, job.serial, job.origin));
            self.cancels.answer_for(job, false);
        }
        for (receipt, serial, origin) in over {
            new.remove(&origin);
            // It waits neither for its next attempt nor for limits, so that others behind it go on.
            let of_gate = self.gate.as_mut().and_then(|gate| gate.leave((receipt, serial)));
            for queue in self.retry_timers.end(receipt).into_iter().chain(of_gate) {
                self.queues.unblock(queue);
            }
        }
        self.cancels.answer_ahead(new);
    }

    /// Records that a message does not ask for units of limits. Others may, which waited for it to do so.
    fn passes(&mut self, asker: Asker) {
        if let Some(gate) = &mut self.gate {
            gate.passes(asker);
        }
        self.let_ask();
    }

    /// Lets messages ask for units of limits of which their tenants ask for less now. Returns whether there are any.
    fn let_ask(&mut self) -> bool {
        let freed = self.gate.as_mut().map(Gate::take_freed).unwrap_or_default();
        let any = !freed.is_empty();
        freed.into_iter().for_each(|queue| self.queues.unblock(queue));
        any
    }

    /// With limits: while nothing may start, nothing is asked for, and what was granted is given back. True if so.
    pub(super) fn has_nothing_in_hand(&mut self) -> bool {
        self.uncertain_lease = false;
        if self.gate.is_none() {
            return false;
        }
        self.uncertain_lease = !self.lease.is_live(Instant::now());
        let nothing = self.pause.is_on() || self.uncertain_lease;
        if nothing {
            self.stop();
        }
        nothing
    }

    /// Whether what is picked next could start, with the units of limits that it asks for. Nobody takes units that it cannot use.
    fn may_ask(&self) -> bool {
        self.gate.is_none() || self.could_ask() && (self.turn.is_some() || self.turns.has_room())
    }

    /// The same, if a handler were free.
    fn could_ask(&self) -> bool {
        let Some(gate) = &self.gate else { return false };
        let (picked, size) = (self.picked.len(), self.picked.size());
        let begun = if picked > 0 { size } else { 0 };
        // With one handler permit, and no other that is free, one unit.
        let last = self.turn.is_some() && !self.turns.has_room();
        let room = if last { size } else { self.queues.room() * size + begun };
        !gate.is_first_waiting() && gate.asking() + picked < room
    }

    /// Whether messages wait for a handler, to ask for units of limits.
    pub(super) fn wants_turn(&self) -> bool {
        // What was granted may wait for the bodies of its tenant: then a handler would wait with it.
        let has_granted = self.bodies.is_none() && self.gate.as_ref().is_some_and(Gate::has_granted);
        let has_any = has_granted || self.queues.has_ready();
        let could = self.queues.room() > 0 && has_any && self.could_ask();
        could && self.picked.is_empty() && self.turn.is_none()
    }

    /// Takes in an answer to a request for units of limits.
    pub(super) fn answered(&mut self, answered: Answered) {
        match self.gate.as_mut().and_then(|gate| gate.take_in(answered)) {
            Some((_, Some(queue))) => self.queues.unblock(queue),
            // It waits for long. Others that have to run alone need not wait for that.
            Some((receipt, None)) if self.poison.tries(receipt) => self.poison.done(receipt),
            _ => {}
        }
        self.let_ask();
    }

    /// Puts a message back to its position. It comes up again, and asks again for units of limits.
    pub(super) fn put_back(&mut self, ticket: Ticket, mut job: Box<Job>) {
        job.permit = None;
        self.queues.put_back(ticket, job, None);
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
            // With units it need not wait for its turn if nobody else does.
            Plan::Alone if job.permit.is_some() && self.poison.tries_at_once(receipt) => {}
            Plan::Alone if !self.poison.tries(receipt) => {
                // Nobody holds one thing and waits for another.
                job.permit = None;
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

    /// Reports the number of messages that wait in place. Only with `BlockKey`: if the whole partition waits, reading on is no use. With
    /// fairness or priorities that is all that wait: behind them there may be one whose turn it is.
    pub(super) fn count_blocked(&mut self, in_flight: &mut InFlight) {
        if self.context.config.read_ahead().is_some() {
            if in_flight.set_blocked(self.queues.waiting()) && !self.warned && self.lease.keeps_order() {
                self.warned = true;
                let (topic_partition, group) = (&self.topic_partition, &self.context.group);
                let tenant = self.queues.ready().largest().map(|it| (it.tenant, it.waiting));
                tracing::warn!(%topic_partition, %group, ?tenant, "too many wait: others behind them wait too, since no more is read");
            }
            return;
        }
        let blocks = self.context.config.retry_order == RetryOrder::BlockKey || self.gate.is_some();
        if !blocks || self.queues.is_one() {
            return;
        }
        if in_flight.set_blocked(self.queues.blocked()) && !self.warned {
            self.warned = true;
            let (topic_partition, group) = (&self.topic_partition, &self.context.group);
            let Load { items: messages, bytes } = self.queues.blocked();
            tracing::warn!(%topic_partition, %group, messages, bytes, "too many wait for limits, or behind messages that failed: no more is read");
        }
    }

    /// Starts the candidates whose notes are written. They have permits, which others may wait for, unless they gave them up.
    pub(super) fn start_noted(&mut self, settler: &mut Settler) {
        let paused = self.pause.is_on();
        while self.lease.is_live(Instant::now())
            && let Some(Noted { ticket, job, permits }) = self.poison.next()
        {
            match permits {
                Some(permits) if !paused => self.start(vec![(ticket, job)], permits, settler),
                _ => self.put_back(ticket, job),
            }
        }
    }

    /// Passes jobs to a task.
    pub(super) fn start(&mut self, unit: Unit, permits: Permits, settler: &mut Settler) {
        let task = self.context.status.task();
        if self.pause.is_on() {
            // Since a moment ago, and somebody may wait for the end of what runs.
            return unit.into_iter().for_each(|(ticket, job)| self.put_back(ticket, job));
        }
        let SortedUnit { live: mut unit, uncertain, gone } = self.scopes.give(unit);
        uncertain.into_iter().for_each(|(ticket, job)| self.put_back(ticket, job));
        for (ticket, job) in gone {
            self.poison.done(job.receipt);
            self.queues.done(ticket, None);
        }
        // A candidate is alone in its unit. Its handler starts when the note is written.
        if let Some((ticket, job)) = unit.pop_if(|(_, job)| job.needs_note()) {
            let (receipt, serial) = (job.receipt, job.serial);
            if let Some(note) = self.poison.notes(Noted { ticket, job, permits: Some(permits) }) {
                settler.add(receipt, serial, Settlement::Hold(note));
            }
            return;
        }
        if unit.iter().any(|(_, job)| self.cancels.has(job)) {
            // All of it, as below: they come up again at once, and those that are cancelled are dropped.
            return unit.into_iter().for_each(|(ticket, job)| {
                self.poison.done(job.receipt);
                self.put_back(ticket, job);
            });
        }
        if unit.is_empty() {
            return;
        }
        // All of it, so that none passes another.
        let late =
            |(_, job): &(Ticket, Box<Job>)| job.permit.as_ref().is_some_and(|permit| !permit.is_live());
        if self.gate.is_some() && unit.iter().any(late) {
            return unit.into_iter().for_each(|(ticket, job)| self.put_back(ticket, job));
        }
        for (_, job) in &mut unit {
            if let (Some(permit), Some(scope)) = (&mut job.permit, &job.scope) {
                job.scope = Some(match permit.begin() {
                    Begun { spent: None, superseded: None } => self.scopes.with_units(scope, permit.right()),
                    begun => Arc::new(scope.with_units(permit.right().clone()).with_begun(begun)),
                });
            }
        }
        let (context, lease, shown) = (self.context.clone(), self.lease.clone(), self.shown.clone());
        let in_a_row = self.gate.is_none()
            && self.serial
            && lease.keeps_order()
            && matches!(context.handler, ErasedHandler::Each(_));
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
}
