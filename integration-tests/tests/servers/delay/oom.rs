//! A server that is out of memory (faults 60 and 61): what is due goes on, workers and consumers drain, what fails is
//! parked, tasks of a dead worker come back; and scheduling returns `Backpressure`.

use std::time::{Duration, Instant};

use integration_tests::delays::stage::Stage;
use integration_tests::delays::{Engine, wall_ms_in};
use integration_tests::equipment::baseline::Stalls;
use integration_tests::eventually;
use integration_tests::fixture::Fixture;
use integration_tests::history::{What, figure, now_us};
use integration_tests::member::{Job, Setup};
use integration_tests::server::Server;
use millstream::{ErrorKind, Record};
use millstream_core::tasks::ClaimRequest;
use millstream_core::{Place, Shard, Timestamp};

const MS: fn(u64) -> Duration = Duration::from_millis;

async fn left(stage: &Stage) -> u64 {
    match stage.engine {
        Engine::Queue => {
            let counts = stage.queue().count().await.expect("counts");
            counts.waiting.total + counts.claimed
        }
        Engine::Topic => {
            let topic = millstream::Topic::<u64>::new("items").partitions(2);
            let stats = stage.mq.stats(&topic, "g").await.expect("stats");
            stats.iter().map(|one| one.pending + one.retrying + one.lag.unwrap_or(1)).sum()
        }
    }
}

async fn out_of_memory(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    stage.schedule(&(0..1_000).map(|nth| MS(1_500 + 2 * nth)).collect::<Vec<_>>()).await;
    // The first ones that are due fail: a retry has to be kept, too.
    *stage.outage.lock().expect("lock") = true;
    stage.server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = stage.try_schedule(&[MS(10); 3]).await;
    let refused: Vec<u64> = refused
        .into_iter()
        .map(|(number, done)| {
            assert_eq!(done.expect_err("no memory").kind(), ErrorKind::Backpressure);
            number
        })
        .collect();
    tokio::time::sleep(MS(1_000)).await;
    *stage.outage.lock().expect("lock") = false;
    // A worker that claimed some, and died.
    let mut held = 0;
    if engine == Engine::Queue {
        let deadline = Instant::now() + MS(1_500);
        while held < 5 && Instant::now() < deadline {
            for place in stage.places() {
                let Place::Shard(shard) = place else { panic!("a shard") };
                held += take(&stage, &shard).await;
            }
        }
        assert!(held > 0, "it was there first, once");
    }
    stage.all_came_but(&refused).await;
    eventually(async || left(&stage).await == 0, "nothing is left to do, still without memory").await;
    assert_eq!(stage.server.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n1");
    assert_eq!(stage.doubled(), Vec::<u64>::new());
    figure(
        "fault",
        &format!("no memory, {engine:?}: all came, {held} of a dead worker, {} refused", refused.len()),
    );
    stage.server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    stage.lives_on().await;
}

/// Takes what is due, if anything is, and never says anything of it.
async fn take(stage: &Stage, shard: &Shard) -> usize {
    let ask = ClaimRequest {
        worker: "dead".into(),
        limit: 10,
        hold: MS(1_000),
        crash_limit: 0,
        longest_sleep: Duration::from_secs(15),
        continuity: millstream_core::Continuity::assured(),
    };
    stage.mq.backend().tasks().expect("delay queues").claim(shard, &ask).await.expect("claimed").tasks.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_drain_a_server_without_memory() {
    out_of_memory(Engine::Queue).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoters_and_consumers_drain_a_server_without_memory() {
    out_of_memory(Engine::Topic).await;
}

/// An owner dies while there is no memory: its partitions, and what waits there, have another one all the same.
#[tokio::test]
async fn the_partitions_of_a_dead_owner_are_taken_over_without_memory() {
    const JOBS: u64 = 200;
    let server = Server::start();
    let setup = Setup { ttl_ms: 500, ..Setup::new(&server.url(), "jobs", 4) };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let victim = scene.start();
    scene.start();
    scene.balanced().await;
    let base = wall_ms_in(MS(1_500));
    let jobs: Vec<Job> =
        (0..JOBS).map(|number| Job { due_ms: base + 10 * number, ..Job::new(number) }).collect();
    let records = jobs
        .iter()
        .map(|job| Record::new(job).key(format!("k{}", job.number)).at(Timestamp::from_millis(job.due_ms)));
    let sent = scene.producer.send_all_delayed(records).await;
    sent.into_iter().for_each(|sent| drop(sent.expect("sent")));
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let stalls = Stalls::start();
    let killed_us = scene.kill(victim);
    scene.until("all is owned again", |scene| scene.terms.are_balanced(4, &scene.pids())).await;
    let took = Duration::from_micros(now_us() - killed_us);
    let stalled = stalls.since(killed_us);
    scene.until("everything is done", |scene| scene.done.len() as u64 == JOBS).await;
    let early = scene.history.lines.iter().filter(|line| matches!(line.what, What::Early(..))).count();
    assert_eq!(early, 0);
    figure(
        "fault",
        &format!("no memory, owner killed: all owned after {took:.2?}, {JOBS} delayed messages done"),
    );
    assert!(took <= MS(2_000) + stalled, "{took:?}, ttl 500 ms; the machine stood still for {stalled:?}");
    scene.at_rest().await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    scene.end().await;
}
