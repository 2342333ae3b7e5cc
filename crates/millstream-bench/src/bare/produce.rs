//! Producing: `XADD` in pipelines, or one by one from many tasks, on one multiplexed connection.

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, cmd, pipe};

use super::{connect, keys};
use crate::args::{Produce, Spread};
use crate::measure::{Measured, Stage};
use crate::work::key_of;

fn add(key: &str, payload: &[u8], message_key: Option<&str>) -> Cmd {
    let mut add = cmd("XADD");
    add.arg(key).arg("*").arg("payload").arg(payload);
    if let Some(message_key) = message_key {
        add.arg("key").arg(message_key);
    }
    add
}

/// Sends pipelines of several `XADD`, one after the other, round robin over the partitions.
pub(crate) async fn bulk(stage: &Stage, of: &Produce) -> Result<Measured> {
    let connection = connect(&stage.url).await?;
    let meter = stage.meter().await?;
    add_all(connection, stage, of.messages.messages, of.spread, of.batch).await?;
    meter.stop(of.messages.messages).await
}

/// Fills the streams, without measuring.
pub(crate) async fn fill(stage: &Stage, messages: u64, spread: Spread) -> Result<()> {
    add_all(connect(&stage.url).await?, stage, messages, spread, 500).await
}

async fn add_all(
    mut connection: MultiplexedConnection,
    stage: &Stage,
    messages: u64,
    spread: Spread,
    batch: u32,
) -> Result<()> {
    let keys = keys(&stage.namespace, spread.partitions);
    let mut n = 0;
    while n < messages {
        let count = (messages - n).min(batch.into());
        let mut pipe = pipe();
        for n in n..n + count {
            let key = &keys[(n % u64::from(spread.partitions)) as usize];
            pipe.add_command(add(key, &stage.payload, key_of(n, spread.keys).as_deref())).ignore();
        }
        pipe.exec_async(&mut connection).await?;
        n += count;
    }
    Ok(())
}

/// Runs many tasks that share a connection. Each sends one message at a time and awaits every reply.
pub(crate) async fn awaiting(stage: &Stage, of: &Produce) -> Result<Measured> {
    let connection = connect(&stage.url).await?;
    let messages = of.messages.messages;
    let meter = stage.meter().await?;
    let mut tasks = Vec::new();
    for task in 0..u64::from(of.tasks) {
        let (mut connection, payload) = (connection.clone(), stage.payload.clone());
        let (keys, spread, step) =
            (keys(&stage.namespace, of.spread.partitions), of.spread, of.tasks as usize);
        tasks.push(tokio::spawn(async move {
            for n in (task..messages).step_by(step) {
                let key = &keys[(n % u64::from(spread.partitions)) as usize];
                add(key, &payload, key_of(n, spread.keys).as_deref()).exec_async(&mut connection).await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    meter.stop(messages).await
}
