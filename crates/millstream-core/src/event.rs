//! Events: what the runtime and the backends tell. Metrics and logs are made from them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::dead_letters::Reason;
use crate::error::Error;
use crate::health::{HealthCheck, LoopsCheck, WorkerCheck};
use crate::id::MessageId;
use crate::log::{Settled, Source};
use crate::name::{GroupName, MemberId, QueueName, TopicName};
use crate::panics::{UserCode, catch};
use crate::schedule::{Place, ScheduleId, Shard};
use crate::topic::TopicPartition;

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Handled {
    /// It said [`Outcome::Ack`](crate::Outcome::Ack).
    Acked,
    /// It failed, and the message comes back.
    Retried,
    /// The message was given up and kept as a dead letter.
    Dead,
    /// The handler put it off, without using an attempt.
    Snoozed,
    /// The message was given up and dropped by the dead-letter policy.
    Discarded,
}

impl Handled {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Acked, Self::Retried, Self::Dead, Self::Snoozed, Self::Discarded];

    /// The word for it, in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Retried => "retried",
            Self::Dead => "dead",
            Self::Snoozed => "snoozed",
            Self::Discarded => "discarded",
        }
    }
}

/// What an attempt failed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The handler gave back an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The handler took longer than it may.
    Timeout,
    /// The handler said that there is no use in another attempt.
    Rejected,
    /// The codec could not read the payload.
    Undecodable,
    /// The entry is not a message.
    Malformed,
    /// Processes died over it.
    Crashed,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Error,
        Self::Panic,
        Self::Timeout,
        Self::Rejected,
        Self::Undecodable,
        Self::Malformed,
        Self::Crashed,
    ];

    /// The word for it, in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::Malformed => "malformed",
            Self::Crashed => "crashed",
        }
    }

    /// The reason of a message that is given up for it.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Error | Self::Panic | Self::Timeout => Reason::Exhausted,
            Self::Rejected => Reason::Rejected,
            Self::Undecodable => Reason::Undecodable,
            Self::Malformed => Reason::Malformed,
            Self::Crashed => Reason::Crashed,
        }
    }
}

/// What is done with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LetterWork {
    /// They go back to their group, or to a topic.
    Replay,
    /// They are deleted for good.
    Purge,
    /// They are read out as lines, and stay.
    Export,
    /// They are put back from such lines.
    Import,
}

impl LetterWork {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Replay, Self::Purge, Self::Export, Self::Import];

    /// The word for it, in metrics and traces.
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

/// Something that happened. Counts are of one batch, so that an observer is called per batch, not per message.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Messages were appended.
    Produced {
        /// To which topic.
        topic: &'a TopicName,
        /// How many.
        messages: usize,
    },
    /// Messages were scheduled for later.
    Delayed {
        /// To which topic.
        topic: &'a TopicName,
        /// How many. One that waited already under its id counts as well.
        messages: usize,
    },
    /// A consumer has started.
    ConsumerStarted {
        /// Of which group.
        group: &'a GroupName,
        /// Its name in the group.
        member: &'a MemberId,
        /// Can say how it is, until it has ended and after that. It may be kept.
        health: &'a Arc<dyn HealthCheck>,
    },
    /// A worker of a delay queue has started.
    WorkerStarted {
        /// Of which queue.
        queue: &'a QueueName,
        /// Can say how it is, until it has ended and after that. It may be kept.
        health: &'a Arc<dyn WorkerCheck>,
    },
    /// Loops have started that belong to no consumer and no worker.
    LoopsStarted {
        /// For which group, if it is for one.
        group: Option<&'a GroupName>,
        /// Can say how they are, until they have ended and after that. It may be kept.
        loops: &'a Arc<dyn LoopsCheck>,
    },
    /// Messages could not be appended or scheduled, or it is not known whether they were.
    ProduceFailed {
        /// To which topic.
        topic: &'a TopicName,
        /// How many.
        messages: usize,
        /// Why; of several reasons the first.
        error: &'a Error,
    },
    /// A partition is ours.
    Assigned {
        /// Which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A partition was given back in an orderly way.
    Revoked {
        /// Which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A lease ran out or was taken: what is in flight will be handled again by the next owner.
    LeaseLost {
        /// Which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A member knows what it should own now. What it owns beyond that it gives back; the rest it takes as soon as it
    /// is free.
    Rebalanced {
        /// Of which topic.
        topic: &'a TopicName,
        /// In which group.
        group: &'a GroupName,
        /// How many members the group has.
        members: u32,
        /// How many partitions this one should own.
        partitions: usize,
    },
    /// Another process has taken our member id: two run with the same static one. This one stops.
    MemberFenced {
        /// Of which topic.
        topic: &'a TopicName,
        /// In which group.
        group: &'a GroupName,
        /// The id.
        member: &'a MemberId,
    },
    /// A topic or group was deleted while we worked on it. The consumer stops.
    Deleted {
        /// Of which topic.
        topic: &'a TopicName,
        /// Which group of it we work in.
        group: &'a GroupName,
        /// What the backend said.
        error: &'a Error,
    },
    /// Somebody paused the whole group: nothing of the topic is read, by any member.
    GroupPaused {
        /// Of which topic.
        topic: &'a TopicName,
        /// Which group.
        group: &'a GroupName,
    },
    /// The pause of the whole group is over.
    GroupResumed {
        /// Of which topic.
        topic: &'a TopicName,
        /// Which group.
        group: &'a GroupName,
    },
    /// The server lost the end of what it had told us, in a fail-over or restart: the group stands before what was
    /// handed out already. Those messages are handled again, and what was appended after them may be lost.
    TailLost {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// Where we stood.
        from: MessageId,
        /// Where the server stands.
        to: MessageId,
    },
    /// A partition was taken over from an owner that ended without giving it back, and everything has been read that was
    /// pending then.
    TakenOver {
        /// Which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// How many owners have ended in a row.
        ends: usize,
        /// How many messages were pending. They are handled again.
        messages: usize,
        /// How many of them are poison candidates: pending at two ends or more.
        candidates: usize,
    },
    /// A message over which processes died is given up without being handed to the handler again.
    Crashed {
        /// From which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// Its id in the log.
        origin: MessageId,
        /// How many processes died.
        crashes: u32,
    },
    /// Somebody paused the consumer, or one partition: nothing of it is read, and no further handler starts.
    Paused {
        /// Of which group.
        group: &'a GroupName,
        /// Which partition; `None` for all of the consumer.
        topic_partition: Option<&'a TopicPartition>,
    },
    /// The pause is over.
    Resumed {
        /// Of which group.
        group: &'a GroupName,
        /// Which partition; `None` for all of the consumer but those that are paused by themselves.
        topic_partition: Option<&'a TopicPartition>,
    },
    /// Entries were read.
    Fetched {
        /// From which partition.
        topic_partition: &'a TopicPartition,
        /// By which group.
        group: &'a GroupName,
        /// How many.
        messages: usize,
        /// Whether they had been handed out before.
        pending: bool,
    },
    /// Pending entries whose bodies somebody deleted. They can never be handled.
    Ghosts {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// How many.
        messages: usize,
    },
    /// A message was handled.
    Handled {
        /// From which partition.
        topic_partition: &'a TopicPartition,
        /// By which group.
        group: &'a GroupName,
        /// The number of the attempt.
        attempt: u32,
        /// How it ended.
        handled: Handled,
        /// How long the handler took.
        elapsed: Duration,
        /// The id of the message in its partition's log, which says when it was readable.
        origin: MessageId,
        /// Whether it was read from the log, or from the group's retry log.
        source: Source,
        /// What it failed with; `None` if it did not.
        cause: Option<Cause>,
    },
    /// A batch was settled.
    Settled {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// What took effect and what came too late.
        settled: Settled,
        /// How long the backend took to answer.
        elapsed: Duration,
    },
    /// Parked messages became due and readable.
    Promoted {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// How many.
        messages: usize,
        /// How many had lost their body.
        orphans: usize,
        /// How long after its due time the first of them was moved; `None` if it was not known before when it is due.
        late: Option<Duration>,
    },
    /// Delayed messages became due and readable, moved by one who owns nothing.
    DelayedPromoted {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// How many.
        messages: usize,
        /// How many had lost their body.
        orphans: usize,
        /// How long after its due time the first of them was moved; `None` if it was not known before when it is due.
        late: Option<Duration>,
    },
    /// Something that recurs was due, and its messages were scheduled.
    Fired {
        /// At which place.
        place: &'a Place,
        /// Its id.
        id: &'a ScheduleId,
        /// How many.
        messages: usize,
        /// How many times were passed over, because nobody was there in time.
        missed: usize,
    },
    /// Tasks of a delay queue were claimed.
    Claimed {
        /// From which shard.
        shard: &'a Shard,
        /// How many.
        tasks: usize,
        /// How many of them had been claimed before by workers that died or stood still.
        again: usize,
        /// How many were given up instead, because that had happened too often.
        crashed: usize,
    },
    /// A task was worked on.
    Worked {
        /// From which shard.
        shard: &'a Shard,
        /// The number of the attempt.
        attempt: u32,
        /// How it ended.
        handled: Handled,
        /// How long after its due time it was claimed, by the server's clock.
        late: Duration,
        /// How long the handler took.
        elapsed: Duration,
    },
    /// Tasks were settled.
    TasksSettled {
        /// In which shard.
        shard: &'a Shard,
        /// What took effect and what came too late.
        settled: Settled,
    },
    /// Claims ran out while tasks were worked on: others have them by now, or will.
    ClaimsLost {
        /// In which shard.
        shard: &'a Shard,
        /// How many.
        tasks: usize,
    },
    /// Entries were dropped from the log, as the topic's retention says.
    Trimmed {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// How many; those that a group [lost](Event::Lost) included.
        messages: usize,
    },
    /// Entries were dropped from the log that a group had not settled, since the topic's retention says so.
    Lost {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// Which group lost them: not only that of the consumer that tells it.
        group: &'a GroupName,
        /// How many were never handed out to it.
        unread: u64,
        /// How many were handed out and not settled.
        pending: u64,
    },
    /// Something was done with dead letters: by an operator, or by a consumer of dead letters.
    DeadLetters {
        /// From which partition.
        topic_partition: &'a TopicPartition,
        /// Of which group.
        group: &'a GroupName,
        /// What was to be done.
        work: LetterWork,
        /// With how many it was done.
        done: usize,
        /// How many were passed over: gone meanwhile, claimed by somebody else, or put back before.
        passed_over: usize,
        /// How many stay, since they cannot be sent so.
        refused: usize,
    },
    /// The group was gone from a partition and has been created again.
    GroupRestored {
        /// In which partition.
        topic_partition: &'a TopicPartition,
        /// Which group.
        group: &'a GroupName,
        /// Reading goes on above this id: what was in flight there is handled again.
        after: MessageId,
    },
    /// A loop met an error. It goes on, and tries again after a pause.
    Failing {
        /// What was tried: "fetch", "settle", …
        operation: &'static str,
        /// For which partition, if it is for one.
        topic_partition: Option<&'a TopicPartition>,
        /// What went wrong.
        error: &'a Error,
    },
    /// Code of the user panicked. The panic was caught, and what happened instead is documented per kind of code.
    Panicked {
        /// Which code.
        code: UserCode,
        /// The panic's message.
        text: &'a str,
    },
    /// A loop that had been failing works again.
    Recovered {
        /// What works again.
        operation: &'static str,
        /// For which partition, if it is for one.
        topic_partition: Option<&'a TopicPartition>,
    },
}

/// Is told of every event, on the thread where it happened: count it and return.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn observe(&self, event: &Event<'_>);
}

/// A closure is an observer.
impl<F: Fn(&Event<'_>) + Send + Sync> Observer for F {
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

/// A shared observer is one.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn observe(&self, event: &Event<'_>) {
        (**self).observe(event);
    }
}

/// Two observers: each is told of every event, the first one first.
///
/// A panic of one does not keep the other from its events: that one gets the event, and [`Event::Panicked`]. The panic
/// goes on after that.
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
}

/// Looks away.
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
