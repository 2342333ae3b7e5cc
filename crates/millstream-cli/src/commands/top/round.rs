//! The result of sampling the server once, as plain values.

use std::time::Duration;

use millstream::admin::{GroupStats, Owners, PendingPage, Server};
use millstream::crates::core::catalog::PartitionSurvey;
use millstream::{DeadLetter, GroupName, TopicName, TopicSpec};

/// Details that the screen shows beyond the rows. They cost more commands, so they are read only for the focused
/// group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Focus {
    /// The focused group of a topic: its members and owners are read.
    pub(crate) group: Option<(TopicName, GroupName)>,
    /// Whether its pending entries and dead letters are read too.
    pub(crate) messages: bool,
}

/// An operation that the user requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    /// Whether to pause the group, or to resume it.
    pub(crate) pause: bool,
}

/// The statistics of a topic, as far as they can be read.
#[derive(Clone, Debug)]
pub(crate) struct TopicSample {
    /// The time of the sample, since the start of the screen.
    pub(crate) at: Duration,
    pub(crate) topic: TopicSpec,
    /// The number of delayed messages; `None` if it is unknown.
    pub(crate) delayed: Option<u64>,
    /// The number of them that are due.
    pub(crate) overdue: Option<u64>,
    pub(crate) groups: Vec<GroupStats>,
    /// The log of each partition, from the statistics of a group or without one.
    pub(crate) logs: Vec<PartitionSurvey>,
}

/// The details of the focused group.
#[derive(Clone, Debug)]
pub(crate) struct Detail {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    pub(crate) owners: Owners,
    /// The oldest pending entries and the newest dead letters, if they were requested.
    pub(crate) messages: Option<(PendingPage, Vec<DeadLetter>)>,
}

/// A query that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The query: `ask for topics`.
    pub(crate) doing: String,
    /// The topic that it is about, if it is about one.
    pub(crate) topic: Option<TopicName>,
    pub(crate) error: String,
    /// Whether waiting helps: the server was unreachable, and the remaining queries were skipped.
    pub(crate) transient: bool,
}

/// All results of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    /// The end of the round, since the start of the screen.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// All existing topics; `None` if the list was not requested, or the query failed.
    pub(crate) names: Option<Vec<TopicName>>,
    pub(crate) topics: Vec<TopicSample>,
    /// Topics whose settings could not be read.
    pub(crate) unreadable: Vec<TopicName>,
    /// Dead letters that are new since the previous round, newest first for each partition.
    pub(crate) letters: Vec<DeadLetter>,
    pub(crate) servers: Option<Vec<Server>>,
    pub(crate) detail: Option<Detail>,
    pub(crate) problems: Vec<Problem>,
}
