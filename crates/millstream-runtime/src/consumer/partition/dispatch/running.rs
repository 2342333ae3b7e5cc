//! The messages in handlers, and those that wait for limits, for heartbeats, which name those that do so for long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use millstream_core::limits::PermitKey;
use millstream_core::log::Receipt;
use millstream_core::{MessageId, Partition};
use tokio::time::Instant;

use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::job::Job;

/// Message in a handler, or one that waits for a limit.
#[derive(Clone, Copy)]
pub(in crate::consumer) struct InHandler {
    pub(in crate::consumer) receipt: Receipt,
    pub(in crate::consumer) origin: MessageId,
    pub(in crate::consumer) attempt: u32,
}

impl InHandler {
    pub(in crate::consumer) fn of(job: &Job) -> Self {
        Self { receipt: job.receipt, origin: job.origin, attempt: job.attempt }
    }
}

/// The units of one partition that are in handlers, and messages that wait for limits.
#[derive(Default)]
pub(in crate::consumer) struct RunningUnits(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    units: Vec<Option<(Instant, Messages)>>,
    free: Vec<usize>,
}

enum Messages {
    One(InHandler),
    /// All at the same time.
    Batch(Vec<InHandler>),
    /// One that waits for units of this key.
    Waits(InHandler, PermitKey),
    /// One after the other, with the number of the current one. All before it took a millisecond, so it began with the row.
    Row(Vec<InHandler>, Arc<AtomicUsize>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunningUnits {
    /// Counts a unit as running until the returned value is dropped. `row`: the number of the message that runs, if they run one
    /// after the other.
    pub(in crate::consumer) fn begin(
        self: &Arc<Self>,
        unit: &Unit,
        row: Option<&Arc<AtomicUsize>>,
    ) -> RunningUnit {
        let mut all = unit.iter().map(|(_, job)| InHandler::of(job));
        let messages = match (all.next(), row) {
            (Some(one), _) if unit.len() == 1 => Messages::One(one),
            (first, Some(at)) => Messages::Row(first.into_iter().chain(all).collect(), at.clone()),
            (first, None) => Messages::Batch(first.into_iter().chain(all).collect()),
        };
        self.add(messages, Instant::now())
    }

    /// Counts a message as waiting for units of this key until the returned value is dropped.
    pub(in crate::consumer) fn wait(
        self: &Arc<Self>,
        message: InHandler,
        key: PermitKey,
        since: Instant,
    ) -> RunningUnit {
        self.add(Messages::Waits(message, key), since)
    }

    fn add(self: &Arc<Self>, messages: Messages, since: Instant) -> RunningUnit {
        let mut slots = lock(&self.0);
        let slot = slots.free.pop().unwrap_or(slots.units.len());
        if slot == slots.units.len() {
            slots.units.push(None);
        }
        slots.units[slot] = Some((since, messages));
        RunningUnit { units: self.clone(), slot, since }
    }

    fn begun_before(&self, time: Instant, partition: Partition, found: &mut Vec<LongRunning>) {
        for (since, messages) in lock(&self.0).units.iter().flatten().filter(|(since, _)| *since <= time) {
            let mut add = |it: &InHandler| found.push((*since, partition, *it, None));
            match messages {
                Messages::Waits(one, key) => found.push((*since, partition, *one, Some(key.clone()))),
                Messages::One(one) => add(one),
                Messages::Batch(all) => all.iter().for_each(add),
                Messages::Row(all, at) => all.get(at.load(Ordering::Relaxed)).into_iter().for_each(add),
            }
        }
    }
}

/// Guard of a unit that runs, or of a message that waits.
pub(in crate::consumer) struct RunningUnit {
    units: Arc<RunningUnits>,
    slot: usize,
    pub(in crate::consumer) since: Instant,
}

impl Drop for RunningUnit {
    fn drop(&mut self) {
        let mut slots = lock(&self.units.0);
        let ended = slots.units[self.slot].take();
        slots.free.push(self.slot);
        drop(slots);
        drop(ended);
    }
}

/// Message with its partition, and since when it has been in its handler, or has waited for units of a key.
pub(in crate::consumer) type LongRunning = (Instant, Partition, InHandler, Option<PermitKey>);

/// What runs on all partitions of a topic.
#[derive(Default)]
pub(in crate::consumer) struct RunningPartitions(Mutex<Vec<(Partition, Weak<RunningUnits>)>>);

impl RunningPartitions {
    /// Adds a partition, until the returned value is dropped.
    pub(in crate::consumer) fn add(&self, partition: Partition) -> Arc<RunningUnits> {
        let units = Arc::<RunningUnits>::default();
        let mut partitions = lock(&self.0);
        partitions.retain(|(_, units)| units.strong_count() > 0);
        partitions.push((partition, Arc::downgrade(&units)));
        units
    }

    /// Returns the messages that have been in their handlers, or have waited for limits, since before this time, longest first.
    pub(in crate::consumer) fn begun_before(&self, time: Instant) -> Vec<LongRunning> {
        let mut found = Vec::new();
        for (partition, units) in lock(&self.0).iter() {
            if let Some(units) = units.upgrade() {
                units.begun_before(time, *partition, &mut found);
            }
        }
        found.sort_by_key(|(since, ..)| *since);
        found
    }
}
