//! Limits while members are killed and stopped, and the server is away: never more run than the limit that could still act, what
//! others did does not count, and nothing is left in use.

use std::collections::BTreeSet;
use std::time::Duration;

use integration_tests::fixture::{Fixture, To};
use integration_tests::history::{Line, What, now_us};
use integration_tests::member::{Job, Mode, Setup};
use integration_tests::server::Server;
use millstream_core::permits::PermitState;

const LIMIT: u32 = 2;
const TTL: Duration = Duration::from_secs(1);
const PARTITIONS: u32 = 3;
/// How often something is done to a member, each twice: it is killed, or stopped. `MILLSTREAM_ROUNDS` sets another number.
const ROUNDS: usize = 5;

fn rounds() -> usize {
    std::env::var("MILLSTREAM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

fn setup(server: &Server) -> Setup {
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let unlimited = Setup::new(&server.url(), "limited", PARTITIONS);
    let mode = Mode::Unordered(6);
    // A rate and fairness beside the limit: nothing is stuck where they meet.
    let flow = Setup { limit: Some(LIMIT), rate: Some(100), fair: true, ..unlimited };
    Setup { mode, ttl_ms, crash_limit: 1_000, attempts: 1_000, ..flow }
}

struct Scene {
    fixture: Fixture,
    sent: u64,
    /// Processes that were stopped, and when they were.
    stops: Vec<(u32, u64)>,
}

impl Scene {
    async fn new(server: &Server) -> Self {
        let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup(server)).await;
        (0..3).for_each(|_| _ = fixture.start());
        fixture.balanced().await;
        Self { fixture, sent: 0, stops: Vec::new() }
    }

    async fn send(&mut self, count: u64) {
        let job = |number| Job { work_us: 20_000 + 10_000 * (number % 3), ..Job::new(number) };
        let jobs: Vec<_> =
            (self.sent..self.sent + count).map(|n| (job(n), To::Partition(n as u32 % PARTITIONS))).collect();
        self.sent += count;
        self.fixture.send(&jobs).await;
    }

    /// Waits until so many more messages are done.
    async fn goes_on(&mut self, more: usize) {
        let before = self.fixture.done.len();
        let most = usize::try_from(self.sent).expect("small");
        self.fixture.until("it goes on", |it| it.done.len() >= (before + more).min(most)).await;
    }

    async fn all_done(&mut self) {
        let sent = usize::try_from(self.sent).expect("small");
        self.fixture.until("all are done", |it| it.done.len() == sent).await;
    }

    async fn in_use(&self) -> Vec<PermitState> {
        self.fixture.mq.backend().permits().expect("permits").usage(0, 1_000).await.expect("usage").keys
    }

    /// The handlers that ran at the moment when the most ran that could still act, and the number of those that could not:
    /// they are of a process that was stopped for longer than its ttl, and another process does their messages again.
    fn most_at_once(&mut self) -> (Vec<(u32, u64, u32)>, usize) {
        let mut lines: Vec<Line> = self.fixture.read().to_vec();
        lines.sort_by_key(|line| line.at_us);
        let started = |line: &Line| match &line.what {
            What::Started(it) => Some((line.pid, it.number, it.deliveries)),
            _ => None,
        };
        let all: Vec<_> = lines.iter().filter_map(started).collect();
        let again = |(pid, number, deliveries)| {
            all.iter().any(|it| it.1 == number && it.0 != pid && it.2 > deliveries)
        };
        let mut stops = self.stops.clone();
        stops.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
        let (mut running, mut most, mut fenced) = (BTreeSet::new(), Vec::new(), 0);
        let (mut stopped, mut killed) = (BTreeSet::new(), BTreeSet::new());
        for line in &lines {
            while let Some((pid, _)) = stops.pop_if(|(_, at)| *at <= line.at_us) {
                let before = running.len();
                running.retain(|(other, _, _)| *other != pid);
                fenced += before - running.len();
                stopped.insert(pid);
            }
            match &line.what {
                // A process that is stopped, or killed, between its look at the clock and the handler begins one it has
                // no unit for any more: after it woke up, and not at all.
                What::Started(it)
                    if stopped.contains(&line.pid) && again((line.pid, it.number, it.deliveries)) =>
                {
                    fenced += 1;
                }
                What::Started(it) if !killed.contains(&line.pid) => {
                    running.insert((line.pid, it.number, it.deliveries));
                    if running.len() > most.len() {
                        most = running.iter().copied().collect();
                    }
                }
                What::Done(it) | What::Failed(it) => {
                    running.remove(&(line.pid, it.number, it.deliveries));
                }
                What::Killed => {
                    running.retain(|(pid, _, _)| *pid != line.pid);
                    killed.insert(line.pid);
                }
                _ => {}
            }
        }
        (most, fenced)
    }

    async fn ends(mut self) {
        self.all_done().await;
        let (most, fenced) = self.most_at_once();
        println!("{} messages, at most {} at once, {fenced} of stopped processes", self.sent, most.len());
        let stops = &self.stops;
        assert_eq!(
            most.len(),
            LIMIT as usize,
            "by process, number and deliveries: {most:?}, stopped: {stops:?}"
        );
        self.fixture.at_rest().await;
        assert_eq!(self.fixture.dead().await, 0);
        self.fixture.end().await;
        assert_eq!(self.in_use().await, [], "nothing is left in use");
    }
}

#[tokio::test]
async fn kills_and_stops_never_let_one_more_run() {
    let server = Server::start();
    let mut scene = Scene::new(&server).await;
    for round in 0..rounds() * 2 {
        scene.send(60).await;
        scene.goes_on(10).await;
        let pids = scene.fixture.pids();
        let victim = pids[fastrand::usize(0..pids.len())];
        if round % 2 == 0 {
            scene.fixture.kill(victim);
            scene.goes_on(20).await;
            scene.fixture.start();
            scene.goes_on(20).await;
        } else {
            scene.fixture.process(victim).stop();
            scene.stops.push((victim, now_us()));
            // Others have what it had, and go on beside it when it wakes up.
            tokio::time::sleep(TTL * 3).await;
            scene.goes_on(20).await;
            scene.fixture.process(victim).resume();
            scene.goes_on(20).await;
        }
    }
    scene.ends().await;
}

#[tokio::test]
async fn an_outage_of_half_one_and_two_ttls_leaves_nothing_in_use() {
    let server = Server::start();
    let mut scene = Scene::new(&server).await;
    for away in [TTL / 2, TTL, TTL * 2] {
        scene.send(60).await;
        scene.goes_on(10).await;
        server.pause();
        tokio::time::sleep(away).await;
        server.resume();
        scene.goes_on(30).await;
    }
    scene.ends().await;
}

#[tokio::test]
async fn a_dead_member_keeps_nobody_waiting_for_longer_than_its_ttl_and_a_second() {
    let server = Server::start();
    let mut scene = Scene::new(&server).await;
    // Whoever has been answered for a ttl may judge.
    scene.send(60).await;
    scene.all_done().await;
    tokio::time::sleep(TTL * 2).await;
    let held = Job { hold: [true, true], ..Job::new(scene.sent) };
    let both = [(held, To::Partition(0)), (Job { number: scene.sent + 1, ..held }, To::Partition(0))];
    scene.fixture.send(&both).await;
    let (first, started) = (scene.sent, |it: &Fixture, first: u64| {
        let of = |line: &&Line| matches!(&line.what, What::Started(it) if it.number >= first);
        it.history.lines.iter().filter(of).map(|line| (line.pid, line.at_us)).collect::<Vec<_>>()
    });
    scene.fixture.until("both are held", |it| started(it, first).len() == 2).await;
    let owner = started(&scene.fixture, first)[0].0;
    let other = scene.fixture.pids().into_iter().find(|pid| *pid != owner).expect("another one");
    let theirs = scene.fixture.terms.of_process(other);
    scene.fixture.send(&[(Job::new(first + 2), To::Partition(theirs[0]))]).await;
    tokio::time::sleep(TTL).await;
    assert_eq!(started(&scene.fixture, first).len(), 2, "a third of two");
    let killed = now_us();
    scene.fixture.kill(owner);
    scene.fixture.until("another one runs", |it| started(it, first + 2).len() == 1).await;
    let waited = Duration::from_micros(started(&scene.fixture, first + 2)[0].1 - killed);
    println!("free {waited:?} after a death, with a ttl of {TTL:?}");
    // Against a hang.
    assert!(waited < TTL * 20, "{waited:?}");
}
