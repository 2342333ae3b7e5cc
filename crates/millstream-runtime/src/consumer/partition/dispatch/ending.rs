//! What came of messages that tasks have returned.

use millstream_core::Settlement;
use millstream_core::event::Handled;
use millstream_core::panics::discard;

use crate::consumer::partition::dispatch::Dispatcher;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::Ticket;
use crate::consumer::partition::settle::Settler;
use crate::report::Counts;
use millstream_engine::handler::Verdict;
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
                job.drop_body_again();
                self.queues.put_back(ticket.of_bytes(job.size()), job, share);
            }
            _ => self.queues.done(ticket, share),
        }
        settler.add(receipt, serial, settlement);
        handled == Handled::Acked
    }
}
