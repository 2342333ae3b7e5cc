//! A task to be scheduled.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::batches::{BATCH_HEADER, BatchMember, QUEUES};
use millstream_core::results::{RESULT_HEADER, ResultRequest};
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling};
use millstream_core::span::{Detail, OperationKind};
use millstream_core::{Envelope, Error, ErrorKind, Place, Result, Timestamp};
use millstream_engine::batches::BatchItem;
use uuid::Uuid;

use crate::inner::Inner;

/// Number of tasks in one request.
const CHUNK: usize = 200;

/// Task to be scheduled: `TaskRecord::new(&mail).delay(day).id("welcome-42")`.
#[derive(Debug)]
pub struct TaskRecord<'a, T> {
    payload: &'a T,
    due: Due,
    id: Option<String>,
    on_conflict: OnConflict,
    /// Key and headers; the payload is added when it is encoded.
    envelope: Envelope,
}

impl<'a, T> TaskRecord<'a, T> {
    /// Returns a task that is due immediately.
    #[must_use]
    pub fn new(payload: &'a T) -> Self {
        let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
        Self { payload, due, id: None, on_conflict, envelope: Envelope::default() }
    }

    /// Delays the task by this time, by the server's clock. At most 100 years.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { due: Due::In(delay), ..self }
    }

    /// Sets the due time, by the server's clock: a [`Timestamp`], or a [`SystemTime`](std::time::SystemTime), which is
    /// rounded up to a whole millisecond. A time in the past is due immediately.
    #[must_use]
    pub fn at(self, time: impl Into<Timestamp>) -> Self {
        Self { due: Due::At(time.into()), ..self }
    }

    /// Sets an explicit id: 1 to 256 bytes without control characters. While a task with this id waits or is worked on,
    /// another one is [not scheduled](Self::replace), so repeating the call after an error does not duplicate it. Once
    /// the task is done, the id is free, unless the workers keep it for a [window](crate::WorkerBuilder::done_window).
    /// Default: a random id.
    #[must_use]
    pub fn id(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }

    /// Replaces a task that waits under this id, including its due time, but not one that is being worked on. Default:
    /// the waiting task stays.
    #[must_use]
    pub fn replace(self) -> Self {
        Self { on_conflict: OnConflict::Replace, ..self }
    }

    /// Fails with [`ErrorKind::Exists`] if a task with this id waits or is worked on. Default: that task stays, and
    /// this one counts as scheduled.
    #[must_use]
    pub fn reject(self) -> Self {
        Self { on_conflict: OnConflict::Reject, ..self }
    }

    /// Sets the [`id`](Self::id), replaces a task that waits under it and postpones it: it is due at the later of both due
    /// times. So a task that is scheduled again and again with a delay runs once, when that delay has passed since the last
    /// time, with the last payload. Fails with [`ErrorKind::Exists`] while a task with this id is being worked on, since the
    /// payload would be lost.
    ///
    /// Under a random id it would never meet the task before, so there is no way to leave the id out:
    ///
    /// ```compile_fail,E0061
    /// # use millstream_delay::TaskRecord;
    /// let _ = TaskRecord::new(&7).delay(std::time::Duration::from_secs(60)).debounce();
    /// ```
    #[must_use]
    pub fn debounce(self, id: impl Into<String>) -> Self {
        Self { on_conflict: OnConflict::Debounce, ..self.id(id) }
    }

    /// Sets the [`id`](Self::id) and replaces the payload of a task that waits under it, whose due time stays: at most one
    /// task waits, the first one determines when it runs, and the last one with what. Fails with [`ErrorKind::Exists`] while
    /// a task with this id is being worked on, since the payload would be lost.
    #[must_use]
    pub fn keep_last(self, id: impl Into<String>) -> Self {
        Self { on_conflict: OnConflict::KeepLast, ..self.id(id) }
    }

    /// Sets the key, which is passed to the handler and has no other effect.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Appends a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }
}

/// Task that was scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduledTask {
    /// Id under which it waits.
    pub id: ScheduleId,
    /// Whether it was added, replaced another one, or was not needed.
    pub placed: Placed,
}

/// Request to schedule a task, which starts when it is awaited.
#[must_use = "nothing is scheduled until this is awaited"]
pub struct ScheduleTask<'a, T: 'static> {
    queue: &'a Inner<T>,
    record: TaskRecord<'a, T>,
}

impl<'a, T> ScheduleTask<'a, T> {
    pub(crate) fn new(queue: &'a Inner<T>, record: TaskRecord<'a, T>) -> Self {
        Self { queue, record }
    }

    fn with(self, change: impl FnOnce(TaskRecord<'a, T>) -> TaskRecord<'a, T>) -> Self {
        Self { queue: self.queue, record: change(self.record) }
    }

    /// See [`TaskRecord::delay`].
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|record| record.delay(delay))
    }

    /// See [`TaskRecord::at`].
    pub fn at(self, time: impl Into<Timestamp>) -> Self {
        self.with(|record| record.at(time))
    }

    /// See [`TaskRecord::id`].
    pub fn id(self, id: impl Into<String>) -> Self {
        self.with(|record| record.id(id))
    }

    /// See [`TaskRecord::replace`].
    pub fn replace(self) -> Self {
        self.with(TaskRecord::replace)
    }

    /// See [`TaskRecord::reject`].
    pub fn reject(self) -> Self {
        self.with(TaskRecord::reject)
    }

    /// See [`TaskRecord::debounce`].
    pub fn debounce(self, id: impl Into<String>) -> Self {
        self.with(|record| record.debounce(id))
    }

    /// See [`TaskRecord::keep_last`].
    pub fn keep_last(self, id: impl Into<String>) -> Self {
        self.with(|record| record.keep_last(id))
    }

    /// See [`TaskRecord::key`].
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.with(|record| record.key(key))
    }

    /// See [`TaskRecord::header`].
    pub fn header(self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.with(|record| record.header(name, value))
    }
}

impl<'a, T> IntoFuture for ScheduleTask<'a, T> {
    type Output = Result<ScheduledTask>;
    type IntoFuture = BoxFuture<'a, Result<ScheduledTask>>;

    fn into_future(self) -> Self::IntoFuture {
        self.begun().1
    }
}

impl<T> ScheduleTask<'_, T> {
    /// Sets the request for its result.
    pub(crate) fn asking(mut self, request: ResultRequest) -> Self {
        let headers = &mut self.record.envelope.headers;
        headers.remove(RESULT_HEADER);
        headers.append(RESULT_HEADER, request.to_string());
        self
    }

    /// Sets the place in a batch.
    pub(crate) fn in_batch(mut self, member: &BatchMember) -> Self {
        let headers = &mut self.record.envelope.headers;
        headers.remove(BATCH_HEADER);
        headers.append(BATCH_HEADER, member.to_string());
        self
    }

    pub(crate) fn queue(&self) -> &Inner<T> {
        self.queue
    }

    /// Encodes the task. Returns its place if it could be encoded, and the future that schedules it.
    pub(crate) fn begun(self) -> (Option<Place>, BoxFuture<'static, Result<ScheduledTask>>) {
        let Self { queue, mut record } = self;
        let headers = &mut record.envelope.headers;
        let name = queue.spec.name.as_str();
        let mut span = queue.tracing.as_ref().map(|it| it.sends(OperationKind::Schedule, name, headers));
        // Encoded here and not in the future, so that the future does not hold the value.
        let scheduling = queue.scheduling(record, Uuid::new_v4().as_u128());
        if let (Some(span), Ok(Scheduling { place: Place::Shard(shard), .. })) = (&mut span, &scheduling) {
            span.set(Detail::Partition(shard.shard));
        }
        let place = scheduling.as_ref().ok().map(|scheduling| scheduling.place.clone());
        let schedule = queue.backend.schedule().clone();
        let scheduled = Box::pin(async move {
            let scheduled = async {
                let batch = [scheduling?];
                let placed = schedule.schedule(&batch).await.pop().unwrap_or_else(unanswered)?;
                let [Scheduling { id, .. }] = batch;
                Ok(ScheduledTask { id, placed })
            };
            let scheduled = scheduled.await;
            if let Some(mut span) = span {
                if let Ok(task) = &scheduled {
                    span.set(Detail::MessageId(&task.id));
                }
                span.end_with(scheduled.as_ref().err(), 1);
            }
            scheduled
        });
        (place, scheduled)
    }
}

impl<T> BatchItem for ScheduleTask<'_, T> {
    type Stored = ScheduledTask;

    fn target(&self) -> String {
        format!("{QUEUES}{}", self.queue.spec.name)
    }

    fn store<'a>(self, member: &BatchMember) -> BoxFuture<'a, Result<ScheduledTask>>
    where
        Self: 'a,
    {
        let scheduling = self.in_batch(member).begun().1;
        Box::pin(async move {
            let task = scheduling.await?;
            // One that was replaced is gone, with its place in its batch.
            if matches!(task.placed, Placed::New | Placed::Replaced) {
                return Ok(task);
            }
            let why = format!("nothing was added to the batch: a task with the id {} is there", task.id);
            Err(Error::new(ErrorKind::Exists, why))
        })
    }
}

impl<T> fmt::Debug for ScheduleTask<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduleTask").field("due", &self.record.due).finish_non_exhaustive()
    }
}

impl<T: 'static> Inner<T> {
    /// Builds the request for a task, under its own id or one made from `random`.
    fn scheduling(&self, record: TaskRecord<'_, T>, random: u128) -> Result<Scheduling> {
        let id = match record.id {
            Some(id) => ScheduleId::new(id)?,
            None => ScheduleId::new(short(random))?,
        };
        let fields = self.encode(record.payload, record.envelope)?;
        let (due, on_conflict) = (record.due, record.on_conflict);
        Ok(Scheduling { place: self.place_of(&id), id, due, fields, on_conflict })
    }

    pub(crate) async fn schedule_each<'a>(
        &self,
        mut records: impl Iterator<Item = TaskRecord<'a, T>>,
    ) -> Vec<Result<ScheduledTask>>
    where
        T: 'a,
    {
        let mut outcomes = Vec::new();
        let mut span =
            self.tracing.as_ref().map(|it| it.sends_all(OperationKind::Schedule, self.spec.name.as_str()));
        loop {
            let mut batch = Vec::new();
            let mut slots = Vec::new();
            // One random number per batch, not per task: each further task uses the next number.
            let first = Uuid::new_v4().as_u128();
            for (nth, mut record) in records.by_ref().take(CHUNK).enumerate() {
                if let Some(span) = &mut span {
                    span.stamp_one_of_many(&mut record.envelope.headers);
                }
                slots.push(self.scheduling(record, first.wrapping_add(nth as u128)).map(|scheduling| {
                    let id = scheduling.id.clone();
                    batch.push(scheduling);
                    id
                }));
            }
            if slots.is_empty() {
                if let Some(span) = span {
                    let shard = |task: &ScheduledTask| self.spec.shard_of(&task.id).shard;
                    let result = |it: &Result<ScheduledTask>| it.as_ref().map(shard).map_err(Error::kind);
                    span.end_all(&mut outcomes.iter().map(result));
                }
                return outcomes;
            }
            let mut results = self.backend.schedule().schedule(&batch).await.into_iter();
            // Tasks that failed before the request are errors in `slots` and missing in `results`.
            outcomes.extend(slots.into_iter().map(|slot| {
                let id = slot?;
                let placed = results.next().unwrap_or_else(unanswered)?;
                Ok(ScheduledTask { id, placed })
            }));
        }
    }
}

fn unanswered() -> Result<Placed> {
    Err(Error::new(ErrorKind::Protocol, "the backend returned no result for a task"))
}

/// Encodes a number of 128 bits in 22 characters: ids are stored twice on the server, and there may be millions.
fn short(number: u128) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut rest = number;
    let digit = |_| {
        let digit = char::from(DIGITS[(rest & 63) as usize]);
        rest >>= 6;
        digit
    };
    (0..22).map(digit).collect()
}
