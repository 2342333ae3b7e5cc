//! An owner is killed: time until its messages in flight are handled again and its partitions have new owners.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use integration_tests::equipment::baseline::Stalls;
use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{Line, What, figure, quantiles};
use integration_tests::member::{Job, Setup};
use integration_tests::server::Server;

const SCENES: usize = 10;
const ROUNDS: usize = 10;
const PARTITIONS: u32 = 8;
/// Messages per partition: one is being handled, the others wait in the owner's memory.
const EACH: u64 = 3;
const TTL: Duration = Duration::from_secs(3);
/// What is promised, on a machine that has time for it.
const LIMIT: Duration = Duration::from_secs(4);

#[derive(Default)]
struct Measured {
    handled_us: Vec<u64>,
    /// The same beyond what the machine took away from everybody meanwhile.
    own_us: Vec<u64>,
    owned_us: Vec<u64>,
}

/// Ten rounds of one topic: two members, one of which is killed with messages in flight.
async fn scene(url: String, topic: usize, stalls: &Stalls) -> Measured {
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let setup = Setup { ttl_ms, ..Setup::new(&url, &format!("topic-{topic}"), PARTITIONS) };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let mut measured = Measured::default();
    let mut number = 0;
    scene.start();
    for _ in 0..ROUNDS {
        scene.start();
        scene.balanced().await;

        // The first delivery of the first message of a partition blocks; a later delivery ends at once.
        let first = number;
        let partitions = (0..PARTITIONS).flat_map(|partition| std::iter::repeat_n(partition, EACH as usize));
        let jobs: Vec<(Job, To)> = partitions
            .map(|partition| {
                number += 1;
                let first = (number - 1) % EACH == 0;
                (Job { hold: [first, false], ..Job::new(number - 1) }, To::Partition(partition))
            })
            .collect();
        scene.send(&jobs).await;
        let (victim, survivor) = {
            let mut pids = scene.pids();
            let victim = pids.swap_remove(fastrand::usize(0..2));
            (victim, pids[0])
        };
        let theirs = scene.terms.of_process(victim);
        let all: Vec<u32> = (0..PARTITIONS).collect();
        integration_tests::eventually(
            async || scene.pending(&all).await.len() as u64 == u64::from(PARTITIONS) * EACH,
            "everything is in hand",
        )
        .await;
        scene
            .until("a message of each partition is being handled", |scene| {
                let started = started_since(&scene.history.lines, first);
                started.len() == PARTITIONS as usize
            })
            .await;

        // At any time between two renewals.
        tokio::time::sleep(TTL.mul_f64(fastrand::f64() / 3.0)).await;
        let killed_us = scene.kill(victim);
        let in_hand = scene.pending(&theirs).await;
        assert_eq!(in_hand.len() as u64, theirs.len() as u64 * EACH);
        scene.process(survivor).release();
        scene
            .until("the survivor has handled everything", |scene| {
                scene.done.range(first..).count() as u64 == u64::from(PARTITIONS) * EACH
            })
            .await;
        for line in scene.history.lines.iter().filter(|line| line.at_us > killed_us && line.pid == survivor) {
            match &line.what {
                What::Started(handling) if in_hand.contains(&handling.number) => {
                    assert!(handling.deliveries > 1, "it was handed out before: {handling:?}");
                    let took = line.at_us - killed_us;
                    let stalled = u64::try_from(stalls.between(killed_us, line.at_us).as_micros());
                    measured.handled_us.push(took);
                    measured.own_us.push(took.saturating_sub(stalled.unwrap_or(u64::MAX)));
                }
                _ => {}
            }
        }
        for partition in theirs {
            let owned = scene.terms.0.range((partition, 0)..=(partition, u64::MAX)).next_back();
            let term = owned.expect("it was owned").1;
            assert_eq!((term.pid, term.end.is_none()), (survivor, true), "the survivor owns it now");
            measured.owned_us.push(term.from_us - killed_us);
        }
    }
    scene.at_rest().await;
    // Only messages that a victim had in flight were handled again.
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    for line in &scene.history.lines {
        if let What::Done(handling) = &line.what {
            *times.entry(handling.number).or_default() += 1;
        }
    }
    assert!(times.len() as u64 == number && times.values().all(|times| *times == 1), "each is done once");
    measured
}

/// The messages from `first` on that were started.
fn started_since(lines: &[Line], first: u64) -> BTreeSet<u64> {
    let started = |line: &Line| match &line.what {
        What::Started(handling) => (handling.number >= first).then_some(handling.number),
        _ => None,
    };
    lines.iter().filter_map(started).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_owner_had_in_hand_is_handled_again_in_time() {
    let server = Server::start();
    let stalls = Stalls::start();
    let all: Vec<Measured> = join_all((0..SCENES).map(|topic| scene(server.url(), topic, &stalls))).await;
    let handled: Vec<u64> = all.iter().flat_map(|one| one.handled_us.clone()).collect();
    let owned: Vec<u64> = all.iter().flat_map(|one| one.owned_us.clone()).collect();
    let kills = SCENES * ROUNDS;
    figure(
        "takeover",
        &format!("{} messages, kill -9 to handler, ttl {TTL:?}, {kills} kills", quantiles(&handled)),
    );
    figure("takeover", &format!("{} partitions, kill -9 to new owner", quantiles(&owned)));
    assert_eq!(owned.len() as u32, SCENES as u32 * ROUNDS as u32 * PARTITIONS / 2);
    assert_eq!(handled.len() as u64, owned.len() as u64 * EACH, "each was measured");
    let worst = all.iter().flat_map(|one| &one.own_us).max().expect("some were being handled");
    let worst = Duration::from_micros(*worst);
    assert!(worst <= LIMIT, "{worst:?} after the kill, {LIMIT:?} are promised");
}
