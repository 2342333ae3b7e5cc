//! What tasks cost a server. Not a test of anything: run by hand, `--run-ignored only --no-capture`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::schedule::{Due, OnConflict, Schedule, Scheduling};
use millstream_core::tasks::{Tasks, Verdict};
use millstream_redis::RedisBackend;

use crate::server::Bench;
use crate::tasks::{ask, id, shard};

async fn info(bench: &mut Bench, section: &str) -> String {
    redis::from_redis_value(bench.cmd(&format!("INFO {section}")).await).expect("text")
}

/// Seconds of CPU that the server has used.
async fn cpu(bench: &mut Bench) -> f64 {
    let text = info(bench, "cpu").await;
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().parse().expect("a number")
    };
    value("used_cpu_user:") + value("used_cpu_sys:")
}

/// How many commands workers have sent.
async fn sent(bench: &mut Bench) -> usize {
    let text = info(bench, "commandstats").await;
    let calls = |line: &str| {
        let ours = ["cmdstat_evalsha:", "cmdstat_blpop:", "cmdstat_client|unblock:"];
        let rest = ours.iter().find_map(|name| line.strip_prefix(name))?;
        rest.strip_prefix("calls=")?.split(',').next()?.parse::<usize>().ok()
    };
    text.lines().filter_map(calls).sum()
}

fn batch(count: usize, due: impl Fn(usize) -> Due) -> Vec<Scheduling> {
    let one = |n: usize| Scheduling {
        place: shard().into(),
        id: id(&format!("task-{n:07}")),
        due: due(n),
        fields: vec![(Bytes::from_static(b"payload"), Bytes::from(vec![b'x'; 128]))],
        on_conflict: OnConflict::Keep,
    };
    (0..count).map(one).collect()
}

#[tokio::test]
#[ignore = "a measurement: it prints costs and asserts none, as they depend on the machine"]
async fn server_cpu_per_task() {
    const TASKS: usize = 50_000;
    let mut bench = Bench::private(&[]).await;
    let batch = batch(TASKS, |_| Due::At(Timestamp::from_millis(1)));
    let start = cpu(&mut bench).await;
    for chunk in batch.chunks(1_000) {
        assert!(bench.backend.schedule(chunk).await.iter().all(Result::is_ok));
    }
    let scheduled = cpu(&mut bench).await;
    let (mut claiming, mut settling) = (0.0, 0.0);
    let mut done = 0;
    while done < TASKS {
        let before = cpu(&mut bench).await;
        let mut batches = Vec::new();
        for _ in 0..50 {
            let claimed = bench.claim(&ask("w", 100)).await;
            done += claimed.tasks.len();
            let batch: Vec<_> =
                claimed.tasks.into_iter().map(|task| (task.id, task.token, Verdict::Complete)).collect();
            batches.push(batch);
        }
        let claimed = cpu(&mut bench).await;
        for batch in batches {
            bench.tasks().settle_tasks(&shard(), &batch).await.expect("settled");
        }
        claiming += claimed - before;
        settling += cpu(&mut bench).await - claimed;
    }
    let micros = |seconds: f64| seconds * 1e6 / TASKS as f64;
    println!(
        "us per task: schedule {:.2}, claim {:.2}, complete {:.2}",
        micros(scheduled - start),
        micros(claiming),
        micros(settling)
    );
}

async fn work(backend: RedisBackend, name: String, left: Arc<AtomicUsize>, late: Arc<AtomicUsize>) {
    let tasks: &dyn Tasks = &backend;
    while left.load(Ordering::Relaxed) > 0 {
        let ask = ask(&name, 1);
        let claimed = tasks.claim(&shard(), &ask).await.expect("claimed");
        let Some(task) = claimed.tasks.into_iter().next() else {
            tasks.wait(&shard(), claimed.next).await.expect("waited");
            continue;
        };
        late.fetch_add(
            claimed.now.saturating_duration_since(task.due).as_millis() as usize,
            Ordering::Relaxed,
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
        let batch = [(task.id, task.token, Verdict::Complete)];
        tasks.settle_tasks(&shard(), &batch).await.expect("settled");
        left.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: it prints costs and asserts none, as they depend on the machine"]
async fn commands_per_task() {
    for (tasks, per_second) in [(20, 4), (100, 20), (500, 100), (1_000, 250), (2_000, 0)] {
        for workers in [1, 8, 64] {
            let mut bench = Bench::private(&[]).await;
            let every = 1_000_u64.checked_div(per_second).unwrap_or(0);
            let time = bench.claim(&ask("w", 0)).await.now.saturating_add(Duration::from_millis(300));
            let batch =
                batch(tasks, |n| Due::At(time.saturating_add(Duration::from_millis(every * n as u64))));
            let left = Arc::new(AtomicUsize::new(tasks));
            let late = Arc::new(AtomicUsize::new(0));
            bench.backend.schedule(&batch).await;
            let mut all = tokio::task::JoinSet::new();
            for n in 0..workers {
                all.spawn(work(bench.backend.clone(), format!("w-{n}"), left.clone(), late.clone()));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            let (before, began) = (sent(&mut bench).await, Instant::now());
            while left.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let commands = sent(&mut bench).await - before;
            let rate = if per_second == 0 { "at once".into() } else { format!("{per_second}/s") };
            println!(
                "{tasks} tasks {rate}, {workers} workers: {:.2} commands per task, {:.2} ms late on average, {:?}",
                commands as f64 / tasks as f64,
                late.load(Ordering::Relaxed) as f64 / tasks as f64,
                began.elapsed()
            );
            all.shutdown().await;
        }
    }
}
