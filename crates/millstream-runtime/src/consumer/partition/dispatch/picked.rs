//! The jobs that start next: one, a batch that is being filled, or a row.

use std::time::Duration;

use tokio::time::Instant;

use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::{Grouping, Ticket};
use millstream_engine::handler::ErasedHandler;

/// Maximum number of messages that a task handles one after the other before their results are used: enough that the
/// switches between tasks cost little for each message.
const ROW: usize = 256;

/// The jobs that start next.
pub(in crate::consumer) struct Picked {
    jobs: Unit,
    /// Maximum number of them.
    size: usize,
    /// How long a batch waits for more.
    wait: Duration,
    /// When the batch starts even if it is not full.
    full_at: Instant,
}

impl Picked {
    /// `limited`: each message waits for units of its own, so that none starts with others.
    pub(in crate::consumer) fn new(handler: &ErasedHandler, grouping: Grouping, limited: bool) -> Self {
        let (size, wait) = match handler {
            // In one queue, a row has the order of the log.
            ErasedHandler::Each(_) if grouping == Grouping::Partition && !limited => (ROW, Duration::ZERO),
            ErasedHandler::Each(_) => (1, Duration::ZERO),
            ErasedHandler::Batch(batch, _) => (batch.size, batch.wait),
        };
        Self { jobs: Vec::new(), size, wait, full_at: Instant::now() }
    }

    /// Returns the number of messages of one unit.
    pub(in crate::consumer) fn size(&self) -> usize {
        self.size
    }

    pub(in crate::consumer) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(in crate::consumer) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether no more may be added. A candidate runs alone, never with others in a batch or a row.
    pub(in crate::consumer) fn is_full(&self) -> bool {
        self.jobs.len() >= self.size || self.jobs.first().is_some_and(|(_, job)| job.candidate.is_some())
    }

    /// Whether they may start.
    pub(in crate::consumer) fn is_complete(&self, now: Instant) -> bool {
        !self.is_empty() && (self.wait.is_zero() || self.is_full() || now >= self.full_at)
    }

    /// Returns when they may start, if they are waiting for more.
    pub(in crate::consumer) fn full_at(&self) -> Option<Instant> {
        (!self.is_empty() && !self.is_complete(Instant::now())).then_some(self.full_at)
    }

    pub(in crate::consumer) fn push(&mut self, ticket: Ticket, job: Box<Job>) {
        if self.is_empty() && !self.wait.is_zero() {
            self.full_at = Instant::now() + self.wait;
        }
        self.jobs.push((ticket, job));
    }

    pub(in crate::consumer) fn take(&mut self) -> Unit {
        std::mem::take(&mut self.jobs)
    }
}
