//! Cancels while members are killed, the server is away and connections break: no answer says more than is true.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use integration_tests::cancels::{Answer, times_to_handlers, wrong};
use integration_tests::delays::worker;
use integration_tests::eventually;
use integration_tests::fixture::Fixture;
use integration_tests::history::{History, Line, Sink, What, figure, now_us, quantiles};
use integration_tests::member::{End, Job, Mode, Setup};
use integration_tests::process::Process;
use integration_tests::server::Server;
use millstream::admin::CancelState;
use millstream::{MessageResult, Millstream, Producer, ResultId};
use millstream_core::results::CANCELLED;
use millstream_delay::DelayQueue;
use tokio::task::JoinHandle;

use super::requests::{TTL, disturb, rounds};

const PARTITIONS: u32 = 3;
/// How many cancel at the same time. Fewer than handlers run at once, so that most run when they are cancelled.
const AT_ONCE: u64 = 16;

type Cancelled = Vec<(Answer, ResultId)>;

/// Sends messages whose handlers run until they are cancelled, and cancels each some time later, until `stop` is set.
async fn cancel(
    mq: Millstream,
    producer: Producer<Job>,
    next: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Cancelled {
    let mut cancelled = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let number = next.fetch_add(2, Ordering::Relaxed);
        let job = Job { hold: [true; 2], end: [End::Fail; 2], ..Job::new(number) };
        let sent = producer.send(&job).key(number.to_string()).reply::<u64>().begin().await;
        let id = match sent {
            Ok(requested) => requested.id,
            // Whether it is stored is not known, and by which id.
            Err(error) => {
                let id = error.id().filter(|id| id.asker.is_some());
                assert!(id.is_none(), "{error}");
                continue;
            }
        };
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
        cancelled.push((until_answered(&mq, number, &id).await, id));
    }
    cancelled
}

/// Schedules tasks whose handlers run until they are cancelled, and cancels each some time later, until `stop` is set.
async fn cancel_tasks(
    mq: Millstream,
    queue: DelayQueue<Job>,
    next: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Cancelled {
    let mut cancelled = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let number = next.fetch_add(2, Ordering::Relaxed);
        let job = Job { hold: [true; 2], end: [End::Fail; 2], ..Job::new(number) };
        // Whether it is stored may not be known: then its handler runs until the end.
        let Ok(requested) = queue.schedule(&job).id(number.to_string()).reply::<u64>().begin().await else {
            continue;
        };
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
        cancelled.push((until_answered(&mq, number, &requested.id).await, requested.id));
    }
    cancelled
}

/// Asks until there is an answer, also while the server is away.
async fn until_answered(mq: &Millstream, number: u64, id: &ResultId) -> Answer {
    let asked_us = now_us();
    loop {
        match mq.cancel(id).await {
            Ok(ends) => {
                let (at_us, state) = (now_us(), ends[0].state.as_str());
                if ends[0].state != CancelState::Asked {
                    return Answer { number, state, asked_us, at_us };
                }
            }
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

/// Sends messages that nobody cancels, until `stop` is set. Returns those that are stored.
async fn leave_alone(producer: Producer<Job>, next: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut stored = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let number = next.fetch_add(2, Ordering::Relaxed);
        let job = Job { work_us: 2_000, ..Job::new(number) };
        if producer.send(&job).key(number.to_string()).await.is_ok() {
            stored.push(number);
        }
    }
    stored
}

async fn under_fire(name: &str, packed: Option<u32>, shared: bool) {
    let server = Server::start();
    let setup = Setup::new(&server.url(), "cancels", PARTITIONS);
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let mode = Mode::Unordered(32);
    let setup = Setup { mode, ttl_ms, crash_limit: 1_000, attempts: 1_000, packed, shared, ..setup };
    let topic = setup.topic();
    let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    (0..3).for_each(|_| _ = fixture.start());
    fixture.balanced().await;
    let producer = fixture.mq.producer(topic).await.expect("a producer");
    let stop = Arc::new(AtomicBool::new(false));
    let (even, odd) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let cancelling: Vec<JoinHandle<Cancelled>> = (0..AT_ONCE)
        .map(|_| tokio::spawn(cancel(fixture.mq.clone(), producer.clone(), even.clone(), stop.clone())))
        .collect();
    let others: Vec<JoinHandle<Vec<u64>>> =
        (0..4).map(|_| tokio::spawn(leave_alone(producer.clone(), odd.clone(), stop.clone()))).collect();
    for round in 0..=rounds() {
        let before = even.load(Ordering::Relaxed);
        let sent = even.clone();
        fixture.until("messages are cancelled", |_| sent.load(Ordering::Relaxed) >= before + 400).await;
        if round < rounds() {
            disturb(&server, round, || {
                let pids = fixture.pids();
                fixture.kill(pids[fastrand::usize(0..pids.len())]);
                fixture.start();
            })
            .await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (mut answers, mut ids, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for task in cancelling {
        let (answered, of): (Vec<_>, Vec<_>) = task.await.expect("no panic").into_iter().unzip();
        answers.extend(answered);
        ids.extend(of);
    }
    for task in others {
        stored.extend(task.await.expect("no panic"));
    }
    fixture.until("all others are done", |it| stored.iter().all(|number| it.done.contains(number))).await;
    fixture.read();
    assert_eq!(wrong(&fixture.history.lines, &answers), [""; 0]);
    let count = |state: &str| answers.iter().filter(|it| it.state == state).count();
    for (answer, id) in answers.iter().zip(&ids) {
        let result = fixture.mq.result(id).await.expect("a look");
        if ["cancelled", "stopped"].contains(&answer.state) && !shared {
            let is_cancelled =
                matches!(&result, Some(MessageResult::Failed { reason, .. }) if reason == CANCELLED);
            assert!(is_cancelled, "{answer:?}: {result:?}");
        }
    }
    let states = ["cancelled", "stopped", "withdrawn", "done", "gone", "dead"];
    println!("{:?}", states.map(|state| (state, count(state))));
    assert_eq!(count("cancelled") + count("stopped") + count("withdrawn"), answers.len(), "{states:?}");
    figure(name, &quantiles(&times_to_handlers(&fixture.history.lines, &answers)));
    // Killed while there is nothing to lose: one that was cut off while it started has ended with an error.
    fixture.pids().into_iter().for_each(|pid| _ = fixture.kill(pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_says_more_than_is_true_through_kills_and_outages() {
    under_fire("cancel to handler", None, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_of_a_packed_topic_says_more_than_is_true() {
    under_fire("cancel to handler, packed", Some(8), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_of_shared_partitions_says_more_than_is_true() {
    under_fire("cancel to handler, shared", None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_of_tasks_says_more_than_is_true_through_kills_and_outages() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let hold_ms = u64::try_from(TTL.as_millis()).expect("small");
    let setup = worker::Setup::new(&server.url(), "cancels");
    let setup = worker::Setup { sink: folder.path().join("sink"), hold_ms, attempts: 1_000, ..setup };
    let sink = Sink::open(&setup.sink).expect("a sink");
    let mut history = History::open(&setup.sink).expect("a history");
    let start = || Process::start(env!("CARGO_BIN_EXE_worker"), &setup);
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let queue = DelayQueue::<Job>::new("cancels").shards(PARTITIONS).open(mq.backend()).await;
    let queue = queue.expect("opened");
    let mut workers: Vec<Process> = (0..3).map(|_| start()).collect();
    let (stop, even, odd) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    odd.store(1, Ordering::Relaxed);
    let cancelling: Vec<JoinHandle<Cancelled>> = (0..8)
        .map(|_| tokio::spawn(cancel_tasks(mq.clone(), queue.clone(), even.clone(), stop.clone())))
        .collect();
    // Of these none is cancelled.
    let mut stored = Vec::new();
    for round in 0..=rounds() {
        let before = even.load(Ordering::Relaxed);
        while even.load(Ordering::Relaxed) < before + 400 {
            let number = odd.fetch_add(2, Ordering::Relaxed);
            if queue.schedule(&Job::new(number)).await.is_ok() {
                stored.push(number);
            }
        }
        if round < rounds() {
            disturb(&server, round, || {
                let one = fastrand::usize(0..workers.len());
                let at_us = now_us();
                sink.line(&Line { at_us, pid: workers[one].pid(), what: What::Killed });
                workers[one].kill();
                workers[one] = start();
            })
            .await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (mut answers, mut ids) = (Vec::new(), Vec::new());
    for task in cancelling {
        let (answered, of): (Vec<_>, Vec<_>) = task.await.expect("no panic").into_iter().unzip();
        answers.extend(answered);
        ids.extend(of);
    }
    let is_done = |history: &History, number: u64| {
        history.lines.iter().any(|line| matches!(line.what, What::Done(it) if it.number == number))
    };
    eventually(
        async || {
            history.read();
            stored.iter().all(|number| is_done(&history, *number))
        },
        "all others are done",
    )
    .await;
    assert_eq!(wrong(&history.lines, &answers), [""; 0]);
    for (answer, id) in answers.iter().zip(&ids) {
        let result = mq.result(id).await.expect("a look");
        let is_cancelled =
            matches!(&result, Some(MessageResult::Failed { reason, .. }) if reason == CANCELLED);
        assert!(is_cancelled, "{answer:?}: {result:?}");
    }
    let count = |state: &str| answers.iter().filter(|it| it.state == state).count();
    println!("{:?}", ["cancelled", "stopped", "withdrawn"].map(|state| (state, count(state))));
    assert_eq!(count("cancelled") + count("stopped") + count("withdrawn"), answers.len(), "{answers:?}");
    figure("cancel to handler of a task", &quantiles(&times_to_handlers(&history.lines, &answers)));
    workers.iter_mut().for_each(Process::kill);
}
