//! Settling: writes the outcomes of one partition to the log, in batches.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Receipt, Settled, Source};
use millstream_core::{MessageId, Settlement};
use millstream_loops::LoopMonitor;
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::Triggers;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::slot::Slot;

/// Settlements that are sent together.
pub(in crate::consumer) type Settlements = Vec<(Receipt, Settlement)>;

/// Maximum number of settlements of a request: one script call handles this many in less than a millisecond.
const MAX_BATCH: usize = 500;

/// The settlements of one partition. At most one request is under way; what is added meanwhile is the next batch. Nothing
/// waits for a batch to fill: if the process ends, what was handled and is not stored is handled again.
pub(in crate::consumer) struct Settler {
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    triggers: Arc<Triggers>,
    monitor: LoopMonitor,
    /// Settlements that are not sent, or were not stored.
    waiting: Settlements,
    /// When the next request may be sent, after one that failed.
    not_before: Option<Instant>,
    request: Slot<Request>,
}

/// A request that has ended.
struct Request {
    /// Settlements that the server has accepted, with its answer and the time that it took.
    stored: Vec<(Settlements, Settled, Duration)>,
    /// Settlements that were not stored.
    left: Settlements,
    /// Settlements that are in doubt, because the group was gone and has been created again.
    doubtful: Vec<Receipt>,
    result: Result<()>,
}

/// Result of a request, for the parts of the worker that it concerns.
pub(in crate::consumer) enum Progress {
    /// Receipts whose notes are written.
    Written(Vec<Receipt>),
    /// The lease is lost.
    Fenced,
}

impl Settler {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        guard: Arc<LeaseGuard>,
        triggers: Arc<Triggers>,
        monitor: LoopMonitor,
    ) -> Self {
        let (waiting, request) = (Settlements::new(), Slot::default());
        Self { context, guard, triggers, monitor, waiting, not_before: None, request }
    }

    /// Adds a settlement.
    pub(in crate::consumer) fn add(&mut self, receipt: Receipt, settlement: Settlement) {
        self.waiting.push((receipt, settlement));
    }

    /// Whether everything is stored.
    pub(in crate::consumer) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.request.is_empty()
    }

    /// Whether the last request failed, and the next one waits.
    pub(in crate::consumer) fn has_failed(&self) -> bool {
        self.not_before.is_some()
    }

    /// Sends what waits, unless a request is under way. `frontier` is that of the partition.
    pub(in crate::consumer) fn advance(&mut self, now: Instant, frontier: impl FnOnce() -> MessageId) {
        if self.waiting.is_empty() || !self.request.is_empty() || self.not_before.is_some_and(|at| now < at) {
            return;
        }
        self.not_before = None;
        let rest = self.waiting.split_off(self.waiting.len().min(MAX_BATCH));
        let batch = std::mem::replace(&mut self.waiting, rest);
        self.monitor.begin_round(Duration::ZERO);
        self.request.start(send(self.context.clone(), self.guard.clone(), batch, frontier()));
    }

    /// Returns when the next request is to be sent although nothing else happens.
    pub(in crate::consumer) fn wakes(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.request.is_empty() && !self.waiting.is_empty())
    }

    /// Waits until the request has ended.
    pub(in crate::consumer) async fn ended(&mut self) -> Ended {
        Ended(self.request.ended().await)
    }

    /// Takes in the result of a request.
    pub(in crate::consumer) fn take_in(
        &mut self,
        Ended(request): Ended,
        in_flight: &mut InFlight,
    ) -> Progress {
        let Request { stored, mut left, doubtful, result } = request;
        let mut written = Vec::new();
        for (batch, settled, elapsed) in stored {
            self.stored(&batch, settled, elapsed, in_flight, &mut written);
        }
        if !doubtful.is_empty() {
            in_flight.hand_back(doubtful.into_iter());
        }
        if !left.is_empty() {
            left.append(&mut self.waiting);
            self.waiting = left;
        }
        let observer = &*self.context.observer;
        match result {
            Ok(()) => self.monitor.succeeded(observer),
            Err(error) if error.kind() == ErrorKind::Fenced => return Progress::Fenced,
            Err(error) => {
                let pause = self.monitor.failed(&error, observer);
                // Even if nothing is left: the next settlements would meet the same error.
                self.not_before = Some(Instant::now() + pause);
            }
        }
        Progress::Written(written)
    }

    /// Records settlements that the server has accepted.
    fn stored(
        &self,
        batch: &[(Receipt, Settlement)],
        settled: Settled,
        elapsed: Duration,
        in_flight: &mut InFlight,
        written: &mut Vec<Receipt>,
    ) {
        let is_note = |settlement: &Settlement| matches!(settlement, Settlement::Hold(_));
        // A stale entry may have been settled long ago, or the group was just created again and has not delivered it yet.
        // An ack needs nothing more. A message that must be kept is not settled until that is known.
        let doubtful = |waiting: &(Receipt, Settlement)| settled.stale > 0 && is_kept(waiting);
        let done = batch.iter().filter(|waiting| !is_note(&waiting.1) && !doubtful(waiting));
        in_flight.settled(done.map(|(receipt, _)| *receipt));
        if settled.stale > 0 {
            let doubtful = batch.iter().filter(|waiting| doubtful(waiting));
            in_flight.hand_back(doubtful.map(|(receipt, _)| *receipt));
        }
        written
            .extend(batch.iter().filter(|(_, settlement)| is_note(settlement)).map(|(receipt, _)| *receipt));
        self.triggers.settled();
        if batch.iter().any(|(_, settlement)| matches!(settlement, Settlement::Retry { .. })) {
            self.triggers.parked();
        }
        let Ok((topic_partition, group)) = self.guard.lease().partition() else { return };
        if settled.stale > 0 {
            tracing::warn!(%topic_partition, %group, stale = settled.stale, "settled too late: not pending any more");
            // It may also have come too early: for a group that was just created again and has delivered the entry anew
            // since.
            in_flight.look_again();
        }
        self.context.observer.observe(&Event::Settled { topic_partition, group, settled, elapsed });
    }
}

/// A request that has ended, not yet [taken in](Settler::take_in).
pub(in crate::consumer) struct Ended(Request);

/// Sends one batch.
fn send(
    context: Arc<Subscription>,
    guard: Arc<LeaseGuard>,
    batch: Settlements,
    frontier: MessageId,
) -> BoxFuture<'static, Request> {
    Box::pin(async move {
        let mut request = Request { stored: Vec::new(), left: batch, doubtful: Vec::new(), result: Ok(()) };
        request.result = request.send(&context, &guard, frontier).await;
        request
    })
}

impl Request {
    async fn send(&mut self, context: &Subscription, guard: &LeaseGuard, frontier: MessageId) -> Result<()> {
        let Err(error) = self.settle(context, guard, 0).await else { return Ok(()) };
        if error.is_transient() || error.kind() == ErrorKind::Fenced {
            return Err(error);
        }
        // A dead letter that cannot be stored (its storage key holds somebody else's data, for example) must not
        // prevent the other messages from being acknowledged. Acks are sorted last, so that they can be sent without the
        // others.
        self.left.sort_by_key(|(_, settlement)| *settlement == Settlement::Ack);
        let others = self.left.iter().filter(|(_, settlement)| *settlement != Settlement::Ack).count();
        if others < self.left.len() {
            self.settle(context, guard, others).await?;
        }
        if error.kind() == ErrorKind::GroupMissing {
            restore_group(context, guard, frontier, &error).await?;
            // It was created again below all unsettled entries, so messages that were to be retried or given up are read and
            // handled again. Messages that wait in place stay there; their notes are written once the reader has read them
            // again.
            let kept = self.left.extract_if(.., |waiting| is_kept(waiting));
            self.doubtful.extend(kept.map(|(receipt, _)| receipt));
        }
        if self.left.is_empty() { Ok(()) } else { Err(error) }
    }

    /// Settles `left[from..]`.
    async fn settle(&mut self, context: &Subscription, guard: &LeaseGuard, from: usize) -> Result<()> {
        let asked = Instant::now();
        let settled = context.backend.log().settle(guard.lease(), &self.left[from..]).await?;
        self.stored.push((self.left.split_off(from), settled, asked.elapsed()));
        Ok(())
    }
}

/// Whether the settlement moves an entry of the log elsewhere: if it were lost, nobody would read the entry again.
fn is_kept((receipt, settlement): &(Receipt, Settlement)) -> bool {
    let moves = matches!(settlement, Settlement::Retry { .. } | Settlement::DeadLetter { .. });
    receipt.source == Source::Log && moves
}
