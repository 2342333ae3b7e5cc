//! The catalog: topics that grow, places to start from, and counting.

pub(crate) mod lag;
pub(crate) mod repairs;

use millstream_core::Timestamp;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{Append, Log};
use millstream_core::topic::{TopicPartition, TopicSpec};
use millstream_redis::{RedisBackend, RedisConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::server::{Bench, Server, fetch, grant, ids, message};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

#[tokio::test]
async fn a_topic_grows_with_a_place_for_every_group_and_never_shrinks() {
    let mut bench = Bench::new().await;
    let (name, meta) = (bench.spec.name.clone(), bench.keys.topic_meta(&bench.spec.name));
    let audit = "audit".parse().expect("name");
    bench.backend.create_group(&bench.spec, &audit, Start::Latest).await.expect("created");
    let grown = bench.backend.expand(&name, 700).await.expect("grown");
    assert_eq!((grown.partitions, grown.retention), (700, bench.spec.retention));
    for partitions in [0, 3, 700] {
        assert_eq!(bench.backend.expand(&name, partitions).await.expect("nothing to do"), grown);
    }
    assert_eq!(bench.backend.topic(&name).await.expect("there"), grown);
    let logs = bench.keys.topic_partitions(&name);
    assert_eq!(bench.int(&format!("SCARD {logs}")).await, 700);

    // What is sent to a new partition waits for a group that started with what comes, too.
    let last = TopicPartition::new(name.clone(), 699);
    let append = Append::new(last.clone(), message("x"));
    let id = bench.backend.append(&[append]).await.remove(0).expect("appended").id;
    for group in [&bench.group, &audit] {
        let lease = grant(&bench.backend, &last, group, "n").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        assert_eq!(ids(&fetch(&mut reader, 10).await), [id], "{group}");
        let again = bench.backend.create_group(&grown, group, Start::Latest).await.expect("there");
        assert!(!again.new && again.partitions.is_empty(), "{group} was missing on {:?}", again.partitions);
    }

    let error = bench.backend.expand(&name, 16_385).await.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let nowhere = "nowhere".parse().expect("name");
    assert_eq!(bench.backend.expand(&nowhere, 3).await.expect_err("none").kind(), ErrorKind::NotFound);
    let nothing = bench.keys.topic_meta(&nowhere);
    assert_eq!(bench.int(&format!("EXISTS {nothing}")).await, 0);
    bench.cmd(&format!("HSET {meta} format 3")).await;
    assert_eq!(bench.backend.expand(&name, 800).await.expect_err("newer").kind(), ErrorKind::Unsupported);
    bench.cmd(&format!("SET {meta} x")).await;
    assert_eq!(bench.backend.expand(&name, 800).await.expect_err("a string").kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn an_expansion_that_stopped_half_way_is_finished_and_of_two_the_larger_wins() {
    let mut bench = Bench::new().await;
    let name = bench.spec.name.clone();
    let tp = |n: u32| TopicPartition::new(name.clone(), n);
    let (two, logs) = (bench.keys.log(&tp(2)), bench.keys.topic_partitions(&name));
    bench.cmd(&format!("XGROUP CREATE {two} billing 0 MKSTREAM")).await;
    bench.cmd(&format!("SADD {logs} {two}")).await;
    assert_eq!(bench.backend.topic(&name).await.expect("there").partitions, 1, "nothing has grown yet");

    let mut calls = JoinSet::new();
    for partitions in [4, 9, 2, 6] {
        let (backend, name) = (bench.backend.clone(), name.clone());
        calls.spawn(async move { (partitions, backend.expand(&name, partitions).await.expect("grown")) });
    }
    for (asked, spec) in calls.join_all().await {
        assert!(spec.partitions >= asked, "{asked}: {spec:?}");
    }
    assert_eq!(bench.backend.topic(&name).await.expect("there").partitions, 9);
    assert_eq!(bench.int(&format!("SCARD {logs}")).await, 9);
    let stats = bench.backend.stats(&bench.backend.topic(&name).await.expect("there"), &bench.group).await;
    assert!(stats.expect("stats").iter().all(|one| one.position == Some(MessageId::ZERO)));
}

/// As long as a group is missing on a new partition, a trim there would drop what the group has not read.
#[tokio::test]
async fn a_topic_does_not_grow_before_its_groups() {
    let mut bench = Bench::new().await;
    let name = bench.spec.name.clone();
    let new = TopicPartition::new(name.clone(), 1);
    let (log, retry_log) = (bench.keys.log(&new), bench.keys.retry_log(&new, &bench.group));
    bench.cmd(&format!("SET {retry_log} theirs")).await;
    let error = bench.backend.expand(&name, 2).await.expect_err("the group cannot be created");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert_eq!(bench.backend.topic(&name).await.expect("there").partitions, 1);
    bench.cmd(&format!("DEL {retry_log}")).await;
    assert_eq!(bench.backend.expand(&name, 2).await.expect("grown").partitions, 2);
    assert_eq!(bench.groups_on(&log).await, ["billing"]);
}

/// Its creator has read the old number of partitions, and may be stopped before it looks a second time.
#[tokio::test]
async fn a_group_that_is_registered_while_a_topic_grows_is_on_the_new_partition() {
    let server = Server::start(&[]);
    let mut bench = Bench::at(RedisConfig::new(server.url()), None).await;
    let name = bench.spec.name.clone();
    // Registered after the groups were listed, and before the number of partitions changes.
    let mut register = redis::cmd("SADD");
    register.arg(bench.keys.topic_groups(&name).as_str()).arg("late");
    let port = before_requests_with("XGROUP", server.port, register, bench.raw.clone()).await;
    let config = RedisConfig::new(format!("redis://127.0.0.1:{port}"));
    let config = config.with_namespace(bench.namespace.clone());
    let behind = RedisBackend::connect(config).await.expect("connected");
    assert_eq!(behind.expand(&name, 2).await.expect("grown").partitions, 2);
    let log = bench.keys.log(&TopicPartition::new(name, 1));
    assert_eq!(bench.groups_on(&log).await, ["billing", "late"]);
}

impl Bench {
    /// Names of the groups on a stream.
    async fn groups_on(&mut self, stream: &Key) -> Vec<String> {
        let groups = self.cmd(&format!("XINFO GROUPS {stream}")).await.into_sequence().expect("groups");
        let name = |group: redis::Value| {
            let fields = group.into_sequence().expect("fields");
            redis::from_redis_value(fields[1].clone()).expect("a name")
        };
        groups.into_iter().map(name).collect()
    }
}

/// Forwards connections to a server, and runs a command before each request that contains a word. Returns its port.
async fn before_requests_with(
    word: &'static str,
    server: u16,
    command: redis::Cmd,
    raw: redis::aio::MultiplexedConnection,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (command, mut raw) = (command.clone(), raw.clone());
            let upstream = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
            let ((mut requests, mut to_client), (mut answers, mut to_server)) =
                (client.into_split(), upstream.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to_client).await });
            tokio::spawn(async move {
                let mut request = vec![0; 64 << 10];
                while let Ok(read @ 1..) = requests.read(&mut request).await {
                    if request[..read].windows(word.len()).any(|part| part == word.as_bytes()) {
                        command.exec_async(&mut raw).await.expect("done");
                    }
                    to_server.write_all(&request[..read]).await.expect("sent");
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn entries_are_counted_between_two_places() {
    let mut bench = Bench::new().await;
    let key = bench.log();
    for n in 1..=950 {
        // Ten to a millisecond.
        bench.cmd(&format!("XADD {key} {}-{} payload x", 1_000 + n / 10, n % 10)).await;
    }
    let id = |n: u64| MessageId::new(1_000 + n / 10, n % 10);
    let all = u64::MAX;
    let cases = [
        (Start::Earliest, None, all, 950),
        (Start::Earliest, None, 7, 7),
        (Start::Earliest, Some(id(400)), all, 400),
        (Start::After(id(1)), None, all, 949),
        (Start::After(id(1)), None, 400, 400),
        (Start::After(id(1)), None, 0, 0),
        (Start::After(id(200)), Some(id(601)), all, 401),
        (Start::After(id(200)), Some(id(601)), 401, 401),
        (Start::After(id(200)), Some(id(100)), all, 0),
        (Start::At(AT(0)), Some(id(200)), all, 200),
        (Start::At(AT(1_001)), None, all, 941),
        (Start::At(AT(u64::MAX)), None, all, 0),
        (Start::Latest, None, all, 0),
        (Start::After(MessageId::MAX), None, all, 0),
        (Start::Earliest, Some(MessageId::MAX), all, 950),
    ];
    for (start, end, limit, expected) in cases {
        let counted = bench.backend.count(&bench.tp, start, end, limit).await.expect("counted");
        assert_eq!(counted, expected, "{start:?} {end:?} {limit}");
    }
    let nowhere = TopicPartition::new("nowhere".parse().expect("name"), 0);
    for start in [Start::Earliest, Start::At(AT(5))] {
        assert_eq!(bench.backend.count(&nowhere, start, None, all).await.expect("counted"), 0);
    }
    bench.cmd(&format!("DEL {key}")).await;
    bench.cmd(&format!("SET {key} x")).await;
    for start in [Start::Earliest, Start::At(AT(5))] {
        let error = bench.backend.count(&bench.tp, start, None, all).await.expect_err("a string");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(key.as_str()), "{error}");
    }
}

#[tokio::test]
async fn a_group_starts_at_a_time() {
    let mut bench = Bench::new().await;
    let key = bench.log();
    let appended = [(5, 1), (7, 0), (7, 1), (9, 0)].map(|(ms, seq)| MessageId::new(ms, seq));
    for id in appended {
        bench.cmd(&format!("XADD {key} {id} payload x")).await;
    }
    for (ms, unread) in [(0, 4), (5, 4), (6, 3), (7, 3), (8, 1), (10, 0)] {
        let group = format!("at-{ms}").parse().expect("name");
        bench.backend.create_group(&bench.spec, &group, Start::At(AT(ms))).await.expect("created");
        let lease = grant(&bench.backend, &bench.tp, &group, "n").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        assert_eq!(ids(&fetch(&mut reader, 10).await), appended[4 - unread..], "{ms}");
        let stats = bench.backend.stats(&bench.spec, &group).await.expect("stats");
        // Never beyond the end, or it would skip what comes.
        assert_eq!((stats[0].position, stats[0].pending), (Some(appended[3]), unread as u64), "{ms}");
    }
}

/// Who comes while somebody else creates it: the marks are those of one that was stopped in the middle of it.
#[tokio::test]
async fn a_group_that_is_being_created_is_new_and_starts_where_the_first_one_said() {
    let mut bench = Bench::new().await;
    let name = bench.spec.name.clone();
    let grown = bench.backend.expand(&name, 3).await.expect("grown");
    let tp = |n: u32| TopicPartition::new(name.clone(), n);
    let group: millstream_core::GroupName = "late".parse().expect("name");
    let (first, groups) = (bench.keys.log(&tp(0)), bench.keys.topic_groups(&name));
    let state = bench.keys.group_state(&name, &group);
    let append = |n| Append::new(tp(n), message("x"));
    for sent in bench.backend.append(&[append(0), append(1), append(2)]).await {
        sent.expect("appended");
    }
    bench.cmd(&format!("SADD {groups} late")).await;
    bench.cmd(&format!("HSET {state} starts $")).await;
    bench.cmd(&format!("XGROUP CREATE {first} late $")).await;
    let created = bench.backend.create_group(&grown, &group, Start::Earliest).await.expect("created");
    assert!(created.new, "it is nobody's loss");
    assert_eq!(created.partitions, [tp(1).partition, tp(2).partition]);
    for n in 0..3 {
        let lease = grant(&bench.backend, &tp(n), &group, "n").await;
        let mut reader = bench.backend.reader(&lease).await.expect("a reader");
        assert!(fetch(&mut reader, 10).await.entries.is_empty(), "partition {n}");
    }
    assert_eq!(bench.int(&format!("EXISTS {state}")).await, 0, "it is everywhere by now");
    // What is missing from now on was lost.
    let second = bench.keys.log(&tp(1));
    bench.cmd(&format!("XGROUP DESTROY {second} late")).await;
    let created = bench.backend.create_group(&grown, &group, Start::Latest).await.expect("created");
    assert_eq!((created.new, created.partitions), (false, vec![tp(1).partition]));
    let position = bench.backend.stats(&grown, &group).await.expect("stats")[1].position;
    assert_eq!(position, Some(MessageId::ZERO));
}

#[tokio::test]
async fn of_several_who_create_a_group_at_once_nobody_takes_it_for_lost() {
    let mut bench = Bench::new().await;
    let topic = bench.backend.expand(&bench.spec.name, 8).await.expect("grown");
    for round in 0..40 {
        let group: millstream_core::GroupName = format!("g{round}").parse().expect("name");
        let mut starters = JoinSet::new();
        for _ in 0..4 {
            let config = millstream_redis::RedisConfig::new(bench.url.clone());
            let config = config.with_namespace(bench.namespace.clone());
            let (topic, group) = (topic.clone(), group.clone());
            starters.spawn(async move {
                let backend = millstream_redis::RedisBackend::connect(config).await.expect("connected");
                backend.create_group(&topic, &group, Start::Latest).await.expect("created")
            });
        }
        while let Some(created) = starters.join_next().await {
            let created = created.expect("no panic");
            assert!(created.new || created.partitions.is_empty(), "round {round}: {created:?}");
        }
        let state = bench.keys.group_state(&topic.name, &group);
        assert_eq!(bench.int(&format!("EXISTS {state}")).await, 0, "round {round}");
    }
}

#[tokio::test]
async fn what_is_there_needs_no_write() {
    let mut bench = Bench::private(&[]).await;
    let (spec, group) = (bench.spec.clone(), bench.group.clone());
    let unknown = TopicSpec::new("unknown".parse().expect("name"), 1).expect("a topic");
    bench.cmd("CONFIG SET maxmemory 1").await;
    assert_eq!(bench.backend.create_topic(&spec).await.expect("there"), spec);
    let created = bench.backend.create_group(&spec, &group, Start::Earliest).await.expect("there");
    assert!(!created.new && created.partitions.is_empty(), "{created:?}");
    let refused = bench.backend.create_topic(&unknown).await.expect_err("no memory");
    assert_eq!(refused.kind(), ErrorKind::Backpressure);
    // What is not there cannot be created.
    let log = bench.log();
    bench.cmd(&format!("XGROUP DESTROY {log} {group}")).await;
    let refused = bench.backend.create_group(&spec, &group, Start::Earliest).await.expect_err("no memory");
    assert_eq!(refused.kind(), ErrorKind::Backpressure);
    bench.cmd("CONFIG SET maxmemory 0").await;
    bench.backend.create_group(&spec, &group, Start::Earliest).await.expect("created");

    bench.cmd("REPLICAOF 127.0.0.1 1").await;
    assert_eq!(bench.backend.create_topic(&spec).await.expect("there"), spec);
    for refused in [
        bench.backend.create_topic(&unknown).await.map(drop),
        bench.backend.create_group(&spec, &group, Start::Earliest).await.map(drop),
    ] {
        assert_eq!(refused.expect_err("read only").kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn what_keeps_entries_is_counted_up_to_a_limit_or_exactly() {
    let mut bench = Bench::new().await;
    let log = bench.log();
    bench.cmd(&format!("XGROUP CREATE {log} other 0")).await;
    let mut pipe = redis::pipe();
    (0..12_000).for_each(|_| {
        pipe.cmd("XADD").arg(log.as_str()).arg("*").arg("f").arg("v").ignore();
    });
    pipe.exec_async(&mut bench.raw).await.expect("appended");
    let first: Vec<(String, redis::Value)> = redis::cmd("XRANGE")
        .arg(log.as_str())
        .arg("-")
        .arg("+")
        .arg("COUNT")
        .arg(2)
        .query_async(&mut bench.raw)
        .await
        .expect("two entries");
    let entry = |n: usize| first[n].0.parse::<MessageId>().expect("an id");
    bench.cmd(&format!("XREADGROUP GROUP other o COUNT 12000 NOACK STREAMS {log} >")).await;
    for (read, oldest, entries, exact) in
        [(0, 0, 12_000, true), (1, 1, 10_000, false), (2_500, 0, 9_499, true)]
    {
        bench.cmd(&format!("XREADGROUP GROUP billing b COUNT {} NOACK STREAMS {log} >", read.max(1))).await;
        if read == 0 {
            bench.cmd(&format!("XGROUP SETID {log} billing 0")).await;
        }
        let pin = bench.backend.pins(&bench.spec).await.expect("pins").remove(0);
        assert_eq!((pin.group.as_str(), pin.messages, pin.exact), ("billing", entries, exact));
        if read < 2 {
            assert_eq!(pin.watermark, entry(oldest), "an entry");
        }
    }
}
