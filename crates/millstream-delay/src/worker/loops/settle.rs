//! Sends settlements to the server, in batches.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::cancels::CancelMark;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::{Event, Handled};
use millstream_core::log::ProgressRight;
use millstream_core::results::StoredResult;
use millstream_core::span::{MessagingOperation, OperationKind};
use millstream_core::tasks::Verdict;
use millstream_core::{ScheduleId, Shard};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::worker::claims::held::Holding;
use crate::worker::context::Context;
use crate::worker::rooms::Room;
use millstream_engine::catch_panic;
use millstream_engine::{LoopMonitor, Scope};

/// Maximum number of settlements in one request.
const MAX_BATCH: usize = 100;

/// Bytes of results at which a request takes no further one (1 MiB), as for messages.
const MAX_RESULTS: usize = 1 << 20;

/// How a task ends that was cancelled.
pub(in crate::worker) struct EndCancelled {
    pub(in crate::worker) mark: CancelMark,
    /// Its result, if it asks for that.
    pub(in crate::worker) result: Option<Box<StoredResult>>,
}

/// Task to be settled. It occupies its capacity in the worker until then.
pub(in crate::worker) struct Settling {
    pub(in crate::worker) id: ScheduleId,
    /// Claim of the task, whose token settles it.
    pub(in crate::worker) holding: Holding,
    pub(in crate::worker) verdict: Verdict,
    /// Result for the counts; `None` if it is handed back.
    pub(in crate::worker) handled: Option<Handled>,
    /// `None` if it waited for limits.
    pub(in crate::worker) room: Option<Room>,
    /// Set if it was cancelled: the verdict counts only if it was not, after all.
    pub(in crate::worker) cancel: Option<EndCancelled>,
}

/// Settles the tasks of one shard.
pub(in crate::worker) struct Settler {
    context: Arc<Context>,
    shard: Shard,
    settlements: UnboundedReceiver<Settling>,
    /// Settlements that were not accepted yet.
    waiting: Vec<Settling>,
    monitor: LoopMonitor,
}

impl Settler {
    pub(in crate::worker) fn new(
        context: Arc<Context>,
        shard: Shard,
        settlements: UnboundedReceiver<Settling>,
    ) -> Self {
        let monitor = context.loops.monitor("settle", Scope::Shard(shard.clone()));
        Self { context, shard, settlements, waiting: Vec::new(), monitor }
    }

    /// Runs until everything is settled and no more settlements can arrive.
    pub(in crate::worker) async fn run(mut self) {
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

    /// Waits for settlements and takes all that are available. Returns false if none is left and no more can arrive.
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

    /// Settles what is waiting. Failed settlements stay.
    async fn run_once(&mut self) -> Result<()> {
        for at in (0..self.waiting.len()).rev() {
            self.end_cancelled(at).await?;
        }
        while !self.waiting.is_empty() {
            let Err(error) = self.settle(0).await else { continue };
            if error.is_transient() {
                return Err(error);
            }
            // A dead task that cannot be stored (for example because its key has another type) must not prevent others
            // from being completed. So the heavier settlements are moved to the front, and the completions behind them
            // are sent first.
            self.waiting.sort_by_key(|settling| std::cmp::Reverse(weight(&settling.verdict)));
            let heavy = self.waiting.iter().filter(|settling| weight(&settling.verdict) > 0).count();
            while self.waiting.len() > heavy {
                self.settle(heavy).await?;
            }
            for nth in (0..heavy).rev() {
                // The heavier ones are sent one by one. Those that fail stay; they fail as the batch did, and that
                // error is returned.
                let _ = self.settle_range(nth, nth + 1).await;
            }
            return if self.waiting.is_empty() { Ok(()) } else { Err(error) };
        }
        Ok(())
    }

    /// Removes a task that was cancelled, with the answer to whoever cancelled it. One whose mark is gone is handed back.
    async fn end_cancelled(&mut self, at: usize) -> Result<()> {
        let Settling { id, holding, cancel, .. } = &mut self.waiting[at];
        let Some(EndCancelled { mark, result }) = cancel.as_ref() else { return Ok(()) };
        let (token, _) = holding.claim();
        let right =
            ProgressRight::Worker { shard: self.shard.clone(), task: id.clone(), token: token.clone() };
        let role = self.context.backend.cancels()?;
        let (answered, is_ours) = match role.answer(&right, id.as_str(), *mark, result.as_deref()).await {
            Ok(answered) => (answered.is_some(), true),
            // The first request may have removed it.
            Err(error) if error.kind() == ErrorKind::Fenced && holding.was_sent() => (true, true),
            Err(error) if error.kind() == ErrorKind::Fenced => (true, false),
            Err(error) if error.is_transient() || error.kind() == ErrorKind::Unconfirmed => {
                if error.kind() == ErrorKind::Unconfirmed {
                    holding.sent(&token);
                }
                return Err(error);
            }
            Err(error) => {
                let shard = &self.shard;
                tracing::warn!(%error, %shard, task = %id, "the mark of a cancelled task cannot be answered: it is handled");
                self.context.cancels.ignore(token.clone());
                (false, true)
            }
        };
        if !answered {
            *cancel = None;
            self.waiting[at].handled = None;
            return Ok(());
        }
        if result.as_ref().is_some_and(|stored| stored.demand.member.is_some()) {
            self.noted();
        }
        let mut settling = self.waiting.swap_remove(at);
        let handled = settling.handled;
        match settling.holding.end(&token) {
            Ok(()) if is_ours => self.context.counts.settled(handled),
            Ok(()) => self.context.counts.stale(1),
            // This worker claimed the task again meanwhile, and nobody asks for that.
            Err(holding) => {
                settling = Settling { holding, cancel: None, handled: None, ..settling };
                self.waiting.push(settling);
            }
        }
        Ok(())
    }

    /// Says that there are notes for batches.
    fn noted(&self) {
        if let Some(notes) = &self.context.notes {
            notes.wake(self.shard.clone());
        }
    }

    /// Settles `waiting[from..]`, at most as many as fit in one request. Those whose claim is no longer certainly valid
    /// are sent one by one, since the answer contains only the number of refused settlements, not which ones.
    async fn settle(&mut self, from: usize) -> Result<()> {
        let mut bytes = 0;
        let fits = self.waiting[from..].iter().take(MAX_BATCH).take_while(|settling| {
            let has_room = bytes < MAX_RESULTS;
            bytes += settling.verdict.result().map_or(0, |stored| stored.result.size());
            has_room && settling.is_sure()
        });
        let sure = fits.count();
        self.settle_range(from, from + sure.max(1)).await
    }

    async fn settle_range(&mut self, from: usize, to: usize) -> Result<()> {
        let task = |settling: &Settling| {
            let (token, _) = settling.holding.claim();
            (settling.id.clone(), token, settling.verdict.clone())
        };
        let batch: Vec<_> = self.waiting[from..to].iter().map(task).collect();
        let tasks = self.context.backend.tasks()?;
        let span = self.context.tracing.as_ref().map(|tracing| {
            let mut operation = MessagingOperation::new(OperationKind::Settle, self.shard.queue.as_str());
            (operation.partition, operation.batch) = (Some(self.shard.shard), Some(batch.len()));
            tracing.start(&operation)
        });
        let settled = tasks.settle_tasks(&self.shard, &batch).await;
        if let Some(span) = span {
            span.end_with(settled.as_ref().err(), batch.len());
        }
        let settled = match settled {
            Ok(settled) => settled,
            Err(error) => {
                if error.kind() == ErrorKind::Unconfirmed {
                    let sent = self.waiting[from..to].iter().zip(&batch);
                    sent.for_each(|(settling, (_, token, _))| settling.holding.sent(token));
                }
                return Err(error);
            }
        };
        let is_noted = |stored: &StoredResult| stored.demand.member.is_some();
        if batch.iter().any(|(.., verdict)| verdict.result().is_some_and(is_noted)) {
            self.noted();
        }
        let ended: Vec<_> = self.waiting.drain(from..to).collect();
        // A settlement that was sent before, and is refused now while the claim was valid, was applied by the first request.
        let again = ended.iter().filter(|settling| settling.holding.was_sent() && settling.is_sure()).count();
        let stale = settled.stale.saturating_sub(again);
        let mut refused = stale;
        for (settling, (_, token, _)) in ended.into_iter().zip(&batch) {
            let Settling { id, holding, verdict, handled, room, cancel } = settling;
            match holding.end(token) {
                Ok(()) if refused > 0 => refused -= 1,
                Ok(()) => self.context.counts.settled(handled),
                // This worker claimed the task again meanwhile, so this settlement was stale.
                Err(holding) => {
                    self.waiting.push(Settling { id, holding, verdict, handled, room, cancel });
                }
            }
        }
        let shard = &self.shard;
        if batch.iter().any(|(.., verdict)| matches!(verdict, Verdict::Dead { .. })) {
            self.context.status.deaths(shard.shard as usize);
        }
        if stale > 0 {
            tracing::warn!(%shard, stale, "settled too late: other workers have the tasks");
            self.context.counts.stale(stale);
        }
        self.context.observer.observe(&Event::TasksSettled { shard, settled });
        Ok(())
    }
}

impl Settling {
    /// Returns whether no other worker can have the task.
    fn is_sure(&self) -> bool {
        !self.holding.cancelled.is_cancelled()
    }
}

/// Returns how much a settlement needs of the server: completing a task only frees memory.
fn weight(verdict: &Verdict) -> u8 {
    match verdict {
        // The id that it may keep takes little, and the server accepts it even if it is out of memory.
        Verdict::Complete | Verdict::CompleteFor(_) => 0,
        Verdict::CompleteWith { .. } | Verdict::Retry { .. } => 1,
        Verdict::Dead { .. } => 2,
    }
}
