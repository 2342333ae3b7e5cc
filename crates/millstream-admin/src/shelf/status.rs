//! Where one message or task is now, for whoever sent it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::cancels::{CancelMark, WorkPlace};
use millstream_core::catalog::PartitionStats;
use millstream_core::inspect::{Pending, Range, Stream};
use millstream_core::log::{Receipt, Source};
use millstream_core::results::{Asker, ResultRequest};
use millstream_core::tasks::TaskPlace;
use millstream_core::wire::Fields;
use millstream_core::{
    ErrorKind, GroupName, Limits, MessageId, MessageResult, Partition, Place, Reason, Result, ResultId,
    ScheduleId, Shard, Timestamp, TopicPartition, TopicSpec, WorkId, wire,
};

use tokio::time::{Instant, timeout};

use super::{Failed, ShelfFilter, ShelfQuery};
use crate::{Admin, Browse, Owners};

/// Maximum number of groups that are looked at, and how many at the same time.
const GROUPS: (usize, usize) = (100, 4);
/// Maximum number of dead letters, or of dead tasks, that are looked at for one message.
const LOOKS: u64 = 5_000;
/// Maximum number of dead tasks under one id that are looked at.
const DEATHS: usize = 100;
/// Maximum number of entries of a retry log that are looked at.
const REDELIVERIES: usize = 500;
/// Time after which the search of one list ends, and time after which no further group is begun.
const BUDGET: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));

/// What is known of a message or task that asks for its result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Its result; `None` if there is none yet, or it is not kept any longer.
    pub result: Option<MessageResult>,
    /// Where it is, for each group of its topic; of a task one item. Empty if the [id](ResultId::asker) does not say which message it is of, and
    /// if the topic or delay queue does not exist.
    pub work: Vec<WorkStatus>,
    /// Number of groups that were not looked at: those beyond the first 100, and those that were not begun within 10 s.
    pub left: usize,
}

/// Where a message is for one group, or where a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkStatus {
    /// The group; `None` of a task.
    pub group: Option<GroupName>,
    /// Where it is.
    pub state: WorkState,
    /// Number of the attempt that is made or comes next, or of attempts that were made, if it is known.
    pub attempt: Option<u32>,
    /// Error of the last attempt; empty if there is none.
    pub error: String,
}

/// Where a message or task is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkState {
    /// The group has not read it yet.
    Waiting,
    /// The task waits until then, or for a worker if that is over.
    Delayed(Timestamp),
    /// It was handed out. Its handler has not begun, or its member has not named it: members name with their heartbeats what has run for a
    /// second, at most [100](millstream_core::running::MAX_NAMED) messages. A task is in this state while it is worked on.
    HandedOut {
        /// Who has it; `None` if the owner of its partition is gone, and of a task.
        to: Option<String>,
        /// How long ago that was; `None` of a task.
        ago: Option<Duration>,
    },
    /// Its handler runs, on this member, since then.
    Running(String, Timestamp),
    /// It failed, or was put off, and comes again.
    Retrying {
        /// When it is due; if that is over, it waits for a consumer or worker.
        at: Timestamp,
        /// Whether it waits in its place, as an entry that is pending, because others wait behind it.
        in_place: bool,
    },
    /// Its handler has begun a wait of its steps: it runs again when the time is over, or after a [signal](Admin::signal).
    InStep {
        /// Name of the wait.
        wait: String,
        /// When it ends without a signal.
        until: Timestamp,
    },
    /// It was given up, and this is its dead letter.
    Dead(MessageId, Reason),
    /// It was [cancelled](Admin::cancel): no handler begins, or its handler has ended.
    Cancelled,
    /// It was settled: handled, or dropped.
    Settled,
    /// It is nowhere: it was handled or dropped and has left the log, was deleted, or never was there. Of a task: it was done or cancelled, or
    /// another one took its place.
    Gone,
    /// It was not found, and not everything was looked through: there is too much, or it takes too long.
    Unknown,
}

impl WorkState {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delayed(_) => "delayed",
            Self::HandedOut { .. } => "handed out",
            Self::Running(..) => "running",
            Self::Retrying { .. } => "retrying",
            Self::InStep { .. } => "waits in step",
            Self::Dead(..) => "dead",
            Self::Cancelled => "cancelled",
            Self::Settled => "settled",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
        }
    }
}

impl WorkStatus {
    fn new(state: WorkState, attempt: Option<u32>, error: &str) -> Self {
        Self { group: None, state, attempt, error: error.to_owned() }
    }
}

/// What is known already of a message and a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Whether the message is in its log.
    pub is_stored: bool,
    /// State of the partition for the group.
    pub stats: Option<&'a PartitionStats>,
    /// The members of the group, and who owns the partitions.
    pub owners: Option<&'a Owners>,
    /// What is shown in the place of errors that can quote payloads: see [`ShelfFilter::undecodable_error`].
    pub undecodable_error: Option<&'static str>,
}

impl Admin {
    /// Returns what is known of a message or task that asks for its result. It reads some lists of each group and writes nothing. What it would
    /// not find within bounds (2 s, 5,000 dead letters, 500 redeliveries for a group) is [unknown](WorkState::Unknown). It needs the rights of
    /// a user who looks: see the guide on security.
    ///
    /// # Errors
    /// Those of the roles that it reads.
    pub async fn status(&self, id: &ResultId) -> Result<Status> {
        let work = match (&id.place, id.asker.as_deref()) {
            (Place::Partition(tp), Some(Asker::Message(message))) => self.in_groups(tp, *message).await,
            (Place::Shard(shard), Some(Asker::Task(task))) => {
                self.task_status(shard, task, Some(id.number)).await.map(|work| (vec![work], 0))
            }
            _ => Ok((Vec::new(), 0)),
        };
        let (work, left) = match work {
            // What was deleted has left its results.
            Err(error) if error.kind() == ErrorKind::NotFound => (Vec::new(), 0),
            work => work?,
        };
        // Behind the rest: what was settled meanwhile has its result by now.
        let result = self.backend.log().result(id, Duration::ZERO).await?;
        Ok(Status { result, work, left })
    }

    async fn in_groups(&self, tp: &TopicPartition, id: MessageId) -> Result<(Vec<WorkStatus>, usize)> {
        let until = Instant::now() + BUDGET.1;
        let spec = self.topic(&tp.topic).await?;
        let range = Range { after: id.previous(), before: id.next(), newest_first: false };
        let partitions = Some(vec![tp.partition]);
        let browse = Browse { partitions, range, limit: 1, ..Browse::default() };
        let is_stored = !self.messages(&tp.topic, &browse).await?.messages.is_empty();
        let mut groups = self.groups(&tp.topic).await?;
        let all = groups.len();
        groups.truncate(GROUPS.0);
        let spec = &spec;
        let looked = stream::iter(groups).map(|group| async move {
            if Instant::now() >= until {
                return Ok(None);
            }
            self.in_group(spec, tp, &group, (id, is_stored)).await.map(Some)
        });
        let looked: Vec<Option<WorkStatus>> = looked.buffered(GROUPS.1).try_collect().await?;
        let work: Vec<_> = looked.into_iter().flatten().collect();
        let left = all - work.len();
        Ok((work, left))
    }

    /// Returns where a message is for a group. It reads the state of the group first.
    pub(crate) async fn in_group(
        &self,
        spec: &TopicSpec,
        tp: &TopicPartition,
        group: &GroupName,
        (id, is_stored): (MessageId, bool),
    ) -> Result<WorkStatus> {
        let stats = self.backend.catalog().stats(spec, group).await?;
        let stats = stats.iter().find(|it| it.partition == tp.partition);
        // Without them it is not said who has a message.
        let owners = self.owners(&tp.topic, group).await.ok();
        let known = Known { is_stored, stats, owners: owners.as_ref(), undecodable_error: None };
        self.message_status(tp, group, id, known).await
    }

    /// Returns where a message is for a group.
    ///
    /// # Errors
    /// Those of the roles that it reads.
    pub async fn message_status(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        id: MessageId,
        known: Known<'_>,
    ) -> Result<WorkStatus> {
        let status = self.found(tp, group, id, known).await?;
        Ok(WorkStatus { group: Some(group.clone()), ..status })
    }

    async fn found(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        id: MessageId,
        known: Known<'_>,
    ) -> Result<WorkStatus> {
        if let Ok(cancels) = self.backend.cancels() {
            let place = WorkPlace::Group(tp.clone(), group.clone());
            let mark = cancels.mark(&place, &id.to_string(), Duration::ZERO).await?;
            if mark.is_some_and(CancelMark::is_answered) {
                return Ok(WorkStatus::new(WorkState::Cancelled, None, ""));
            }
        }
        let is_read = known.stats.and_then(|it| it.position).is_some_and(|position| position >= id);
        let is_empty = known.stats.is_some_and(|it| (it.pending, it.retrying, it.dead) == (0, 0, 0));
        let mut cut = false;
        // In the order in which messages move, and twice: one that moves behind the first look is found by the second.
        for _ in 0..if is_read && is_empty { 0 } else { 2 } {
            cut = false;
            if let Some(found) = self.alive(tp, group, id, known, &mut cut).await? {
                return Ok(found);
            }
            if let Some(found) = self.given_up(tp, group, id, known, &mut cut).await? {
                return Ok(found);
            }
        }
        let state = match (is_read, known.is_stored) {
            (false, true) => WorkState::Waiting,
            _ if cut => WorkState::Unknown,
            (true, _) => WorkState::Settled,
            (false, false) => WorkState::Gone,
        };
        Ok(WorkStatus::new(state, None, ""))
    }

    /// Finds a message that was handed out, or waits for a retry.
    async fn alive(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        id: MessageId,
        known: Known<'_>,
        cut: &mut bool,
    ) -> Result<Option<WorkStatus>> {
        let (partition, inspect) = (tp.partition, self.backend.inspect()?);
        let page = inspect.pending(tp, group, Source::Log, id.previous(), 1).await?;
        if let Some(pending) = page.items.into_iter().find(|it| it.id == id) {
            return self.pending_status(tp, id, &pending, known).await.map(Some);
        }
        let retries = self.retries(&tp.topic, group).await?;
        match timeout(BUDGET.0, retries.first(&ShelfFilter::one(partition, id), 1)).await {
            Err(_) => *cut = true,
            Ok(found) => {
                if let Some(retry) = found?.first() {
                    let it = retry.facts();
                    let work = WorkId::new(WorkPlace::Group(tp.clone(), group.clone()), id);
                    let state = self.parked_state(&work, it.at).await?;
                    return Ok(Some(WorkStatus::new(state, Some(it.attempts), it.error)));
                }
            }
        }
        let newest = Range { newest_first: true, ..Range::ALL };
        let redelivered = inspect.entries(tp, &Stream::Retry(group.clone()), newest, REDELIVERIES).await?;
        *cut |= redelivered.more;
        for entry in redelivered.items {
            let decoded = wire::decode(Receipt::new(Source::Retry, entry.id), &entry.fields, &Limits::NONE);
            if decoded.origin != id {
                continue;
            }
            let page = inspect.pending(tp, group, Source::Retry, entry.id.previous(), 1).await?;
            let mut found = match page.items.into_iter().find(|it| it.id == entry.id) {
                Some(pending) => self.pending_status(tp, id, &pending, known).await?,
                None => {
                    let state = WorkState::Retrying { at: entry.id.timestamp(), in_place: false };
                    WorkStatus::new(state, None, "")
                }
            };
            if found.attempt.is_none() {
                (found.attempt, found.error) = (Some(decoded.attempt), decoded.error.unwrap_or_default());
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Returns the state of what waits until this time: for its next attempt, or in its steps.
    async fn parked_state(&self, work: &WorkId, at: Timestamp) -> Result<WorkState> {
        Ok(match self.wait_until(work, at).await? {
            Some(wait) => WorkState::InStep { wait, until: at },
            None => WorkState::Retrying { at, in_place: false },
        })
    }

    /// Returns where a message is whose entry is pending.
    async fn pending_status(
        &self,
        tp: &TopicPartition,
        id: MessageId,
        pending: &Pending,
        known: Known<'_>,
    ) -> Result<WorkStatus> {
        let note = pending.note.as_ref().filter(|note| note.attempt > 0);
        let (attempt, error) = note.map_or((None, ""), |note| (Some(note.attempt), note.error.as_str()));
        if let Some(note) = note.filter(|note| !note.left().is_zero()) {
            let now = self.backend.schedule().now_at(&tp.clone().into()).await?;
            let state = WorkState::Retrying { at: now.saturating_add(note.left()), in_place: true };
            return Ok(WorkStatus::new(state, attempt, error));
        }
        let running = known.owners.map(Owners::running).unwrap_or_default();
        if let Some((by, it)) =
            running.into_iter().rfind(|(_, it)| (it.partition, it.origin) == (tp.partition, id))
        {
            let state = WorkState::Running(by.id.to_string(), it.since);
            return Ok(WorkStatus::new(state, Some(it.attempt), error));
        }
        let to = match known.owners {
            Some(owners) => owners.holder(tp.partition, &pending.consumer).map(str::to_owned),
            None => Some(pending.consumer.clone()),
        };
        let state = WorkState::HandedOut { to, ago: Some(pending.idle) };
        Ok(WorkStatus::new(state, attempt, error))
    }

    /// Finds the dead letter of a message.
    async fn given_up(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        id: MessageId,
        known: Known<'_>,
        cut: &mut bool,
    ) -> Result<Option<WorkStatus>> {
        let filter = ShelfFilter {
            partitions: Some(vec![tp.partition]),
            origin: Some(id),
            undecodable_error: known.undecodable_error,
            // A message dies after it was appended.
            from: Some(id.timestamp()),
            ..ShelfFilter::default()
        };
        let query = ShelfQuery { filter, limit: 1, looks: LOOKS, ..ShelfQuery::default() };
        let letters = self.dead_letters(&tp.topic, group).await?;
        let Ok(page) = timeout(BUDGET.0, letters.page(&query)).await else {
            *cut = true;
            return Ok(None);
        };
        let page = page?;
        *cut |= page.next.is_some();
        Ok(page.items.into_iter().find_map(Failed::letter).map(|letter| {
            let state = WorkState::Dead(letter.id, letter.reason);
            WorkStatus::new(state, Some(letter.attempts), &letter.error)
        }))
    }

    /// Returns where a task is: with a number, the one that asks for its result under that, since the id of a task can be used again.
    ///
    /// # Errors
    /// Those of [`Tasks::find`](millstream_core::Tasks::find) and [`Tasks::dead_tasks`](millstream_core::Tasks::dead_tasks).
    pub async fn task_status(
        &self,
        shard: &Shard,
        id: &ScheduleId,
        number: Option<u128>,
    ) -> Result<WorkStatus> {
        let is_it = |fields: &Fields| {
            let asks = wire::decode_body(fields, &Limits::NONE).ok();
            let asks = asks.and_then(|message| ResultRequest::of(&message.headers));
            number.is_none_or(|number| asks.is_some_and(|asks| asks.number == number))
        };
        let found = self.backend.tasks()?.find(shard, id).await?;
        if let Some(found) = found.as_ref().filter(|found| is_it(&found.fields)) {
            let attempt = Some(found.attempt).filter(|attempt| *attempt > 0);
            let work = WorkId::new(WorkPlace::Shard(shard.clone()), id);
            let state = match found.state {
                TaskPlace::Waiting(at) => match self.parked_state(&work, at).await? {
                    WorkState::Retrying { at, .. } if found.attempt <= 1 => WorkState::Delayed(at),
                    state => state,
                },
                TaskPlace::Claimed(_) => WorkState::HandedOut { to: None, ago: None },
                TaskPlace::Finished(_) => WorkState::Settled,
            };
            return Ok(WorkStatus::new(state, attempt, &found.error));
        }
        let (tasks, partitions) =
            (Some(BTreeSet::from([id.to_string()])), Some(vec![Partition(shard.shard)]));
        let filter = ShelfFilter { tasks, partitions, ..ShelfFilter::default() };
        let query = ShelfQuery { filter, limit: DEATHS, looks: LOOKS, ..ShelfQuery::default() };
        let (dead, cut) = match timeout(BUDGET.0, self.dead_tasks(&shard.queue).await?.page(&query)).await {
            Err(_) => (Vec::new(), true),
            Ok(page) => page.map(|page| (page.items, page.next.is_some()))?,
        };
        let task = dead.iter().rev().find_map(|it| match it {
            Failed::Task(task) if is_it(&task.body) => Some(task),
            _ => None,
        });
        Ok(match (task, found.map(|it| it.state)) {
            (Some(task), _) => {
                let state = WorkState::Dead(task.id, task.reason.clone());
                WorkStatus::new(state, Some(task.attempts), &task.error)
            }
            // It has no body any more, so it may have been another one with this id.
            (None, Some(TaskPlace::Finished(_))) => WorkStatus::new(WorkState::Settled, None, ""),
            (None, _) if cut => WorkStatus::new(WorkState::Unknown, None, ""),
            (None, _) => WorkStatus::new(WorkState::Gone, None, ""),
        })
    }
}
