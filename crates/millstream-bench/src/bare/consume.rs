//! Consuming: a serial loop of `XREADGROUP COUNT n` and `XACK` (and `XDEL`) per partition and group.

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Value, cmd, pipe};

use super::reply::ids;
use super::{CONSUMER, connect, create_group, fill, keys};
use crate::args::{Consume, PendingIn};
use crate::measure::{Measured, Stage};

/// Fills the streams and drains them.
pub(crate) async fn consume(stage: &Stage, of: &Consume) -> Result<Measured> {
    let keys = keys(&stage.namespace, of.spread.partitions);
    let groups: Vec<String> = (0..of.groups).map(|group| format!("g{group}")).collect();
    let mut admin = connect(&stage.url).await?;
    if of.pending > 0 {
        pend(&mut admin, stage, of, &keys).await?;
    }
    fill(stage, of.messages.messages, of.spread).await?;
    for key in &keys {
        for group in &groups {
            // If there are pending entries, the group exists already.
            if of.pending == 0 {
                create_group(&mut admin, key, group).await?;
            }
        }
    }
    let meter = stage.meter().await?;
    let mut tasks = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        for key in &keys {
            let connection = connect(&stage.url).await?;
            // With several groups the baseline does not know which one is last: the first one deletes, which is the
            // least work.
            let delete = !of.keep && of.pending == 0 && number == 0;
            tasks.push(tokio::spawn(drain(connection, key.clone(), group.clone(), of.batch, delete)));
        }
    }
    let mut messages = 0;
    for task in tasks {
        messages += task.await??;
    }
    let measured = meter.stop(messages).await?;
    let deleted_early = !of.keep && of.groups > 1;
    let expected = of.messages.messages * u64::from(of.groups);
    ensure!(messages == expected || deleted_early, "{messages} read of {expected}");
    Ok(measured)
}

/// Leaves messages pending, in the measured group or in another one.
async fn pend(
    connection: &mut MultiplexedConnection,
    stage: &Stage,
    of: &Consume,
    keys: &[String],
) -> Result<()> {
    fill(stage, of.pending, of.spread).await?;
    let holder = match of.pending_in {
        PendingIn::Own => "g0",
        PendingIn::Other => "other",
    };
    for key in keys {
        create_group(connection, key, holder).await?;
        while !ids(&read(connection, key, holder, 10_000).await?).is_empty() {}
        if of.pending_in == PendingIn::Other {
            cmd("XGROUP").arg("CREATE").arg(key).arg("g0").arg("$").exec_async(connection).await?;
        }
    }
    Ok(())
}

async fn read(connection: &mut MultiplexedConnection, key: &str, group: &str, count: u32) -> Result<Value> {
    let mut read = cmd("XREADGROUP");
    read.arg("GROUP").arg(group).arg(CONSUMER).arg("COUNT").arg(count);
    Ok(read.arg("STREAMS").arg(key).arg(">").query_async(connection).await?)
}

async fn drain(
    mut connection: MultiplexedConnection,
    key: String,
    group: String,
    count: u32,
    delete: bool,
) -> Result<u64> {
    let mut messages = 0;
    loop {
        let reply = read(&mut connection, &key, &group, count).await?;
        let ids = ids(&reply);
        if ids.is_empty() {
            return Ok(messages);
        }
        messages += ids.len() as u64;
        let mut pipe = pipe();
        pipe.cmd("XACK").arg(&key).arg(&group).arg(&ids).ignore();
        if delete {
            pipe.cmd("XDEL").arg(&key).arg(&ids).ignore();
        }
        pipe.exec_async(&mut connection).await?;
    }
}
