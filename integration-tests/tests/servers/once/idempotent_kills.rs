//! Processes with idempotent handlers are killed with -9: a message is handled again only if its marker was not done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{Handling, What, figure, now_us};
use integration_tests::member::{GROUP, Job, Mode, Setup};
use integration_tests::owners::How;
use integration_tests::server::Server;
use millstream::Namespace;
use millstream_core::idempotency::Operation;
use millstream_core::keys::Keys;

const PARTITIONS: u32 = 4;
const KILLS: u64 = 8;
const MESSAGES: u64 = 2_000;

async fn scene(server: &Server, setup: Setup) -> Fixture {
    let setup = Setup { idempotent: true, namespace: format!("ns{}", server.port()), ..setup };
    Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await
}

/// The key of the marker of a message.
fn marker(scene: &Fixture, number: u64) -> String {
    let keys = Keys::within(&Namespace::new(&scene.setup.namespace).expect("a name"));
    let topic = scene.topic.spec().expect("a topic").name;
    let operation = Operation::new(topic, GROUP.parse().expect("a name"), number.to_string());
    keys.marker(&operation.expect("an operation")).to_string()
}

/// Which of these messages have a marker that is done.
async fn done(scene: &Fixture, numbers: &BTreeSet<u64>) -> BTreeSet<u64> {
    if numbers.is_empty() {
        return BTreeSet::new();
    }
    let mut get = redis::cmd("MGET");
    for number in numbers {
        get.arg(marker(scene, *number));
    }
    let markers: Vec<Option<String>> = get.query_async(&mut scene.redis.clone()).await.expect("the markers");
    let is_done = |stored: &Option<String>| stored.as_ref().is_some_and(|it| it.starts_with("d "));
    numbers.iter().zip(markers).filter(|(_, stored)| is_done(stored)).map(|(number, _)| *number).collect()
}

fn starts(scene: &Fixture, number: u64) -> Vec<Handling> {
    let started = |what: &What| match what {
        What::Started(it) if it.number == number => Some(*it),
        _ => None,
    };
    scene.history.lines.iter().filter_map(|line| started(&line.what)).collect()
}

/// The window: the effect is there, the marker is not done, and the process dies.
#[tokio::test]
async fn a_message_that_is_killed_before_its_marker_is_done_is_handled_again_once_the_marker_expired() {
    let server = Server::start();
    let setup = Setup { ttl_ms: 1_000, ..Setup::new(&server.url(), "numbers", 1) };
    let mut scene = scene(&server, setup).await;
    let first = scene.start();
    scene.send(&[(Job { hold: [true, false], ..Job::new(1) }, To::Partition(0))]).await;
    scene.until("the effect", |scene| starts(scene, 1).len() == 1).await;
    let killed = scene.kill(first);
    // Nobody extends the marker any more, so it is in the way for what is left of one ttl.
    let left: i64 =
        redis::cmd("PTTL").arg(marker(&scene, 1)).query_async(&mut scene.redis.clone()).await.expect("read");
    assert!((1..=1_000).contains(&left) || left == -2, "{left} ms are left");
    scene.start();
    scene.until("it is handled again", |scene| scene.done.contains(&1)).await;
    scene.at_rest().await;
    let handled = starts(&scene, 1);
    assert_eq!(handled.iter().map(|it| it.attempt).collect::<Vec<_>>(), [1, 1], "no attempt is used");
    assert_eq!(done(&scene, &[1].into()).await, [1].into());
    let again = scene.history.lines.iter().rfind(|line| matches!(line.what, What::Started(_)));
    let took = again.map_or(0, |line| line.at_us - killed) / 1_000;
    scene.end().await;
    figure("idempotent kill", &format!("handled again {took} ms after the kill, of a ttl of 1000 ms"));
}

/// The marker is done and the acknowledgement is missing: not the window.
#[tokio::test]
async fn a_message_that_is_killed_between_its_marker_and_its_acknowledgement_is_not_handled_again() {
    let server = Server::start();
    let setup = Setup { ttl_ms: 1_000, ..Setup::new(&server.url(), "numbers", 1) };
    let mut scene = scene(&server, setup).await;
    let first = scene.start();
    scene.until("an owner", |scene| scene.terms.owners().len() == 1).await;
    // The server refuses acknowledgements, and nothing else.
    server.cli(&["ACL", "SETUSER", "default", "-xack"]);
    let jobs: Vec<_> = (0..20).map(|number| (Job::new(number), To::Partition(0))).collect();
    scene.send(&jobs).await;
    let numbers: BTreeSet<u64> = (0..20).collect();
    let deadline = Instant::now() + HANG;
    while done(&scene, &numbers).await.len() < 20 {
        assert!(Instant::now() < deadline, "not all markers are done");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(scene.pending(&[0]).await, numbers, "none is acknowledged");
    scene.kill(first);
    server.cli(&["ACL", "SETUSER", "default", "+xack"]);
    scene.start();
    scene.at_rest().await;
    scene.end().await;
    for number in numbers {
        assert_eq!(starts(&scene, number).len(), 1, "{number}");
    }
}

/// Kills at random moments: what is handled again had no marker that was done when its process died.
#[tokio::test]
async fn kills_of_idempotent_handlers_double_only_what_had_no_marker() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start();
    // Processes die all the time here, and not over a message.
    let setup = Setup {
        ttl_ms: 500,
        mode: Mode::PerKey(8),
        crash_limit: 1_000,
        ..Setup::new(&server.url(), "numbers", PARTITIONS)
    };
    let mut scene = scene(&server, setup).await;
    let jobs: Vec<(Job, To)> = (0..MESSAGES)
        .map(|number| (Job { work_us: 1_000 * (number % 4), ..Job::new(number) }, To::Key(number % 97)))
        .collect();
    scene.send(&jobs).await;

    let began = Instant::now();
    // By process: the messages whose marker was not done when it was killed.
    let mut open: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    // Messages whose marker was seen to be done, and when.
    let mut settled: BTreeMap<u64, u64> = BTreeMap::new();
    for kill in 0..KILLS {
        while scene.processes.len() < 2 {
            scene.start();
        }
        let left = (MESSAGES - scene.done.len() as u64) / (KILLS - kill);
        let until = scene.done.len() as u64 + 1 + random.u64(0..=left / 2);
        scene.until("some are handled", |scene| scene.done.len() as u64 >= until.min(MESSAGES)).await;
        let pids = scene.pids();
        let victim = pids[random.usize(0..pids.len())];
        scene.kill(victim);
        let theirs: BTreeSet<u64> = scene
            .history
            .lines
            .iter()
            .filter(|line| line.pid == victim)
            .filter_map(|line| match &line.what {
                What::Started(it) => Some(it.number),
                _ => None,
            })
            .collect();
        let done = done(&scene, &theirs).await;
        let at = now_us();
        open.insert(victim, theirs.difference(&done).copied().collect());
        for number in done {
            settled.entry(number).or_insert(at);
        }
    }
    while scene.processes.len() < 2 {
        scene.start();
    }
    scene.until("everything is done", |scene| scene.done.len() as u64 == MESSAGES).await;
    scene.at_rest().await;
    let took = began.elapsed();
    scene.end().await;

    let mut handled: BTreeMap<u64, Vec<(u32, u64, Handling)>> = BTreeMap::new();
    for line in &scene.history.lines {
        if let What::Started(it) = &line.what {
            handled.entry(it.number).or_default().push((line.pid, line.at_us, *it));
        }
    }
    assert_eq!(handled.len() as u64, MESSAGES, "every message was handled");
    let (mut doubled, mut after_loss) = (0, 0);
    for (number, starts) in &handled {
        for pair in starts.windows(2) {
            let (pid, _, it) = pair[0];
            match scene.terms.0[&(it.partition, it.epoch)].end.map(|(_, how)| how) {
                Some(How::Killed) => {
                    doubled += 1;
                    assert!(
                        open[&pid].contains(number),
                        "{number} was done when {pid} was killed: {starts:?}"
                    );
                }
                // A busy machine: its process lived, and did not see its lease end in time.
                Some(How::Lost) => after_loss += 1,
                _ => panic!("{number} was doubled without a kill: {starts:?}"),
            }
        }
        if let Some(at) = settled.get(number) {
            assert!(
                starts.iter().all(|(_, began, _)| began < at),
                "{number} was handled after its end: {starts:?}"
            );
        }
    }
    let open: usize = open.values().map(BTreeSet::len).sum();
    assert!(doubled <= open, "{doubled} doubled, {open} without a marker at kills");
    figure(
        "idempotent kills",
        &format!(
            "{MESSAGES} messages, {KILLS} kills in {took:.1?}: 0 lost, {doubled} handled twice of {open} whose marker was not \
             done at a kill, {after_loss} after a lost lease"
        ),
    );
}
