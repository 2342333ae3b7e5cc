//! The gate of a partition: which messages have the units of limits that they need, and which wait for some.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_core::Observer;
use millstream_core::limits::PermitKey;
use millstream_core::log::Receipt;
use millstream_engine::limits::{Asked, LimitSet, Permit, PermitAnswer, PermitPool};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::consumer::partition::dispatch::Happened;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::KeyQueue;
use crate::consumer::partition::dispatch::running::{InHandler, RunningUnit, RunningUnits};

/// An answer to a request, with its number.
pub(in crate::consumer) type Answered = (u64, PermitAnswer);

/// A message: in shared mode one that was claimed again is another one.
type Asker = (Receipt, u64);

/// Messages of one partition that need units of limits.
///
/// A message asks when it is its turn. Until the answer comes its queue is blocked, so others pass it that may, and those of its key do
/// not. It holds no units meanwhile, and does not count as in flight.
pub(in crate::consumer) struct Gate {
    limits: Arc<LimitSet>,
    pool: Arc<PermitPool>,
    observer: Arc<dyn Observer>,
    open: HashMap<Asker, Open>,
    askers: HashMap<u64, Asker>,
    /// Requests without an answer. They count like messages that run, so that nothing is taken that cannot be used.
    asking: usize,
    /// Requests that have no answer, or wait.
    waiting: usize,
    /// Requests that were granted, and have not started.
    granted: usize,
    /// Whether messages are handled one after the other: nothing passes what waits.
    serial: bool,
    shown: Arc<RunningUnits>,
    answers: (UnboundedSender<Answered>, UnboundedReceiver<Answered>),
    changes: watch::Receiver<u64>,
}

struct Open {
    /// Gives the request up when it is dropped.
    _asked: Asked,
    answer: Answer,
    /// The queue that waits for it.
    queue: Option<KeyQueue>,
    message: InHandler,
}

enum Answer {
    /// There is none yet.
    None,
    /// It waits for units: heartbeats name those that do so for long.
    Parked(RunningUnit),
    Granted(Permit),
    Refused(PermitKey),
}

/// What a message may do.
pub(in crate::consumer) enum Pass {
    /// It may start: it has what it needs, or needs nothing.
    Go,
    /// It waits. Its queue is to be blocked.
    Wait,
    /// It does not wait, and is to be dropped, since this key is short.
    Drop(PermitKey),
}

impl Gate {
    pub(in crate::consumer) fn new(
        limits: &Arc<LimitSet>,
        pool: &Arc<PermitPool>,
        observer: &Arc<dyn Observer>,
        serial: bool,
        shown: &Arc<RunningUnits>,
    ) -> Self {
        let (open, askers) = (HashMap::new(), HashMap::new());
        let answers = mpsc::unbounded_channel();
        let changes = pool.changes();
        let (limits, pool, observer) = (limits.clone(), pool.clone(), observer.clone());
        let shown = shown.clone();
        Self {
            limits,
            pool,
            observer,
            open,
            askers,
            asking: 0,
            waiting: 0,
            granted: 0,
            serial,
            shown,
            answers,
            changes,
        }
    }

    /// Returns how many requests have no answer.
    pub(in crate::consumer) fn asking(&self) -> usize {
        self.asking
    }

    /// Returns what this message may do, whose turn it is. It asks for what it needs, if it has not.
    pub(in crate::consumer) fn pass(&mut self, job: &mut Job) -> Pass {
        if job.permit.is_some() {
            return Pass::Go;
        }
        if self.open.is_empty() {
            return self.ask(job);
        }
        match self.open.remove(&(job.receipt, job.serial)) {
            Some(Open { answer: Answer::Granted(permit), .. }) => {
                self.granted -= 1;
                job.permit = Some(permit);
                Pass::Go
            }
            Some(Open { answer: Answer::Refused(key), .. }) => Pass::Drop(key),
            Some(open) => {
                self.open.insert((job.receipt, job.serial), open);
                Pass::Wait
            }
            None => self.ask(job),
        }
    }

    fn ask(&mut self, job: &mut Job) -> Pass {
        let Some(message) = job.message() else { return Pass::Go };
        let needs = self.limits.needs(message, &*self.observer);
        if needs.is_empty() {
            return Pass::Go;
        }
        if self.serial {
            // It comes before what was granted, and must not wait for units that this has.
            self.give_back();
        }
        let asked = match self.pool.take(needs, &self.answers.0) {
            Ok(permit) => {
                job.permit = Some(permit);
                return Pass::Go;
            }
            Err(asked) => asked,
        };
        self.askers.insert(asked.id(), (job.receipt, job.serial));
        let message = InHandler::of(job);
        let open = Open { _asked: asked, answer: Answer::None, queue: None, message };
        self.open.insert((job.receipt, job.serial), open);
        self.asking += 1;
        self.waiting += 1;
        Pass::Wait
    }

    /// Records that this queue is blocked by the message.
    pub(in crate::consumer) fn blocks(&mut self, asker: Asker, queue: KeyQueue) {
        if let Some(open) = self.open.get_mut(&asker) {
            open.queue = Some(queue);
        }
    }

    /// Waits for an answer; if something is `unsure`, also until it may be known. Cancel safe.
    pub(in crate::consumer) async fn next(&mut self, unsure: bool) -> Option<Happened> {
        let Self { answers, changes, .. } = self;
        tokio::select! {
            biased;
            answered = answers.1.recv() => answered.map(Happened::Answered),
            Ok(()) = changes.changed(), if unsure => Some(Happened::Permit(None)),
        }
    }

    /// Waits until it may be known whether units that were uncertain are lost. Cancel safe.
    pub(in crate::consumer) async fn changed(&mut self) {
        // It ends with the consumer alone.
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns an answer that is there.
    pub(in crate::consumer) fn try_next(&mut self) -> Option<Answered> {
        self.answers.1.try_recv().ok()
    }

    /// Takes in an answer. Returns the message, and the queue that may go on.
    pub(in crate::consumer) fn take_in(
        &mut self,
        (id, answer): Answered,
    ) -> Option<(Receipt, Option<KeyQueue>)> {
        // `None`: given up meanwhile. What it got is given back here.
        let asker = *self.askers.get(&id)?;
        let (receipt, open) = (asker.0, self.open.get_mut(&asker)?);
        if matches!(open.answer, Answer::None) {
            self.asking -= 1;
        }
        open.answer = match answer {
            PermitAnswer::Parked(key) => {
                // It may wait for another key than before.
                let since = match &open.answer {
                    Answer::Parked(named) => named.since,
                    _ => Instant::now(),
                };
                open.answer = Answer::Parked(self.shown.wait(open.message, key, since));
                return Some((receipt, None));
            }
            PermitAnswer::Granted(permit) => {
                self.granted += 1;
                Answer::Granted(permit)
            }
            PermitAnswer::Refused(key) => Answer::Refused(key),
        };
        let queue = open.queue.take();
        self.waiting -= 1;
        self.askers.remove(&id);
        Some((receipt, queue))
    }

    /// Whether what waits, for an answer or for units, keeps others from asking.
    pub(in crate::consumer) fn is_first_waiting(&self) -> bool {
        self.serial && self.waiting > 0
    }

    /// Whether something was granted, and has not started.
    pub(in crate::consumer) fn has_granted(&self) -> bool {
        self.granted > 0
    }

    /// Gives back what was granted and could not start: its messages ask again when they come up.
    pub(in crate::consumer) fn give_back(&mut self) {
        if std::mem::take(&mut self.granted) > 0 {
            self.open.retain(|_, open| !matches!(open.answer, Answer::Granted(_)));
        }
    }

    /// Gives up all requests, and gives back what was granted and not used.
    pub(in crate::consumer) fn clear(&mut self) -> Vec<KeyQueue> {
        (self.asking, self.waiting, self.granted) = (0, 0, 0);
        self.askers.clear();
        self.open.drain().filter_map(|(_, open)| open.queue).collect()
    }
}
