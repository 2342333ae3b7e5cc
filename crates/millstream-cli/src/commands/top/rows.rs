//! The lines of the first page: topics in the chosen order, each with its groups.

use std::cmp::{Ordering, Reverse};

use millstream::{GroupName, TopicName};

use crate::commands::top::model::{Model, TopGroupView, TopTopicView};

/// The sort order of topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TopSort {
    #[default]
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
    const ALL: [Self; 9] = [
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
