//! What comes of asking the server once: plain values.

use std::time::Duration;

use millstream::admin::{Owners, PendingPage, Server, TopicStats};
use millstream::{DeadLetter, GroupName, PartitionStats, TopicName};

/// What the screen shows of a single topic beyond its row: that costs more, so it is asked for what is looked at alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Focus {
    /// A group of a topic: its members and owners.
    pub(crate) group: Option<(TopicName, GroupName)>,
    /// Also what is pending, and its dead letters.
    pub(crate) messages: bool,
}

/// What somebody wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    /// Whether the group is to be paused, or to go on.
    pub(crate) pause: bool,
}

/// How a topic stands.
#[derive(Clone, Debug)]
pub(crate) struct TopicSample {
    /// When that was, from the beginning of the screen.
    pub(crate) at: Duration,
    pub(crate) stats: TopicStats,
    /// The log of each partition: of a group's figures, or without a group.
    pub(crate) logs: Vec<PartitionStats>,
}

/// What is known of the group that is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Detail {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    pub(crate) owners: Owners,
    /// What is pending, oldest first, and the newest dead letters; if they were asked for.
    pub(crate) messages: Option<(PendingPage, Vec<DeadLetter>)>,
}

/// Something that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What was being done: `ask for topics`.
    pub(crate) doing: String,
    pub(crate) error: String,
    /// Whether waiting helps: the server was not there, and the rest was not asked.
    pub(crate) transient: bool,
}

/// Everything that was asked for at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    /// When it ended, from the beginning of the screen.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// All topics that there are; nothing if that was not asked, or not answered.
    pub(crate) names: Option<Vec<TopicName>>,
    pub(crate) topics: Vec<TopicSample>,
    /// Dead letters that are new since the round before, those of each partition newest first.
    pub(crate) letters: Vec<DeadLetter>,
    pub(crate) server: Option<Server>,
    pub(crate) detail: Option<Detail>,
    pub(crate) problems: Vec<Problem>,
}
