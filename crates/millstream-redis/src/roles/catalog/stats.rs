//! Statistics of every partition for a group.

use millstream_core::catalog::{PartitionStats, PartitionSurvey, Unreadable};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::inspect::Structure;
use millstream_core::name::GroupName;
use millstream_core::topic::{TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::CHUNK;
use super::lag::{Lag, Trust};
use super::packed::Holes;
use super::snapshot::Ask;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::snapshots::look::{Look, LookRest};

impl RedisBackend {
    pub(super) async fn group_stats(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
    ) -> Result<Vec<PartitionStats>> {
        let surveyed = self.surveyed(topic, group).await?;
        surveyed.into_iter().map(|(survey, error)| error.map_or(Ok(survey.stats), Err)).collect()
    }

    pub(super) async fn group_survey(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
    ) -> Result<Vec<PartitionSurvey>> {
        Ok(self.surveyed(topic, group).await?.into_iter().map(|(survey, _)| survey).collect())
    }

    async fn surveyed(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Surveyed>> {
        let all: Vec<TopicPartition> = topic.iter().collect();
        let mut surveyed = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::new();
            pipe.cmd("INFO").arg("server");
            let trust = self.trust(self.inner.pool.send(&pipe).await?.pop());
            let groups = std::slice::from_ref(group);
            let asks: Vec<Ask<'_>> =
                chunk.iter().map(|topic_partition| Ask { topic_partition, groups }).collect();
            let standings = self.standings(&asks, "1").await?;
            let read =
                standings.into_iter().map(|mut it| (it.of_group(0, group.as_str()), it.rest.pop())).collect();
            surveyed.extend(self.surveys(chunk, group, read, trust).await?);
        }
        Ok(surveyed)
    }

    /// Returns the state of each partition as far as it can be read, with its first error of a wrong type. The snapshots have
    /// this group only.
    pub(super) async fn surveys(
        &self,
        partitions: &[TopicPartition],
        group: &GroupName,
        read: Vec<(Result<Look>, Option<LookRest>)>,
        trust: Trust,
    ) -> Result<Vec<Surveyed>> {
        let (mut there, mut looks) = (Vec::new(), Vec::new());
        for (tp, (look, _)) in partitions.iter().zip(&read) {
            if let Ok(look) = look {
                there.push(tp.clone());
                looks.push(look.clone());
            }
        }
        let lags = self.lags(&there, &mut looks, group.as_str(), trust).await?;
        let logs: Vec<_> = there.iter().zip(&looks).collect();
        let missing = self.inner.missing_from(&logs, group.as_str()).await?;
        let counted = looks.into_iter().zip(lags).zip(missing);
        let mut counted = counted.map(|((look, lag), missing)| (look, lag, missing));
        let mut surveyed = Vec::with_capacity(partitions.len());
        for (tp, (look, rest)) in partitions.iter().zip(read) {
            let log = look.and_then(|_| counted.next().ok_or_else(|| unexpected("no snapshot")));
            let rest = rest.ok_or_else(|| unexpected("nothing of the group"));
            let one = rest.and_then(|rest| partition_survey(tp, group, log, rest));
            surveyed
                .push(one.map_err(|error| error.during(format_args!("stats of {tp} for {group}")).at(tp))?);
        }
        Ok(surveyed)
    }

    /// Returns the trust in the lag of a server that gives this answer to `INFO server`.
    pub(super) fn trust(&self, info: Option<Value>) -> Trust {
        // A user without the right to run INFO gets no text, and then the server's lag is not trusted.
        let info = info.and_then(|info| reply::text(info).ok()).unwrap_or_default();
        if self.inner.config.count_lag { Trust::Never } else { Trust::of(&info) }
    }
}

/// State of a partition, with the first error of a wrong type.
pub(super) type Surveyed = (PartitionSurvey, Option<Error>);

fn partition_survey(
    tp: &TopicPartition,
    group: &GroupName,
    log: Result<(Look, Option<Lag>, Holes)>,
    rest: LookRest,
) -> Result<Surveyed> {
    let mut unreadable = UnreadStats { tp, group, all: Vec::new(), first: None };
    let was_there = rest.retry_pending.is_some();
    let retry_length = unreadable.of(Structure::RetryLog, rest.retry_length)?.unwrap_or_default();
    let retry_pending = rest.retry_pending.unwrap_or_default();
    let parked = unreadable.of(Structure::Parked, rest.parked)?.unwrap_or_default();
    let mut stats = PartitionStats::empty(tp.partition);
    (stats.lag, stats.appended) = (None, None);
    let mut counts_log = true;
    if let Some((look, lag, holes)) = unreadable.of(Structure::Log, log)? {
        counts_log = holes.length.is_some();
        // Where they are not known, it is the most that there may be.
        stats.length = look.length.with(look.more - holes.length.unwrap_or_default());
        let ever = |removed| look.length.with(removed + look.more_ever);
        stats.appended = look.removed.map(ever).or((!look.exists).then_some(0));
        let stands = look.group(group.as_str());
        if let Some(group) = stands {
            stats.position = Some(group.position);
            stats.pending = group.pending.with(group.more_pending);
            let due = rest.sleeps.filter(|(_, due)| *due <= look.now).map(|(origin, _)| origin);
            let oldest = group.oldest().into_iter().chain(rest.next_up).chain(due).min();
            let age = |id: millstream_core::MessageId| look.now.saturating_duration_since(id.timestamp());
            stats.oldest = oldest.map(age);
            stats.oldest_parked =
                rest.sleeps.filter(|(_, due)| *due > look.now).map(|(origin, _)| age(origin));
        } else if !look.exists && !was_there {
            // Nothing was ever written, and no group was created. A group is created on log and retry log: where only
            // the retry log has it, the log was deleted, and nobody knows what the group had not read.
            stats.lag = Some(0);
        }
        // Otherwise the group is missing: the position at which it will be created again is unknown.
        // In messages: a group reads a pack as a whole.
        let more = stands.map_or(0, |group| group.more_unread);
        let lag = lag.map(|lag| match lag {
            Lag::Exact(lag) if more == 0 => (Some(lag.0), lag.0),
            Lag::Exact(lag) => {
                let messages = holes.unread.map(|missing| lag.with(more - missing));
                (messages, messages.unwrap_or(lag.0))
            }
            Lag::AtLeast(lag) => (None, lag.0),
        });
        if let Some(lag) = lag {
            (stats.lag, stats.lag_at_least) = lag;
        }
        // A position in the future was not reached by reading: everything below it would be skipped, and how much of it was
        // never read is not known.
        if stands.is_some_and(|group| group.position.timestamp() > look.now) {
            stats.lag = None;
        }
    }
    stats.pending += retry_pending;
    // Entries read from the retry log are pending or deleted: the others wait to be read. (The server's lag of the
    // retry log becomes unknown as soon as an entry is deleted.)
    stats.due = retry_length.saturating_sub(retry_pending);
    stats.retrying = parked + stats.due;
    stats.dead = unreadable.of(Structure::DeadLetters, rest.dead)?.unwrap_or_default();
    let mut survey = PartitionSurvey::new(stats);
    survey.counts_log = counts_log;
    survey.unreadable = unreadable.all;
    Ok((survey, unreadable.first))
}

/// The structures of a partition that cannot be read.
struct UnreadStats<'a> {
    tp: &'a TopicPartition,
    group: &'a GroupName,
    all: Vec<Unreadable>,
    first: Option<Error>,
}

impl UnreadStats<'_> {
    /// Returns what was read; `None` for a key of a wrong type, which is recorded.
    fn of<T>(&mut self, structure: Structure, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == ErrorKind::WrongType => {
                let (tp, group) = (self.tp, self.group);
                let error = error.during(format_args!("stats of {tp} for {group}")).at(tp);
                self.all.push(Unreadable::new(structure, error.to_string()));
                self.first.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
