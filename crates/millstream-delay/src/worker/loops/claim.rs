//! The claim loop of a shard: claims due tasks while there is free capacity, and sleeps until the next due time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::suspension::ServerTime;
use millstream_core::tasks::{ClaimRequest, Claimed, ClaimedTask, MAX_CLAIM};
use millstream_core::{Place, Shard};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::fire::Firing;
use crate::worker::context::Context;
use crate::worker::loops::filling::Filling;
use crate::worker::loops::settle::Settling;
use crate::worker::loops::work::Job;
use crate::worker::rooms::{For, Room};
use millstream_engine::catch_panic;
use millstream_engine::{LoopMonitor, Scope};

/// Time limit of the last request at shutdown, after which another worker waits for due tasks. Nothing is lost if it fails.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Shortest pause after an answer that contained no task but a next due time of now.
const BREATH: Duration = Duration::from_millis(1);

/// Interval at which recurring rules are looked at while too many tasks wait for limits.
const LOOK: Duration = Duration::from_secs(10);

/// How long to wait for free capacity that no handler uses, before another worker is left to wait for due tasks.
const MOMENT: Duration = Duration::from_millis(20);

type Waiting = BoxFuture<'static, Result<bool>>;

/// Claims tasks of one shard.
pub(in crate::worker) struct Claimer {
    context: Arc<Context>,
    shard: Shard,
    settlements: UnboundedSender<Settling>,
    /// Monitor of claims.
    monitor: LoopMonitor,
    /// Monitor of waits for a notification.
    wait_monitor: LoopMonitor,
    firing: Firing,
    filling: Filling,
    /// Comparison of the server's clock with the local one.
    time: ServerTime,
    /// Pending wait for a notification, kept over many rounds: a cancelled wait may lose a notification.
    waiting: Option<Waiting>,
    /// Whether another worker can be relied on to wait for due tasks: this one has reported that it does not.
    relieved: bool,
}

impl Claimer {
    pub(in crate::worker) fn new(
        context: Arc<Context>,
        shard: Shard,
        settlements: UnboundedSender<Settling>,
    ) -> Self {
        let scope = || Scope::Shard(shard.clone());
        let monitor = context.loops.monitor("claim", scope());
        let wait_monitor = context.loops.monitor("wait", scope());
        let firing = Firing::new(context.loops.monitor("fire", scope()));
        let (time, filling) = (ServerTime::default(), Filling::new(context.clone()));
        Self {
            context,
            shard,
            settlements,
            monitor,
            wait_monitor,
            firing,
            filling,
            time,
            waiting: None,
            relieved: true,
        }
    }

    /// Claims until the worker ends, and then lets another worker wait for due tasks.
    pub(in crate::worker) async fn run(mut self) {
        let context = self.context.clone();
        while !context.stop.is_cancelled() {
            match catch_panic(self.round()).await {
                Ok(()) => {}
                Err(error) => {
                    // Notifications are ignored during the pause: they do not repair a server.
                    let pause = self.monitor.failed(&error, &*context.observer);
                    // A claim follows soon after an outage: workers that died during it are judged one hold time after that.
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
            tracing::debug!(shard = %self.shard, "other workers were not notified that this worker ends");
        }
    }

    async fn round(&mut self) -> Result<()> {
        let next = self.run_once().await?;
        self.monitor.succeeded(&*self.context.observer);
        self.idle(next).await;
        Ok(())
    }

    /// Runs one round: waits for free capacity, and claims due tasks. Returns when to run the next round; `None` means
    /// immediately.
    async fn run_once(&mut self) -> Result<Option<Instant>> {
        let Some(mut rooms) = self.room().await? else { return Ok(None) };
        let context = self.context.clone();
        let look = context.status.looks();
        let limit = rooms.len();
        let (clock, asked) = (&context.held.clock, context.held.clock.now());
        let before = clock.elapsed();
        self.monitor.begin_round(Duration::ZERO);
        // Not cancelled by a stop, only by a kill: tasks claimed by a lost answer are missing until their claims run out.
        let claimed = tokio::select! {
            biased;
            claimed = claim(&context, &self.shard, limit) => claimed?,
            () = context.kill.cancelled() => return Ok(None),
        };
        self.monitor.idle();
        let answered = Instant::now();
        let Claimed { tasks, crashed, next, recurring, now, .. } = claimed;
        // A suspension of the machine may not show on any local clock. It then shortens the deadlines of all held claims.
        let margin = context.config.hold / 20;
        if let Some(away) = self.time.record_answer(before, clock.elapsed(), now, margin) {
            tracing::warn!(shard = %self.shard, ?away, "the server's clock jumped ahead of ours: deadlines are computed again");
            clock.add_missed(away);
        }
        let taken = tasks.len() + crashed;
        let nothing = taken == 0 && (!recurring || self.firing.is_stuck());
        context.status.claimed(self.shard.shard as usize, look, nothing);
        // If a claim filled its limit, the server lets another worker wait for due tasks, and notifies it. While this
        // worker waits for notifications too, it may be the one that is notified, so it cannot rely on that.
        self.relieved = taken >= limit && self.waiting.is_none();
        if taken > 0 {
            let again = tasks.iter().filter(|task| task.crashes > 0).count();
            let shard = &self.shard;
            context.observer.observe(&Event::Claimed { shard, tasks: tasks.len(), again, crashed });
            if crashed > 0 {
                if let Some(notes) = &context.notes {
                    notes.wake(shard.clone());
                }
                context.status.deaths(shard.shard as usize);
            }
        }
        let (mut surplus, mut jobs) = (0, Vec::with_capacity(tasks.len()));
        for task in tasks {
            let ClaimedTask { id, token, before, .. } = &task;
            let nth = self.shard.shard;
            if before.as_ref().is_some_and(|before| context.held.adopt(nth, id, before, token, asked)) {
                tracing::debug!(shard = %self.shard, %id, "its handler is still running and gets the new claim");
                continue;
            }
            let Some(room) = rooms.pop() else {
                surplus += 1;
                continue;
            };
            let holding = context.held.begin(nth, id, token, asked);
            let (shard, settlements) = (self.shard.clone(), self.settlements.clone());
            let (room, units) = (Some(room), None);
            let demand = None;
            jobs.push(Job { task, shard, now, claimed: answered, holding, room, units, demand, settlements });
        }
        self.filling.add(jobs);
        drop(rooms);
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

    /// Fires due recurring tasks. Returns the time until the next try; `None` if the worker ends.
    async fn fire(&mut self) -> Option<Duration> {
        let context = self.context.clone();
        let place = Place::Shard(self.shard.clone());
        tokio::select! {
            biased;
            again = self.firing.round(&context.backend, &place, &*context.observer) => Some(again),
            () = context.kill.cancelled() => None,
        }
    }

    /// Waits for free capacity for at least one task, in turn with the other shards. Returns `None` if the worker ends
    /// meanwhile.
    async fn room(&mut self) -> Result<Option<Vec<Room>>> {
        let context = self.context.clone();
        let hungry = Hungry::new(&context.hungry);
        let first = loop {
            if !self.unblocked().await? {
                return Ok(None);
            }
            let room = match context.rooms.try_take() {
                Some(room) => room,
                None => {
                    // Rooms that other shards use for a claim are free again in a moment; handlers may take any time.
                    let running = context.held.len().saturating_sub(context.blocked.len());
                    let moment = if running < context.config.concurrency { MOMENT } else { Duration::ZERO };
                    let soon = tokio::select! {
                        biased;
                        room = context.rooms.take(For::Claiming) => Some(room),
                        () = tokio::time::sleep(moment) => None,
                        () = context.stop.cancelled() => return Ok(None),
                    };
                    match soon {
                        Some(room) => room,
                        None => {
                            // Tasks that wait for others of their batch take the room in which these would come.
                            context.flush();
                            self.look_away().await?;
                            tokio::select! {
                                biased;
                                () = context.stop.cancelled() => return Ok(None),
                                room = context.rooms.take(For::Claiming) => room,
                            }
                        }
                    }
                }
            };
            // Others may have claimed meanwhile what waits now.
            if context.blocked.has_room() {
                break room;
            }
        };
        // Takes a fair share of the free rooms: other shards that want some are about to take theirs.
        let share = context.config.concurrency.div_ceil(hungry.others() + 1).min(MAX_CLAIM);
        let more = std::iter::from_fn(|| context.rooms.try_take());
        Ok(Some(std::iter::once(first).chain(more).take(share).collect()))
    }

    /// Waits until few enough tasks wait for limits. Returns false if the worker ends.
    async fn unblocked(&mut self) -> Result<bool> {
        let context = self.context.clone();
        while !context.blocked.has_room() {
            context.flush();
            self.look_away().await?;
            tokio::select! {
                biased;
                () = context.stop.cancelled() => return Ok(false),
                () = context.blocked.room() => {}
                // It may last for hours, in all workers, and what recurs is due on time.
                () = tokio::time::sleep(context.config.longest_sleep.min(LOOK)) => {
                    let recurring = tokio::select! {
                        biased;
                        claimed = claim(&context, &self.shard, 0) => claimed?.recurring,
                        () = context.kill.cancelled() => return Ok(false),
                    };
                    if recurring {
                        self.fire().await;
                    } else {
                        self.firing.over(&*context.observer);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Lets another worker wait for due tasks, if this one may be the one that does.
    async fn look_away(&mut self) -> Result<()> {
        // Cancelled first, so that the notification that the claim causes goes to another worker.
        let is_called = self.waiting.take().is_some();
        if is_called || !self.relieved {
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

    /// Sleeps until `until`, a notification, a requested check, or the stop of the worker.
    async fn idle(&mut self, until: Option<Instant>) {
        let Some(until) = until else {
            // Yields to other tasks, also where no await is ever pending.
            return tokio::task::yield_now().await;
        };
        let context = self.context.clone();
        self.relieved = false;
        let until = context.sleep.until(until);
        tokio::pin!(until);
        loop {
            let waiting = self.waiting.get_or_insert_with(|| {
                let (backend, shard) = (context.backend.clone(), self.shard.clone());
                let timeout = context.config.longest_sleep;
                Box::pin(catch_panic(async move { backend.tasks()?.wait(&shard, timeout).await }))
            });
            let called = tokio::select! {
                biased;
                () = context.stop.cancelled() => return,
                () = context.status.asked(self.shard.shard as usize) => return,
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
                    // The wait failed, but the loop still wakes for the next due time that it knows.
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
        longest_sleep: config.longest_sleep,
        continuity: context.answers.of(shard.shard, config.hold),
    };
    let asked = Instant::now();
    let claimed = context.backend.tasks()?.claim(shard, &ask).await?;
    context.answers.answered(shard.shard, asked, &claimed.server, claimed.now);
    Ok(claimed)
}

/// Counts the shards that want free capacity.
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
