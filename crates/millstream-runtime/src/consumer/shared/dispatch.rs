//! The dispatch loop of a shared consumer: runs as many handlers at once as are allowed.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::panics::text_of;
use millstream_loops::Runners;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};

use crate::consumer::group::membership::within;
use crate::consumer::handler::Handler;
use crate::consumer::pauses::Changes;
use crate::consumer::shared::Sharer;
use crate::consumer::shared::in_flight::Key;
use crate::consumer::shared::settle::EntrySettlement;
use crate::consumer::shared::work::{Item, Work};
use crate::report::Counts;

/// Result of messages that started together.
struct Ended {
    /// Whether it was a candidate that is handled alone.
    alone: bool,
    /// Messages that were not begun before the end; or the keys of all, if the task panicked.
    left: Result<Vec<Item>, Vec<Key>>,
}

/// Passes messages to handlers.
pub(in crate::consumer) struct Dispatcher {
    sharer: Arc<Sharer>,
    items: UnboundedReceiver<Vec<Item>>,
    settlements: UnboundedSender<EntrySettlement>,
    queue: VecDeque<Item>,
    /// Poison candidates that are handled one at a time, beside messages that are no candidates.
    alone: VecDeque<Item>,
    running: Runners<Ended>,
    /// Whether one of them runs.
    trying: bool,
    /// When the batch at the head of the queue starts even if it is not full.
    full_at: Option<Instant>,
    paused: Changes,
    /// Messages that were not begun before the end.
    left: Vec<Item>,
}

impl Dispatcher {
    pub(in crate::consumer) fn new(
        sharer: Arc<Sharer>,
        items: UnboundedReceiver<Vec<Item>>,
        settlements: UnboundedSender<EntrySettlement>,
    ) -> Self {
        Self {
            paused: sharer.context.pauses.changes(),
            sharer,
            items,
            settlements,
            queue: VecDeque::new(),
            alone: VecDeque::new(),
            running: Runners::new(),
            trying: false,
            full_at: None,
            left: Vec::new(),
        }
    }

    /// Works until the consumer stops; then returns messages that have not begun, and waits for the handlers that run.
    pub(in crate::consumer) async fn run(mut self) {
        while self.run_once().await {}
        self.end().await;
    }

    /// Starts messages that can start, and waits for the next event. False when the consumer stops.
    async fn run_once(&mut self) -> bool {
        while let Ok(items) = self.items.try_recv() {
            self.take_in(items);
        }
        self.start();
        let context = self.sharer.context.clone();
        let full_at = self.full_at.filter(|_| self.running.len() < self.sharer.at_once);
        let full = async {
            match full_at {
                Some(full_at) => sleep_until(full_at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return false,
            Some(ended) = self.running.next() => self.ended(ended),
            items = self.items.recv() => match items {
                Some(items) => self.take_in(items),
                None => return false,
            },
            () = full => {}
            () = self.paused.changed() => {}
        }
        true
    }

    fn take_in(&mut self, items: Vec<Item>) {
        for item in items {
            let job = &item.job;
            if !job.left.is_zero() {
                // Noted by an owner with a retry order, under which it waits in place: here it is parked.
                let key = item.key;
                self.sharer.in_flight.decided(key);
                self.settle(EntrySettlement::new(key, item.job.parks()));
            } else if item.is_alone() {
                self.alone.push_back(item);
            } else {
                self.queue.push_back(item);
            }
        }
    }

    fn settle(&self, entry: EntrySettlement) {
        // The settler ends after this loop, or is given up.
        let _ = self.settlements.send(entry);
    }

    fn start(&mut self) {
        while self.running.len() < self.sharer.at_once {
            let candidate = if self.trying { None } else { self.candidate() };
            let (alone, unit) = match candidate {
                Some(candidate) => (true, vec![candidate]),
                None => (false, self.unit()),
            };
            if unit.is_empty() {
                return;
            }
            self.trying |= alone;
            let work = Work { sharer: self.sharer.clone(), settlements: self.settlements.clone() };
            let keys = unit.iter().map(|item| item.key).collect();
            self.running.spawn(async move {
                let caught = AssertUnwindSafe(work.run(unit)).catch_unwind().await;
                Ended {
                    alone,
                    left: caught.map_err(|payload| {
                        let panic = text_of(payload);
                        tracing::error!(panic, "handling a message ended abnormally");
                        keys
                    }),
                }
            });
        }
    }

    /// Returns the next candidate that is handled alone.
    fn candidate(&mut self) -> Option<Item> {
        let at = self.alone.iter().position(|item| !is_paused(&self.sharer, &mut self.paused, item))?;
        self.alone.remove(at)
    }

    /// Returns the messages that start next: one, or a batch of one partition. Empty if the batch is not full yet.
    fn unit(&mut self) -> Vec<Item> {
        let (size, wait) = match &self.sharer.context.handler {
            Handler::Each(_) => (1, Duration::ZERO),
            Handler::Batch(batch, _) => (batch.size, batch.wait),
        };
        let (sharer, paused) = (&self.sharer, &mut self.paused);
        let Some(head) = self.queue.iter().position(|item| !is_paused(sharer, paused, item)) else {
            return Vec::new();
        };
        if size == 1 || self.queue[head].job.candidate.is_some() {
            return self.queue.remove(head).into_iter().collect();
        }
        let partition = self.queue[head].key.partition;
        let fits = |item: &Item| item.key.partition == partition && item.job.candidate.is_none();
        let there = self.queue.iter().filter(|item| fits(item)).take(size).count();
        let now = Instant::now();
        // The wait counts from the first time that the batch was not full.
        if there < size && now < *self.full_at.get_or_insert(now + wait) {
            return Vec::new();
        }
        self.full_at = None;
        let mut unit = Vec::with_capacity(there);
        let mut rest = VecDeque::with_capacity(self.queue.len() - there);
        for item in self.queue.drain(..) {
            if fits(&item) && unit.len() < size {
                unit.push(item);
            } else {
                rest.push_back(item);
            }
        }
        self.queue = rest;
        unit
    }

    fn ended(&mut self, ended: Result<Ended, String>) {
        let Ended { alone, left } = match ended {
            Ok(ended) => ended,
            // Not reached: panics are caught in the job, which knows its keys.
            Err(panic) => return tracing::error!(panic, "handling a message ended abnormally"),
        };
        self.trying &= !alone;
        match left {
            // The entries could not be relied on for a while, or belong to somebody else by now: they wait for their turn
            // again.
            Ok(left) if !self.sharer.context.stop.is_cancelled() => self.take_in(left),
            Ok(left) => self.left.extend(left),
            Err(keys) => {
                // Panics of user code are caught where it is called, so this one is a defect of ours. The entries are
                // read again.
                self.sharer.in_flight.lost(keys);
                self.sharer.in_flight.start_over();
            }
        }
    }

    /// Returns messages that have not begun, and waits for the handlers that run, up to the time when they are given up.
    async fn end(mut self) {
        self.items.close();
        while let Ok(items) = self.items.try_recv() {
            self.left.extend(items);
        }
        self.left.extend(self.queue.drain(..));
        self.left.extend(self.alone.drain(..));
        self.give_back().await;
        // When the time is over they end by themselves.
        while let Some(ended) = self.running.next().await {
            self.ended(ended);
            self.give_back().await;
        }
    }

    async fn give_back(&mut self) {
        let Sharer { context, member, in_flight, .. } = &*self.sharer;
        let mut of = BTreeMap::<_, Vec<_>>::new();
        let left = std::mem::take(&mut self.left);
        Counts::add(&context.counts.handed_back, left.len());
        for item in left {
            // Removed first, so that the entry is not extended any more.
            in_flight.settled(std::iter::once(item.key));
            of.entry(item.key.partition).or_default().push(item.job.receipt);
        }
        for (partition, receipts) in of {
            let request = async { context.backend.shared()?.give_back(member, partition, &receipts).await };
            if let Err(error) = within(context.patience(), request).await {
                tracing::warn!(%error, "entries that were not begun could not be released: they are claimed later");
            }
        }
    }
}

fn is_paused(sharer: &Sharer, paused: &mut Changes, item: &Item) -> bool {
    paused.is_on(&sharer.member.partition(item.key.partition))
}
