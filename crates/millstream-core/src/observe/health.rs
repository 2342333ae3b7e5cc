//! Health of running consumers, workers and loops as plain values, and the traits that report it.

use std::fmt;
use std::time::Duration;

use crate::name::{GroupName, LimitName, MemberId, QueueName, TopicName};
use crate::topic::Partition;

/// Reports the health of a consumer at any time, for probes and gauges. Observers receive it when the consumer starts
/// ([`Event::ConsumerStarted`](crate::Event::ConsumerStarted)).
pub trait HealthCheck: Send + Sync {
    /// Returns the current health. It makes no request and takes microseconds.
    fn health(&self) -> Health;
}

impl fmt::Debug for dyn HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthCheck")
    }
}

/// Reports the health of a worker of a delay queue at any time. Observers receive it when the worker starts
/// ([`Event::WorkerStarted`](crate::Event::WorkerStarted)).
pub trait WorkerCheck: Send + Sync {
    /// Returns the current health. It makes no request and takes microseconds.
    fn health(&self) -> WorkerHealth;
}

impl fmt::Debug for dyn WorkerCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerCheck")
    }
}

/// Reports the health of loops that belong to no consumer and no worker: those of a producer, of a consumer of dead
/// letters, of a promoter that owns no partition. Observers receive it when the loops start
/// ([`Event::LoopsStarted`](crate::Event::LoopsStarted)).
pub trait LoopsCheck: Send + Sync {
    /// Returns the current health of the loops; none once they have ended. It makes no request and takes microseconds.
    fn loops(&self) -> Vec<LoopHealth>;
}

impl fmt::Debug for dyn LoopsCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoopsCheck")
    }
}

/// State of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It has no assignment yet.
    Joining,
    /// It is running.
    Running,
    /// All of it is paused: the consumer itself is, or all its groups are.
    Paused,
    /// It is shutting down.
    Leaving,
    /// It has ended.
    Ended,
    /// Another process has taken over its member id: it is ending, or has ended.
    Fenced,
    /// A topic of it, or its group, was deleted: it is ending, or has ended.
    Deleted,
}

impl ConsumerState {
    /// Returns the word for the state.
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

/// Health of one topic of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicHealth {
    /// The topic.
    pub topic: TopicName,
    /// Number of members in the group, as of the last heartbeat.
    pub members: u32,
    /// Partitions assigned to this instance; `None` before the first assignment.
    pub assigned: Option<Vec<Partition>>,
    /// Partitions that it works on.
    pub owned: Vec<Partition>,
    /// Partitions that are paused individually, owned or not.
    pub paused: Vec<Partition>,
    /// Whether the whole group is [paused](crate::Catalog::set_paused), as of the last heartbeat.
    pub group_paused: bool,
    /// Number of its messages that are read and not settled, those in running handlers included.
    pub in_flight: usize,
    /// Number of poison candidates among them: messages that were pending at two or more unexplained ends of owners in a
    /// row.
    pub candidates: usize,
}

impl TopicHealth {
    /// Creates the health of a topic before anything is known of it.
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

/// Failure of a loop that keeps retrying.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopFailure {
    /// Time since the loop began to fail.
    pub lasts: Duration,
    /// The last error.
    pub error: String,
}

impl LoopFailure {
    /// Creates the record of a failure.
    #[must_use]
    pub fn new(lasts: Duration, error: impl Into<String>) -> Self {
        Self { lasts, error: error.into() }
    }
}

/// Health of one loop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopHealth {
    /// Operation of the loop: `heartbeat`, `renew`, `acquire`, `assign` and `watch` for a topic; `fetch`, `settle`, and
    /// kinds of upkeep like `promote` and `trim` for a partition. Outside of consumers: `refresh`, `promote`, and
    /// `consume dead letters`.
    pub operation: &'static str,
    /// The topic.
    pub topic: TopicName,
    /// The partition, if the loop works for one.
    pub partition: Option<Partition>,
    /// Time since its last iteration, successful or not, or since it began. An idle loop does not iterate.
    pub last_progress: Duration,
    /// The failure, if it is failing now.
    pub failing: Option<LoopFailure>,
    /// Whether it is more than a minute late, which should not happen whatever the server does.
    pub stalled: bool,
}

impl LoopHealth {
    /// Creates the health of a loop that has just made an iteration.
    #[must_use]
    pub const fn new(operation: &'static str, topic: TopicName, partition: Option<Partition>) -> Self {
        Self { operation, topic, partition, last_progress: Duration::ZERO, failing: None, stalled: false }
    }
}

/// Health of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The group.
    pub group: GroupName,
    /// The consumer's name in the group.
    pub member: MemberId,
    /// The state.
    pub state: ConsumerState,
    /// Whether its end was requested: it was shut down or dropped.
    pub asked_to_end: bool,
    /// Its topics, in the order of their names.
    pub topics: Vec<TopicHealth>,
    /// Number of messages that are read and not settled, those in running handlers included.
    pub in_flight: usize,
    /// Number of handler calls that have not returned. For pulled messages: all that are offered or held.
    pub running_handlers: usize,
    /// Its limits for which messages wait, with their number.
    pub waiting: Vec<(LimitName, usize)>,
    /// All its loops.
    pub loops: Vec<LoopHealth>,
    /// Whether its heartbeats reach the group: they have not failed for longer than a lease's ttl.
    pub connected: bool,
}

impl Health {
    /// Creates the health of a connected consumer without topics and loops.
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
            waiting: Vec::new(),
            loops: Vec::new(),
            connected: true,
        }
    }

    /// Whether the process should go on: for a liveness probe.
    ///
    /// False if the consumer has ended by itself (it was fenced, or what it worked on was deleted), or if a loop is
    /// stalled: more than a minute late. An unreachable server, slow handlers and idleness do not make it false: a
    /// restart would not help.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let ended =
            matches!(self.state, ConsumerState::Ended | ConsumerState::Fenced | ConsumerState::Deleted);
        !ended && self.stalled().next().is_none()
    }

    /// Whether it takes part in its group: for a readiness probe.
    ///
    /// True from its first assignment (which may be empty) until it leaves. False while its heartbeats have been failing
    /// for longer than a lease's ttl, since other members then take its partitions. Pausing has no effect on it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && matches!(self.state, ConsumerState::Running | ConsumerState::Paused)
    }

    /// Returns the loops that are failing now.
    pub fn failing(&self) -> impl Iterator<Item = (&LoopHealth, &LoopFailure)> {
        self.loops.iter().filter_map(|each| Some((each, each.failing.as_ref()?)))
    }

    /// Returns the loops that are stalled.
    pub fn stalled(&self) -> impl Iterator<Item = &LoopHealth> {
        self.loops.iter().filter(|each| each.stalled)
    }
}

/// Health of one loop of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerLoop {
    /// Operation of the loop: `claim`, `wait`, `fire` and `settle` for a shard, `extend` for all of them.
    pub operation: &'static str,
    /// The shard, if the loop works for one.
    pub shard: Option<u32>,
    /// Time since its last iteration, successful or not, or since it began. An idle loop does not iterate.
    pub last_progress: Duration,
    /// The failure, if it is failing now.
    pub failing: Option<LoopFailure>,
    /// Whether it is more than a minute late, which should not happen whatever the server does.
    pub stalled: bool,
}

impl WorkerLoop {
    /// Creates the health of a loop that has just made an iteration.
    #[must_use]
    pub const fn new(operation: &'static str, shard: Option<u32>) -> Self {
        Self { operation, shard, last_progress: Duration::ZERO, failing: None, stalled: false }
    }
}

/// Health of a worker of a delay queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerHealth {
    /// The queue.
    pub queue: QueueName,
    /// The worker's name; unique to this start.
    pub worker: String,
    /// The state: it is joining until the server has answered for each shard. It is never paused or fenced.
    pub state: ConsumerState,
    /// Whether its end was requested: it was shut down or dropped.
    pub asked_to_end: bool,
    /// Number of tasks that it has claimed and not settled.
    pub running: usize,
    /// How many of them wait for each of its limits, by name.
    pub waiting: Vec<(LimitName, usize)>,
    /// All its loops.
    pub loops: Vec<WorkerLoop>,
    /// Whether it can claim tasks: claiming has not failed for longer than a claim holds.
    pub connected: bool,
}

impl WorkerHealth {
    /// Creates the health of a connected worker without loops.
    #[must_use]
    pub const fn new(queue: QueueName, worker: String, state: ConsumerState) -> Self {
        Self {
            queue,
            worker,
            state,
            asked_to_end: false,
            running: 0,
            waiting: Vec::new(),
            loops: Vec::new(),
            connected: true,
        }
    }

    /// Whether the process should go on: it has not ended by itself, and no loop is stalled.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state != ConsumerState::Ended && self.stalled().next().is_none()
    }

    /// Whether it works: the server has answered for each shard, and claiming has not been failing for longer than a
    /// claim holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && self.state == ConsumerState::Running
    }

    /// Returns the loops that are failing now.
    pub fn failing(&self) -> impl Iterator<Item = (&WorkerLoop, &LoopFailure)> {
        self.loops.iter().filter_map(|each| Some((each, each.failing.as_ref()?)))
    }

    /// Returns the loops that are stalled.
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
        health.loops[0].failing =
            Some(LoopFailure { lasts: Duration::from_secs(900), error: "refused".into() });
        assert!(health.is_live() && health.failing().count() == 1);
        health.loops[0].stalled = true;
        assert!(!health.is_live());
    }
}
