//! The tasks role: a delay queue, without topics and groups.
//!
//! A task waits in a [`Shard`] as [`Schedule`](crate::Schedule) keeps it; when it is due a worker
//! [claims](Tasks::claim) it for a while, under a token, and settles it. A claim that runs out comes back by itself: the
//! next claim of anybody finds it. There is no leader, and no loop that could die alone.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::dead_letters::Reason;
use crate::envelope::{Envelope, Limits};
use crate::error::Result;
use crate::history::History;
use crate::id::MessageId;
use crate::log::Settled;
use crate::name::QueueName;
use crate::schedule::{Due, ScheduleId, Shard, Waiting};
use crate::wire::{self, Fields, Malformed};

/// The most tasks that one [`Tasks::claim`] gives: a server does nothing else meanwhile.
pub const MAX_CLAIM: usize = 100;

/// The most shards of a queue.
pub const MAX_SHARDS: u32 = 1_024;

/// A delay queue as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Its name.
    pub name: QueueName,
    /// Over how many shards it is spread: 1 to [`MAX_SHARDS`]. It stays what it was created with.
    pub shards: u32,
}

impl QueueSpec {
    /// The shards.
    pub fn iter(&self) -> impl Iterator<Item = Shard> + '_ {
        (0..self.shards).map(|shard| Shard::new(self.name.clone(), shard))
    }

    /// The shard of an id: the same for everybody.
    #[must_use]
    pub fn shard_of(&self, id: &ScheduleId) -> Shard {
        Shard::new(self.name.clone(), crate::partitioner::by_hash(id.as_str().as_bytes(), self.shards))
    }
}

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Who asks: unique to one start of a worker, at most 128 bytes without spaces.
    pub worker: String,
    /// How many it can take: at most [`MAX_CLAIM`]. With 0 it takes none, and lets another one look out for what is due:
    /// a worker that is busy, or ends, says so.
    pub limit: usize,
    /// How long a claim holds if it is not [extended](Tasks::extend).
    pub hold: Duration,
    /// A task with so many [crashes](ClaimedTask::crashes), of which the last one ended a claim under which a handler had
    /// begun, becomes a dead letter ([`Reason::Crashed`]) instead of being claimed again; 0 for never.
    pub crash_limit: u32,
    /// The longest time after which this worker will come back in any case: `next` is never more.
    pub patience: Duration,
    /// Since when the worker has been answered without a gap, with a ttl of `hold`. Claims that ran out are taken over only
    /// when that makes them [free](Continuity::free_at): they may have run out because nobody could reach the server.
    pub heard: Continuity,
}

/// A task in the hands of a worker.
#[derive(Clone, Debug)]
pub struct ClaimedTask {
    /// Its id.
    pub id: ScheduleId,
    /// What settles it: unique to this claim.
    pub token: String,
    /// The token that it had before, if this follows a claim that ran out. Who still works on the task under that one
    /// goes on under the new one; for everybody else it is a new task, also if they know its id.
    pub before: Option<String>,
    /// When it was due: milliseconds since 1970 by the server's clock.
    pub due: u64,
    /// The number of this attempt, from 1. It grows when a handler failed.
    pub attempt: u32,
    /// How many claims of it ran out unsettled since the last attempt that was settled: workers that died, or stood
    /// still. The first one counts unless the worker that asks now had it (it lives: an answer to it was lost), a further
    /// one only if its worker had said that a handler [begins](Tasks::extend): else nothing but answers was lost.
    pub crashes: u32,
    /// What the last attempt failed with; empty if none has.
    pub error: String,
    /// What all of them failed with.
    pub history: History,
    /// The message; empty if somebody deleted it.
    pub fields: Fields,
}

/// The result of one claim.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// What is ours now: claims that ran out first, then by due time.
    pub tasks: Vec<ClaimedTask>,
    /// How many became dead letters, because their claims ran out too often.
    pub crashed: usize,
    /// When to ask again at the latest: zero if there may be more now. Where several workers have nothing to do, one is
    /// told when the next task (or claim that runs out, or recurrence) is due, and the others later times: so they do not
    /// all come for one task. All of them [wait](Tasks::wait) meanwhile. While claims are open, two of them are told to come
    /// within a third of `hold`: so somebody [judges](Continuity::judges) when one runs out.
    pub next: Duration,
    /// Whether something that recurs is due: see [`Recurring`](crate::Recurring).
    pub recurring: bool,
    /// The server's time: milliseconds since 1970.
    pub now: u64,
    /// Which server answered, for [`Continuity::advance`]; `-` if it may not say. Empty if the record of the request is so
    /// new that it may stand as it is.
    pub server: String,
}

/// The result of one extension.
#[derive(Clone, Debug, Default)]
pub struct Extended {
    /// For each claim, whether it is still ours.
    pub ours: Vec<bool>,
    /// Which server answered, for [`Continuity::advance`]; `-` if it may not say. Empty if nothing was asked.
    pub server: String,
    /// The server's time: milliseconds since 1970.
    pub now: u64,
}

/// What became of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done: it is gone.
    Complete,
    /// Due again, as `attempt`. With the number that it had and no error (snoozed or handed back), nothing is added to its
    /// history; and if no handler had [begun](Tasks::extend), its crashes stay. Else they begin anew.
    Retry {
        /// When.
        due: Due,
        /// The number of the attempt that comes next.
        attempt: u32,
        /// What this one failed with.
        error: String,
        /// What the earlier ones failed with: this one is added.
        history: History,
    },
    /// Given up: kept among the dead tasks.
    Dead {
        /// Why.
        reason: Reason,
        /// How many attempts were made.
        attempts: u32,
        /// What the last one failed with.
        error: String,
        /// What the earlier ones failed with: the last one is added.
        history: History,
    },
}

/// A task that was given up.
#[derive(Clone, Debug)]
pub struct DeadTask {
    /// The id among the dead of its shard; its first part is when the task died, by the server's clock.
    pub id: MessageId,
    /// The shard.
    pub shard: Shard,
    /// The id of the task.
    pub task: ScheduleId,
    /// Why.
    pub reason: Reason,
    /// How many attempts were made.
    pub attempts: u32,
    /// What the last one failed with; empty if none was made.
    pub error: String,
    /// What all of them failed with.
    pub history: History,
    /// The message, byte for byte.
    pub body: Fields,
}

impl DeadTask {
    /// The message, if the body is one.
    ///
    /// # Errors
    /// Why it is none.
    pub fn envelope(&self, limits: &Limits) -> Result<Envelope, Malformed> {
        wire::decode_body(&self.body, limits)
    }
}

/// How a shard stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Waiting, and how many of those are due.
    pub waiting: Waiting,
    /// In the hands of workers.
    pub claimed: u64,
    /// Of those, how many whose claim has run out.
    pub expired: u64,
    /// Given up.
    pub dead: u64,
}

/// Hands due tasks to workers.
#[async_trait]
pub trait Tasks: Send + Sync {
    /// Creates a queue if it is not there. The first one wins: what is stored is given back.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a bad number of shards; transient ones.
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec>;

    /// A queue as it is stored.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); transient ones.
    async fn queue(&self, name: &QueueName) -> Result<QueueSpec>;

    /// The names of all queues, in order.
    ///
    /// # Errors
    /// Transient ones.
    async fn queues(&self) -> Result<Vec<QueueName>>;

    /// Claims what is due, in one step: claims that ran out and are [free](ClaimRequest::heard), then tasks by due time. Never one
    /// early; each by one worker at a time. A task whose body somebody deleted is claimed as well, without fields. With large bodies there
    /// may be fewer than would be due, one at least: about 1 MiB; then `next` is zero.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). What a lost reply claimed comes back when
    /// its claim runs out. It works on a server that is out of memory.
    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed>;

    /// Tells what became of tasks, each as (id, token). One whose claim ran out and was given to another is stale:
    /// nothing is done; one that ran out and that nobody has claimed since is settled. Sent again after a lost reply it
    /// is stale.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). Completing works on a server that is out
    /// of memory, and so do the others.
    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled>;

    /// Lets claims hold for `hold` from now. Gives back, for each, whether it is still ours: also if it ran out, unless
    /// somebody took it over.
    ///
    /// With `begun`, it is written down that handlers begin with them: a worker says so for a task that has
    /// [crashes](ClaimedTask::crashes), before its handler begins. So a claim that is lost on its way is no crash of the
    /// handler. It stays written down as long as the claim lasts.
    ///
    /// # Errors
    /// Transient ones. It works on a server that is out of memory.
    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended>;

    /// Waits, up to `timeout`, to be called: something is due earlier than expected, or a worker that was to look out is
    /// busy. Each call wakes one of those who wait; a call that nobody waits for is kept, one of them. True if called:
    /// then [claim](Self::claim), or another one may sleep too long (at most as long as its `next`).
    ///
    /// # Errors
    /// Transient ones.
    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool>;

    /// How a shard stands.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn counts(&self, shard: &Shard) -> Result<TaskCounts>;

    /// Up to `limit` (at most 1,000) dead tasks of a shard with an id above `after`, oldest first; fewer if they are large,
    /// none only if there are none. Pass [`MessageId::ZERO`] to start.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>>;

    /// Schedules dead tasks anew, due at once, as a first attempt, under the ids they had. Gives back how many: each is
    /// moved once. One whose id waits or is worked on by now stays dead.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). What was moved stays moved.
    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize>;

    /// Deletes dead tasks for good. Gives back how many.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize>;

    /// Deletes the dead tasks of a shard that are there now for good, without reading them. Gives back how many.
    ///
    /// # Errors
    /// Transient ones, and what was deleted stays deleted; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn purge_all(&self, shard: &Shard) -> Result<usize>;
}

impl fmt::Display for QueueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} shards)", self.name, self.shards)
    }
}
