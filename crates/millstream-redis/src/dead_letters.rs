//! The dead-letters role: ranges and deletes, and a script that moves letters back.

use async_trait::async_trait;
use millstream_core::dead_letters::{DeadLetter, DeadLetters};
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use redis::Pipeline;

use crate::backend::RedisBackend;
use crate::connection::Line;
use crate::{reply, script};

/// The most letters that one script call moves.
const REPLAY_CHUNK: usize = 100;
/// The most ids of one XDEL.
const PURGE_CHUNK: usize = 1_000;

#[async_trait]
impl DeadLetters for RedisBackend {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        if limit == 0 || after == MessageId::MAX {
            return Ok(Vec::new());
        }
        let key = self.inner.keys.dead_letters(topic_partition, group);
        let mut pipe = Pipeline::new();
        pipe.cmd("XRANGE").arg(key.as_str()).arg(format!("({after}")).arg("+").arg("COUNT").arg(limit);
        let answer = self.inner.pool.send(&pipe).await?.pop().unwrap_or_default();
        let entries = reply::entries(answer).map_err(|error| error.during(format_args!("list {key}")))?;
        let letters = entries.into_iter().map(|(id, fields)| {
            let fields = fields.unwrap_or_default();
            DeadLetter::from_entry(id, topic_partition.clone(), group.clone(), &fields)
        });
        Ok(letters.collect())
    }

    async fn replay(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let keys = &self.inner.keys;
        let (letters, retry_log) =
            (keys.dead_letters(topic_partition, group), keys.retry_log(topic_partition, group));
        let mut moved = 0;
        for chunk in ids.chunks(REPLAY_CHUNK) {
            let mut call = self.inner.scripts.replay.call([&letters, &retry_log]);
            for id in chunk {
                call.push(id.to_string());
            }
            moved += reply::count(script::run_one(&self.inner.pool, call).await?)?;
        }
        Ok(moved)
    }

    async fn purge(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
    ) -> Result<usize> {
        let key = self.inner.keys.dead_letters(topic_partition, group);
        let mut purged = 0;
        for chunk in ids.chunks(PURGE_CHUNK) {
            let mut pipe = Pipeline::new();
            pipe.cmd("XDEL").arg(key.as_str());
            for id in chunk {
                pipe.arg(id.to_string());
            }
            let answer = self.inner.pool.send(&pipe).await?.pop().unwrap_or_default();
            purged += reply::count(answer).map_err(|error| error.during(format_args!("purge {key}")))?;
        }
        Ok(purged)
    }
}
