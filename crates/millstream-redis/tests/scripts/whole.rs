//! A whole life of messages, on a plain server and with every key checked on a cluster's node; and the catalog.

use std::time::Duration;

use millstream_core::catalog::{Catalog, PartitionStats, Start};
use millstream_core::dead_letters::DeadLetters;
use millstream_core::error::ErrorKind;
use millstream_core::inspect::Range;
use millstream_core::leases::Leases;
use millstream_core::log::{Log, Note, Settlement};
use millstream_core::members::{Members, Revision};
use millstream_core::schedule::Schedule;
use millstream_core::topic::{Retention, TopicSpec};
use millstream_redis::{RedisBackend, RedisConfig};

use crate::members::{assignment, member};
use crate::server::{Bench, Server, dead, fetch, grant, retry};

/// Runs every script at least once.
async fn life(bench: &mut Bench) {
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    let first = fetch(&mut reader, 8).await;
    assert_eq!(first.entries.len(), 4);
    let receipts: Vec<_> = first.entries.iter().map(|entry| entry.receipt).collect();
    let batch = [
        (receipts[0], Settlement::Ack),
        (receipts[1], retry(Duration::ZERO, 2, appended[1])),
        (receipts[2], dead(appended[2])),
        (receipts[3], retry(Duration::from_secs(60), 2, appended[3])),
    ];
    assert_eq!(bench.settle(&batch).await, (4, 0));
    tokio::time::sleep(Duration::from_millis(3)).await;
    let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
    assert_eq!((promoted.moved, promoted.orphans), (1, 0));
    assert!(promoted.next.expect("parked") > Duration::from_secs(50));
    let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 9).await.expect("listed").items;
    let replayed = bench.backend.replay(&bench.tp, &bench.group, &[letters[0].id]).await;
    assert_eq!(replayed.expect("replayed"), 1);
    let stats = bench.backend.stats(&bench.spec, &bench.group).await.expect("stats");
    let PartitionStats { length, lag, pending, retrying, dead: dead_letters, .. } = stats[0];
    assert_eq!((length, lag, pending, retrying, dead_letters), (4, Some(0), 0, 3, 0));

    // Where the group stands among its members, and what it is moved back to and given notes of.
    let one = member("a", "a-1");
    let pulse = bench.beat(&one, true).await;
    assert!(bench.publish(pulse.version, &assignment(&[("a", &[0])])).await);
    let (topic, group) = (&bench.spec.name, &bench.group);
    assert_eq!(
        bench.backend.roster(topic, group).await.expect("a roster").members,
        std::slice::from_ref(&one)
    );
    let mut watch = bench.backend.watch(topic, group).await.expect("a watch");
    watch.changed(Revision::default(), Duration::from_secs(9)).await.expect("a change");
    bench.backend.leave(topic, group, &one).await.expect("left");
    assert_eq!(bench.backend.expand(topic, 2).await.expect("grown").partitions, 2);
    let count = bench.backend.count(&bench.tp, Start::After(appended[0]), None, 9).await;
    assert_eq!(count.expect("counted"), 3);
    bench.backend.seek(&bench.lease, Start::After(appended[2])).await.expect("moved");
    bench.lease = crate::server::grant(&bench.backend, &bench.tp, &bench.group, "moved").await;
    let mut reader = bench.reader().await;
    let back = reader.fetch(1, Duration::ZERO).await.expect("fetched");
    let note = Note { attempt: 1, by: "a-1".into(), ..Note::default() };
    assert_eq!(bench.settle(&[(back.entries[0].receipt, Settlement::Hold(note.clone()))]).await, (1, 0));
    let mut second = bench.reader().await;
    assert_eq!(fetch(&mut second, 8).await.entries[0].note, Some(note));
    assert_eq!(bench.settle(&[(back.entries[0].receipt, Settlement::Ack)]).await, (1, 0));

    let again = fetch(&mut reader, 8).await;
    assert_eq!(again.entries.len(), 2);
    let batch = [
        (again.entries[0].receipt, dead(appended[1])),
        (again.entries[1].receipt, retry(Duration::ZERO, 3, appended[2])),
    ];
    assert_eq!(bench.settle(&batch).await, (2, 0));
    assert_eq!(bench.trim().await.expect("trimmed"), 4);
    crate::settle::unique::life(bench).await;
    crate::settle::dead_letters::life(bench).await;
    crate::shared::life(bench).await;
    crate::tasks::life(bench).await;
    crate::schedule::life(bench).await;
    crate::schedule::recurring::life(bench).await;
    crate::deleting::life(bench).await;
    bench.backend.renew(std::slice::from_ref(&bench.lease)).await.remove(0).expect("renewed");
    bench.backend.release(&bench.lease).await.expect("released");
    let next = grant(&bench.backend, &bench.tp, &bench.group, "next").await;
    assert!(next.epoch > bench.lease.epoch);
    assert_eq!(reader.fetch(8, Duration::ZERO).await.expect_err("lost").kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn on_a_plain_server() {
    life(&mut Bench::new().await).await;
}

/// A server that runs `#!lua` scripts as a cluster's node refuses every key that was not declared or is of
/// another slot.
#[tokio::test]
async fn with_every_key_checked_on_a_node_of_a_cluster() {
    let server = Server::start(&["--cluster-enabled", "yes"]);
    server.takes_all_slots().await;
    let config = RedisConfig::new(server.url()).with_strict_scripts(true);
    let mut bench = Bench::at(config, Some(server)).await;
    life(&mut bench).await;
}

#[tokio::test]
async fn the_first_to_create_a_topic_decides() {
    let mut bench = Bench::new().await;
    let spec = |n: u32| TopicSpec::new("flights".parse().expect("name"), n).expect("a topic");
    let first = spec(3).with_retention(Retention::Keep);
    assert_eq!(bench.backend.topic(&first.name).await.expect_err("none").kind(), ErrorKind::NotFound);
    assert_eq!(bench.backend.create_topic(&first).await.expect("created"), first);
    assert_eq!(bench.backend.create_topic(&spec(5)).await.expect("there"), first);
    assert_eq!(bench.backend.topic(&first.name).await.expect("there"), first);
    let names: Vec<_> =
        bench.backend.topics().await.expect("topics").iter().map(ToString::to_string).collect();
    assert_eq!(names, ["flights", "orders"]);
    let partitions = bench.keys.topic_partitions(&first.name);
    assert_eq!(bench.int(&format!("SCARD {partitions}")).await, 3);

    let meta = bench.keys.topic_meta(&first.name);
    for (change, kind) in [
        ("partitionCount 0", ErrorKind::Protocol),
        ("partitionCount x", ErrorKind::Protocol),
        ("retention moon", ErrorKind::Unsupported),
        ("retention age:x", ErrorKind::Protocol),
        ("maxLength many", ErrorKind::Protocol),
        ("format 3", ErrorKind::Unsupported),
        ("packing brotli:4:500:65536", ErrorKind::Unsupported),
        ("packing zstd:x", ErrorKind::Protocol),
    ] {
        bench.cmd(&format!("HSET {meta} partitionCount 3 format 1 retention keep maxLength 9")).await;
        bench.cmd(&format!("HSET {meta} {change}")).await;
        assert_eq!(bench.backend.topic(&first.name).await.expect_err(change).kind(), kind, "{change}");
        assert_eq!(bench.backend.create_topic(&first).await.expect_err(change).kind(), kind, "{change}");
    }
    bench.cmd(&format!("SET {meta} x")).await;
    let error = bench.backend.topic(&first.name).await.expect_err("a string");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains(meta.as_str()), "{error}");
    let error = bench.backend.create_topic(&first).await.expect_err("a string");
    assert_eq!(error.kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn a_group_is_created_once_and_where_it_is_missing() {
    let mut bench = Bench::new().await;
    let spec = TopicSpec::new("flights".parse().expect("name"), 1_200).expect("a topic");
    let group = "crew".parse().expect("name");
    let created = bench.backend.create_group(&spec, &group, Start::Latest).await.expect("created");
    assert!(created.new && created.partitions.len() == 1_200);
    let lost = bench.keys.log(&spec.iter().nth(700).expect("a partition"));
    bench.cmd(&format!("XGROUP DESTROY {lost} crew")).await;
    let again = bench.backend.create_group(&spec, &group, Start::Earliest).await.expect("there");
    assert!(!again.new);
    assert_eq!(again.partitions.iter().map(|p| p.0).collect::<Vec<_>>(), [700]);
    assert_eq!(bench.backend.groups(&spec.name).await.expect("groups"), std::slice::from_ref(&group));
    let stats = bench.backend.stats(&spec, &group).await.expect("stats");
    assert_eq!(stats.len(), 1_200);
    assert!(stats.iter().enumerate().all(|(i, s)| s.partition.0 as usize == i && s.length == 0));
    let unknown = "nobody".parse().expect("name");
    let stats = bench.backend.stats(&bench.spec, &unknown).await.expect("stats");
    let mut there = PartitionStats::empty(stats[0].partition);
    there.lag = None;
    assert_eq!(stats, [there], "a log is there, and nobody knows where the group will stand");
    let nowhere = TopicSpec::new("nowhere".parse().expect("name"), 1).expect("a topic");
    let stats = bench.backend.stats(&nowhere, &unknown).await.expect("stats");
    assert_eq!(stats, [PartitionStats::empty(stats[0].partition)]);
}

#[tokio::test]
async fn a_group_starts_where_it_is_told() {
    let bench = Bench::new().await;
    let appended = bench.append_many(3).await;
    let cases = [("a", Start::Earliest, 3), ("b", Start::After(appended[1]), 1), ("c", Start::Latest, 0)];
    for (name, start, unread) in cases {
        let group = name.parse().expect("name");
        bench.backend.create_group(&bench.spec, &group, start).await.expect("created");
        let lease = grant(&bench.backend, &bench.tp, &group, "n").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        assert_eq!(fetch(&mut reader, 10).await.entries.len(), unread, "{name}");
    }
}

#[tokio::test]
async fn with_the_permissions_of_the_readme_and_no_others() {
    let readme = include_str!("../../README.md");
    let block = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a list");
    let server = Server::start(&[]);
    let mut raw = crate::server::raw_connection(&server.url()).await;
    let mut acl = redis::cmd("ACL");
    acl.arg(&["SETUSER", "worker", "reset", "on", ">secret", "~*", "resetchannels", "-@all"]);
    acl.arg(block.split_whitespace().collect::<Vec<_>>());
    acl.exec_async(&mut raw).await.expect("a user");
    let url = format!("redis://worker:secret@127.0.0.1:{}", server.port);
    life(&mut Bench::at(RedisConfig::new(url), Some(server)).await).await;

    acl = redis::cmd("ACL");
    let server = Server::start(&[]);
    let mut raw = crate::server::raw_connection(&server.url()).await;
    acl.arg(&["SETUSER", "guest", "reset", "on", ">secret", "-@all", "+ping"]);
    acl.exec_async(&mut raw).await.expect("a user");
    let url = format!("redis://guest:secret@127.0.0.1:{}", server.port);
    let guest = RedisBackend::connect(RedisConfig::new(url)).await.expect("without INFO");
    assert_eq!(guest.topics().await.expect_err("not allowed").kind(), ErrorKind::Denied);
}
