//! The results of sampling the server, and the model, built from these rounds: rates from two samples, and the values to show. Pure: time comes with the rounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use millstream::admin::{GroupStats, Owners, PendingPage, Server, Totals};
use millstream::crates::core::QueueName;
use millstream::crates::core::catalog::PartitionSurvey;
use millstream::delay::TaskCounts;
use millstream::{DeadLetter, GroupName, MessageId, Timestamp, TopicName, TopicSpec};

/// Window of the rates, or the span of two rounds if that is longer.
const WINDOW: Duration = Duration::from_secs(5);

/// Maximum number of dead letters and of problems in the list of errors.
const LETTERS: usize = 50;
const PROBLEMS: usize = 20;

/// Maximum number of rates in the curve.
const CURVE: usize = 120;

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

/// A recurring entry of a topic or a delay queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopSchedule {
    pub(crate) of: String,
    pub(crate) id: String,
    /// The next due time, unless it is paused or over.
    pub(crate) next: Option<Timestamp>,
    pub(crate) paused: bool,
}

/// What is beside the topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Others {
    /// Delay queues, those with the most overdue tasks first.
    pub(crate) queues: Vec<(QueueName, TaskCounts)>,
    /// Recurring entries, the next ones first.
    pub(crate) schedules: Vec<TopSchedule>,
    /// The time when they were read, by the server's clock.
    pub(crate) now: Timestamp,
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
    pub(crate) others: Option<Others>,
    pub(crate) detail: Option<Detail>,
    pub(crate) problems: Vec<Problem>,
}

/// All sampled data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    topics: BTreeMap<TopicName, History>,
    /// All existing topics, sampled or not.
    names: BTreeSet<TopicName>,
    pub(crate) detail: Option<Detail>,
    pub(crate) servers: Vec<Server>,
    pub(crate) others: Others,
    /// Dead letters, newest first.
    pub(crate) letters: VecDeque<DeadLetter>,
    /// Failed queries, newest first.
    pub(crate) problems: VecDeque<Seen>,
    /// Messages produced and handled per second over all topics, one for each round, oldest first. An unknown rate is
    /// missing in it.
    pub(crate) curve: VecDeque<(f64, f64)>,
    /// The time of the last reply, and whether the last round was complete.
    pub(crate) answered: Option<Duration>,
    pub(crate) failing: bool,
    pub(crate) took: Duration,
}

/// A problem, with the times when it first and last occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) problem: Problem,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) times: u64,
}

/// A topic: its last sample, and the earlier counts, newest last.
#[derive(Clone, Debug)]
struct History {
    last: TopicSample,
    counts: VecDeque<TopCounts>,
}

/// Counters by partition, which only grow: their differences are rates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TopCounts {
    at: Duration,
    appended: Vec<Option<u64>>,
    /// The number of messages that each group has finished.
    done: BTreeMap<GroupName, Vec<Option<u64>>>,
}

/// A topic, as shown.
#[derive(Clone, Debug)]
pub(crate) struct TopTopicView<'a> {
    pub(crate) topic: &'a TopicSpec,
    /// The time of the sample.
    pub(crate) at: Duration,
    /// `None` if it is unknown, as other figures.
    pub(crate) entries: Option<u64>,
    /// Messages per second that were appended.
    pub(crate) produced: Option<f64>,
    pub(crate) delayed: Option<u64>,
    pub(crate) overdue: Option<u64>,
    pub(crate) groups: Vec<TopGroupView<'a>>,
    pub(crate) logs: Vec<TopPartitionView<'a>>,
}

/// A group of a topic, as shown.
#[derive(Clone, Debug)]
pub(crate) struct TopGroupView<'a> {
    pub(crate) group: &'a GroupName,
    pub(crate) totals: &'a Totals,
    /// The number of messages that the group has to handle, now or later; `None` if it is unknown.
    pub(crate) backlog: Option<u64>,
    /// The number that it certainly has to handle.
    pub(crate) backlog_at_least: u64,
    /// Messages per second that the group finished.
    pub(crate) consumed: Option<f64>,
    /// Whether the group is paused until an operator resumes it.
    pub(crate) paused: bool,
    pub(crate) members: Option<usize>,
    pub(crate) owned: Option<usize>,
    pub(crate) partitions: Vec<TopPartitionView<'a>>,
}

/// A partition, with or without a group.
#[derive(Clone, Debug)]
pub(crate) struct TopPartitionView<'a> {
    pub(crate) survey: &'a PartitionSurvey,
    pub(crate) produced: Option<f64>,
    pub(crate) consumed: Option<f64>,
}

impl Model {
    /// Adds the results of a round.
    pub(crate) fn take(&mut self, round: Round) {
        if let Some(names) = &round.names {
            self.names = names.iter().cloned().collect();
            self.topics.retain(|name, _| names.binary_search(name).is_ok());
            self.letters.retain(|letter| names.binary_search(&letter.topic_partition.topic).is_ok());
        }
        let (whole, asked) = (round.names.is_some(), !round.topics.is_empty());
        if whole || round.detail.is_some() {
            (self.answered, self.took) = (Some(round.at), round.took);
        }
        self.failing = round.problems.iter().any(|problem| problem.transient);
        for problem in round.problems {
            self.saw(problem, round.at);
        }
        for sample in round.topics {
            self.sample(sample);
        }
        // What was known of it is not so any more.
        self.topics.retain(|name, _| !round.unreadable.contains(name));
        self.letters(round.letters);
        if let Some(servers) = round.servers {
            self.servers = servers;
        }
        if let Some(others) = round.others {
            self.others = others;
        }
        self.detail = match round.detail {
            // Earlier messages of the same group are kept until new ones are read.
            Some(mut detail) => {
                let before =
                    self.detail.take().filter(|it| (&it.topic, &it.group) == (&detail.topic, &detail.group));
                detail.messages = detail.messages.or_else(|| before?.messages);
                Some(detail)
            }
            None => self.detail.take(),
        };
        if asked {
            let topics: Vec<_> = self.topics().collect();
            let rates = rates(&topics);
            self.curve.push_back(rates);
            self.curve.drain(..self.curve.len().saturating_sub(CURVE));
        }
    }

    /// Returns all sampled topics, by name.
    pub(crate) fn topics(&self) -> impl Iterator<Item = TopTopicView<'_>> {
        self.topics.values().map(History::view)
    }

    /// Returns the names of the topics that were not sampled yet, or could not be read.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &TopicName> {
        self.names.iter().filter(|name| !self.topics.contains_key(name))
    }

    /// Returns one topic.
    pub(crate) fn topic(&self, name: &TopicName) -> Option<TopTopicView<'_>> {
        self.topics.get(name).map(History::view)
    }

    /// Returns the details of a group, if they were sampled.
    pub(crate) fn detail_of(&self, topic: &TopicName, group: &GroupName) -> Option<&Detail> {
        self.detail.as_ref().filter(|it| (&it.topic, &it.group) == (topic, group))
    }

    fn saw(&mut self, problem: Problem, at: Duration) {
        let seen = match self.problems.iter().position(|seen| seen.problem == problem) {
            Some(known) => {
                self.problems.remove(known).map(|seen| Seen { last: at, times: seen.times + 1, ..seen })
            }
            None => None,
        };
        self.problems.push_front(seen.unwrap_or(Seen { problem, first: at, last: at, times: 1 }));
        self.problems.truncate(PROBLEMS);
    }

    fn sample(&mut self, sample: TopicSample) {
        let name = sample.topic.name.clone();
        let mut counts = self.topics.remove(&name).map(|known| known.counts).unwrap_or_default();
        counts.push_back(TopCounts::of(&sample));
        // Keeps the newest count that is at least as old as the window, to compare with.
        while counts.get(1).is_some_and(|second| sample.at.saturating_sub(second.at) >= WINDOW) {
            counts.pop_front();
        }
        // A letter that was replayed or purged is no longer an error.
        for group in &sample.groups {
            let empty = |letter: &DeadLetter| {
                let of = &letter.topic_partition;
                let here = of.topic == name && letter.group == group.group;
                here && group
                    .partitions
                    .iter()
                    .any(|it| it.stats.partition == of.partition && it.dead() == Some(0))
            };
            self.letters.retain(|letter| !empty(letter));
        }
        self.topics.insert(name, History { last: sample, counts });
    }

    fn letters(&mut self, letters: Vec<DeadLetter>) {
        type Where<'a> = (MessageId, &'a millstream::TopicPartition, &'a GroupName);
        fn place(letter: &DeadLetter) -> Where<'_> {
            (letter.id, &letter.topic_partition, &letter.group)
        }
        self.letters.extend(letters);
        self.letters.make_contiguous().sort_by(|a, b| place(b).cmp(&place(a)));
        let mut sorted: Vec<DeadLetter> = std::mem::take(&mut self.letters).into();
        sorted.dedup_by(|a, b| place(a) == place(b));
        sorted.truncate(LETTERS);
        self.letters = sorted.into();
    }
}

impl TopCounts {
    fn of(sample: &TopicSample) -> Self {
        let appended = sample.logs.iter().map(|log| log.stats.appended).collect();
        let groups = sample.groups.iter();
        let done = groups.map(|group| (group.group.clone(), group.partitions.iter().map(done).collect()));
        Self { at: sample.at, appended, done: done.collect() }
    }
}

/// Returns the total number of messages that a group has finished: handled or dead. Messages that wait for a retry
/// are not.
fn done(survey: &PartitionSurvey) -> Option<u64> {
    let left = survey.stats.lag?.checked_add(survey.pending()?)?.checked_add(survey.retrying()?)?;
    Some(survey.stats.appended?.saturating_sub(left))
}

impl History {
    fn view(&self) -> TopTopicView<'_> {
        let (sample, logs) = (&self.last, &self.last.logs);
        let first = self.counts.front().filter(|_| self.counts.len() > 1);
        let last = self.counts.back();
        let span = first.zip(last).map(|(first, last)| (last.at.saturating_sub(first.at)).as_secs_f64());
        let rate = |counts: fn(&TopCounts) -> Option<&Vec<Option<u64>>>| {
            partition_rates(counts(first?)?, counts(last?)?, span?)
        };
        let produced = rate(|counts| Some(&counts.appended)).unwrap_or_default();
        let groups = sample.groups.iter().map(|group| {
            let of = |counts: Option<&'_ TopCounts>| counts.and_then(|it| it.done.get(&group.group).cloned());
            let consumed = of(first).zip(of(last)).zip(span);
            let consumed = consumed
                .and_then(|((first, last), span)| partition_rates(&first, &last, span))
                .unwrap_or_default();
            TopGroupView {
                group: &group.group,
                totals: &group.totals,
                backlog: group.backlog().zip(sample.overdue).map(|(backlog, overdue)| backlog + overdue),
                backlog_at_least: group.backlog_at_least() + sample.overdue.unwrap_or(0),
                consumed: sum(&consumed, group.partitions.len()),
                paused: group.paused.is_some(),
                members: group.members,
                owned: group.owned,
                partitions: views(&group.partitions, &produced, &consumed),
            }
        });
        TopTopicView {
            topic: &sample.topic,
            at: self.last.at,
            entries: logs.iter().map(PartitionSurvey::length).sum(),
            produced: sum(&produced, logs.len()),
            delayed: sample.delayed,
            overdue: sample.overdue,
            groups: groups.collect(),
            logs: views(logs, &produced, &[]),
        }
    }
}

fn views<'a>(
    partitions: &'a [PartitionSurvey],
    produced: &[Option<f64>],
    consumed: &[Option<f64>],
) -> Vec<TopPartitionView<'a>> {
    let of = |rates: &[Option<f64>], at: usize| rates.get(at).copied().flatten();
    let view =
        |(at, survey)| TopPartitionView { survey, produced: of(produced, at), consumed: of(consumed, at) };
    partitions.iter().enumerate().map(view).collect()
}

/// Returns the messages per second that were appended to these topics, and that their groups finished, as far as they are
/// known.
pub(crate) fn rates(topics: &[TopTopicView<'_>]) -> (f64, f64) {
    topics.iter().fold((0.0, 0.0), |sum, topic| {
        let consumed: f64 = topic.groups.iter().filter_map(|group| group.consumed).sum();
        (sum.0 + topic.produced.unwrap_or(0.0), sum.1 + consumed)
    })
}

/// Returns the rates of partitions for which both counts are known. A count that decreased has started over. A new
/// partition had a count of zero before.
fn partition_rates(first: &[Option<u64>], last: &[Option<u64>], span: f64) -> Option<Vec<Option<f64>>> {
    if span <= 0.0 {
        return None;
    }
    let rate = |(at, last): (usize, &Option<u64>)| {
        let first = first.get(at).copied().unwrap_or(Some(0));
        Some(last.as_ref()?.checked_sub(first?).unwrap_or(0) as f64 / span)
    };
    Some(last.iter().enumerate().map(rate).collect())
}

/// Returns the sum, if the rate of every partition is known.
fn sum(rates: &[Option<f64>], partitions: usize) -> Option<f64> {
    if rates.len() == partitions { rates.iter().copied().sum() } else { None }
}
