//! Shared consumers on a Redis Cluster of which one node is frozen while they hold its messages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::cluster::Cluster;
use integration_tests::eventually;
use integration_tests::server::Builder;
use millstream::{Concurrency, ConsumerBuilder, Delivery, Millstream, Producer, Sharing, Topic};
use tokio::sync::watch;

use crate::load::{PARTITIONS, log};

const JOBS: Topic<u64> = Topic::new("jobs").partitions(PARTITIONS);
const TTL: Duration = Duration::from_secs(3);

/// A cluster whose nodes do not replace a frozen one, with a consumer that has found all its partitions.
struct Scene {
    cluster: Cluster,
    mq: Millstream,
    producer: Producer<u64>,
    /// The node to freeze. Heartbeats of the group go to another one.
    frozen: usize,
    /// Partitions of that node, and partitions of the others with their nodes.
    there: Vec<u32>,
    others: Vec<(u32, usize)>,
}

impl Scene {
    async fn start() -> Self {
        let settings = |builder: Builder| builder.arg("--cluster-node-timeout", "60000");
        let cluster = tokio::task::spawn_blocking(move || Cluster::start_with(3, 0, settings))
            .await
            .expect("a cluster");
        let mq = Millstream::connect(&cluster.url()).await.expect("connected");
        let producer = mq.producer(JOBS).await.expect("a producer");
        let frozen = (cluster.owner(cluster.slot("{jobs}")).expect("an owner") + 1) % 3;
        let place = |partition| cluster.owner(cluster.slot(&log(partition))).expect("an owner");
        let places = (0..PARTITIONS).map(|partition| (partition, place(partition)));
        let (there, others): (Vec<_>, Vec<_>) = places.partition(|(_, at)| *at == frozen);
        let there = there.into_iter().map(|(partition, _)| partition).collect();
        Self { cluster, mq, producer, frozen, there, others }
    }

    fn consumer(&self) -> ConsumerBuilder<u64> {
        self.mq.consumer(JOBS, "g").sharing(Sharing::Shared).lease_ttl(TTL)
    }

    /// Leaves a message pending under the name of a consumer that is not alive.
    fn leave_behind(&self, partition: u32, node: usize, value: u64) {
        const LEFT: &str = "redis.call('XADD', KEYS[1], '*', 'payload', ARGV[1])
            return #redis.call('XREADGROUP', 'GROUP', 'g', 'dead', 'COUNT', 1, 'STREAMS', KEYS[1], '>')";
        let left = self.cluster.nodes[node].cli(&["EVAL", LEFT, "1", &log(partition), &value.to_string()]);
        assert_eq!(left, "1", "it is pending");
    }

    /// Waits until nothing is pending at the nodes that are not frozen.
    async fn settled(&self) {
        for (partition, node) in &self.others {
            let pending = || self.cluster.nodes[*node].cli(&["XPENDING", &log(*partition), "g"]);
            eventually(async || pending().starts_with('0'), "nothing is pending at the others").await;
        }
    }
}

/// Values of messages at the frozen node; those of others are smaller.
const THERE: u64 = 1_000;

/// Handlers of the frozen node's messages take longer than the freeze, and as many as may be read are held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_messages_of_a_frozen_node_leave_room_for_those_of_the_others() {
    const PREFETCH: usize = 16;
    let scene = Scene::start().await;
    let (open, gate) = watch::channel(false);
    let (begun, handled) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (count, noted) = (begun.clone(), handled.clone());
    let consumer = scene.consumer().prefetch(PREFETCH).concurrency(Concurrency::Unordered(64));
    let consumer = consumer.start(move |message: Delivery<u64>| {
        let (count, noted, mut gate) = (count.clone(), noted.clone(), gate.clone());
        async move {
            if message.payload >= THERE {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = gate.wait_for(|open| *open).await;
            }
            noted.lock().expect("lock").push(message.payload);
            Ok::<(), millstream::Error>(())
        }
    });
    let consumer = consumer.await.expect("a consumer");
    let is_handled = |value: u64| handled.lock().expect("lock").contains(&value);
    let mut slow = Vec::new();
    for value in THERE..THERE + 3 * PREFETCH as u64 {
        let partition = scene.there[slow.len() % scene.there.len()];
        scene.producer.send(&value).partition(partition).await.expect("sent");
        slow.push(value);
    }
    // Reads need room for a quarter.
    let used_up = || begun.load(Ordering::Relaxed) > PREFETCH - PREFETCH / 4;
    eventually(async || used_up(), "the prefetch is used up").await;
    scene.cluster.nodes[scene.frozen].pause();
    // More than are read at a time, from every partition.
    for round in 0..3 {
        for (partition, _) in &scene.others {
            let value = round * 100 + u64::from(*partition);
            scene.producer.send(&value).partition(*partition).await.expect("sent");
        }
        for (partition, _) in &scene.others {
            let value = round * 100 + u64::from(*partition);
            eventually(async || is_handled(value), "messages of the others are handled").await;
        }
    }
    scene.settled().await;
    assert!(begun.load(Ordering::Relaxed) <= PREFETCH, "no more of the frozen node's have come");
    scene.cluster.nodes[scene.frozen].resume();
    open.send_replace(true);
    eventually(async || slow.iter().all(|value| is_handled(*value)), "those of the frozen node as well")
        .await;
    consumer.shutdown().await;
    let mut seen = handled.lock().expect("lock").clone();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "nothing is handled twice");
}

/// Claims have a limit of their own, and as many as may be claimed are held of the frozen node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claimed_messages_of_a_frozen_node_leave_room_for_claims_at_the_others() {
    let scene = Scene::start().await;
    let (open, gate) = watch::channel(false);
    let (begun, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handled = Arc::new(Mutex::new(Vec::new()));
    let (count, ended, noted) = (begun.clone(), told.clone(), handled.clone());
    // Fewer handlers than may be claimed, so that most of what is claimed waits for one.
    let consumer = scene.consumer().concurrency(Concurrency::Unordered(2));
    let consumer = consumer.start(move |message: Delivery<u64>| {
        let (count, ended, noted, mut gate) = (count.clone(), ended.clone(), noted.clone(), gate.clone());
        async move {
            if message.payload >= THERE {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::select! {
                    _ = gate.wait_for(|open| *open) => {}
                    // It makes room for other handlers.
                    () = message.cancelled() => { ended.fetch_add(1, Ordering::Relaxed); }
                }
            }
            noted.lock().expect("lock").push(message.payload);
            Ok::<(), millstream::Error>(())
        }
    });
    let consumer = consumer.await.expect("a consumer");
    let is_handled = |value: u64| handled.lock().expect("lock").contains(&value);
    let mut slow = Vec::new();
    for value in THERE..THERE + 24 {
        scene.leave_behind(scene.there[slow.len() % scene.there.len()], scene.frozen, value);
        slow.push(value);
    }
    eventually(async || begun.load(Ordering::Relaxed) == 2, "all handlers are busy").await;
    let ours = || {
        let pending = |partition: &u32| {
            let summary = scene.cluster.nodes[scene.frozen].cli(&["XPENDING", &log(*partition), "g"]);
            let mut lines = summary.lines().skip(3);
            let dead = std::iter::from_fn(|| Some((lines.next()?, lines.next()?)));
            dead.filter(|(name, _)| *name != "dead")
                .filter_map(|(_, count)| count.parse::<usize>().ok())
                .sum::<usize>()
        };
        scene.there.iter().map(pending).sum::<usize>()
    };
    eventually(async || ours() == 8, "as many are claimed as may be").await;
    scene.cluster.nodes[scene.frozen].pause();
    eventually(async || told.load(Ordering::Relaxed) >= 2, "handlers are told that nobody knows").await;
    for (partition, node) in &scene.others {
        scene.leave_behind(*partition, *node, u64::from(*partition));
    }
    for (partition, _) in &scene.others {
        eventually(async || is_handled(u64::from(*partition)), "what was left at the others is claimed")
            .await;
    }
    scene.settled().await;
    scene.cluster.nodes[scene.frozen].resume();
    open.send_replace(true);
    eventually(async || slow.iter().all(|value| is_handled(*value)), "those of the frozen node as well")
        .await;
    consumer.shutdown().await;
}
