//! Messages of a partition that were cancelled from outside: none of them begins, and what runs is asked to stop.
//!
//! Nothing begins before the marks were read for the first time, since an earlier owner may have answered that a message will not. After
//! that the server sends a notice of each new mark. What is known here is a hint alone: a message is dropped when the server has
//! confirmed its mark under our lease, in the answer to whoever cancelled it. So a mark that a fail-over lost, or that of an id which was
//! assigned anew, drops nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, Cancels, WorkPlace};
use millstream_core::error::{ErrorKind, Result};
use millstream_core::log::{ProgressRight, Receipt};
use millstream_core::{MessageId, TopicPartition};
use millstream_engine::delivery::Cancelled;
use millstream_engine::handler::{Said, Verdict};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};

use crate::consumer::context::Subscription;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::dispatch::key_queues::Ticket;
use crate::consumer::partition::leases::WorkerLease;
use crate::consumer::partition::slot::Slot;

/// Longest wait for a new mark. A backend may end it earlier: the one on Redis asks once an hour.
const WAIT: Duration = Duration::from_secs(24 * 3_600);
/// Pause after marks could not be read for a reason that does not pass by itself.
const REFUSED: Duration = Duration::from_secs(300);
/// Pause after an answer that the server did not take.
const PAUSE: Duration = Duration::from_millis(100);

/// What a look at the marks has found.
struct MarksRead {
    /// Number of the look that was asked for last when this one began.
    look: u64,
    /// `None`: nothing new.
    marks: Option<CancelMarks>,
}

/// A message that waits for the confirmation of its mark, with what its handler returned if it ran.
type Held = (Ticket, Box<Job>);

/// Answer that is given next, for the message of this id.
#[derive(Clone)]
struct MarkAnswer {
    id: MessageId,
    /// The entry for which it is, and the number of its lease, of one that is in flight here.
    of: Option<(Receipt, u64)>,
    right: ProgressRight,
    mark: CancelMark,
}

/// What happened to cancelled messages.
pub(in crate::consumer) enum CancelNews {
    /// There may be new marks.
    Marks,
    /// These are cancelled: their marks are confirmed.
    Confirmed(Vec<Held>),
    /// These are not: the marks are gone.
    Gone(Vec<Held>),
    /// These are not ours any more.
    Lost(Vec<Held>),
    /// Nothing.
    Nothing,
}

/// The cancelled messages of one session of a partition.
pub(in crate::consumer) struct CancelDesk {
    role: Option<Arc<dyn Cancels>>,
    place: WorkPlace,
    lease: WorkerLease,
    marks: BTreeMap<MessageId, CancelMark>,
    /// Batches whose members are all cancelled. Nobody takes that back, so it needs no answer.
    batches: BTreeSet<BatchId>,
    /// Those of them that deliveries see.
    cancelled: Arc<Cancelled>,
    /// Number of looks that were asked for, and of the newest whose answer came.
    looks: (Arc<AtomicU64>, u64),
    look_now: Arc<Notify>,
    looked: (UnboundedSender<MarksRead>, UnboundedReceiver<MarksRead>),
    /// One that came and was not taken in.
    came: Option<MarksRead>,
    answers: VecDeque<MarkAnswer>,
    answering: Slot<(MarkAnswer, Result<Option<CancelMark>>)>,
    /// When the next answer may be sent, after one that failed.
    not_before: Option<Instant>,
    held: Vec<Held>,
    /// Members of batches that are cancelled.
    sure: Vec<Held>,
    /// Messages whose marks cannot be answered: they are handled.
    ignored: BTreeSet<MessageId>,
}

impl CancelDesk {
    pub(in crate::consumer) fn new(
        context: &Subscription,
        topic_partition: &TopicPartition,
        lease: WorkerLease,
    ) -> Self {
        let place = WorkPlace::Group(topic_partition.clone(), context.group.clone());
        let role = context.backend.cancels().ok().cloned();
        Self {
            looks: (Arc::new(AtomicU64::new(u64::from(role.is_some()))), 0),
            role,
            place,
            lease,
            marks: BTreeMap::new(),
            batches: BTreeSet::new(),
            cancelled: Arc::default(),
            look_now: Arc::default(),
            looked: mpsc::unbounded_channel(),
            came: None,
            answers: VecDeque::new(),
            answering: Slot::default(),
            not_before: None,
            held: Vec::new(),
            sure: Vec::new(),
            ignored: BTreeSet::new(),
        }
    }

    /// Returns what reads the marks, beside the messages. It ends with the session.
    pub(in crate::consumer) fn watch(
        &self,
        context: &Arc<Subscription>,
        topic_partition: &TopicPartition,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let role = self.role.clone()?;
        let place = self.place.clone();
        let shared = !self.lease.keeps_order();
        let (looks, look_now, tell) = (self.looks.0.clone(), self.look_now.clone(), self.looked.0.clone());
        let (context, monitor) = (context.clone(), context.monitor_of("cancels", topic_partition));
        Some(async move {
            let (mut version, mut seen, mut has_failed) = (0, 0, false);
            loop {
                let look = looks.load(Ordering::Acquire);
                // After a failure one answer says that all is well again.
                let wait = if look > seen || has_failed { Duration::ZERO } else { WAIT };
                monitor.begin_round(wait);
                let read = async {
                    if shared {
                        // Before anything is begun, so that nobody answers for who may begin it; and again, if a fail-over has lost it.
                        role.share(&place).await?;
                    }
                    role.marks(&place, version, wait).await
                };
                let read = tokio::select! {
                    biased;
                    read = read => read,
                    () = look_now.notified(), if !wait.is_zero() => continue,
                };
                match read {
                    Ok(marks) => {
                        (seen, has_failed) = (look, false);
                        version = marks.as_ref().map_or(version, |marks| marks.version);
                        monitor.succeeded(&*context.observer);
                        monitor.idle();
                        // A closed channel means that the worker has ended.
                        let _ = tell.send(MarksRead { look, marks });
                    }
                    Err(error) => {
                        has_failed = true;
                        let mut pause = monitor.failed(&error, &*context.observer);
                        if !error.is_transient() {
                            // A right is missing, or the key is somebody else's: then messages are handled all the same.
                            (seen, pause) = (look, REFUSED);
                            let _ = tell.send(MarksRead { look, marks: None });
                        }
                        tokio::select! {
                            // One order, so that simulations repeat themselves.
                            biased;
                            () = tokio::time::sleep(pause) => {}
                            () = look_now.notified() => {}
                        }
                    }
                }
            }
        })
    }

    /// Returns what deliveries look at.
    pub(in crate::consumer) fn cancelled(&self) -> &Arc<Cancelled> {
        &self.cancelled
    }

    /// Whether the marks were read, so that messages may begin.
    pub(in crate::consumer) fn is_read(&self) -> bool {
        self.looks.1 >= self.looks.0.load(Ordering::Acquire)
    }

    /// Has the marks read once more before anything begins: entries of another consumer came, who may have answered.
    pub(in crate::consumer) fn look_again(&self) {
        if self.role.is_some() {
            self.looks.0.fetch_add(1, Ordering::AcqRel);
            self.look_now.notify_one();
        }
    }

    /// Whether messages wait for an answer of the server.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.sure.is_empty()
    }

    /// Whether a message seems to be cancelled.
    pub(in crate::consumer) fn has(&self, job: &Job) -> bool {
        !self.marks.is_empty() && self.marks.contains_key(&job.origin) || self.is_of_batch(job)
    }

    /// Whether it is a member of a batch that is cancelled.
    pub(in crate::consumer) fn is_of_batch(&self, job: &Job) -> bool {
        !self.batches.is_empty() && job.batch().is_some_and(|batch| self.batches.contains(batch))
    }

    /// Keeps a message until it is known whether it is cancelled. `ran`: its handler has ended.
    pub(in crate::consumer) fn hold(&mut self, ticket: Ticket, job: Box<Job>, ran: bool) {
        // One that has a mark of its own is answered too.
        if self.is_of_batch(&job) && !self.marks.contains_key(&job.origin) {
            self.sure.push((ticket, job));
            return;
        }
        self.answer_for(&job, ran);
        self.held.push((ticket, job));
    }

    /// Says what becomes of a message that has not begun, or whose handler has ended.
    pub(in crate::consumer) fn answer_for(&mut self, job: &Job, ran: bool) {
        let mark = match (job.was_handed_out(), ran) {
            // Whoever had it before may still run.
            (true, _) => CancelMark::Withdrawn,
            (false, true) => CancelMark::Stopped,
            (false, false) => CancelMark::Cancelled,
        };
        let (of, right) = (Some((job.receipt, job.serial)), self.right(job));
        self.answers.push_front(MarkAnswer { id: job.origin, of, right, mark });
    }

    fn right(&self, job: &Job) -> ProgressRight {
        match &self.lease {
            WorkerLease::Partition(guard) => ProgressRight::Owner(guard.lease().clone()),
            WorkerLease::Entries(entries) => ProgressRight::Consumer {
                member: entries.member.clone(),
                partition: entries.partition,
                receipt: job.receipt,
            },
        }
    }

    /// Takes in what was read. Returns the messages that are new, and have no answer yet, and whether there are new batches.
    fn take_in(&mut self, MarksRead { look, marks }: MarksRead) -> (BTreeSet<MessageId>, bool) {
        self.looks.1 = self.looks.1.max(look);
        let Some(marks) = marks else { return (BTreeSet::new(), false) };
        let mut new_batches = false;
        for batch in marks.batches {
            if !self.batches.contains(&batch) {
                new_batches = true;
                self.cancelled.add(&batch);
                self.batches.insert(batch);
            }
        }
        let read: BTreeMap<MessageId, CancelMark> =
            marks.marks.into_iter().filter_map(|it| Some((it.id.parse().ok()?, it.mark))).collect();
        let read: BTreeMap<_, _> = read.into_iter().filter(|(id, _)| !self.ignored.contains(id)).collect();
        for gone in self.marks.keys().filter(|id| !read.contains_key(*id)) {
            self.cancelled.remove(gone);
        }
        let new = |(id, mark): (&MessageId, &CancelMark)| {
            // What is answered has not begun, and will not.
            let is_new = *mark == CancelMark::Asked && !self.marks.contains_key(id);
            if is_new {
                self.cancelled.add(id);
            }
            is_new.then_some(*id)
        };
        let new = read.iter().filter_map(new).collect();
        self.marks = read;
        (new, new_batches)
    }

    /// Takes in all that was read so far. Returns the messages that are new, and have no answer yet, and whether there are new batches.
    pub(in crate::consumer) fn take_new(&mut self) -> (BTreeSet<MessageId>, bool) {
        let (mut new, mut new_batches) = (BTreeSet::new(), false);
        while let Some(looked) = self.came.take().or_else(|| self.looked.1.try_recv().ok()) {
            let (ids, batches) = self.take_in(looked);
            new.extend(ids);
            new_batches |= batches;
        }
        (new, new_batches)
    }

    /// Says of messages that were not found here that none of them begins, if the group has not read them.
    pub(in crate::consumer) fn answer_ahead(&mut self, ids: BTreeSet<MessageId>) {
        if let WorkerLease::Partition(guard) = &self.lease {
            let right = ProgressRight::Owner(guard.lease().clone());
            self.answers.extend(ids.into_iter().map(|id| MarkAnswer {
                id,
                of: None,
                right: right.clone(),
                mark: CancelMark::Ahead,
            }));
        }
    }

    /// Waits until something happens. Cancel safe.
    pub(in crate::consumer) async fn changed(&mut self) -> CancelNews {
        let Some(role) = &self.role else { return std::future::pending().await };
        if !self.sure.is_empty() {
            return CancelNews::Confirmed(std::mem::take(&mut self.sure));
        }
        if self.answering.is_empty()
            && self.not_before.is_none()
            && let Some(answer) = self.answers.pop_front()
        {
            let role = role.clone();
            self.answering.start(Box::pin(async move {
                let MarkAnswer { id, right, mark, .. } = &answer;
                let answered = role.answer(right, &id.to_string(), *mark, None).await;
                (answer, answered)
            }));
        }
        let Self { looked, came, answering, not_before, .. } = self;
        let pause = async {
            match *not_before {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            (answer, answered) = answering.ended() => self.answered(answer, answered),
            () = pause => {
                self.not_before = None;
                CancelNews::Nothing
            }
            Some(looked) = looked.1.recv(), if came.is_none() => {
                // Whoever takes it in knows what is in flight.
                *came = Some(looked);
                CancelNews::Marks
            }
        }
    }

    fn answered(&mut self, answer: MarkAnswer, answered: Result<Option<CancelMark>>) -> CancelNews {
        let MarkAnswer { id, of, .. } = answer;
        let is_of = |(_, job): &mut Held| of == Some((job.receipt, job.serial));
        match answered {
            Ok(Some(mark)) if mark.is_answered() => {
                CancelNews::Confirmed(self.held.extract_if(.., is_of).collect())
            }
            Ok(Some(_)) => CancelNews::Nothing,
            Ok(None) => {
                self.marks.remove(&id);
                self.cancelled.remove(&id);
                CancelNews::Gone(self.held.extract_if(.., is_of).collect())
            }
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, %id, "the mark of a cancelled message is not answered yet");
                self.answers.push_front(answer);
                self.not_before = Some(Instant::now() + PAUSE);
                CancelNews::Nothing
            }
            // Whoever has it looks at the mark.
            Err(error) if error.kind() == ErrorKind::Fenced => {
                CancelNews::Lost(self.held.extract_if(.., is_of).collect())
            }
            Err(error) => {
                tracing::warn!(%error, %id, "the mark of a cancelled message cannot be answered: it is handled");
                self.ignored.insert(id);
                self.marks.remove(&id);
                self.cancelled.remove(&id);
                CancelNews::Gone(self.held.extract_if(.., is_of).collect())
            }
        }
    }
}

impl Job {
    /// Sets the verdict of a message that was cancelled.
    pub(in crate::consumer) fn cancel(&mut self) -> Option<Said> {
        let begun = |said: &Said| !matches!(said.verdict(), Verdict::Cancelled(false));
        let ran = self.said.as_ref().is_some_and(begun);
        self.said.replace(Said::Own(Verdict::Cancelled(ran)))
    }
}
