//! The counters of the server, or of all primaries of a cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::cmd;

use crate::bare::{CLUSTER, connect_within};

/// Maximum time for the server to return its state, or to delete some keys.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections for queries of the server's state: to the server, or to every primary of a cluster.
#[derive(Clone)]
pub(crate) struct Probe(Vec<MultiplexedConnection>);

/// The counters of the server since its start; of a cluster, those of its primaries together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// CPU time in seconds.
    pub(crate) cpu: f64,
    /// Commands, including those that scripts and transactions run.
    pub(crate) commands: f64,
    /// Memory in use at present, in bytes.
    pub(crate) memory: f64,
    /// Connections of clients at present, with those of the bench that count.
    pub(crate) connections: f64,
}

impl Probe {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let Some(nodes) = url.strip_prefix(CLUSTER) else {
            return Ok(Self(vec![connect_within(url, Some(REPLY_TIMEOUT)).await?]));
        };
        let (login, addresses) = match nodes.rsplit_once('@') {
            Some((login, addresses)) => (format!("{login}@"), addresses),
            None => (String::new(), nodes),
        };
        let first = addresses.split([',', '/', '?']).next().unwrap_or_default();
        let mut any = connect_within(&format!("redis://{login}{first}"), Some(REPLY_TIMEOUT)).await?;
        let slots: Vec<_> = cmd("CLUSTER").arg("SLOTS").query_async(&mut any).await?;
        let mut primaries = Vec::new();
        for (host, port) in primaries_of(&slots)? {
            // A node that has met no other one does not know its own address.
            let host =
                if host.is_empty() { first.rsplit_once(':').map_or(first, |(host, _)| host) } else { &host };
            primaries
                .push(connect_within(&format!("redis://{login}{host}:{port}"), Some(REPLY_TIMEOUT)).await?);
        }
        Ok(Self(primaries))
    }

    /// The number of its own commands between the counts of two calls of [`count`](Self::count).
    pub(crate) fn own(&self) -> f64 {
        4.0 * self.0.len() as f64
    }

    pub(crate) async fn count(&self) -> Result<Counted> {
        let mut sum = Counted::default();
        for node in &self.0 {
            let cpu = info(node, "cpu").await?;
            let stats = info(node, "stats").await?;
            let memory = info(node, "memory").await?;
            let clients = info(node, "clients").await?;
            sum.cpu += number(&cpu, "used_cpu_user")? + number(&cpu, "used_cpu_sys")?;
            sum.commands += number(&stats, "total_commands_processed")?;
            sum.memory += number(&memory, "used_memory")?;
            sum.connections += number(&clients, "connected_clients")?;
        }
        Ok(sum)
    }

    /// Returns `redis 7.0.15`, or `valkey 8.1.0`.
    pub(crate) async fn version(&self) -> Result<String> {
        let server = info(self.0.first().context("no primary")?, "server").await?;
        Ok(match text(&server, "valkey_version") {
            Some(version) => format!("valkey {version}"),
            None => format!("redis {}", text(&server, "redis_version").context("no redis_version")?),
        })
    }

    /// Deletes everything under a namespace, and returns when the memory is freed.
    pub(crate) async fn clear(&self, namespace: &str) -> Result<()> {
        for node in &self.0 {
            let (mut connection, mut cursor) = (node.clone(), 0_u64);
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(format!("{namespace}:*")).arg("COUNT").arg(1_000);
                let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
                // Not UNLINK, which would continue during the next run. One by one: in a cluster they are in many slots.
                let mut delete = redis::pipe();
                for key in &keys {
                    delete.del(key);
                }
                if !keys.is_empty() {
                    delete.exec_async(&mut connection).await?;
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the number of keys.
    #[cfg(test)]
    pub(crate) async fn keys(&self) -> Result<u64> {
        let mut keys = 0;
        for node in &self.0 {
            keys += cmd("DBSIZE").query_async::<u64>(&mut node.clone()).await?;
        }
        Ok(keys)
    }
}

/// Returns the addresses of the primaries from the answer to `CLUSTER SLOTS`, each once.
fn primaries_of(slots: &[Vec<redis::Value>]) -> Result<BTreeSet<(String, u16)>> {
    let mut primaries = BTreeSet::new();
    for range in slots {
        let primary = range.get(2).context("CLUSTER SLOTS: no primary")?;
        let redis::Value::Array(node) = primary else { bail!("CLUSTER SLOTS: {primary:?}") };
        let [host, port, ..] = &node[..] else { bail!("CLUSTER SLOTS: {primary:?}") };
        primaries.insert((redis::from_redis_value(host.clone())?, redis::from_redis_value(port.clone())?));
    }
    Ok(primaries)
}

async fn info(node: &MultiplexedConnection, section: &str) -> Result<String> {
    cmd("INFO").arg(section).query_async(&mut node.clone()).await.context("INFO")
}

fn text<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

fn number(info: &str, field: &str) -> Result<f64> {
    let value = text(info, field).with_context(|| format!("INFO has no {field}"))?;
    value.parse().with_context(|| format!("INFO says {field}:{value}"))
}
