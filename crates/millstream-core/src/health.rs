//! Health: how a running consumer is, as plain values, and who can say it.

use std::fmt;
use std::time::Duration;

use crate::name::{GroupName, MemberId, TopicName};
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

/// What a consumer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It does not know yet what it should own.
    Joining,
    /// It works.
    Running,
    /// All of it is paused.
    Paused,
    /// It is shutting down.
    Leaving,
    /// It has ended.
    Ended,
    /// Another process has taken its member id: it ends, or has ended.
    Fenced,
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
}

impl TopicHealth {
    /// A topic of which nothing is known yet.
    #[must_use]
    pub const fn new(topic: TopicName) -> Self {
        Self { topic, members: 0, assigned: None, owned: Vec::new(), paused: Vec::new() }
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
    /// False if the consumer has ended by itself (or was fenced), or if a loop hangs: it is more than a minute later
    /// than it should be. A server that is away, slow handlers, and having nothing to do are no reasons: a restart
    /// would not help.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let ended = matches!(self.state, ConsumerState::Ended | ConsumerState::Fenced);
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
        ] {
            assert_eq!((of(state).is_live(), of(state).is_ready()), (live, ready), "{state:?}");
            let cut_off = Health { connected: false, ..of(state) };
            assert_eq!((cut_off.is_live(), cut_off.is_ready()), (live, false), "{state:?}, cut off");
        }
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
