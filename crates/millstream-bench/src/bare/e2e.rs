//! From `XADD` to a blocked `XREADGROUP`, at a fixed rate, independent of the replies.

use std::sync::Arc;

use anyhow::Result;
use redis::{Value, cmd};

use super::reply::{ids, payloads};
use super::{CONSUMER, GROUP, connect, create_group, keys};
use crate::args::E2e;
use crate::measure::{Measured, Stage};
use crate::pacer::{Clock, Pacer};

/// Runs one blocked reader per partition, which acknowledges each batch, and one writer for all.
pub(crate) async fn e2e(stage: &Stage, of: &E2e, rate: f64) -> Result<Measured> {
    let writer = connect(&stage.url).await?;
    let keys = Arc::new(keys(&stage.namespace, of.spread.partitions));
    let pacer = Pacer::new(rate, of.seconds);
    let mut readers = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let mut reader = connect(&stage.url).await?;
        create_group(&mut reader, key, GROUP).await?;
        let (key, clock) = (key.clone(), pacer.clock());
        let total = pacer.total_of(number as u64, u64::from(of.spread.partitions));
        readers.push(tokio::spawn(async move {
            let mut latency = Clock::histogram()?;
            while latency.len() < total {
                let mut read = cmd("XREADGROUP");
                read.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(256).arg("BLOCK").arg(5_000);
                let reply: Value = read.arg("STREAMS").arg(&key).arg(">").query_async(&mut reader).await?;
                let now = clock.now();
                for payload in payloads(&reply) {
                    latency.record(clock.since(now, payload))?;
                }
                let ids = ids(&reply);
                if !ids.is_empty() {
                    cmd("XACK").arg(&key).arg(GROUP).arg(ids).exec_async(&mut reader).await?;
                }
            }
            anyhow::Ok(latency)
        }));
    }
    let meter = stage.meter().await?;
    let sent = pacer.run(&stage.payload, move |n, payload| {
        let (mut writer, keys) = (writer.clone(), keys.clone());
        async move {
            let key = &keys[(n % keys.len() as u64) as usize];
            let mut add = cmd("XADD");
            add.arg(key).arg("*").arg("payload").arg(&payload[..]);
            Ok(add.exec_async(&mut writer).await?)
        }
    });
    let total = sent.await?;
    let mut latency = Clock::histogram()?;
    for reader in readers {
        latency.add(reader.await??)?;
    }
    Ok(meter.stop(total).await?.with_latency(&latency))
}
