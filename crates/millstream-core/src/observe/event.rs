//! Events that the runtime and the backends emit. Metrics and logs are made from them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::health::{HealthCheck, LoopsCheck, WorkerCheck};
use crate::id::MessageId;
use crate::log::{Settled, Source};
use crate::name::{GroupName, LockName, MemberId, QueueName, TopicName};
use crate::schedule::{Place, ScheduleId, Shard};
use crate::span::Tracer;
use crate::topic::TopicPartition;
use crate::user_code::{Panicked, UserCode, catch};

pub use crate::observe::handled::{Cause, Handled};
pub use crate::observe::lock_end::LockEnd;
pub use crate::observe::message_bytes::MessageBytes;

/// Operation on dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LetterWork {
    /// They are moved back to their group, or to a topic.
    Replay,
    /// They are deleted permanently.
    Purge,
    /// They are written out as lines, and stay.
    Export,
    /// They are restored from exported lines.
    Import,
}

impl LetterWork {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::Replay, Self::Purge, Self::Export, Self::Import];

    /// Returns the word for it in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Purge => "purge",
            Self::Export => "export",
            Self::Import => "import",
        }
    }
}

/// Something that happened. Counts are per batch, so that an observer is called once per batch, not per message.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Messages were appended.
    Produced {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// Number of messages.
        messages: usize,
    },
    /// Messages were not appended, because others with the same dedup id had been, or one with the same unique id has still to
    /// be settled.
    Deduplicated {
        /// The topic.
        topic: &'a TopicName,
        /// Number of messages.
        messages: usize,
    },
    /// Messages were scheduled for later.
    Delayed {
        /// The topic.
        topic: &'a TopicName,
        /// Number of messages, those included that waited already under their id.
        messages: usize,
    },
    /// A consumer has started.
    ConsumerStarted {
        /// The consumer's group.
        group: &'a GroupName,
        /// The consumer's name in the group.
        member: &'a MemberId,
        /// Reports the consumer's health while it runs and after it has ended. It may be kept.
        health: &'a Arc<dyn HealthCheck>,
    },
    /// A worker of a delay queue has started.
    WorkerStarted {
        /// The worker's queue.
        queue: &'a QueueName,
        /// Reports the worker's health while it runs and after it has ended. It may be kept.
        health: &'a Arc<dyn WorkerCheck>,
    },
    /// Loops have started that belong to no consumer and no worker.
    LoopsStarted {
        /// The group, if the loops work for one.
        group: Option<&'a GroupName>,
        /// Reports the loops' health while they run and after they have ended. It may be kept.
        loops: &'a Arc<dyn LoopsCheck>,
    },
    /// Messages could not be appended or scheduled, or it is not known whether they were.
    ProduceFailed {
        /// The topic.
        topic: &'a TopicName,
        /// Number of messages.
        messages: usize,
        /// The reason; the first one if there are several.
        error: &'a Error,
    },
    /// The state of a transactional outbox was measured.
    OutboxSampled {
        /// Age of the oldest row that could be sent; `None` if there is none.
        oldest: Option<Duration>,
        /// Age of the oldest running transaction that holds back a row; `None` if none does.
        blocked: Option<Duration>,
        /// Number of rows that were given up.
        dead: u64,
    },
    /// The state of a transactional outbox is not known any more: its relay has ended, or the database is away.
    OutboxUnknown,
    /// The marker of an operation was lost while its handler ran: it expired, and another message or instance began the
    /// operation. Its effect may have happened twice.
    MarkerLost {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Id of the message in the partition's log.
        origin: MessageId,
    },
    /// The marker of an idempotent call was lost while its work ran: it expired, and another call began the work. Its effect
    /// may have happened twice.
    CallMarkerLost {
        /// The name of the calls.
        calls: &'a str,
    },
    /// This instance now owns a partition.
    Assigned {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A partition was released in an orderly way.
    Revoked {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A lease expired or was taken: the next owner handles again what is in flight.
    LeaseLost {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A member received a new assignment. It releases the partitions that are not in it, and takes the others as soon as
    /// they are free.
    Rebalanced {
        /// The topic.
        topic: &'a TopicName,
        /// The group.
        group: &'a GroupName,
        /// Number of members in the group.
        members: u32,
        /// Number of partitions assigned to this member.
        partitions: usize,
    },
    /// Another process has taken over this member id: two processes run with the same static id. This one stops.
    MemberFenced {
        /// The topic.
        topic: &'a TopicName,
        /// The group.
        group: &'a GroupName,
        /// The member id.
        member: &'a MemberId,
    },
    /// A topic or group was deleted while this consumer worked on it. The consumer stops.
    Deleted {
        /// The topic.
        topic: &'a TopicName,
        /// The consumer's group.
        group: &'a GroupName,
        /// The error that the backend returned.
        error: &'a Error,
    },
    /// The whole group was paused: no member reads anything of the topic.
    GroupPaused {
        /// The topic.
        topic: &'a TopicName,
        /// The group.
        group: &'a GroupName,
    },
    /// The pause of the whole group is over.
    GroupResumed {
        /// The topic.
        topic: &'a TopicName,
        /// The group.
        group: &'a GroupName,
    },
    /// The server lost its latest writes in a fail-over or restart: the group's position is before entries that were
    /// handed out already. Those messages are handled again, and messages that were appended after them may be lost.
    TailLost {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// The last position that the reader had reached.
        from: MessageId,
        /// The group's position on the server.
        to: MessageId,
    },
    /// A partition was taken over from an owner that ended without releasing it, and everything has been read that was
    /// pending at that time.
    TakenOver {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Number of owners that ended in a row without releasing it.
        ends: usize,
        /// Number of pending messages. They are handled again.
        messages: usize,
        /// Number of poison candidates among them: messages that were pending at two or more ends.
        candidates: usize,
    },
    /// A message was given up without another call of the handler, since processes died while they handled it.
    Crashed {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Its id in the log.
        origin: MessageId,
        /// Number of processes that died.
        crashes: u32,
    },
    /// The consumer, or one of its partitions, was paused: nothing of it is read, and no further handler starts.
    Paused {
        /// The group.
        group: &'a GroupName,
        /// The partition; `None` for the whole consumer.
        topic_partition: Option<&'a TopicPartition>,
    },
    /// The pause is over.
    Resumed {
        /// The group.
        group: &'a GroupName,
        /// The partition; `None` for the whole consumer except partitions that are paused individually.
        topic_partition: Option<&'a TopicPartition>,
    },
    /// Messages were read.
    Fetched {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Number of messages.
        messages: usize,
        /// Whether they had been handed out before.
        pending: bool,
    },
    /// Pending entries were found whose bodies have been deleted. Their messages can never be handled.
    Ghosts {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Number of entries. A pack is one: how many messages it had is not known.
        entries: usize,
    },
    /// A message was handled. Emitted when the result is decided, before it is stored: [`Settled`](Self::Settled) follows when
    /// it is, and a lease that is lost in between ([`LeaseLost`](Self::LeaseLost)) lets the next owner handle the message again.
    Handled {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Number of the attempt.
        attempt: u32,
        /// The result.
        handled: Handled,
        /// Run time of the handler.
        elapsed: Duration,
        /// Id of the message in its partition's log; its time part is when the message became readable.
        origin: MessageId,
        /// Whether it was read from the log, or from the group's retry log.
        source: Source,
        /// Cause of the failure; `None` if the attempt did not fail.
        cause: Option<Cause>,
        /// Text of the handler's error, as it is kept with the message (at most 1 KiB). `None` if the attempt did not fail, and
        /// where the text may quote the message: that of a codec, or of a malformed entry, is in the dead letter only.
        error: Option<&'a str>,
        /// Key of the message, if it has one and is well-formed.
        key: Option<MessageBytes<'a>>,
    },
    /// A batch was settled.
    Settled {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Numbers of settlements that took effect and that came too late.
        settled: Settled,
        /// Time until the backend answered.
        elapsed: Duration,
    },
    /// Parked messages became due and readable.
    Promoted {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Number of messages.
        messages: usize,
        /// Number of messages that had lost their body.
        orphans: usize,
        /// Delay between the due time of the first of them and its move; `None` if the due time was not known in advance.
        late: Option<Duration>,
    },
    /// Delayed messages became due and readable, moved by a promoter that owns no partition.
    DelayedPromoted {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// Number of messages.
        messages: usize,
        /// Number of messages that had lost their body.
        orphans: usize,
        /// Delay between the due time of the first of them and its move; `None` if the due time was not known in advance.
        late: Option<Duration>,
    },
    /// A recurring schedule was due, and its messages were scheduled.
    Fired {
        /// The place where it fires.
        place: &'a Place,
        /// Id of the recurring schedule.
        id: &'a ScheduleId,
        /// Number of messages.
        messages: usize,
        /// Number of runs that were skipped, because no process ran in time.
        missed: usize,
    },
    /// Tasks of a delay queue were claimed.
    Claimed {
        /// The shard.
        shard: &'a Shard,
        /// Number of tasks.
        tasks: usize,
        /// Number of tasks that had been claimed before, by workers that died or stalled.
        again: usize,
        /// Number of tasks that were given up instead, because that had happened too often.
        crashed: usize,
    },
    /// A task was handled.
    Worked {
        /// The shard.
        shard: &'a Shard,
        /// Id of the task.
        task: &'a ScheduleId,
        /// Number of the attempt.
        attempt: u32,
        /// The result.
        handled: Handled,
        /// Delay between its due time and its claim, by the server's clock.
        late: Duration,
        /// Run time of the handler.
        elapsed: Duration,
        /// Text of the handler's error, as it is kept with the task (at most 1 KiB). `None` if the attempt did not fail, and where
        /// the text may quote the task: that of a codec, or of a malformed task, is in the dead task only.
        error: Option<&'a str>,
    },
    /// Tasks were settled.
    TasksSettled {
        /// The shard.
        shard: &'a Shard,
        /// Numbers of settlements that took effect and that came too late.
        settled: Settled,
    },
    /// Claims expired while their tasks were handled: other workers have claimed the tasks, or will.
    ClaimsLost {
        /// The shard.
        shard: &'a Shard,
        /// Number of tasks.
        tasks: usize,
    },
    /// Messages were dropped from the log under the topic's retention.
    Trimmed {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// Number of messages, those included that a group [lost](Event::Lost).
        messages: usize,
    },
    /// Messages that a group had not settled were dropped from the log under the topic's retention.
    Lost {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group that lost them: not only the group of the consumer that emits this event.
        group: &'a GroupName,
        /// Number of messages that were never handed out to it.
        unread: u64,
        /// Number of messages that were handed out and not settled.
        pending: u64,
    },
    /// An operator, or a consumer of dead letters, processed dead letters.
    DeadLetters {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// The operation.
        work: LetterWork,
        /// Number of dead letters for which it was done.
        done: usize,
        /// Number of dead letters that were skipped: gone meanwhile, claimed by another process, or put back before.
        passed_over: usize,
        /// Number of dead letters that stay, since they cannot be sent in this form.
        refused: usize,
    },
    /// Dead letters of a group were dropped under the topic's [retention](crate::DeadLetterRetention) of them, or by an operator
    /// who applied one.
    DeadLettersDropped {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Number of letters that were too old.
        aged: u64,
        /// Number of letters that had too many newer ones.
        excess: u64,
    },
    /// Dead tasks of a delay queue were dropped under its [retention](crate::QueueSpec::dead_letter_retention) of them, or by
    /// an operator who applied one.
    DeadTasksDropped {
        /// The shard.
        shard: &'a Shard,
        /// Number of tasks that were too old.
        aged: u64,
        /// Number of tasks that had too many newer ones in their shard.
        excess: u64,
    },
    /// The group was missing on a partition and has been created again.
    GroupRestored {
        /// The partition.
        topic_partition: &'a TopicPartition,
        /// The group.
        group: &'a GroupName,
        /// Reading continues above this id: messages that were in flight are handled again.
        after: MessageId,
    },
    /// This process was granted a lock, or leads an election.
    LockAcquired {
        /// The lock.
        lock: &'a LockName,
        /// The election, if the lock is that of one.
        election: Option<&'a str>,
        /// The epoch of the grant.
        epoch: u64,
        /// Time from the request to the grant.
        waited: Duration,
    },
    /// This process does not hold the lock any more. Each [`LockAcquired`](Event::LockAcquired) is followed by one of these,
    /// unless the process ends before.
    LockEnded {
        /// The lock.
        lock: &'a LockName,
        /// The election, if the lock is that of one.
        election: Option<&'a str>,
        /// The epoch of the grant.
        epoch: u64,
        /// The end.
        end: LockEnd,
        /// Time from the grant to the end.
        held: Duration,
    },
    /// A lock was not granted in the time that its caller had for it.
    LockBusy {
        /// The lock.
        lock: &'a LockName,
        /// The election, if the lock is that of one.
        election: Option<&'a str>,
        /// Time from the request to the end of the attempt.
        waited: Duration,
    },
    /// A loop failed. It continues, and retries after a pause.
    Failing {
        /// The operation that failed: "fetch", "settle", …
        operation: &'static str,
        /// The partition, if the loop works for one.
        topic_partition: Option<&'a TopicPartition>,
        /// The error.
        error: &'a Error,
    },
    /// User code panicked. The panic was caught; the fallback is documented per kind of code.
    Panicked {
        /// The kind of code.
        code: UserCode,
        /// The message of the panic.
        text: &'a str,
    },
    /// A loop that had been failing succeeded again, or the loop that took its place. What ended for good while it failed, as the
    /// work on a partition that another instance has now, is not reported.
    Recovered {
        /// The operation that succeeded.
        operation: &'static str,
        /// The partition, if the loop works for one.
        topic_partition: Option<&'a TopicPartition>,
    },
}

impl Panicked {
    /// Returns the event for it.
    #[must_use]
    pub fn event(&self) -> Event<'_> {
        Event::Panicked { code: self.code, text: &self.text }
    }
}

/// Receives every event, on the thread that emits it: count it and return.
pub trait Observer: Send + Sync {
    /// Receives an event.
    fn observe(&self, event: &Event<'_>);

    /// Returns what starts spans, if this observer does. Called once by each producer, consumer, queue and worker, and for
    /// each request that [passes messages on](crate::span::MessagingOperation::record). Default: `None`.
    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        None
    }
}

/// Calls the closure for each event.
impl<F: Fn(&Event<'_>) + Send + Sync> Observer for F {
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

/// Passes each event on to the shared observer.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn observe(&self, event: &Event<'_>) {
        (**self).observe(event);
    }

    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        (**self).tracer()
    }
}

/// Passes each event on to both observers, to the first one first.
///
/// A panic of one observer does not keep the other from its events: the other one receives the event, and then
/// [`Event::Panicked`]. After that the panic continues.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn observe(&self, event: &Event<'_>) {
        let first = catch(UserCode::Observer, || self.0.observe(event));
        let second = catch(UserCode::Observer, || self.1.observe(event));
        let told = match (&first, &second) {
            (Err(panicked), Ok(())) => catch(UserCode::Observer, || self.1.observe(&panicked.event())),
            (Ok(()), Err(panicked)) => catch(UserCode::Observer, || self.0.observe(&panicked.event())),
            _ => Ok(()),
        };
        if let Err(panicked) = first.and(second).and(told) {
            panicked.resume();
        }
    }

    /// Returns that of the first observer that has one.
    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        self.0.tracer().or_else(|| self.1.tracer())
    }
}

/// Ignores every event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore;

impl Observer for Ignore {
    fn observe(&self, _: &Event<'_>) {}
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
