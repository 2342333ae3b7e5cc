//! The claim loop of a shard: takes what is due as far as there is room, and sleeps to what is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::suspension::ServerTime;
use millstream_core::tasks::{ClaimRequest, Claimed, ClaimedTask, MAX_CLAIM};
use millstream_core::{Place, Shard};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::context::Context;
use super::settle::Settling;
use super::work::Job;
use crate::fire::Firing;
use millstream_loops::catch_panic;
use millstream_loops::{LoopMonitor, Scope};

/// How long the last word to a server may take: somebody else looks out. Nothing is lost if it is not heard.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The shortest pause after an answer that brought nothing and asks to come back at once.
const BREATH: Duration = Duration::from_millis(1);

/// How long room is waited for before others are let look out, if no handler has it.
const MOMENT: Duration = Duration::from_millis(20);

type Waiting = BoxFuture<'static, Result<bool>>;

/// Claims tasks of one shard.
pub(super) struct Claimer {
    context: Arc<Context>,
    shard: Shard,
    settlements: UnboundedSender<Settling>,
    /// Of claiming.
    monitor: LoopMonitor,
    /// Of waiting to be called.
    wait_monitor: LoopMonitor,
    firing: Firing,
    /// The server's clock beside ours.
    time: ServerTime,
    /// Kept over many rounds: a wait that is given up may take a call with it.
    waiting: Option<Waiting>,
    /// Whether somebody else may be relied on to look out for what is due: we have said that we do not.
    relieved: bool,
}

impl Claimer {
    pub(super) fn new(context: Arc<Context>, shard: Shard, settlements: UnboundedSender<Settling>) -> Self {
        let scope = || Scope::Shard(shard.clone());
        let monitor = context.loops.monitor("claim", scope());
        let wait_monitor = context.loops.monitor("wait", scope());
        let firing = Firing::new(context.loops.monitor("fire", scope()));
        let time = ServerTime::default();
        Self {
            context,
            shard,
            settlements,
            monitor,
            wait_monitor,
            firing,
            time,
            waiting: None,
            relieved: true,
        }
    }

    /// Claims until the worker ends, and then lets others look out.
    pub(super) async fn run(mut self) {
        let context = self.context.clone();
        while !context.stop.is_cancelled() {
            match catch_panic(self.round()).await {
                Ok(()) => {}
                Err(error) => {
                    // What is heard of meanwhile does not make a server work.
                    let pause = self.monitor.failed(&error, &*context.observer);
                    // Back soon after an outage: whoever died in it is judged one hold after that.
                    let most = if error.is_transient() { context.config.hold / 3 } else { pause };
                    tokio::select! {
                        biased;
                        () = context.stop.cancelled() => {}
                        () = tokio::time::sleep(pause.min(most)) => {}
                    }
                }
            }
        }
        let relieved = tokio::time::timeout(LAST_WORD, catch_panic(self.look_away())).await;
        if !matches!(relieved, Ok(Ok(()))) {
            tracing::debug!(shard = %self.shard, "others were not told that this worker ends");
        }
    }

    async fn round(&mut self) -> Result<()> {
        let next = self.run_once().await?;
        self.monitor.succeeded(&*self.context.observer);
        self.idle(next).await;
        Ok(())
    }

    /// One round: takes what is due, if there is room for anything; else as soon as there is. Gives back when to
    /// come again; `None` means at once.
    async fn run_once(&mut self) -> Result<Option<Instant>> {
        let Some(mut permits) = self.room().await? else { return Ok(None) };
        let context = self.context.clone();
        let look = context.board.looks();
        let limit = permits.num_permits();
        let (clock, asked) = (&context.held.clock, context.held.clock.now());
        let before = clock.elapsed();
        self.monitor.begin_round(Duration::ZERO);
        // Not given up when the worker ends: what a lost answer has claimed is missing until its claim runs out.
        let claimed = tokio::select! {
            biased;
            claimed = claim(&context, &self.shard, limit) => claimed?,
            () = context.kill.cancelled() => return Ok(None),
        };
        self.monitor.idle();
        let answered = Instant::now();
        let Claimed { tasks, crashed, next, recurring, now, .. } = claimed;
        // A machine may have been suspended without any clock of its own showing it: what is held runs out earlier then.
        let margin = context.config.hold / 20;
        if let Some(away) = self.time.heard(before, clock.elapsed(), now, margin) {
            tracing::warn!(shard = %self.shard, ?away, "the server's clock went ahead of ours: deadlines are counted anew");
            clock.add_missed(away);
        }
        let taken = tasks.len() + crashed;
        let nothing = taken == 0 && (!recurring || self.firing.is_stuck());
        context.board.claimed(self.shard.shard as usize, look, nothing);
        // A full claim lets another worker look out, who is called: not us, if we wait for calls too.
        self.relieved = taken >= limit && self.waiting.is_none();
        if taken > 0 {
            let again = tasks.iter().filter(|task| task.crashes > 0).count();
            let shard = &self.shard;
            context.observer.observe(&Event::Claimed { shard, tasks: tasks.len(), again, crashed });
        }
        let mut surplus = 0;
        for task in tasks {
            let ClaimedTask { id, token, before, .. } = &task;
            let nth = self.shard.shard;
            if before.as_ref().is_some_and(|before| context.held.adopt(nth, id, before, token, asked)) {
                tracing::debug!(shard = %self.shard, %id, "in hand already: claimed anew for its handler");
                continue;
            }
            let Some(permit) = permits.split(1) else {
                surplus += 1;
                continue;
            };
            let holding = context.held.begin(nth, id, token, asked);
            let (shard, settlements) = (self.shard.clone(), self.settlements.clone());
            let job = Job { task, shard, now, holding, permit, settlements };
            if context.stop.is_cancelled() {
                job.hand_back(&context);
            } else {
                context.handlers.spawn(job.run(context.clone()));
            }
        }
        drop(permits);
        if surplus > 0 {
            let why = format!("{} gave {surplus} tasks more than asked for", self.shard);
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        let again = if recurring { self.fire().await } else { None };
        if !recurring {
            self.firing.over(&*context.observer);
        }
        if again.is_some_and(|again| again.is_zero()) {
            return Ok(None);
        }
        let next = if taken == 0 { next.max(BREATH) } else { next };
        let next = next.min(again.unwrap_or(Duration::MAX)).min(context.config.longest_sleep);
        Ok((!next.is_zero()).then(|| answered + next))
    }

    /// Fires what recurs. Gives back when to try again; `None` if the worker ends.
    async fn fire(&mut self) -> Option<Duration> {
        let context = self.context.clone();
        let place = Place::Shard(self.shard.clone());
        tokio::select! {
            biased;
            again = self.firing.round(&*context.backend.recurring, &place, &*context.observer) => Some(again),
            () = context.kill.cancelled() => None,
        }
    }

    /// Room for one task at least. Waits for it, in turn with the other shards; `None` if the worker ends meanwhile.
    async fn room(&mut self) -> Result<Option<OwnedSemaphorePermit>> {
        let context = self.context.clone();
        let hungry = Hungry::new(&context.hungry);
        let mut room = match context.permits.clone().try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                let room = context.permits.clone().acquire_owned();
                tokio::pin!(room);
                // What other shards have taken to ask with is back in a moment; handlers may take any time.
                let moment =
                    if context.held.len() < context.config.concurrency { MOMENT } else { Duration::ZERO };
                let soon = tokio::select! {
                    biased;
                    room = &mut room => Some(room),
                    () = tokio::time::sleep(moment) => None,
                    () = context.stop.cancelled() => return Ok(None),
                };
                let room = match soon {
                    Some(room) => room,
                    None => {
                        self.look_away().await?;
                        tokio::select! {
                            biased;
                            () = context.stop.cancelled() => return Ok(None),
                            room = &mut room => room,
                        }
                    }
                };
                room.map_err(|closed| {
                    Error::new(ErrorKind::Closed, "the worker has no more room").with_source(closed)
                })?
            }
        };
        // A fair share of what is free: the others that want some are on their way.
        let share = context.config.concurrency.div_ceil(hungry.others() + 1).min(MAX_CLAIM);
        let more = context.permits.available_permits().min(share.saturating_sub(1));
        if let Ok(more) = u32::try_from(more)
            && more > 0
            && let Ok(more) = context.permits.clone().try_acquire_many_owned(more)
        {
            room.merge(more);
        }
        Ok(Some(room))
    }

    /// Lets another worker look out for what is due, if this one may be who does.
    async fn look_away(&mut self) -> Result<()> {
        // Given up first: the call that this makes is for others.
        let heard = self.waiting.take().is_some();
        if heard || !self.relieved {
            let context = self.context.clone();
            tokio::select! {
                biased;
                claimed = claim(&context, &self.shard, 0) => drop(claimed?),
                () = context.kill.cancelled() => {}
            }
            self.relieved = true;
        }
        Ok(())
    }

    /// Sleeps until then, or until it is called.
    async fn idle(&mut self, until: Option<Instant>) {
        let Some(until) = until else {
            // Others have their turn, also where nothing ever waits.
            return tokio::task::yield_now().await;
        };
        let context = self.context.clone();
        self.relieved = false;
        let until = context.sleep.until(until);
        tokio::pin!(until);
        loop {
            let waiting = self.waiting.get_or_insert_with(|| {
                let (tasks, shard) = (context.backend.tasks.clone(), self.shard.clone());
                let timeout = context.config.longest_sleep;
                Box::pin(catch_panic(async move { tasks.wait(&shard, timeout).await }))
            });
            let called = tokio::select! {
                biased;
                () = context.stop.cancelled() => return,
                () = context.board.asked(self.shard.shard as usize) => return,
                called = waiting => called,
                () = &mut until => return,
            };
            self.waiting = None;
            match called {
                Ok(called) => {
                    self.wait_monitor.succeeded(&*context.observer);
                    if called {
                        return;
                    }
                }
                Err(error) => {
                    // It still comes when something is due that it knows of.
                    let pause = self.wait_monitor.failed(&error, &*context.observer);
                    return tokio::select! {
                        biased;
                        () = context.stop.cancelled() => {}
                        () = &mut until => {}
                        () = tokio::time::sleep(pause) => {}
                    };
                }
            }
        }
    }
}

async fn claim(context: &Context, shard: &Shard, limit: usize) -> Result<Claimed> {
    let config = &context.config;
    let ask = ClaimRequest {
        worker: context.name.clone(),
        limit,
        hold: config.hold,
        crash_limit: config.crash_limit,
        patience: config.longest_sleep,
        heard: context.heard.of(shard.shard, config.hold),
    };
    let asked = Instant::now();
    let claimed = context.backend.tasks.claim(shard, &ask).await?;
    context.heard.answered(shard.shard, asked, &claimed.server, claimed.now);
    Ok(claimed)
}

/// Counts who wants room.
struct Hungry<'a>(&'a AtomicUsize);

impl<'a> Hungry<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }

    fn others(&self) -> usize {
        self.0.load(Ordering::Relaxed).saturating_sub(1)
    }
}

impl Drop for Hungry<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
