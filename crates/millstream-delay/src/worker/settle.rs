//! Telling the server, in batches, what became of tasks.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::{Event, Handled};
use millstream_core::tasks::Verdict;
use millstream_core::{ScheduleId, Shard};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

use super::context::Context;
use super::held::Holding;
use millstream_loops::catch_panic;
use millstream_loops::{LoopMonitor, Scope};

/// The most settlements in one request.
const MAX_BATCH: usize = 100;

/// A task that is to be settled. It takes its place in the worker until it is.
pub(super) struct Settling {
    pub(super) id: ScheduleId,
    /// Its own claim, by whose token it is settled.
    pub(super) holding: Holding,
    pub(super) verdict: Verdict,
    /// How it ended; `None` if it is handed back.
    pub(super) handled: Option<Handled>,
    pub(super) permit: OwnedSemaphorePermit,
}

/// Settles the tasks of one shard.
pub(super) struct Settler {
    context: Arc<Context>,
    shard: Shard,
    settlements: UnboundedReceiver<Settling>,
    /// What could not be settled yet.
    waiting: Vec<Settling>,
    monitor: LoopMonitor,
}

impl Settler {
    pub(super) fn new(context: Arc<Context>, shard: Shard, settlements: UnboundedReceiver<Settling>) -> Self {
        let monitor = context.loops.monitor("settle", Scope::Shard(shard.clone()));
        Self { context, shard, settlements, waiting: Vec::new(), monitor }
    }

    /// Settles until everything is settled and nothing more can come.
    pub(super) async fn run(mut self) {
        while self.collect().await {
            self.monitor.begin_round(Duration::ZERO);
            match catch_panic(self.run_once()).await {
                Ok(()) => self.monitor.succeeded(&*self.context.observer),
                Err(error) => {
                    let pause = self.monitor.failed(&error, &*self.context.observer);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Waits for something to settle, and takes what is there. False if nothing is left and nothing more can come.
    async fn collect(&mut self) -> bool {
        if self.waiting.is_empty() {
            match self.settlements.recv().await {
                Some(first) => self.waiting.push(first),
                None => return false,
            }
        }
        while let Ok(next) = self.settlements.try_recv() {
            self.waiting.push(next);
        }
        true
    }

    /// Settles what waits. What failed stays.
    async fn run_once(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            let Err(error) = self.settle(0).await else { continue };
            if error.is_transient() {
                return Err(error);
            }
            // A dead task that cannot be kept (its key is somebody else's, say) must not keep others from being completed.
            self.waiting.sort_by_key(|settling| std::cmp::Reverse(weight(&settling.verdict)));
            let heavy = self.waiting.iter().filter(|settling| weight(&settling.verdict) > 0).count();
            while self.waiting.len() > heavy {
                self.settle(heavy).await?;
            }
            for nth in (0..heavy).rev() {
                // Each by itself. Those that fail stay; they fail as the batch did, and that error is told.
                let _ = self.settle_range(nth, nth + 1).await;
            }
            return if self.waiting.is_empty() { Ok(()) } else { Err(error) };
        }
        Ok(())
    }

    /// Settles `waiting[from..]`, at most as many as go in one request. Those whose claim is not certainly ours any more
    /// go one by one: the answer says how many were refused, and not which.
    async fn settle(&mut self, from: usize) -> Result<()> {
        let sure =
            self.waiting[from..].iter().take(MAX_BATCH).take_while(|settling| settling.is_sure()).count();
        self.settle_range(from, from + sure.max(1)).await
    }

    async fn settle_range(&mut self, from: usize, to: usize) -> Result<()> {
        let task = |settling: &Settling| {
            let (token, _) = settling.holding.claim();
            (settling.id.clone(), token, settling.verdict.clone())
        };
        let batch: Vec<_> = self.waiting[from..to].iter().map(task).collect();
        let settled = match self.context.backend.tasks.settle_tasks(&self.shard, &batch).await {
            Ok(settled) => settled,
            Err(error) => {
                if error.kind() == ErrorKind::Unconfirmed {
                    let sent = self.waiting[from..to].iter().zip(&batch);
                    sent.for_each(|(settling, (_, token, _))| settling.holding.sent(token));
                }
                return Err(error);
            }
        };
        let ended: Vec<_> = self.waiting.drain(from..to).collect();
        // What was sent before and is refused now, while it was ours, was settled by the first request.
        let again = ended.iter().filter(|settling| settling.holding.was_sent() && settling.is_sure()).count();
        let stale = settled.stale.saturating_sub(again);
        let mut refused = stale;
        for (settling, (_, token, _)) in ended.into_iter().zip(&batch) {
            let Settling { id, holding, verdict, handled, permit } = settling;
            match holding.end(token) {
                Ok(()) if refused > 0 => refused -= 1,
                Ok(()) => self.context.counts.settled(handled),
                // It was claimed anew meanwhile, by ourselves: this one was stale.
                Err(holding) => {
                    self.waiting.push(Settling { id, holding, verdict, handled, permit });
                }
            }
        }
        let shard = &self.shard;
        if stale > 0 {
            tracing::warn!(%shard, stale, "settled too late: others have the tasks");
            self.context.counts.stale(stale);
        }
        self.context.observer.observe(&Event::TasksSettled { shard, settled });
        Ok(())
    }
}

impl Settling {
    /// Whether nobody else can have the task.
    fn is_sure(&self) -> bool {
        !self.holding.cancelled.is_cancelled()
    }
}

/// How much a settlement needs of the server: completing takes away only.
fn weight(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Complete => 0,
        Verdict::Retry { .. } => 1,
        Verdict::Dead { .. } => 2,
    }
}
