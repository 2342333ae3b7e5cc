//! Batches while members are killed, the server is away and connections break: each sends its messages once, none too early, and none is stuck.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use integration_tests::batches::{Sealed, Seen, wrong};
use integration_tests::cluster::Cluster;
use integration_tests::delays::worker;
use integration_tests::eventually;
use integration_tests::fixture::Fixture;
use integration_tests::history::{History, Line, Sink, What, now_us};
use integration_tests::member::{End, GROUP, Job, Mode, Setup};
use integration_tests::process::Process;
use integration_tests::server::Server;
use millstream::{BatchEventKind, BatchId, Consumer, Delivery, ErrorKind, Millstream, OpenBatch, Topic};
use millstream_delay::DelayQueue;
use tokio::task::JoinHandle;

use super::requests::{TTL, disturb, rounds};

const PARTITIONS: u32 = 3;
/// How many batches are filled at the same time.
const AT_ONCE: u64 = 8;
const ENDS: Topic<u64> = Topic::new("ends").partitions(2);

/// What fills batches, until `stop` is set.
#[derive(Clone)]
struct Filling {
    mq: Millstream,
    next: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// Creates, fills and seals batches.
async fn fill<F>(filling: Filling, add: impl Fn(OpenBatch, Job) -> F) -> Vec<Sealed>
where
    F: Future<Output = millstream::Result<()>>,
{
    let Filling { mq, next, stop } = filling;
    let mut sealed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let builder = mq.batch(ENDS).complete(&1).success(&1).death(&1).progress(40, &1);
        // The server is away for too long: nobody knows of it.
        let Ok(batch) = builder.create().await else { continue };
        let (members, unknown) = <(Mutex<BTreeSet<u64>>, Mutex<BTreeSet<u64>>)>::default();
        let adds = (0..fastrand::u64(0..40)).map(|_| async {
            let number = next.fetch_add(1, Ordering::Relaxed);
            // One in twenty dies, and is done when it is replayed.
            let end = if fastrand::u8(..) < 13 { [End::DeadLetterUntilHealed; 2] } else { [End::Ack; 2] };
            let job = Job { end, work_us: 500, ..Job::new(number) };
            match add(batch.clone(), job).await {
                Ok(_) => members.lock().expect("lock").insert(number),
                Err(error) if error.kind() == ErrorKind::Unconfirmed => {
                    unknown.lock().expect("lock").insert(number)
                }
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    false
                }
            };
        });
        join_all(adds).await;
        let asked_us = now_us();
        loop {
            match batch.seal().await {
                Ok(_) => break,
                Err(error) => {
                    assert!(error.is_transient() || error.kind() == ErrorKind::Unconfirmed, "{error}");
                }
            }
        }
        let (members, unknown) = (members.into_inner().expect("lock"), unknown.into_inner().expect("lock"));
        sealed.push(Sealed { id: batch.id().clone(), members, unknown, asked_us });
    }
    sealed
}

/// Listens to what batches send, with the times.
async fn listen(mq: &Millstream) -> (Consumer, Arc<Mutex<Vec<Seen>>>) {
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let notes = seen.clone();
    let listener = mq.consumer(ENDS, "ends").lease_ttl(TTL).start(move |end: Delivery<u64>| {
        let (id, at_us, event) = (end.origin(), now_us(), end.batch_event().expect("the event of a batch"));
        notes.lock().expect("lock").push(Seen { id, event, at_us });
        async {}
    });
    (listener.await.expect("a consumer"), seen)
}

fn batches_with(kind: BatchEventKind, seen: &Mutex<Vec<Seen>>) -> BTreeSet<BatchId> {
    let seen = seen.lock().expect("lock");
    seen.iter().filter(|it| it.event.kind == kind).map(|it| it.event.batch.clone()).collect()
}

/// On one server, which is away for some time, or over the nodes of a cluster.
async fn under_fire(url: &str, server: Option<&Server>, packed: Option<u32>, shared: bool) {
    let setup = Setup::new(url, "batches", PARTITIONS);
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let mode = Mode::Unordered(16);
    let setup = Setup { mode, ttl_ms, crash_limit: 1_000, attempts: 1_000, packed, shared, ..setup };
    let topic = setup.topic();
    let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    (0..3).for_each(|_| _ = fixture.start());
    fixture.balanced().await;
    let (listener, seen) = listen(&fixture.mq).await;
    let producer = fixture.mq.producer(topic.clone()).await.expect("a producer");
    let (stop, next) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let of = Filling { mq: fixture.mq.clone(), next: next.clone(), stop: stop.clone() };
    let add = move |batch: OpenBatch, job: Job| {
        let producer = producer.clone();
        async move { batch.add(producer.send(&job).key(job.number.to_string())).await.map(drop) }
    };
    let filling: Vec<JoinHandle<Vec<Sealed>>> =
        (0..AT_ONCE).map(|_| tokio::spawn(fill(of.clone(), add.clone()))).collect();
    let letters = fixture.mq.dead_letters(&topic, GROUP).await.expect("dead letters");
    for round in 0..=rounds() {
        let before = next.load(Ordering::Relaxed);
        let sent = next.clone();
        fixture.until("batches are filled", |_| sent.load(Ordering::Relaxed) >= before + 2_000).await;
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
            // Of which some may be replayed twice: the server may be away.
            let _ = letters.replay_all().await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let mut sealed = Vec::new();
    for task in filling {
        sealed.extend(task.await.expect("no panic"));
    }
    let number: BTreeSet<u64> = sealed.iter().flat_map(|it| it.members.iter().copied()).collect();
    let all = |kind| {
        let found = batches_with(kind, &seen);
        sealed.iter().all(|it| found.contains(&it.id))
    };
    fixture.until("all batches are complete", |_| all(BatchEventKind::Complete)).await;
    std::fs::write(fixture.setup.healed(), "").expect("a file");
    let letters = &letters;
    eventually(
        async || {
            letters.replay_all().await.expect("replayed");
            all(BatchEventKind::Success)
        },
        "all batches have succeeded",
    )
    .await;
    fixture.read();
    let seen = seen.lock().expect("lock").clone();
    assert_eq!(wrong(&fixture.history.lines, &sealed, &seen), [""; 0]);
    let unknown: usize = sealed.iter().map(|it| it.unknown.len()).sum();
    let deaths = seen.iter().filter(|it| it.event.kind == BatchEventKind::Death).count();
    println!(
        "{} batches, {} members, {unknown} unknown, {deaths} with dead ones",
        sealed.len(),
        number.len()
    );
    assert!(deaths > 0 && sealed.len() > 100);
    listener.shutdown().await;
    fixture.pids().into_iter().for_each(|pid| _ = fixture.kill(pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_end_once_and_none_is_early_or_stuck_through_kills_and_outages() {
    let server = Server::start();
    under_fire(&server.url(), Some(&server), None, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_packed_messages_end_once_and_none_is_early_or_stuck() {
    let server = Server::start();
    under_fire(&server.url(), Some(&server), Some(8), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_shared_partitions_end_once_and_none_is_early_or_stuck() {
    let server = Server::start();
    under_fire(&server.url(), Some(&server), None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_over_the_nodes_of_a_cluster_end_once_and_none_is_early_or_stuck() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 0)).await.expect("a cluster");
    under_fire(&cluster.url(), None, None, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_tasks_end_once_and_none_is_early_or_stuck() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let hold_ms = u64::try_from(TTL.as_millis()).expect("small");
    let setup = worker::Setup::new(&server.url(), "batches");
    let setup = worker::Setup { sink: folder.path().join("sink"), hold_ms, attempts: 1_000, ..setup };
    let sink = Sink::open(&setup.sink).expect("a sink");
    let mut history = History::open(&setup.sink).expect("a history");
    let start = || Process::start(env!("CARGO_BIN_EXE_worker"), &setup);
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let queue =
        DelayQueue::<Job>::new("batches").shards(PARTITIONS).open(mq.backend()).await.expect("opened");
    let (listener, seen) = listen(&mq).await;
    let mut workers: Vec<Process> = (0..3).map(|_| start()).collect();
    let (stop, next) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let of = Filling { mq: mq.clone(), next: next.clone(), stop: stop.clone() };
    let add = move |batch: OpenBatch, job: Job| {
        let queue = queue.clone();
        async move { batch.add(queue.schedule(&job)).await.map(drop) }
    };
    let filling: Vec<JoinHandle<Vec<Sealed>>> =
        (0..AT_ONCE).map(|_| tokio::spawn(fill(of.clone(), add.clone()))).collect();
    for round in 0..=rounds() {
        let before = next.load(Ordering::Relaxed);
        eventually(async || next.load(Ordering::Relaxed) >= before + 2_000, "batches are filled").await;
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
    let mut sealed = Vec::new();
    for task in filling {
        sealed.extend(task.await.expect("no panic"));
    }
    eventually(
        async || {
            let found = batches_with(BatchEventKind::Complete, &seen);
            sealed.iter().all(|it| found.contains(&it.id))
        },
        "all batches are complete",
    )
    .await;
    history.read();
    let all_done = |it: &&Sealed| {
        let is_done = |number: &u64| {
            history.lines.iter().any(|line| matches!(line.what, What::Done(it) if it.number == *number))
        };
        it.unknown.is_empty() && it.members.iter().all(is_done)
    };
    let successful: Vec<_> = sealed.iter().filter(all_done).map(|it| it.id.clone()).collect();
    eventually(
        async || {
            let found = batches_with(BatchEventKind::Success, &seen);
            successful.iter().all(|id| found.contains(id))
        },
        "those of which all are done have succeeded",
    )
    .await;
    let seen = seen.lock().expect("lock").clone();
    assert_eq!(wrong(&history.lines, &sealed, &seen), [""; 0]);
    println!("{} batches of tasks, {} without dead ones", sealed.len(), successful.len());
    assert!(sealed.len() > 100 && !successful.is_empty() && successful.len() < sealed.len());
    listener.shutdown().await;
    workers.iter_mut().for_each(Process::kill);
}
