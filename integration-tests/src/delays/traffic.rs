//! The number of commands that the delay engine sends to a server: while nothing is due, and per task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream::{Delivery, Millstream, Record, Timestamp, Topic};
use millstream_delay::{DelayQueue, Task, TaskRecord, Worker};

use super::monitor::{Commands, Ear};
use super::{Engine, wall_ms_in, wall_us};
use crate::server::Server;

const FAR: Duration = Duration::from_secs(24 * 3_600);

/// The commands sent while nothing was due.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Commands of the delay engine per second, for each partition or shard.
    pub engine: f64,
    /// All commands per second for each partition or shard: for a partition also reading, lease renewal and trimming.
    pub place: f64,
    /// Commands per second for the group as a whole: heartbeats of its members. Their number does not grow with the
    /// number of partitions.
    pub group: f64,
    /// The counts of all commands.
    pub commands: Commands,
}

/// Whether a command is for the membership of a group. `CLIENT SETNAME` is sent too, on the connections of the
/// leases' loops.
fn is_for_the_group(kind: &str) -> bool {
    kind.contains("all ") || kind == "CLIENT SETNAME"
}

/// Whether a command is sent by promoters and workers. In a topic their wake-ups arrive with the reading.
fn is_of_the_engine(kind: &str) -> bool {
    const OURS: [&str; 7] = [
        "promote ",
        "promote_delayed ",
        "claim_tasks ",
        "settle_tasks ",
        "extend_tasks ",
        "BLPOP ",
        "CLIENT UNBLOCK",
    ];
    OURS.iter().any(|ours| kind.starts_with(ours))
}

/// Runs one consumer that owns `places` partitions, or `workers` workers on as many shards, all with the default
/// settings and with something parked in each that is not due. Counts the commands that they send for the time of
/// `listen`.
///
/// # Panics
/// If anything fails.
pub async fn idle(engine: Engine, places: u32, workers: usize, listen: Duration) -> Idle {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (mut consumers, mut pools) = (Vec::new(), Vec::new());
    match engine {
        Engine::Topic => {
            let topic = Topic::<u64>::new("idle").partitions(places);
            let producer = mq.producer(topic.clone()).await.expect("a producer");
            for partition in 0..places {
                let record = Record::new(&0).partition(partition).delay(FAR);
                producer.send_all_delayed([record]).await.remove(0).expect("sent");
            }
            let consumer = mq.consumer(topic, "g").start(|_: Delivery<u64>| async {}).await;
            consumers.push(consumer.expect("started"));
        }
        Engine::Queue => {
            let queue =
                DelayQueue::<u64>::new("idle").shards(places).open(mq.backend()).await.expect("opened");
            let records = (0..places * 20).map(|nth| TaskRecord::new(&0).delay(FAR).id(nth.to_string()));
            queue.schedule_all(records).await.into_iter().for_each(|one| drop(one.expect("scheduled")));
            pools = pool(&server, "idle", workers, 16, &Arc::default()).await;
        }
    }
    // Time to create connections and to check everything once.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let ear = Ear::open(server.port());
    let began = Instant::now();
    tokio::time::sleep(listen).await;
    let commands = ear.close();
    let seconds = began.elapsed().as_secs_f64();
    for consumer in consumers {
        consumer.shutdown().await;
    }
    end(pools).await;
    let each = |count: u64| count as f64 / seconds / f64::from(places);
    Idle {
        engine: each(commands.count(is_of_the_engine)),
        place: each(commands.count(|kind| !is_for_the_group(kind))),
        group: commands.count(is_for_the_group) as f64 / seconds,
        commands,
    }
}

/// The commands that several workers sent for the same tasks.
#[derive(Clone, Debug)]
pub struct Herd {
    /// Commands per task.
    pub per_task: f64,
    /// The counts of all commands.
    pub commands: Commands,
    /// The time from due to the handler, in microseconds.
    pub late_us: Vec<i64>,
}

/// Runs workers with a concurrency of one task each, and their own connections, on tasks that become due one by one.
///
/// # Panics
/// If anything fails, or not every task is done once.
pub async fn herd(workers: usize, tasks: u64, per_second: u64) -> Herd {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let queue = DelayQueue::<u64>::new("herd").open(mq.backend()).await.expect("opened");
    let came = Arc::new(Came::default());
    let pools = pool(&server, "herd", workers, 1, &came).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let base = wall_ms_in(Duration::from_millis(1_000 + tasks / 4));
    let dues: Vec<u64> = (0..tasks).map(|nth| base + nth * 1_000 / per_second).collect();
    let records = dues.iter().map(|due| TaskRecord::new(due).at(Timestamp::from_millis(*due)));
    queue.schedule_all(records).await.into_iter().for_each(|one| drop(one.expect("scheduled")));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ear = Ear::open(server.port());
    crate::eventually(async || came.times.load(Ordering::Relaxed) >= tasks, "all tasks are done").await;
    // The last settlements of the workers.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let commands = ear.close();
    end(pools).await;
    assert_eq!(came.times.load(Ordering::Relaxed), tasks, "each task is done once");
    let late_us = came.late_us.lock().expect("lock").clone();
    Herd { per_task: commands.count(|_| true) as f64 / tasks as f64, commands, late_us }
}

#[derive(Default)]
struct Came {
    times: AtomicU64,
    late_us: std::sync::Mutex<Vec<i64>>,
}

/// Starts workers with their own connections. A payload is the due time of its task.
async fn pool(server: &Server, queue: &str, workers: usize, room: usize, came: &Arc<Came>) -> Vec<Worker> {
    let mut pools = Vec::new();
    for _ in 0..workers {
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let queue = DelayQueue::<u64>::new(queue).open(mq.backend()).await.expect("opened");
        let came = came.clone();
        let handler = move |task: Task<u64>| {
            came.late_us.lock().expect("lock").push(wall_us() - task.payload.cast_signed() * 1_000);
            came.times.fetch_add(1, Ordering::Relaxed);
            async {}
        };
        pools.push(queue.worker().concurrency(room).start(handler).await.expect("started"));
    }
    pools
}

async fn end(pools: Vec<Worker>) {
    futures_util::future::join_all(pools.into_iter().map(Worker::shutdown)).await;
}
