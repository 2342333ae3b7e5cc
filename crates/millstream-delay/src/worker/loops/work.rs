//! One claimed task: from its claim to its settlement.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Handled};
use millstream_core::panics::discard;
use millstream_core::span::{Failed, MessagingOperation, OperationKind, SpanMessage};
use millstream_core::tasks::{ClaimedTask, Verdict};
use millstream_core::{Envelope, Outcome, ScheduleId, Shard, Timestamp, wire};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::task::About;
use crate::worker::claims::held::Holding;
use crate::worker::context::Context;
use crate::worker::decide::{Attempt, Said, decide};
use crate::worker::handler::Input;
use crate::worker::loops::renew;
use crate::worker::loops::settle::Settling;
use millstream_engine::{LoopMonitor, Scope};

/// Claimed task. If it panics itself, its claim is dropped with it, and runs out.
pub(in crate::worker) struct Job {
    pub(in crate::worker) task: ClaimedTask,
    pub(in crate::worker) shard: Shard,
    /// Server time of the claim.
    pub(in crate::worker) now: Timestamp,
    pub(in crate::worker) holding: Holding,
    pub(in crate::worker) permit: OwnedSemaphorePermit,
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

impl Job {
    /// Runs the handler and sends the settlement.
    pub(in crate::worker) async fn run(mut self, context: Arc<Context>) {
        match self.leave(&context).await {
            Leave::Granted => {}
            Leave::Ending => return self.hand_back(&context),
            Leave::Lost => {
                let (token, _) = self.holding.claim();
                let lost = usize::from(self.holding.lost(&token));
                return renew::tell(&context, &self.shard, lost);
            }
        }
        let started = Instant::now();
        let (said, message) = match self.input(&context) {
            Ok((input, message)) => (call(&context, input).await, message),
            Err(said) => (said, None),
        };
        self.end(&context, said, started.elapsed(), message.as_ref());
    }

    /// Hands the task back without having begun, since the worker is shutting down.
    pub(in crate::worker) fn hand_back(self, context: &Context) {
        self.end(context, Said::Unbegun, Duration::ZERO, None);
    }

    /// Checks whether the handler may begin. It may not if another worker may have the task, since the claim's answer
    /// may have come late. If a worker died during the task, the begin is first reported to the server: otherwise
    /// answers that are lost again and again would look like a task that kills workers.
    async fn leave(&self, context: &Context) -> Leave {
        let monitor = LoopMonitor::unlisted("extend", Scope::Shard(self.shard.clone()));
        loop {
            // Read in each round: the task may have been claimed again for this job.
            let (token, deadline) = self.holding.claim();
            let asked = context.held.clock.now();
            if asked >= deadline {
                return Leave::Lost;
            }
            if self.task.crashes == 0 {
                return Leave::Granted;
            }
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
    fn input(&mut self, context: &Context) -> Result<(Input, Option<Envelope>), Said> {
        let fields = std::mem::take(&mut self.task.fields);
        if fields.is_empty() {
            return Err(Said::Orphan);
        }
        let envelope = wire::decode_body(&fields, &context.limits);
        let envelope = envelope.map_err(|why| Said::Malformed(why.to_string()))?;
        let message = context.policies_need_message.then(|| envelope.clone());
        let task = &self.task;
        let about = About {
            id: task.id.clone(),
            shard: self.shard.clone(),
            due: task.due,
            late: self.late(),
            attempt: task.attempt,
            crashes: task.crashes,
            error: task.error.clone(),
            history: task.history.clone(),
            key: envelope.key,
            headers: envelope.headers,
            cancelled: self.holding.cancelled.clone(),
        };
        let again = task.crashes > 0 || task.attempt > 1 || !task.history.is_empty();
        Ok((Input { about, payload: envelope.payload, again }, message))
    }

    fn late(&self) -> Duration {
        self.now.saturating_duration_since(self.task.due)
    }

    fn end(self, context: &Context, said: Said, elapsed: Duration, message: Option<&Envelope>) {
        let late = self.late();
        let Self { task, shard, now, holding, permit, settlements } = self;
        let attempt = Attempt {
            number: task.attempt,
            history: &task.history,
            now: now.saturating_add(elapsed),
            entropy: fastrand::u64(..),
            shard: &shard,
            message,
        };
        let (verdict, handled) = decide(&said, &attempt, &context.policies());
        let verdict = match (verdict, handled, context.config.done_window) {
            // A task that the policy discarded was not done.
            (Verdict::Complete, Some(Handled::Acked), Some(window)) => Verdict::CompleteFor(window),
            (verdict, ..) => verdict,
        };
        let error = match (&verdict, &said) {
            // Nothing failed, or the text may quote the task: then nobody but the dead task gets it.
            (_, Said::Outcome(Outcome::Snooze(_)) | Said::Undecodable(_) | Said::Malformed(_)) => None,
            (Verdict::Retry { error, .. } | Verdict::Dead { error, .. }, _) => Some(&**error),
            _ => None,
        };
        if let Some(handled) = handled {
            let (attempt, task) = (task.attempt, &task.id);
            log_failure(&shard, task, attempt, handled, error);
            context.observer.observe(&Event::Worked {
                shard: &shard,
                task,
                attempt,
                handled,
                late,
                elapsed,
                error,
            });
        }
        discard(said, &*context.observer);
        let settling = Settling { id: task.id, holding, verdict, handled, permit };
        // A closed channel means that the worker has ended before this job: the claim runs out.
        let _ = settlements.send(settling);
    }
}

/// Calls the handler, in a span if there is a tracer.
async fn call(context: &Context, input: Input) -> Said {
    let Some(tracing) = &context.tracing else { return (context.handler)(input, context.kill.clone()).await };
    let mut span = {
        let About { id, shard, attempt, headers, .. } = &input.about;
        let mut message = SpanMessage::new(headers);
        message.id = Some(id);
        message.body = Some(input.payload.len());
        let messages = [message];
        let mut operation = MessagingOperation::new(OperationKind::Process, shard.queue.as_str());
        (operation.partition, operation.attempt) = (Some(shard.shard), Some(*attempt));
        operation.messages = &messages;
        tracing.start(&operation)
    };
    let said = span.within((context.handler)(input, context.kill.clone())).await;
    span.end(said.error().map(|error| Failed { error, messages: 1 }));
    said
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
