//! Statistics of every partition for a group.

use millstream_core::catalog::{PartitionStats, PartitionSurvey, Unreadable};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::inspect::Structure;
use millstream_core::name::GroupName;
use millstream_core::topic::{TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::CHUNK;
use super::lag::{Lag, Trust};
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::snapshots::look::Look;

/// Number of commands per partition for data other than the log.
const BESIDE: usize = 4;

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

    /// Returns the state of each partition as far as it can be read, with its first error of a wrong type.
    async fn surveyed(
        &self,
        topic: &TopicSpec,
        group: &GroupName,
    ) -> Result<Vec<(PartitionSurvey, Option<Error>)>> {
        let all: Vec<TopicPartition> = topic.iter().collect();
        let mut surveyed = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let (trust, beside) = self.beside(chunk, group).await?;
            let (mut there, mut looks, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
            for (tp, look) in chunk.iter().zip(self.look_at_each(chunk).await?) {
                match look {
                    Ok(look) => {
                        there.push(tp.clone());
                        looks.push(look);
                        wrong.push(None);
                    }
                    Err(error) => wrong.push(Some(error)),
                }
            }
            let lags = self.lags(&there, &mut looks, group.as_str(), trust).await?;
            let mut read = looks.into_iter().zip(lags);
            for ((tp, wrong), beside) in chunk.iter().zip(wrong).zip(beside) {
                let log = match wrong {
                    Some(error) => Err(error),
                    None => read.next().map_or_else(|| Ok((Look::default(), None)), Ok),
                };
                let one = partition_survey(tp, group, log, beside);
                surveyed.push(
                    one.map_err(|error| error.during(format_args!("stats of {tp} for {group}")).at(tp))?,
                );
            }
        }
        Ok(surveyed)
    }

    /// Reads the trust in the server's lag, and the replies on everything of the group that is not in the logs.
    async fn beside(
        &self,
        partitions: &[TopicPartition],
        group: &GroupName,
    ) -> Result<(Trust, Vec<Vec<Value>>)> {
        let keys = &self.inner.keys;
        let mut pipe = Pipeline::with_capacity(1 + BESIDE * partitions.len());
        pipe.cmd("INFO").arg("server");
        for tp in partitions {
            let retry_log = keys.retry_log(tp, group);
            pipe.cmd("XLEN").arg(retry_log.as_str());
            pipe.cmd("XINFO").arg("GROUPS").arg(retry_log.as_str());
            pipe.cmd("ZCARD").arg(keys.retry_due(tp, group).as_str());
            pipe.cmd("XLEN").arg(keys.dead_letters(tp, group).as_str());
        }
        let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
        // A user without the right to run INFO gets no text, and then the server's lag is not trusted.
        let info = answers.next().and_then(|info| reply::text(info).ok()).unwrap_or_default();
        let trust = if self.inner.config.count_lag { Trust::Never } else { Trust::of(&info) };
        let beside = partitions.iter().map(|_| answers.by_ref().take(BESIDE).collect());
        Ok((trust, beside.collect()))
    }
}

fn partition_survey(
    tp: &TopicPartition,
    group: &GroupName,
    log: Result<(Look, Option<Lag>)>,
    beside: Vec<Value>,
) -> Result<(PartitionSurvey, Option<Error>)> {
    let [retry_length, retry_log, parked, dead] = reply::tuple(Value::Array(beside))?;
    let mut unreadable = Unread { tp, group, all: Vec::new(), first: None };
    let (length, retry_info) = (number(retry_length), reply::group(retry_log, group.as_str()));
    let retry = length.and_then(|length| Ok((length, retry_info?)));
    let (retry_length, retry_log) = unreadable.of(Structure::RetryLog, retry)?.unwrap_or_default();
    let parked = unreadable.of(Structure::Parked, number(parked))?.unwrap_or_default();
    let was_there = retry_log.is_some();
    let retry_log = retry_log.unwrap_or_default();
    let mut stats = PartitionStats::empty(tp.partition);
    (stats.lag, stats.appended) = (None, None);
    if let Some((look, lag)) = unreadable.of(Structure::Log, log)? {
        stats.length = look.length;
        stats.appended = look.removed.map(|removed| look.length + removed).or((!look.exists).then_some(0));
        let stands = look.group(group.as_str());
        if let Some(group) = stands {
            stats.position = Some(group.position);
            stats.pending = group.pending;
            stats.oldest = group.oldest().map(|id| look.now.saturating_duration_since(id.timestamp()));
        } else if !look.exists && !was_there {
            // Nothing was ever written, and no group was created. A group is created on log and retry log: where only
            // the retry log has it, the log was deleted, and nobody knows what the group had not read.
            stats.lag = Some(0);
        }
        // Otherwise the group is missing: the position at which it will be created again is unknown.
        match lag {
            Some(Lag::Exact(lag)) => (stats.lag, stats.lag_at_least) = (Some(lag), lag),
            Some(Lag::AtLeast(lag)) => (stats.lag, stats.lag_at_least) = (None, lag),
            None => {}
        }
        // A position in the future was not reached by reading: everything below it would be skipped, and how much of it was
        // never read is not known.
        if stands.is_some_and(|group| group.position.timestamp() > look.now) {
            stats.lag = None;
        }
    }
    stats.pending += retry_log.pending;
    // Entries read from the retry log are pending or deleted: the others wait to be read. (The server's lag of the
    // retry log becomes unknown as soon as an entry is deleted.)
    stats.due = retry_length.saturating_sub(retry_log.pending);
    stats.retrying = parked + stats.due;
    stats.dead = unreadable.of(Structure::DeadLetters, number(dead))?.unwrap_or_default();
    let mut survey = PartitionSurvey::new(stats);
    survey.unreadable = unreadable.all;
    Ok((survey, unreadable.first))
}

fn number(value: Value) -> Result<u64> {
    Ok(u64::try_from(reply::int(value)?).unwrap_or(0))
}

/// The structures of a partition that cannot be read.
struct Unread<'a> {
    tp: &'a TopicPartition,
    group: &'a GroupName,
    all: Vec<Unreadable>,
    first: Option<Error>,
}

impl Unread<'_> {
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
