//! The dispatch loop: hands the messages of one partition to handlers, as many at once and in the order that is set.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::event::Event;
use millstream_core::log::{Entry, Receipt};
use millstream_core::panics::discard;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::coop::consume_budget;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::PollSemaphore;

use super::clock::Clock;
use super::context::Subscription;
use super::decide::decide;
use super::fetch::Read;
use super::guard::Guard;
use super::handler::{Handler, Verdict, noticing};
use super::in_flight::InFlight;
use super::job::{Job, handle};
use super::lanes::{By, Lanes, Ticket};
use super::outbox::{Outbox, Settlements};
use super::owned::Owned;
use super::pauses::Pause;
use super::poison::{Candidate, Poison};
use super::waits::Waits;
use super::{Concurrency, RetryOrder};

/// What the dispatch loop of one partition works with.
pub(super) struct Dispatcher {
    pub(super) context: Arc<Subscription>,
    pub(super) guard: Arc<Guard>,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) entries: UnboundedReceiver<Read>,
    pub(super) settlements: UnboundedSender<Settlements>,
    pub(super) clock: Arc<Clock>,
    /// From the settler: these notes are written.
    pub(super) written: UnboundedReceiver<Receipt>,
}

impl Dispatcher {
    /// Works until the consumer stops or the lease is lost; then waits for the handlers that run. What was read and
    /// not started stays pending, and the next owner gets it first.
    pub(super) async fn run(self) {
        let _alarm = Alarm(self.guard.clone());
        match Owned::new(&self.context.context, &self.guard) {
            Ok(owned) => {
                let mut dispatch = Dispatch::new(self, owned);
                while dispatch.run_once().await {}
                dispatch.end().await;
            }
            Err(error) => {
                tracing::error!(%error, "a partition cannot be worked on");
                self.guard.revoke();
            }
        }
    }
}

/// Panics of user code are caught where it is called: one that ends this loop is a defect of ours. The partition must
/// not hang then, but be taken up anew.
struct Alarm(Arc<Guard>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.revoke();
        }
    }
}

/// Jobs that a handler gets together: one, or a batch.
type Unit = Vec<(Ticket, Box<Job>)>;

/// The state of the loop.
pub(super) struct Dispatch {
    pub(super) links: Dispatcher,
    pub(super) owned: Arc<Owned>,
    /// What the guard said of its trust when `owned` was made.
    trust: u64,
    pub(super) lanes: Lanes<Box<Job>>,
    pub(super) waits: Waits,
    pub(super) poison: Poison,
    /// What was said, on its way to the settler.
    pub(super) outbox: Outbox,
    /// What is handled in a row, and since when.
    pub(super) in_hand: Option<(Ticket, Box<Job>, Instant)>,
    /// Whether a handler of this row had to wait: then it ends with it.
    pub(super) waited: bool,
    /// What starts next. A batch is filled until it is full or `full_at` has come.
    pub(super) picked: Unit,
    full_at: Instant,
    running: JoinSet<(Unit, Duration)>,
    /// Our place in the queue for handlers, if their number is limited.
    pub(super) turns: Option<PollSemaphore>,
    pub(super) pause: Pause,
    /// Whether handlers run here, one after the other, or as tasks, so that they can use several threads.
    pub(super) inline: bool,
    warned: bool,
}

impl Dispatch {
    fn new(links: Dispatcher, owned: Owned) -> Self {
        let config = &links.context.config;
        let (by, at_once) = match (config.concurrency, config.retry_order) {
            // Keys have lanes so that one can wait; but they go one at a time, in the order of the partition.
            (Concurrency::Serial, RetryOrder::BlockKey) => (By::Key, 1),
            (Concurrency::Serial, _) => (By::Partition, 1),
            (Concurrency::PerKey(at_once), _) => (By::Key, at_once),
            (Concurrency::Unordered(at_once), _) => (By::Entry, at_once),
        };
        let turns = links.context.gates.handlers().map(|handlers| PollSemaphore::new(handlers.clone()));
        let pause = links.context.pauses.of(&owned.topic_partition);
        let candidates = PollSemaphore::new(links.context.gates.candidates().clone());
        let poison = Poison::new(owned.epoch, candidates);
        Self {
            // Taken after the token, it could stand for a newer one.
            trust: 0,
            outbox: Outbox::new(links.context.clone(), links.settlements.clone()),
            in_hand: None,
            waited: false,
            links,
            pause,
            owned: Arc::new(owned),
            lanes: Lanes::new(by, at_once),
            waits: Waits::default(),
            poison,
            picked: Vec::new(),
            full_at: Instant::now(),
            running: JoinSet::new(),
            turns,
            inline: at_once == 1,
            warned: false,
        }
    }

    /// Takes in what there is and starts one unit, or waits until something changes. False when the consumer stops
    /// or the lease is lost.
    async fn run_once(&mut self) -> bool {
        self.look_around();
        if self.is_plain() && !self.is_stopped() {
            return self.handle_in_a_row().await;
        }
        self.pick();
        let paused = self.pause.is_on();
        if paused && let Some(turns) = &mut self.turns {
            // Our place in the queue goes to others.
            *turns = turns.clone();
        }
        let complete = !paused && self.is_complete();
        let live = self.links.guard.is_live(Instant::now());
        if complete && self.turns.is_none() && live && !self.is_stopped() {
            // As a rule there is nothing to wait for. Others on this thread get their share all the same.
            noticing(consume_budget(), || self.outbox.flush()).await;
            if !self.links.guard.is_live(Instant::now()) {
                return true;
            }
            return self.start(None).await;
        }
        self.outbox.flush();
        let links = &mut self.links;
        let filled = (!self.picked.is_empty() && !complete && !paused).then_some(self.full_at);
        let wake = self.waits.next().into_iter().chain(filled).min();
        let woken = async {
            match wake {
                Some(wake) => sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = links.context.kill.cancelled() => return false,
            () = links.guard.revoked().cancelled() => return false,
            () = links.guard.lost().cancelled() => return false,
            () = self.pause.until(!paused) => {}
            Some(ended) = self.running.join_next() => self.ended(ended),
            Some(receipt) = links.written.recv() => self.written(receipt),
            lane = self.poison.turn(&links.context.gates), if !paused => self.lanes.unblock(lane),
            turn = turn(&links.guard, &mut self.turns), if complete => {
                let Some(permit) = turn else { return false };
                if permit.is_some() {
                    // Others that have just started one may queue up again, too, before we do.
                    tokio::task::yield_now().await;
                }
                if self.pause.is_on() || !self.links.guard.is_live(Instant::now()) {
                    return true;
                }
                return self.start(permit).await;
            }
            Some(read) = links.entries.recv() => self.take_in(read),
            () = woken => {}
        }
        true
    }

    /// Whether nothing is to start any more.
    fn is_stopped(&self) -> bool {
        let (context, guard) = (&self.links.context, &self.links.guard);
        context.kill.is_cancelled() || guard.revoked().is_cancelled() || guard.lost().is_cancelled()
    }

    /// Takes notice of whatever happened, without waiting.
    fn look_around(&mut self) {
        while let Ok(read) = self.links.entries.try_recv() {
            self.take_in(read);
        }
        while let Some(ended) = self.running.try_join_next() {
            self.ended(ended);
        }
        while let Ok(receipt) = self.links.written.try_recv() {
            self.written(receipt);
        }
        if self.waits.next().is_some() {
            let now = Instant::now();
            while let Some(lane) = self.waits.ended(now) {
                self.lanes.unblock(lane);
            }
        }
    }

    /// A note is written: of a message that waits in its place, or of a poison candidate that begins.
    fn written(&mut self, receipt: Receipt) {
        if !self.poison.written(receipt) {
            self.waits.written(receipt, Instant::now());
        }
    }

    fn take_in(&mut self, read: Read) {
        let now = Instant::now();
        let (config, ends) = (&self.links.context.config, &self.links.guard.lease().ends);
        let job = |entry: Entry| {
            let candidate = Candidate::of_owner(&entry, read.ends, ends, config.crash_limit);
            Box::new(Job::new(entry, &config.limits, candidate, now))
        };
        let jobs: Vec<_> = read.entries.into_iter().map(job).collect();
        for job in jobs {
            if !job.left.is_zero() {
                if !self.waits_in_place(&job) {
                    // Noted by somebody who keeps another order: here it is parked, like all that failed.
                    self.settle(job.receipt, job.parks());
                    continue;
                }
                self.waits.for_rest(job.receipt, job.left, now);
            }
            let key = if self.lanes.is_by_key() { job.key().cloned() } else { None };
            self.lanes.push(key.as_ref(), job);
        }
    }

    /// Whether this message waits in its place for its next attempt, and others behind it. One without a key has
    /// nobody behind it, unless that is the whole partition.
    fn waits_in_place(&self, job: &Job) -> bool {
        match self.links.context.config.retry_order {
            RetryOrder::Skip => false,
            RetryOrder::BlockKey => job.key().is_some(),
            RetryOrder::BlockPartition => true,
        }
    }

    /// Picks what starts next, and puts lanes aside that have to wait.
    fn pick(&mut self) {
        let (size, wait) = match &self.links.context.handler {
            Handler::Each(_) => (1, Duration::ZERO),
            Handler::Batch(batch, _) => (batch.size, batch.wait),
        };
        while self.picked.len() < size {
            let first = self.picked.is_empty();
            if self.picked.first().is_some_and(|(_, job)| job.candidate.is_some()) {
                break;
            }
            if first && let Some(noted) = self.poison.next() {
                self.picked.push(noted);
                break;
            }
            let next = if first { self.lanes.next() } else { self.lanes.also() };
            let Some((ticket, job)) = next else { break };
            let receipt = job.receipt;
            if self.waits.is_over(receipt, Instant::now) {
                if !first && job.candidate.is_some() {
                    // A batch of several would not tell which of them it was.
                    self.lanes.put_back(ticket, job);
                    break;
                }
                let Some(picked) = self.screen((ticket, job)) else { continue };
                if first && size > 1 {
                    self.full_at = Instant::now() + wait;
                }
                self.picked.push(picked);
                continue;
            }
            match self.lanes.block(ticket, job) {
                Some(lane) => self.waits.blocks(receipt, lane),
                // Its lane runs in this batch: it comes up again after that.
                None => break,
            }
        }
        self.count_blocked();
    }

    /// Where the whole partition waits, there is no use in reading further.
    pub(super) fn count_blocked(&mut self) {
        if self.links.context.config.retry_order != RetryOrder::BlockKey {
            return;
        }
        if self.links.in_flight.blocked(self.lanes.blocked()) && !self.warned {
            self.warned = true;
            let Owned { topic_partition, group, .. } = &*self.owned;
            let messages = self.lanes.blocked();
            tracing::warn!(%topic_partition, %group, messages, "too many wait behind messages that failed: no more is read");
        }
    }

    /// Whether what is picked is to start now.
    fn is_complete(&self) -> bool {
        let Some((_, job)) = self.picked.first() else { return false };
        match &self.links.context.handler {
            Handler::Each(_) => true,
            Handler::Batch(batch, _) => {
                job.candidate.is_some() || self.picked.len() >= batch.size || Instant::now() >= self.full_at
            }
        }
    }

    /// Hands what is picked to the handler.
    pub(super) async fn start(&mut self, permit: Option<OwnedSemaphorePermit>) -> bool {
        self.trust_again();
        let started = Instant::now();
        let keep = self.keeps();
        let mut unit = std::mem::take(&mut self.picked);
        let (context, owned) = (&self.links.context, &self.owned);
        if !self.inline {
            let (context, owned) = (context.clone(), owned.clone());
            self.running.spawn(async move {
                handle(&context, &mut unit, |(_, job)| (owned.clone(), &mut **job), keep).await;
                drop(permit);
                (unit, started.elapsed())
            });
            return true;
        }
        tokio::select! {
            biased;
            () = context.kill.cancelled() => {
                self.picked = unit;
                return false;
            }
            () = noticing(
                handle(context, &mut unit, |(_, job)| (owned.clone(), &mut **job), keep),
                || self.outbox.flush(),
            ) => {}
        }
        self.finish(&mut unit, started.elapsed());
        // For the next one, which then needs none of its own.
        self.picked = unit;
        true
    }

    /// Whether a message is needed again after its handler had it.
    pub(super) fn keeps(&self) -> bool {
        self.links.context.config.retry_order != RetryOrder::Skip
    }

    /// If the lease could not be relied on for a while: for what starts from now on it can.
    pub(super) fn trust_again(&mut self) {
        let trust = self.links.guard.trust();
        if trust != std::mem::replace(&mut self.trust, trust)
            && self.owned.cancelled.is_cancelled()
            && let Ok(owned) = Owned::new(&self.links.context.context, &self.links.guard)
        {
            self.owned = Arc::new(owned);
        }
    }

    fn ended(&mut self, ended: Result<(Unit, Duration), JoinError>) {
        match ended {
            Ok((mut unit, elapsed)) => self.finish(&mut unit, elapsed),
            Err(error) => {
                tracing::error!(%error, "handling a message ended abnormally");
                self.links.guard.revoke();
            }
        }
    }

    pub(super) fn finish(&mut self, unit: &mut Unit, elapsed: Duration) {
        let now = Instant::now();
        for (ticket, mut job) in unit.drain(..) {
            // Without a verdict it was not handled, because the end is near: it stays pending, and its lane closed.
            if let Some(said) = job.said.take() {
                self.finish_one(ticket, job, said.verdict(), elapsed, now);
                discard(said, &*self.links.context.observer);
            }
        }
        if self.outbox.is_due(now) {
            self.outbox.flush();
        }
    }

    pub(super) fn finish_one(
        &mut self,
        ticket: Ticket,
        mut job: Box<Job>,
        verdict: &Verdict,
        elapsed: Duration,
        now: Instant,
    ) {
        let context = &self.links.context;
        let policies = context.policies();
        let attempt = || {
            let in_place = self.waits_in_place(&job).then_some(&*context.incarnation);
            job.attempt(Some(&self.links.clock), in_place)
        };
        let (settlement, handled) = decide(verdict, attempt, &policies);
        self.outbox.count(handled);
        let Owned { topic_partition, group, .. } = &*self.owned;
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
        let receipt = job.receipt;
        self.poison.done(receipt);
        match &settlement {
            Settlement::Hold(note) => {
                let after = job.holds(note, &self.links.clock);
                self.waits.after_note(receipt, after);
                self.lanes.put_back(ticket, job);
            }
            _ => self.lanes.done(ticket),
        }
        // It counts from the handler's start: what a slow one said does not wait for the next one, which may be slow, too.
        self.outbox.add(receipt, settlement, now.checked_sub(elapsed).unwrap_or(now));
    }

    pub(super) fn settle(&mut self, receipt: Receipt, settlement: Settlement) {
        self.outbox.add(receipt, settlement, Instant::now());
    }

    /// Lets the handlers that run end, up to the time when they are given up.
    async fn end(mut self) {
        loop {
            self.outbox.flush();
            if self.running.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = self.links.context.kill.cancelled() => return,
                Some(ended) = self.running.join_next() => self.ended(ended),
            }
        }
    }
}

/// Waits for our turn among the handlers of the consumer, and until the lease can be relied on. `None` if it is lost.
async fn turn(guard: &Guard, turns: &mut Option<PollSemaphore>) -> Option<Option<OwnedSemaphorePermit>> {
    let permit = match turns {
        // The place in the queue is kept when this is dropped and asked again.
        Some(turns) => Some(std::future::poll_fn(|cx| turns.poll_acquire(cx)).await?),
        None => None,
    };
    guard.live().await.then_some(permit)
}
