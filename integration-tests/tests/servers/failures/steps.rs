//! Handlers of many steps while members are killed, the server is away and connections break: no step runs again after its checkpoint, and none is stuck.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use integration_tests::cluster::Cluster;
use integration_tests::delays::worker;
use integration_tests::eventually;
use integration_tests::fixture::Fixture;
use integration_tests::history::{History, Line, Sink, What, now_us};
use integration_tests::member::{GROUP, Job, Mode, Setup};
use integration_tests::process::Process;
use integration_tests::server::Server;
use integration_tests::steps::wrong;
use millstream::{ErrorKind, Millstream, Result, Signalled, WorkId};
use millstream_delay::DelayQueue;

use super::requests::{TTL, disturb, rounds};

const PARTITIONS: u32 = 3;
/// How many are sent at the same time.
const AT_ONCE: u64 = 16;
/// How many are sent between two disturbances.
const BETWEEN: u64 = 500;

/// What is sent and signalled, until `stop` is set.
#[derive(Clone)]
struct Sending {
    mq: Millstream,
    next: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    /// Those that are stored for certain.
    sent: Arc<Mutex<BTreeSet<u64>>>,
}

impl Sending {
    fn new(mq: &Millstream) -> Self {
        Self { mq: mq.clone(), next: Arc::default(), stop: Arc::default(), sent: Arc::default() }
    }

    /// Sends one after the other, and signals each at once or later.
    async fn send<F: Future<Output = Result<WorkId>>>(self, send: impl Fn(Job) -> F) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let id = match send(Job { steps: true, ..Job::new(number) }).await {
                Ok(id) => id,
                Err(error) => {
                    assert!(error.is_transient() || error.kind() == ErrorKind::Unconfirmed, "{error}");
                    continue;
                }
            };
            self.sent.lock().expect("lock").insert(number);
            let of = self.clone();
            let signalling = async move {
                if number.is_multiple_of(2) {
                    tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(0..200))).await;
                }
                let mut again = false;
                loop {
                    match of.mq.signal(&id, "go", &number).await {
                        Ok(Signalled::Woken | Signalled::Stored) => return,
                        // The answer to an earlier call was lost.
                        Ok(Signalled::Known | Signalled::Gone) if again => return,
                        Ok(other) => panic!("{number}: {other:?}"),
                        Err(error) => {
                            assert!(
                                error.is_transient() || error.kind() == ErrorKind::Unconfirmed,
                                "{error}"
                            );
                            again = true;
                        }
                    }
                }
            };
            // Each has its signal, also if this one waits for it.
            if number.is_multiple_of(4) { signalling.await } else { drop(tokio::spawn(signalling)) }
        }
    }

    fn start<F>(
        &self,
        send: impl Fn(Job) -> F + Clone + Send + Sync + 'static,
    ) -> Vec<tokio::task::JoinHandle<()>>
    where
        F: Future<Output = Result<WorkId>> + Send + 'static,
    {
        (0..AT_ONCE).map(|_| tokio::spawn(self.clone().send(send.clone()))).collect()
    }

    fn sent(&self) -> BTreeSet<u64> {
        self.sent.lock().expect("lock").clone()
    }
}

fn done(lines: &[Line]) -> BTreeSet<u64> {
    let done = |line: &Line| if let What::Done(it) = line.what { Some(it.number) } else { None };
    lines.iter().filter_map(done).collect()
}

/// On one server, which is away for some time, or over the nodes of a cluster.
async fn under_fire(url: &str, server: Option<&Server>, packed: Option<u32>, shared: bool) {
    let setup = Setup::new(url, "steps", PARTITIONS);
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let mode = Mode::Unordered(64);
    let setup = Setup { mode, ttl_ms, crash_limit: 1_000, attempts: 1_000, packed, shared, ..setup };
    let topic = setup.topic();
    let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    (0..3).for_each(|_| _ = fixture.start());
    fixture.balanced().await;
    let producer = fixture.mq.producer(topic).await.expect("a producer");
    let sending = Sending::new(&fixture.mq);
    let tasks = sending.start(move |job| {
        let producer = producer.clone();
        async move { producer.work_id(&producer.send(&job).await?, GROUP) }
    });
    for round in 0..=rounds() {
        let before = sending.next.load(Ordering::Relaxed);
        let next = sending.next.clone();
        fixture.until("messages are sent", |_| next.load(Ordering::Relaxed) >= before + BETWEEN).await;
        if round < rounds() {
            let mut kill = || {
                let pids = fixture.pids();
                fixture.kill(pids[fastrand::usize(0..pids.len())]);
                fixture.start();
            };
            match server {
                Some(server) => disturb(server, round, kill).await,
                None => kill(),
            }
        }
    }
    sending.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let sent = sending.sent();
    fixture.until("all are done", |fixture| done(&fixture.history.lines).is_superset(&sent)).await;
    fixture.read();
    assert_eq!(wrong(&fixture.history.lines, sent.iter().copied()), [""; 0]);
    println!("{} messages of {} steps", sent.len(), integration_tests::steps::STEPS);
    fixture.pids().into_iter().for_each(|pid| _ = fixture.kill(pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_runs_again_after_its_checkpoint_through_kills_and_outages() {
    let server = Server::start();
    under_fire(&server.url(), Some(&server), None, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_packed_messages_runs_again_after_its_checkpoint() {
    let server = Server::start();
    under_fire(&server.url(), Some(&server), Some(8), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_in_shared_partitions_runs_again_after_its_checkpoint() {
    let server = Server::start();
    under_fire(&server.url(), Some(&server), None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_over_the_nodes_of_a_cluster_runs_again_after_its_checkpoint() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 0)).await.expect("a cluster");
    under_fire(&cluster.url(), None, None, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_tasks_runs_again_after_its_checkpoint() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let hold_ms = u64::try_from(TTL.as_millis()).expect("small");
    let setup = worker::Setup::new(&server.url(), "steps");
    let sink = folder.path().join("sink");
    let setup = worker::Setup { sink, hold_ms, attempts: 1_000, concurrency: 64, ..setup };
    let sink = Sink::open(&setup.sink).expect("a sink");
    let mut history = History::open(&setup.sink).expect("a history");
    let start = || Process::start(env!("CARGO_BIN_EXE_worker"), &setup);
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let queue = DelayQueue::<Job>::new("steps").shards(PARTITIONS).open(mq.backend()).await.expect("opened");
    let mut workers: Vec<Process> = (0..3).map(|_| start()).collect();
    let sending = Sending::new(&mq);
    let tasks = sending.start(move |job| {
        let queue = queue.clone();
        async move { queue.work_id(queue.schedule(&job).await?.id) }
    });
    for round in 0..=rounds() {
        let before = sending.next.load(Ordering::Relaxed);
        eventually(async || sending.next.load(Ordering::Relaxed) >= before + BETWEEN, "tasks are scheduled")
            .await;
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
    sending.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let sent = sending.sent();
    let history = Mutex::new(&mut history);
    eventually(
        async || {
            let mut history = history.lock().expect("lock");
            history.read();
            done(&history.lines).is_superset(&sent)
        },
        "all are done",
    )
    .await;
    let history = history.into_inner().expect("lock");
    assert_eq!(wrong(&history.lines, sent.iter().copied()), [""; 0]);
    println!("{} tasks of {} steps", sent.len(), integration_tests::steps::STEPS);
    workers.iter_mut().for_each(Process::kill);
}
