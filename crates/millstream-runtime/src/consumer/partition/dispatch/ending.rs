//! What came of messages that tasks have returned.

use millstream_core::Settlement;
use millstream_core::event::Handled;
use millstream_core::panics::discard;

use crate::consumer::RetryOrder;
use crate::consumer::partition::dispatch::Dispatcher;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::cancels::CancelNews;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::Ticket;
use crate::consumer::partition::leases::entry_lease::Live;
use crate::consumer::partition::leases::{SharedPartition, WorkerLease};
use crate::consumer::partition::settle::Settler;
use crate::report::Counts;
use millstream_engine::handler::{Said, Verdict};
use millstream_engine::limits::Permit;

impl Dispatcher {
    pub(super) fn ended(&mut self, ended: Result<Unit, String>, settler: &mut Settler) {
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
    pub(super) fn finish(&mut self, unit: Unit, settler: &mut Settler) {
        let mut acked = 0;
        for (ticket, mut job) in unit {
            let counts = job.permit.as_ref().map_or(Some(true), Permit::counts);
            match job.said.take() {
                Some(said) if counts.is_none() => {
                    job.said = Some(said);
                    self.unsure.push((ticket, job));
                }
                Some(said) if counts == Some(false) => {
                    // Others may have been handled in its place: what came of it does not count, and it is handled again.
                    discard(said, &*self.context.observer);
                    self.poison.done(job.receipt);
                    job.permit = None;
                    let share = job.share.take();
                    self.queues.put_back(ticket, job, share);
                }
                // It does not come back: its handler was asked to stop, or it was not to begin.
                Some(said)
                    if !is_gone(&self.lease, &job)
                        && (matches!(said.verdict(), Verdict::Cancelled(_))
                            || self.cancels.has(&job) && said.verdict().may_be_cancelled()) =>
                {
                    let ran = !matches!(said.verdict(), Verdict::Cancelled(false));
                    job.said = Some(said);
                    self.cancels.hold(ticket, job, ran);
                }
                Some(said) => {
                    acked += usize::from(self.finish_one(ticket, job, said.verdict(), settler));
                    discard(said, &*self.context.observer);
                }
                // It was not handled: its row ended before its turn, or the consumer is about to end.
                None => self.put_back(ticket, job),
            }
        }
        if acked > 0 {
            // All partitions share this counter, so it is updated once per unit.
            Counts::add(&self.context.counts.acked, acked);
        }
    }

    /// Whether this message waits in place for its next attempt, with others behind it. A message without a key blocks no
    /// other, unless the whole partition waits.
    pub(super) fn waits_in_place(&self, job: &Job) -> bool {
        match self.context.config.retry_order {
            _ if !self.lease.keeps_order() => false,
            RetryOrder::Skip => false,
            RetryOrder::BlockKey => job.key().is_some(),
            RetryOrder::BlockPartition => true,
        }
    }

    /// Returns what reads which messages are cancelled. Nothing begins until it has done so; it runs for as long as the session.
    pub(in crate::consumer) fn watch_cancels(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.cancels.watch(&self.context, &self.topic_partition)
    }

    /// Takes in what happened to cancelled messages.
    pub(super) fn cancelled(&mut self, news: CancelNews, settler: &mut Settler) {
        let (held, is_confirmed) = match news {
            CancelNews::Confirmed(held) => (held, true),
            CancelNews::Gone(held) => (held, false),
            CancelNews::Lost(held) => {
                if self.lease.keeps_order() {
                    self.lease.lose();
                }
                for (ticket, job) in held {
                    self.poison.done(job.receipt);
                    self.queues.done(ticket, None);
                }
                return;
            }
            CancelNews::Marks => return self.take_marks(),
            CancelNews::Nothing => return,
        };
        for (ticket, mut job) in held {
            if is_confirmed {
                let said = job.cancel();
                said.into_iter().for_each(|said| discard(said, &*self.context.observer));
                self.settle_one(ticket, job, settler);
            } else if matches!(job.said.as_ref().map(Said::verdict), None | Some(Verdict::Cancelled(_))) {
                // It has not begun, and is not cancelled after all.
                job.said = None;
                self.put_back(ticket, job);
            } else {
                self.settle_one(ticket, job, settler);
            }
        }
    }

    fn settle_one(&mut self, ticket: Ticket, mut job: Box<Job>, settler: &mut Settler) {
        if let Some(said) = job.said.take() {
            let acked = self.finish_one(ticket, job, said.verdict(), settler);
            Counts::add(&self.context.counts.acked, usize::from(acked));
            discard(said, &*self.context.observer);
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
        let share = job.share.take();
        let judged =
            job.permit.take().and_then(|mut permit| verdict.replaced(&mut permit, &*self.context.observer));
        let verdict = judged.as_ref().unwrap_or(verdict);
        if !self.scopes.decided(&job) {
            self.poison.done(job.receipt);
            self.queues.done(ticket, share);
            return false;
        }
        // What waits for days lets others pass: its handler has said so.
        let in_place = !matches!(verdict, Verdict::Waits(_)) && self.waits_in_place(&job);
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
                job.drop_body_again();
                self.queues.put_back(ticket.of_bytes(job.size()), job, share);
            }
            _ => self.queues.done(ticket, share),
        }
        settler.add(receipt, serial, settlement);
        handled == Handled::Acked
    }
}

/// Whether somebody else has the entry of this message (shared mode).
pub(super) fn is_gone(lease: &WorkerLease, job: &Job) -> bool {
    let key = |entries: &SharedPartition| entries.key(job.receipt, job.serial);
    lease.entries().is_some_and(|entries| matches!(entries.leases.live(key(entries)), Live::Gone))
}
