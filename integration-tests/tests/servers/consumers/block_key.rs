//! Strict order per key, while messages fail and processes are killed: nothing is lost, and nothing overtakes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{What, figure};
use integration_tests::member::{GROUP, Job, Mode, Setup};
use integration_tests::order::strict;
use integration_tests::server::Server;

const PARTITIONS: u32 = 8;
const KEYS: u64 = 1_000;
const INSTANCES: usize = 3;
const BETWEEN_KILLS: Duration = Duration::from_millis(250);

/// Kills a member and starts another. Gives back how many messages were pending in its partitions, and those that it had
/// handled and settled, unless somebody else might have settled them meanwhile.
async fn kill_one(scene: &mut Fixture) -> (usize, Option<BTreeSet<u64>>) {
    let pids = scene.pids();
    let victim = pids[fastrand::usize(0..pids.len())];
    scene.read();
    let theirs = scene.terms.of_process(victim);
    scene.kill(victim);
    if scene.setup.packed.is_some() {
        // The pending list has packs, so what was settled of them is not known.
        let stats = scene.mq.stats(&scene.topic, GROUP).await.expect("stats");
        let pending =
            stats.iter().filter(|stats| theirs.contains(&stats.partition.0)).map(|stats| stats.pending);
        let pending = pending.sum::<u64>();
        scene.start();
        return (usize::try_from(pending).expect("few"), None);
    }
    let mut done: BTreeSet<u64> = BTreeSet::new();
    for line in &scene.history.lines {
        if let What::Done(it) = &line.what
            && line.pid == victim
            && theirs.contains(&it.partition)
        {
            done.insert(it.number);
        }
    }
    let pending = scene.pending(&theirs).await;
    scene.start();
    scene.read();
    let owners = scene.terms.owners();
    let frozen = theirs.iter().all(|partition| !owners.contains_key(partition));
    done.retain(|number| !pending.contains(number));
    (pending.len(), frozen.then_some(done))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_overtakes_one_of_its_key_while_processes_are_killed() {
    kills(50_000, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_packed_message_overtakes_one_of_its_key_while_processes_are_killed() {
    kills(20_000, Some(50)).await;
}

async fn kills(messages: u64, packed: Option<u32>) {
    let server = Server::start();
    let setup = Setup {
        ttl_ms: 500,
        mode: Mode::PerKey(4),
        block_key: true,
        packed,
        // Processes die all the time here, and not over a message.
        crash_limit: 1_000,
        ..Setup::new(&server.url(), "ordered", PARTITIONS)
    };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    // One in twenty fails three times; all keys have some.
    let fails = |number: u64| if (number / KEYS + number % KEYS).is_multiple_of(20) { 3 } else { 0 };
    let jobs: Vec<(Job, To)> = (0..messages)
        .map(|number| {
            (
                Job { fails: fails(number), work_us: 1_000 * (number % 4), ..Job::new(number) },
                To::Key(number % KEYS),
            )
        })
        .collect();
    scene.send(&jobs).await;
    for _ in 0..INSTANCES {
        scene.start();
    }
    scene.until("they work", |scene| scene.history.lines.len() > 1_000).await;

    let began = Instant::now();
    let (mut kills, mut in_hand, mut looked, mut settled) = (0, 0, 0, BTreeMap::new());
    let mut done = 0;
    while done < messages as usize {
        assert!(began.elapsed() < 2 * HANG, "{done} of {messages} done, {kills} kills");
        let (pending, known) = kill_one(&mut scene).await;
        kills += 1;
        in_hand += pending;
        if let Some(known) = known {
            looked += 1;
            settled.insert(scene.history.lines.len() - 1, known);
        }
        let next = Instant::now() + BETWEEN_KILLS;
        while Instant::now() < next && done < messages as usize {
            tokio::time::sleep(Duration::from_millis(10)).await;
            scene.read();
            done = scene.done.len();
        }
    }
    let took = began.elapsed();
    scene.at_rest().await;
    scene.end().await;
    assert_eq!(scene.dead().await, 0);

    let counted = strict(&scene.history.lines, KEYS, &settled).unwrap_or_else(|broken| panic!("{broken}"));
    let lost = scene.history.lines.iter().filter(|line| matches!(line.what, What::Lost(..))).count();
    figure(
        "block_key",
        &format!(
            "{messages} messages, {KEYS} keys, {kills} kills in {took:.1?}: 0 lost, 0 out of order, {} started again and \
             {} done again of {in_hand} in hand at kills, {} failed attempts, {lost} leases lost",
            counted.repeated, counted.again, counted.failed
        ),
    );
    assert_eq!(counted.done as u64, messages);
    assert!(kills >= 10 && (looked > 0 || packed.is_some()), "{kills} kills, {looked} looked at");
    assert!(counted.failed as u64 >= 3 * (0..messages).filter(|number| fails(*number) > 0).count() as u64);
    assert!(lost > 0 || counted.repeated <= in_hand, "more was handled again than was in hand");
}
