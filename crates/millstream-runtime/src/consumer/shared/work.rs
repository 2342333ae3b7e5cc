//! What happens to one message, or one batch: it waits for its turn, goes to the handler, and is judged.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::event::Event;
use millstream_core::log::{Entry, Note};
use millstream_core::{Limits, Partition, Settlement};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::super::decide::{Policies, decide};
use super::super::handler::Verdict;
use super::super::job::{Job, handle};
use super::super::owned::Owned;
use super::super::suspects::{Plan, Suspect};
use super::Sharer;
use super::hand::{Grasp, Key};
use super::settle::Say;

/// A message on its way.
pub(super) struct Item {
    pub(super) partition: Partition,
    pub(super) job: Job,
}

impl Item {
    pub(super) fn new(partition: Partition, entry: Entry, limits: &Limits, suspect: bool) -> Self {
        Self { partition, job: Job::new(entry, limits, suspect, Instant::now()) }
    }

    pub(super) fn key(&self) -> Key {
        (self.partition, self.job.receipt)
    }
}

/// Works on messages that start together.
pub(super) struct Work {
    pub(super) sharer: Arc<Sharer>,
    pub(super) says: UnboundedSender<Say>,
}

type Unit = Vec<(Arc<Owned>, Item)>;

impl Work {
    /// Hands messages to the handler when it is their turn, all or (if they are suspects) the only one. Gives back what
    /// was not begun because the consumer stops.
    pub(super) async fn run(self, items: Vec<Item>) -> Vec<Item> {
        let context = self.sharer.context.clone();
        let suspect = items.iter().any(|item| item.job.suspect.is_some());
        let permits = async {
            if suspect {
                return context.gates.suspect().await;
            }
            match context.gates.handlers() {
                Some(handlers) => (None, handlers.clone().acquire_owned().await.ok()),
                None => (None, None),
            }
        };
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
                live = self.sharer.hand.live(item.key()) => live,
            };
            // What is lost somebody else has.
            let Some(cancelled) = live else { continue };
            let grasp =
                Grasp { hand: self.sharer.hand.clone(), seat: self.sharer.seat.clone(), key: item.key() };
            let place = (self.sharer.seat.partition(item.partition), self.sharer.seat.group.clone());
            unit.push((Arc::new(Owned::shared(&context.context, place, cancelled, grasp)), item));
        }
        if suspect {
            self.try_suspect(&mut unit).await;
        } else {
            self.start(&mut unit).await;
        }
        // What the handler did not want to handle, because the end is near.
        unit.into_iter().map(|(_, item)| item).collect()
    }

    /// Hands messages to the handler. False if it was given up, and nothing was said.
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
                    Some(said) => self.finish(&owned, &item, said.verdict(), started.elapsed()),
                    None => unit.push((owned, item)),
                }
            }
        }
        handled && unit.is_empty()
    }

    /// Hands a suspect to the handler, after that was noted; or gives it up.
    async fn try_suspect(&self, unit: &mut Unit) {
        let context = &self.sharer.context;
        let Some((owned, item)) = unit.first_mut() else { return };
        let suspect = item.job.suspect.as_deref().cloned().unwrap_or_else(|| Suspect::new(None));
        let suspicions = match suspect.plan(&context.incarnation, context.config.crash_limit) {
            // No handler ever sees it.
            _ if !item.job.is_message() => None,
            Plan::Try => None,
            Plan::Note(suspicions) => Some(suspicions),
            Plan::GiveUp(crashes) => {
                let Owned { topic_partition, group, .. } = &**owned;
                let origin = item.job.origin;
                tracing::warn!(%topic_partition, %group, %origin, crashes, "given up: processes ended over it");
                context.observer.observe(&Event::Crashed { topic_partition, group, origin, crashes });
                self.finish(owned, item, &Verdict::Crashed(crashes), Duration::ZERO);
                unit.clear();
                return;
            }
        };
        let Some(suspicions) = suspicions else {
            self.start(unit).await;
            return;
        };
        let before = suspect.note(&item.job);
        let now = Note { suspicions, by: context.incarnation.clone(), ..before.clone() };
        let (key, cancelled) = (item.key(), owned.cancelled.clone());
        let (say, written) = Say::telling(key, Settlement::Hold(now));
        let _ = self.says.send(say);
        let written = tokio::select! {
            biased;
            () = context.stop.cancelled() => false,
            () = cancelled.cancelled() => false,
            written = written => written.is_ok(),
        };
        if !written || !self.start(unit).await {
            // The handler was not reached, or did not end when it should: no process ended over it.
            let _ = self.says.send(Say::new(key, Settlement::Hold(before)));
        }
    }

    /// Judges what was said, and tells.
    fn finish(&self, owned: &Owned, item: &Item, verdict: &Verdict, elapsed: Duration) {
        let Sharer { context, hand, .. } = &*self.sharer;
        let policies =
            Policies { retry: &*context.config.retry, dead_letters: &*context.config.dead_letters };
        let job = &item.job;
        let (settlement, handled) = decide(verdict, || job.attempt(None, None), &policies);
        if !hand.say(item.key()) {
            // Somebody else has it: what was said comes too late.
            return;
        }
        context.counts.handled(handled);
        let Owned { topic_partition, group, .. } = owned;
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
        let _ = self.says.send(Say::new(item.key(), settlement));
    }
}
