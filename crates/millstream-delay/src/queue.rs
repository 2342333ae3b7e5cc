//! The delay queue: tasks of one type with a due time, over any backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, try_join_all};
use millstream_core::batches::{Demand, EndedMember, MemberEnd};
use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::codec::{Json, Raw};
use millstream_core::error::{Problems, Result};
use millstream_core::event::Ignore;
use millstream_core::panics::Careful;
use millstream_core::results::StoredResult;
use millstream_core::schedule::{Due, ScheduleId};
use millstream_core::span::Tracing;
use millstream_core::tasks::{QueueChange, TaskCounts, TaskPlace};
use millstream_core::{
    Backend, Capability, Codec, DeadLetterRetention, Envelope, Error, ErrorKind, Limits, MessageResult,
    Observer, Place, QueueName, QueueSpec, WorkId,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::dead::DeadTasks;
use crate::inner::Inner;
use crate::list::{WaitingTask, page};
use crate::recurring::{Home, Recur, RecurringEntry, Spread};
use crate::schedule::{ScheduleTask, ScheduledTask, TaskRecord};
use crate::worker::WorkerBuilder;

/// Pause between two looks at the claims of a queue that is paused.
const PAUSE_POLL: Duration = Duration::from_millis(100);

/// Queue of tasks with a due time. Cloning is cheap.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_core::{Backend, Result};
/// # use millstream_delay::{DelayQueue, Task};
/// # async fn example(backend: Backend) -> Result<()> {
/// let mails = DelayQueue::<String>::new("mails").shards(4).open(&backend).await?;
/// mails.schedule(&"welcome".to_owned()).delay(Duration::from_secs(3_600)).id("welcome-42").await?;
///
/// let worker = mails.worker().concurrency(16).start(|mail: Task<String>| async move {
///     println!("{}: {}", mail.id(), mail.payload);
/// }).await?;
/// worker.shutdown().await;
/// # Ok(()) }
/// ```
pub struct DelayQueue<T: 'static> {
    pub(crate) inner: Arc<Inner<T>>,
}

impl<T: Serialize + DeserializeOwned + 'static> DelayQueue<T> {
    /// Returns a builder for a queue with JSON payloads.
    #[allow(clippy::new_ret_no_self, reason = "a queue is opened, which takes a backend and may fail")]
    pub fn new(name: impl Into<String>) -> DelayQueueBuilder<T> {
        Self::with_codec(name, &Json)
    }
}

impl DelayQueue<Bytes> {
    /// Returns a builder for a queue with opaque byte payloads.
    pub fn raw(name: impl Into<String>) -> DelayQueueBuilder<Bytes> {
        Self::with_codec(name, &Raw)
    }
}

impl<T: 'static> DelayQueue<T> {
    /// Returns a builder for a queue with a custom codec.
    pub fn with_codec(name: impl Into<String>, codec: &'static dyn Codec<T>) -> DelayQueueBuilder<T> {
        let (limits, observer) = (Limits::default(), Arc::new(Ignore));
        let (name, shards, dead_letter_retention, backend) = (name.into(), 1, None, None);
        DelayQueueBuilder { name, shards, dead_letter_retention, codec, limits, observer, backend }
    }

    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.inner.spec.name
    }

    /// Returns the number of shards of the queue.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.inner.spec.shards
    }

    /// Schedules a task: `mails.schedule(&mail).delay(day).id("welcome-42").await?`. Without `delay` and `at` it is due
    /// immediately.
    ///
    /// # Errors
    /// Returned by the awaited future: [`ErrorKind::Encode`], [`ErrorKind::TooLarge`], [`ErrorKind::InvalidName`] for
    /// an invalid id, [`ErrorKind::Exists`] after [`reject`](ScheduleTask::reject), [`ErrorKind::Backpressure`],
    /// [`ErrorKind::Unavailable`], [`ErrorKind::WrongType`]. [`ErrorKind::Unconfirmed`] if the connection broke during
    /// the request: a task with an explicit id can be scheduled again, and is not duplicated while the first copy waits
    /// or is being worked on.
    pub fn schedule<'a>(&'a self, payload: &'a T) -> ScheduleTask<'a, T> {
        ScheduleTask::new(&self.inner, TaskRecord::new(payload))
    }

    /// Schedules many tasks in as few requests as possible, and returns one result per task, in the same order. A task
    /// that fails does not prevent the others from being scheduled.
    pub async fn schedule_all<'a>(
        &self,
        records: impl IntoIterator<Item = TaskRecord<'a, T>>,
    ) -> Vec<Result<ScheduledTask>>
    where
        T: 'a,
    {
        self.inner.schedule_each(records.into_iter()).await
    }

    /// Returns the id by which a task is [signalled](millstream_core::Steps::signal). It asks no server, so the task need not be there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for an invalid id.
    pub fn work_id(&self, id: impl AsRef<str>) -> Result<WorkId> {
        let id = ScheduleId::new(id)?;
        Ok(WorkId::new(WorkPlace::Shard(self.inner.spec.shard_of(&id)), id))
    }

    /// Cancels a waiting task. Returns false if no task with this id waits: it was cancelled, is done, or is being
    /// worked on; `Admin::cancel_task` also asks the worker of a running task. If a cancel and a claim run at the same time, exactly one of them
    /// wins. If the task asks for its result, that is stored: [`CANCELLED`](millstream_core::results::CANCELLED).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for an invalid id; those of [`Schedule::cancel`](millstream_core::Schedule::cancel).
    pub async fn cancel(&self, id: impl AsRef<str>) -> Result<bool> {
        let id = ScheduleId::new(id)?;
        for place in self.places_of(&id) {
            if self.cancel_at(&place, &id).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One that asks for its result has one.
    async fn cancel_at(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        let backend = &self.inner.backend;
        if let (Place::Shard(shard), Ok(cancels), true) =
            (place, backend.cancels(), backend.supports(Capability::FindTasks))
            && let Some(task) = backend.tasks()?.find(shard, id).await?
            && let Ok(Envelope { headers, .. }) = task.envelope()
            && let Some(demand) = Demand::of(&headers)
        {
            let result = MessageResult::cancelled(task.attempt.saturating_sub(1));
            let (number, member) = (demand.result.map(|asks| asks.number), demand.member.clone());
            let result = Some(StoredResult { demand, result });
            let request = CancelRequest { number, removes: true, result };
            if matches!(task.state, TaskPlace::Waiting(_)) {
                let place = WorkPlace::Shard(shard.clone());
                let mark = cancels.cancel(&place, id.as_str(), &request).await?;
                let is_over = mark.is_some_and(CancelMark::is_answered);
                if let (true, Some(member), Ok(batches)) = (is_over, &member, backend.batches())
                    && let Err(error) = batches
                        .end_members(&member.batch, &[EndedMember::new(member.number, MemberEnd::Dead)])
                        .await
                {
                    tracing::debug!(%id, %error, "a cancelled task is counted in its batch later, by its note");
                }
                return Ok(is_over);
            }
        }
        Ok(backend.schedule().cancel(place, std::slice::from_ref(id)).await? == [true])
    }

    /// Changes the due time of a waiting task: to a [`Duration`](std::time::Duration) from now, to a
    /// [`Timestamp`](millstream_core::Timestamp) or to a [`SystemTime`](std::time::SystemTime). Returns false in the same cases as [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// Same as [`cancel`](Self::cancel).
    pub async fn reschedule(&self, id: impl AsRef<str>, due: impl Into<Due>) -> Result<bool> {
        let (id, due) = (ScheduleId::new(id)?, due.into());
        for place in self.places_of(&id) {
            let moved =
                self.inner.backend.schedule().reschedule(&place, std::slice::from_ref(&id), due).await?;
            if moved == [true] {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes a waiting task due now. Returns false in the same cases as [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// Same as [`cancel`](Self::cancel).
    pub async fn run_now(&self, id: impl AsRef<str>) -> Result<bool> {
        self.reschedule(id, Due::NOW).await
    }

    /// Returns a waiting task; `None` if no task with this id waits.
    ///
    /// # Errors
    /// Same as [`cancel`](Self::cancel).
    pub async fn get(&self, id: impl AsRef<str>) -> Result<Option<WaitingTask<T>>> {
        let id = ScheduleId::new(id)?;
        for place in self.places_of(&id) {
            if let Some(found) = self.inner.backend.schedule().get(&place, &id).await? {
                return Ok(Some(WaitingTask::new(found, &self.inner)));
            }
        }
        Ok(None)
    }

    /// Returns up to `limit` (at most 1,000) waiting tasks of all shards, ordered by due time. `after` is the last task
    /// of the previous page, or `None` for the first page. Later pages cost no more than the first.
    ///
    /// # Errors
    /// Those of [`Schedule::scheduled`](millstream_core::Schedule::scheduled).
    pub async fn list(&self, after: Option<&WaitingTask<T>>, limit: usize) -> Result<Vec<WaitingTask<T>>> {
        page(&self.inner, after, limit).await
    }

    /// Returns the numbers of tasks that are waiting, overdue, claimed, expired and dead, summed over all shards, and since when
    /// one of them is paused.
    ///
    /// # Errors
    /// Those of [`Tasks::counts`](millstream_core::Tasks::counts).
    pub async fn count(&self) -> Result<TaskCounts> {
        let shards: Vec<_> = self.inner.spec.iter().collect();
        let tasks = self.inner.backend.tasks()?;
        let counts = shards.iter().map(|shard| tasks.counts(shard));
        let mut all = TaskCounts::default();
        for counts in try_join_all(counts).await? {
            all.waiting = all.waiting.and(counts.waiting);
            all.claimed += counts.claimed;
            all.expired += counts.expired;
            all.dead += counts.dead;
            all.paused = all.paused.into_iter().chain(counts.paused).min();
        }
        Ok(all)
    }

    /// Pauses the queue for all its workers, in all processes. Returns whether any shard was not paused before. When it returns, no
    /// task is claimed any more. Tasks that workers have claimed are worked on to their end. Tasks can be scheduled, and those that
    /// become due wait, as do occurrences of recurring tasks and retries.
    ///
    /// The pause is stored: it ends with [`resume`](Self::resume) alone, and [`count`](Self::count) returns since when it lasts.
    /// Workers of versions that do not know it go on.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a backend that cannot; those of
    /// [`Tasks::set_paused`](millstream_core::Tasks::set_paused), after which some shards may be paused: the call can be repeated.
    pub async fn pause(&self) -> Result<bool> {
        self.set_paused(true).await
    }

    /// [Pauses](Self::pause) the queue, and waits until nothing is worked on any more. Returns the number of claims that are left
    /// when `patience` is over: 0 if none is. A claim of a worker that died counts until the queue is resumed and another worker
    /// takes it over.
    ///
    /// # Errors
    /// Same as [`pause`](Self::pause), also after the queue was paused.
    pub async fn pause_and_wait(&self, patience: Duration) -> Result<u64> {
        self.pause().await?;
        let started = Instant::now();
        loop {
            let claimed = self.count().await?.claimed;
            let left = patience.saturating_sub(started.elapsed());
            if claimed == 0 || left.is_zero() {
                return Ok(claimed);
            }
            tokio::time::sleep(PAUSE_POLL.min(left)).await;
        }
    }

    /// Ends the pause of the queue. Returns whether any shard was paused. Workers claim again at once.
    ///
    /// # Errors
    /// Same as [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<bool> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<bool> {
        self.inner.backend.require(Capability::PauseQueue)?;
        let (shards, tasks) = (self.inner.spec.iter().collect::<Vec<_>>(), self.inner.backend.tasks()?);
        let changed = try_join_all(shards.iter().map(|shard| tasks.set_paused(shard, paused))).await?;
        Ok(changed.contains(&true))
    }

    /// Returns the settings of the queue that were stored when it was opened.
    #[must_use]
    pub fn settings(&self) -> &QueueSpec {
        &self.inner.spec
    }

    /// Changes the stored settings of the queue, and returns all of them. Running workers apply a retention of dead tasks
    /// within two minutes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a backend that cannot; those of
    /// [`Tasks::alter_queue`](millstream_core::Tasks::alter_queue).
    pub async fn alter(&self, change: &QueueChange) -> Result<QueueSpec> {
        self.inner.backend.require(Capability::TrimDeadTasks)?;
        self.inner.backend.tasks()?.alter_queue(self.name(), change).await
    }

    /// Deletes the queue with everything in it: tasks that wait, are worked on or are dead, and recurring rules. Returns
    /// whether it existed. Stop its workers and the programs that schedule first: they do not notice, and what they
    /// schedule afterwards is left behind.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a backend that cannot; those of
    /// [`Tasks::delete_queue`](millstream_core::Tasks::delete_queue), after which the call can be repeated.
    pub async fn delete(&self) -> Result<bool> {
        self.inner.backend.require(Capability::DeleteQueue)?;
        self.inner.backend.tasks()?.delete_queue(self.name()).await
    }

    /// Returns a handle for the dead tasks of this queue.
    #[must_use]
    pub fn dead(&self) -> DeadTasks<T> {
        DeadTasks::new(self.inner.clone())
    }

    /// Returns a builder for the recurring task `id`: `mails.recurring("daily").cron("0 9 * * *",
    /// "Europe/Zurich").payload(&mail).await?`
    pub fn recurring(&self, id: impl Into<String>) -> Recur<'_, T> {
        Recur::new(self.home(), id.into())
    }

    /// Lists all recurring tasks, shard by shard, by id within each.
    ///
    /// # Errors
    /// Those of [`Recurring::recurrences`](millstream_core::Recurring::recurrences).
    pub async fn recurring_list(&self) -> Result<Vec<RecurringEntry>> {
        self.home().list().await
    }

    /// Lists the recurring tasks of each shard by id, or returns why the shard cannot be read.
    ///
    /// # Errors
    /// None today.
    pub async fn recurring_by_place(&self) -> Result<Vec<(Place, Result<Vec<RecurringEntry>>)>> {
        self.home().list_by_place().await
    }

    fn home(&self) -> Home<'_, T> {
        let Inner { backend, spec, codec, limits, .. } = &*self.inner;
        Home { backend, codec: *codec, limits, spread: Spread::Shards(spec) }
    }

    /// Returns the places where a task with this id may wait: the place of the id itself; and, for an occurrence of a
    /// recurring task (`<its id>@<time>`), the place of the recurring task.
    pub(crate) fn places_of(&self, id: &ScheduleId) -> Vec<Place> {
        let mut places = vec![self.inner.place_of(id)];
        if let Some((of, time)) = id.as_str().rsplit_once('@')
            && !time.is_empty()
            && time.bytes().all(|byte| byte.is_ascii_digit())
            && let Ok(of) = ScheduleId::new(of)
        {
            places.push(self.inner.place_of(&of));
        }
        places.dedup();
        places
    }
}

impl<T: Send + 'static> DelayQueue<T> {
    /// Returns a builder for a worker pool of this queue. Any number of pools may run, in any number of processes.
    pub fn worker(&self) -> WorkerBuilder<T> {
        WorkerBuilder::new(self.inner.clone())
    }
}

impl<T: 'static> Clone for DelayQueue<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue").field("spec", &self.inner.spec).finish_non_exhaustive()
    }
}

/// Builder for a [`DelayQueue`]. `open` validates all settings together.
#[must_use = "a builder does nothing until the queue is opened"]
pub struct DelayQueueBuilder<T: 'static> {
    name: String,
    shards: u32,
    /// `None` to take that of an existing queue without a warning.
    dead_letter_retention: Option<DeadLetterRetention>,
    codec: &'static dyn Codec<T>,
    limits: Limits,
    observer: Arc<dyn Observer>,
    backend: Option<Backend>,
}

impl<T> DelayQueueBuilder<T> {
    /// Sets the backend, so that the builder can be awaited: `mq.delay_queue("mails").shards(4).await?`.
    pub fn over(self, backend: Backend) -> Self {
        Self { backend: Some(backend), ..self }
    }

    /// Sets the number of shards that a new queue is created with. On a cluster, shards are on different servers. An
    /// existing queue keeps the number it was created with. Default: 1.
    pub fn shards(self, shards: u32) -> Self {
        Self { shards, ..self }
    }

    /// Sets the retention of dead tasks that a new queue is created with: the age up to which its workers keep them, and their
    /// number in each shard. An existing queue keeps its own, which [`DelayQueue::alter`] changes. Default: all are kept.
    pub fn dead_letter_retention(self, retention: DeadLetterRetention) -> Self {
        Self { dead_letter_retention: Some(retention), ..self }
    }

    /// Sets the codec of payloads. Default: JSON.
    pub fn codec(self, codec: &'static dyn Codec<T>) -> Self {
        Self { codec, ..self }
    }

    /// Sets the size limits of a task. A larger one becomes a dead task when it is read. Default: 1 MiB of payload.
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the observer, which receives all events of this queue's workers.
    pub fn observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    /// Opens the queue, and creates it if it does not exist. If it exists with other settings, those are used, and a warning
    /// is logged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists all problems; [`ErrorKind::Unsupported`] for a backend without delay
    /// queues, or, for a queue with a retention of dead tasks, without that; those of [`Tasks::create_queue`](millstream_core::Tasks::create_queue).
    pub async fn open(self, backend: &Backend) -> Result<DelayQueue<T>> {
        let mut problems = Problems::new("delay queue");
        let name = problems.take(QueueName::new(&self.name));
        let retention = self.dead_letter_retention.unwrap_or_default();
        let spec = |name| QueueSpec::new(name, self.shards).with_dead_letter_retention(retention);
        // Also beside an invalid name, to list all problems.
        let any_name = name.clone().map_or_else(|| QueueName::new("queue"), Ok);
        problems.take(any_name.and_then(|name| spec(name).check()));
        problems.finish()?;
        let Some(name) = name else { return Err(Error::new(ErrorKind::InvalidConfig, "invalid queue")) };
        let asked = spec(name);
        if !retention.is_keep() {
            backend.require(Capability::TrimDeadTasks)?;
        }
        let spec = backend.tasks()?.create_queue(&asked).await?;
        let queue = &spec.name;
        if spec.shards != asked.shards {
            let shards = spec.shards;
            tracing::warn!(%queue, asked = asked.shards, shards, "the queue exists with another number of shards");
        }
        if self.dead_letter_retention.is_some_and(|asked| asked != spec.dead_letter_retention) {
            let stored = spec.dead_letter_retention;
            tracing::warn!(%queue, asked = %retention, %stored, "the queue exists with another retention of dead tasks");
        }
        let (codec, limits, observer) = (self.codec, self.limits, Careful::over(self.observer));
        let tracing = Tracing::of(&observer);
        let inner = Inner { backend: backend.clone(), spec, codec, limits, observer, tracing };
        Ok(DelayQueue { inner: Arc::new(inner) })
    }
}

/// Opens the queue on the backend that was [set](DelayQueueBuilder::over): see [`DelayQueueBuilder::open`].
impl<T: 'static> IntoFuture for DelayQueueBuilder<T> {
    type Output = Result<DelayQueue<T>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.backend.clone() {
                Some(backend) => self.open(&backend).await,
                None => Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "the delay queue has no backend: open it on one",
                )),
            }
        })
    }
}

impl<T> fmt::Debug for DelayQueueBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueueBuilder")
            .field("name", &self.name)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}
