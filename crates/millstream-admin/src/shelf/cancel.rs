//! Cancels messages and tasks, and says what became of them.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::batches::Demand;
use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::inspect::Range;
use millstream_core::results::{Asker, CANCELLED, StoredResult};
use millstream_core::tasks::TaskPlace;
use millstream_core::{
    Error, ErrorKind, GroupName, MessageId, MessageResult, Place, Reason, Result, ResultId, ScheduleId,
    Shard, TopicPartition, TopicSpec,
};
use tokio::time::{Instant, sleep};

use super::status::WorkState;
use super::{Failed, ShelfFilter};
use crate::{Admin, Browse};

/// How long a cancel waits for answers unless it says otherwise.
const WITHIN: Duration = Duration::from_secs(10);
/// Groups that are asked at the same time.
const AT_ONCE: usize = 32;
/// Pause before something is looked for again that has moved.
const EARLY: Duration = Duration::from_millis(1);
/// First and longest time between two looks for a message that nobody has answered for.
const LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What a cancel came to, for one group, or for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CancelEnd {
    /// The group; `None` of a task.
    pub group: Option<GroupName>,
    /// What it came to.
    pub state: CancelState,
}

/// What a cancel came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelState {
    /// No handler had begun in this attempt, and none will. Of earlier attempts a handler may run on whose owner has lost its right, as at any retry.
    Cancelled,
    /// No handler will begin, and none runs of who has the message. But a former owner had it in this attempt, and has lost its right: its handler
    /// may still run.
    Withdrawn,
    /// Its handler had begun and was asked to stop, and has ended. The message is not handled again.
    Stopped,
    /// It was done before, or its handler completed it all the same.
    Done,
    /// It was given up before, and this is its dead letter.
    Dead(MessageId, Reason),
    /// It is nowhere: it was handled or dropped and has left the log, or never was there.
    Gone,
    /// Nobody has answered in time, and its handler may run. The request stays for a week at least: whoever has the message asks its handler to stop,
    /// and it is not handled again if it fails; whoever gets it does not begin. Of a task it stays for the claim that its worker has: ask again.
    Asked,
}

impl CancelState {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
            Self::Stopped => "stopped",
            Self::Done => "done",
            Self::Dead(..) => "dead",
            Self::Gone => "gone",
            Self::Asked => "asked",
        }
    }

    fn of(mark: CancelMark) -> Option<Self> {
        match mark {
            CancelMark::Ahead | CancelMark::Cancelled => Some(Self::Cancelled),
            CancelMark::Withdrawn => Some(Self::Withdrawn),
            CancelMark::Stopped => Some(Self::Stopped),
            _ => None,
        }
    }
}

/// What is cancelled.
#[derive(Clone, Debug)]
enum Target {
    Message(TopicPartition, MessageId),
    /// With the number under which it asks for its result, since the id of a task can be used again.
    Task(Shard, ScheduleId, Option<u128>),
    /// The id of its result does not say what it is.
    Unknown(ResultId),
}

/// Cancel of one message or task, which starts when it is awaited. It returns what it came to for each group; for a task one item.
///
/// ```
/// # use millstream_admin::{Admin, CancelState};
/// # use millstream_core::{Result, ResultId};
/// # async fn example(admin: Admin, id: ResultId) -> Result<()> {
/// for end in admin.cancel(&id).await? {
///     match end.state {
///         CancelState::Cancelled | CancelState::Stopped => println!("nothing of it runs"),
///         state => println!("{}", state.as_str()),
///     }
/// }
/// # Ok(()) }
/// ```
#[must_use = "a cancel does nothing until it is awaited"]
pub struct Cancel {
    admin: Admin,
    target: Target,
    group: Option<GroupName>,
    /// `None`: nothing is asked for.
    within: Option<Duration>,
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, group, within, .. } = self;
        f.debug_struct("Cancel").field("of", target).field("group", group).field("within", within).finish()
    }
}

impl Cancel {
    /// Cancels a message for this group alone. Default: for all groups of its topic.
    pub fn in_group(self, group: GroupName) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Waits for answers for up to this time. Default: 10 s. With no time it asks, and returns what is known at once.
    pub fn within(self, within: Duration) -> Self {
        Self { within: Some(within), ..self }
    }

    /// Changes nothing: returns what it would come to, where that is known already, and [`Asked`](CancelState::Asked) where it would be asked for.
    pub fn dry_run(self) -> Self {
        Self { within: None, ..self }
    }
}

impl IntoFuture for Cancel {
    type Output = Result<Vec<CancelEnd>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { admin, target, group, within } = self;
            let until = within.map(|it| Instant::now() + it.min(Duration::from_secs(30 * 24 * 3_600)));
            match target {
                Target::Message(tp, id) => admin.cancel_in_groups(&tp, id, group, until).await,
                Target::Task(shard, id, number) => {
                    let state = admin.cancel_of_task(&shard, &id, number, until).await?;
                    Ok(vec![CancelEnd { group: None, state }])
                }
                Target::Unknown(id) => {
                    let why = format!("{id} does not say which message or task asks for the result");
                    Err(Error::new(ErrorKind::InvalidName, why))
                }
            }
        })
    }
}

impl Admin {
    /// Cancels the message or task that asks for this result. It needs the rights of a user who changes things: see the guide on security.
    ///
    /// The future fails with [`ErrorKind::InvalidName`] if the id does not say [what asks](ResultId::asker), with [`ErrorKind::NotFound`] if
    /// the topic or queue does not exist, and with [`ErrorKind::Backpressure`] if [too many](millstream_core::cancels::MAX_MARKS) wait for an answer.
    pub fn cancel(&self, id: &ResultId) -> Cancel {
        let target = match (&id.place, id.asker.as_deref()) {
            (Place::Partition(tp), Some(Asker::Message(message))) => Target::Message(tp.clone(), *message),
            (Place::Shard(shard), Some(Asker::Task(task))) => {
                Target::Task(shard.clone(), task.clone(), Some(id.number))
            }
            _ => Target::Unknown(id.clone()),
        };
        self.cancel_of(target)
    }

    /// Cancels a message by its id in the log.
    pub fn cancel_message(&self, topic_partition: &TopicPartition, id: MessageId) -> Cancel {
        self.cancel_of(Target::Message(topic_partition.clone(), id))
    }

    /// Cancels a task by its id, whether it waits or a worker has it.
    pub fn cancel_task(&self, shard: &Shard, id: &ScheduleId) -> Cancel {
        self.cancel_of(Target::Task(shard.clone(), id.clone(), None))
    }

    fn cancel_of(&self, target: Target) -> Cancel {
        Cancel { admin: self.clone(), target, group: None, within: Some(WITHIN) }
    }

    async fn cancel_in_groups(
        &self,
        tp: &TopicPartition,
        id: MessageId,
        group: Option<GroupName>,
        until: Option<Instant>,
    ) -> Result<Vec<CancelEnd>> {
        let spec = self.topic(&tp.topic).await?;
        let range = Range { after: id.previous(), before: id.next(), newest_first: false };
        let partitions = Some(vec![tp.partition]);
        let browse = Browse { partitions, range, limit: 1, ..Browse::default() };
        let is_stored = !self.messages(&tp.topic, &browse).await?.messages.is_empty();
        let all = self.groups(&tp.topic).await?;
        let is_for_sender = group.is_none() || all.len() == 1;
        let groups = match group {
            Some(group) => {
                if !all.contains(&group) {
                    let why = format!("group {group} of topic {} does not exist", tp.topic);
                    return Err(Error::new(ErrorKind::NotFound, why));
                }
                vec![group]
            }
            None => all,
        };
        let spec = &spec;
        let ends = stream::iter(groups).map(|group| async move {
            let message = Wanted { spec, tp, group: &group, id, is_stored, is_for_sender };
            let state = self.cancel_in_group(&message, until).await?;
            Ok(CancelEnd { group: Some(group), state })
        });
        ends.buffered(AT_ONCE).try_collect().await
    }

    async fn cancel_in_group(&self, message: &Wanted<'_>, until: Option<Instant>) -> Result<CancelState> {
        let Wanted { tp, group, id, .. } = *message;
        let (role, place) = (self.backend.cancels()?, WorkPlace::Group(tp.clone(), group.clone()));
        let (name, mut pause) = (id.to_string(), LOOKS.0);
        let known = role.mark(&place, &name, Duration::ZERO).await?;
        if let Some(state) = known.and_then(CancelState::of) {
            return Ok(state);
        }
        if known.is_none()
            && let Some(state) = self.over(message).await?
        {
            return Ok(state);
        }
        let Some(until) = until else { return Ok(CancelState::Asked) };
        loop {
            let request = self.request_for(message).await?;
            let mut mark = role.cancel(&place, &name, &request).await?;
            if mark == Some(CancelMark::Cancelled) {
                self.end_member(&request).await;
            }
            let left = until.saturating_duration_since(Instant::now());
            if mark == Some(CancelMark::Asked) {
                mark = role.mark(&place, &name, left.min(pause)).await?;
                if mark.is_none() {
                    // It was parked in this moment, and nobody has seen it there.
                    sleep(left.min(EARLY)).await;
                }
            }
            if let Some(state) = mark.and_then(CancelState::of) {
                return Ok(state);
            }
            if let Some(state) = self.over(message).await? {
                // Whoever drops a message says so before.
                if let Some(state) = role.mark(&place, &name, Duration::ZERO).await?.and_then(CancelState::of)
                {
                    return Ok(state);
                }
                role.forget(&place, &name).await?;
                return Ok(state);
            }
            if left.is_zero() {
                return Ok(CancelState::Asked);
            }
            pause = (pause * 2).min(LOOKS.1);
        }
    }

    /// Returns what a cancel came to if nobody can handle the message any more.
    async fn over(&self, message: &Wanted<'_>) -> Result<Option<CancelState>> {
        let Wanted { spec, tp, group, id, is_stored, .. } = *message;
        let mut found = None;
        // Twice: it is not over only because it moves from one place to another during a look.
        for _ in 0..2 {
            found = match self.in_group(spec, tp, group, (id, is_stored)).await?.state {
                WorkState::Settled => Some(CancelState::Done),
                WorkState::Dead(letter, reason) => Some(CancelState::Dead(letter, reason)),
                WorkState::Gone => Some(CancelState::Gone),
                _ => return Ok(None),
            };
        }
        Ok(found)
    }

    /// Returns whether the message is a retry that is parked now, and what is stored then if it asks for its result.
    async fn request_for(&self, message: &Wanted<'_>) -> Result<CancelRequest> {
        let retries = self.retries(&message.tp.topic, message.group).await?;
        let parked = retries.first(&ShelfFilter::one(message.tp.partition, message.id), 1).await?;
        let Some(facts) = parked.first().map(Failed::facts) else { return Ok(CancelRequest::default()) };
        // The number in the item is that of the next attempt.
        let result = MessageResult::cancelled(facts.attempts.saturating_sub(1));
        let mut demand = Demand::in_fields(facts.body).unwrap_or_default().in_group(message.group);
        demand.result = demand.result.filter(|_| message.is_for_sender);
        let result = (!demand.is_empty()).then_some(StoredResult { demand, result });
        Ok(CancelRequest { number: None, removes: true, result })
    }

    async fn cancel_of_task(
        &self,
        shard: &Shard,
        id: &ScheduleId,
        number: Option<u128>,
        until: Option<Instant>,
    ) -> Result<CancelState> {
        let (role, tasks) = (self.backend.cancels()?, self.backend.tasks()?);
        let (place, name, mut pause) = (WorkPlace::Shard(shard.clone()), id.as_str(), LOOKS.0);
        // Whether a mark is that of this task: another one may have had the id before.
        let mut is_asked = false;
        loop {
            let found = tasks.find(shard, id).await?;
            let demand = found.as_ref().and_then(|task| Demand::in_fields(&task.fields)).unwrap_or_default();
            let is_it = number.is_none_or(|number| demand.result.is_some_and(|asks| asks.number == number));
            let alive = found.filter(|task| is_it && !matches!(task.state, TaskPlace::Finished(_)));
            let Some(task) = alive else {
                let mark = if is_asked { role.mark(&place, name, Duration::ZERO).await? } else { None };
                return match mark.and_then(CancelState::of) {
                    Some(state) => Ok(state),
                    None => self.over_of_task(shard, id, number).await,
                };
            };
            let Some(until) = until else { return Ok(CancelState::Asked) };
            let result = MessageResult::cancelled(task.attempt.saturating_sub(1));
            let result = (!demand.is_empty()).then_some(StoredResult { demand, result });
            let removes = matches!(task.state, TaskPlace::Waiting(_));
            let request = CancelRequest { number, removes, result };
            let mut mark = role.cancel(&place, name, &request).await?;
            if removes && mark.is_some_and(CancelMark::is_answered) {
                self.end_member(&request).await;
            }
            let left = until.saturating_duration_since(Instant::now());
            if mark == Some(CancelMark::Asked) {
                is_asked |= !removes;
                mark = role.mark(&place, name, left.min(pause)).await?;
                if mark.is_none() {
                    sleep(left.min(EARLY)).await;
                }
            }
            if let Some(state) = mark.and_then(CancelState::of) {
                return Ok(state);
            }
            if left.is_zero() {
                return Ok(CancelState::Asked);
            }
            pause = (pause * 2).min(LOOKS.1);
        }
    }

    /// Returns what became of a task that neither waits nor is claimed.
    async fn over_of_task(
        &self,
        shard: &Shard,
        id: &ScheduleId,
        number: Option<u128>,
    ) -> Result<CancelState> {
        let gone = match self.task_status(shard, id, number).await?.state {
            WorkState::Dead(letter, reason) => return Ok(CancelState::Dead(letter, reason)),
            WorkState::Settled => return Ok(CancelState::Done),
            _ => CancelState::Gone,
        };
        // What is over leaves nothing but its result.
        let Some(number) = number else { return Ok(gone) };
        let result = self.backend.log().result(&ResultId::new(shard.clone(), number), Duration::ZERO).await?;
        Ok(match result {
            // The mark says how; without it nothing more is known than that.
            Some(MessageResult::Failed { reason, .. }) if reason == CANCELLED => {
                let place = WorkPlace::Shard(shard.clone());
                let mark = self.backend.cancels()?.mark(&place, id.as_str(), Duration::ZERO).await?;
                mark.and_then(CancelState::of).unwrap_or(CancelState::Withdrawn)
            }
            Some(_) => CancelState::Done,
            None => gone,
        })
    }
}

/// A message that is cancelled for one group.
struct Wanted<'a> {
    spec: &'a TopicSpec,
    tp: &'a TopicPartition,
    group: &'a GroupName,
    id: MessageId,
    is_stored: bool,
    /// Whether the sender waits for no other group: then its result says that it was cancelled.
    is_for_sender: bool,
}
