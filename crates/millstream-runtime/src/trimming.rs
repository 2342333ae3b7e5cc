//! Trimming by producers: a lossy retention holds for what they send, also where no consumer runs.
//!
//! A task trims the partitions to which the producer sends, at most once a second each, and no send waits for it. Many
//! producers of one partition take turns: those that come in vain come less often. Retentions that drop only what every group has
//! settled need none of this: where something is settled, a consumer runs, and trims.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::log::{Lost, Trimmed, UnleasedTrim};
use millstream_core::sorted::{SortedMap, sort_by};
use millstream_core::{Backend, Capability, Partition, Retention, TopicName, TopicPartition, TopicSpec};
use millstream_engine::{Loops, Scope};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Minimum time between two rounds: a turn, which lasts a second by the server's clock of whole milliseconds, and as much as this
/// clock may go faster. Who comes within its own turn takes it for another client's.
const EVERY: Duration = Duration::from_millis(1_010);
/// Shortest and longest time between two trims by age of a partition to which nothing is sent.
const IDLE: (Duration, Duration) = (EVERY, Duration::from_secs(60));
/// Maximum number of turns for which it waits where another client has had as many in a row. That client may end after one.
const MAX_SKIPS: u32 = 2;
/// A round trims this many partitions at most, or one for this many messages that were sent: so where a producer sends to
/// thousands of partitions, trims stay few beside its sends.
const MOST: (usize, u64) = (64, 100);
/// Number of partitions that are trimmed at once.
const AT_ONCE: usize = 8;
/// Pause of a producer that may not trim.
const DENIED: Duration = Duration::from_secs(600);
/// Minimum time between two log lines about losses.
const LOUD_EVERY: Duration = Duration::from_secs(60);
/// Maximum time that a producer which is closed waits for its last round.
const LAST: Duration = Duration::from_secs(1);

/// Numbers of messages that were stored, by partition, since the last round.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    is_counting: AtomicBool,
    counts: Mutex<SortedMap<Partition, u64>>,
    wake: Notify,
}

impl Stored {
    fn counts(&self) -> MutexGuard<'_, SortedMap<Partition, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Stored {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Produced { topic_partition, messages } = event
            && self.is_counting.load(Ordering::Relaxed)
        {
            *self.counts().get_or_default(topic_partition.partition) += *messages as u64;
            self.wake.notify_one();
        }
    }
}

/// Partitions that are to be trimmed, and when.
#[derive(Debug, Default)]
struct Plan(SortedMap<Partition, Turn>);

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Number of messages that were stored since the partition was trimmed.
    stored: u64,
    due: Instant,
    /// Number of times in a row that another client had trimmed it.
    skips: u32,
}

impl Plan {
    fn add(&mut self, partition: Partition, stored: u64, now: Instant) {
        let turn = self.0.get_or_insert_with(partition, || Turn { stored: 0, due: now, skips: 0 });
        turn.stored += stored;
        if turn.skips == 0 && stored > 0 {
            turn.due = turn.due.min(now);
        }
    }

    /// Returns the partitions that are due, those first to which most was sent; as many as a round may trim after `stored`
    /// messages.
    fn due(&self, now: Instant, stored: u64) -> Vec<Partition> {
        let mut due: Vec<_> = self.0.iter().filter(|(_, turn)| turn.due <= now).collect();
        sort_by(&mut due, |(_, one), (_, other)| other.stored.cmp(&one.stored).then(one.due.cmp(&other.due)));
        due.truncate(MOST.0.max(usize::try_from(stored / MOST.1).unwrap_or(usize::MAX)));
        due.into_iter().map(|(partition, _)| *partition).collect()
    }

    /// Notes the result of a trim. Where entries are to leave by their age, the partition comes again after `idle`.
    fn trimmed(&mut self, partition: Partition, trimmed: &Trimmed, idle: Option<Duration>, now: Instant) {
        let Some(turn) = self.0.get_mut(&partition) else { return };
        if trimmed.skipped {
            turn.skips = MAX_SKIPS.min(turn.skips + 1);
            let pause = if turn.stored > 0 { EVERY } else { idle.unwrap_or(EVERY) };
            turn.due = now + pause * turn.skips;
        } else if trimmed.more {
            (turn.skips, turn.due) = (0, now + EVERY);
        } else if let Some(idle) = idle {
            *turn = Turn { stored: 0, due: now + idle, skips: 0 };
        } else {
            self.0.remove(&partition);
        }
    }

    /// Returns the time at which the next partition is due.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|turn| turn.due).min()
    }
}

/// Handle on the task that trims.
#[derive(Debug)]
pub(crate) struct Trims {
    closing: CancellationToken,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Trims {
    /// Starts the task for a topic, and has it notified of what the observer is told to be stored. While the retention is lossy,
    /// it is read before each round; whoever reads it at other times passes it on. `None` for a backend that cannot trim so.
    pub(crate) fn start(
        backend: &Backend,
        topic: &TopicSpec,
        observer: &mut Arc<dyn Observer>,
        is_ours: bool,
    ) -> (watch::Sender<Retention>, Option<Self>) {
        let (sender, retention) = watch::channel(topic.retention);
        // The dashboard drops what its audit log does not keep, and has a producer for each entry.
        if is_ours || !backend.supports(Capability::UnleasedTrim) {
            return (sender, None);
        }
        let stored = Arc::new(Stored::default());
        stored.is_counting.store(topic.retention.is_lossy(), Ordering::Relaxed);
        let (backend, topic, plan) = (backend.clone(), topic.name.clone(), Plan::default());
        let events = observer.clone();
        *observer = Arc::new((stored.clone(), events.clone()));
        let trimmer = Trimmer { backend, topic, stored, observer: events, plan, loud_at: None };
        let closing = CancellationToken::new();
        let task = tokio::spawn(trimmer.run(retention, closing.clone()).boxed());
        (sender, Some(Self { closing, task: Mutex::new(Some(AbortOnDropHandle::new(task))) }))
    }

    /// Ends the task, if there is one, after a last round.
    pub(crate) async fn close(trims: Option<&Self>) {
        let Some(trims) = trims else { return };
        trims.closing.cancel();
        let task = trims.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // Whatever it is late with, the next producer does.
            let _ = timeout(LAST, task).await;
        }
    }
}

struct Trimmer {
    backend: Backend,
    topic: TopicName,
    stored: Arc<Stored>,
    observer: Arc<dyn Observer>,
    plan: Plan,
    /// Time from which a loss is logged again.
    loud_at: Option<Instant>,
}

impl Trimmer {
    async fn run(mut self, mut retention: watch::Receiver<Retention>, closing: CancellationToken) {
        let loops = Loops::default();
        let monitor = loops.monitor("trim", Scope::Topic(self.topic.clone()));
        loop {
            monitor.succeeded(&*self.observer);
            tokio::select! {
                // Without a sender it never changes.
                lossy = retention.wait_for(|retention| retention.is_lossy()) => if lossy.is_err() { return },
                () = closing.cancelled() => return,
            }
            self.stored.is_counting.store(true, Ordering::Relaxed);
            loops.announce(None, &*self.observer);
            while retention.borrow().is_lossy() {
                let pause = match self.run_once().await {
                    Ok(()) => {
                        monitor.succeeded(&*self.observer);
                        EVERY
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => {
                        tracing::info!(
                            topic = %self.topic, %error,
                            "this producer may not trim its topic: consumers do, or `topic trim`"
                        );
                        // It was answered, and is not tried soon.
                        monitor.succeeded(&*self.observer);
                        DENIED
                    }
                    // No longer pause: what is sent meanwhile may be stored, and other partitions have no error.
                    Err(error) => {
                        let _ = monitor.failed(&error, &*self.observer);
                        EVERY
                    }
                };
                if closing.is_cancelled() {
                    return;
                }
                let is_closing = tokio::select! {
                    () = closing.cancelled() => true,
                    () = async {
                        sleep(pause).await;
                        self.wanted().await;
                    } => false,
                };
                if is_closing && self.plan.0.is_empty() && self.stored.counts().is_empty() {
                    return;
                }
            }
            self.stored.is_counting.store(false, Ordering::Relaxed);
            self.plan = Plan::default();
        }
    }

    /// Waits until a partition is due, or something was sent.
    async fn wanted(&self) {
        match self.plan.next() {
            Some(next) => drop(tokio::time::timeout_at(next, self.stored.wake.notified()).await),
            None => self.stored.wake.notified().await,
        }
    }

    /// Trims what is due.
    async fn run_once(&mut self) -> Result<()> {
        let (counts, now) = (std::mem::take(&mut *self.stored.counts()), Instant::now());
        let mut total = 0;
        for (partition, stored) in counts {
            self.plan.add(partition, stored, now);
            total += stored;
        }
        let due = self.plan.due(now, total);
        // The settings as they are now: what a topic of this name keeps must not be dropped by those of an earlier one.
        let spec = match self.backend.catalog().topic(&self.topic).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.plan = Plan::default();
                return Ok(());
            }
            spec => spec?,
        };
        let retention = spec.retention;
        let idle = match retention {
            Retention::Age(age) => Some((age / 10).clamp(IDLE.0, IDLE.1)),
            Retention::Length(_) => None,
            Retention::Consumed | Retention::ConsumedAfter(_) | Retention::Keep => {
                self.plan = Plan::default();
                return Ok(());
            }
        };
        if idle.is_some() {
            // What was sent before, also by others, gets old too.
            (0..spec.partitions).for_each(|number| self.plan.add(Partition(number), 0, now));
        }
        let is_loud = self.loud_at.is_none_or(|at| at <= now);
        let (mut failed, mut has_lost): (Option<Error>, _) = (None, false);
        for due in due.chunks(AT_ONCE) {
            let partitions: Vec<_> = due
                .iter()
                .map(|partition| TopicPartition { topic: self.topic.clone(), partition: *partition })
                .collect();
            let rule = UnleasedTrim::OncePerSecond(retention);
            let calls = partitions.iter().map(|tp| self.backend.log().trim_unleased(tp, rule));
            for (tp, trimmed) in partitions.iter().zip(join_all(calls).await) {
                match trimmed {
                    Ok(trimmed) => {
                        has_lost |= !trimmed.lost.is_empty();
                        emit_trimmed(tp, &trimmed, retention, is_loud, &*self.observer);
                        self.plan.trimmed(tp.partition, &trimmed, idle, Instant::now());
                    }
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
        }
        if has_lost && is_loud {
            self.loud_at = Some(now + LOUD_EVERY);
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Emits the events of a trim. A loss is logged as a warning if `is_loud`.
pub(crate) fn emit_trimmed(
    topic_partition: &TopicPartition,
    trimmed: &Trimmed,
    retention: Retention,
    is_loud: bool,
    events: &dyn Observer,
) {
    if trimmed.dropped > 0 {
        events.observe(&Event::Trimmed { topic_partition, messages: trimmed.dropped });
    }
    for Lost { group, unread, pending } in &trimmed.lost {
        if is_loud {
            tracing::warn!(
                %topic_partition, %group, unread, pending, %retention,
                "entries were dropped that a group had not settled"
            );
        }
        events.observe(&Event::Lost { topic_partition, group, unread: *unread, pending: *pending });
    }
}
