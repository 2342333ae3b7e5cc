//! apalis: `apalis-rival URL MESSAGES RUNS`. Prints a line per run: messages/s sent, messages/s consumed, p50 and p99 in µs, and CPU of
//! the server in µs/message.

use std::env::args;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_redis::{Config, ConnectionManager, RedisStorage};
use serde::{Deserialize, Serialize};

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Tasks = RedisStorage<Job>;
type Latencies = Arc<Mutex<Vec<u64>>>;

const WARM_UP: usize = 2_000;
const RATE: u32 = 200;
const SECONDS: u32 = 5;
/// Tasks of one `push_bulk`.
const BULK: usize = 500;
/// Tasks that the worker fetches, and has, at once.
const CONCURRENCY: usize = 256;
/// Of more than about 8,000 tasks that wait, a worker of apalis-redis 1.0.0 gets none: "too many results to unpack".
const PORTION: usize = 5_000;
/// A worker is not told of tasks: those that are pushed are scheduled for now, which is not published.
const POLL: Duration = Duration::from_millis(10);
/// If an answer takes longer than that, the worker sleeps until its next heartbeat; the default would be 30 s.
const HEARTBEAT: Duration = Duration::from_secs(1);

#[derive(Deserialize, Serialize)]
struct Job {
    due: String,
    pad: String,
}

/// A JSON object of 128 bytes.
fn job(due: u64) -> Job {
    Job { due: format!("{due:020}"), pad: "x".repeat(128 - r#"{"due":"","pad":""}"#.len() - 20) }
}

async fn cpu(redis: &mut ConnectionManager) -> Result<f64, Failed> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(redis).await?;
    let used = info.lines().filter_map(|line| line.split_once(':'));
    let used = used.filter(|(name, _)| ["used_cpu_user", "used_cpu_sys"].contains(name));
    Ok(used.filter_map(|(_, value)| value.parse::<f64>().ok()).sum())
}

/// Runs a worker until it has handled so many tasks, and has acknowledged them.
async fn work(tasks: &Tasks, name: String, count: usize, clock: Instant) -> Result<Vec<u64>, Failed> {
    let all = Latencies::default();
    let handler = move |job: Job, all: Data<Latencies>, worker: WorkerContext| async move {
        let late = micros(clock).saturating_sub(job.due.parse()?);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(late);
        if all.len() == count {
            worker.stop()?;
        }
        Ok::<_, Failed>(())
    };
    let backend = tasks.clone().poll_with_interval(POLL);
    let worker = WorkerBuilder::new(name).backend(backend).concurrency(CONCURRENCY).data(all.clone());
    worker.build(handler).run().await?;
    let mut all = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
    all.sort_unstable();
    Ok(all)
}

fn micros(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_micros()).unwrap_or(u64::MAX)
}

async fn latencies(tasks: &Tasks) -> Result<[u64; 2], Failed> {
    let (clock, to, runtime) = (Instant::now(), tasks.clone(), tokio::runtime::Handle::current());
    // A thread, as the timers of the runtime have a resolution of milliseconds.
    let sender = std::thread::spawn(move || {
        for n in 0..RATE * SECONDS {
            let due = Duration::from_millis(500) + Duration::from_secs(1) / RATE * n;
            std::thread::sleep(due.saturating_sub(clock.elapsed()));
            let mut to = to.clone();
            runtime.spawn(async move { to.push(job(due.as_micros() as u64)).await.expect("a push") });
        }
    });
    let all = work(tasks, "latency".to_owned(), (RATE * SECONDS) as usize, clock).await?;
    sender.join().map_err(|_| "the sender panicked")?;
    Ok([0.5, 0.99].map(|quantile| all[(all.len() as f64 * quantile).ceil() as usize - 1]))
}

async fn run(redis: &mut ConnectionManager, count: usize, measured: bool) -> Result<(), Failed> {
    redis::cmd("FLUSHDB").exec_async(redis).await?;
    // Tasks that end before the next heartbeat need no lock, and nobody listens to events. What has no result is not acknowledged.
    let config = Config::default()
        .batch_size(CONCURRENCY)
        .heartbeat_interval(HEARTBEAT)
        .lock_tasks(false)
        .emit_events(false);
    let mut tasks = Tasks::new(redis.clone()).with_config(config);
    let (cpu_before, mut send, mut consume) = (cpu(redis).await?, Duration::ZERO, Duration::ZERO);
    for done in (0..count).step_by(PORTION) {
        let portion = PORTION.min(count - done);
        let began = Instant::now();
        for sent in (0..portion).step_by(BULK) {
            tasks.push_bulk((sent..portion.min(sent + BULK)).map(|_| job(0)).collect()).await?;
        }
        send += began.elapsed();
        let began = Instant::now();
        work(&tasks, format!("worker-{done}"), portion, began).await?;
        consume += began.elapsed();
    }
    let cpu = (cpu(redis).await? - cpu_before) * 1e6 / count as f64;
    if measured {
        let [p50, p99] = latencies(&tasks).await?;
        let [send, consume] = [send, consume].map(|took| count as f64 / took.as_secs_f64());
        println!("{send} {consume} {p50} {p99} {cpu}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let args: Vec<String> = args().collect();
    let [_, url, messages, runs] = &args[..] else { return Err("URL MESSAGES RUNS".into()) };
    let mut redis = apalis_redis::connect(url.as_str()).await?;
    run(&mut redis, WARM_UP, false).await?;
    for _ in 0..runs.parse::<u32>()? {
        run(&mut redis, messages.parse()?, true).await?;
    }
    Ok(())
}
