//! The settle loop: writes settlements to the log in batches.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Receipt, Source};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::Triggers;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::settlement_buffer::Settlements;

/// Size from which a request is full: one script call handles this many, and one more batch of them, in less than a
/// millisecond.
const MAX_BATCH: usize = 500;

/// Settles the messages of one partition.
pub(in crate::consumer) struct Settler {
    pub(in crate::consumer) context: Arc<Subscription>,
    pub(in crate::consumer) guard: Arc<LeaseGuard>,
    pub(in crate::consumer) in_flight: Arc<InFlight>,
    pub(in crate::consumer) settlements: UnboundedReceiver<Settlements>,
    pub(in crate::consumer) triggers: Arc<Triggers>,
    /// To the dispatcher: receipts whose notes are written.
    pub(in crate::consumer) written: UnboundedSender<Receipt>,
    /// Settlements that are not written yet.
    pub(in crate::consumer) waiting: Settlements,
}

impl Settler {
    /// Settles until everything is settled and nothing more can come, the lease is lost, or the shutdown timeout is over.
    pub(in crate::consumer) async fn run(mut self) {
        let guard = self.guard.clone();
        let Ok((topic_partition, _)) = guard.lease().partition() else { return };
        let monitor = self.context.monitor_of("settle", topic_partition);
        while self.collect().await {
            monitor.begin_round(Duration::ZERO);
            let settled = tokio::select! {
                biased;
                settled = self.run_once() => settled,
                () = guard.lost().cancelled() => return,
            };
            match settled {
                Ok(()) => monitor.succeeded(&*self.context.observer),
                Err(error) if error.kind() == ErrorKind::Fenced => return guard.lose(),
                Err(error) => {
                    let pause = monitor.failed(&error, &*self.context.observer);
                    tokio::select! {
                    biased;
                            () = tokio::time::sleep(pause) => {}
                            () = self.context.kill.cancelled() => return,
                            () = guard.lost().cancelled() => return,
                        }
                }
            }
        }
    }

    /// Waits for something to settle. False if nothing is left and nothing more can come.
    async fn collect(&mut self) -> bool {
        if self.waiting.is_empty() {
            let first = tokio::select! {
                biased;
                first = self.settlements.recv() => first,
                () = self.guard.lost().cancelled() => None,
            };
            match first {
                Some(first) => self.waiting = first,
                None => return false,
            }
        }
        while self.waiting.len() < MAX_BATCH {
            let Ok(next) = self.settlements.try_recv() else { break };
            self.waiting.extend(next);
        }
        true
    }

    /// Settles one batch. Settlements that failed stay in `waiting`.
    async fn run_once(&mut self) -> Result<()> {
        let failed = self.settle(0).await;
        if let Err(error) = &failed
            && !error.is_transient()
            && error.kind() != ErrorKind::Fenced
        {
            // A dead letter that cannot be stored (its storage key holds somebody else's data, for example) must not
            // prevent the other messages from being acknowledged.
            // Acks are sorted last, so that they can be sent without the others.
            self.waiting.sort_by_key(|(_, settlement)| *settlement == Settlement::Ack);
            let others = self.waiting.iter().filter(|(_, settlement)| *settlement != Settlement::Ack).count();
            if others < self.waiting.len() {
                self.settle(others).await?;
            }
            if error.kind() == ErrorKind::GroupMissing {
                self.restore(error).await?;
            }
        }
        if self.waiting.is_empty() { Ok(()) } else { failed }
    }

    /// Restores a group that is gone, and with it the pending entries. It is created again below all of them, so messages
    /// that were to be retried or given up are read and handled again. Messages that wait in place stay there; their
    /// notes are written once the reader has read them again.
    async fn restore(&mut self, error: &Error) -> Result<()> {
        restore_group(&self.context, &self.guard, &self.in_flight, error).await?;
        let lost = self.waiting.extract_if(.., |waiting| is_kept(waiting)).map(|(receipt, _)| receipt);
        self.in_flight.hand_back(lost);
        Ok(())
    }

    /// Settles `waiting[from..]`.
    async fn settle(&mut self, from: usize) -> Result<()> {
        let lease = self.guard.lease();
        let asked = Instant::now();
        let settled = self.context.backend.log().settle(lease, &self.waiting[from..]).await?;
        let elapsed = asked.elapsed();
        let batch = self.waiting.split_off(from);
        let is_note = |settlement: &Settlement| matches!(settlement, Settlement::Hold(_));
        // A stale entry may have been settled long ago, or the group was just created again and has not delivered it yet.
        // An ack needs nothing more. A message that must be kept is not settled until that is known.
        let doubtful = |waiting: &(Receipt, Settlement)| settled.stale > 0 && is_kept(waiting);
        let done = batch.iter().filter(|waiting| !is_note(&waiting.1) && !doubtful(waiting));
        self.in_flight.settled(done.map(|(receipt, _)| *receipt));
        if settled.stale > 0 {
            let doubtful = batch.iter().filter(|waiting| doubtful(waiting));
            self.in_flight.hand_back(doubtful.map(|(receipt, _)| *receipt));
        }
        for (receipt, _) in batch.iter().filter(|(_, settlement)| is_note(settlement)) {
            // A closed channel means that the dispatcher has ended.
            let _ = self.written.send(*receipt);
        }
        self.triggers.settled();
        if batch.iter().any(|(_, settlement)| matches!(settlement, Settlement::Retry { .. })) {
            self.triggers.parked();
        }
        let (topic_partition, group) = lease.partition()?;
        if settled.stale > 0 {
            tracing::warn!(%topic_partition, %group, stale = settled.stale, "settled too late: not pending any more");
            // It may also have come too early: for a group that was just created again and has delivered the entry anew
            // since.
            self.in_flight.look_again();
        }
        self.context.observer.observe(&Event::Settled { topic_partition, group, settled, elapsed });
        Ok(())
    }
}

/// Whether the settlement moves an entry of the log elsewhere: if it were lost, nobody would read the entry again.
fn is_kept((receipt, settlement): &(Receipt, Settlement)) -> bool {
    let moves = matches!(settlement, Settlement::Retry { .. } | Settlement::DeadLetter { .. });
    receipt.source == Source::Log && moves
}
