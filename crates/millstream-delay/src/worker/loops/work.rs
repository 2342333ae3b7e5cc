//! One claimed task: from its claim to its settlement.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::batches::{BatchMember, Demand};
use millstream_core::cancels::CancelMark;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Handled};
use millstream_core::log::ProgressRight;
use millstream_core::panics::discard;
use millstream_core::results::StoredResult;
use millstream_core::schedule::Due;
use millstream_core::tasks::{ClaimedTask, Verdict as TaskVerdict};
use millstream_core::{Envelope, MessageId, ScheduleId, Shard, Timestamp, wire};
use millstream_engine::decide::{CurrentAttempt, Ending, decide, stored};
use millstream_engine::delivery::{AttemptHistory, DeliveryMetadata, DeliveryScope, TaskFacts};
use millstream_engine::handler::{ErasedHandler, Input, Said, Verdict};
use millstream_engine::limits::Permit;
use millstream_engine::requests::{Reports, end_all};
use millstream_engine::{LoopMonitor, Scope};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::worker::claims::held::Holding;
use crate::worker::context::Context;
use crate::worker::loops::renew;
use crate::worker::loops::settle::{EndCancelled, Settling};
use crate::worker::rooms::Room;
use crate::worker::steps;

/// Error of an attempt whose handler was dropped.
const UNFINISHED: &str = "the worker ended before the handler did";

/// Error of an attempt that lost its units of limits.
const VOID: &str = "the units of its limits were lost while it was handled";

/// Error of an attempt that is put off after a worker ended over the task.
const CRASHED: &str = "a worker ended while it had the task";

/// Claimed task. If it panics itself, its claim is dropped with it, and runs out.
pub(in crate::worker) struct Job {
    pub(in crate::worker) task: ClaimedTask,
    pub(in crate::worker) shard: Shard,
    /// Server time of the claim, and when its answer came.
    pub(in crate::worker) now: Timestamp,
    pub(in crate::worker) claimed: Instant,
    pub(in crate::worker) holding: Holding,
    /// `None` while it waits for limits.
    pub(in crate::worker) room: Option<Room>,
    /// What it has of limits, if it needs something.
    pub(in crate::worker) units: Option<Permit>,
    /// Set when its message is read, for its limits or for its handler, if it demands something to be stored.
    pub(in crate::worker) demand: Option<Box<Demand>>,
    pub(in crate::worker) settlements: UnboundedSender<Settling>,
}

/// Whether a handler may begin.
enum Leave {
    Granted,
    /// The claim is no longer certainly valid.
    Lost,
    /// The worker is shutting down.
    Ending,
}

/// How the work on a task ended.
enum Ended {
    /// This was said of it.
    Judged(Said),
    /// The work was not begun, because the worker is shutting down.
    Unbegun,
    /// The units of limits were lost meanwhile, so others may have worked on tasks in its place: what came of it does not count.
    Void,
}

/// Passes tasks to the handler, one or a batch, and sends their settlements.
pub(in crate::worker) async fn run(jobs: Vec<Job>, context: Arc<Context>) {
    let begun = join_all(jobs.into_iter().map(|job| job.begin(&context))).await;
    let started = Instant::now();
    let (mut inputs, mut given) = (Vec::new(), Vec::new());
    for mut job in begun.into_iter().flatten() {
        match job.input(&context) {
            Ok((input, message)) => {
                inputs.push(input);
                given.push((job, message));
            }
            Err(verdict) => job.give_up(&context, verdict),
        }
    }
    if inputs.is_empty() {
        return;
    }
    let reports: Vec<_> = inputs.iter().filter_map(|input| input.about.reports.clone()).collect();
    let ended = call(&context, inputs, given.len()).await;
    let elapsed = started.elapsed();
    // Outside of the handler's time and of all layers, which may drop it.
    end_all(reports).await;
    for ((job, message), mut ended) in given.into_iter().zip(ended) {
        if matches!(ended, Ended::Judged(_)) && !job.counts(&context).await {
            discard(std::mem::replace(&mut ended, Ended::Void), &*context.observer);
        }
        job.end(&context, &ended, elapsed, message.as_ref());
        // The error of a handler is user code, and so is its drop.
        discard(ended, &*context.observer);
    }
}

/// Calls the handler. Returns as many answers as there are tasks.
async fn call(context: &Context, inputs: Vec<Input>, tasks: usize) -> Vec<Ended> {
    let timeout = context.config.handler_timeout;
    let mut ended = Vec::with_capacity(tasks);
    match &context.handler {
        ErasedHandler::Each(call) => {
            for input in inputs {
                let verdict = call.one(input, timeout).await.into_verdict();
                ended.push(verdict.map_or(Ended::Unbegun, |verdict| Ended::Judged(Said::Own(verdict))));
            }
        }
        ErasedHandler::Batch(_, call) => {
            ended.extend(call(inputs, timeout).await.into_iter().map(Ended::Judged));
        }
    }
    ended.resize_with(tasks, || Ended::Unbegun);
    ended
}

impl Job {
    /// Returns the job if its handler may begin, and ends it otherwise.
    async fn begin(self, context: &Context) -> Option<Self> {
        // Before the begin is reported. It is claimed again, and waits for units again.
        if self.units.as_ref().is_some_and(|units| !units.is_live()) {
            self.hand_back(context);
            return None;
        }
        tokio::select! {
            biased;
            () = context.cancels.until_read(&self.shard) => {}
            () = self.holding.cancelled.cancelled() => {}
            () = context.stop.cancelled() => {
                self.hand_back(context);
                return None;
            }
        }
        match self.leave(context).await {
            Leave::Granted if self.is_cancelled(context) => self.cancel(context, false),
            Leave::Granted => {
                self.holding.begun();
                return Some(self);
            }
            Leave::Ending => self.hand_back(context),
            Leave::Lost => {
                let (token, _) = self.holding.claim();
                let lost = usize::from(self.holding.lost(&token));
                renew::tell(context, &self.shard, lost);
            }
        }
        None
    }

    /// Whether somebody asks that this attempt ends.
    pub(in crate::worker) fn is_cancelled(&self, context: &Context) -> bool {
        // The mark may have been read before the answer to the claim.
        self.holding.asked.is_cancelled() || self.has_mark(context) || self.is_of_batch(context)
    }

    fn has_mark(&self, context: &Context) -> bool {
        context.cancels.has(&self.shard, &self.task.id, &self.holding.claim().0)
    }

    /// Whether it is a member of a batch that is cancelled.
    fn is_of_batch(&self, context: &Context) -> bool {
        context.cancels.has_batch(&self.shard, || {
            let member = match &self.demand {
                Some(demand) => demand.member.clone(),
                None => BatchMember::of(&wire::decode_body(&self.task.fields, &context.limits).ok()?.headers),
            };
            member.map(|member| member.batch)
        })
    }

    /// Ends a task that was cancelled; whether its handler has run.
    pub(in crate::worker) fn cancel(mut self, context: &Context, ran: bool) {
        if self.demand.is_none()
            && let Ok(message) = wire::decode_body(&self.task.fields, &context.limits)
        {
            self.demand = Demand::of(&message.headers).map(Box::new);
        }
        self.end(context, &Ended::Judged(Said::Own(Verdict::Cancelled(ran))), Duration::ZERO, None);
    }

    /// Whether what came of the task counts: it had its units all the time.
    async fn counts(&self, context: &Context) -> bool {
        let (Some(pool), Some(units)) = (&context.limited, &self.units) else { return true };
        tokio::select! {
            biased;
            counts = pool.counts(units) => counts,
            () = context.kill.cancelled() => false,
        }
    }

    /// Settles the task without a handler.
    pub(in crate::worker) fn give_up(self, context: &Context, verdict: Verdict) {
        self.end(context, &Ended::Judged(Said::Own(verdict)), Duration::ZERO, None);
    }

    /// Hands the task back without having begun, since the worker is shutting down.
    pub(in crate::worker) fn hand_back(self, context: &Context) {
        self.end(context, &Ended::Unbegun, Duration::ZERO, None);
    }

    /// Checks whether the handler may begin. It may not if another worker may have the task, since the claim's answer
    /// may have come late. If a worker died during the task, the begin is first reported to the server: otherwise
    /// answers that are lost again and again would look like a task that kills workers.
    async fn leave(&self, context: &Context) -> Leave {
        let mut monitor: Option<LoopMonitor> = None;
        loop {
            // Read in each round: the task may have been claimed again for this job.
            let (token, deadline) = self.holding.claim();
            let asked = context.held.clock.now();
            // The claim of a task that waited for others of its batch may be lost by now.
            if asked >= deadline || self.holding.cancelled.is_cancelled() {
                return Leave::Lost;
            }
            if self.task.crashes == 0 {
                return Leave::Granted;
            }
            // If this job ends during an outage, the next one reports that the server answers again.
            let scope = || Scope::Shard(self.shard.clone());
            let monitor = monitor.get_or_insert_with(|| context.loops.monitor("extend", scope()));
            let told = tokio::select! {
                biased;
                () = context.stop.cancelled() => return Leave::Ending,
                told = tokio::time::timeout(deadline - asked, self.tell_begun(context, &token)) => told,
            };
            match told {
                Ok(Ok(true)) => {
                    monitor.succeeded(&*context.observer);
                    self.holding.renewed(&token, asked);
                    return Leave::Granted;
                }
                Ok(Ok(false)) if self.holding.claim().0 == token => return Leave::Lost,
                // The job holds the task under another token, or there was no answer before the deadline, which is
                // checked above.
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(error)) => {
                    let pause = monitor.failed(&error, &*context.observer);
                    tokio::select! {
                        biased;
                        () = context.stop.cancelled() => return Leave::Ending,
                        () = tokio::time::sleep(pause.min(context.config.hold / 10)) => {}
                    }
                }
            }
        }
    }

    async fn tell_begun(&self, context: &Context, token: &str) -> Result<bool> {
        let claims = [(self.task.id.clone(), token.to_owned())];
        let told = context.backend.tasks()?.extend(&self.shard, &claims, context.config.hold, true).await?;
        match told.ours[..] {
            [ours] => Ok(ours),
            _ => Err(Error::new(ErrorKind::Protocol, format!("{} answers to one renewal", told.ours.len()))),
        }
    }

    /// Builds the handler's input, and a copy of the message if a policy needs it; an invalid message is settled without a
    /// handler.
    fn input(&mut self, context: &Context) -> Result<(Input, Option<Envelope>), Verdict> {
        let fields = std::mem::take(&mut self.task.fields);
        if fields.is_empty() {
            return Err(Verdict::Orphan);
        }
        let envelope = wire::decode_body(&fields, &context.limits).map_err(Verdict::Malformed)?;
        self.demand = Demand::of(&envelope.headers).map(Box::new);
        if let Some(member) = self.demand.as_ref().and_then(|demand| demand.member.as_ref()) {
            self.holding.in_batch(member.batch.clone());
            // Whoever read the marks meanwhile did not know of it.
            if self.is_of_batch(context) {
                self.holding.asked.cancel();
            }
        }
        let message = context.policies_need_message.then(|| envelope.clone());
        let task = &self.task;
        let facts = TaskFacts {
            id: task.id.clone(),
            shard: self.shard.clone(),
            due: task.due,
            late: self.late(),
            crashes: task.crashes,
        };
        let (attempt, deliveries) = (task.attempt, task.crashes.saturating_add(1));
        let error = Some(&task.error).filter(|error| !error.is_empty()).cloned();
        let past = AttemptHistory::of(error, task.history.clone());
        let (facts, cancelled) = (Arc::new(facts), self.holding.cancelled.clone());
        let steps = steps::of_task(&context.steps, &self.shard, &task.id, self.holding.token());
        let scope = DeliveryScope::of_task(facts, cancelled, context.stop.clone()).with_steps(steps);
        let mut scope = scope.with_asked(self.holding.asked.clone());
        if let Some(units) = &mut self.units {
            scope = scope.with_units(units.right().clone()).with_begun(units.begin());
        }
        let about = DeliveryMetadata {
            scope: Arc::new(scope),
            id: MessageId::ZERO,
            origin: MessageId::ZERO,
            attempt,
            deliveries,
            past,
            key: envelope.key,
            headers: envelope.headers,
            reports: self.reports(context),
        };
        Ok((Input { about, payload: envelope.payload }, message))
    }

    /// Returns what stores the progress of the task, if it asks for its result.
    fn reports(&self, context: &Context) -> Option<Reports> {
        let request = self
            .demand
            .as_deref()
            .filter(|_| context.answering.kept.0 && context.answering.replies)?
            .result?;
        let (shard, task, token) = (self.shard.clone(), self.task.id.clone(), self.holding.token());
        let right =
            move || ProgressRight::Worker { shard: shard.clone(), task: task.clone(), token: token() };
        Some(Reports::new(context.backend.log().clone(), request, self.task.attempt, right))
    }

    fn late(&self) -> Duration {
        self.now.saturating_duration_since(self.task.due)
    }

    fn end(self, context: &Context, ended: &Ended, elapsed: Duration, message: Option<&Envelope>) {
        let late = self.late();
        let is_for_later = matches!(ended, Ended::Judged(said) if said.verdict().may_be_cancelled());
        let cancelled =
            if is_for_later && self.is_cancelled(context) { Some(Verdict::Cancelled(true)) } else { None };
        // A mark that is this task's own is answered; that of its batch needs no answer.
        let has_mark = self.has_mark(context) || !self.is_of_batch(context);
        let was_handed_out = self.task.before.is_some() || self.task.crashes > 0;
        let Self { task, shard, now, claimed, holding, room, units, demand, settlements } = self;
        let again = |due: Due, error: String| TaskVerdict::Retry {
            due,
            attempt: task.attempt,
            error,
            history: task.history.clone(),
            wait: None,
        };
        let mut cancel = None;
        let (verdict, handled) = match ended {
            // The same attempt again. The history shows that it had begun, so the check is asked before it does again.
            Ended::Judged(Said::Own(Verdict::Unfinished)) => (again(Due::NOW, UNFINISHED.to_owned()), None),
            Ended::Judged(Said::Shared(verdict)) if matches!(**verdict, Verdict::Unfinished) => {
                (again(Due::NOW, UNFINISHED.to_owned()), None)
            }
            Ended::Judged(said) => {
                let (verdict, now) = (said.verdict(), now.saturating_add(claimed.elapsed()));
                let judged = units.and_then(|mut units| verdict.replaced(&mut units, &*context.observer));
                let verdict = judged.as_ref().unwrap_or(verdict);
                let begun = !matches!(verdict, Verdict::Cancelled(false));
                let verdict = cancelled.as_ref().filter(|_| begun).unwrap_or(verdict);
                let since = task.history.since();
                let attempt = || CurrentAttempt {
                    number: task.attempt,
                    // What is put off keeps the knowledge that a worker ended over it: the check is asked.
                    last_error: (task.crashes > 0).then_some(CRASHED),
                    history: &task.history,
                    elapsed: since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
                    now: Some(now.as_millis()),
                    entropy: fastrand::u64(..),
                    place: (shard.queue.as_str(), shard.shard),
                    message,
                };
                let decided = decide(verdict, attempt, &context.policies());
                let (handled, error) = (decided.handled, decided.told(verdict));
                log_failure(&shard, &task.id, task.attempt, handled, error);
                context.observer.observe(&Event::Worked {
                    shard: &shard,
                    task: &task.id,
                    attempt: task.attempt,
                    handled,
                    late,
                    elapsed,
                    error,
                });
                let stored = demand.and_then(|demand| {
                    stored(*demand, verdict, &decided.ending, task.attempt, &context.answering)
                });
                if let Verdict::Cancelled(ran) = verdict
                    && has_mark
                {
                    let mark = match (was_handed_out, *ran) {
                        // The worker that lost it may still be at it.
                        (true, _) => CancelMark::Withdrawn,
                        (false, true) => CancelMark::Stopped,
                        (false, false) => CancelMark::Cancelled,
                    };
                    cancel = Some(EndCancelled { mark, result: stored });
                    // Unless its mark is gone by then.
                    (again(Due::NOW, String::new()), Some(handled))
                } else {
                    (settlement(decided.ending, context.config.done_window, stored), Some(handled))
                }
            }
            // In its place among those that are due.
            Ended::Unbegun => (again(Due::At(task.due), String::new()), None),
            Ended::Void => (again(Due::NOW, VOID.to_owned()), None),
        };
        let settling = Settling { id: task.id, holding, verdict, handled, room, cancel };
        // A closed channel means that the worker has ended before this job: the claim runs out.
        let _ = settlements.send(settling);
    }
}

/// Returns the settlement of a task.
fn settlement(
    ending: Ending,
    done_window: Option<Duration>,
    result: Option<Box<StoredResult>>,
) -> TaskVerdict {
    // A task that the policy discarded was not done.
    let window = done_window.filter(|_| ending == Ending::Done);
    match ending {
        Ending::Done | Ending::Dropped(_) => match (window, result) {
            (window, Some(result)) => TaskVerdict::CompleteWith { window, result },
            (Some(window), None) => TaskVerdict::CompleteFor(window),
            (None, None) => TaskVerdict::Complete,
        },
        Ending::Again { due, attempt, error, history, wait } => {
            TaskVerdict::Retry { due, attempt, error, history, wait }
        }
        Ending::Dead { reason, attempts, error, history } => {
            TaskVerdict::Dead { reason, attempts, error, history, result }
        }
    }
}

/// Logs the result of an attempt that failed. Of the task only its id is quoted.
fn log_failure(shard: &Shard, task: &ScheduleId, attempt: u32, handled: Handled, error: Option<&str>) {
    match handled {
        Handled::Retried => {
            tracing::info!(%shard, %task, attempt, error, "an attempt failed: the task is retried");
        }
        Handled::Dead => {
            tracing::warn!(%shard, %task, attempt, error, "the task is given up and kept as dead");
        }
        Handled::Discarded => {
            tracing::warn!(%shard, %task, attempt, error, "the task is given up and dropped");
        }
        _ => {}
    }
}
