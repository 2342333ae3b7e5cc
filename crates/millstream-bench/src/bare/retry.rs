//! Retries without Millstream: failed messages go into a sorted set and a hash, and due ones come back as new
//! entries. Uses pipelines without atomicity: a crash in between loses or duplicates messages, which is not permitted
//! for Millstream.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Value, cmd, pipe};

use super::reply::{ids, payloads};
use super::{CONSUMER, GROUP, connect, create_group, delay, fill, keys};
use crate::args::Retry;
use crate::measure::{Measured, Stage};

const BATCH: u32 = 256;

/// Lets every message fail once, come back and be acknowledged.
pub(crate) async fn retry(stage: &Stage, of: &Retry) -> Result<Measured> {
    // Adds the messages that are parked already, under the same keys.
    delay::add(&mut connect(&stage.url).await?, stage, of.spread, 0..of.parked).await?;
    fill(stage, of.messages.messages, of.spread).await?;
    let keys = keys(&stage.namespace, of.spread.partitions);
    let mut admin = connect(&stage.url).await?;
    for key in &keys {
        create_group(&mut admin, key, GROUP).await?;
        create_group(&mut admin, &format!("{key}:again"), GROUP).await?;
    }
    let meter = stage.meter().await?;
    let mut tasks = Vec::new();
    for (number, key) in keys.into_iter().enumerate() {
        let connection = connect(&stage.url).await?;
        let partitions = u64::from(of.spread.partitions);
        let total = (of.messages.messages + partitions - 1 - number as u64) / partitions;
        let delay = Duration::from_millis(of.delay.into());
        tasks.push(tokio::spawn(async move { Partition { connection, key, delay }.work(total).await }));
    }
    let mut messages = 0;
    for task in tasks {
        messages += task.await??;
    }
    ensure!(messages == of.messages.messages, "{messages} came back");
    meter.stop(messages).await
}

struct Partition {
    connection: MultiplexedConnection,
    key: String,
    delay: Duration,
}

impl Partition {
    async fn work(mut self, total: u64) -> Result<u64> {
        let again = format!("{}:again", self.key);
        let mut done = 0;
        while done < total {
            let first = self.fail_some().await?;
            let second = self.promote().await?;
            let came = self.read(&again).await?;
            let ids = ids(&came);
            done += ids.len() as u64;
            if !ids.is_empty() {
                let mut pipe = pipe();
                pipe.cmd("XACK").arg(&again).arg(GROUP).arg(&ids).ignore();
                pipe.cmd("XDEL").arg(&again).arg(&ids).ignore();
                pipe.exec_async(&mut self.connection).await?;
            }
            if first + second + ids.len() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(done)
    }

    async fn read(&mut self, stream: &str) -> Result<Value> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(GROUP)
            .arg(CONSUMER)
            .arg("COUNT")
            .arg(BATCH)
            .arg("STREAMS")
            .arg(stream)
            .arg(">");
        Ok(read.query_async(&mut self.connection).await?)
    }

    /// Reads new entries and parks all of them.
    async fn fail_some(&mut self) -> Result<usize> {
        let key = self.key.clone();
        let reply = self.read(&key).await?;
        let (ids, payloads) = (ids(&reply), payloads(&reply));
        if ids.is_empty() {
            return Ok(0);
        }
        let due = millis(SystemTime::now() + self.delay);
        let mut pipe = pipe();
        let items: Vec<_> = ids.iter().copied().zip(payloads).collect();
        pipe.cmd("HSET").arg(format!("{key}:items")).arg(items).ignore();
        let times: Vec<_> = ids.iter().map(|id| (due, *id)).collect();
        pipe.cmd("ZADD").arg(format!("{key}:due")).arg(times).ignore();
        pipe.cmd("XACK").arg(&key).arg(GROUP).arg(&ids).ignore();
        pipe.cmd("XDEL").arg(&key).arg(&ids).ignore();
        pipe.exec_async(&mut self.connection).await?;
        Ok(ids.len())
    }

    /// Moves due messages to the second stream.
    async fn promote(&mut self) -> Result<usize> {
        let (due, items) = (format!("{}:due", self.key), format!("{}:items", self.key));
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(&due).arg("-inf").arg(millis(SystemTime::now())).arg("LIMIT").arg(0).arg(BATCH);
        let ids: Vec<Vec<u8>> = range.query_async(&mut self.connection).await?;
        if ids.is_empty() {
            return Ok(0);
        }
        let payloads: Vec<Vec<u8>> =
            cmd("HMGET").arg(&items).arg(&ids).query_async(&mut self.connection).await?;
        let mut pipe = pipe();
        for payload in &payloads {
            pipe.cmd("XADD").arg(format!("{}:again", self.key)).arg("*").arg("payload").arg(payload).ignore();
        }
        pipe.cmd("ZREM").arg(&due).arg(&ids).ignore();
        pipe.cmd("HDEL").arg(&items).arg(&ids).ignore();
        pipe.exec_async(&mut self.connection).await?;
        Ok(ids.len())
    }
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
