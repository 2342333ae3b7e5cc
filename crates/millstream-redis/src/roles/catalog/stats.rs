//! Statistics of every partition for a group.

use millstream_core::catalog::PartitionStats;
use millstream_core::error::Result;
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
        let all: Vec<TopicPartition> = topic.iter().collect();
        let mut stats = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let (trust, beside) = self.beside(chunk, group).await?;
            let mut looks = self.look_and_ask_who(chunk).await?;
            let lags = self.lags(chunk, &mut looks, group.as_str(), trust).await?;
            for (((tp, look), lag), beside) in chunk.iter().zip(&looks).zip(lags).zip(beside) {
                let one = partition_stats(tp, group, look, lag, beside);
                stats.push(
                    one.map_err(|error| error.during(format_args!("stats of {tp} for {group}")).at(tp))?,
                );
            }
        }
        Ok(stats)
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

fn partition_stats(
    tp: &TopicPartition,
    group: &GroupName,
    look: &Look,
    lag: Option<Lag>,
    beside: Vec<Value>,
) -> Result<PartitionStats> {
    let [retry_length, retry_log, parked, dead] = reply::tuple(Value::Array(beside))?;
    let number = |value: Value| -> Result<u64> { Ok(u64::try_from(reply::int(value)?).unwrap_or(0)) };
    let retry_log = reply::group(retry_log, group.as_str())?.unwrap_or_default();
    let mut stats = PartitionStats::empty(tp.partition);
    stats.length = look.length;
    stats.appended = look.removed.map(|removed| look.length + removed).or((!look.exists).then_some(0));
    if let Some(group) = look.group(group.as_str()) {
        stats.position = Some(group.position);
        stats.pending = group.pending + retry_log.pending;
        stats.oldest = group.oldest().map(|id| look.now.saturating_duration_since(id.timestamp()));
    } else if look.exists {
        // The position at which the group will be created again is unknown.
        stats.lag = None;
    }
    match lag {
        Some(Lag::Exact(lag)) => (stats.lag, stats.lag_at_least) = (Some(lag), lag),
        Some(Lag::AtLeast(lag)) => (stats.lag, stats.lag_at_least) = (None, lag),
        None => {}
    }
    // Entries read from the retry log are pending or deleted: the others wait to be read. (The server's lag of the
    // retry log becomes unknown as soon as an entry is deleted.)
    stats.due = number(retry_length)?.saturating_sub(retry_log.pending);
    stats.retrying = number(parked)? + stats.due;
    stats.dead = number(dead)?;
    Ok(stats)
}
