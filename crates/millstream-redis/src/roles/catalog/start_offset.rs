//! Start offset of a group: never beyond the end of a log, or the group would skip later entries.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::topic::TopicPartition;
use redis::Pipeline;

use super::groups::newest_id;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;

/// Maximum number of ends read at once: each reply includes the first and the last body of its log.
const CHUNK: usize = 20;

impl RedisBackend {
    /// Returns the position on each of these partitions, or the end of its log where that is lower. Entries appended
    /// after this check are above that end, so nothing is skipped.
    pub(super) async fn positions(&self, all: &[TopicPartition], position: &str) -> Result<Vec<String>> {
        // The beginning and the end need no check.
        let Some(wanted) = position.parse::<MessageId>().ok().filter(|id| *id > MessageId::ZERO) else {
            return Ok(vec![position.to_owned(); all.len()]);
        };
        let mut positions = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let logs: Vec<Key> = chunk.iter().map(|tp| self.inner.keys.log(tp)).collect();
            let mut pipe = Pipeline::with_capacity(logs.len());
            for log in &logs {
                pipe.cmd("XINFO").arg("STREAM").arg(log.as_str());
            }
            for (info, log) in self.inner.pool.send(&pipe).await?.into_iter().zip(&logs) {
                let end = newest_id(info).map_err(|error| error.during(format_args!("the end of {log}")))?;
                positions.push(wanted.min(end).to_string());
            }
        }
        Ok(positions)
    }
}
