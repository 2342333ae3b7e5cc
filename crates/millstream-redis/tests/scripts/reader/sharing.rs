//! Readers without a connection of their own: they wait on one connection, read by script, and take turns with those that have one.

use std::time::Duration;

use millstream_core::catalog::Catalog;
use millstream_core::error::ErrorKind;
use millstream_core::leases::Lease;
use millstream_core::log::{Append, Log, Reader};
use millstream_core::topic::{TopicPartition, TopicSpec};
use millstream_redis::RedisConfig;
use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::server::{Bench, Server, fetch, grant, message};

const LONG: Duration = Duration::from_secs(60);

/// A backend whose readers have this number of connections.
async fn with(connections: usize) -> Bench {
    let server = Server::start(&[]);
    let config = RedisConfig::new(server.url()).with_max_reader_connections(connections);
    Bench::at(config, Some(server)).await
}

/// Partitions of another topic, with a lease for each.
async fn partitions(bench: &Bench, count: u32) -> Vec<Lease> {
    let spec = TopicSpec::new("many".parse().expect("a name"), count).expect("a topic");
    bench.backend.create_topic(&spec).await.expect("created");
    bench
        .backend
        .create_group(&spec, &bench.group, millstream_core::catalog::Start::Earliest)
        .await
        .expect("created");
    let mut leases = Vec::new();
    for number in 0..count {
        let tp = TopicPartition::new(spec.name.clone(), number);
        leases.push(grant(&bench.backend, &tp, &bench.group, "first").await);
    }
    leases
}

async fn append(bench: &Bench, lease: &Lease, count: usize) {
    let (tp, _) = lease.partition().expect("a partition");
    let batch: Vec<_> = (0..count).map(|n| Append::new(tp.clone(), message(&n.to_string()))).collect();
    assert!(bench.backend.append(&batch).await.iter().all(Result::is_ok));
}

/// Number of connections with this name.
async fn named(bench: &mut Bench, name: &str) -> usize {
    let text: String = redis::from_redis_value(bench.cmd("CLIENT LIST").await).expect("a list");
    text.lines().filter(|line| line.contains(&format!("name=millstream:{name} "))).count()
}

/// Reads until this number of entries has come, in the order of their ids and each once.
async fn read(reader: &mut Box<dyn Reader>, count: usize) {
    let mut read = Vec::new();
    while read.len() < count {
        // As a partition's worker does: a third of a lease at a time.
        let fetching = reader.fetch(500, Duration::from_secs(2));
        let fetched = timeout(LONG, fetching).await.expect("in time").expect("fetched");
        assert!(!fetched.pending || fetched.entries.is_empty(), "nothing was handed out before");
        read.extend(fetched.entries.into_iter().map(|entry| entry.receipt.id));
    }
    assert!(read.len() == count && read.is_sorted_by(|a, b| a < b));
}

#[tokio::test]
async fn what_comes_wakes_its_reader_and_all_wait_on_one_connection() {
    const MANY: u32 = 50;
    let mut bench = with(0).await;
    let leases = partitions(&bench, MANY).await;
    let mut readers = JoinSet::new();
    for lease in &leases {
        let mut reader = bench.backend.reader(lease).await.expect("a reader");
        readers.spawn(async move {
            read(&mut reader, 3).await;
            reader
        });
    }
    for round in 0..3 {
        for lease in &leases {
            if round == 1 {
                // Somebody who knows nothing of us.
                let (tp, _) = lease.partition().expect("a partition");
                bench.cmd(&format!("XADD {} * payload x", bench.keys.log(tp))).await;
            } else {
                append(&bench, lease, 1).await;
            }
        }
    }
    let readers = timeout(LONG, readers.join_all()).await.expect("all have woken");
    assert_eq!((named(&mut bench, "reader").await, named(&mut bench, "changes").await), (0, 1));
    assert_eq!(named(&mut bench, "pages").await, 1);
    drop(readers);
    while named(&mut bench, "pages").await > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_busy_reader_gets_the_connection_of_an_idle_one() {
    let mut bench = with(1).await;
    let leases = partitions(&bench, 2).await;
    let mut idle = bench.backend.reader(&leases[0]).await.expect("a reader");
    assert!(fetch(&mut idle, 10).await.entries.is_empty());
    let owner: i64 = named(&mut bench, "reader").await.try_into().expect("few");
    assert_eq!(owner, 1, "the first one has it");
    let waiting = tokio::spawn(async move {
        read(&mut idle, 1).await;
        idle
    });
    let mut busy = bench.backend.reader(&leases[1]).await.expect("a reader");
    let commands = async |bench: &mut Bench| {
        let text: String = redis::from_redis_value(bench.cmd("CLIENT LIST").await).expect("a list");
        let line = text.lines().find(|line| line.contains("name=millstream:reader ")).map(str::to_owned);
        line.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix("cmd=").map(str::to_owned)))
    };
    let mut all = 0;
    timeout(LONG, async {
        // It blocks in XREAD as long as the idle one has it.
        while commands(&mut bench).await.as_deref() != Some("xreadgroup") {
            append(&bench, &leases[1], 50).await;
            all += 50;
            assert!(!fetch(&mut busy, 10).await.entries.is_empty());
        }
    })
    .await
    .expect("it gets it");
    assert_eq!(named(&mut bench, "reader").await, 1);
    // The other one goes on without.
    append(&bench, &leases[0], 1).await;
    timeout(LONG, waiting).await.expect("it has woken").expect("no panic");
}

#[tokio::test]
async fn busy_readers_take_turns_and_read_everything_once() {
    const EACH: usize = 40_000;
    let mut bench = with(2).await;
    let leases = partitions(&bench, 6).await;
    for lease in &leases {
        append(&bench, lease, EACH).await;
    }
    let mut readers = JoinSet::new();
    for lease in &leases {
        let mut reader = bench.backend.reader(lease).await.expect("a reader");
        readers.spawn(async move { read(&mut reader, EACH).await });
    }
    timeout(LONG * 3, readers.join_all()).await.expect("all is read");
    assert!(named(&mut bench, "reader").await <= 2);
}

/// A call that was given up must not take entries away from the reader that has begun after it.
#[tokio::test]
async fn a_call_of_an_earlier_reader_reads_nothing() {
    let mut bench = with(0).await;
    let mut reader = bench.reader().await;
    assert!(fetch(&mut reader, 10).await.entries.is_empty());
    let Value::BulkString(word) = bench.cmd(&format!("HGET {} reader", bench.fence())).await else {
        panic!("no word")
    };
    let word = String::from_utf8(word).expect("text");
    let mut next = bench.reader().await;
    assert!(fetch(&mut next, 10).await.entries.is_empty());
    bench.append_many(3).await;
    let mut late = redis::cmd("XREADGROUP");
    late.arg(&["GROUP", bench.group.as_str(), "owner", "COUNT", "10", "STREAMS"]);
    late.arg(bench.log().as_str())
        .arg(bench.keys.gate(&bench.tp, &bench.group, &word).as_str())
        .arg(&[">", ">"]);
    let answer: redis::RedisResult<Value> = late.query_async(&mut bench.raw).await;
    assert_eq!(answer.expect_err("refused").code(), Some("NOGROUP"));
    assert_eq!(fetch(&mut next, 10).await.entries.len(), 3);
    // One that is not given up begins anew, and has everything that is not settled.
    assert_eq!(fetch(&mut reader, 10).await.entries.len(), 3);
}

#[tokio::test]
async fn a_lost_connection_is_told_and_opened_again() {
    let mut bench = with(0).await;
    let mut reader = bench.reader().await;
    assert!(fetch(&mut reader, 10).await.entries.is_empty());
    let waiting = tokio::spawn(async move { (reader.fetch(10, LONG).await, reader) });
    // Not while it logs in: a request that is under way then is unconfirmed.
    let line = loop {
        let text: String = redis::from_redis_value(bench.cmd("CLIENT LIST").await).expect("a list");
        let mut lines = text.lines().filter(|line| line.contains("name=millstream:changes "));
        match lines.find(|line| line.contains(" flags=t ") && !line.contains(" cmd=client")) {
            Some(line) => break line.to_owned(),
            None => tokio::task::yield_now().await,
        }
    };
    let id = line.split(' ').find_map(|word| word.strip_prefix("id=")).expect("an id").to_owned();
    bench.cmd(&format!("CLIENT KILL ID {id}")).await;
    let (lost, mut reader) = timeout(LONG, waiting).await.expect("told").expect("no panic");
    assert_eq!(lost.expect_err("cut").kind(), ErrorKind::Unavailable);
    let (fetched, _) = tokio::join!(timeout(LONG, reader.fetch(10, LONG)), bench.append(message("x")));
    assert_eq!(fetched.expect("in time").expect("fetched").entries.len(), 1);
}

/// Without the right to be told of changes, it looks by itself.
#[tokio::test]
async fn a_server_that_does_not_tell_is_looked_at() {
    let server = Server::start(&[]);
    let mut admin = redis::Client::open(server.url()).expect("a client").get_connection().expect("connected");
    let rules = ["SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-client|tracking"];
    redis::cmd("ACL").arg(&rules).exec(&mut admin).expect("a user");
    let url = server.url().replace("redis://", "redis://limited:pw@");
    let config = RedisConfig::new(url).with_max_reader_connections(0);
    let bench = Bench::at(config, Some(server)).await;
    let mut reader = bench.reader().await;
    assert!(fetch(&mut reader, 10).await.entries.is_empty());
    let waiting = tokio::spawn(async move { reader.fetch(10, LONG).await });
    tokio::task::yield_now().await;
    bench.append(message("x")).await;
    let fetched = timeout(LONG / 2, waiting).await.expect("it looks").expect("no panic");
    assert_eq!(fetched.expect("fetched").entries.len(), 1);
}

/// Larger than what messages should wait behind.
#[tokio::test]
async fn large_bodies_are_read_too() {
    let bench = with(0).await;
    let large = "x".repeat(1 << 20);
    for _ in 0..20 {
        bench.append(message(&large)).await;
    }
    let mut reader = bench.reader().await;
    read(&mut reader, 20).await;
}
