//! An owner is stopped (SIGSTOP) for longer than its lease, and goes on: it must do nothing that has an effect, and its
//! handlers must be notified. An owner whose handlers block every thread stays the owner.

use std::time::Duration;

use futures_util::future::join_all;
use integration_tests::eventually;
use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{Line, What, figure, now_us, quantiles};
use integration_tests::member::{End, Job, Mode, Setup};
use integration_tests::monitor::Monitor;
use integration_tests::server::Server;

const SCENES: usize = 10;
const ROUNDS: usize = 5;
const PARTITIONS: u32 = 4;
const TTL: Duration = Duration::from_secs(1);
/// What the stopped owner's handlers will say when they go on; handed out again, the message is done.
const ENDS: [End; 3] = [End::Ack, End::Fail, End::DeadLetter];

#[derive(Default)]
struct Measured {
    stopped: usize,
    handlers: usize,
    told_us: Vec<u64>,
}

/// Five rounds of one topic: two members, of which one is stopped in the middle of its handlers.
async fn scene(url: String, topic: usize) -> Measured {
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let mode = Mode::Unordered(ENDS.len());
    let setup = Setup { ttl_ms, mode, ..Setup::new(&url, &format!("topic-{topic}"), PARTITIONS) };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let mut measured = Measured::default();
    let mut number = 0;
    scene.start();
    scene.start();
    for _ in 0..ROUNDS {
        scene.balanced().await;
        let pids = scene.pids();
        let victim = pids[fastrand::usize(0..2)];
        let survivor = if victim == pids[0] { pids[1] } else { pids[0] };
        let theirs = scene.terms.of_process(victim);
        let first = number;
        let mut jobs = Vec::new();
        for partition in &theirs {
            for end in ENDS {
                // One end makes no candidate: the survivor begins with all of them at once, and holds them as the victim did.
                let hold = [true, true];
                let job = Job { hold, end: [end, End::Ack], ..Job::new(number) };
                jobs.push((job, To::Partition(*partition)));
                number += 1;
            }
        }
        scene.send(&jobs).await;
        let in_hand = number - first;
        let held_by = |scene: &Fixture, pid: u32| {
            let held = |line: &&Line| matches!(&line.what, What::Started(it) if line.pid == pid && it.number >= first);
            scene.history.lines.iter().filter(held).count() as u64
        };
        scene.until("the victim handles them", |scene| held_by(scene, victim) == in_hand).await;

        let stopped_us = now_us();
        scene.process(victim).stop();
        scene.until("the survivor handles one", |scene| held_by(scene, survivor) > 0).await;
        scene.until("the survivor owns them", |scene| scene.terms.of_process(victim).is_empty()).await;
        // Messages that were not read yet, and that the resumed owner might read.
        let more: Vec<(Job, To)> = theirs
            .iter()
            .map(|partition| {
                number += 1;
                (Job::new(number - 1), To::Partition(*partition))
            })
            .collect();
        scene.send(&more).await;
        let pause = (TTL * 3).saturating_sub(Duration::from_micros(now_us() - stopped_us));
        tokio::time::sleep(pause).await;

        let woken = scene.read().len();
        let woken_us = now_us();
        scene.process(victim).resume();
        scene.until("its handlers are told", |scene| {
            let told = |line: &&Line| matches!(&line.what, What::Cancelled(it) if it.number >= first && line.pid == victim);
            scene.history.lines.iter().filter(told).count() as u64 == in_hand
        })
        .await;
        scene
            .until("it knows that it has lost them", |scene| {
                let lost = |line: &&Line| matches!(line.what, What::Lost(..)) && line.pid == victim;
                scene.history.lines[woken..].iter().filter(lost).count() == theirs.len()
            })
            .await;
        let told = scene.history.lines[woken..].iter().filter(|line| matches!(line.what, What::Cancelled(_)));
        measured.told_us.extend(told.map(|line| line.at_us.saturating_sub(woken_us)));

        // The survivor still holds all of them, whatever the resumed handlers returned.
        let pending = scene.pending(&theirs).await;
        let held: Vec<u64> = (first..first + in_hand).filter(|number| !pending.contains(number)).collect();
        assert!(held.is_empty(), "settled by an owner that was none: {held:?}");
        let stats = scene.mq.stats(&scene.topic, integration_tests::member::GROUP).await.expect("stats");
        assert!(stats.iter().all(|p| p.dead == 0 && p.retrying == 0), "retried or given up: {stats:?}");

        let everything = async || {
            scene.process(survivor).release();
            scene.read();
            scene.done.range(first..).count() as u64 >= number - first
        };
        eventually(everything, "everything is handled").await;
        starts_nothing_unowned(&scene.history.lines[woken..], victim);
        measured.stopped += 1;
        measured.handlers += usize::try_from(in_hand).expect("small");
    }
    scene.at_rest().await;
    assert_eq!(scene.dead().await, 0);
    assert_eq!(scene.done.len() as u64, number, "nothing is lost");
    measured
}

/// A member that was resumed starts only messages of partitions that it was granted after that.
fn starts_nothing_unowned(lines: &[Line], pid: u32) {
    let mut granted = Vec::new();
    for line in lines.iter().filter(|line| line.pid == pid) {
        match &line.what {
            What::Assigned(partition, epoch) => granted.push((*partition, *epoch)),
            What::Started(it) => {
                assert!(granted.contains(&(it.partition, it.epoch)), "started under an old lease: {it:?}");
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_owner_has_no_effect_after_the_takeover_and_its_handlers_are_told() {
    let server = Server::start();
    let monitor = Monitor::start(server.port());
    let all: Vec<Measured> = join_all((0..SCENES).map(|topic| scene(server.url(), topic))).await;
    let fencing = monitor.stop();
    let told: Vec<u64> = all.iter().flat_map(|one| one.told_us.clone()).collect();
    let stopped: usize = all.iter().map(|one| one.stopped).sum();
    let handlers: usize = all.iter().map(|one| one.handlers).sum();
    figure(
        "stopped",
        &format!(
            "{stopped} stops of {:?} with ttl {TTL:?}: {} effects at the server, {} calls with an old token, {} of them \
             had an effect",
            TTL * 3,
            fencing.effects,
            fencing.stale_calls,
            fencing.violations.len()
        ),
    );
    figure("stopped", &format!("{handlers} handlers told, SIGCONT to cancelled {}", quantiles(&told)));
    assert_eq!((stopped, told.len()), (SCENES * ROUNDS, handlers));
    assert!(fencing.effects > handlers, "the monitor has recorded what was done");
    assert!(fencing.violations.is_empty(), "by owners that were none: {:#?}", fencing.violations);
}

#[tokio::test]
async fn an_owner_whose_handlers_block_every_thread_keeps_its_partitions() {
    const BLOCK_MS: u64 = 1_500;
    let server = Server::start();
    let setup = Setup { ttl_ms: 500, ..Setup::new(&server.url(), "blocked", PARTITIONS * 2) };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    scene.start();
    scene.start();
    scene.balanced().await;
    let owners = scene.terms.owners();
    // Four for a member that has two threads; the other one has nothing to do but to take over.
    let theirs = scene.terms.of_process(scene.pids()[0]);
    let jobs: Vec<(Job, To)> = theirs
        .iter()
        .map(|partition| {
            (Job { block_ms: BLOCK_MS, ..Job::new(u64::from(*partition)) }, To::Partition(*partition))
        })
        .collect();
    scene.send(&jobs).await;
    scene.until("all are handled", |scene| scene.done.len() == jobs.len()).await;
    scene.at_rest().await;
    let lines = &scene.history.lines;
    let started: Vec<u64> = {
        let started = lines.iter().filter(|line| matches!(line.what, What::Started(_)));
        started.map(|line| line.at_us).collect()
    };
    let took = started.iter().max().zip(started.iter().min()).map(|(last, first)| last - first);
    assert!(took >= Some(BLOCK_MS * 1_000), "handlers waited for a thread");
    assert_eq!(started.len(), jobs.len(), "each is started once");
    assert!(!lines.iter().any(|line| matches!(line.what, What::Lost(..))), "no lease is lost");
    assert_eq!(scene.terms.owners(), owners, "nothing moved");
    scene.end().await;
}
