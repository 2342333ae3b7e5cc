//! Health: how a running consumer or worker is, as plain values, and who can say it.

use std::fmt;
use std::time::Duration;

use crate::name::{GroupName, MemberId, QueueName, TopicName};
use crate::topic::Partition;

/// Can say at any time how something is that runs: for probes and gauges. Told to observers when it starts
/// ([`Event::ConsumerStarted`](crate::Event::ConsumerStarted)).
pub trait HealthCheck: Send + Sync {
    /// How it is now. It asks nobody, and takes microseconds.
    fn health(&self) -> Health;
}

impl fmt::Debug for dyn HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthCheck")
    }
}

/// Can say at any time how a worker of a delay queue is. Told to observers when it starts
/// ([`Event::WorkerStarted`](crate::Event::WorkerStarted)).
pub trait WorkerCheck: Send + Sync {
    /// How it is now. It asks nobody, and takes microseconds.
    fn health(&self) -> WorkerHealth;
}

impl fmt::Debug for dyn WorkerCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerCheck")
    }
}

/// Can say at any time how loops are that belong to no consumer and no worker: of a producer, of a consumer of dead letters,
/// of a promoter that owns nothing. Told to observers when they start
/// ([`Event::LoopsStarted`](crate::Event::LoopsStarted)).
pub trait LoopsCheck: Send + Sync {
    /// How they are now; none once they have ended. It asks nobody, and takes microseconds.
    fn loops(&self) -> Vec<LoopHealth>;
}

impl fmt::Debug for dyn LoopsCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoopsCheck")
    }
}

/// What a consumer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It does not know yet what it should own.
    Joining,
    /// It works.
    Running,
    /// All of it is paused: by itself, or all its groups are.
    Paused,
    /// It is shutting down.
    Leaving,
    /// It has ended.
    Ended,
    /// Another process has taken its member id: it ends, or has ended.
    Fenced,
    /// A topic of it, or its group, was deleted: it ends, or has ended.
    Deleted,
}

impl ConsumerState {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Leaving => "leaving",
            Self::Ended => "ended",
            Self::Fenced => "fenced",
            Self::Deleted => "deleted",
        }
    }
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
    /// What is paused by itself, owned or not.
    pub paused: Vec<Partition>,
    /// Whether the whole group is [paused](crate::Catalog::set_paused), as the last heartbeat told.
    pub group_paused: bool,
    /// Messages of it that are read and not settled, handlers that run included.
    pub in_flight: usize,
    /// Poison candidates among them: messages that were pending at two or more unexplained ends of owners in a row.
    pub candidates: usize,
}

impl TopicHealth {
    /// A topic of which nothing is known yet.
    #[must_use]
    pub const fn new(topic: TopicName) -> Self {
        Self {
            topic,
            members: 0,
            assigned: None,
            owned: Vec::new(),
            paused: Vec::new(),
            group_paused: false,
            in_flight: 0,
            candidates: 0,
        }
    }
}

/// A loop that fails, and tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// upkeep like `promote` and `trim` for a partition. Outside of consumers: `refresh`, `promote`, and
    /// `consume dead letters`.
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

impl LoopHealth {
    /// A loop that came round just now.
    #[must_use]
    pub const fn new(operation: &'static str, topic: TopicName, partition: Option<Partition>) -> Self {
        Self { operation, topic, partition, last_progress: Duration::ZERO, failing: None, stalled: false }
    }
}

/// How a consumer is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Its group.
    pub group: GroupName,
    /// Its name in the group.
    pub member: MemberId,
    /// What it is doing.
    pub state: ConsumerState,
    /// Whether its end was asked for: it was shut down or dropped.
    pub asked_to_end: bool,
    /// Its topics, in the order of their names.
    pub topics: Vec<TopicHealth>,
    /// Messages that are read and not settled, handlers that run included.
    pub in_flight: usize,
    /// Calls of handlers that have not ended. Of messages that are pulled, these are all that are offered or held.
    pub running_handlers: usize,
    /// All its loops.
    pub loops: Vec<LoopHealth>,
    /// Whether the group can have heard of it: its heartbeats have not failed for longer than a lease lives.
    pub connected: bool,
}

impl Health {
    /// A consumer without topics and loops, that the group hears of.
    #[must_use]
    pub const fn new(group: GroupName, member: MemberId, state: ConsumerState) -> Self {
        Self {
            group,
            member,
            state,
            asked_to_end: false,
            topics: Vec::new(),
            in_flight: 0,
            running_handlers: 0,
            loops: Vec::new(),
            connected: true,
        }
    }

    /// Whether the process should go on: for a liveness probe.
    ///
    /// False if the consumer has ended by itself (it was fenced, or what it worked on was deleted), or if a loop hangs: it is more than a minute later
    /// than it should be. A server that is away, slow handlers, and having nothing to do are no reasons: a restart
    /// would not help.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let ended =
            matches!(self.state, ConsumerState::Ended | ConsumerState::Fenced | ConsumerState::Deleted);
        !ended && self.stalled().next().is_none()
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

    /// The loops that hang.
    pub fn stalled(&self) -> impl Iterator<Item = &LoopHealth> {
        self.loops.iter().filter(|each| each.stalled)
    }
}

/// How one loop of a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerLoop {
    /// What it does: `claim`, `wait`, `fire` and `settle` for a shard, `extend` and `expire` for all of them.
    pub operation: &'static str,
    /// For which shard, if it is for one.
    pub shard: Option<u32>,
    /// How long ago it came round last, well or not, or began. A loop that has nothing to do does not come round.
    pub last_progress: Duration,
    /// Whether it is failing now.
    pub failing: Option<Failure>,
    /// Whether it is more than a minute late: whatever the server does, that should not be.
    pub stalled: bool,
}

impl WorkerLoop {
    /// A loop that came round just now.
    #[must_use]
    pub const fn new(operation: &'static str, shard: Option<u32>) -> Self {
        Self { operation, shard, last_progress: Duration::ZERO, failing: None, stalled: false }
    }
}

/// How a worker of a delay queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerHealth {
    /// Its queue.
    pub queue: QueueName,
    /// Its name, which no other start has.
    pub worker: String,
    /// What it is doing: it joins until the server has answered for each shard. It is never paused or fenced.
    pub state: ConsumerState,
    /// Whether its end was asked for: it was shut down or dropped.
    pub asked_to_end: bool,
    /// Tasks in its hands.
    pub running: usize,
    /// All its loops.
    pub loops: Vec<WorkerLoop>,
    /// Whether it can have work: claiming has not failed for longer than a claim holds.
    pub connected: bool,
}

impl WorkerHealth {
    /// A worker without loops, whose claims are answered.
    #[must_use]
    pub const fn new(queue: QueueName, worker: String, state: ConsumerState) -> Self {
        Self { queue, worker, state, asked_to_end: false, running: 0, loops: Vec::new(), connected: true }
    }

    /// Whether the process should go on: it has not ended by itself, and no loop hangs.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state != ConsumerState::Ended && self.stalled().next().is_none()
    }

    /// Whether it works: the server has answered for each shard, and has not been failing for longer than a claim
    /// holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && self.state == ConsumerState::Running
    }

    /// The loops that are failing now.
    pub fn failing(&self) -> impl Iterator<Item = (&WorkerLoop, &Failure)> {
        self.loops.iter().filter_map(|each| Some((each, each.failing.as_ref()?)))
    }

    /// The loops that hang.
    pub fn stalled(&self) -> impl Iterator<Item = &WorkerLoop> {
        self.loops.iter().filter(|each| each.stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_live_or_ready_as_it_should_be() {
        let of = |state| Health::new("g".parse().expect("name"), "m".parse().expect("name"), state);
        for (state, live, ready) in [
            (ConsumerState::Joining, true, false),
            (ConsumerState::Running, true, true),
            (ConsumerState::Paused, true, true),
            (ConsumerState::Leaving, true, false),
            (ConsumerState::Ended, false, false),
            (ConsumerState::Fenced, false, false),
            (ConsumerState::Deleted, false, false),
        ] {
            assert_eq!((of(state).is_live(), of(state).is_ready()), (live, ready), "{state:?}");
            let cut_off = Health { connected: false, ..of(state) };
            assert_eq!((cut_off.is_live(), cut_off.is_ready()), (live, false), "{state:?}, cut off");
        }
    }

    #[test]
    fn a_worker_is_ready_when_it_works_and_live_until_it_hangs() {
        let of = |state| WorkerHealth::new("q".parse().expect("name"), "w".into(), state);
        for (state, live, ready) in [
            (ConsumerState::Joining, true, false),
            (ConsumerState::Running, true, true),
            (ConsumerState::Leaving, true, false),
            (ConsumerState::Ended, false, false),
        ] {
            assert_eq!((of(state).is_live(), of(state).is_ready()), (live, ready), "{state:?}");
        }
        let mut health = of(ConsumerState::Running);
        health.connected = false;
        assert!(health.is_live() && !health.is_ready(), "cut off");
        health.loops.push(WorkerLoop { stalled: true, ..WorkerLoop::new("claim", Some(0)) });
        assert!(!health.is_live());
    }

    #[test]
    fn a_loop_that_hangs_ends_liveness_and_one_that_fails_does_not() {
        let mut health =
            Health::new("g".parse().expect("name"), "m".parse().expect("name"), ConsumerState::Running);
        health.loops.push(LoopHealth::new("fetch", "t".parse().expect("name"), Some(Partition(0))));
        health.loops[0].failing = Some(Failure { lasts: Duration::from_secs(900), error: "refused".into() });
        assert!(health.is_live() && health.failing().count() == 1);
        health.loops[0].stalled = true;
        assert!(!health.is_live());
    }
}
