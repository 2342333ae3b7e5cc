//! One task in hand: from its claim to what is told of it.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Shard;
use millstream_core::event::Event;
use millstream_core::tasks::ClaimedTask;
use millstream_core::wire;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::decide::{Attempt, Policies, Said, decide};
use super::handler::Input;
use super::settle::Settling;
use crate::task::About;

/// A task that was claimed.
pub(super) struct Job {
    pub(super) task: ClaimedTask,
    pub(super) shard: Shard,
    /// The server's time when it was claimed, in milliseconds.
    pub(super) now: u64,
    pub(super) cancelled: CancellationToken,
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) settlements: UnboundedSender<Settling>,
}

impl Job {
    /// Works on it.
    pub(super) async fn run(mut self, context: Arc<Context>) {
        let started = Instant::now();
        let said = match self.input(&context) {
            Ok(input) => (context.handler)(input, context.kill.clone()).await,
            Err(said) => said,
        };
        self.end(&context, said, started.elapsed());
    }

    /// Gives it back without having begun: the worker ends.
    pub(super) fn hand_back(self, context: &Context) {
        self.end(context, Said::Unfinished, Duration::ZERO);
    }

    /// The task for the handler; what is none is judged instead.
    fn input(&mut self, context: &Context) -> Result<Input, Said> {
        let fields = std::mem::take(&mut self.task.fields);
        if fields.is_empty() {
            return Err(Said::Orphan);
        }
        let envelope = wire::decode_body(&fields, &context.limits);
        let envelope = envelope.map_err(|why| Said::Malformed(why.to_string()))?;
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
            cancelled: self.cancelled.clone(),
        };
        Ok(Input { about, payload: envelope.payload, again: task.crashes > 0 || task.attempt > 1 })
    }

    fn late(&self) -> Duration {
        Duration::from_millis(self.now.saturating_sub(self.task.due))
    }

    fn end(self, context: &Context, said: Said, elapsed: Duration) {
        let late = self.late();
        let Self { task, shard, now, permit, settlements, .. } = self;
        let attempt = Attempt {
            number: task.attempt,
            history: &task.history,
            now: now.saturating_add(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
            entropy: fastrand::u64(..),
        };
        let policies =
            Policies { retry: &*context.config.retry, dead_letters: &*context.config.dead_letters };
        let (verdict, handled) = decide(said, &attempt, &policies);
        if let Some(handled) = handled {
            let attempt = task.attempt;
            context.observer.observe(&Event::Worked { shard: &shard, attempt, handled, late, elapsed });
        }
        let settling = Settling { id: task.id, verdict, handled, _permit: permit };
        // A closed channel means that the worker has ended without us: the claim runs out.
        let _ = settlements.send(settling);
    }
}
