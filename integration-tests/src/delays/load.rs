//! The cost of delayed messages and tasks for a server: CPU, memory, and the latency of other clients.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream::{Delivery, Millstream, Record, Topic};
use millstream_core::schedule::MAX_PROMOTE;
use millstream_core::tasks::{ClaimRequest, MAX_CLAIM, Verdict};
use millstream_core::{ScheduleId, Shard, Timestamp, TopicPartition};
use millstream_delay::{DelayQueue, Task, TaskRecord};

use super::{Engine, info, server_cpu, wall_ms_in, wall_us};
use crate::fixture::raw_connection;
use crate::server::Server;

const BYTES: Topic<Bytes> = Topic::raw("burden").partitions(1);
const PAYLOAD: [u8; 128] = [b'x'; 128];
/// The number of messages that are scheduled in one call.
const PORTION: u64 = 10_000;
/// The number of messages that are due in one millisecond.
const EACH_MS: u64 = 100;

/// The cost of one message of 128 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Microseconds of server CPU to schedule it.
    pub schedule_us: f64,
    /// Microseconds of server CPU to append it to the log, or to claim it.
    pub go_us: f64,
    /// Microseconds of server CPU to complete the task; 0 for a message.
    pub complete_us: f64,
    /// Bytes of memory while it waits.
    pub bytes: f64,
    /// Microseconds of server CPU for the bare commands that keep a message until it is due and append it to a log, measured
    /// between the others: what the machine makes of a command at the moment.
    pub bare_us: f64,
}

/// Measures the cost of one message, averaged over many.
///
/// # Panics
/// If anything fails.
pub async fn cost(engine: Engine, messages: u64) -> Cost {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    // Creates what the first message needs: scripts, connections, keys.
    fill(&mq, engine, PORTION, wall_ms_in(Duration::ZERO) - PORTION / EACH_MS).await;
    let went = go(&mq, engine).await;
    complete(&mq, &went.1).await;
    server.cli(&["FLUSHDB"]);
    let memory = info(&server, "memory", "used_memory");
    let due = wall_ms_in(Duration::from_millis(20_000 + messages / 6));
    let mut raw = raw_connection(&server.url()).await;
    let (mut filling, mut bare_us, mut rounds) = (0.0, 0.0, 0);
    for from in (0..messages).step_by(usize::try_from(PORTION).expect("small")) {
        let cpu = server_cpu(&server);
        fill(&mq, engine, PORTION.min(messages - from), due + from / EACH_MS).await;
        filling += server_cpu(&server) - cpu;
        bare_us += bare(&server, &mut raw).await;
        rounds += 1;
    }
    let full = info(&server, "memory", "used_memory");
    let left = u64::try_from(due.cast_signed() * 1_000 - wall_us()).expect("not due before all wait");
    tokio::time::sleep(Duration::from_micros(left + 5_000) + Duration::from_millis(messages / EACH_MS)).await;
    bare_us += bare(&server, &mut raw).await;
    let waited = server_cpu(&server);
    let (moved, claims) = go(&mq, engine).await;
    assert_eq!(moved, messages);
    let went = server_cpu(&server);
    bare_us += bare(&server, &mut raw).await;
    complete(&mq, &claims).await;
    let each = |seconds: f64| seconds * 1e6 / messages as f64;
    Cost {
        schedule_us: each(filling),
        go_us: each(went - waited),
        complete_us: if claims.is_empty() { 0.0 } else { each(server_cpu(&server) - went) },
        bytes: (full - memory) / messages as f64,
        bare_us: bare_us / f64::from(rounds + 2),
    }
}

/// Keeps messages in a sorted set and a hash, takes them out and appends them to a stream, with bare commands of which many
/// travel together. Returns the microseconds of server CPU for each. Nothing stays.
async fn bare(server: &Server, raw: &mut redis::aio::MultiplexedConnection) -> f64 {
    const MESSAGES: u64 = 5_000;
    let before = server_cpu(server);
    for from in (0..MESSAGES).step_by(500) {
        let (mut keep, mut take) = (redis::pipe(), redis::pipe());
        for number in from..from + 500 {
            keep.cmd("ZADD").arg("bare:due").arg(number).arg(number).ignore();
            keep.cmd("HSET").arg("bare:items").arg(number).arg(&PAYLOAD[..]).ignore();
            take.cmd("ZREM").arg("bare:due").arg(number).ignore();
            take.cmd("HGET").arg("bare:items").arg(number).ignore();
            take.cmd("HDEL").arg("bare:items").arg(number).ignore();
            take.cmd("XADD").arg("bare:log").arg("*").arg("payload").arg(&PAYLOAD[..]).ignore();
        }
        keep.exec_async(raw).await.expect("kept");
        take.exec_async(raw).await.expect("taken");
    }
    let took = server_cpu(server) - before;
    redis::cmd("DEL").arg("bare:log").exec_async(raw).await.expect("deleted");
    took * 1e6 / MESSAGES as f64
}

/// Schedules messages: the first is due at a given time, and the others soon after it.
async fn fill(mq: &Millstream, engine: Engine, messages: u64, due: u64) {
    let payload = Bytes::from_static(&PAYLOAD);
    let producer = mq.producer(BYTES).await.expect("a producer");
    let queue = DelayQueue::raw("burden").open(mq.backend()).await.expect("opened");
    let mut left = messages;
    while left > 0 {
        let portion = left.min(PORTION);
        let time = |nth: u64| Timestamp::from_millis(due + (messages - left + nth) / EACH_MS);
        match engine {
            Engine::Topic => {
                let records = (0..portion).map(|nth| Record::new(&payload).at(time(nth)));
                let sent = producer.send_all_delayed(records).await;
                sent.into_iter().for_each(|sent| drop(sent.expect("sent")));
            }
            Engine::Queue => {
                let records = (0..portion).map(|nth| TaskRecord::new(&payload).at(time(nth)));
                let scheduled = queue.schedule_all(records).await;
                scheduled.into_iter().for_each(|one| drop(one.expect("scheduled")));
            }
        }
        left -= portion;
    }
}

/// Takes due items as promoters and workers do, without any other work. Returns their number and their claims.
async fn go(mq: &Millstream, engine: Engine) -> (u64, Vec<(ScheduleId, String)>) {
    let place = TopicPartition::new("burden".parse().expect("a name"), 0);
    let (mut moved, mut claims) = (0, Vec::new());
    loop {
        let now = match engine {
            Engine::Topic => {
                let promoted = mq.backend().schedule().promote_delayed(&place, MAX_PROMOTE).await;
                promoted.expect("promoted").moved
            }
            Engine::Queue => {
                let ask = ClaimRequest {
                    worker: "burden".into(),
                    limit: MAX_CLAIM,
                    hold: Duration::from_secs(3_600),
                    crash_limit: 3,
                    longest_sleep: Duration::from_secs(15),
                    continuity: millstream_core::Continuity::assured(),
                };
                let tasks = mq
                    .backend()
                    .tasks()
                    .expect("delay queues")
                    .claim(&shard(), &ask)
                    .await
                    .expect("claimed")
                    .tasks;
                let before = claims.len();
                claims.extend(tasks.into_iter().map(|task| (task.id, task.token)));
                claims.len() - before
            }
        };
        if now == 0 {
            return (moved, claims);
        }
        moved += now as u64;
    }
}

async fn complete(mq: &Millstream, claims: &[(ScheduleId, String)]) {
    for claims in claims.chunks(MAX_CLAIM) {
        let done: Vec<_> =
            claims.iter().map(|(id, token)| (id.clone(), token.clone(), Verdict::Complete)).collect();
        let settled =
            mq.backend().tasks().expect("delay queues").settle_tasks(&shard(), &done).await.expect("settled");
        assert_eq!(settled.applied, done.len());
    }
}

fn shard() -> Shard {
    Shard::new("burden".parse().expect("a name"), 0)
}

/// The state of a server while all overdue messages were handled.
#[derive(Clone, Debug)]
pub struct CatchUp {
    /// The time until everything was handled.
    pub took: Duration,
    /// The time that a `PING` took in the meantime, measured at its client, in microseconds.
    pub pings: Vec<i64>,
    /// The duration of script calls, as reported by the server.
    pub scripts: String,
    /// Microseconds of server CPU per message.
    pub cpu_us: f64,
}

/// Runs one consumer, or one worker, on messages that are all overdue.
///
/// # Panics
/// If anything fails.
pub async fn catch_up(engine: Engine, messages: u64) -> CatchUp {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    fill(&mq, engine, messages, wall_ms_in(Duration::ZERO) - messages / EACH_MS).await;
    server.cli(&["CONFIG", "RESETSTAT"]);
    let (cpu, probe, began) = (server_cpu(&server), Probe::start(server.port()), Instant::now());
    let queue = DelayQueue::raw("burden").open(mq.backend()).await.expect("opened");
    match engine {
        Engine::Topic => {
            let consumer = mq.consumer(BYTES, "g").start(|_: Delivery<Bytes>| async {}).await;
            let consumer = consumer.expect("started");
            while consumer.report().acked < messages {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            consumer.shutdown().await;
        }
        Engine::Queue => {
            let worker = queue.worker().concurrency(1_000).start(|_: Task<Bytes>| async {}).await;
            let worker = worker.expect("started");
            while worker.report().done < messages {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            worker.shutdown().await;
        }
    }
    let (took, pings) = (began.elapsed(), probe.stop());
    let stats = server.cli(&["INFO", "latencystats"]);
    let scripts = stats.lines().find_map(|line| line.strip_prefix("latency_percentiles_usec_evalsha:"));
    let cpu_us = (server_cpu(&server) - cpu) * 1e6 / messages as f64;
    CatchUp { took, pings, scripts: scripts.unwrap_or("?").trim().to_owned(), cpu_us }
}

/// Sends a `PING` every 2 ms, on a separate thread and connection, and measures the replies.
#[derive(Debug)]
pub struct Probe {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<i64>>,
}

impl Probe {
    /// Starts to send.
    ///
    /// # Panics
    /// If the server does not reply.
    #[must_use]
    pub fn start(port: u16) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        stream.set_nodelay(true).expect("set");
        let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
        let thread = std::thread::spawn({
            let over = over.clone();
            move || {
                let (mut pings, mut answer) = (Vec::new(), String::new());
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    (&stream).write_all(b"PING\r\n").expect("sent");
                    answer.clear();
                    answers.read_line(&mut answer).expect("answered");
                    assert_eq!(answer, "+PONG\r\n");
                    pings.push(i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX));
                    std::thread::sleep(Duration::from_millis(2));
                }
                pings
            }
        });
        Self { over, thread }
    }

    /// Stops, and returns how long each reply took, in microseconds.
    ///
    /// # Panics
    /// If the server did not reply.
    #[must_use]
    pub fn stop(self) -> Vec<i64> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("answered")
    }
}
