//! What is known, made of rounds: rates out of two looks, and what is to be shown. Pure: time comes with the rounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use millstream::admin::{Server, Totals};
use millstream::{DeadLetter, GroupName, MessageId, PartitionStats, TopicName, TopicSpec};

use super::round::{Detail, Problem, Round, TopicSample};
use crate::commands::view::backlog;

/// Rates are over so long, or over two rounds if these are further apart.
const WINDOW: Duration = Duration::from_secs(5);

/// How many dead letters and problems are kept for the list of errors.
const LETTERS: usize = 50;
const PROBLEMS: usize = 20;

/// How many rates are kept for the curve.
const CURVE: usize = 120;

/// Everything that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    topics: BTreeMap<TopicName, History>,
    /// How many topics there are, asked or not.
    pub(crate) known: usize,
    pub(crate) detail: Option<Detail>,
    pub(crate) server: Option<Server>,
    /// Dead letters, newest first.
    pub(crate) letters: VecDeque<DeadLetter>,
    /// What could not be asked, newest first.
    pub(crate) problems: VecDeque<Seen>,
    /// Messages produced and handled per second over all topics, one for each round, oldest first.
    pub(crate) curve: VecDeque<(f64, f64)>,
    /// When something was answered last, and whether the last round was answered in full.
    pub(crate) answered: Option<Duration>,
    pub(crate) failing: bool,
    pub(crate) took: Duration,
}

/// A problem, with when it was met first and last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) problem: Problem,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) times: u64,
}

/// A topic: its last sample, and the counts before it, newest last.
#[derive(Clone, Debug)]
struct History {
    last: TopicSample,
    counts: VecDeque<Counts>,
}

/// Counts that only grow, by partition: their differences are rates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counts {
    at: Duration,
    appended: Vec<Option<u64>>,
    /// What each group is done with.
    done: BTreeMap<GroupName, Vec<Option<u64>>>,
}

/// A topic as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct TopicView<'a> {
    pub(crate) topic: &'a TopicSpec,
    /// How old this is.
    pub(crate) at: Duration,
    pub(crate) entries: u64,
    /// Messages per second that came.
    pub(crate) produced: Option<f64>,
    pub(crate) delayed: u64,
    pub(crate) overdue: u64,
    pub(crate) groups: Vec<GroupView<'a>>,
    pub(crate) logs: Vec<PartitionView<'a>>,
}

/// A group of it.
#[derive(Clone, Debug)]
pub(crate) struct GroupView<'a> {
    pub(crate) group: &'a GroupName,
    pub(crate) totals: &'a Totals,
    /// All that it has to do, now or later, as far as that is certain.
    pub(crate) backlog: u64,
    /// Messages per second that it was done with.
    pub(crate) consumed: Option<f64>,
    /// Whether nobody of it is to handle anything, until somebody lets them go on.
    pub(crate) paused: bool,
    pub(crate) members: usize,
    pub(crate) owned: usize,
    pub(crate) partitions: Vec<PartitionView<'a>>,
}

/// A partition, of a group or by itself.
#[derive(Clone, Debug)]
pub(crate) struct PartitionView<'a> {
    pub(crate) stats: &'a PartitionStats,
    pub(crate) produced: Option<f64>,
    pub(crate) consumed: Option<f64>,
}

impl Model {
    /// Takes what a round found.
    pub(crate) fn take(&mut self, round: Round) {
        if let Some(names) = &round.names {
            self.known = names.len();
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
        self.letters(round.letters);
        self.server = round.server.or_else(|| self.server.take());
        self.detail = match round.detail {
            // What was asked before for the same group is better than nothing.
            Some(mut detail) => {
                let before =
                    self.detail.take().filter(|it| (&it.topic, &it.group) == (&detail.topic, &detail.group));
                detail.messages = detail.messages.or_else(|| before?.messages);
                Some(detail)
            }
            None => self.detail.take(),
        };
        if asked {
            let rates = self.topics().fold((0.0, 0.0), |sum, topic| {
                let consumed: f64 = topic.groups.iter().filter_map(|group| group.consumed).sum();
                (sum.0 + topic.produced.unwrap_or(0.0), sum.1 + consumed)
            });
            self.curve.push_back(rates);
            self.curve.drain(..self.curve.len().saturating_sub(CURVE));
        }
    }

    /// All topics that have been asked, by name.
    pub(crate) fn topics(&self) -> impl Iterator<Item = TopicView<'_>> {
        self.topics.values().map(History::view)
    }

    /// One of them.
    pub(crate) fn topic(&self, name: &TopicName) -> Option<TopicView<'_>> {
        self.topics.get(name).map(History::view)
    }

    /// What is known of a group beyond its row, if that was asked.
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
        let name = sample.stats.topic.name.clone();
        let mut counts = self.topics.remove(&name).map(|known| known.counts).unwrap_or_default();
        counts.push_back(Counts::of(&sample));
        // The newest that is old enough stays as the one to compare with.
        while counts.get(1).is_some_and(|second| sample.at.saturating_sub(second.at) >= WINDOW) {
            counts.pop_front();
        }
        // What was replayed or purged is not an error any more.
        for group in &sample.stats.groups {
            let empty = |letter: &DeadLetter| {
                let of = &letter.topic_partition;
                let here = of.topic == name && letter.group == group.group;
                here && group.partitions.iter().any(|it| it.partition == of.partition && it.dead == 0)
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

impl Counts {
    fn of(sample: &TopicSample) -> Self {
        let appended = sample.logs.iter().map(|log| log.appended).collect();
        let groups = sample.stats.groups.iter();
        let done = groups.map(|group| (group.group.clone(), group.partitions.iter().map(done).collect()));
        Self { at: sample.at, appended, done: done.collect() }
    }
}

/// How many messages a group is done with, ever: handled or dead. What waits for a retry is not done.
fn done(stats: &PartitionStats) -> Option<u64> {
    let left = stats.lag?.checked_add(stats.pending)?.checked_add(stats.retrying)?;
    Some(stats.appended?.saturating_sub(left))
}

impl History {
    fn view(&self) -> TopicView<'_> {
        let (stats, logs) = (&self.last.stats, &self.last.logs);
        let first = self.counts.front().filter(|_| self.counts.len() > 1);
        let last = self.counts.back();
        let span = first.zip(last).map(|(first, last)| (last.at.saturating_sub(first.at)).as_secs_f64());
        let rate =
            |counts: fn(&Counts) -> Option<&Vec<Option<u64>>>| rates(counts(first?)?, counts(last?)?, span?);
        let produced = rate(|counts| Some(&counts.appended)).unwrap_or_default();
        let groups = stats.groups.iter().map(|group| {
            let of = |counts: Option<&'_ Counts>| counts.and_then(|it| it.done.get(&group.group).cloned());
            let consumed = of(first).zip(of(last)).zip(span);
            let consumed =
                consumed.and_then(|((first, last), span)| rates(&first, &last, span)).unwrap_or_default();
            GroupView {
                group: &group.group,
                totals: &group.totals,
                backlog: backlog(&group.partitions) + stats.overdue,
                consumed: sum(&consumed, group.partitions.len()),
                paused: group.paused.is_some(),
                members: group.members,
                owned: group.owned,
                partitions: views(&group.partitions, &produced, &consumed),
            }
        });
        TopicView {
            topic: &stats.topic,
            at: self.last.at,
            entries: logs.iter().map(|log| log.length).sum(),
            produced: sum(&produced, logs.len()),
            delayed: stats.delayed,
            overdue: stats.overdue,
            groups: groups.collect(),
            logs: views(logs, &produced, &[]),
        }
    }
}

fn views<'a>(
    partitions: &'a [PartitionStats],
    produced: &[Option<f64>],
    consumed: &[Option<f64>],
) -> Vec<PartitionView<'a>> {
    let of = |rates: &[Option<f64>], at: usize| rates.get(at).copied().flatten();
    let view = |(at, stats)| PartitionView { stats, produced: of(produced, at), consumed: of(consumed, at) };
    partitions.iter().enumerate().map(view).collect()
}

/// The rates of partitions, where both counts are known. A count that fell began anew. A partition that is new had
/// nothing before.
fn rates(first: &[Option<u64>], last: &[Option<u64>], span: f64) -> Option<Vec<Option<f64>>> {
    if span <= 0.0 {
        return None;
    }
    let rate = |(at, last): (usize, &Option<u64>)| {
        let first = first.get(at).copied().unwrap_or(Some(0));
        Some(last.as_ref()?.checked_sub(first?).unwrap_or(0) as f64 / span)
    };
    Some(last.iter().enumerate().map(rate).collect())
}

/// The sum, if it is known of all partitions.
fn sum(rates: &[Option<f64>], partitions: usize) -> Option<f64> {
    if rates.len() == partitions { rates.iter().copied().sum() } else { None }
}
