//! Samples the server in rounds of a bounded size, so that the screen does not put load on it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use millstream::admin::{PendingQuery, Range, TopicSurvey};
use millstream::crates::core::Limits;
use millstream::delay::{DelayQueue, RecurringMessages};
use millstream::{
    DeadLetter, Error, ErrorKind, GroupName, Millstream, Partition, PartitionStats, Result, Topic, TopicName,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::commands::top::model::{Detail, Focus, Order, Others, Problem, Round, TopSchedule, TopicSample};

/// Approximate number of commands after which a round starts no further topic; the next round continues with it.
const COMMANDS: u64 = 2_000;

/// Number of commands that a topic is taken to need before its first sample: one group and four partitions.
const UNKNOWN: u64 = 50;

/// Number of topics that are read together, so that a request carries many commands.
const TOGETHER: usize = 64;

/// Maximum number of delay queues, and of topics, whose schedules are read.
const OTHERS: usize = 50;

/// Maximum number of partitions whose dead letters are read in a round, and of letters of each.
const LETTER_LISTS: usize = 16;
const LETTERS: usize = 10;

/// Maximum number of pending entries and of dead letters shown for a group.
const SHOWN: usize = 100;

/// Maximum number of partitions whose dead letters are read for these.
const SHOWN_LISTS: usize = 64;

/// Interval between two queries of the server's own state.
const SERVER: Duration = Duration::from_secs(10);

/// Pause after a round, as a multiple of the duration of the round.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Samples the server in rounds.
pub(crate) struct Sampler {
    mq: Millstream,
    started: Instant,
    interval: Duration,
    /// Approximate number of commands of a round.
    commands: u64,
    /// The number of commands that a topic took in its last sample.
    costs: BTreeMap<TopicName, u64>,
    /// The last topic of the previous round.
    last: Option<TopicName>,
    /// Topics that no round has got to. Until there are none, the next round begins at once.
    unseen: BTreeSet<TopicName>,
    /// The number of dead letters of each partition when they were last read.
    dead: BTreeMap<(TopicName, GroupName, Partition), u64>,
    /// The time of the last query of the server's own state.
    server: Option<Instant>,
}

impl Sampler {
    pub(crate) fn new(mq: Millstream, interval: Duration) -> Self {
        let (costs, dead) = (BTreeMap::new(), BTreeMap::new());
        let (last, unseen, server) = (None, BTreeSet::new(), None);
        Self { mq, started: Instant::now(), interval, commands: COMMANDS, costs, last, unseen, dead, server }
    }

    /// Samples all topics in one round, for a state that is printed once.
    pub(crate) fn unlimited(self) -> Self {
        Self { commands: u64::MAX, ..self }
    }

    /// Samples in a loop until the receiver is dropped. A change of the focus is sampled immediately.
    ///
    /// Orders are executed between two rounds, and the next round follows immediately.
    pub(crate) async fn run(
        mut self,
        mut focus: watch::Receiver<Focus>,
        mut orders: mpsc::Receiver<Order>,
        rounds: mpsc::Sender<Round>,
    ) {
        loop {
            let now = focus.borrow_and_update().clone();
            let round = self.run_once(&now).await;
            let answered = !round.problems.iter().any(|problem| problem.transient);
            let at_once = answered && !self.unseen.is_empty();
            let pause = if at_once { Duration::ZERO } else { rest(self.interval, round.took) };
            let next = Instant::now() + pause;
            if rounds.send(round).await.is_err() {
                return;
            }
            loop {
                tokio::select! {
                    biased;
                    changed = focus.changed() => {
                        let now = focus.borrow_and_update().clone();
                        if changed.is_err() || rounds.send(self.look(&now).await).await.is_err() {
                            return;
                        }
                    }
                    Some(order) = orders.recv() => {
                        if let Err(problem) = self.obey(&order).await {
                            let problems = vec![problem];
                            let round = Round { at: self.started.elapsed(), problems, ..Round::default() };
                            if rounds.send(round).await.is_err() {
                                return;
                            }
                        }
                        break;
                    }
                    () = sleep_until(next) => break,
                }
            }
        }
    }

    /// Runs one round. Failed queries are recorded in it.
    pub(crate) async fn run_once(&mut self, focus: &Focus) -> Round {
        let began = Instant::now();
        let mut round = Round::default();
        if let Err(problem) = self.ask(focus, &mut round).await {
            round.problems.push(problem);
        }
        (round.at, round.took) = (self.started.elapsed(), began.elapsed());
        round
    }

    async fn obey(&self, Order { topic, group, pause }: &Order) -> Result<(), Problem> {
        let admin = self.mq.admin();
        let done = if *pause {
            admin.pause_group(topic, group).await
        } else {
            admin.resume_group(topic, group).await
        };
        let doing = format!("{} {group}", if *pause { "pause" } else { "resume" });
        // A concurrent caller has done the same.
        done.map(drop).map_err(|error| Problem {
            doing,
            topic: Some(topic.clone()),
            error: error.to_string(),
            transient: error.is_transient(),
        })
    }

    /// Samples only the focused group.
    async fn look(&self, focus: &Focus) -> Round {
        let (began, mut round) = (Instant::now(), Round::default());
        match self.detail(focus).await {
            Ok(detail) => round.detail = detail,
            Err(problem) => round.problems.push(problem),
        }
        (round.at, round.took) = (self.started.elapsed(), began.elapsed());
        round
    }

    /// Runs the queries of a round. Stops at the first one that the server does not answer, since the rest would fail
    /// too.
    async fn ask(&mut self, focus: &Focus, round: &mut Round) -> Result<(), Problem> {
        let mut names = self.mq.admin().topics().await.map_err(|error| problem("topics", None, &error))?;
        let seen = self.costs.keys().filter(|name| names.binary_search(name).is_err());
        for name in seen.cloned().collect::<Vec<_>>() {
            // Deleted, or lost from the list alone: its sample says so.
            match self.mq.admin().topic(&name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                _ => names.push(name),
            }
        }
        names.sort_unstable();
        let exists = |name: &TopicName| names.binary_search(name).is_ok();
        self.costs.retain(|name, _| exists(name));
        self.dead.retain(|(name, ..), _| exists(name));
        self.unseen = names.iter().filter(|name| !self.costs.contains_key(name)).cloned().collect();
        let focused = focus.group.as_ref().map(|(topic, _)| topic);
        let chosen = self.choose(&order(&names, focused, self.last.as_ref()), focused);
        round.names = Some(names);
        round.detail = self.detail(focus).await?;
        let mut sampled = Vec::new();
        let (admin, parts) =
            (self.mq.admin(), chosen.chunks(TOGETHER).map(<[_]>::to_vec).collect::<Vec<_>>());
        let surveys = stream::iter(parts).map(|some| {
            let admin = admin.clone();
            async move {
                let surveys = admin.surveys(&some).await;
                (some, surveys)
            }
        });
        // The next ones are asked for while these are taken in.
        let mut surveys = std::pin::pin!(surveys.buffered(2));
        while let Some((some, surveys)) = surveys.next().await {
            for (name, survey) in some.iter().zip(surveys) {
                let sample = match survey {
                    Ok(survey) => self.sample(name, survey).await,
                    Err(error) => Err(error),
                };
                let cost = match sample {
                    Ok((sample, problems)) => {
                        let cost = cost_of(&sample);
                        round.topics.push(sample);
                        round.problems.extend(problems);
                        cost
                    }
                    // The topic was deleted since the list was made.
                    Err(error) if error.kind() == ErrorKind::NotFound => 1,
                    Err(error) if error.is_transient() => {
                        return Err(problem(&format!("topic {name}"), Some(name), &error));
                    }
                    Err(error) => {
                        round.problems.push(problem(&format!("topic {name}"), Some(name), &error));
                        round.unreadable.push(name.clone());
                        1
                    }
                };
                sampled.push((name.clone(), cost));
            }
        }
        for (name, cost) in sampled {
            self.unseen.remove(&name);
            self.costs.insert(name, cost);
        }
        self.last = chosen.into_iter().rfind(|name| Some(name) != focused).or(self.last.take());
        self.letters(round).await?;
        if self.server.is_none_or(|at| at.elapsed() >= SERVER) {
            let servers = self.mq.admin().servers().await;
            round.servers = Some(servers.map_err(|error| problem("the server", None, &error))?);
            let others = self.others(&round.topics).await;
            match others {
                Ok((others, problems)) => {
                    round.others = Some(others);
                    round.problems.extend(problems);
                }
                Err(error) => round.problems.push(problem("delay queues and schedules", None, &error)),
            }
            self.server = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns the topics that a round has room for, at least one: the first ones of this order. The focused topic is part of
    /// every round, and takes no other topic's place.
    fn choose(&self, order: &[TopicName], focused: Option<&TopicName>) -> Vec<TopicName> {
        let mut sent = 0;
        let fits = |name: &&TopicName| {
            if Some(*name) == focused {
                return true;
            }
            let before = sent;
            sent += self.costs.get(*name).copied().unwrap_or(UNKNOWN);
            before == 0 || sent <= self.commands
        };
        order.iter().take_while(fits).cloned().collect()
    }

    /// Reads the newest dead letters of partitions that have more of them than before.
    async fn letters(&mut self, round: &mut Round) -> Result<(), Problem> {
        let mut lists = 0;
        for sample in &round.topics {
            for group in &sample.groups {
                for partition in group.partitions.iter().filter(|it| it.dead().is_some()).map(|it| &it.stats)
                {
                    let name = sample.topic.name.clone();
                    let key = (name, group.group.clone(), partition.partition);
                    let known = self.dead.get(&key).copied().unwrap_or(0);
                    if partition.dead > known {
                        if lists == LETTER_LISTS {
                            continue;
                        }
                        lists += 1;
                        let most =
                            usize::try_from(partition.dead - known).map_or(LETTERS, |new| new.min(LETTERS));
                        match self.newest(sample, &group.group, partition, most).await {
                            Ok(letters) => round.letters.extend(letters),
                            Err(problem) if problem.transient => return Err(problem),
                            Err(problem) => round.problems.push(problem),
                        }
                    }
                    self.dead.insert(key, partition.dead);
                }
            }
        }
        Ok(())
    }

    async fn newest(
        &self,
        sample: &TopicSample,
        group: &GroupName,
        partition: &PartitionStats,
        most: usize,
    ) -> Result<Vec<DeadLetter>, Problem> {
        let number = usize::try_from(partition.partition.0).unwrap_or(usize::MAX);
        let Some(tp) = sample.topic.iter().nth(number) else { return Ok(Vec::new()) };
        let newest = Range { newest_first: true, ..Range::ALL };
        let page = async { self.mq.backend().dead_letters()?.list(&tp, group, newest, most).await };
        Ok(page.await.map_err(|error| problem("dead letters", Some(&sample.topic.name), &error))?.items)
    }

    /// Reads the details of the focused group.
    async fn detail(&self, focus: &Focus) -> Result<Option<Detail>, Problem> {
        let Some((topic, group)) = &focus.group else { return Ok(None) };
        match self.detail_of(topic, group, focus.messages).await {
            Ok(detail) => Ok(Some(detail)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(problem(&format!("group {group}"), Some(topic), &error)),
        }
    }

    async fn detail_of(&self, topic: &TopicName, group: &GroupName, messages: bool) -> Result<Detail> {
        let admin = self.mq.admin();
        let owners = admin.owners(topic, group).await?;
        let messages = if messages {
            let query = PendingQuery { limit: SHOWN, ..PendingQuery::default() };
            let pending = admin.pending(topic, group, &query).await?;
            Some((pending, self.dead_letters(topic, group).await?))
        } else {
            None
        };
        Ok(Detail { topic: topic.clone(), group: group.clone(), owners, messages })
    }

    /// Returns the newest dead letters of all partitions.
    async fn dead_letters(&self, topic: &TopicName, group: &GroupName) -> Result<Vec<DeadLetter>> {
        let spec = self.mq.admin().topic(topic).await?;
        let newest = Range { newest_first: true, ..Range::ALL };
        let mut letters = Vec::new();
        let has = |partition| self.dead.get(&(topic.clone(), group.clone(), partition)) != Some(&0);
        for tp in spec.iter().filter(|tp| has(tp.partition)).take(SHOWN_LISTS) {
            letters.extend(self.mq.backend().dead_letters()?.list(&tp, group, newest, SHOWN).await?.items);
        }
        letters.sort_by(|a, b| b.id.cmp(&a.id).then_with(|| a.topic_partition.cmp(&b.topic_partition)));
        letters.truncate(SHOWN);
        Ok(letters)
    }

    /// Makes the sample of a topic. What cannot be read of it is unknown in the sample, and a problem.
    async fn sample(&self, name: &TopicName, survey: TopicSurvey) -> Result<(TopicSample, Vec<Problem>)> {
        let mut problems = Vec::new();
        let waiting = survey
            .delayed
            .inspect_err(|error| problems.push(problem(&format!("topic {name}"), Some(name), error)));
        if let Some(error) = &survey.unlisted {
            problems.push(problem(&format!("the groups of {name}"), Some(name), error));
        }
        let mut groups = Vec::new();
        for (group, stats) in survey.groups {
            let doing = format!("group {group} of {name}");
            match stats {
                Ok(stats) => {
                    problems.extend(stats.reasons().map(|reason| Problem {
                        doing: format!("ask for {doing}"),
                        topic: Some(name.clone()),
                        error: reason.to_owned(),
                        transient: false,
                    }));
                    groups.push(stats);
                }
                Err(error) => problems.push(problem(&doing, Some(name), &error)),
            }
        }
        let logs = match groups.first() {
            Some(group) => group.partitions.clone(),
            // No group reads the topic. The catalog returns the logs even for a group that does not exist.
            None => self.mq.backend().catalog().survey(&survey.topic, &GroupName::new("top")?).await?,
        };
        let (delayed, overdue) =
            (waiting.as_ref().ok().map(|it| it.total), waiting.ok().map(|it| it.overdue));
        let at = self.started.elapsed();
        Ok((TopicSample { at, topic: survey.topic, delayed, overdue, groups, logs }, problems))
    }

    /// Reads the delay queues, and the recurring entries of these and of some topics. What cannot be read hides nothing else.
    async fn others(&self, topics: &[TopicSample]) -> Result<(Others, Vec<Problem>)> {
        let backend = self.mq.backend();
        let mut others = Others { now: backend.schedule().now().await?, ..Others::default() };
        let (mut lists, mut problems) = (Vec::new(), Vec::new());
        let mut failed = |of: String, error: Error| match error.is_transient() {
            true => Err(error),
            false => {
                problems.push(problem(&of, None, &error));
                Ok(())
            }
        };
        let names = match backend.tasks() {
            Ok(tasks) => tasks.queues().await,
            Err(_) => Ok(Vec::new()),
        };
        let names = match names {
            Ok(names) => names,
            Err(error) => failed("the delay queues".to_owned(), error).map(|()| Vec::new())?,
        };
        for name in names.into_iter().take(OTHERS) {
            let read = async {
                let shards = backend.tasks()?.queue(&name).await?.shards;
                let queue = DelayQueue::raw(name.as_str()).shards(shards).limits(Limits::NONE);
                let queue = queue.open(backend).await?;
                Ok::<_, Error>((queue.count().await?, queue.recurring_list().await))
            };
            match read.await {
                Ok((counts, rules)) => {
                    lists.push((name.to_string(), rules));
                    others.queues.push((name, counts));
                }
                Err(error) => failed(format!("delay queue {name}"), error)?,
            }
        }
        for topic in topics.iter().take(OTHERS) {
            let codec = Topic::raw("").codec();
            let recurring =
                RecurringMessages::<bytes::Bytes>::new(backend.clone(), topic.topic.clone(), codec);
            lists.push((topic.topic.name.to_string(), recurring.list().await));
        }
        for (of, list) in lists {
            match list {
                Ok(rules) => others.schedules.extend(rules.into_iter().map(|it| TopSchedule {
                    of: of.clone(),
                    id: it.id.to_string(),
                    next: it.next,
                    paused: it.paused,
                })),
                Err(error) => failed(format!("the schedules of {of}"), error)?,
            }
        }
        others.queues.sort_by_key(|(_, counts)| Reverse((counts.waiting.overdue, counts.dead)));
        others.schedules.sort_by_key(|it| (it.next.is_none(), it.next));
        Ok((others, problems))
    }
}

fn problem(of: &str, topic: Option<&TopicName>, error: &Error) -> Problem {
    let (doing, topic) = (format!("ask for {of}"), topic.cloned());
    Problem { doing, topic, error: error.to_string(), transient: error.is_transient() }
}

/// Returns the pause after a round.
fn rest(interval: Duration, took: Duration) -> Duration {
    interval.saturating_sub(took).max((took * REST).min(LONGEST_REST))
}

/// Returns the order in which topics are sampled: the focused one, then those after the last one of the previous
/// round.
fn order(names: &[TopicName], first: Option<&TopicName>, last: Option<&TopicName>) -> Vec<TopicName> {
    let begin = last.map_or(0, |last| names.partition_point(|name| name <= last));
    let around = names[begin..].iter().chain(&names[..begin]);
    let focused = first.filter(|name| names.binary_search(name).is_ok());
    focused.into_iter().chain(around.filter(|name| Some(*name) != focused)).cloned().collect()
}

/// Returns the approximate number of commands for a topic.
fn cost_of(sample: &TopicSample) -> u64 {
    let (partitions, groups) = (u64::from(sample.topic.partitions), sample.groups.len() as u64);
    3 + partitions + groups.max(1) * (4 + 8 * partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<TopicName> {
        names.iter().map(|name| name.parse().expect("a name")).collect()
    }

    #[test]
    fn every_topic_has_its_turn_and_the_one_that_is_looked_at_is_always_first() {
        let all = names(&["a", "b", "c", "d"]);
        assert_eq!(order(&all, None, None), all);
        assert_eq!(order(&all, None, Some(&all[1])), names(&["c", "d", "a", "b"]));
        assert_eq!(order(&all, Some(&all[0]), Some(&all[1])), names(&["a", "c", "d", "b"]));
        // The last topic was deleted in the meantime.
        let gone = names(&["bb"]);
        assert_eq!(order(&all, Some(&gone[0]), Some(&gone[0])), names(&["c", "d", "a", "b"]));
        assert_eq!(order(&[], Some(&gone[0]), Some(&gone[0])), []);
    }

    #[test]
    fn the_server_rests_nine_tenths_of_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(rest(ms(1_000), ms(20)), ms(980));
        assert_eq!(rest(ms(1_000), ms(100)), ms(900));
        assert_eq!(rest(ms(1_000), ms(500)), ms(4_500));
        assert_eq!(rest(ms(1_000), Duration::from_secs(30)), LONGEST_REST);
    }
}
