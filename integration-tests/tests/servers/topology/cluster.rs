//! A Redis Cluster that changes under load: slots that move, primaries that die, fail-overs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use integration_tests::cluster::Cluster;
use integration_tests::equipment::baseline::Stalls;
use integration_tests::eventually;
use integration_tests::history::now_us;
use integration_tests::server::Builder;
use millstream::admin::{Level, ServerMemory};
use millstream::{Concurrency, Delivery, Millstream, Record, Reply, Sharing, Start, Topic};
use millstream_core::TopicPartition;
use millstream_core::keys::Keys;
use tokio::sync::watch;

use crate::load::{Load, PARTITIONS, changes, log, log_of};

async fn start() -> (Cluster, Load) {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 1)).await.expect("a cluster");
    let load = Load::replicated(&cluster.url()).await;
    (cluster, load)
}

fn entries(cluster: &Cluster, log: &str) -> String {
    let owner = cluster.owner(cluster.slot(log)).expect("an owner");
    cluster.nodes[owner].cli(&["XRANGE", log, "-", "+"])
}

/// Returns a primary and its replica: another one for each change.
fn primary(cluster: &Cluster, change: usize) -> (usize, usize) {
    let pairs = cluster.pairs(3);
    pairs[change % pairs.len()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_lose_nothing_and_turn_nothing_round() {
    let (cluster, load) = start().await;
    for change in 0..changes(12) {
        let partition = u32::try_from(change).expect("few") % PARTITIONS;
        let log = log(partition);
        tokio::task::block_in_place(|| {
            let slot = cluster.slot(&log);
            let owner = cluster.owner(slot).expect("an owner");
            // The primaries are the first nodes.
            cluster.migrate(slot, (owner + 1 + change % 2) % 3, || {
                std::thread::sleep(Duration::from_millis(20));
            });
        });
        load.goes_on("messages of all keys, after a slot has moved").await;
    }
    load.end(&[], |log| entries(&cluster, log)).await;
}

/// A redirect, or a connection that ends with its node's slot, is no reason to store a message twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_sends_are_stored_once_while_slots_move_and_connections_end() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 0)).await.expect("a cluster");
    let load = Load::deduplicated(&cluster.url()).await;
    for change in 0..changes(6) {
        let log = log((change as u32 * 5) % PARTITIONS);
        tokio::task::block_in_place(|| {
            let slot = cluster.slot(&log);
            let owner = cluster.owner(slot).expect("an owner");
            cluster.migrate(slot, (owner + 1 + change % 2) % 3, || {
                cluster.nodes[owner].cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            });
        });
        load.goes_on("messages of all keys, after a slot has moved").await;
    }
    assert_eq!(load.unconfirmed(), 0, "each was repeated until it was answered");
    load.end(&[], |log| entries(&cluster, log)).await;
}

/// The key of a result that is waited for does not exist, so it does not move with its slot, and its former owner sends no notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_result_gets_it_though_the_slot_moves() {
    const PRICES: Topic<u64> = Topic::new("prices").partitions(1);
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 0)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    let producer = mq.producer(PRICES).await.expect("a producer");
    let within = Duration::from_secs(60);
    let asked = Instant::now();
    let waiting: Vec<_> = (0..20_u64)
        .map(|number| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.send(&number).reply::<u64>().within(within).await })
        })
        .collect();
    let looks = || {
        let stats = cluster.nodes.iter().map(|node| node.cli(&["INFO", "commandstats"]));
        let calls = stats.filter_map(|stats| {
            stats.split("cmdstat_get:calls=").nth(1)?.split(',').next()?.parse::<u64>().ok()
        });
        calls.sum::<u64>()
    };
    eventually(async || looks() >= 20, "each has looked").await;
    for change in 0..2 {
        tokio::task::block_in_place(|| {
            let slot = cluster.slot("stream:topic:{prices:p:0}");
            let owner = cluster.owner(slot).expect("an owner");
            cluster.migrate(slot, (owner + 1 + change) % 3, || {});
        });
    }
    let consumer = mq.consumer(PRICES, "g").start(async |number: Delivery<u64>| Reply::json(&number.payload));
    let consumer = consumer.await.expect("a consumer");
    for (number, reply) in (0..).zip(waiting) {
        assert_eq!(reply.await.expect("no panic").expect("a reply"), number);
    }
    // Against a wait that ends with its last look alone.
    assert!(asked.elapsed() < within, "{:?}", asked.elapsed());
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_is_asked_for_loses_nothing() {
    let (cluster, load) = start().await;
    let pace = load.pace(Duration::from_secs(1)).await;
    for change in 0..changes(3) {
        tokio::task::block_in_place(|| {
            let (_, replica) = primary(&cluster, change);
            cluster.nodes[replica].cli(&["CLUSTER", "FAILOVER"]);
            cluster.wait_primary(replica);
        });
        load.recovers(pace, "messages of all keys, after a fail-over").await;
    }
    load.end(&[], |log| entries(&cluster, log)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_that_are_killed_lose_what_was_not_replicated_and_nothing_else() {
    let (mut cluster, load) = start().await;
    let mut lost = Vec::new();
    let pace = load.pace(Duration::from_secs(1)).await;
    for change in 0..changes(2) {
        tokio::task::block_in_place(|| {
            let (primary, replica) = primary(&cluster, change);
            cluster.nodes[primary].kill();
            lost.push(Instant::now());
            cluster.wait_primary(replica);
        });
        load.recovers(pace, "messages of all keys, after the death of a primary").await;
        tokio::task::block_in_place(|| {
            for node in &mut cluster.nodes {
                if !node.is_running() {
                    node.restart();
                }
            }
            cluster.wait_ok();
        });
    }
    load.end(&lost, |log| entries(&cluster, log)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_frozen_is_left() {
    let (cluster, load) = start().await;
    let (primary, replica) = tokio::task::block_in_place(|| primary(&cluster, 0));
    let frozen = Instant::now();
    tokio::task::block_in_place(|| {
        cluster.nodes[primary].pause();
        cluster.wait_primary_but(replica, primary);
    });
    let promoted = Instant::now();
    load.goes_on("messages of all keys, while a primary is frozen").await;
    println!("promoted after {:?}, went on {:?} later", promoted - frozen, promoted.elapsed());
    tokio::task::block_in_place(|| {
        cluster.nodes[primary].resume();
        cluster.wait_ok();
    });
    load.goes_on("messages of all keys, after it came back").await;
    load.end(&[frozen], |log| entries(&cluster, log)).await;
}

/// The doctor queues each command that is needed in a transaction, and discards it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_doctor_only_tries_is_never_done() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(2, 0)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    // The name that the tried commands use.
    let producer = mq.producer(Topic::<u64>::new("doctor").partitions(1)).await.expect("a producer");
    producer.send(&1).await.expect("sent");
    let log = log_of("doctor", 0);
    let slot = cluster.slot(&log);
    let owner = cluster.owner(slot).expect("an owner");
    // Without one slot all nodes refuse every command with a key, until it has an owner again.
    let lost = if slot == 0 { "1".to_owned() } else { (slot - 1).to_string() };
    cluster.nodes[owner].cli(&["CLUSTER", "DELSLOTS", &lost]);
    eventually(
        async || cluster.nodes[owner].cli(&["CLUSTER", "INFO"]).contains("cluster_state:fail"),
        "down",
    )
    .await;
    let backend = mq.backend().clone();
    let doctor = tokio::spawn(async move { backend.inspect().expect("inspects").server().await });
    let refused = || cluster.nodes[owner].cli(&["INFO", "errorstats"]).contains("errorstat_CLUSTERDOWN");
    eventually(async || refused(), "its commands are refused").await;
    cluster.nodes[owner].cli(&["CLUSTER", "ADDSLOTS", &lost]);
    let seen = doctor.await.expect("no panic").expect("looked");
    assert_eq!(seen.denied, Vec::<String>::new());
    cluster.wait_ok();
    assert_eq!(cluster.nodes[owner].cli(&["XLEN", &log]), "1", "what it tried was done");
}

/// Settings, rights and versions may differ from node to node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_reports_each_node_by_its_address() {
    let settings = |builder: Builder| builder.arg("--cluster-node-timeout", "60000");
    let cluster =
        tokio::task::spawn_blocking(move || Cluster::start_with(3, 0, settings)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    let address = |at: usize| format!("127.0.0.1:{}", cluster.nodes[at].port());
    let found = async || {
        let reports = mq.admin().doctor().await.expect("reports");
        reports.into_iter().map(|it| (it.node.unwrap_or_default(), it.subject, it.level)).collect::<Vec<_>>()
    };
    let of = |subject: &str, level| {
        (0..3).map(|at| (address(at), subject.to_owned(), level)).collect::<BTreeSet<_>>()
    };
    let sound: BTreeSet<_> = found().await.into_iter().collect();
    for (subject, level) in [("rights", Level::Ok), ("appendonly", Level::Error), ("memory", Level::Warn)] {
        assert!(sound.is_superset(&of(subject, level)), "{subject}: {sound:?}");
    }
    cluster.nodes[0].cli(&["CONFIG", "SET", "appendonly", "yes", "appendfsync", "everysec"]);
    cluster.nodes[1].cli(&["CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru"]);
    cluster.nodes[2].cli(&["ACL", "SETUSER", "default", "-xclaim"]);
    let reports = found().await;
    let has = |at: usize, subject: &str, level| reports.contains(&(address(at), subject.to_owned(), level));
    assert!(has(0, "persistence", Level::Ok) && !has(1, "persistence", Level::Ok), "{reports:?}");
    assert!(
        has(1, "maxmemory-policy", Level::Error) && !has(0, "maxmemory-policy", Level::Error),
        "{reports:?}"
    );
    assert!(has(2, "rights", Level::Error) && has(0, "rights", Level::Ok), "{reports:?}");
    let used = mq.admin().servers().await.expect("servers");
    let expected = ServerMemory { used: used.iter().map(|server| server.used_memory).sum(), max: None };
    assert_eq!(ServerMemory::of(&used), expected);
    cluster.nodes[1].pause();
    let reports = found().await;
    cluster.nodes[1].resume();
    let away: Vec<_> = reports.iter().filter(|(node, ..)| *node == address(1)).collect();
    assert_eq!(away, [&(address(1), "server".to_owned(), Level::Error)], "and no more of it");
    assert!(reports.iter().any(|(node, ..)| *node == address(2)), "the others are reported as before");
}

/// For longer than leases last, and without a replica to take its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_costs_no_lease_at_the_others() {
    let settings = |builder: Builder| builder.arg("--cluster-node-timeout", "60000");
    let cluster =
        tokio::task::spawn_blocking(move || Cluster::start_with(3, 0, settings)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    let topic = Topic::<u64>::new("jobs").partitions(PARTITIONS);
    let ttl = Duration::from_secs(3);
    // Handlers run meanwhile, and note whether they lost their lease.
    let (begun, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (open, gate) = watch::channel(false);
    let (count, losers) = (begun.clone(), lost.clone());
    let consumer = mq.consumer(topic.clone(), "g").lease_ttl(ttl).start(move |message: Delivery<u64>| {
        let (count, losers, mut gate) = (count.clone(), losers.clone(), gate.clone());
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                _ = gate.wait_for(|open| *open) => {}
                () = message.cancelled() => losers.lock().expect("lock").push(message.payload),
            }
            Ok::<(), millstream::Error>(())
        }
    });
    let consumer = consumer.await.expect("a consumer");
    let tp = |partition| TopicPartition::new("jobs".parse().expect("a name"), partition);
    let fence = |partition| Keys::new().fence(&tp(partition), &"g".parse().expect("a name")).to_string();
    let frozen = cluster.owner(cluster.slot("{jobs}")).expect("an owner");
    // Heartbeats of the group go to another node.
    let frozen = (frozen + 1) % 3;
    let place = |partition| cluster.owner(cluster.slot(&fence(partition))).expect("an owner");
    let others: Vec<_> = (0..PARTITIONS)
        .map(|partition| (partition, place(partition)))
        .filter(|(_, at)| *at != frozen)
        .collect();
    let producer = mq.producer(topic).await.expect("a producer");
    for (partition, _) in &others {
        producer.send(&u64::from(*partition)).partition(*partition).await.expect("sent");
    }
    eventually(async || begun.load(Ordering::Relaxed) == others.len(), "a handler for each partition").await;
    cluster.nodes[frozen].pause();
    // Three lease times, by the servers' clocks: what is tested is time.
    tokio::time::sleep(3 * ttl).await;
    assert_eq!(*lost.lock().expect("lock"), Vec::<u64>::new(), "leases at nodes that answer were lost");
    open.send_replace(true);
    cluster.nodes[frozen].resume();
    consumer.shutdown().await;
}

/// The consumer reads, settles and claims at the nodes that answer, as if there were no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_stops_no_shared_consumer_at_the_others() {
    let settings = |builder: Builder| builder.arg("--cluster-node-timeout", "60000");
    let cluster =
        tokio::task::spawn_blocking(move || Cluster::start_with(3, 0, settings)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    let topic = Topic::<u64>::new("jobs").partitions(PARTITIONS);
    let handled = Arc::new(Mutex::new(Vec::new()));
    let noted = handled.clone();
    let consumer = mq
        .consumer(topic.clone(), "g")
        .sharing(Sharing::Shared)
        .concurrency(Concurrency::Unordered(8))
        .lease_ttl(Duration::from_secs(3));
    let consumer = consumer.start(move |message: Delivery<u64>| {
        noted.lock().expect("lock").push(message.payload);
        async { Ok::<(), millstream::Error>(()) }
    });
    let consumer = consumer.await.expect("a consumer");
    // Heartbeats of the group go to another node.
    let frozen = (cluster.owner(cluster.slot("{jobs}")).expect("an owner") + 1) % 3;
    let place = |partition| cluster.owner(cluster.slot(&log(partition))).expect("an owner");
    let places: Vec<_> = (0..PARTITIONS).map(|partition| (partition, place(partition))).collect();
    let (there, others): (Vec<_>, Vec<_>) = places.into_iter().partition(|(_, at)| *at == frozen);
    let producers = [
        mq.producer(topic.clone()).await.expect("a producer"),
        mq.producer(topic).await.expect("a producer"),
    ];
    let all_of = |values: Vec<u64>| {
        let handled = handled.clone();
        async move {
            let all = || values.iter().all(|value| handled.lock().expect("lock").contains(value));
            eventually(async || all(), "all of these are handled").await;
        }
    };
    for partition in 0..PARTITIONS {
        producers[0].send(&u64::from(partition)).partition(partition).await.expect("sent");
    }
    all_of((0..u64::from(PARTITIONS)).collect()).await;
    cluster.nodes[frozen].pause();
    let stalls = Stalls::start();
    // For more than a lease time and an answer's time, message after message.
    for round in 1..8 {
        let values: Vec<_> =
            others.iter().map(|(partition, _)| (partition, round * 100 + u64::from(*partition))).collect();
        for (partition, value) in &values {
            producers[1].send(value).partition(**partition).await.expect("sent");
        }
        let (begun, begun_us) = (Instant::now(), now_us());
        all_of(values.into_iter().map(|(_, value)| value).collect()).await;
        // Whatever waits for the frozen node waits for its answer: for five seconds by default.
        let (took, stalled) = (begun.elapsed(), stalls.since(begun_us));
        assert!(
            took < Duration::from_millis(2_500) + stalled,
            "round {round} waited for the frozen node: {took:?}; the machine stood still for {stalled:?}"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // They are settled too.
    for (partition, at) in &others {
        let key = log(*partition);
        let pending = || cluster.nodes[*at].cli(&["XPENDING", &key, "g"]);
        eventually(async || pending().starts_with('0'), "nothing is pending at the others").await;
    }
    cluster.nodes[frozen].resume();
    for (partition, _) in &there {
        producers[0].send(&(1_000 + u64::from(*partition))).partition(*partition).await.expect("sent");
    }
    all_of(there.iter().map(|(partition, _)| 1_000 + u64::from(*partition)).collect()).await;
    let mut seen = handled.lock().expect("lock").clone();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "nothing is handled twice");
    consumer.shutdown().await;
}

/// The clocks of nodes differ, and what waits in its place waits by that of its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_at_a_place_is_that_of_its_node() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 0)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    let asked = |node: &integration_tests::server::Server| -> u64 {
        let stats = node.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_time:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let all = || tokio::task::block_in_place(|| cluster.nodes.iter().map(asked).collect::<Vec<_>>());
    let mut owners = BTreeSet::new();
    for partition in 0..PARTITIONS {
        let owner = cluster.owner(cluster.slot(&log(partition))).expect("an owner");
        owners.insert(owner);
        let mut expected = all();
        expected[owner] += 1;
        let place = TopicPartition::new("jobs".parse().expect("a name"), partition).into();
        mq.backend().schedule().now_at(&place).await.expect("a time");
        assert_eq!(all(), expected, "partition {partition}");
    }
    assert!(owners.len() > 1, "all partitions are on one node");
}

/// All partitions are read by readers of their own, which begin at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_consumer_takes_no_more_than_its_prefetch_of_all_partitions() {
    const PREFETCH: usize = 16;
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 0)).await.expect("a cluster");
    let mq = Millstream::connect(&cluster.url()).await.expect("connected");
    let topic = Topic::<u64>::new("jobs").partitions(PARTITIONS);
    let producer = mq.producer(topic.clone()).await.expect("a producer");
    for partition in 0..PARTITIONS {
        let values: Vec<u64> = (0..50).collect();
        let sent = producer.send_all(values.iter().map(|n| Record::new(n).partition(partition))).await;
        assert!(sent.iter().all(Result::is_ok));
    }
    let (open, gate) = watch::channel(false);
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let consumer =
        mq.consumer(topic, "g").sharing(Sharing::Shared).prefetch(PREFETCH).start_from(Start::Earliest);
    let consumer = consumer.concurrency(Concurrency::Unordered(4)).start(move |_: Delivery<u64>| {
        let (count, mut gate) = (count.clone(), gate.clone());
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = gate.wait_for(|open| *open).await;
            Ok::<(), millstream::Error>(())
        }
    });
    let consumer = consumer.await.expect("a consumer");
    let pending = |partition| {
        let key = log(partition);
        let owner = cluster.owner(cluster.slot(&key)).expect("an owner");
        let summary = cluster.nodes[owner].try_cli(&["XPENDING", &key, "g"]).unwrap_or_default();
        summary.split_whitespace().next().and_then(|count| count.parse::<usize>().ok()).unwrap_or(0)
    };
    let held = || (0..PARTITIONS).map(pending).sum::<usize>();
    eventually(async || begun.load(Ordering::Relaxed) == 4, "its handlers are all busy").await;
    // Every reader has begun, and looked at its partition once more.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = held();
    open.send_replace(true);
    consumer.shutdown().await;
    assert!((4..=PREFETCH).contains(&held), "{held} messages are held, of {PREFETCH}");
}
