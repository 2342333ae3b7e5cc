//! The gate of a partition: which messages have the units of limits that they need, and which wait for some.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_core::Observer;
use millstream_core::limits::PermitKey;
use millstream_core::log::Receipt;
use millstream_engine::fairness::TenantId;
use millstream_engine::limits::{Asked, Permit, PermitAnswer, PermitPool};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::consumer::partition::dispatch::asks::{self, Asks, Later};

use crate::consumer::partition::dispatch::Happened;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::KeyQueue;
use crate::consumer::partition::dispatch::running::{InHandler, RunningUnit, RunningUnits};

/// An answer to a request, with its number.
pub(in crate::consumer) type Answered = (u64, PermitAnswer);

/// A message: in shared mode one that was claimed again is another one.
pub(in crate::consumer) type Asker = (Receipt, u64);

/// Messages of one partition that need units of limits.
///
/// A message asks when it is its turn. Until the answer comes its queue is blocked, so others pass it that may, and those of its key do
/// not. It holds no units meanwhile, and does not count as in flight.
pub(in crate::consumer) struct Gate {
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
    /// If tenants are served in turns.
    asks: Option<Asks>,
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
    /// What it needs, and what of it is counted as something that it may wait for: if that is counted.
    tenant: TenantId,
    keys: Box<[asks::Asked]>,
    counted: Vec<asks::Asked>,
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
    /// Its tenant asks for enough of this key. It is to be blocked, and [asks later](Gate::asks_later).
    Later(PermitKey),
    /// It does not wait, and is to be dropped, since this key is short.
    Drop(PermitKey),
}

impl Gate {
    pub(in crate::consumer) fn new(
        pool: &Arc<PermitPool>,
        observer: &Arc<dyn Observer>,
        serial: bool,
        asks: Option<Asks>,
        shown: &Arc<RunningUnits>,
    ) -> Self {
        let (open, askers) = (HashMap::new(), HashMap::new());
        let answers = mpsc::unbounded_channel();
        let changes = pool.changes();
        let (pool, observer) = (pool.clone(), observer.clone());
        let shown = shown.clone();
        Self {
            pool,
            observer,
            open,
            askers,
            asking: 0,
            waiting: 0,
            granted: 0,
            serial,
            asks,
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
    pub(in crate::consumer) fn pass(&mut self, job: &mut Job, tenant: TenantId) -> Pass {
        if job.permit.is_some() {
            return Pass::Go;
        }
        if self.open.is_empty() {
            return self.ask(job, tenant);
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
            None => self.ask(job, tenant),
        }
    }

    fn ask(&mut self, job: &mut Job, tenant: TenantId) -> Pass {
        let asker = (job.receipt, job.serial);
        let needs = job.message().map(|message| self.pool.needs(message, &*self.observer));
        let Some(needs) = needs.filter(|needs| !needs.is_empty()) else {
            self.passes(asker);
            return Pass::Go;
        };
        let keys = if self.asks.is_some() { asks::Asked::of(&needs) } else { Box::default() };
        if let Some(key) = self.asks.as_mut().and_then(|asks| asks.full(asker, tenant, &keys)) {
            return Pass::Later(key);
        }
        if self.serial {
            // It comes before what was granted, and must not wait for units that this has.
            self.give_back();
        }
        let asked = match self.pool.take(needs, &self.answers.0) {
            Ok(permit) => {
                job.permit = Some(permit);
                self.passes(asker);
                return Pass::Go;
            }
            Err(asked) => asked,
        };
        if let Some(asks) = &mut self.asks {
            asks.open(asker, tenant, &keys);
        }
        self.askers.insert(asked.id(), asker);
        let (message, counted, answer) = (InHandler::of(job), keys.to_vec(), Answer::None);
        let open = Open { _asked: asked, answer, queue: None, tenant, keys, counted, message };
        self.open.insert(asker, open);
        self.asking += 1;
        self.waiting += 1;
        Pass::Wait
    }

    /// Returns the keys of what a message may need, if its tenant may have to wait until it asks.
    pub(in crate::consumer) fn keys_of(&self, job: &Job) -> Option<Box<[asks::Asked]>> {
        self.asks.as_ref()?;
        Some(asks::Asked::of(&self.pool.needs(job.message()?, &*self.observer)))
    }

    /// Returns a key for which this message must wait until it asks, although it has no body yet.
    pub(in crate::consumer) fn is_full(&mut self, job: &Job, tenant: TenantId) -> Option<PermitKey> {
        let asker = (job.receipt, job.serial);
        if self.open.contains_key(&asker) {
            return None;
        }
        self.asks.as_mut()?.full(asker, tenant, job.asks.as_ref()?)
    }

    /// Records that the message waits with this queue until its tenant asks for less of the key.
    pub(in crate::consumer) fn asks_later(&mut self, tenant: TenantId, key: PermitKey, later: Later) {
        if let Some(asks) = &mut self.asks {
            asks.wait(tenant, key, later);
        }
    }

    /// Records that a message does not ask: it needs not to, or is gone.
    pub(in crate::consumer) fn passes(&mut self, asker: Asker) {
        if let Some(asks) = &mut self.asks {
            asks.passes(asker);
        }
    }

    /// Returns the queues of messages that may ask now.
    pub(in crate::consumer) fn take_freed(&mut self) -> Vec<KeyQueue> {
        self.asks.as_mut().map(Asks::take_freed).unwrap_or_default()
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
                if let Some(asks) = &mut self.asks {
                    // It waits for this one alone.
                    let (kept, others): (Vec<_>, Vec<_>) =
                        open.counted.drain(..).partition(|asked| asked.is(&key));
                    open.counted = kept;
                    if open.counted.is_empty() {
                        // It has waited for another one before.
                        open.counted.extend(open.keys.iter().find(|asked| asked.is(&key)).cloned());
                        asks.open(asker, open.tenant, &open.counted);
                    }
                    asks.close(open.tenant, others);
                }
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
        if let Some(asks) = &mut self.asks {
            asks.close(open.tenant, open.counted.drain(..));
        }
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

    /// Gives up what a message asks for, or was granted, since it does not start. Returns the queue that may go on.
    pub(in crate::consumer) fn leave(&mut self, asker: Asker) -> Option<KeyQueue> {
        let open = self.open.remove(&asker)?;
        match open.answer {
            Answer::Granted(_) => self.granted -= 1,
            Answer::Refused(_) => {}
            Answer::None | Answer::Parked(_) => {
                self.asking -= usize::from(matches!(open.answer, Answer::None));
                self.waiting -= 1;
                self.askers.retain(|_, it| *it != asker);
            }
        }
        if let Some(asks) = &mut self.asks {
            asks.close(open.tenant, open.counted);
        }
        open.queue
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
        let later = self.asks.as_mut().map(Asks::clear).unwrap_or_default();
        self.open.drain().filter_map(|(_, open)| open.queue).chain(later).collect()
    }
}
