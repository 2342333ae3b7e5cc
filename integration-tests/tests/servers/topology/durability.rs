//! Sends that wait for replicas or for the disk.

use std::time::{Duration, Instant};

use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::{Durability, ErrorKind, Millstream, Producer, Record, Topic};
use millstream_redis::{RedisBackend, RedisConfig};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);
const LOGS: [&str; 2] = ["stream:topic:{numbers:p:0}", "stream:topic:{numbers:p:1}"];
const REPLICATED: Durability = Durability::Replicated(1);

/// A primary and its replica.
struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    async fn start() -> Self {
        let pair = started(|| {
            let settings = || Server::builder().arg("--repl-diskless-sync-delay", "0");
            let primary = settings().start();
            let replica = settings().arg("--replicaof", &format!("127.0.0.1 {}", primary.port())).start();
            Self { primary, replica }
        });
        let pair = pair.await;
        // The first acknowledgement of a replica can take a second.
        let warm = connect(&pair.primary.url()).await.producer(Topic::<u64>::new("warm"));
        let warm = warm.durability(REPLICATED).await.expect("a producer");
        let begun = Instant::now();
        while let Err(error) = warm.send(&0).await {
            assert!(begun.elapsed() < HANG, "the replica never follows: {error}");
        }
        warm.close().await;
        pair
    }
}

fn stored(server: &Server) -> u64 {
    LOGS.iter().map(|log| server.cli(&["XLEN", log]).trim().parse::<u64>().expect("a number")).sum()
}

/// A second passes before the server is given up, and half of it before a send is unconfirmed.
async fn connect(url: &str) -> Millstream {
    let config = RedisConfig::new(url).with_response_timeout(Duration::from_secs(1));
    Millstream::over(RedisBackend::connect(config).await.expect("connected").into())
}

async fn producer(url: &str) -> Producer<u64> {
    connect(url).await.producer(NUMBERS).await.expect("a producer")
}

async fn started<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(start).await.expect("servers")
}

fn kind<T>(result: millstream::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_waits_for_a_replica_and_says_if_there_is_none() {
    let pair = Pair::start().await;
    let producer = producer(&pair.primary.url()).await;
    for n in 0..10 {
        producer.send(&n).durability(REPLICATED).await.expect("the replica confirms");
        assert_eq!(stored(&pair.replica), n + 1, "what was confirmed is at the replica");
    }
    let two =
        producer.send(&10).durability(Durability::Replicated(2)).await.expect_err("there is one replica");
    assert_eq!(two.kind(), ErrorKind::Unconfirmed);
    assert!(two.to_string().contains("stored, but 1 of 2 replicas have confirmed it within 500ms"), "{two}");
    assert_eq!(stored(&pair.primary), 11);

    pair.replica.pause();
    let (late, plain) = tokio::join!(producer.send(&11).durability(REPLICATED), async {
        let mut ends = Vec::new();
        for n in 12..20 {
            ends.push(kind(producer.send(&n).await));
        }
        ends
    });
    assert_eq!(kind(late), Some(ErrorKind::Unconfirmed), "no replica answers");
    assert_eq!(plain, [None; 8], "others do not wait for it");
    assert_eq!(stored(&pair.primary), 20, "what is unconfirmed is stored");

    // Those behind what is unconfirmed are neither refused nor stored twice.
    let more = (0..50).map(|n| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&n).durability(REPLICATED).await })
    });
    for send in more.collect::<Vec<_>>() {
        assert_eq!(kind(send.await.expect("a task")), Some(ErrorKind::Unconfirmed));
    }
    assert_eq!(stored(&pair.primary), 70);
    pair.replica.resume();
    producer.send(&99).durability(REPLICATED).await.expect("the replica is back");
    assert_eq!(stored(&pair.replica), 71);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_producers_wait_together_on_one_connection() {
    let pair = Pair::start().await;
    let mq = connect(&pair.primary.url()).await;
    let names: Vec<String> = (0..20).map(|n| format!("topic-{n}")).collect();
    let mut tasks = Vec::new();
    pair.primary.cli(&["CONFIG", "RESETSTAT"]);
    for name in &names {
        let topic = Topic::<u64>::new("x").named(name);
        let producer = mq.producer(topic).durability(REPLICATED).await.expect("a producer");
        for n in 0..5 {
            let producer = producer.clone();
            tasks.push(tokio::spawn(async move {
                for at in 0..10 {
                    producer.send(&(n * 100 + at)).key(n.to_string()).await.expect("confirmed");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("a task");
    }
    let clients = pair.primary.cli(&["CLIENT", "LIST"]);
    assert_eq!(clients.matches("name=millstream:producer").count(), 1, "{clients}");
    let stats = pair.primary.cli(&["INFO", "commandstats"]);
    let calls = |command: &str| -> u64 {
        let line =
            stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).expect("calls");
        line.split(['=', ',']).nth(1).and_then(|calls| calls.parse().ok()).expect("a number")
    };
    assert_eq!(calls("xadd"), 1_000);
    assert!(calls("wait") * 2 <= 1_000, "{} waits for 1,000 entries of 100 tasks", calls("wait"));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_are_confirmed_too() {
    const BODIES: Topic<bytes::Bytes> = Topic::raw("numbers").partitions(2);
    let pair = Pair::start().await;
    let mq = connect(&pair.primary.url()).await;
    let producer =
        mq.producer(BODIES).durability(REPLICATED).buffer_memory(64 << 20).await.expect("a producer");
    let body = bytes::Bytes::from(vec![7; 1 << 20]);
    let sent = producer.send_all((0..100).map(|_| Record::new(&body))).await;
    let kinds: Vec<_> = sent.into_iter().filter_map(kind).collect();
    // A replica that needs longer than the limit leaves messages unconfirmed, and nothing else happens to them.
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Unconfirmed), "{kinds:?}");
    assert_eq!(stored(&pair.primary), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_stands_still_leaves_no_doubt_unsaid() {
    let pair = Pair::start().await;
    let producer = producer(&pair.primary.url()).await;
    producer.send(&0).durability(REPLICATED).await.expect("confirmed");
    let (mut confirmed, mut unconfirmed) = (1, 0);
    // Half, one and two times the time after which a connection is given up.
    for pause in [500, 1_000, 2_000] {
        pair.primary.pause();
        let sends = (0..20).map(|n| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.send(&n).durability(REPLICATED).await })
        });
        let sends: Vec<_> = sends.collect();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        pair.primary.resume();
        for send in sends {
            match kind(send.await.expect("a task")) {
                None => confirmed += 1,
                Some(ErrorKind::Unconfirmed) => unconfirmed += 1,
                Some(other) => panic!("{other}"),
            }
        }
    }
    producer.send(&99).durability(REPLICATED).await.expect("confirmed");
    let stored = stored(&pair.primary);
    assert!(
        (confirmed + 1..=confirmed + 1 + unconfirmed).contains(&stored),
        "{stored}, {confirmed} confirmed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_confirm_stores_nothing() {
    let server = started(Server::start).await;
    let to_disk = producer(&server.url()).await;
    let refused = to_disk.send(&1).durability(Durability::Fsynced).await.expect_err("no file");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(stored(&server), 0);

    server.cli(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-wait"]);
    let denied = producer(&format!("redis://app:secret@127.0.0.1:{}", server.port())).await;
    let refused = denied.send(&1).durability(REPLICATED).await.expect_err("no right");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert_eq!(stored(&server), 0);
    denied.send(&1).await.expect("what needs no right is sent");
}

/// A replica refuses `WAIT` itself, not only entries.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_waits_while_the_server_is_a_replica() {
    let server = started(Server::start).await;
    let producer = producer(&server.url()).await;
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let send = tokio::spawn(async move { producer.send(&1).durability(REPLICATED).await });
    // It has tried, and been refused.
    let refused = || server.cli(&["INFO", "commandstats"]).contains("cmdstat_wait:");
    eventually(async || refused(), "the first attempt").await;
    assert!(!send.is_finished(), "it is tried again");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(kind(send.await.expect("a task")), Some(ErrorKind::Unconfirmed), "there is no replica");
    assert_eq!(stored(&server), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_waits_for_the_disk_where_the_server_can() {
    let settings = || Server::builder().appendonly(true).arg("--appendfsync", "everysec");
    let server = started(move || settings().start()).await;
    let producer = producer(&server.url()).await;
    let known = server.cli(&["COMMAND", "INFO", "WAITAOF"]).contains("waitaof");
    let sends = (0..20).map(|n| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&n).durability(Durability::Fsynced).await })
    });
    let mut ends = Vec::new();
    for send in sends.collect::<Vec<_>>() {
        ends.push(kind(send.await.expect("a task")));
    }
    if known {
        // The file is written to the disk once a second, or later where the disk is slow.
        assert!(ends.iter().all(|end| matches!(end, None | Some(ErrorKind::Unconfirmed))), "{ends:?}");
        assert_eq!(stored(&server), 20);
        server.cli(&["CONFIG", "SET", "appendfsync", "always"]);
        producer.send(&20).durability(Durability::Fsynced).await.expect("each write goes to the disk");
        server.cli(&["CONFIG", "SET", "appendonly", "no"]);
        let late = producer.send(&21).durability(Durability::Fsynced).await.expect_err("the file is gone");
        assert_eq!(late.kind(), ErrorKind::Unconfirmed, "{late}");
        assert_eq!(stored(&server), 22);
    } else {
        assert_eq!(ends, [Some(ErrorKind::Unsupported); 20], "this server has no WAITAOF");
        assert_eq!(stored(&server), 0);
    }
}

/// With `appendfsync no` the server never syncs its file by itself, but for that which a rewrite replaces.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leaves_syncing_to_the_system_confirms_nothing_until_it_rewrites_its_file() {
    let settings = || Server::builder().appendonly(true).arg("--appendfsync", "no");
    let server = started(move || settings().start()).await;
    let to_disk = producer(&server.url()).await;
    if !server.cli(&["COMMAND", "INFO", "WAITAOF"]).contains("waitaof") {
        let refused = to_disk.send(&0).durability(Durability::Fsynced).await;
        assert_eq!(kind(refused), Some(ErrorKind::Unsupported), "this server has no WAITAOF");
        return;
    }
    let sends = (0..20).map(|n| {
        let producer = to_disk.clone();
        tokio::spawn(async move { producer.send(&n).durability(Durability::Fsynced).await })
    });
    let sends = sends.collect::<Vec<_>>();
    to_disk.send(&20).await.expect("what waits for nothing is sent meanwhile");
    for send in sends {
        let late = send.await.expect("a task").expect_err("no file is synced");
        assert_eq!(late.kind(), ErrorKind::Unconfirmed, "{late}");
        assert!(
            late.to_string().contains("stored, but") && late.to_string().contains("appendfsync"),
            "{late}"
        );
    }
    assert_eq!(stored(&server), 21, "each is stored once");

    // Time enough to begin a rewrite while the send waits.
    let config = RedisConfig::new(server.url()).with_response_timeout(Duration::from_secs(30));
    let patient = Millstream::over(RedisBackend::connect(config).await.expect("connected").into());
    let patient = patient.producer(NUMBERS).await.expect("a producer");
    let send = tokio::spawn(async move { patient.send(&21).durability(Durability::Fsynced).await });
    eventually(async || stored(&server) == 22, "the message is stored").await;
    assert!(!send.is_finished(), "it waits");
    server.cli(&["BGREWRITEAOF"]);
    send.await.expect("a task").expect("the file that is replaced was synced");
}
