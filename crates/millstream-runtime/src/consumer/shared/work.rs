//! Processing of one message, or one batch: waits for a permit, calls the handler, and decides the settlement.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::event::Event;
use millstream_core::log::Entry;
use millstream_core::panics::discard;
use millstream_core::{Limits, Settlement};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::consumer::handler::Verdict;
use crate::consumer::partition::dispatch::decide::decide;
use crate::consumer::partition::dispatch::job::{Job, handle};
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::partition::poison::{Candidate, Plan};
use crate::consumer::shared::Sharer;
use crate::consumer::shared::in_flight::{EntryLease, Key};
use crate::consumer::shared::settle::EntrySettlement;

/// A message on its way.
pub(in crate::consumer) struct Item {
    pub(in crate::consumer) key: Key,
    pub(in crate::consumer) job: Job,
}

impl Item {
    pub(in crate::consumer) fn new(
        key: Key,
        entry: Entry,
        limits: &Limits,
        candidate: Option<Candidate>,
    ) -> Self {
        Self { key, job: Job::new(entry, limits, candidate, Instant::now()) }
    }

    /// Whether it must be handled with no other candidate beside it.
    pub(in crate::consumer) fn is_alone(&self) -> bool {
        self.job.candidate.as_ref().is_some_and(|candidate| candidate.plan == Plan::Alone)
    }
}

/// Processes messages that start together.
pub(in crate::consumer) struct Work {
    pub(in crate::consumer) sharer: Arc<Sharer>,
    pub(in crate::consumer) settlements: UnboundedSender<EntrySettlement>,
}

type Unit = Vec<(Arc<PartitionHandle>, Item)>;

impl Work {
    /// Passes messages to the handler when it is their turn: all together, or, if it is a poison candidate, just that
    /// one. Returns the messages that were not begun because the consumer stops.
    pub(in crate::consumer) async fn run(self, items: Vec<Item>) -> Vec<Item> {
        let context = self.sharer.context.clone();
        let candidate = items.iter().any(|item| item.job.candidate.is_some());
        let permits = context.limiter.enter(items.iter().any(Item::is_alone));
        let (_only, _permit) = tokio::select! {
            biased;
            () = context.stop.cancelled() => return items,
            permits = permits => permits,
        };
        let mut unit = Unit::new();
        let mut items = items.into_iter();
        while let Some(item) = items.next() {
            let live = tokio::select! {
                biased;
                () = context.stop.cancelled() => {
                    return unit.into_iter().map(|(_, item)| item).chain([item]).chain(items).collect();
                }
                live = self.sharer.in_flight.live(item.key) => live,
            };
            // Lost entries belong to somebody else by now.
            let Some(cancelled) = live else { continue };
            let grasp = EntryLease {
                in_flight: self.sharer.in_flight.clone(),
                member: self.sharer.member.clone(),
                key: item.key,
            };
            let place = (self.sharer.member.partition(item.key.partition), self.sharer.member.group.clone());
            unit.push((Arc::new(PartitionHandle::shared(&context.context, place, cancelled, grasp)), item));
        }
        if candidate {
            self.try_candidate(&mut unit).await;
        } else {
            self.start(&mut unit).await;
        }
        // The remaining messages were not handled, because the consumer is about to end.
        unit.into_iter().map(|(_, item)| item).collect()
    }

    /// Passes messages to the handler. False if it was given up, or if messages were left without a verdict.
    async fn start(&self, unit: &mut Unit) -> bool {
        let context = &self.sharer.context;
        let started = Instant::now();
        let handled = tokio::select! {
            biased;
            () = context.kill.cancelled() => false,
            () = handle(context, unit, |(owned, item)| (owned.clone(), &mut item.job), false) => true,
        };
        if handled {
            for (owned, mut item) in std::mem::take(unit) {
                match item.job.said.take() {
                    Some(said) => {
                        self.finish(&owned, &item, said.verdict(), started.elapsed());
                        discard(said, &*context.observer);
                    }
                    None => unit.push((owned, item)),
                }
            }
        }
        handled && unit.is_empty()
    }

    /// Passes a poison candidate to the handler after its note is written; or gives it up.
    async fn try_candidate(&self, unit: &mut Unit) {
        let context = &self.sharer.context;
        let Some((owned, item)) = unit.first_mut() else { return };
        // A malformed entry never reaches the handler, so it cannot be the reason.
        let candidate = item.job.candidate.as_deref().filter(|_| item.job.is_message());
        let note = match candidate.map(|candidate| candidate.plan) {
            None => None,
            Some(Plan::Note | Plan::Alone) => {
                candidate.map(|candidate| candidate.begins(&context.incarnation, &item.job))
            }
            Some(Plan::GiveUp(crashes)) => {
                let PartitionHandle { topic_partition, group, .. } = &**owned;
                let origin = item.job.origin;
                tracing::warn!(%topic_partition, %group, %origin, crashes, "dead-lettered: processes ended while handling it");
                context.observer.observe(&Event::Crashed { topic_partition, group, origin, crashes });
                self.finish(owned, item, &Verdict::Crashed(crashes), Duration::ZERO);
                unit.clear();
                return;
            }
        };
        let Some(note) = note else {
            self.start(unit).await;
            return;
        };
        let (key, cancelled) = (item.key, owned.cancelled.clone());
        let (entry, written) = EntrySettlement::confirmed(key, Settlement::Hold(note));
        let _ = self.settlements.send(entry);
        let written = tokio::select! {
            biased;
            () = context.stop.cancelled() => false,
            () = cancelled.cancelled() => false,
            written = written => written.is_ok(),
        };
        // If the handler is not called, or does not end in time, the note stays. It counts only if this process ends
        // abruptly.
        if written {
            self.start(unit).await;
        }
    }

    /// Decides the settlement and sends it to the settler.
    fn finish(&self, owned: &PartitionHandle, item: &Item, verdict: &Verdict, elapsed: Duration) {
        let Sharer { context, in_flight, .. } = &*self.sharer;
        let policies = context.policies();
        let job = &item.job;
        let (settlement, handled) = decide(verdict, || job.attempt(None, None), &policies);
        if !in_flight.decided(item.key) {
            // Somebody else has the entry: the outcome comes too late.
            return;
        }
        context.counts.handled(handled);
        let PartitionHandle { topic_partition, group, .. } = owned;
        let event = Event::Handled {
            topic_partition,
            group,
            attempt: job.attempt,
            handled,
            elapsed,
            origin: job.origin,
            source: job.receipt.source,
            cause: verdict.cause(),
        };
        context.observer.observe(&event);
        let _ = self.settlements.send(EntrySettlement::new(item.key, settlement));
    }
}
