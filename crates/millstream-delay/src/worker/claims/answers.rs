//! Records of how long the server of each shard has answered a worker without a gap.

use std::time::Duration;

use millstream_core::{Continuity, Timestamp};
use millstream_engine::Answers;
use tokio::time::Instant;

/// One record per shard, since shards may be on different servers.
#[derive(Debug)]
pub(in crate::worker) struct ShardAnswers(Vec<Answers>);

impl ShardAnswers {
    pub(in crate::worker) fn new(shards: usize, hold: Duration) -> Self {
        Self((0..shards).map(|_| Answers::new(hold)).collect())
    }

    /// Returns the record of a shard, in the form that requests carry.
    pub(in crate::worker) fn of(&self, shard: u32, hold: Duration) -> Continuity {
        self.0.get(shard as usize).map_or_else(|| Continuity::new(hold), Answers::continuity)
    }

    /// Records an answer of a shard's server.
    pub(in crate::worker) fn answered(&self, shard: u32, asked: Instant, server: &str, now: Timestamp) {
        if let Some(answers) = self.0.get(shard as usize) {
            answers.record_answer(asked, server, now);
        }
    }
}
