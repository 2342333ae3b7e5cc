//! A message kills every process that handles it: it becomes a dead letter, and its neighbours are handled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{What, figure, now_us};
use integration_tests::member::{End, GROUP, Job, Mode, Setup};
use integration_tests::server::Server;
use millstream::Limits;

const PARTITIONS: u32 = 4;
const MESSAGES: u64 = 800;
const LIMIT: u32 = 3;

/// What the processes that died left behind.
#[derive(Default)]
struct Deaths {
    count: usize,
    /// For the index of a line, the messages that were settled by then.
    settled: BTreeMap<usize, BTreeSet<u64>>,
}

/// Keeps `instances` members alive until everything is handled or dead, and notes what was settled at each death.
async fn keep_alive(scene: &mut Fixture, instances: usize, poisons: usize) -> Deaths {
    let mut deaths = Deaths::default();
    let deadline = Instant::now() + HANG;
    let mut alive_us = now_us();
    while scene.read().is_empty()
        || scene.done.len() < MESSAGES as usize - poisons
        || scene.dead().await < poisons as u64
    {
        assert!(Instant::now() < deadline, "{} done, {} deaths", scene.done.len(), deaths.count);
        for pid in scene.pids() {
            if scene.process(pid).is_alive() {
                continue;
            }
            let theirs: Vec<u32> = scene.terms.of_process(pid);
            let pending = scene.pending(&theirs).await;
            scene.read();
            // Settled is what it handled to the end and nobody is to handle again; its partitions are nobody's yet.
            let still = scene.terms.of_process(pid) == theirs;
            let done = scene.history.lines.iter().filter_map(|line| match &line.what {
                What::Done(it) if line.pid == pid && !pending.contains(&it.number) => Some(it.number),
                _ => None,
            });
            let done = done.collect();
            if still {
                deaths.settled.insert(scene.history.lines.len() - 1, done);
            }
            deaths.count += 1;
            scene.died(pid, alive_us);
        }
        alive_us = now_us();
        while scene.processes.len() < instances {
            scene.start();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    deaths
}

async fn poison(name: &str, mode: Mode, instances: usize, poisons: &[u64]) {
    let server = Server::start();
    let setup =
        Setup { ttl_ms: 1_000, mode, crash_limit: LIMIT, ..Setup::new(&server.url(), "poison", PARTITIONS) };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let jobs: Vec<(Job, To)> = (0..MESSAGES)
        .map(|number| {
            let end = if poisons.contains(&number) { End::Abort } else { End::Ack };
            let job = Job { end: [end; 2], work_us: 300 * (number % 7), ..Job::new(number) };
            (job, To::Partition((number % u64::from(PARTITIONS)) as u32))
        })
        .collect();
    scene.send(&jobs).await;
    let began = Instant::now();
    let deaths = keep_alive(&mut scene, instances, poisons.len()).await;
    let took = began.elapsed();
    scene.at_rest().await;
    scene.end().await;

    // The poison is dead, for that reason, and it killed no more processes than it may.
    let letters = scene.mq.dead_letters(&scene.topic, GROUP).await.expect("dead letters").list(100).await;
    let mut dead = BTreeSet::new();
    for letter in letters.expect("listed") {
        assert_eq!(letter.reason.as_str(), "crashed", "{letter:?}");
        let envelope = letter.envelope(&Limits::default()).expect("a message");
        let job: Job = serde_json::from_slice(&envelope.payload).expect("a job");
        assert!(dead.insert(job.number), "{} is dead twice", job.number);
    }
    assert_eq!(dead, poisons.iter().copied().collect(), "the poison and nothing else");
    let starts = |number: u64| {
        let started = |what: &What| matches!(what, What::Started(it) if it.number == number);
        scene.history.lines.iter().filter(|line| started(&line.what)).count()
    };
    let killed: Vec<usize> = poisons.iter().map(|poison| starts(*poison)).collect();
    assert!(
        // A poison that is found explains the ends before, also those of another one.
        killed.iter().all(|times| *times <= LIMIT as usize + poisons.len()),
        "handed out {killed:?} times"
    );
    // A process may start the poison of both of its partitions before it dies of one.
    let pids_of = |of: &dyn Fn(&What) -> bool| -> BTreeSet<u32> {
        scene.history.lines.iter().filter(|line| of(&line.what)).map(|line| line.pid).collect()
    };
    let killed_pids = pids_of(&|what| *what == What::Killed);
    let started = pids_of(&|what| matches!(what, What::Started(it) if poisons.contains(&it.number)));
    assert_eq!(started, killed_pids, "who started poison died of it, and nobody of anything else");
    assert_eq!(deaths.count, killed_pids.len());

    // Its neighbours are done, and what was settled at a death was never started again: each has one effect.
    let done = &scene.done;
    assert!((0..MESSAGES).all(|number| done.contains(&number) != dead.contains(&number)), "nothing is lost");
    for (index, settled) in &deaths.settled {
        for line in &scene.history.lines[index + 1..] {
            if let What::Started(it) = &line.what {
                assert!(!settled.contains(&it.number), "settled and started again: {line:?}");
            }
        }
    }
    // Without a death nothing is started twice.
    let mut starts: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for line in &scene.history.lines {
        if let What::Started(it) = &line.what {
            starts.entry(it.number).or_default().push(line.pid);
        }
    }
    let mut again = 0;
    for (number, pids) in &starts {
        for pid in &pids[..pids.len() - 1] {
            assert!(killed_pids.contains(pid), "{number} was started again though nobody died: {pids:?}");
            again += 1;
        }
    }
    assert_eq!(deaths.settled.len(), deaths.count, "every death was looked at in time");
    let neighbours = again - killed.iter().map(|times| times - 1).sum::<usize>();
    figure(
        "poison",
        &format!(
            "{name}: {} dead after {killed:?} processes, {} neighbours done, {neighbours} of their starts repeated, \
             {took:.1?}",
            dead.len(),
            done.len()
        ),
    );
}

#[tokio::test]
async fn one_instance_one_message_at_a_time() {
    poison("serial, 1 instance", Mode::Serial, 1, &[402]).await;
}

#[tokio::test]
async fn one_instance_many_messages_at_once() {
    poison("per key, 1 instance", Mode::PerKey(16), 1, &[402]).await;
}

#[tokio::test]
async fn two_instances_and_poison_in_two_partitions() {
    poison("unordered, 2 instances", Mode::Unordered(16), 2, &[202, 405]).await;
}
