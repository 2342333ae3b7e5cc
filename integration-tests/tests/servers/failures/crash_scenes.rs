//! Crashes of processes among processes that go on: what it costs the others. The figures are compared with a run without the
//! crash at the same time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::crew::{Bins, Crew, Kind, Plan, size};
use integration_tests::equipment::baseline::Stalls;
use integration_tests::history::{What, figure, now_us};
use integration_tests::member::{End, Job, Mode};
use integration_tests::server::Server;
use tokio::join;

pub(crate) const BINS: Bins =
    Bins { member: env!("CARGO_BIN_EXE_member"), worker: env!("CARGO_BIN_EXE_worker") };
const WORK: Duration = Duration::from_secs(1);

fn jobs(count: u64) -> Vec<Job> {
    let work_us = u64::try_from(WORK.as_micros()).expect("small");
    (0..count).map(|number| Job { work_us, ..Job::new(number) }).collect()
}

/// How long the crew takes for this many jobs when nothing happens.
async fn calm(plan: Plan, instances: usize, jobs: &[Job]) -> Duration {
    let server = Server::builder().appendonly(true).start();
    let mut crew = Crew::new(BINS, &server.url(), plan).await;
    crew.join(instances).await;
    let began = Instant::now();
    crew.send(jobs).await;
    let all = crew.within(3 * HANG, |crew| crew.done.len() == jobs.len()).await;
    assert!(all, "the calm run ends");
    let took = began.elapsed();
    assert!(crew.doubled().is_empty(), "nothing happened: {:?}", crew.doubled());
    crew.end().await;
    took
}

/// The most handlers of others that ran at once after this time.
fn most_at_once(crew: &Crew, victim: u32, from_us: u64) -> usize {
    let mut running = BTreeSet::new();
    let mut most = 0;
    for line in crew.history.lines.iter().filter(|line| line.pid != victim) {
        match &line.what {
            What::Started(it) => _ = running.insert(it.number),
            What::Done(it) => _ = running.remove(&it.number),
            _ => {}
        }
        if line.at_us >= from_us {
            most = most.max(running.len());
        }
    }
    most
}

/// One `kill -9` among three instances. The remaining ones own all partitions, and each partition works at its own
/// concurrency: so the remaining instances have the capacity of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_kill_costs_its_own_messages_only() {
    let plan = Plan::new(Kind::Exclusive, Duration::from_secs(2));
    let jobs = jobs(size(1_000, 2_000));
    let killed = async {
        let server = Server::builder().appendonly(true).start();
        let mut crew = Crew::new(BINS, &server.url(), plan.clone()).await;
        crew.join(3).await;
        let began = Instant::now();
        crew.send(&jobs).await;
        crew.until("it works", |crew| crew.done.len() >= jobs.len() / 5).await;
        let victim = crew.pids()[fastrand::usize(0..3)];
        let theirs = crew.terms.of_process(victim);
        let killed_us = crew.kill(victim);
        let dead_us = now_us();
        let taken = |crew: &Crew| crew.terms.owners().len() == plan.partitions as usize;
        crew.until("its partitions have new owners", taken).await;
        let taken_us = now_us();
        let all = crew.within(3 * HANG, |crew| crew.done.len() == jobs.len()).await;
        let took = began.elapsed();
        (server, crew, victim, theirs, [killed_us, dead_us], taken_us, all, took)
    };
    let stalls = Stalls::start();
    let (calm, (server, mut crew, victim, theirs, [killed_us, dead_us], taken_us, all, took)) =
        join!(calm(plan.clone(), 3, &jobs), killed);
    let (takeover, stalled) =
        (Duration::from_micros(taken_us - killed_us), stalls.between(killed_us, taken_us));
    let at_once = most_at_once(&crew, victim, taken_us);
    let doubled = crew.doubled();
    figure(
        "one kill",
        &format!(
            "{} jobs of {WORK:?}: calm {calm:.1?}, with the kill {took:.1?}{}; {takeover:.1?} from kill to takeover of \
             {} partitions ({stalled:.1?} of it the machine stood still), then up to {at_once} at once; {} handled twice",
            jobs.len(),
            if all { "" } else { " and not done" },
            theirs.len(),
            doubled.len()
        ),
    );
    let promised = plan.replaced_within() + stalled;
    assert!(takeover <= promised, "new owners after {takeover:?}, {promised:?} are promised");
    // Each partition works at its own concurrency again: with those of the victim lying idle it would be two thirds at most.
    // The rate is a figure, as it depends on the machine.
    let all_at_once = plan.partitions as usize * 8;
    assert!(
        at_once * 10 >= all_at_once * 8,
        "{at_once} handlers at once after the takeover, of {all_at_once}"
    );
    assert!(all, "{} of {} done after {took:?}, {calm:?} in the calm run", crew.done.len(), jobs.len());
    for (number, starts) in &doubled {
        assert_eq!(starts.len(), 2, "{number}: {starts:?}");
        assert_eq!(starts[0].pid, victim, "{number} was not the victim's: {starts:?}");
        // A handler can start between the note of the kill and the kill.
        assert!(starts[0].at_us <= dead_us, "{number}: {starts:?}");
    }
    // All that ran there; and of a wave of jobs that have just ended, what was not acknowledged yet.
    let ended = |number: &u64| {
        let of_victim = crew.history.lines.iter().filter(|line| line.pid == victim);
        of_victim.into_iter().any(|line| matches!(&line.what, What::Done(it) if it.number == *number))
    };
    let (ended, ran): (Vec<_>, Vec<_>) = doubled.iter().partition(|(number, _)| ended(number));
    let most = theirs.len() * 8;
    assert!(ran.len() <= most, "at most what ran there: {}", ran.len());
    assert!(ended.len() <= most, "at most what had just ended there: {}", ended.len());
    assert_eq!(crew.dead().await, [], "nobody is given up");
    crew.end().await;
    drop(server);
}

struct Poison {
    name: &'static str,
    plan: Plan,
    count: u64,
    work: Duration,
}

/// Among many messages one aborts every process that handles it.
async fn poison(Poison { name, plan, count, work }: Poison) {
    let work_us = u64::try_from(work.as_micros()).expect("small");
    let healthy: Vec<Job> = (0..count).map(|number| Job { work_us, ..Job::new(number) }).collect();
    let poison = count / 3;
    let mut jobs = healthy.clone();
    jobs[usize::try_from(poison).expect("small")].end = [End::Abort; 2];
    let most = usize::try_from(plan.crash_limit + 1).expect("small").max(4);
    let poisoned = async {
        let server = Server::builder().appendonly(true).start();
        let mut crew = Crew::new(BINS, &server.url(), plan.clone()).await;
        crew.join(3).await;
        let (began, mut ends) = (Instant::now(), 0);
        crew.send(&jobs).await;
        let time_limit = 3 * HANG;
        while began.elapsed() < time_limit
            && (crew.done.len() + 1 < jobs.len() || crew.dead().await.is_empty())
        {
            ends += crew.replace_dead();
            crew.read();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (server, crew, ends, began.elapsed())
    };
    let (stalls, began_us) = (Stalls::start(), now_us());
    let (calm, (server, mut crew, ends, took)) = join!(calm(plan.clone(), 3, &healthy), poisoned);
    let stalled = stalls.since(began_us);
    let dead = crew.dead().await;
    let neighbours = crew.doubled().iter().filter(|(number, _)| *number != poison).count();
    // The calm run goes on at the same time on the same machine.
    let allowed = calm.mul_f64(1.5) + plan.replaced_within() * u32::try_from(ends).expect("small") + stalled;
    figure(
        "poison",
        &format!(
            "{name}: {count} jobs of {work:?}, calm {calm:.1?}, {took:.1?} with {ends} ends ({allowed:.1?} allowed), {} \
             done, dead {dead:?}, {neighbours} neighbours begun again",
            crew.done.len()
        ),
    );
    assert!(ends <= most, "{ends} processes ended, {most} may");
    let letters: Vec<(u64, &str)> = dead.iter().map(|it| (it.number, it.reason.as_str())).collect();
    assert_eq!(letters, [(poison, "crashed")], "the poison and nobody else");
    assert_eq!(crew.done.len() + 1, jobs.len(), "its neighbours are done");
    assert!(took <= allowed, "{took:?}, {allowed:?} are allowed");
    // What ran beside it when its process ended is handled again, and nothing else.
    let innocent = crew.doubled_for_nothing();
    assert!(innocent.is_empty(), "handled twice though nobody died: {innocent:?}");
    for (number, starts) in crew.doubled() {
        for start in &starts[..starts.len() - 1] {
            let done = |what: &What| matches!(what, What::Done(it) if it.number == number);
            // Its last word, and not when it was found dead: on a busy machine that can be seconds later.
            let words = crew.history.lines.iter().filter(|line| line.pid == start.pid);
            let words = words.filter(|line| !matches!(line.what, What::Killed));
            let ended_us = words.map(|line| line.at_us).max().expect("it began the message");
            assert!(
                crew.killed.contains_key(&start.pid),
                "{number} is handled again though nobody died: {starts:?}"
            );
            let lines = crew.history.lines.iter().filter(|line| line.pid == start.pid && done(&line.what));
            let long_before = lines.filter(|line| line.at_us + 2_000_000 < ended_us).count();
            assert_eq!(long_before, 0, "{number} was done long before the end: {starts:?}");
        }
    }
    crew.end().await;
    drop(server);
}

fn poison_plan(kind: Kind, mode: Mode, crash_limit: u32) -> Plan {
    Plan { mode, crash_limit, partitions: 4, ..Plan::new(kind, Duration::from_secs(1)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_poison_among_many_is_found_by_itself() {
    let plan = poison_plan(Kind::Exclusive, Mode::Unordered(16), 3);
    poison(Poison { name: "limit 3", plan, count: size(800, 5_000), work: WORK }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_is_found_soon_with_a_small_limit() {
    let plan = poison_plan(Kind::Exclusive, Mode::Unordered(16), 2);
    poison(Poison { name: "limit 2", plan, count: size(500, 5_000), work: WORK }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_is_found_within_a_large_limit() {
    let plan = poison_plan(Kind::Exclusive, Mode::Unordered(16), 5);
    poison(Poison { name: "limit 5", plan, count: size(500, 5_000), work: WORK }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_among_messages_that_go_one_by_one() {
    let plan = poison_plan(Kind::Exclusive, Mode::Serial, 3);
    poison(Poison { name: "serial", plan, count: size(300, 2_000), work: WORK / 10 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_among_messages_in_the_order_of_their_keys() {
    let plan = poison_plan(Kind::Exclusive, Mode::PerKey(16), 3);
    poison(Poison { name: "per key", plan, count: size(500, 5_000), work: WORK }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_among_messages_that_are_shared() {
    let plan = poison_plan(Kind::Shared, Mode::Unordered(16), 3);
    poison(Poison { name: "shared", plan, count: size(400, 5_000), work: WORK }).await;
}
