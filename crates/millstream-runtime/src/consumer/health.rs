//! Health: how a consumer is, as plain values.

use std::time::Duration;

use millstream_core::{Partition, TopicName, TopicPartition};
use tokio::time::Instant;

use super::context::Context;
use crate::trouble::{Mark, Place};

/// What a consumer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It does not know yet what it should own.
    Joining,
    /// It works.
    Running,
    /// All of it is [paused](super::Consumer::pause).
    Paused,
    /// It is shutting down.
    Leaving,
    /// It has ended.
    Ended,
    /// Another process has taken its member id: it ends, or has ended.
    Fenced,
}

/// How one topic stands with a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicHealth {
    /// Which topic.
    pub topic: TopicName,
    /// How many members the group has, as the last heartbeat told.
    pub members: u32,
    /// What this instance should own; `None` while nobody has said.
    pub assigned: Option<Vec<Partition>>,
    /// What it works on.
    pub owned: Vec<Partition>,
    /// What is [paused by itself](super::Consumer::pause_partition), owned or not.
    pub paused: Vec<Partition>,
}

/// A loop that fails, and tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// For how long it has been failing.
    pub lasts: Duration,
    /// What it failed with last.
    pub error: String,
}

/// How one loop is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopHealth {
    /// What it does: `heartbeat`, `renew`, `acquire`, `assign` and `watch` for a topic; `fetch`, `settle`, and kinds of
    /// upkeep like `promote` and `trim` for a partition.
    pub operation: &'static str,
    /// Of which topic.
    pub topic: TopicName,
    /// Of which partition, if it is for one.
    pub partition: Option<Partition>,
    /// How long ago it came round last, well or not, or began. A loop that has nothing to do does not come round.
    pub last_progress: Duration,
    /// Whether it is failing now.
    pub failing: Option<Failure>,
    /// Whether it is more than a minute late: whatever the server does, that should not be.
    pub stalled: bool,
}

/// How a consumer is. From [`Consumer::health`](super::Consumer::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// What it is doing.
    pub state: ConsumerState,
    /// Its topics, in the order of their names.
    pub topics: Vec<TopicHealth>,
    /// Messages that are read and not settled, handlers that run included.
    pub in_flight: usize,
    /// Calls of handlers that have not ended. Of messages that are pulled, these are all that are offered or held.
    pub running_handlers: usize,
    /// All its loops.
    pub loops: Vec<LoopHealth>,
    connected: bool,
}

impl Health {
    /// Whether the process should go on: for a liveness probe.
    ///
    /// False if the consumer has ended by itself (or was fenced), or if a loop hangs: it is more than a minute later
    /// than it should be. A server that is away, slow handlers, and having nothing to do are no reasons: a restart
    /// would not help.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let ended = matches!(self.state, ConsumerState::Ended | ConsumerState::Fenced);
        !ended && !self.loops.iter().any(|each| each.stalled)
    }

    /// Whether it takes part in its group: for a readiness probe.
    ///
    /// True from the moment when it knows what it should own (that may be nothing) until it leaves; but false while
    /// its heartbeats have been failing for longer than a lease lives, since then others take what it has. Pausing
    /// changes nothing.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && matches!(self.state, ConsumerState::Running | ConsumerState::Paused)
    }

    /// The loops that are failing now.
    pub fn failing(&self) -> impl Iterator<Item = (&LoopHealth, &Failure)> {
        self.loops.iter().filter_map(|each| Some((each, each.failing.as_ref()?)))
    }
}

pub(super) fn of(context: &Context) -> Health {
    let now = Instant::now();
    let marks = context.loops.marks();
    let owned = context.board.owned();
    let paused = context.pauses.partitions();
    let partitions_of = |topic: &TopicName, all: &std::collections::BTreeSet<TopicPartition>| {
        all.iter().filter(|tp| tp.topic == *topic).map(|tp| tp.partition).collect()
    };
    let topics: Vec<_> = context
        .board
        .topics()
        .into_iter()
        .map(|(topic, known)| TopicHealth {
            members: known.members,
            assigned: known.assigned.map(|assigned| assigned.into_iter().collect()),
            owned: partitions_of(&topic, &owned),
            paused: partitions_of(&topic, &paused),
            topic,
        })
        .collect();
    let joined = topics.iter().all(|topic| topic.assigned.is_some());
    let state = if context.is_fenced() {
        ConsumerState::Fenced
    } else if context.ended.is_cancelled() {
        ConsumerState::Ended
    } else if context.stop.is_cancelled() {
        ConsumerState::Leaving
    } else if !joined {
        ConsumerState::Joining
    } else if context.pauses.all() {
        ConsumerState::Paused
    } else {
        ConsumerState::Running
    };
    let loops: Vec<_> = marks.into_iter().map(|mark| loop_of(mark, now)).collect();
    let cut_off = |each: &LoopHealth| {
        let lasts = each.failing.as_ref().map_or(Duration::ZERO, |failing| failing.lasts);
        each.operation == "heartbeat" && lasts > context.config.lease_ttl
    };
    Health {
        state,
        topics,
        in_flight: context.board.in_flight(),
        running_handlers: context.board.running(),
        connected: !loops.iter().any(cut_off),
        loops,
    }
}

fn loop_of(mark: Mark, now: Instant) -> LoopHealth {
    let (topic, partition) = match mark.place {
        Place::Topic(topic) => (topic, None),
        Place::Partition(TopicPartition { topic, partition }) => (topic, Some(partition)),
    };
    LoopHealth {
        operation: mark.operation,
        topic,
        partition,
        last_progress: now - mark.last,
        failing: mark.failing.map(|(since, error)| Failure { lasts: now - since, error }),
        stalled: mark.due.is_some_and(|due| due <= now),
    }
}
