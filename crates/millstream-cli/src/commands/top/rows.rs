//! The lines of the first page: topics in the chosen order, each with its groups.

use std::cmp::{Ordering, Reverse};

use millstream::{GroupName, TopicName};

use crate::commands::top::model::{Model, TopGroupView, TopTopicView};

/// The sort order of topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TopSort {
    /// Those that need attention first.
    #[default]
    Urgency,
    Name,
    Produced,
    Consumed,
    Backlog,
    Lag,
    Oldest,
    Pending,
    Dead,
    Entries,
}

impl TopSort {
    const ALL: [Self; 10] = [
        Self::Urgency,
        Self::Name,
        Self::Produced,
        Self::Consumed,
        Self::Backlog,
        Self::Lag,
        Self::Oldest,
        Self::Pending,
        Self::Dead,
        Self::Entries,
    ];

    /// Returns the next order; the first one after the last.
    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Returns its displayed name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Urgency => "urgency",
            Self::Name => "name",
            Self::Produced => "in/s",
            Self::Consumed => "out/s",
            Self::Backlog => "backlog",
            Self::Lag => "lag",
            Self::Oldest => "oldest",
            Self::Pending => "pending",
            Self::Dead => "dead",
            Self::Entries => "entries",
        }
    }

    /// Compares by value, largest first, and then by name.
    fn compare(self, a: &TopTopicView<'_>, b: &TopTopicView<'_>) -> Ordering {
        fn most<T: Ord + Default>(topic: &TopTopicView<'_>, of: impl Fn(&TopGroupView<'_>) -> T) -> T {
            topic.groups.iter().map(of).max().unwrap_or_default()
        }
        // What is unknown comes before all that is known: somebody should look at it.
        let count = |it: Option<u64>| Some(it.unwrap_or(u64::MAX));
        // Rates are compared in thousandths, since floating-point numbers have no total order.
        let rate = |it: Option<f64>| it.map(|rate| (rate * 1e3) as u64);
        let by = |topic: &TopTopicView<'_>| match self {
            Self::Urgency => Some(urgency(topic)),
            Self::Name => None,
            Self::Produced => rate(topic.produced),
            Self::Consumed => most(topic, |group| rate(group.consumed)),
            Self::Backlog => Some(most(topic, |group| group.backlog_at_least)),
            Self::Lag => Some(most(topic, |group| group.totals.lag_at_least)),
            Self::Oldest => most(topic, |group| group.totals.oldest.map(crate::human::ms)),
            Self::Pending => most(topic, |group| count(group.totals.pending)),
            Self::Dead => count(topic.groups.iter().map(|group| group.totals.dead).sum()),
            Self::Entries => count(topic.entries),
        };
        (Reverse(by(a)), &a.topic.name).cmp(&(Reverse(by(b)), &b.topic.name))
    }
}

/// Returns how urgent a topic is, by the worst of its groups: first that nobody handles its messages or something is unknown, then
/// what an operator should look at, then the age of the oldest message.
fn urgency(topic: &TopTopicView<'_>) -> u64 {
    const LEVEL: u64 = 1 << 48;
    let of_group = |group: &TopGroupView<'_>| {
        let totals = group.totals;
        let is_stopped = group.members == Some(0) && group.backlog_at_least > 0;
        let is_unknown = totals.length.is_none() || group.members.is_none();
        let free = group.owned.is_some_and(|owned| owned < group.partitions.len()) && group.members > Some(0);
        let level = match () {
            () if is_stopped || is_unknown => 2,
            () if totals.dead != Some(0) || group.paused || free => 1,
            () => 0,
        };
        level * LEVEL + totals.oldest.map_or(0, crate::human::ms).min(LEVEL - 1)
    };
    let overdue = if topic.overdue == Some(0) { 0 } else { LEVEL };
    topic.groups.iter().map(of_group).max().unwrap_or_default().max(overdue)
}

/// The subject of a line: a topic, or one of its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) topic: TopicName,
    pub(crate) group: Option<GroupName>,
}

/// A line.
#[derive(Clone, Debug)]
pub(crate) enum TopLine<'a> {
    Topic(TopTopicView<'a>),
    /// A topic that was not sampled yet, or could not be read.
    Unknown(&'a TopicName),
    /// A group, and whether it is the last one of its topic.
    Group {
        topic: &'a TopicName,
        group: TopGroupView<'a>,
        last: bool,
    },
}

impl TopLine<'_> {
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Topic(topic) => Place { topic: topic.topic.name.clone(), group: None },
            Self::Unknown(topic) => Place { topic: (*topic).clone(), group: None },
            Self::Group { topic, group, .. } => {
                Place { topic: (*topic).clone(), group: Some(group.group.clone()) }
            }
        }
    }
}

/// Returns the topics with `filter` in their names or in that of one of their groups.
pub(crate) fn filtered<'a>(model: &'a Model, filter: &str) -> Vec<TopTopicView<'a>> {
    let filter = filter.to_lowercase();
    let fits = |topic: &TopTopicView<'_>| {
        has(topic.topic.name.as_str(), &filter)
            || topic.groups.iter().any(|group| has(group.group.as_str(), &filter))
    };
    model.topics().filter(fits).collect()
}

/// Returns the unread and unreadable topics with `filter` in their names.
pub(crate) fn unknown<'a>(model: &'a Model, filter: &str) -> impl Iterator<Item = &'a TopicName> {
    let filter = filter.to_lowercase();
    model.unknown().filter(move |name| has(name.as_str(), &filter))
}

/// Whether a name contains a filter in lower case.
fn has(name: &str, filter: &str) -> bool {
    name.to_lowercase().contains(filter)
}

/// Returns all lines whose topic or one of its groups has `filter` in its name; `reversed` sorts the smallest first. Topics of
/// which nothing is known stand at the end.
pub(crate) fn lines<'a>(model: &'a Model, sort: TopSort, reversed: bool, filter: &str) -> Vec<TopLine<'a>> {
    let mut topics = filtered(model, filter);
    topics.sort_by(|a, b| if reversed { sort.compare(b, a) } else { sort.compare(a, b) });
    let mut lines = Vec::new();
    for topic in topics {
        let (name, groups) = (&topic.topic.name, topic.groups.clone());
        lines.push(TopLine::Topic(topic));
        let count = groups.len();
        let line = |(at, group)| TopLine::Group { topic: name, group, last: at + 1 == count };
        lines.extend(groups.into_iter().enumerate().map(line));
    }
    lines.extend(unknown(model, filter).map(TopLine::Unknown));
    lines
}
