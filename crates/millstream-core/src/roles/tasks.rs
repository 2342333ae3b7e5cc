//! The tasks role: a delay queue, without topics and groups.
//!
//! A task waits in a [`Shard`] as [`Schedule`](crate::Schedule) keeps it. When it is due, a worker [claims](Tasks::claim)
//! it for a limited time, under a token, and settles it. The next claim of any worker finds tasks whose claims have
//! expired. There is no leader, and no loop that could die alone.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::capability::unsupported;
use crate::continuity::Continuity;
use crate::dead_letters::{DeadLetterRetention, Overdue, Reason};
use crate::envelope::{Envelope, Limits};
use crate::error::{Problems, Result};
use crate::history::History;
use crate::id::MessageId;
use crate::log::Settled;
use crate::name::QueueName;
use crate::results::StoredResult;
use crate::schedule::{Due, ScheduleId, Shard, Waiting};
use crate::steps::StepWait;
use crate::timestamp::Timestamp;
use crate::wire::{self, Fields, Malformed};

/// The most tasks that one [`Tasks::claim`] returns: a server serves no other request meanwhile.
pub const MAX_CLAIM: usize = 100;

/// The longest time for which the id of a completed task stays in use: 30 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(30 * 86_400);

/// The largest number of shards of a queue.
pub const MAX_SHARDS: u32 = 1_024;

/// Stored settings of a delay queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Its name.
    pub name: QueueName,
    /// Number of shards: 1 to [`MAX_SHARDS`]. It cannot change after the queue was created.
    pub shards: u32,
    /// When dead tasks are dropped; the number is that of one shard. It can be [changed](Tasks::alter_queue).
    pub dead_letter_retention: DeadLetterRetention,
}

impl QueueSpec {
    /// Creates the settings of a queue that keeps all dead tasks.
    #[must_use]
    pub const fn new(name: QueueName, shards: u32) -> Self {
        Self { name, shards, dead_letter_retention: DeadLetterRetention::KEEP }
    }

    /// Returns the same settings with another retention of dead tasks.
    #[must_use]
    pub fn with_dead_letter_retention(self, retention: DeadLetterRetention) -> Self {
        Self { dead_letter_retention: retention, ..self }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) that lists all problems.
    pub fn check(&self) -> Result<()> {
        let mut problems = Problems::new("queue");
        problems.require((1..=MAX_SHARDS).contains(&self.shards), || {
            format!("{} shards, 1 to {MAX_SHARDS} are allowed", self.shards)
        });
        self.dead_letter_retention.check(&mut problems);
        problems.finish()
    }

    /// Returns the shards.
    pub fn iter(&self) -> impl Iterator<Item = Shard> + '_ {
        (0..self.shards).map(|shard| Shard::new(self.name.clone(), shard))
    }

    /// Returns the shard of an id: the same in every process.
    #[must_use]
    pub fn shard_of(&self, id: &ScheduleId) -> Shard {
        Shard::new(self.name.clone(), crate::partitioner::by_hash(id.as_str().as_bytes(), self.shards))
    }
}

/// Change of a queue's settings; a setting that is not set stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a change does nothing until it is given to Tasks::alter_queue"]
#[non_exhaustive]
pub struct QueueChange {
    /// The new retention of dead tasks.
    pub dead_letter_retention: Option<DeadLetterRetention>,
}

impl QueueChange {
    /// Creates a change that changes nothing.
    pub const fn new() -> Self {
        Self { dead_letter_retention: None }
    }

    /// Changes the retention of dead tasks. Running workers apply it within two minutes.
    pub const fn dead_letter_retention(mut self, retention: DeadLetterRetention) -> Self {
        self.dead_letter_retention = Some(retention);
        self
    }

    /// Returns `queue` after the change.
    ///
    /// # Errors
    /// Those of [`QueueSpec::check`].
    pub fn of(&self, queue: QueueSpec) -> Result<QueueSpec> {
        let retention = self.dead_letter_retention.unwrap_or(queue.dead_letter_retention);
        let changed = queue.with_dead_letter_retention(retention);
        changed.check().map(|()| changed)
    }
}

/// Claim request of a worker.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Name of the worker: unique to one start of it, at most 128 bytes without spaces.
    pub worker: String,
    /// Largest number of tasks to claim: at most [`MAX_CLAIM`]. With 0 none is claimed, and another worker takes over
    /// waiting for the next due task: a worker that is busy, or ends, sends this.
    pub limit: usize,
    /// Time for which a claim holds unless it is [extended](Tasks::extend).
    pub hold: Duration,
    /// Number of [crashes](ClaimedTask::crashes) at which a task becomes a dead letter ([`Reason::Crashed`]) instead of
    /// being claimed again, if a handler had begun under the last claim that ended in a crash; 0 for never.
    pub crash_limit: u32,
    /// Longest time after which this worker claims again in any case: upper limit of [`Claimed::next`].
    pub longest_sleep: Duration,
    /// Continuity of the worker, with a ttl of `hold`. Expired claims are taken over only when it makes them
    /// [free](Continuity::free_at): they may have expired because no worker could reach the server.
    pub continuity: Continuity,
}

/// Task that a worker has claimed.
#[derive(Clone, Debug)]
pub struct ClaimedTask {
    /// Its id.
    pub id: ScheduleId,
    /// Token with which it is settled: unique to this claim.
    pub token: String,
    /// Token of the previous claim, if this one follows a claim that expired. A worker that still works on the task under
    /// that token continues under the new one. For every other worker it is a new task, even if they know its id.
    pub before: Option<String>,
    /// Due time by the server's clock.
    pub due: Timestamp,
    /// Number of this attempt, from 1. It grows when a handler failed.
    pub attempt: u32,
    /// Number of claims of it that expired unsettled since the last attempt that was settled: their workers died or
    /// stalled. The first one counts unless the worker that claims now had it (that worker is alive: an answer to it was
    /// lost). A further one counts only if its worker had recorded that a handler [begins](Tasks::extend): otherwise only
    /// answers were lost.
    pub crashes: u32,
    /// Error of the last attempt; empty if none has failed.
    pub error: String,
    /// Failures of all attempts.
    pub history: History,
    /// The message; empty if its body has been deleted.
    pub fields: Fields,
}

/// Result of one claim.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Claimed {
    /// Tasks that the worker has now: those whose claims expired first, then the others by due time.
    pub tasks: Vec<ClaimedTask>,
    /// Number of tasks that became dead letters, because their claims expired too often.
    pub crashed: usize,
    /// Time until the worker should claim again at the latest; zero if there may be more now. Where several workers are
    /// idle, one gets the time of the next due task (or expiring claim, or recurring schedule), and the others later
    /// times, so that they do not all claim for one task. All of them [wait](Tasks::wait) meanwhile. While claims are
    /// open, two workers get at most a third of `hold`, so that one of them [judges](Continuity::judges) when a claim
    /// expires.
    pub next: Duration,
    /// Whether a recurring schedule is due: see [`Recurring`](crate::Recurring).
    pub recurring: bool,
    /// Time of the server.
    pub now: Timestamp,
    /// Identity of the server that answered, for [`Continuity::advance`]; `-` if the server may not give it. Empty if the
    /// continuity in the request is recent enough to stay as it is.
    pub server: String,
}

/// Result of one extension.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Extended {
    /// For each claim, whether the worker still has it.
    pub ours: Vec<bool>,
    /// Identity of the server that answered, for [`Continuity::advance`]; `-` if the server may not give it. Empty if no
    /// request was made.
    pub server: String,
    /// Time of the server.
    pub now: Timestamp,
}

/// Settlement of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done: the task is deleted.
    Complete,
    /// Done: the task is deleted, and its id stays in use for this long, by the server's clock: a task that is scheduled
    /// under it is [`Placed::Done`](crate::schedule::Placed::Done). At least 1 ms and at most [`MAX_WINDOW`]; longer windows
    /// count as that.
    CompleteFor(Duration),
    /// Done, with the result that the task asks for, which is stored in the same step, as that of
    /// [`Settlement::AckWith`](crate::Settlement::AckWith) of a message. A backend without
    /// [`Capability::Results`](crate::Capability::Results) stores none.
    CompleteWith {
        /// How long the id of the task stays in use, as in [`CompleteFor`](Self::CompleteFor); `None` if it does not.
        window: Option<Duration>,
        /// The result.
        result: Box<StoredResult>,
    },
    /// Due again, as `attempt`. With the number that it had and no error (snoozed or released), its history stays as it
    /// is; and if no handler had [begun](Tasks::extend), its number of crashes stays too. In all other cases that number
    /// is reset.
    Retry {
        /// Due time.
        due: Due,
        /// Number of the next attempt.
        attempt: u32,
        /// Error of this attempt.
        error: String,
        /// Failures of earlier attempts: this one is added to them.
        history: History,
        /// The wait for which its handler has handed it back, as that of [`Settlement::Retry`](crate::Settlement::Retry).
        wait: Option<Box<StepWait>>,
    },
    /// Given up: kept among the dead tasks.
    Dead {
        /// The reason.
        reason: Reason,
        /// Number of attempts that were made.
        attempts: u32,
        /// Error of the last attempt.
        error: String,
        /// Failures of earlier attempts: the last one is added to them.
        history: History,
        /// The result that the task asks for, stored as that of [`CompleteWith`](Self::CompleteWith).
        result: Option<Box<StoredResult>>,
    },
}

impl Verdict {
    /// Returns the result that is stored with it.
    #[must_use]
    pub fn result(&self) -> Option<&StoredResult> {
        match self {
            Self::CompleteWith { result, .. } | Self::Dead { result: Some(result), .. } => Some(result),
            _ => None,
        }
    }
}

/// Task that was given up.
#[derive(Clone, Debug)]
pub struct DeadTask {
    /// Id among the dead tasks of its shard; its first part is the time of death, by the server's clock.
    pub id: MessageId,
    /// The shard.
    pub shard: Shard,
    /// Id of the task.
    pub task: ScheduleId,
    /// The reason.
    pub reason: Reason,
    /// Number of attempts that were made.
    pub attempts: u32,
    /// Error of the last attempt; empty if none was made.
    pub error: String,
    /// Failures of all attempts.
    pub history: History,
    /// The message, byte for byte.
    pub body: Fields,
}

impl DeadTask {
    /// Decodes the message.
    ///
    /// # Errors
    /// The reason why the body is not a message.
    pub fn envelope(&self, limits: &Limits) -> Result<Envelope, Malformed> {
        wire::decode_body(&self.body, limits)
    }
}

/// Caller of [`Tasks::trim_dead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimTasksBy {
    /// A worker, which does a bounded amount of work. It was paused if its request arrives after `until`, by the server's
    /// clock, and may know an earlier retention: then it is refused.
    Worker {
        /// Latest time at which the retention may be applied.
        until: Timestamp,
    },
    /// An operator. All is done.
    Operator,
    /// An operator who wants to know what would be dropped. Nothing is.
    DryRun,
}

/// Result of one [`Tasks::trim_dead`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimmedTasks {
    /// Number of dead tasks that were dropped because they were too old.
    pub aged: u64,
    /// Number of dead tasks that were dropped because there were too many newer ones.
    pub excess: u64,
    /// Whether there may be more to drop: a worker's trim is bounded.
    pub more: bool,
}

impl TrimmedTasks {
    /// Creates a result without more to drop.
    #[must_use]
    pub const fn new(aged: u64, excess: u64) -> Self {
        Self { aged, excess, more: false }
    }

    /// Returns the number of dead tasks that were dropped.
    #[must_use]
    pub const fn dropped(self) -> u64 {
        self.aged + self.excess
    }

    /// Counts one more task that is dropped.
    pub fn count(&mut self, overdue: Overdue) {
        match overdue {
            Overdue::Age => self.aged += 1,
            Overdue::Length => self.excess += 1,
        }
    }
}

/// Numbers of tasks in a shard, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Tasks that wait, and those of them that are due.
    pub waiting: Waiting,
    /// Tasks that workers have claimed.
    pub claimed: u64,
    /// Claimed tasks whose claim has expired.
    pub expired: u64,
    /// Tasks that were given up.
    pub dead: u64,
    /// Time since which the shard is [paused](Tasks::set_paused), by the server's clock; of several shards that of the first one
    /// that is. `None` if it is not.
    pub paused: Option<Timestamp>,
}

/// Task that waits, is worked on, or was done a while ago.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundTask {
    /// Where it is.
    pub state: TaskPlace,
    /// Number of the attempt that is due or made, from 1; 0 for a task that was done.
    pub attempt: u32,
    /// Error of the last attempt; empty if none has failed.
    pub error: String,
    /// The message; empty of a task that was done, or whose body has been deleted.
    pub fields: Fields,
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskPlace {
    /// It waits until then, or for a worker if that is over.
    Waiting(Timestamp),
    /// A worker has claimed it, until then.
    Claimed(Timestamp),
    /// It was completed, and its id [stays in use](Verdict::CompleteFor) until then.
    Finished(Timestamp),
}

impl FoundTask {
    /// Creates it as a backend returns it.
    #[must_use]
    pub const fn new(state: TaskPlace, attempt: u32, error: String, fields: Fields) -> Self {
        Self { state, attempt, error, fields }
    }

    /// Returns the message.
    ///
    /// # Errors
    /// The stored bytes are none.
    pub fn envelope(&self) -> std::result::Result<Envelope, Malformed> {
        wire::decode_body(&self.fields, &Limits::NONE)
    }
}

/// Gives due tasks to workers.
#[async_trait]
pub trait Tasks: Send + Sync {
    /// Creates a queue unless it exists. Returns the stored settings: those of the first call win.
    ///
    /// # Errors
    /// Those of [`QueueSpec::check`]; [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) for a new queue
    /// [named `.` or `..`](QueueName::check_new); transient ones.
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec>;

    /// Returns the stored settings of a queue.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); transient ones.
    async fn queue(&self, name: &QueueName) -> Result<QueueSpec>;

    /// Returns the names of all queues, in order.
    ///
    /// # Errors
    /// Transient ones.
    async fn queues(&self) -> Result<Vec<QueueName>>;

    /// Claims due tasks in one step: tasks whose claims expired and are [free](ClaimRequest::continuity), then the others by
    /// due time. No task is claimed early, and each by one worker at a time. A task whose body has been deleted is
    /// claimed as well, without fields. With large bodies fewer tasks may be claimed than are due, about 1 MiB but at
    /// least one; then `next` is zero.
    ///
    /// A worker that claims, or has open claims, calls another one to stay near, if none comes within a third of `hold`: at most once in
    /// that time, and once more if it got that call itself. Until then its own `next` is at most that.
    /// `lua/tasks/claim_tasks.lua` has it step by step.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). Tasks that were claimed in a lost reply can
    /// be claimed again when their claim expires. It works on a server that is out of memory.
    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed>;

    /// Settles tasks, each given as (id, token, settlement). A task whose claim expired and that another worker has
    /// claimed is stale: nothing is done. One whose claim expired and that no worker has claimed since is settled. A
    /// settlement that is sent again after a lost reply is stale.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). All settlements work on a server that is
    /// out of memory.
    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled>;

    /// Extends claims to `hold` from now. Returns for each whether the worker still has it: true also for an expired
    /// claim, unless another worker took the task over.
    ///
    /// With `begun`, it records that handlers begin with these tasks: a worker sends this for a task that has
    /// [crashes](ClaimedTask::crashes), before its handler begins. So a claim whose answer is lost does not count as a
    /// crash of the handler. The record lasts as long as the claim.
    /// # Errors
    /// Transient ones. It works on a server that is out of memory.
    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended>;

    /// Returns a task that waits, is claimed, or was completed and whose id is still in use; `None` if it is none of these: it is dead, was
    /// done, or never was there.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) by default: see
    /// [`Capability::FindTasks`](crate::Capability::FindTasks).
    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        let _ = (shard, id);
        Err(unsupported("Tasks::find"))
    }

    /// Waits, up to `timeout`, for a wake-up: a task is due earlier than expected, or the worker that waited for the next
    /// due task is busy. Each wake-up reaches one waiting worker; while no worker waits, one wake-up is kept. Returns
    /// true for a wake-up: the caller must then [claim](Self::claim), or another worker may sleep too long (at most as
    /// long as its `next`).
    ///
    /// # Errors
    /// Transient ones.
    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool>;

    /// Returns the numbers of tasks in a shard.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn counts(&self, shard: &Shard) -> Result<TaskCounts>;

    /// Returns up to `limit` (at most 1,000) dead tasks of a shard with an id above `after`, oldest first; fewer if they
    /// are large, none only if there are none. Pass [`MessageId::ZERO`] to start.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>>;

    /// Schedules dead tasks again under their ids, due at once, as a first attempt. Returns the number of tasks that were
    /// moved: each is moved once. A task whose id waits or is worked on by now stays dead.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). Tasks that were moved stay moved.
    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize>;

    /// Deletes dead tasks permanently. Returns the number of deleted tasks.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize>;

    /// Deletes the dead tasks that a shard has now permanently, without reading them. Returns the number of deleted
    /// tasks.
    ///
    /// # Errors
    /// Transient ones, after which deleted tasks stay deleted; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn purge_all(&self, shard: &Shard) -> Result<usize>;

    /// Pauses or resumes a shard, and returns whether that changed anything. From the moment of a pause on no worker claims a
    /// task in it, also none whose claim has expired. What was claimed before goes on, and may be extended and settled.
    /// [Recurring](crate::Recurring) schedules are still reported as due. The pause is stored until the shard is resumed, which
    /// wakes a worker.
    ///
    /// [Optional](crate::Capability::PauseQueue).
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). By default
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        let _ = (shard, paused);
        Err(unsupported("Tasks::set_paused"))
    }

    /// Changes settings of a queue, and returns all of them.
    ///
    /// [Optional](crate::Capability::TrimDeadTasks).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); those of [`QueueSpec::check`]; transient ones. By default
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        let _ = (name, change);
        Err(unsupported("Tasks::alter_queue"))
    }

    /// Deletes a queue with everything in it: tasks that wait, are worked on or are dead, and recurring rules. Returns
    /// whether it existed. Interrupted, it can be called again: the settings are deleted last. Clients that have the queue
    /// open do not notice: their settlements are stale, and what they schedule or recur afterwards is found again if a queue
    /// of that name is created.
    ///
    /// [Optional](crate::Capability::DeleteQueue).
    ///
    /// # Errors
    /// Transient ones; those of [`queue`](Self::queue) for settings that cannot be read. By default
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        let _ = name;
        Err(unsupported("Tasks::delete_queue"))
    }

    /// Drops the dead tasks of a shard that a retention does not keep, oldest first. The age of a task counts from its
    /// death, the number is that of the shard. The clock is the server's. A task is replayed in one step, so one that is
    /// dropped was not replayed, and one that was replayed is not dropped.
    ///
    /// [Optional](crate::Capability::TrimDeadTasks).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) for a [worker](TrimTasksBy::Worker) that comes too late: nothing was
    /// dropped. Transient ones and [`ErrorKind::WrongType`](crate::ErrorKind::WrongType): tasks that were dropped stay
    /// dropped. By default [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        let _ = (shard, retention, by);
        Err(unsupported("Tasks::trim_dead"))
    }
}

impl fmt::Display for QueueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} shards)", self.name, self.shards)
    }
}
