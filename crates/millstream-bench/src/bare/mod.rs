//! Bare redis-rs: the same work without Millstream, as the baseline; and the counters of the server.
//!
//! It uses the Redis client directly and nothing of Millstream: a baseline over Millstream's own layers would measure
//! them on both sides.

mod consume;
mod delay;
mod e2e;
mod idle;
mod memory;
mod produce;
mod reply;
mod requests;
mod retry;
mod takeover;

use std::time::Duration;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, cmd};

pub(crate) use consume::consume;
pub(crate) use delay::schedule;
pub(crate) use e2e::e2e;
pub(crate) use idle::idle;
pub(crate) use memory::memory;
pub(crate) use produce::{awaiting, bulk, fill};
pub(crate) use requests::Requests;
pub(crate) use retry::retry;
pub(crate) use takeover::takeover;

/// The baseline's group.
const GROUP: &str = "g";
/// The baseline's consumer.
const CONSUMER: &str = "c";

/// Maximum time for the server to return its state, or to delete some keys.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a connection without a timeout for replies.
async fn connect(url: &str) -> Result<MultiplexedConnection> {
    connect_within(url, None).await
}

async fn connect_within(url: &str, patience: Option<Duration>) -> Result<MultiplexedConnection> {
    let client = redis::Client::open(url).context("--url")?;
    let config = AsyncConnectionConfig::new().set_response_timeout(patience);
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.context("cannot connect to the server")
}

/// Returns the baseline's streams. In a cluster each is in its own slot, as partitions are.
fn keys(namespace: &str, partitions: u32) -> Vec<String> {
    (0..partitions).map(|partition| format!("{namespace}:bare:{{{partition}}}")).collect()
}

async fn create_group(connection: &mut MultiplexedConnection, key: &str, group: &str) -> Result<()> {
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(key).arg(group).arg("0").arg("MKSTREAM").exec_async(connection).await?;
    Ok(())
}

/// A connection for queries of the server's state.
#[derive(Clone)]
pub(crate) struct Probe(MultiplexedConnection);

/// The counters of the server since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// CPU time in seconds.
    pub(crate) cpu: f64,
    /// Commands, including those that scripts and transactions run.
    pub(crate) commands: f64,
    /// Memory in use at present, in bytes.
    pub(crate) memory: f64,
}

impl Probe {
    /// The number of its own commands between the counts of two calls of [`count`](Self::count).
    pub(crate) const OWN: f64 = 3.0;

    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(Self(connect_within(url, Some(PATIENCE)).await?))
    }

    pub(crate) async fn count(&self) -> Result<Counted> {
        let cpu = self.info("cpu").await?;
        let stats = self.info("stats").await?;
        let memory = self.info("memory").await?;
        Ok(Counted {
            cpu: number(&cpu, "used_cpu_user")? + number(&cpu, "used_cpu_sys")?,
            commands: number(&stats, "total_commands_processed")?,
            memory: number(&memory, "used_memory")?,
        })
    }

    /// Returns `redis 7.0.15`, or `valkey 8.1.0`.
    pub(crate) async fn version(&self) -> Result<String> {
        let server = self.info("server").await?;
        Ok(match text(&server, "valkey_version") {
            Some(version) => format!("valkey {version}"),
            None => format!("redis {}", text(&server, "redis_version").context("no redis_version")?),
        })
    }

    /// Deletes everything under a namespace, and returns when the memory is freed.
    pub(crate) async fn clear(&self, namespace: &str) -> Result<()> {
        let mut connection = self.0.clone();
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{namespace}:*")).arg("COUNT").arg(1_000);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
            if !keys.is_empty() {
                // Not UNLINK, which would continue during the next run.
                cmd("DEL").arg(keys).exec_async(&mut connection).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Returns the number of keys.
    #[cfg(test)]
    pub(crate) async fn keys(&self) -> Result<u64> {
        Ok(cmd("DBSIZE").query_async(&mut self.0.clone()).await?)
    }

    async fn info(&self, section: &str) -> Result<String> {
        cmd("INFO").arg(section).query_async(&mut self.0.clone()).await.context("INFO")
    }
}

fn text<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

fn number(info: &str, field: &str) -> Result<f64> {
    let value = text(info, field).with_context(|| format!("INFO has no {field}"))?;
    value.parse().with_context(|| format!("INFO says {field}:{value}"))
}
