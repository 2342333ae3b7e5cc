//! Limits of workers whose processes are killed: never more run than the limit, everything is done, and nothing is left in use.

use std::collections::{BTreeMap, BTreeSet};

use integration_tests::delays::worker::{Setup, Work};
use integration_tests::eventually;
use integration_tests::history::{History, Line, Sink, What, figure, now_us};
use integration_tests::process::Process;
use integration_tests::server::Server;
use millstream::Millstream;
use millstream_delay::{DelayQueue, TaskRecord};

const LIMIT: u32 = 2;
const TASKS: u64 = 400;
const WORKERS: usize = 3;
const KILLS: usize = 10;

/// The most that ran at once, without those whose processes were killed before.
fn most_at_once(lines: &[Line]) -> usize {
    let mut lines: Vec<_> = lines.iter().collect();
    lines.sort_by_key(|line| line.at_us);
    let (mut running, mut most) = (BTreeSet::new(), 0);
    for line in lines {
        match &line.what {
            What::Started(it) => {
                running.insert((line.pid, it.number));
                most = most.max(running.len());
            }
            What::Done(it) => {
                running.remove(&(line.pid, it.number));
            }
            What::Killed => running.retain(|(pid, _)| *pid != line.pid),
            _ => {}
        }
    }
    most
}

#[tokio::test]
async fn kills_of_workers_never_let_one_more_run_and_leave_nothing_in_use() {
    let (server, folder) = (Server::start(), tempfile::tempdir().expect("a folder"));
    let unlimited = Setup::new(&server.url(), "limited");
    let setup = Setup { sink: folder.path().join("sink"), limit: Some(LIMIT), hold_ms: 1_000, ..unlimited };
    let setup = Setup { crash_limit: 100, ..setup };
    let sink = Sink::open(&setup.sink).expect("a sink");
    let mut history = History::open(&setup.sink).expect("a history");
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let queue = DelayQueue::<Work>::new("limited").shards(2).open(mq.backend()).await.expect("opened");
    let works: Vec<_> =
        (0..TASKS).map(|number| Work { work_us: 10_000 * (1 + number % 3), ..Work::new(number) }).collect();
    let scheduled = queue.schedule_all(works.iter().map(TaskRecord::new)).await;
    scheduled.into_iter().for_each(|one| drop(one.expect("scheduled")));

    let mut processes = BTreeMap::new();
    for kill in 0..=KILLS {
        while processes.len() < WORKERS {
            let process = Process::start(env!("CARGO_BIN_EXE_worker"), &setup);
            processes.insert(process.pid(), process);
        }
        let before = done(&mut history).len() as u64;
        let next = (before + TASKS / (KILLS as u64 + 2)).min(TASKS);
        eventually(async || done(&mut history).len() as u64 >= next, "it goes on").await;
        if kill < KILLS {
            let pids: Vec<u32> = processes.keys().copied().collect();
            let victim = pids[fastrand::usize(0..pids.len())];
            let at_us = now_us();
            processes.remove(&victim).expect("it runs").kill();
            sink.line(&Line { at_us, pid: victim, what: What::Killed });
        }
    }
    eventually(async || done(&mut history).len() as u64 == TASKS, "everything is done").await;
    let at_rest = async || {
        let counts = queue.count().await.expect("counts");
        counts.waiting.total + counts.claimed == 0
    };
    eventually(at_rest, "nothing is left to do").await;
    for process in processes.values_mut() {
        process.terminate();
        assert!(process.ended().await, "worker {} ends well", process.pid());
    }
    let permits = mq.backend().permits().expect("permits").clone();
    let free = async || permits.usage(0, 1_000).await.expect("usage").keys.is_empty();
    eventually(free, "nothing is in use").await;
    assert_eq!(queue.count().await.expect("counts").dead, 0);
    history.read();
    let most = most_at_once(&history.lines);
    figure("limits", &format!("{TASKS} tasks, {WORKERS} workers, {KILLS} kills: at most {most} at once"));
    assert!(most <= LIMIT as usize, "{most} at once");
}

/// The tasks that are done by now.
fn done(history: &mut History) -> BTreeSet<u64> {
    history.read();
    let numbers = history.lines.iter().filter_map(|line| match &line.what {
        What::Done(it) => Some(it.number),
        _ => None,
    });
    numbers.collect()
}
