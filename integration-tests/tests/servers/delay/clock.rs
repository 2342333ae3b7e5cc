//! Clocks that are wrong (faults 46 and 47): the server's, which is set while everybody works, and those of workers, which
//! decide nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use integration_tests::delays::clock::Clock;
use integration_tests::delays::stage::{LONGEST_SLEEP, Stage};
use integration_tests::delays::worker::Setup as WorkerSetup;
use integration_tests::delays::{Engine, spread, wall_ms_in, wall_us};
use integration_tests::history::{History, Sink, What, figure, now_us};
use integration_tests::member::{Job, Setup};
use integration_tests::process::Process;
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::{Delivery, Millstream, Record, Topic};
use millstream_core::Place;
use millstream_core::Timestamp;
use millstream_core::tasks::ClaimRequest;
use millstream_delay::{DelayQueue, Task, TaskRecord};

const MS: fn(u64) -> Duration = Duration::from_millis;
const HOUR: i64 = 3_600;

fn server_by(clock: &Clock) -> Server {
    let [(preload, library), (file, path)] = clock.env();
    let server = Server::builder().env(preload, library).env(file, path).start();
    set(&server, clock, HOUR);
    server
}

/// Sets the clock, and waits until the server goes by it. Valkey 9 counts the time by the processor for a while before it looks
/// at the clock again: what is scheduled until then would be due by the clock of before.
fn set(server: &Server, clock: &Clock, shift: i64) {
    clock.shift(shift);
    let goes_by_it = || {
        let seconds: i64 = server.cli(&["TIME"]).lines().next()?.parse().ok()?;
        ((seconds - wall_us() / 1_000_000 - shift).abs() < 60).then_some(())
    };
    let deadline = Instant::now() + HANG;
    while goes_by_it().is_none() {
        assert!(Instant::now() < deadline, "the server does not go by this clock");
    }
}

/// 46: an hour back. What is scheduled from then on comes in time, on both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_set_back_serves_what_comes_then() {
    const JOBS: Topic<u64> = Topic::new("jobs").partitions(2);
    let clock = Clock::new();
    let server = server_by(&clock);
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let queue = DelayQueue::<u64>::new("jobs").shards(2).open(mq.backend()).await.expect("opened");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let teller = tell.clone();
    let worker = queue.worker().longest_sleep(LONGEST_SLEEP).start(move |task: Task<u64>| {
        let _ = tell.send((task.payload, Instant::now()));
        async {}
    });
    let worker = worker.await.expect("started");
    let handler = move |delivery: Delivery<u64>| {
        let _ = teller.send((delivery.payload, Instant::now()));
        async {}
    };
    let consumer = mq.consumer(JOBS, "g").lease_ttl(MS(2_000)).start(handler).await.expect("started");
    let producer = mq.producer(JOBS).await.expect("a producer");

    let mut first = 0;
    for shift in [HOUR, 0, -HOUR, HOUR] {
        set(&server, &clock, shift);
        // By a delay: a time of day would be meant by another clock.
        let numbers: Vec<u64> = (first..first + 20).collect();
        first += 20;
        let began = Instant::now();
        let messages = numbers[..10].iter().map(|number| Record::new(number).delay(MS(100)));
        producer.send_all_delayed(messages).await.into_iter().for_each(|sent| drop(sent.expect("sent")));
        let tasks = numbers[10..].iter().map(|number| TaskRecord::new(number).delay(MS(100)));
        queue.schedule_all(tasks).await.into_iter().for_each(|one| drop(one.expect("scheduled")));
        let mut came = BTreeMap::new();
        while came.len() < numbers.len() {
            let next = tokio::time::timeout(HANG, told.recv()).await;
            let (number, at) = next.unwrap_or_else(|_| panic!("shift {shift}: only {came:?}")).expect("open");
            assert!(numbers.contains(&number), "{number} again");
            came.insert(number, at.duration_since(began));
        }
        assert!(came.values().all(|after| *after >= MS(100)), "none is early: {came:?}");
        let late: Vec<i64> = came
            .values()
            .map(|after| i64::try_from((*after - MS(100)).as_micros()).expect("small"))
            .collect();
        figure("fault", &format!("server's clock {shift:+} s: {}", spread(&late)));
        // Who goes by the clock of before waits for an hour; a busy machine takes its time.
        assert!(came.values().all(|after| *after <= HANG), "shift {shift}: {came:?}");
    }
    worker.shutdown().await;
    consumer.shutdown().await;
}

/// 46: an hour back while a worker holds claims and dies: they do not wait for that hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_dead_worker_come_back_though_the_clock_was_set_back() {
    let clock = Clock::new();
    let server = server_by(&clock);
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let queue = DelayQueue::<u64>::new("jobs").open(mq.backend()).await.expect("opened");
    let shard =
        queue.schedule(&7).id("held").await.map(|_| millstream_core::Shard::new(queue.name().clone(), 0));
    let shard = shard.expect("scheduled");
    let ask = ClaimRequest {
        worker: "dead".into(),
        limit: 1,
        hold: MS(2_000),
        crash_limit: 0,
        longest_sleep: MS(1_000),
        continuity: millstream_core::Continuity::assured(),
    };
    let claimed = async || {
        mq.backend().tasks().expect("delay queues").claim(&shard, &ask).await.expect("claimed").tasks.len()
            == 1
    };
    eventually(claimed, "it is claimed").await;
    set(&server, &clock, 0);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = queue.worker().hold(MS(2_000)).longest_sleep(LONGEST_SLEEP).start(move |task: Task<u64>| {
        let _ = tell.send((task.payload, task.crashes()));
        async {}
    });
    let worker = worker.await.expect("started");
    let began = Instant::now();
    let came = tokio::time::timeout(HANG, told.recv()).await.expect("it comes back").expect("open");
    assert_eq!(came, (7, 1));
    figure("fault", &format!("claim of a dead worker, clock an hour back: {:.1?}", began.elapsed()));
    worker.shutdown().await;
}

/// An hour forward: what waits for that time is found within the longest sleep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_set_forward_is_noticed_within_the_longest_sleep() {
    let clock = Clock::new();
    let server = server_by(&clock);
    set(&server, &clock, 0);
    let mut stage = Stage::begin(server, Engine::Queue).await;
    let first = stage.next();
    stage.schedule(&[Duration::from_secs(3_500); 10]).await;
    assert!(matches!(stage.place(first), Place::Shard(_)));
    tokio::time::sleep(MS(200)).await;
    clock.shift(HOUR);
    let began = Instant::now();
    let came = || stage.came.lock().expect("lock").range(first..).count();
    eventually(async || came() == 10, "all came").await;
    let took = began.elapsed();
    figure("fault", &format!("server's clock an hour forward: noticed after {took:.2?}"));
    // What would not notice waits for an hour, which `eventually` does not.
}

/// 47: workers and members whose clocks are an hour wrong, either way. The time of each start is taken by a clock that nobody
/// can set.
async fn wrong_clients(engine: Engine) {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let sink = folder.path().join("sink");
    drop(Sink::open(&sink).expect("a sink"));
    let mut history = History::open(&sink).expect("a history");
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let clocks: Vec<Clock> = [-HOUR, HOUR]
        .iter()
        .map(|shift| {
            let clock = Clock::new();
            clock.shift(*shift);
            clock
        })
        .collect();
    let mut processes = Vec::new();
    for clock in &clocks {
        processes.push(match engine {
            Engine::Queue => {
                // One alone cannot do it.
                let setup = WorkerSetup::new(&server.url(), "jobs");
                let setup = WorkerSetup { sink: sink.clone(), concurrency: 1, ..setup };
                Process::start_in(env!("CARGO_BIN_EXE_worker"), &setup, clock.env())
            }
            Engine::Topic => {
                let setup = Setup { sink: sink.clone(), ..Setup::new(&server.url(), "jobs", 4) };
                Process::start_in(env!("CARGO_BIN_EXE_member"), &setup, clock.env())
            }
        });
    }
    let ready = |history: &History| history.lines.iter().filter(|line| line.what == What::Ready).count();
    eventually(
        async || {
            history.read();
            ready(&history) == 2
        },
        "both are ready",
    )
    .await;
    let base = wall_ms_in(MS(500));
    let to_monotonic = i64::try_from(now_us()).expect("small") - wall_us();
    let jobs: Vec<Job> = (0..500)
        .map(|number| Job { due_ms: base + 4 * number, work_us: 4_000, ..Job::new(number) })
        .collect();
    match engine {
        Engine::Queue => {
            let queue = DelayQueue::<Job>::new("jobs").open(mq.backend()).await.expect("opened");
            let records = jobs.iter().map(|job| TaskRecord::new(job).at(Timestamp::from_millis(job.due_ms)));
            queue.schedule_all(records).await.into_iter().for_each(|one| drop(one.expect("scheduled")));
        }
        Engine::Topic => {
            let topic = Topic::<Job>::new("jobs").partitions(4);
            let mq = Millstream::at(server.url()).namespace("members").await.expect("connected");
            let producer = mq.producer(topic).await.expect("a producer");
            let records = jobs.iter().map(|job| {
                Record::new(job).key(format!("k{}", job.number)).at(Timestamp::from_millis(job.due_ms))
            });
            let sent = producer.send_all_delayed(records).await;
            sent.into_iter().for_each(|sent| drop(sent.expect("sent")));
        }
    }
    let started = |history: &History| -> Vec<(u32, u64, i64)> {
        let lines = history.lines.iter();
        let started = lines.filter_map(|line| match &line.what {
            What::Started(it) => Some((line.pid, it.number, i64::try_from(line.at_us).expect("small"))),
            _ => None,
        });
        started.collect()
    };
    eventually(
        async || {
            history.read();
            started(&history).len() >= jobs.len()
        },
        "all were started",
    )
    .await;
    let started = started(&history);
    assert_eq!(started.len(), jobs.len(), "each once");
    let late: Vec<i64> = started
        .iter()
        .map(|(_, number, at_us)| {
            let due_us = jobs[usize::try_from(*number).expect("small")].due_ms.cast_signed() * 1_000;
            at_us - (due_us + to_monotonic)
        })
        .collect();
    figure("fault", &format!("clients' clocks ±1 h, {engine:?}: {}", spread(&late)));
    assert!(late.iter().all(|late| *late >= 0), "none is early: {late:?}");
    // A worker that went by its own clock would be an hour late; a busy machine is seconds late.
    assert!(late.iter().all(|late| *late <= 60_000_000), "none is late: {late:?}");
    for process in &processes {
        assert!(started.iter().any(|(pid, ..)| *pid == process.pid()), "both worked");
    }
}

#[tokio::test]
async fn workers_with_wrong_clocks_take_nothing_early() {
    wrong_clients(Engine::Queue).await;
}

#[tokio::test]
async fn members_with_wrong_clocks_take_nothing_early() {
    wrong_clients(Engine::Topic).await;
}
