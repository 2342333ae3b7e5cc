//! Bare redis-rs: the same work without Millstream, as the baseline; and the counters of the server.
//!
//! It uses the Redis client directly and nothing of Millstream: a baseline over Millstream's own layers would measure
//! them on both sides.

mod consume;
mod delay;
mod e2e;
mod idle;
mod memory;
mod operate;
mod probe;
mod produce;
mod reply;
mod requests;
mod retry;
mod takeover;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, cmd};

pub(crate) use consume::consume;
pub(crate) use delay::schedule;
pub(crate) use e2e::e2e;
pub(crate) use idle::idle;
pub(crate) use memory::memory;
pub(crate) use operate::operate;
pub(crate) use probe::{Counted, Probe};
pub(crate) use produce::{awaiting, bulk, fill};
pub(crate) use requests::Requests;
pub(crate) use retry::retry;
pub(crate) use takeover::takeover;

/// The baseline's group.
const GROUP: &str = "g";
/// The baseline's consumer.
const CONSUMER: &str = "c";

/// What a URL of a Redis Cluster begins with.
const CLUSTER: &str = "redis+cluster://";

/// Opens a connection without a timeout for replies.
async fn connect(url: &str) -> Result<MultiplexedConnection> {
    connect_within(url, None).await
}

async fn connect_within(url: &str, limit: Option<Duration>) -> Result<MultiplexedConnection> {
    if url.starts_with(CLUSTER) {
        bail!("the baseline, and what counts requests, know no cluster");
    }
    let client = redis::Client::open(url).context("--url")?;
    let config = AsyncConnectionConfig::new().set_response_timeout(limit);
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
