//! The schedule role: one script moves what is due.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::leases::Lease;
use millstream_core::schedule::{MAX_PROMOTE, Promoted, Schedule};

use crate::backend::RedisBackend;
use crate::leases::fenced;
use crate::{reply, script};

#[async_trait]
impl Schedule for RedisBackend {
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        let (tp, group) = lease.partition()?;
        let inner = &self.inner;
        let keys = &inner.keys;
        let call = inner
            .scripts
            .promote
            .call([
                &keys.fence(tp, group),
                &keys.retry_due(tp, group),
                &keys.retry_items(tp, group),
                &keys.retry_log(tp, group),
                &keys.dead_letters(tp, group),
            ])
            .arg(lease.token.as_str())
            .arg(limit.min(MAX_PROMOTE))
            .arg(tp.topic.as_str())
            .arg(tp.partition.0)
            .arg(group.as_str());
        let answer = script::run_one(&inner.messages, call).await.map_err(|error| fenced(error, lease))?;
        let [moved, orphans, next_ms] = reply::tuple(answer)?;
        let next_ms = reply::int(next_ms)?;
        Ok(Promoted {
            moved: reply::count(moved)?,
            orphans: reply::count(orphans)?,
            next: u64::try_from(next_ms).ok().map(Duration::from_millis),
        })
    }
}
