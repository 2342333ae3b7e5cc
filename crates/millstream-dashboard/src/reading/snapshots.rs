//! State of topics over time, shared by all pages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use millstream::admin::{GroupStats, RateMeter, Rates, TopicSurvey};
use millstream::crates::core::catalog::PartitionSurvey;
use millstream::crates::core::inspect::OverviewQuery;
use millstream::crates::core::recurring::MAX_DUE;
use millstream::crates::core::schedule::{Place, Waiting};
use millstream::{Error, ErrorKind, GroupName, Millstream, Timestamp, TopicName, TopicSpec};
use tokio::time::Instant;

use super::health;
use crate::audit::Audit;
use crate::audit::pauses::Pauser;

/// Number of readings that are kept for sparklines: two minutes at one every two seconds.
const READINGS: usize = 60;
/// Commands of a request, whatever it is about: what identifies the server, before and after.
const OF_REQUEST: u64 = 5;
/// Commands for a topic, for a group, and for the owner of a partition.
const OF_TOPIC: u64 = 2;
const OF_GROUP: u64 = 3;
pub(crate) const OF_OWNER: u64 = 3;
/// Number of readings of which one has the recurring rules, and of partitions up to which they are read.
const RULES_EVERY: u64 = 15;
const RULES_OF: u32 = 64;
/// Commands up to which each reading has owners: they are most of the cost of a topic with many partitions.
const CHEAP: u64 = 50;
/// For other topics, number of readings of which one has owners.
const OWNERS_EVERY: u64 = 8;

/// A group at one time.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) stats: GroupStats,
    pub(crate) rates: Rates,
    /// Messages per second that newly wait for a retry or died; those that came back meanwhile count against it.
    pub(crate) failing: Option<f64>,
    /// Whether its oldest message waits for longer than it may.
    pub(crate) late: bool,
    /// Who has paused it, if it is paused.
    pub(crate) pauser: Pauser,
}

/// A reading for the sparklines of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) backlog: Option<f64>,
    pub(crate) consumed: Option<f64>,
    pub(crate) produced: Option<f64>,
}

/// A topic at one time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) topic: TopicSpec,
    /// State of the logs, one for each partition.
    pub(crate) logs: Vec<PartitionSurvey>,
    pub(crate) delayed: Option<Waiting>,
    pub(crate) groups: BTreeMap<GroupName, Group>,
    /// Reasons of what cannot be read.
    pub(crate) unreadable: Vec<String>,
    /// Number of recurring rules that should have fired, and how late the first one is.
    pub(crate) late_rules: (u64, Duration),
    /// Reason why the rules cannot be read.
    unread_rules: Option<String>,
    /// Number of readings until the rules are read again.
    rules_in: u64,
    /// Time of the reading, by the clock of this process.
    pub(crate) at: Timestamp,
    history: BTreeMap<GroupName, VecDeque<Reading>>,
    /// Its share of the commands that are sent once for all topics of a request.
    shared: u64,
    /// Number of readings until owners are read again.
    owners_in: u64,
}

impl Snapshot {
    /// Returns the number of commands that a reading like this costs. Owners are spread over the readings that go without them.
    pub(crate) fn commands(&self) -> u64 {
        let every =
            if self.owners_in > 0 || self.of_state() + self.of_owners() > CHEAP { OWNERS_EVERY } else { 1 };
        self.of_state() + self.of_owners().div_ceil(every)
    }

    fn of_state(&self) -> u64 {
        let (partitions, groups) = (u64::from(self.topic.partitions), self.groups.len() as u64);
        // A call of a partition has up to 100 groups. Where there is no group, the logs are read by themselves.
        let calls = if groups == 0 { 2 } else { groups.div_ceil(100) };
        self.shared + OF_TOPIC + partitions * calls + OF_GROUP * groups
    }

    fn of_owners(&self) -> u64 {
        OF_OWNER * u64::from(self.topic.partitions) * self.groups.len() as u64
    }

    /// Returns the readings of a group, oldest first.
    pub(crate) fn history(&self, group: &GroupName, figure: fn(&Reading) -> Option<f64>) -> Vec<Option<f64>> {
        self.history.get(group).into_iter().flatten().map(figure).collect()
    }

    /// Returns the number of entries in the logs.
    pub(crate) fn length(&self) -> Option<u64> {
        self.logs.iter().map(PartitionSurvey::length).sum()
    }

    /// Returns the rate at which messages are appended, by the group that knows it.
    pub(crate) fn produced(&self) -> Option<f64> {
        self.groups.values().find_map(|group| group.rates.produced)
    }
}

/// Reads topics.
#[derive(Debug)]
pub(crate) struct Snapshots {
    mq: Millstream,
    audit: Arc<Audit>,
    /// Age of the oldest message from which on a group is late.
    late_after: Duration,
    started: Instant,
    meter: Mutex<RateMeter>,
}

/// Returns how many messages per second newly wait for a retry or died since a reading.
fn failing(at: Timestamp, before: &GroupStats, now: &GroupStats) -> Option<f64> {
    let failed = |it: &GroupStats| Some(it.totals.dead? + it.totals.retrying?);
    let time =
        Timestamp::from(SystemTime::now()).as_millis().checked_sub(at.as_millis()).filter(|ms| *ms > 0)?;
    Some(failed(now)?.saturating_sub(failed(before)?) as f64 * 1_000.0 / time as f64)
}

/// A topic to read, with the reading before.
type Asked = (TopicName, Option<Arc<Snapshot>>);

impl Snapshots {
    pub(crate) fn new(mq: &Millstream, audit: &Arc<Audit>, late_after: Duration) -> Self {
        let meter = Mutex::default();
        Self { mq: mq.clone(), audit: audit.clone(), late_after, started: Instant::now(), meter }
    }

    /// Reads topics together. What cannot be read of one is unknown in its result.
    ///
    /// # Errors
    /// Of each topic its own, those of `Admin::survey`.
    pub(crate) async fn read(&self, asked: Vec<Asked>) -> Vec<Result<Snapshot, Error>> {
        let without = OverviewQuery::default();
        let with = without.clone().with_owners();
        let needs_owners = |(_, last): &Asked| last.as_ref().is_none_or(|last| last.owners_in == 0);
        let mut read: Vec<Option<Result<Snapshot, Error>>> = asked.iter().map(|_| None).collect();
        for (query, owners) in [(without, false), (with, true)] {
            let at: Vec<usize> = (0..asked.len()).filter(|at| needs_owners(&asked[*at]) == owners).collect();
            let names: Vec<TopicName> = at.iter().map(|at| asked[*at].0.clone()).collect();
            if names.is_empty() {
                continue;
            }
            let shared = OF_REQUEST.div_ceil(names.len() as u64);
            for (at, survey) in at.into_iter().zip(self.mq.admin().surveys_with(&names, &query).await) {
                let snapshot = match survey {
                    Ok(survey) => self.snapshot(survey, asked[at].1.as_deref(), owners, shared).await,
                    Err(error) => Err(error),
                };
                read[at] = Some(snapshot);
            }
        }
        let lost = || Err(Error::new(ErrorKind::Protocol, "a topic was not read"));
        read.into_iter().map(|read| read.unwrap_or_else(lost)).collect()
    }

    async fn snapshot(
        &self,
        survey: TopicSurvey,
        last: Option<&Snapshot>,
        owners: bool,
        shared: u64,
    ) -> Result<Snapshot, Error> {
        let mut unreadable: Vec<String> = Vec::new();
        let delayed = survey.delayed.inspect_err(|error| unreadable.push(error.to_string())).ok();
        unreadable.extend(survey.unlisted.iter().map(ToString::to_string));
        let (mut groups, mut history) = (BTreeMap::new(), BTreeMap::new());
        for (name, stats) in survey.groups {
            match stats {
                Ok(mut stats) => {
                    if !owners && let Some(before) = last.and_then(|last| last.groups.get(&name)) {
                        (stats.owned, stats.epochs) = (before.stats.owned, before.stats.epochs.clone());
                    }
                    unreadable.extend(stats.reasons().map(str::to_owned));
                    let at = self.started.elapsed();
                    let rates = {
                        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
                        meter.record(&survey.topic.name, &stats, at)
                    };
                    let before = last.and_then(|last| last.history.get(&name));
                    let mut readings: VecDeque<Reading> = before.cloned().unwrap_or_default();
                    readings.push_back(Reading {
                        backlog: stats.backlog().map(|it| it as f64),
                        consumed: rates.consumed,
                        produced: rates.produced,
                    });
                    if readings.len() > READINGS {
                        readings.pop_front();
                    }
                    history.insert(name.clone(), readings);
                    let before = last.and_then(|last| Some((last.at, last.groups.get(&name)?)));
                    let failing = before.and_then(|(at, group)| failing(at, &group.stats, &stats));
                    let pauser = self.pauser(&survey.topic.name, &stats, before.map(|it| it.1)).await;
                    let late = stats.totals.oldest.is_some_and(|age| age > self.late_after);
                    groups.insert(name, Group { stats, rates, failing, late, pauser });
                }
                Err(error) => unreadable.push(error.to_string()),
            }
        }
        let logs = match groups.values().next() {
            Some(group) => group.stats.partitions.clone(),
            // The catalog returns the logs even for a group that does not exist.
            None => self.mq.backend().catalog().survey(&survey.topic, &GroupName::new("dashboard")?).await?,
        };
        unreadable.sort_unstable();
        unreadable.dedup();
        let at = Timestamp::from(SystemTime::now());
        let (late_rules, unread_rules, rules_in) = match last {
            Some(last) if last.rules_in > 0 => {
                (last.late_rules, last.unread_rules.clone(), last.rules_in - 1)
            }
            _ => {
                let (late, unread) = self.late_rules(&survey.topic, at).await;
                (late, unread, RULES_EVERY)
            }
        };
        unreadable.extend(unread_rules.clone());
        let mut snapshot = Snapshot {
            topic: survey.topic,
            late_rules,
            unread_rules,
            rules_in,
            at,
            logs,
            delayed,
            groups,
            unreadable,
            history,
            shared,
            owners_in: 0,
        };
        if !owners {
            snapshot.owners_in = last.map_or(0, |last| last.owners_in.saturating_sub(1));
        } else if snapshot.of_state() + snapshot.of_owners() > CHEAP {
            snapshot.owners_in = OWNERS_EVERY - 1;
        }
        Ok(snapshot)
    }

    /// Returns how many rules of a topic should have fired by this time, and how late the first one is; or why that is not known.
    async fn late_rules(&self, topic: &TopicSpec, at: Timestamp) -> ((u64, Duration), Option<String>) {
        let nothing = (0, Duration::ZERO);
        let Ok(recurring) = self.mq.backend().recurring() else { return (nothing, None) };
        if topic.partitions > RULES_OF {
            return (nothing, None);
        }
        let places: Vec<_> = topic.iter().map(Place::from).collect();
        let lists = join_all(places.iter().map(|place| recurring.recurrences(place, None, MAX_DUE))).await;
        match lists.into_iter().collect::<Result<Vec<_>, Error>>() {
            Ok(lists) => {
                let next =
                    lists.into_iter().flatten().filter(|rule| !rule.paused).filter_map(|rule| rule.next);
                (health::late(next, at), None)
            }
            Err(error) if error.is_transient() => (nothing, None),
            Err(error) => (nothing, Some(error.to_string())),
        }
    }

    /// Returns who has paused a group. That is read once for each pause.
    async fn pauser(&self, topic: &TopicName, stats: &GroupStats, last: Option<&Group>) -> Pauser {
        let Some(at) = stats.paused else { return Pauser::Unread };
        match last.filter(|last| last.stats.paused == Some(at)).map(|last| &last.pauser) {
            None | Some(Pauser::Unread) => self.audit.pauser(topic, &stats.group, at).await,
            Some(known) => known.clone(),
        }
    }

    /// Forgets rates of groups that nobody has looked at for this time.
    pub(crate) fn forget(&self, unused: std::time::Duration) {
        let before = self.started.elapsed().saturating_sub(unused);
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).forget_before(before);
    }
}
