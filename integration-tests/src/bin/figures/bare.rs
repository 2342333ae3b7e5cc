//! The same work with redis-rs and nothing else: what Millstream is measured by.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use integration_tests::server::Server;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value, cmd, pipe};

use crate::{Options, PAYLOAD, RATE, Run, server_cpu};

async fn connect(server: &Server) -> Result<MultiplexedConnection> {
    let client = redis::Client::open(server.url())?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn key(partition: u32) -> String {
    format!("bare:{{{partition}}}")
}

/// Pipelines of 500 `XADD`, one after the other on one connection, round robin over the partitions.
pub(crate) async fn produce(server: &Server, options: &Options, partitions: u32) -> Result<Run> {
    let mut connection = connect(server).await?;
    let keys: Vec<String> = (0..partitions).map(key).collect();
    let cpu = server_cpu(server);
    let started = Instant::now();
    let mut left = options.messages;
    while left > 0 {
        let count = left.min(500);
        let mut pipe = pipe();
        for n in 0..count {
            let key = &keys[usize::try_from(n)? % keys.len()];
            pipe.cmd("XADD").arg(key).arg("*").arg("payload").arg(&PAYLOAD[..]).ignore();
        }
        pipe.exec_async(&mut connection).await?;
        left -= count;
    }
    let took = started.elapsed();
    Ok(Run { messages: options.messages, took, server_cpu: server_cpu(server) - cpu })
}

/// A serial loop of `XREADGROUP COUNT 256` and `XACK` (and `XDEL`) per partition, on its own connection.
pub(crate) async fn consume(
    server: &Server,
    options: &Options,
    partitions: u32,
    delete: bool,
) -> Result<Run> {
    let mut admin = connect(server).await?;
    for partition in 0..partitions {
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(key(partition)).arg("g").arg("0").exec_async(&mut admin).await?;
    }
    let cpu = server_cpu(server);
    let started = Instant::now();
    let mut tasks = Vec::new();
    for partition in 0..partitions {
        let connection = connect(server).await?;
        tasks.push(tokio::spawn(drain(connection, key(partition), delete)));
    }
    let mut messages = 0;
    for task in tasks {
        messages += task.await??;
    }
    let took = started.elapsed();
    anyhow::ensure!(messages == options.messages, "{messages} read");
    Ok(Run { messages, took, server_cpu: server_cpu(server) - cpu })
}

async fn drain(mut connection: MultiplexedConnection, key: String, delete: bool) -> Result<u64> {
    let mut messages = 0;
    loop {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg("c").arg("COUNT").arg(256).arg("STREAMS").arg(&key).arg(">");
        let reply: Value = read.query_async(&mut connection).await?;
        let ids = ids(&reply);
        if ids.is_empty() {
            return Ok(messages);
        }
        messages += ids.len() as u64;
        let mut pipe = pipe();
        pipe.cmd("XACK").arg(&key).arg("g").arg(&ids).ignore();
        if delete {
            pipe.cmd("XDEL").arg(&key).arg(&ids).ignore();
        }
        pipe.exec_async(&mut connection).await?;
    }
}

/// The ids in a reply of one stream.
fn ids(reply: &Value) -> Vec<&[u8]> {
    let Value::Array(streams) = reply else { return Vec::new() };
    let Some(Value::Array(stream)) = streams.first() else { return Vec::new() };
    let Some(Value::Array(entries)) = stream.get(1) else { return Vec::new() };
    entries
        .iter()
        .filter_map(|entry| match entry {
            Value::Array(parts) => match parts.first() {
                Some(Value::BulkString(id)) => Some(&id[..]),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

/// From `XADD` to a blocked `XREADGROUP` of one reader that acknowledges each batch, at a fixed rate.
pub(crate) async fn latency(server: &Server, options: &Options) -> Result<Histogram<u64>> {
    let mut writer = connect(server).await?;
    let mut reader = connect(server).await?;
    let key = key(0);
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(&key).arg("g").arg("0").arg("MKSTREAM").exec_async(&mut writer).await?;
    let epoch = Instant::now();
    let total = RATE * options.seconds;
    let reading = tokio::spawn({
        let key = key.clone();
        async move {
            let mut histogram = Histogram::<u64>::new(3)?;
            while histogram.len() < total {
                let mut read = cmd("XREADGROUP");
                read.arg("GROUP").arg("g").arg("c").arg("COUNT").arg(256).arg("BLOCK").arg(5_000);
                let reply: Value = read.arg("STREAMS").arg(&key).arg(">").query_async(&mut reader).await?;
                let now = u64::try_from(epoch.elapsed().as_nanos())?;
                for sent in payloads(&reply).context("an entry without a payload")? {
                    histogram.record(now - sent)?;
                }
                cmd("XACK").arg(&key).arg("g").arg(ids(&reply)).exec_async(&mut reader).await?;
            }
            anyhow::Ok(histogram)
        }
    });
    for n in 0..total {
        let due = epoch + Duration::from_secs(1) * u32::try_from(n)? / u32::try_from(RATE)?;
        tokio::time::sleep_until(due.into()).await;
        let mut payload = PAYLOAD;
        payload[..8].copy_from_slice(&u64::try_from(epoch.elapsed().as_nanos())?.to_le_bytes());
        let (mut writer, key) = (writer.clone(), key.clone());
        tokio::spawn(async move {
            let mut add = cmd("XADD");
            add.arg(key).arg("*").arg("payload").arg(&payload[..]).exec_async(&mut writer).await
        });
    }
    reading.await?
}

/// The first eight bytes of every payload in a reply of one stream.
fn payloads(reply: &Value) -> Option<Vec<u64>> {
    let Value::Array(streams) = reply else { return None };
    let Value::Array(stream) = streams.first()? else { return None };
    let Value::Array(entries) = stream.get(1)? else { return None };
    entries
        .iter()
        .map(|entry| {
            let Value::Array(parts) = entry else { return None };
            let Value::Array(fields) = parts.get(1)? else { return None };
            let Value::BulkString(payload) = fields.get(1)? else { return None };
            payload.get(..8)?.try_into().ok().map(u64::from_le_bytes)
        })
        .collect()
}
