//! A row: messages of one partition that a task handles one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::consumer::RetryOrder;
use crate::consumer::context::Subscription;
use crate::consumer::partition::dispatch::Unit;
use crate::consumer::partition::dispatch::running::RunningUnits;
use crate::consumer::partition::leases::WorkerLease;
use crate::consumer::pauses::Pause;
use millstream_core::Outcome;
use millstream_engine::handler::{self, ErasedHandler, Input, Said, Verdict};

/// Time budget of a row. After it no further message begins, so that the finished ones are settled.
const BUDGET: Duration = Duration::from_millis(1);

/// Messages that are handled in their order, as long as nothing prevents the next one from being handled right after the
/// one before it. The others are returned without a verdict.
pub(in crate::consumer) struct Row {
    context: Arc<Subscription>,
    lease: WorkerLease,
    pause: Pause,
    unit: Unit,
    /// Index of the next message, or the one that is being handled.
    at: usize,
    /// Index of that message in the whole row, for others.
    shown: Arc<AtomicUsize>,
    /// Number of messages that left before it.
    left: usize,
    /// When the row began.
    since: Instant,
    /// When the message that is being handled began.
    begun: Instant,
    /// Whether no further message may begin.
    over: bool,
    /// Takes messages that are done, if one behind them waits.
    early: UnboundedSender<Unit>,
}

impl Row {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        lease: WorkerLease,
        pause: Pause,
        unit: Unit,
        early: UnboundedSender<Unit>,
    ) -> Self {
        let now = Instant::now();
        let shown = Arc::default();
        Self {
            context,
            lease,
            pause,
            unit,
            at: 0,
            shown,
            left: 0,
            since: now,
            begun: now,
            over: false,
            early,
        }
    }

    /// Handles the messages, and returns all.
    pub(in crate::consumer) async fn run(mut self, shown: &Arc<RunningUnits>) -> Unit {
        let context = self.context.clone();
        let _shown = shown.begin(&self.unit, Some(&self.shown));
        self.since = Instant::now();
        if let ErasedHandler::Each(call) = &context.handler {
            let _running = context.status.handler();
            call.all(&mut self, context.config.handler_timeout).await;
        }
        self.unit
    }

    /// Whether the next message may begin.
    fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        self.begun = now;
        !self.over
            // The first one always begins, or a machine that is slow enough would begin none.
            && (self.at == 0 || now.duration_since(self.since) < BUDGET)
            && self.lease.is_live(now)
            && !self.pause.is_on()
    }

    /// Whether a failed message is handled again before those behind it.
    fn keeps_order(&self) -> bool {
        self.context.config.retry_order != RetryOrder::Skip
    }
}

impl handler::Row for Row {
    fn next(&mut self) -> Option<Input> {
        let keep = self.context.keeps_messages();
        while self.at < self.unit.len() && self.goes_on() {
            let (_, job) = &mut self.unit[self.at];
            if let Some(input) = job.input(&self.context, keep) {
                self.shown.store(self.left + self.at, Ordering::Relaxed);
                return Some(input);
            }
            // It is no message, or is cancelled: it was judged.
            self.at += 1;
            self.over = self.keeps_order();
        }
        None
    }

    fn handler_pending(&mut self) {
        // The results before it must not wait for it, and what is behind it is not handled for a while.
        self.over = true;
        if self.at > 0 {
            // A closed channel means that the worker has ended.
            let _ = self.early.send(self.unit.drain(..self.at).collect());
            self.left += self.at;
            self.at = 0;
        }
    }

    fn finish(&mut self, verdict: Option<Verdict>) {
        let keeps_order = self.keeps_order();
        let Some((_, job)) = self.unit.get_mut(self.at) else { return };
        job.elapsed = self.begun.elapsed();
        job.share = Some(job.elapsed);
        self.over |= match &verdict {
            // It was not handled, because the consumer is about to end.
            None => true,
            Some(
                Verdict::Said(Outcome::Ack | Outcome::Reply(_)) | Verdict::Duplicate(_) | Verdict::Checked,
            ) => false,
            Some(_) => keeps_order,
        };
        job.said = verdict.map(Said::Own);
        self.at += 1;
    }
}
