//! Limits of a worker: a task gets the units and tokens that it needs before its handler begins.

use std::time::Duration;

use millstream_core::batches::Demand;
use millstream_core::wire;
use millstream_engine::handler::Verdict;
use millstream_engine::limits::{Needs, Obtaining, Permit, PermitAnswer};
use tokio::time::{Instant, sleep, sleep_until};

use crate::worker::claims::blocked::BlockedTask;
use crate::worker::context::Context;
use crate::worker::loops::work::Job;
use crate::worker::rooms::{For, Room};

/// How long a task may have units and no room. Handlers may take an hour: others can use the units meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a task keeps its room while it is not known whether it waits.
const UNKNOWN: Duration = Duration::from_secs(1);

/// How long a task that had no room in time keeps its next one while it waits: twice as long each time, up to so long. The answer of the
/// server takes a moment, and of a key that is always in use somewhere it must be there when its turn comes.
const LONGEST: Duration = Duration::from_secs(5);

/// A task that waits for limits.
///
/// It has no room, so that others can be claimed that need something else; but it keeps its claim. What it is granted gets it the next
/// room that becomes free. If there is none in time it gives all back, and asks again when it has a room: nobody keeps what it cannot use.
pub(in crate::worker) struct Waiting {
    job: Job,
    needs: Needs,
    bytes: usize,
    request: Obtaining,
    blocked: Option<BlockedTask>,
    /// How often it has given back what it was granted.
    given_back: u32,
    /// Until when it keeps its room.
    keeps_until: Option<Instant>,
}

/// What happened to a task that waits.
enum Happened {
    Answered(PermitAnswer),
    /// It has kept its room for long enough.
    Late,
    /// The worker ends, or the claim is lost.
    Over,
}

impl Job {
    /// Asks for what the task needs of limits, in its place behind those that have asked.
    ///
    /// # Errors
    /// The task that waits.
    pub(in crate::worker) fn ask(mut self, context: &Context) -> Result<Self, Box<Waiting>> {
        let Some(pool) = &context.limited else { return Ok(self) };
        let fields = &self.task.fields;
        let Ok(message) = wire::decode_body(fields, &context.limits) else { return Ok(self) };
        // It may be given up by its limit, without a handler.
        self.demand = Demand::of(&message.headers).map(Box::new);
        let needs = pool.needs(&message, &*context.observer);
        if needs.is_empty() {
            return Ok(self);
        }
        let bytes = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        match pool.request(needs.clone()) {
            Ok(units) => {
                self.units = Some(units);
                Ok(self)
            }
            Err(request) => {
                let (blocked, given_back, keeps_until) = (None, 0, Some(Instant::now() + UNKNOWN));
                Err(Box::new(Waiting { job: self, needs, bytes, request, blocked, given_back, keeps_until }))
            }
        }
    }
}

impl Waiting {
    /// Waits until the task has what it needs, and room. `None` if it ended meanwhile.
    pub(in crate::worker) async fn admitted(mut self, context: &Context) -> Option<Job> {
        loop {
            let keeps_until = self.keeps_until;
            let keeps = async {
                match keeps_until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let happened = tokio::select! {
                biased;
                () = over(&self.job, context) => Happened::Over,
                answer = self.request.answer() => Happened::Answered(answer),
                () = keeps => Happened::Late,
            };
            match happened {
                Happened::Over => return self.end(context),
                Happened::Late => self.leave_room(context),
                Happened::Answered(PermitAnswer::Parked(_)) => {
                    if self.given_back == 0 {
                        self.leave_room(context);
                    }
                }
                Happened::Answered(PermitAnswer::Refused(key)) => {
                    self.job.give_up(context, Verdict::OverLimit(key));
                    return None;
                }
                Happened::Answered(PermitAnswer::Granted(units)) => {
                    let (room, units) = match self.job.room.take() {
                        Some(room) => (Some(room), Some(units)),
                        None => self.room(context, units).await,
                    };
                    let Some(room) = room else { return self.end(context) };
                    self.job.room = Some(room);
                    if let Some(units) = units {
                        self.job.units = Some(units);
                        return Some(self.job);
                    }
                    (self.blocked, self.given_back) = (None, self.given_back + 1);
                    let keeps = PATIENCE * 2_u32.saturating_pow(self.given_back.min(10));
                    self.keeps_until = Some(Instant::now() + keeps.min(LONGEST));
                    let request = context.limited.as_ref().map(|pool| pool.request(self.needs.clone()));
                    match request {
                        Some(Err(request)) => self.request = request,
                        Some(Ok(units)) => {
                            self.job.units = Some(units);
                            return Some(self.job);
                        }
                        None => return Some(self.job),
                    }
                }
            }
        }
    }

    /// Waits for a room, with these units at first. `None` if it is over meanwhile.
    async fn room(&self, context: &Context, units: Permit) -> (Option<Room>, Option<Permit>) {
        // One that asked again could be dropped.
        let drops = self.needs.drops || self.needs.tokens.iter().any(|need| need.drops);
        tokio::select! {
            biased;
            () = over(&self.job, context) => return (None, None),
            room = context.rooms.take(For::Granted) => return (Some(room), Some(units)),
            () = sleep(PATIENCE), if !drops => {}
        }
        drop(units);
        tokio::select! {
            biased;
            () = over(&self.job, context) => (None, None),
            room = context.rooms.take(For::Asking) => (Some(room), None),
        }
    }

    fn leave_room(&mut self, context: &Context) {
        self.keeps_until = None;
        if self.job.room.take().is_some() {
            self.blocked = Some(context.blocked.add(self.bytes));
        }
    }

    /// Ends a task that will not begin.
    fn end(self, context: &Context) -> Option<Job> {
        if self.job.is_cancelled(context) {
            self.job.cancel(context, false);
        } else {
            // Also if the claim may be lost, in an outage: nobody else counts this as a crash, unless it was claimed meanwhile.
            self.job.hand_back(context);
        }
        None
    }
}

/// Waits until a task may not begin any more.
async fn over(job: &Job, context: &Context) {
    tokio::select! {
        () = context.stop.cancelled() => {}
        () = job.holding.cancelled.cancelled() => {}
        () = job.holding.asked.cancelled() => {}
    }
}
