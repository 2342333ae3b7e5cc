//! Server information: product and version, persistence, and the rights of this user.

use std::iter;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::inspect::{self, Server};
use millstream_core::keys::Keys;
use millstream_core::schedule::Place;
use millstream_core::sorted::{SortedMap, sort, sort_by};
use millstream_core::topic::TopicPartition;
use millstream_core::wire;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::cluster::slots::slot_of;
use crate::conn::command::key_of;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::{answered, redirect};
use crate::risks;

/// Number of round trips that are measured.
const TRIPS: usize = 5;

/// Commands that only some servers have, and the feature that each would allow.
const FEATURES: [(&str, &str); 5] = [
    ("XACKDEL", "acks that delete"),
    ("XDELEX", "deletes that heed other groups"),
    ("XNACK", "entries handed back at once"),
    ("HPEXPIRE", "fields that expire"),
    ("WAITAOF", "waiting for the disk"),
];

/// Returns the state of the server, or of one of several, with the risks of all.
pub(crate) async fn look(inner: &Inner) -> Result<Server> {
    let mut server = look_at(inner, &inner.pool).await?;
    server.risks = inner.risks().await?.into_iter().map(told_risk).collect();
    Ok(server)
}

/// Returns the state of each server.
pub(crate) async fn look_at_all(inner: &Inner) -> Result<Vec<Server>> {
    let Some(cluster) = inner.servers.cluster() else { return Ok(vec![look(inner).await?]) };
    let nodes = cluster.primaries().await?;
    let looks = nodes.iter().filter_map(|dial| Some((dial.address()?, inner.pool.line(dial))));
    let looks = looks.map(|(address, line)| async move {
        let looked = async {
            let line = line?;
            let mut server = look_at(inner, &*line).await?;
            server.risks = risks::risks(&*line).await?.into_iter().map(told_risk).collect();
            Ok::<Server, Error>(server)
        };
        let looked = looked.await.inspect_err(|error| inner.servers.learn(error));
        let mut server = looked.unwrap_or_else(|error| {
            let mut server = Server::default();
            server.away = Some(error.to_string());
            server
        });
        server.address = Some(address.to_string());
        server
    });
    let mut servers = join_all(looks).await;
    sort_by(&mut servers, |a, b| a.address.cmp(&b.address));
    Ok(servers)
}

fn told_risk(risk: risks::Risk) -> inspect::Risk {
    inspect::Risk { setting: risk.setting.to_owned(), value: risk.value, reason: risk.reason.to_owned() }
}

/// Reads all but the risks over a line.
async fn look_at(inner: &Inner, line: &dyn Line) -> Result<Server> {
    let mut server = Server::default();
    clock(line, &mut server).await?;
    let mut pipe = Pipeline::with_capacity(2);
    pipe.cmd("INFO");
    pipe.cmd("CLUSTER").arg("INFO");
    let [info, cluster] = reply::tuple(Value::Array(line.send(&pipe).await?))?;
    match reply::text(info) {
        Ok(info) => told(&info, &mut server),
        Err(error) => server.unknown.push(format!("INFO: {error}")),
    }
    if server.mode.as_deref() == Some("cluster") {
        match reply::text(cluster) {
            Ok(info) => server.cluster_ok = value(&info, "cluster_state").map(|state| state == "ok"),
            Err(error) => server.unknown.push(format!("CLUSTER INFO: {error}")),
        }
    }
    features(line, &mut server).await?;
    rights(inner, line, &mut server).await?;
    Ok(server)
}

/// Measures round trips, and the difference between the server's clock and ours at the middle of the shortest one.
async fn clock(line: &dyn Line, server: &mut Server) -> Result<()> {
    let mut pipe = Pipeline::with_capacity(1);
    pipe.cmd("TIME");
    let mut trips: Vec<(Duration, i64)> = Vec::with_capacity(TRIPS);
    for _ in 0..=TRIPS {
        let (began, ours) = (Instant::now(), SystemTime::now());
        let answer = line.send(&pipe).await?.pop().unwrap_or_default();
        let trip = began.elapsed();
        let ours = ours.duration_since(UNIX_EPOCH).unwrap_or_default() + trip / 2;
        match reply::time(answer) {
            Ok(theirs) => {
                let theirs = i64::try_from(theirs.as_millis()).unwrap_or(i64::MAX);
                trips.push((trip, theirs - i64::try_from(ours.as_millis()).unwrap_or(i64::MAX)));
            }
            // Whether it may be used is found with all other commands.
            Err(_) => return Ok(()),
        }
    }
    // Drop the first round trip: it may have included opening the connection.
    let mut trips = trips.split_off(1);
    sort(&mut trips);
    server.latency = trips.get(trips.len() / 2).map(|(trip, _)| *trip);
    server.ahead_ms = trips.first().map(|(_, ahead)| *ahead);
    Ok(())
}

fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn told(info: &str, server: &mut Server) {
    let text = |name: &str| value(info, name).map(str::to_owned);
    let number = |name: &str| value(info, name).and_then(|value| value.parse::<u64>().ok());
    let valkey = text("valkey_version");
    server.kind = if valkey.is_some() || value(info, "server_name") == Some("valkey") {
        "valkey".to_owned()
    } else {
        "redis".to_owned()
    };
    server.version = valkey.or_else(|| text("redis_version"));
    server.mode = text("redis_mode").or_else(|| text("server_mode"));
    server.role = text("role").map(|role| if role == "slave" { "replica".to_owned() } else { role });
    server.replicas = number("connected_slaves");
    server.uptime = number("uptime_in_seconds").map(Duration::from_secs);
    server.used_memory = number("used_memory");
    server.max_memory = number("maxmemory");
    server.eviction = text("maxmemory_policy");
    server.evicted = number("evicted_keys");
    server.clients = number("connected_clients").zip(number("maxclients"));
    let states = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"];
    let states: Vec<_> = states.iter().filter_map(|name| value(info, name)).collect();
    server.disk_ok = (!states.is_empty()).then(|| states.iter().all(|state| *state == "ok"));
}

async fn features(line: &dyn Line, server: &mut Server) -> Result<()> {
    let mut pipe = Pipeline::with_capacity(1);
    pipe.cmd("COMMAND").arg("INFO");
    for (command, _) in FEATURES {
        pipe.arg(command);
    }
    match reply::array(line.send(&pipe).await?.pop().unwrap_or_default()) {
        Ok(known) => {
            let there = FEATURES.iter().zip(known).filter(|(_, known)| *known != Value::Nil);
            server.features = there.map(|((_, name), _)| (*name).to_owned()).collect();
        }
        Err(error) => server.unknown.push(format!("COMMAND INFO: {error}")),
    }
    Ok(())
}

/// Queues every command that is needed in a transaction and discards it: the server reports the commands that this
/// user may not use, and executes none. Unlike `ACL DRYRUN`, that needs no right of its own.
async fn rights(inner: &Inner, line: &dyn Line, server: &mut Server) -> Result<()> {
    // Without a transaction they would be executed. `EXEC` ends one that cannot be discarded, and fails otherwise.
    let mut pipe = Pipeline::with_capacity(3);
    for command in ["MULTI", "DISCARD", "EXEC"] {
        pipe.cmd(command);
    }
    let mut answers = line.send(&pipe).await?;
    let failed = |answer: &Value| matches!(answer, Value::ServerError(_));
    if let Some(first) = answers.iter().take(2).position(failed) {
        answers.truncate(first + 1);
        refused(iter::once(Value::Nil).chain(answers), &["MULTI", "DISCARD"].map(str::to_owned), server);
        return Ok(());
    }
    // One transaction for each slot: a node of a cluster refuses those of another one, whatever the rights.
    let mut slots: SortedMap<Option<u16>, (Pipeline, Vec<String>)> = SortedMap::new();
    for command in needed(&inner.keys)? {
        let mut cmd = redis::Cmd::new();
        command.split(' ').for_each(|word| _ = cmd.arg(word));
        let slot = inner.servers.cluster().and_then(|_| key_of(&cmd).map(slot_of));
        let (pipe, commands) = slots.get_or_insert_with(slot, || {
            let mut pipe = Pipeline::new();
            pipe.cmd("MULTI");
            (pipe, Vec::new())
        });
        pipe.add_command(cmd);
        commands.push(command);
    }
    for (mut pipe, commands) in slots.into_values() {
        pipe.cmd("DISCARD");
        refused(line.send(&pipe).await?, &commands, server);
    }
    Ok(())
}

/// Takes note of the commands that were not queued. A server looks at rights first: one that is refused for another reason is
/// allowed.
fn refused(answers: impl IntoIterator<Item = Value>, commands: &[String], server: &mut Server) {
    for (answer, command) in answers.into_iter().skip(1).zip(commands) {
        let Value::ServerError(error) = answer else { continue };
        let said = format!("{} {}", error.code(), error.details().unwrap_or_default());
        let error = answered(error);
        match error.kind() {
            ErrorKind::Denied => server.denied.push(command.clone()),
            ErrorKind::Unsupported => {
                let name = command.split(' ').next().unwrap_or_default();
                if !server.missing.iter().any(|missing| missing == name) {
                    server.missing.push(name.to_owned());
                }
            }
            // This node may be asked, and does not have the slot.
            _ if redirect(&error).is_some() => {}
            ErrorKind::Unavailable | ErrorKind::Backpressure if server.refuses.is_none() => {
                server.refuses = Some(wire::cut(said.trim_end()).to_owned());
            }
            ErrorKind::Unavailable | ErrorKind::Backpressure => {}
            _ => server.unknown.push(format!("{command}: {error}")),
        }
    }
}

/// Returns each command that scripts and roles use, on a key of its kind.
fn needed(keys: &Keys) -> Result<Vec<String>> {
    let tp = TopicPartition::new("doctor".parse()?, 0);
    let (group, place) = ("doctor".parse()?, Place::from(tp.clone()));
    let (log, zset, hash) = (keys.log(&tp), keys.retry_due(&tp, &group), keys.fence(&tp, &group));
    let (lease, set, list) = (keys.lease(&tp, &group), keys.topics(), keys.wake(&place));
    let of = |key: &millstream_core::keys::Key, commands: &[&str]| -> Vec<String> {
        commands.iter().map(|command| command.replace('@', key.as_str())).collect()
    };
    let mut all = of(
        &log,
        &[
            "XADD @ * f v",
            "XREAD COUNT 1 STREAMS @ 0",
            "XREADGROUP GROUP g c COUNT 1 STREAMS @ >",
            "XPENDING @ g",
            "XACK @ g 0-1",
            "XDEL @ 0-1",
            "XRANGE @ - +",
            "XREVRANGE @ + -",
            "XLEN @",
            "XINFO GROUPS @",
            "XGROUP CREATE @ g 0",
            "XCLAIM @ g c 0 0-1",
            "XTRIM @ MINID 0",
            "DEL @",
            "TYPE @",
            "EXISTS @",
        ],
    );
    all.extend(of(
        &zset,
        &[
            "ZADD @ 1 m",
            "ZREM @ m",
            "ZRANGE @ 0 0",
            "ZRANGEBYSCORE @ 0 1",
            "ZCARD @",
            "ZCOUNT @ 0 1",
            "ZSCORE @ m",
            "ZSCAN @ 0",
        ],
    ));
    all.extend(of(
        &hash,
        &[
            "HGET @ f",
            "HMGET @ f",
            "HSET @ f v",
            "HSETNX @ f v",
            "HDEL @ f",
            "HGETALL @",
            "HKEYS @",
            "HLEN @",
            "HEXISTS @ f",
            "HSCAN @ 0",
        ],
    ));
    all.extend(of(&lease, &["GET @", "SET @ v PX 1", "PTTL @", "PEXPIRE @ 1"]));
    all.extend(of(
        &set,
        &["SADD @ m", "SMEMBERS @", "SISMEMBER @ m", "SMISMEMBER @ m", "SCARD @", "SREM @ m"],
    ));
    all.extend(of(&list, &["LPUSH @ 1", "LLEN @", "BLPOP @ 1"]));
    all.extend(["TIME", "EVALSHA s 0", "EVAL s 0", "EVALSHA_RO s 0", "SCRIPT LOAD s"].map(str::to_owned));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_of_themselves() {
        let mut server = Server::default();
        let info = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.1\r\nredis_mode:standalone\r\n\
                    connected_clients:3\r\nmaxclients:10000\r\nused_memory:5\r\nmaxmemory:0\r\n\
                    maxmemory_policy:noeviction\r\nrdb_last_bgsave_status:ok\r\naof_last_write_status:err\r\n\
                    role:slave\r\nconnected_slaves:0\r\nuptime_in_seconds:7\r\n";
        told(info, &mut server);
        assert_eq!((server.kind.as_str(), server.version.as_deref()), ("valkey", Some("8.1.1")));
        assert_eq!((server.role.as_deref(), server.disk_ok), (Some("replica"), Some(false)));
        assert_eq!(server.clients, Some((3, 10_000)));
        let mut server = Server::default();
        told("redis_version:7.0.15\r\n", &mut server);
        assert_eq!((server.kind.as_str(), server.disk_ok, server.replicas), ("redis", None, None));
    }
}
