//! Requests: tasks whose schedulers wait for what the handler returns.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::codec::Json;
use millstream_core::results::{Asker, KEPT_BY_DEFAULT, MessageResult, ResultId};
use millstream_core::schedule::Placed;
use millstream_core::{Capability, Codec, Error, ErrorKind, Result};
use millstream_engine::requests::{Asked, Follow, RequestError, ResultStore, WITHIN, decoded};

use crate::schedule::{ScheduleTask, ScheduledTask};

/// Schedules a task that asks for its reply; it starts when it is awaited, and ends with the reply.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_delay::DelayQueue;
/// # use millstream_engine::requests::RequestError;
/// # async fn example(mails: DelayQueue<String>) -> Result<(), RequestError> {
/// let sent: bool = mails.schedule(&"welcome".to_owned()).reply::<bool>().within(Duration::from_secs(2)).await?;
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing until it is awaited"]
pub struct TaskRequest<'a, T: 'static, R: 'static> {
    task: ScheduleTask<'a, T>,
    codec: &'static dyn Codec<R>,
    within: Duration,
    keep: Duration,
}

impl<T, R> fmt::Debug for TaskRequest<'_, T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRequest")
            .field("task", &self.task)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

impl<'a, T> ScheduleTask<'a, T> {
    /// Asks for the reply of the handler, which is JSON: awaited, it waits for that. A worker whose handler returns a
    /// [`Reply`](millstream_core::Reply) answers, also if the task is given up.
    ///
    /// The result is stored in the step that settles the task, and [kept](TaskRequest::keep) for an hour.
    ///
    /// # Errors
    /// Of the awaited future: a [`RequestError`]. [`RequestError::NotSent`] with [`ErrorKind::Exists`] if the task was not needed, since one
    /// under its id waits or was done: its result is for whoever scheduled that one.
    pub fn reply<R>(self) -> TaskRequest<'a, T, R>
    where
        Json: Codec<R>,
    {
        self.reply_with(&Json)
    }

    /// Asks for the reply of the handler, which has this codec: see [`reply`](Self::reply).
    pub fn reply_with<R>(self, codec: &'static dyn Codec<R>) -> TaskRequest<'a, T, R> {
        TaskRequest { task: self, codec, within: WITHIN, keep: KEPT_BY_DEFAULT }
    }
}

impl<T, R> TaskRequest<'_, T, R> {
    /// Sets how long the request waits. Default: 30 s, which is little for a task that is due later: see [`begin`](Self::begin).
    pub fn within(mut self, wait: Duration) -> Self {
        self.within = wait;
        self
    }

    /// Sets how long the result is kept, from the settlement on. Default: an hour; 100 ms to 30 days, others count as those.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }
}

impl<T, R: Send> TaskRequest<'_, T, R> {
    /// Schedules the task, and returns when it is stored: the reply can be waited for later, also by its id in another process.
    ///
    /// # Errors
    /// [`RequestError::NotSent`] and [`RequestError::Unconfirmed`].
    pub fn begin(self) -> BoxFuture<'static, Result<RequestedTask<R>, RequestError>> {
        let codec = self.codec;
        let begun = begun(self.task, self.keep);
        Box::pin(async move {
            let Begun { scheduled, asked } = begun?;
            let task = asked.sent(scheduled).await?;
            let asked = asked.of(Asker::Task(task.id.clone()));
            Ok(RequestedTask { id: asked.id.clone(), task, asked, codec })
        })
    }
}

/// Task that is encoded.
struct Begun {
    scheduled: BoxFuture<'static, Result<ScheduledTask>>,
    asked: Asked,
}

fn begun<T>(task: ScheduleTask<'_, T>, keep: Duration) -> Result<Begun, RequestError> {
    let Some(store) = ResultStore::of(&task.queue().backend) else {
        return Err(RequestError::NotSent(Capability::Results.missing()));
    };
    let request = store.request(keep);
    let (place, scheduled) = task.asking(request).begun();
    let scheduled = scheduled.map(|scheduled| scheduled.and_then(ours)).boxed();
    match place {
        Some(place) => Ok(Begun { scheduled, asked: store.asked(place, request.number) }),
        // It is not scheduled, and says why at once.
        None => {
            let failed = scheduled.now_or_never().and_then(Result::err);
            let unknown = || Error::new(ErrorKind::Encode, "the task cannot be encoded");
            Err(RequestError::NotSent(failed.unwrap_or_else(unknown)))
        }
    }
}

/// Returns the task if it is the one that asks.
fn ours(task: ScheduledTask) -> Result<ScheduledTask> {
    match task.placed {
        Placed::Kept | Placed::Done => {
            let why = format!(
                "a task with the id {} is there already, or was done: its result is not for this request",
                task.id
            );
            Err(Error::new(ErrorKind::Exists, why))
        }
        _ => Ok(task),
    }
}

impl<'a, T, R: Send> IntoFuture for TaskRequest<'a, T, R> {
    type Output = Result<R, RequestError>;
    type IntoFuture = BoxFuture<'a, Result<R, RequestError>>;

    fn into_future(self) -> Self::IntoFuture {
        let (codec, within) = (self.codec, self.within);
        let answered = answered(begun(self.task, self.keep), within);
        Box::pin(async move { decoded(answered.await?, codec) })
    }
}

fn answered(
    begun: Result<Begun, RequestError>,
    within: Duration,
) -> BoxFuture<'static, Result<(ResultId, MessageResult), RequestError>> {
    Box::pin(async move {
        let Begun { scheduled, asked } = begun?;
        asked
            .answered(scheduled.map(|scheduled| scheduled.map(|task| Asker::Task(task.id))).boxed(), within)
            .await
    })
}

/// Task that is scheduled, and whose reply can be waited for.
#[must_use = "nobody waits for the reply until `within` is awaited"]
pub struct RequestedTask<R: 'static> {
    /// Id of the result.
    pub id: ResultId,
    /// The task.
    pub task: ScheduledTask,
    asked: Asked,
    codec: &'static dyn Codec<R>,
}

impl<R> fmt::Debug for RequestedTask<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, task, .. } = self;
        f.debug_struct("RequestedTask").field("id", id).field("task", task).finish_non_exhaustive()
    }
}

impl<R: Send> RequestedTask<R> {
    /// Follows the work: what the handler [says](crate::Task::progress) of it, and then the result.
    #[must_use]
    pub fn follow(&self) -> Follow {
        self.asked.follow()
    }

    /// Waits for the reply, which can be waited for again.
    ///
    /// # Errors
    /// A [`RequestError`].
    pub async fn within(&self, wait: Duration) -> Result<R, RequestError> {
        self.asked.reply(self.codec, wait).await
    }
}
