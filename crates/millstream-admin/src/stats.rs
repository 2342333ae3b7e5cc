//! State of a topic: each of its groups over all partitions, and the topic as a whole.

mod rates;

use std::time::Duration;

use millstream_core::catalog::{PartitionStats, PartitionSurvey};
use millstream_core::inspect::{GroupOverview, LogState, Overview, OverviewQuery};
use millstream_core::schedule::Waiting;
use millstream_core::{
    Error, ErrorKind, GroupName, MessageId, Partition, Result, Start, Timestamp, TopicName, TopicSpec,
};

use crate::Admin;

pub use rates::{CatchUp, RateMeter, Rates};

/// Sums over partitions. A sum is `None` if its figure is unknown for a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries in the logs.
    pub length: Option<u64>,
    /// Entries that were never handed out.
    pub lag: Option<u64>,
    /// Lower bound of the lag.
    pub lag_at_least: u64,
    /// Age of the oldest message that is unread, pending or due for a retry, as far as it can be read; `None` if there is none.
    pub oldest: Option<Duration>,
    /// Age of the oldest of the messages that are parked and due next in their partitions; `None` if none is parked.
    pub oldest_parked: Option<Duration>,
    /// Entries handed out and not settled.
    pub pending: Option<u64>,
    /// Messages that wait for a retry.
    pub retrying: Option<u64>,
    /// Dead letters.
    pub dead: Option<u64>,
}

impl Totals {
    /// Returns the sums over these partitions.
    #[must_use]
    pub fn of(partitions: &[PartitionSurvey]) -> Self {
        let sum = |figure: fn(&PartitionSurvey) -> Option<u64>| partitions.iter().map(figure).sum();
        Self {
            length: sum(PartitionSurvey::length),
            lag: sum(|it| it.stats.lag),
            lag_at_least: partitions.iter().map(|it| it.stats.lag_at_least).sum(),
            oldest: partitions.iter().filter_map(|it| it.stats.oldest).max(),
            oldest_parked: partitions.iter().filter_map(|it| it.stats.oldest_parked).max(),
            pending: sum(PartitionSurvey::pending),
            retrying: sum(PartitionSurvey::retrying),
            dead: sum(PartitionSurvey::dead),
        }
    }
}

/// State of a group, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// The group.
    pub group: GroupName,
    /// State of each partition.
    pub partitions: Vec<PartitionSurvey>,
    /// Sums over all partitions.
    pub totals: Totals,
    /// Time since which the whole group is paused, by the server's clock; `None` if it is not, or that is unknown.
    pub paused: Option<Timestamp>,
    /// Number of live members; `None` if it is unknown.
    pub members: Option<usize>,
    /// Number of partitions that have an owner; `None` if it is unknown.
    pub owned: Option<usize>,
    /// Epoch of the owner of each partition, in the order of partitions; `None` for one without an owner, or with one that is
    /// unknown.
    pub epochs: Vec<Option<u64>>,
    /// Reasons why members, owners or the pause are unknown.
    pub unreadable: Vec<String>,
}

impl GroupStats {
    /// Returns the reasons of everything that is unknown because it cannot be read; none if all is known.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        let of_partitions = self.partitions.iter().flat_map(|it| &it.unreadable).map(|it| &*it.reason);
        of_partitions.chain(self.unreadable.iter().map(String::as_str))
    }

    /// Returns the number of messages that the group certainly has to handle, as `millstream_backlog` counts them, without
    /// delayed ones. Where the group is missing, its next consumer restores it and starts with the oldest entry.
    #[must_use]
    pub fn backlog_at_least(&self) -> u64 {
        let lag = |it: &PartitionStats| if it.position.is_none() { it.length } else { it.lag_at_least };
        let stats = self.partitions.iter().map(|it| &it.stats);
        stats.map(|it| lag(it) + it.pending + it.retrying).sum()
    }

    /// Returns the number of messages that the group has to handle, without delayed ones; `None` if a part of it is
    /// unknown.
    #[must_use]
    pub fn backlog(&self) -> Option<u64> {
        let Totals { lag, pending, retrying, .. } = self.totals;
        lag.and(pending).and(retrying).map(|_| self.backlog_at_least())
    }
}

/// State of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStats {
    /// Topic as stored.
    pub topic: TopicSpec,
    /// Id of the oldest entry of all partitions; `None` if there is none, or the backend cannot be inspected.
    pub first: Option<MessageId>,
    /// Id of the newest entry of all partitions; `None` as for the oldest.
    pub last: Option<MessageId>,
    /// Delayed messages that wait, due ones included.
    pub delayed: u64,
    /// Delayed messages that are due.
    pub overdue: u64,
    /// State of each group, by name.
    pub groups: Vec<GroupStats>,
}

/// State of a topic, with errors for the parts that cannot be read.
#[derive(Debug)]
pub struct TopicSurvey {
    /// Topic as stored.
    pub topic: TopicSpec,
    /// State of the log of each partition, in their order, or the error of reading it.
    pub logs: Vec<Result<LogState>>,
    /// Delayed messages that wait, or the error of reading them.
    pub delayed: Result<Waiting>,
    /// State of each group, by name, or the error of reading it. Empty if the list of groups cannot be read.
    pub groups: Vec<(GroupName, Result<GroupStats>)>,
    /// Error of reading the list of groups: the topic may have groups that are not in `groups`.
    pub unlisted: Option<Error>,
}

impl TopicSurvey {
    /// Returns the ids of the oldest and the newest entry of all logs that can be read; `None` if there is none, or the backend
    /// cannot be inspected.
    #[must_use]
    pub fn ends(&self) -> Option<(MessageId, MessageId)> {
        let logs = || self.logs.iter().filter_map(|log| log.as_ref().ok());
        Some((logs().filter_map(|log| log.first).min()?, logs().filter_map(|log| log.last).max()?))
    }
}

impl Admin {
    /// Returns the state of a topic with all of its groups. It fails if the state of one group cannot be read;
    /// [`survey`](Self::survey) returns that of the others.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; [`ErrorKind::WrongType`] that names the key; transient ones.
    pub async fn stats(&self, topic: &TopicName) -> Result<TopicStats> {
        let survey = self.survey(topic).await?;
        let (first, last) = survey.ends().unzip();
        let delayed = survey.delayed?;
        if let Some(error) = survey.unlisted {
            return Err(error);
        }
        let groups: Vec<_> = survey.groups.into_iter().map(|(_, stats)| stats).collect::<Result<_>>()?;
        if let Some(reason) = groups.iter().flat_map(GroupStats::reasons).next() {
            return Err(Error::new(ErrorKind::WrongType, reason.to_owned()).at(topic));
        }
        Ok(TopicStats {
            topic: survey.topic,
            first,
            last,
            delayed: delayed.total,
            overdue: delayed.overdue,
            groups,
        })
    }

    /// Returns the state of a topic with all of its groups, as far as it can be read: an error of one part does not
    /// prevent the others.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; errors of reading its settings; transient ones.
    pub async fn survey(&self, topic: &TopicName) -> Result<TopicSurvey> {
        let mut surveys = self.surveys(std::slice::from_ref(topic)).await;
        surveys.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "no topic was read")))
    }

    /// Returns the same of many topics, in their order: on Redis in a few requests for all of them.
    ///
    /// # Errors
    /// Of each topic its own, those of [`survey`](Self::survey).
    pub async fn surveys(&self, topics: &[TopicName]) -> Vec<Result<TopicSurvey>> {
        self.surveys_with(topics, &OverviewQuery::default().with_owners()).await
    }

    /// Returns the same, as far as a query asks for it: without [`OverviewQuery::with_owners`] owners and epochs are unknown, which
    /// saves three commands for each partition and group.
    ///
    /// # Errors
    /// Of each topic its own, those of [`survey`](Self::survey).
    pub async fn surveys_with(
        &self,
        topics: &[TopicName],
        query: &OverviewQuery,
    ) -> Vec<Result<TopicSurvey>> {
        let overviews = self.backend.overview(topics, query).await;
        overviews.into_iter().map(|overview| overview.map(survey_of)).collect()
    }

    /// Returns the state of one group of a topic as far as it can be read, also of one that exists on a log but not in the
    /// topic's list.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; transient ones. The error of reading the list of
    /// groups, if no log has the group.
    pub async fn group_stats(&self, topic: &TopicName, group: &GroupName) -> Result<GroupStats> {
        let listed = lasting(self.backend.catalog().groups(topic).await)?;
        let query = OverviewQuery::default().of(group.clone()).with_owners();
        let mut overviews = self.backend.overview(std::slice::from_ref(topic), &query).await;
        let overview = overviews.pop().transpose()?.map(|mut it| (it.groups.pop(), it.unlisted));
        let Some((Some(overview), unlisted)) = overview else {
            return Err(Error::new(ErrorKind::Protocol, "no group was read"));
        };
        let mut stats = stats_of(overview)?;
        stats.unreadable.extend(unlisted.as_ref().map(ToString::to_string));
        let is_there = stats.partitions.iter().any(|it| it.stats.position.is_some());
        match listed {
            Ok(groups) if groups.contains(group) => return Ok(stats),
            Ok(_) if is_there => {
                stats.unreadable.push(format!(
                    "group {group} is on its logs, and not in the list of {topic}: see verify"
                ));
                return Ok(stats);
            }
            Ok(_) => {}
            Err(error) if is_there => {
                stats.unreadable.push(error.to_string());
                return Ok(stats);
            }
            Err(error) => return Err(error),
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} does not exist"))
            .at(topic))
    }

    /// Counts the lag of a group where [`survey`](Self::survey) left it unknown since there was too much to count, in bounded
    /// requests: a million entries take about a second. `counted` is called with each partition that was counted. What is
    /// appended meanwhile may be included. Partitions on which the group is missing, or stands in the future, stay unknown.
    ///
    /// # Errors
    /// Those of [`Catalog::count`](millstream_core::Catalog::count).
    pub async fn count_lag(
        &self,
        topic: &TopicSpec,
        stats: &mut GroupStats,
        mut counted: impl FnMut(Partition),
    ) -> Result<()> {
        for (tp, survey) in topic.iter().zip(&mut stats.partitions) {
            let Some(position) = survey.stats.position.filter(|_| survey.stats.lag.is_none()) else {
                continue;
            };
            // At least one entry was found behind the position, or counting was never begun.
            if survey.stats.lag_at_least == 0 {
                continue;
            }
            let lag = self.backend.catalog().count(&tp, Start::After(position), None, u64::MAX).await?;
            (survey.stats.lag, survey.stats.lag_at_least) = (Some(lag), lag);
            counted(tp.partition);
        }
        stats.totals = Totals::of(&stats.partitions);
        Ok(())
    }

    /// Returns the number of delayed messages of a topic that wait.
    ///
    /// # Errors
    /// Same as [`group_stats`](Self::group_stats).
    pub async fn waiting(&self, topic: &TopicName) -> Result<Waiting> {
        self.delayed(&self.backend.catalog().topic(topic).await?).await
    }

    async fn delayed(&self, spec: &TopicSpec) -> Result<Waiting> {
        let mut sum = Waiting::default();
        for tp in spec.iter() {
            let waiting = self.backend.schedule().waiting(&tp.into()).await?;
            sum = sum.and(waiting);
        }
        Ok(sum)
    }
}

fn survey_of(overview: Overview) -> TopicSurvey {
    let delayed = overview.waiting();
    let Overview { topic, logs, groups, unlisted, .. } = overview;
    let groups = groups.into_iter().map(|group| (group.group.clone(), stats_of(group))).collect();
    TopicSurvey { topic, logs, delayed, groups, unlisted }
}

/// Returns the state of a group, or the error of reading its partitions.
fn stats_of(overview: GroupOverview) -> Result<GroupStats> {
    let GroupOverview { group, partitions, members, state, owners, .. } = overview;
    let partitions = partitions?;
    let mut unreadable = Vec::new();
    let mut known = |error: Error| unreadable.push(error.to_string());
    let members = members.map_err(&mut known).ok();
    let owners = owners.and_then(|owners| owners.map_err(&mut known).ok());
    let state = state.map_err(&mut known).ok();
    let mut owned = owners.as_ref().map(|all| all.iter().filter(|it| it.holder.is_some()).count());
    let epochs =
        owners.iter().flatten().map(|owner| owner.holder.as_ref().map(|holder| holder.epoch)).collect();
    for reason in owners.iter().flatten().filter_map(|it| it.unreadable.clone()) {
        (owned, _) = (None, unreadable.push(reason));
    }
    Ok(GroupStats {
        group,
        totals: Totals::of(&partitions),
        partitions,
        paused: state.and_then(|state| state.paused),
        members,
        owned,
        epochs,
        unreadable,
    })
}

/// Returns what was read; `None` for an error that is not transient, whose reason is recorded.
pub(crate) fn readable<T>(reasons: &mut Vec<String>, read: Result<T>) -> Result<Option<T>> {
    Ok(match lasting(read)? {
        Ok(read) => Some(read),
        Err(error) => {
            reasons.push(error.to_string());
            None
        }
    })
}

/// Separates errors: a transient one fails the whole call, any other is the result of this part only.
pub(crate) fn lasting<T>(asked: Result<T>) -> Result<Result<T>> {
    match asked {
        Err(error) if error.is_transient() => Err(error),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::catalog::Unreadable;
    use millstream_core::inspect::Structure;

    use super::*;

    #[test]
    fn a_sum_is_known_if_every_part_is() {
        let of = |lag: Option<u64>, at_least, oldest: Option<u64>| {
            let mut stats = PartitionStats::empty(Partition(0));
            (stats.lag, stats.lag_at_least, stats.length) = (lag, at_least, 10);
            stats.oldest = oldest.map(Duration::from_secs);
            PartitionSurvey::new(stats)
        };
        let known = Totals::of(&[of(Some(3), 3, Some(5)), of(Some(4), 4, None), of(Some(0), 0, Some(9))]);
        assert_eq!((known.lag, known.lag_at_least, known.length), (Some(7), 7, Some(30)));
        assert_eq!(known.oldest, Some(Duration::from_secs(9)));
        let unknown = Totals::of(&[of(Some(3), 3, None), of(None, 5, None)]);
        assert_eq!((unknown.lag, unknown.lag_at_least, unknown.oldest), (None, 8, None));
        assert_eq!(Totals::of(&[]).lag, Some(0));
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_nothing_else_is() {
        let mut damaged = PartitionSurvey::new(PartitionStats::empty(Partition(0)));
        damaged.stats.dead = 4;
        damaged.unreadable.push(Unreadable::new(Structure::Parked, "why"));
        let whole = PartitionSurvey::new(PartitionStats::empty(Partition(1)));
        let totals = Totals::of(&[damaged.clone(), whole.clone()]);
        assert_eq!((totals.retrying, totals.pending, totals.dead), (None, Some(0), Some(4)));
        let group = GroupStats {
            group: "g".parse().expect("a name"),
            partitions: vec![damaged, whole],
            totals,
            paused: None,
            members: None,
            owned: Some(0),
            unreadable: vec!["members".to_owned()],
            epochs: Vec::new(),
        };
        assert_eq!((group.backlog(), group.backlog_at_least()), (None, 0));
        assert_eq!(group.reasons().collect::<Vec<_>>(), ["why", "members"]);
    }
}
