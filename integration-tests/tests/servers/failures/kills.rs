//! Consumer processes are killed with -9 in the middle of their handlers, again and again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{Handling, What, figure};
use integration_tests::member::{End, GROUP, Job, Setup};
use integration_tests::owners::How;
use integration_tests::server::Server;
use millstream::Limits;

const PARTITIONS: u32 = 8;
const KEYS: u64 = 97;

#[tokio::test]
async fn kills_of_the_only_instance_lose_nothing_and_double_only_what_was_in_flight() {
    kills(1, 80, 10_000, None).await;
}

#[tokio::test]
async fn kills_of_one_of_three_instances_lose_nothing_and_double_only_what_was_in_flight() {
    kills(3, 200, 20_000, None).await;
}

/// The messages of one entry are handled again one by one: those that were in flight, and no others.
#[tokio::test]
async fn kills_over_packed_messages_lose_nothing_and_double_only_what_was_in_flight() {
    kills(3, 100, 10_000, Some(50)).await;
}

/// A message's life: some fail once, some always, and work takes about a millisecond, so that kills meet handlers.
fn job(number: u64) -> Job {
    let end = if is_hopeless(number) { End::DeadLetter } else { End::Ack };
    Job {
        work_us: 1_000 * (number % 3),
        fails: u32::from(number % 33 == 5),
        end: [end; 2],
        ..Job::new(number)
    }
}

fn is_hopeless(number: u64) -> bool {
    number % 500 == 499
}

async fn kills(instances: usize, kills: usize, messages: u64, packed: Option<u32>) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start();
    // Processes die all the time here, and not over a message.
    let setup = Setup {
        ttl_ms: 200,
        prefetch: 16,
        attempts: 3,
        crash_limit: 1_000,
        packed,
        ..Setup::new(&server.url(), "numbers", PARTITIONS)
    };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let jobs: Vec<(Job, To)> = (0..messages).map(|number| (job(number), To::Key(number % KEYS))).collect();
    scene.send(&jobs).await;

    let began = Instant::now();
    let hopeless: BTreeSet<u64> = (0..messages).filter(|number| is_hopeless(*number)).collect();
    let healthy = messages - hopeless.len() as u64;
    let (mut in_flight, mut handled) = (0, 0);
    for kill in 0..kills {
        while scene.processes.len() < instances {
            scene.start();
        }
        // Kills are spread so that the last ones still meet work: a share of what is left, at random.
        let left = messages.saturating_sub(scene.done.len() as u64) / (kills - kill) as u64;
        let until = handled + 1 + random.u64(0..=left.max(1));
        let deadline = Instant::now() + HANG;
        // The last kills may find nothing that is left: those that are given up are never done.
        while handled < until && (scene.done.len() as u64) < healthy {
            assert!(Instant::now() < deadline, "kill {kill}: nothing is handled: {handled} handled");
            tokio::time::sleep(Duration::from_micros(500)).await;
            let lines = scene.history.lines.len();
            let started = |what: &What| matches!(what, What::Started(_));
            handled += scene.read()[lines..].iter().filter(|line| started(&line.what)).count() as u64;
        }
        let pids = scene.pids();
        let victim = pids[random.usize(0..pids.len())];
        let lines = scene.history.lines.len();
        let theirs = scene.terms.of_process(victim);
        scene.kill(victim);
        let started = |what: &What| matches!(what, What::Started(_));
        handled += scene.history.lines[lines..].iter().filter(|line| started(&line.what)).count() as u64;
        let stats = scene.mq.stats(&scene.topic, GROUP).await.expect("stats");
        let of_victim = stats.iter().filter(|stats| theirs.contains(&stats.partition.0));
        in_flight += of_victim.map(|stats| stats.pending).sum::<u64>();
    }
    while scene.processes.len() < instances {
        scene.start();
    }
    scene.until("everything is done", |scene| scene.done.len() as u64 == healthy).await;
    scene.at_rest().await;
    let took = began.elapsed();
    scene.end().await;

    // Every dead letter is one of the hopeless, once.
    let letters = scene.mq.dead_letters(&scene.topic, GROUP).await.expect("dead letters");
    let dead: Vec<u64> = letters
        .list(usize::MAX)
        .await
        .expect("listed")
        .iter()
        .map(|letter| {
            let envelope = letter.envelope(&Limits::default()).expect("a message");
            serde_json::from_slice::<Job>(&envelope.payload).expect("a job").number
        })
        .collect();
    assert_eq!(dead.len(), hopeless.len());
    assert_eq!(dead.into_iter().collect::<BTreeSet<_>>(), hopeless);

    // An attempt that was started again was in flight when its owner was killed, or lost its lease.
    let mut starts: HashMap<(u64, u32), Vec<Handling>> = HashMap::new();
    for line in &scene.history.lines {
        if let What::Started(it) = &line.what {
            starts.entry((it.number, it.attempt)).or_default().push(*it);
        }
    }
    let (mut doubled, mut after_loss) = (0, 0);
    for ((number, attempt), starts) in &starts {
        for it in &starts[..starts.len() - 1] {
            let ended = scene.terms.0[&(it.partition, it.epoch)].end.map(|(_, how)| how);
            match ended {
                Some(How::Killed) => doubled += 1,
                Some(How::Lost) => after_loss += 1,
                _ => panic!("{number} (attempt {attempt}) was doubled without a kill: {starts:?}"),
            }
        }
        let epochs: HashSet<u64> = starts.iter().map(|it| it.epoch).collect();
        assert_eq!(epochs.len(), starts.len(), "{number} was started twice by one owner: {starts:?}");
    }
    assert!(doubled <= in_flight, "{doubled} doubled, {in_flight} in flight at kills");

    // First deliveries of a key come in the order they were sent.
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut seen = HashSet::new();
    for line in &scene.history.lines {
        let What::Started(it) = &line.what else { continue };
        if it.attempt == 1 && seen.insert(it.number) {
            let before = last.insert(it.number % KEYS, it.number);
            assert!(before.is_none_or(|before| before < it.number), "{} after {before:?}", it.number);
        }
    }
    assert_eq!(seen.len() as u64, messages, "every message was handled");
    figure(
        if packed.is_some() { "kills, packed" } else { "kills" },
        &format!(
            "{messages} messages, {instances} instances, {kills} kills in {took:.1?}: 0 lost, {doubled} handled twice of \
             {in_flight} in flight at kills, {after_loss} after a lost lease"
        ),
    );
}
