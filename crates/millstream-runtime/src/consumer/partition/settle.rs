//! Settling: writes the outcomes of one partition to the log, in batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::log::{Receipt, Settled, Source};
use millstream_core::results::StoredResult;
use millstream_core::{MessageId, Settlement, TopicPartition};
use millstream_engine::LoopMonitor;
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::group::restore::restore_group;
use crate::consumer::maintenance::Triggers;
use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::leases::entry_lease::{NO_LEASE, Standing};
use crate::consumer::partition::leases::{SharedPartition, WorkerLease};
use crate::consumer::partition::slot::Slot;
use crate::spans;

/// Settlements that are sent together.
pub(in crate::consumer) type Settlements = Vec<(Receipt, Settlement)>;

/// Maximum number of settlements of a request: one script call handles this many in less than a millisecond.
const MAX_BATCH: usize = 500;

/// The same for messages of packs, of which thousands can be a few entries.
const MAX_PACKED: usize = 2_000;

/// Bytes of results at which a request takes no further one (1 MiB): the server stores them while nobody else is served.
const MAX_RESULTS: usize = 1 << 20;

/// Shortest time between the beginnings of two requests, if nothing but acknowledgements of a few messages waits. With a thousand messages a
/// second, which come one by one, five share a request: each is a wake-up of the server and of two tasks here. The first after a pause
/// goes at once. A pack of messages that take microseconds each is settled as a whole: the server stores and checks parts, which
/// takes it several times as long.
const BETWEEN: Duration = Duration::from_millis(5);

/// Number of acknowledgements, but for those of packs, that do not wait for more: a request of as many costs little for each.
const MANY: usize = 64;

/// The settlements of one partition. At most one request is under way; what is added meanwhile is the next batch. Nothing
/// waits for a batch to fill, but acknowledgements for [`BETWEEN`]: if the process ends, what was handled and is not stored is handled
/// again.
pub(in crate::consumer) struct Settler {
    context: Arc<Subscription>,
    topic_partition: TopicPartition,
    lease: WorkerLease,
    triggers: Arc<Triggers>,
    monitor: LoopMonitor,
    /// Settlements that are not sent, or were not stored.
    waiting: Settlements,
    /// In shared mode, the serial numbers of the leases of entries that wait.
    serials: Serials,
    /// Entries whose notes are not written, because somebody else has the entry.
    gone: Vec<(Receipt, u64)>,
    /// Whether some of what waits must not be sent yet.
    unconfirmed: bool,
    /// Whether the reader has started over since the request under way was sent.
    in_doubt: bool,
    /// When the next request may be sent, after one that failed.
    not_before: Option<Instant>,
    /// When a few acknowledgements may be sent.
    gathered: Option<Instant>,
    /// How many of those that wait are known to be acknowledgements that may wait, and how many of these are of no pack.
    looked_at: (usize, usize),
    request: Slot<Request>,
}

/// The serial numbers of leases of entries.
type Serials = HashMap<Receipt, u64>;

/// A request that has ended.
struct Request {
    /// In shared mode, the serial numbers of the leases of its entries.
    serials: Serials,
    /// Settlements that the server has accepted, with its answer and the time that it took.
    stored: Vec<(Settlements, Settled, Duration)>,
    /// Settlements that were not stored.
    left: Settlements,
    /// Settlements that are in doubt, because the group was gone and has been created again.
    doubtful: Vec<Receipt>,
    result: Result<()>,
}

/// Result of a request, for the parts of the worker that it concerns.
pub(in crate::consumer) enum SettleProgress {
    /// Receipts whose notes are written, with the serial numbers of their leases.
    Written(Vec<(Receipt, u64)>),
    /// The lease is lost.
    Fenced,
}

impl Settler {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        topic_partition: TopicPartition,
        lease: WorkerLease,
        triggers: Arc<Triggers>,
        monitor: LoopMonitor,
    ) -> Self {
        Self {
            context,
            topic_partition,
            lease,
            triggers,
            monitor,
            waiting: Settlements::new(),
            serials: Serials::new(),
            gone: Vec::new(),
            unconfirmed: false,
            in_doubt: false,
            not_before: None,
            gathered: None,
            looked_at: (0, 0),
            request: Slot::default(),
        }
    }

    /// Adds a settlement of an entry, with the serial number of its lease.
    pub(in crate::consumer) fn add(&mut self, receipt: Receipt, serial: u64, settlement: Settlement) {
        if serial != NO_LEASE
            && let Some(before) = self.serials.insert(receipt, serial)
            && before != serial
        {
            // The id was assigned again: what was decided about the entry before must not touch this one.
            let dropped = self.waiting.extract_if(.., |(waiting, _)| *waiting == receipt);
            self.gone.extend(dropped.filter(|(_, what)| is_note(what)).map(|_| (receipt, before)));
        }
        self.waiting.push((receipt, settlement));
    }

    /// Whether settlements wait for the reader to find their entries again.
    pub(in crate::consumer) fn is_unconfirmed(&self) -> bool {
        self.unconfirmed
    }

    /// Records that the reader starts over. A fail-over may be the reason, and may have undone the request under way whose answer is
    /// still to come: then the pending list shows entries that are taken for being in flight, until the answer says that they are
    /// settled. So the list is read once more after such an answer.
    pub(in crate::consumer) fn reader_starts_over(&mut self) {
        self.in_doubt |= !self.request.is_empty();
    }

    /// Whether there are notes for [`take_gone`](Self::take_gone).
    pub(in crate::consumer) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Returns entries whose notes are not written, because somebody else has the entry.
    pub(in crate::consumer) fn take_gone(&mut self) -> Vec<(Receipt, u64)> {
        std::mem::take(&mut self.gone)
    }

    /// Whether everything is stored.
    pub(in crate::consumer) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.request.is_empty()
    }

    /// Whether the last request failed, and the next one waits.
    pub(in crate::consumer) fn has_failed(&self) -> bool {
        self.not_before.is_some()
    }

    /// Sends what waits, unless a request is under way.
    pub(in crate::consumer) fn advance(&mut self, now: Instant, in_flight: &InFlight) {
        if self.waiting.is_empty() || !self.request.is_empty() || self.not_before.is_some_and(|at| now < at) {
            return;
        }
        self.not_before = None;
        let taken = match self.lease.entries().cloned() {
            None => self.take_gathered(now, in_flight),
            Some(entries) => Some(self.take_confirmed(&entries)),
        };
        let Some((batch, serials)) = taken else { return };
        if batch.is_empty() {
            if self.waiting.is_empty() {
                // What had failed before is not needed any more.
                self.monitor.succeeded(&*self.context.observer);
            }
            return;
        }
        self.monitor.begin_round(Duration::ZERO);
        let frontier = in_flight.frontier();
        self.request.start(send(self.context.clone(), self.lease.clone(), batch, serials, frontier));
    }

    /// Takes what is sent next. `None` if it may wait for more.
    fn take_gathered(&mut self, now: Instant, in_flight: &InFlight) -> Option<(Settlements, Serials)> {
        // A message whose acknowledgement waits would be a poison candidate at the next crash: none waits while candidates are left.
        let is_cleared = in_flight.is_cleared();
        if is_cleared && self.gathered.is_some_and(|at| now < at) && self.may_wait(in_flight) {
            return None;
        }
        (self.looked_at, self.gathered) = ((0, 0), Some(now + BETWEEN));
        let rest = self.waiting.split_off(batch_len(&self.waiting));
        Some((std::mem::replace(&mut self.waiting, rest), Serials::new()))
    }

    /// Whether what waits may wait for more: parts of packs whose other messages may end soon, or a few that are in no pack, if what they take
    /// up leaves room to read. Each one that waits is looked at once.
    fn may_wait(&mut self, in_flight: &InFlight) -> bool {
        let (looked_at, mut single) = self.looked_at;
        let new = self.waiting.get(looked_at..).unwrap_or_default();
        if !new.iter().all(is_gathered) {
            return false;
        }
        single += new.iter().filter(|(receipt, _)| receipt.pack.is_none()).count();
        self.looked_at = (self.waiting.len(), single);
        match single {
            0 => self.waiting.len() < in_flight.in_hand(),
            _ => single < MANY && in_flight.is_roomy(),
        }
    }

    /// Takes what may be sent now, in shared mode. What waits for the reader to find its entry again stays; what concerns
    /// an entry that is no longer ours is dropped.
    fn take_confirmed(&mut self, entries: &SharedPartition) -> (Settlements, Serials) {
        let (mut batch, mut taken, mut bytes) = (Settlements::new(), Serials::new(), 0);
        self.unconfirmed = false;
        for (receipt, settlement) in std::mem::take(&mut self.waiting) {
            let serial = self.serials.get(&receipt).copied().unwrap_or(NO_LEASE);
            match entries.leases.standing(entries.key(receipt, serial)) {
                Standing::Ours if batch.len() < MAX_BATCH && bytes < MAX_RESULTS => {
                    bytes += result_size(&settlement);
                    taken.insert(receipt, serial);
                    batch.push((receipt, settlement));
                }
                standing @ (Standing::Ours | Standing::Unconfirmed) => {
                    self.unconfirmed |= standing == Standing::Unconfirmed;
                    self.waiting.push((receipt, settlement));
                }
                Standing::Gone => {
                    tracing::debug!(?receipt, "too late: the entry is no longer ours");
                    self.serials.remove(&receipt);
                    if is_note(&settlement) {
                        self.gone.push((receipt, serial));
                    }
                }
            }
        }
        self.serials.retain(|receipt, _| !taken.contains_key(receipt));
        (batch, taken)
    }

    /// Returns when the next request is to be sent although nothing else happens.
    pub(in crate::consumer) fn wakes(&self) -> Option<Instant> {
        let not_before =
            self.not_before.max(self.gathered.filter(|_| self.looked_at.0 == self.waiting.len()));
        not_before.filter(|_| self.request.is_empty() && !self.waiting.is_empty())
    }

    /// Waits until the request has ended.
    pub(in crate::consumer) async fn ended(&mut self) -> SettleEnded {
        SettleEnded(self.request.ended().await)
    }

    /// Takes in the result of a request.
    pub(in crate::consumer) fn take_in(
        &mut self,
        SettleEnded(request): SettleEnded,
        in_flight: &mut InFlight,
    ) -> SettleProgress {
        let Request { serials, stored, mut left, doubtful, result } = request;
        if std::mem::take(&mut self.in_doubt) && !stored.is_empty() {
            in_flight.look_again();
        }
        let mut written = Vec::new();
        for (batch, settled, elapsed) in stored {
            if let Some(entries) = self.lease.entries() {
                let done = batch.iter().filter(|(_, settlement)| !is_note(settlement));
                entries.leases.settled(done.map(|(receipt, _)| entries.key(*receipt, serials[receipt])));
            }
            self.stored(&batch, settled, elapsed, in_flight);
            let notes = batch.iter().filter(|(_, settlement)| is_note(settlement));
            let serial = |receipt| serials.get(receipt).copied().unwrap_or(NO_LEASE);
            written.extend(notes.map(|(receipt, _)| (*receipt, serial(receipt))));
        }
        if !doubtful.is_empty() {
            in_flight.hand_back(doubtful.into_iter());
        }
        if !serials.is_empty() {
            // Unless the id was assigned again meanwhile, and something is decided about the other entry.
            let dropped = left.extract_if(.., |(receipt, _)| {
                let serial = serials[receipt];
                serial != NO_LEASE && *self.serials.entry(*receipt).or_insert(serial) != serial
            });
            let notes = dropped.filter(|(_, settlement)| is_note(settlement));
            self.gone.extend(notes.map(|(receipt, _)| (receipt, serials[&receipt])));
        }
        if !left.is_empty() {
            left.append(&mut self.waiting);
            (self.waiting, self.looked_at) = (left, (0, 0));
        }
        let observer = &*self.context.observer;
        match result {
            Ok(()) => self.monitor.succeeded(observer),
            Err(error) if error.kind() == ErrorKind::Fenced => return SettleProgress::Fenced,
            Err(error) => {
                let pause = self.monitor.failed(&error, observer);
                // Even if nothing is left: the next settlements would meet the same error.
                self.not_before = Some(Instant::now() + pause);
            }
        }
        SettleProgress::Written(written)
    }

    /// Records settlements that the server has accepted.
    fn stored(
        &self,
        batch: &[(Receipt, Settlement)],
        settled: Settled,
        elapsed: Duration,
        in_flight: &mut InFlight,
    ) {
        // A stale entry may have been settled long ago, or the group was just created again and has not delivered it yet.
        // An ack needs nothing more. A message that must be kept is not settled until that is known.
        let leased = self.lease.keeps_order();
        let doubtful = |waiting: &(Receipt, Settlement)| leased && settled.stale > 0 && is_kept(waiting);
        let done = batch.iter().filter(|waiting| !is_note(&waiting.1) && !doubtful(waiting));
        in_flight.settled(done.map(|(receipt, _)| *receipt));
        if leased && settled.stale > 0 {
            let doubtful = batch.iter().filter(|waiting| doubtful(waiting));
            in_flight.hand_back(doubtful.map(|(receipt, _)| *receipt));
        }
        self.triggers.settled();
        let is_noted = |stored: &StoredResult| stored.demand.member.is_some();
        if batch.iter().any(|(_, settlement)| settlement.result().is_some_and(is_noted))
            && let Some(notes) = &self.context.notes
        {
            notes.wake(self.topic_partition.clone());
        }
        if batch.iter().any(|(_, settlement)| matches!(settlement, Settlement::Retry { .. })) {
            self.triggers.parked();
        }
        let (topic_partition, group) = (&self.topic_partition, &self.context.group);
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
pub(in crate::consumer) struct SettleEnded(Request);

/// Sends one batch.
fn send(
    context: Arc<Subscription>,
    lease: WorkerLease,
    batch: Settlements,
    serials: Serials,
    frontier: MessageId,
) -> BoxFuture<'static, Request> {
    Box::pin(async move {
        let (stored, doubtful) = (Vec::new(), Vec::new());
        let mut request = Request { serials, stored, left: batch, doubtful, result: Ok(()) };
        request.result = request.send(&context, &lease, frontier).await;
        request
    })
}

impl Request {
    async fn send(&mut self, context: &Subscription, lease: &WorkerLease, frontier: MessageId) -> Result<()> {
        let Err(error) = self.settle(context, lease, 0).await else { return Ok(()) };
        if error.is_transient() || error.kind() == ErrorKind::Fenced {
            return Err(error);
        }
        // A dead letter that cannot be stored (its storage key holds somebody else's data, for example) must not
        // prevent the other messages from being acknowledged. Acks are sorted last, so that they can be sent without the
        // others; those with results before them, so that they can be sent without these too.
        let rank = |settlement: &Settlement| (settlement.is_ack(), settlement.result().is_none());
        self.left.sort_by_key(|(_, settlement)| rank(settlement));
        for least in [(true, true), (true, false)] {
            let others = self.left.iter().filter(|(_, settlement)| rank(settlement) < least).count();
            if others < self.left.len() {
                self.settle(context, lease, others).await?;
            }
        }
        // In shared mode the reader of all partitions restores groups.
        if error.kind() == ErrorKind::GroupMissing
            && let Some(guard) = lease.guard()
        {
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
    async fn settle(&mut self, context: &Subscription, lease: &WorkerLease, from: usize) -> Result<()> {
        let (asked, batch) = (Instant::now(), &self.left[from..]);
        let span =
            |tracing| spans::of_settlements(tracing, &lease.topic_partition(), &context.group, batch.len());
        let span = context.tracing.as_ref().map(span);
        let settled = lease.settle(&context.backend, batch).await;
        if let Some(span) = span {
            span.end_with(settled.as_ref().err(), batch.len());
        }
        // An error leaves them where they are.
        let settled = settled?;
        self.stored.push((self.left.split_off(from), settled, asked.elapsed()));
        Ok(())
    }
}

/// Returns how many of these settlements are sent at once: up to the last one that ends a pack, if there is one.
fn batch_len(waiting: &Settlements) -> usize {
    let ends = |(receipt, _): &(Receipt, Settlement)| receipt.pack.is_some_and(|pack| pack.behind == 0);
    let end = waiting.iter().take(MAX_PACKED).rposition(ends);
    let most = end.map_or(waiting.len().min(MAX_BATCH), |end| end + 1);
    let mut bytes = 0;
    let fits = waiting.iter().take(most).take_while(|(_, settlement)| {
        let has_room = bytes < MAX_RESULTS;
        bytes += result_size(settlement);
        has_room
    });
    fits.count()
}

/// Returns the number of bytes of the result that is stored with a settlement.
fn result_size(settlement: &Settlement) -> usize {
    settlement.result().map_or(0, |stored| stored.result.size())
}

/// Whether it is an acknowledgement of a message that is in no pack, or has others behind it in its pack.
fn is_gathered((receipt, settlement): &(Receipt, Settlement)) -> bool {
    let is_awaited = settlement.result().is_some_and(|stored| stored.demand.result.is_some());
    settlement.is_ack() && !is_awaited && receipt.pack.is_none_or(|pack| pack.behind > 0)
}

fn is_note(settlement: &Settlement) -> bool {
    matches!(settlement, Settlement::Hold(_))
}

/// Whether the settlement moves an entry of the log elsewhere: if it were lost, nobody would read the entry again.
fn is_kept((receipt, settlement): &(Receipt, Settlement)) -> bool {
    let moves = matches!(settlement, Settlement::Retry { .. } | Settlement::DeadLetter { .. });
    receipt.source == Source::Log && moves
}

#[cfg(test)]
mod tests {
    use millstream_core::log::Note;

    use super::*;

    fn acks(receipts: impl IntoIterator<Item = Receipt>) -> Settlements {
        receipts.into_iter().map(|receipt| (receipt, Settlement::Ack)).collect()
    }

    fn pack(ms: u64, count: u32) -> impl Iterator<Item = Receipt> {
        Receipt::of_pack(MessageId::new(ms, u64::from(count)), count).expect("room")
    }

    #[test]
    fn only_acknowledgements_wait_for_more_and_not_those_that_end_a_pack() {
        let waits = |waiting: Settlements| waiting.iter().all(is_gathered);
        let some = || pack(1, 40).take(39);
        let single = Receipt::new(Source::Log, MessageId::new(9, 0));
        assert!(waits(acks(some())) && waits(acks(some().chain([single]))));
        assert!(!waits(acks(pack(1, 40))));
        let note = (single, Settlement::Hold(Note::default()));
        assert!(!waits(acks(some()).into_iter().chain([note]).collect()));
    }

    #[test]
    fn whole_packs_are_settled_together() {
        let single = |ms| Receipt::new(Source::Log, MessageId::new(ms, 0));
        assert_eq!(batch_len(&acks((0..700).map(single))), MAX_BATCH);
        assert_eq!(batch_len(&acks((0..7).map(single))), 7);
        assert_eq!(batch_len(&acks(pack(1, 40).take(39))), 39, "those that wait do not wait longer");
        assert_eq!(batch_len(&acks(pack(1, 40).skip(30).chain(pack(2, 40).take(39)))), 10);
        let three = pack(1, 600).chain(pack(2, 600)).chain(pack(3, 600));
        assert_eq!(batch_len(&acks(three.chain(pack(4, 600)))), 1_800, "no more than {MAX_PACKED}");
    }

    #[test]
    fn a_request_carries_a_mebibyte_of_results_and_the_one_that_is_over_it() {
        use millstream_core::results::{MessageResult, ResultRequest, StoredResult};
        let of = |bytes: usize| {
            let (request, payload) = (ResultRequest::new(7, Duration::from_secs(1)), vec![0; bytes]);
            let stored = StoredResult::new(request, MessageResult::Replied(payload.into()));
            let receipt = Receipt::new(Source::Log, MessageId::new(bytes as u64, 0));
            (receipt, Settlement::AckWith(Box::new(stored)))
        };
        assert_eq!(batch_len(&(0..500).map(|_| of(1 << 20)).collect()), 1);
        assert_eq!(batch_len(&(0..500).map(|_| of(1 << 18)).collect()), 4);
        assert_eq!(batch_len(&(0..700).map(|_| of(1 << 10)).collect()), MAX_BATCH);
        assert!(!is_gathered(&of(1)), "somebody waits for it");
    }
}
