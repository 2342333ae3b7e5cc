//! Takeover without Millstream: `XAUTOCLAIM` every 50 ms of entries that have been idle for the ttl of a lease.

use std::time::{Duration, Instant};

use anyhow::Result;
use redis::{Value, cmd};

use super::reply::entry_ids;
use super::{CONSUMER, GROUP, connect, create_group, fill, keys};
use crate::args::{Spread, Takeover};
use crate::measure::{Measured, Stage};
use crate::pacer::Clock;

/// One consumer reads an entry per partition and then stops; another one claims the entries.
pub(crate) async fn takeover(stage: &Stage, of: &Takeover) -> Result<Measured> {
    let spread = Spread { partitions: of.partitions, keys: 0, packed: None };
    fill(stage, of.partitions.into(), spread).await?;
    let mut connection = connect(&stage.url).await?;
    let mut waiting = keys(&stage.namespace, of.partitions);
    for key in &waiting {
        create_group(&mut connection, key, GROUP).await?;
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("STREAMS").arg(key).arg(">");
        read.exec_async(&mut connection).await?;
    }
    let meter = stage.meter().await?;
    let (died, mut latency) = (Instant::now(), Clock::histogram()?);
    while !waiting.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut left = Vec::new();
        for key in waiting {
            let mut claim = cmd("XAUTOCLAIM");
            claim.arg(&key).arg(GROUP).arg("successor").arg(of.lease).arg("0");
            let reply: Value = claim.query_async(&mut connection).await?;
            let Value::Array(parts) = &reply else { anyhow::bail!("XAUTOCLAIM answered {reply:?}") };
            let Some(Value::Array(entries)) = parts.get(1) else {
                anyhow::bail!("XAUTOCLAIM answered {reply:?}")
            };
            let ids = entry_ids(entries);
            if ids.is_empty() {
                left.push(key);
                continue;
            }
            latency.record(Clock::nanos(died.elapsed()))?;
            cmd("XACK").arg(&key).arg(GROUP).arg(ids).exec_async(&mut connection).await?;
        }
        waiting = left;
    }
    Ok(meter.stop(of.partitions.into()).await?.with_latency(&latency))
}
