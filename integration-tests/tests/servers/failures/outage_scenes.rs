//! The server is away for about the time after which its clients count as dead, again and again. Nobody dies of it: each has
//! what it had, nothing is handled twice and nothing is given up. Who really died meanwhile is replaced soon after.

use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::crew::{Crew, Kind, Plan, Start};
use integration_tests::equipment::baseline::Stalls;
use integration_tests::history::{Line, What, figure, now_us};
use integration_tests::member::{Job, Mode};
use integration_tests::proxy::Proxy;
use integration_tests::server::Server;

use crate::failures::crash_scenes::BINS;

const TTL: Duration = Duration::from_secs(2);
/// Six outages, and how long the server is there after each, in ttls.
const OUTAGES: [(f64, f64); 6] = [(1.2, 1.1), (0.7, 0.5), (1.6, 1.4), (1.4, 0.7), (1.7, 1.6), (1.1, 1.0)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    /// Its process is killed and comes back with its file.
    Killed,
    /// Its process is stopped and goes on.
    Stopped,
}

impl Away {
    async fn for_a_while(self, server: &mut Server, time: Duration) {
        match self {
            Self::Killed => {
                server.kill();
                tokio::time::sleep(time).await;
                server.restart();
            }
            Self::Stopped => {
                server.pause();
                tokio::time::sleep(time).await;
                server.resume();
            }
        }
    }
}

fn plan(kind: Kind) -> Plan {
    let plan = Plan { crash_limit: 2, ..Plan::new(kind, TTL) };
    match kind {
        Kind::Exclusive => Plan { mode: Mode::Unordered(6), ..plan },
        // No more than it can do at once: what it reads beyond that waits behind its handlers.
        Kind::Shared | Kind::Queue => Plan { mode: Mode::Unordered(12), prefetch: 12, ..plan },
    }
}

/// The same, with messages of which several are one entry: it stays pending as long as one of them is.
fn packed(kind: Kind) -> Plan {
    Plan { packed: Some(10), ..plan(kind) }
}

/// Handlers of a second and a half, and some of four: longer than any of the outages.
fn jobs(count: u64) -> Vec<Job> {
    let work_us = |number| if number % 5 == 0 { 4_000_000 } else { 1_500_000 };
    (0..count).map(|number| Job { work_us: work_us(number), ..Job::new(number) }).collect()
}

/// Six outages while three instances become six, and nobody dies.
async fn six_outages(plan: Plan, away: Away) {
    let kind = plan.kind;
    let mut server = Server::builder().appendonly(true).start();
    let mut crew = Crew::new(BINS, &server.url(), plan.clone()).await;
    crew.join(3).await;
    let jobs = jobs(800);
    crew.send(&jobs).await;
    crew.until("it works", |crew| crew.done.len() > 10).await;
    for (nth, (outage, after)) in OUTAGES.into_iter().enumerate() {
        away.for_a_while(&mut server, TTL.mul_f64(outage)).await;
        let back = Instant::now();
        if nth % 2 == 0 {
            crew.start();
            crew.ready().await;
        }
        tokio::time::sleep(TTL.mul_f64(after).saturating_sub(back.elapsed())).await;
    }
    let all = crew.within(HANG, |crew| crew.done.len() == jobs.len()).await;
    let (doubled, dead) = (crew.doubled(), crew.dead().await);
    figure(
        "outages",
        &format!(
            "{kind:?}, server {away:?} 6 times for 0.7 to 1.7 of {TTL:?}, 3 to 6 instances: {} of {} handled twice, {} \
             given up, {} not handled",
            doubled.len(),
            jobs.len(),
            dead.len(),
            jobs.len() - crew.done.len()
        ),
    );
    assert_eq!(dead, [], "nothing is given up");
    assert!(
        doubled.is_empty(),
        "{} are handled twice, as these: {:?}",
        doubled.len(),
        &doubled[..doubled.len().min(3)]
    );
    assert!(all, "{} of {} are handled", crew.done.len(), jobs.len());
    crew.end().await;
    assert_eq!(crew.left().await, 0, "nothing is left over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_keep_what_they_had_through_outages() {
    six_outages(plan(Kind::Exclusive), Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_keep_what_they_had_while_the_server_is_stopped() {
    six_outages(plan(Kind::Exclusive), Away::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shares_keeps_what_it_had_through_outages() {
    six_outages(plan(Kind::Shared), Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_keep_what_they_had_of_packs_through_outages() {
    six_outages(packed(Kind::Exclusive), Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shares_keeps_what_it_had_of_packs_through_outages() {
    six_outages(packed(Kind::Shared), Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_keep_their_claims_through_outages() {
    six_outages(plan(Kind::Queue), Away::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_keep_their_claims_while_the_server_is_stopped() {
    six_outages(plan(Kind::Queue), Away::Stopped).await;
}

/// One of three dies while the server is away.
async fn dies_during_an_outage(plan: Plan) {
    let kind = plan.kind;
    // Room for processes that are slower than on a machine which has nothing else to do.
    const SLACK: Duration = Duration::from_secs(4);
    let stalls = Stalls::start();
    let mut server = Server::builder().appendonly(true).start();
    let plan = Plan { crash_limit: 3, ..plan };
    let mut crew = Crew::new(BINS, &server.url(), plan.clone()).await;
    crew.join(3).await;
    // Longer than all of this takes. Without ownership, the others need free capacity for the victim's work.
    let (count, running) = if kind == Kind::Exclusive { (72, 48) } else { (24, 24) };
    let jobs: Vec<Job> = (0..count).map(|number| Job { work_us: 7_000_000, ..Job::new(number) }).collect();
    crew.send(&jobs).await;
    crew.until("all hands are full", |crew| crew.starts.len() >= running).await;
    let undone = |number: &u64| !crew.done.contains_key(number);
    let running = crew.starts.iter().filter(|(number, _)| undone(number));
    let mut busy: Vec<u32> = running.map(|(_, starts)| starts[0].pid).collect();
    busy.sort_unstable();
    let victim = busy[fastrand::usize(0..busy.len())];
    let theirs = crew.terms.of_process(victim);
    let of_victim: Vec<u64> = {
        let theirs = |(number, starts): &(&u64, &Vec<Start>)| undone(number) && starts[0].pid == victim;
        let started = crew.starts.iter().filter(theirs);
        started.map(|(number, _)| *number).collect()
    };
    assert!(!of_victim.is_empty(), "the victim works");
    server.kill();
    tokio::time::sleep(TTL / 2).await;
    crew.kill(victim);
    tokio::time::sleep(TTL.mul_f64(0.7)).await;
    server.restart();
    let (back, back_us) = (Instant::now(), now_us());
    let begun_again = |crew: &Crew| match kind {
        Kind::Exclusive => theirs.iter().all(|partition| crew.terms.owners().contains_key(partition)),
        Kind::Shared | Kind::Queue => of_victim.iter().all(|number| crew.starts[number].len() > 1),
    };
    let replaced = crew.within(HANG, begun_again).await;
    let (took, stalled) = (back.elapsed(), stalls.since(back_us));
    figure(
        "died during an outage",
        &format!(
            "{kind:?}: {} after the server was back, {:?} promised",
            format_args!("{took:.1?}"),
            plan.replaced_within()
        ),
    );
    assert!(
        replaced && took <= plan.replaced_within() + SLACK + stalled,
        "replaced {took:?} after the server was back: {replaced}; the machine stood still for {stalled:?}"
    );
    crew.until("all is done", |crew| crew.done.len() == jobs.len()).await;
    // The others had what they had: nothing of theirs began again, and no lease of theirs went.
    let innocent = crew.doubled_for_nothing();
    assert!(innocent.is_empty(), "handled twice though nobody died: {innocent:?}");
    let lost: Vec<&Line> = {
        let lines = crew.history.lines.iter().filter(|line| line.at_us > back_us);
        lines.filter(|line| matches!(line.what, What::Lost(..) | What::ClaimsLost(..))).collect()
    };
    assert!(lost.is_empty(), "the living lost something: {lost:?}");
    assert_eq!(crew.dead().await, []);
    crew.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_died_during_an_outage_is_replaced() {
    dies_during_an_outage(plan(Kind::Exclusive)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shared_and_died_during_an_outage_is_replaced() {
    dies_during_an_outage(plan(Kind::Shared)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_of_packs_that_died_during_an_outage_is_replaced() {
    dies_during_an_outage(packed(Kind::Exclusive)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shared_packs_and_died_during_an_outage_is_replaced() {
    dies_during_an_outage(packed(Kind::Shared)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_died_during_an_outage_is_replaced() {
    dies_during_an_outage(plan(Kind::Queue)).await;
}

/// Who alone is cut off loses its leases, as ever; but it did not die over its messages, and says so when it is back. After
/// four such cuts, each with all messages in flight, none is under suspicion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_cut_off_alone_loses_its_leases_and_takes_back_its_end() {
    const AT_ONCE: u64 = 4;
    let server = Server::start();
    let plan =
        Plan { mode: Mode::Unordered(4), partitions: 4, crash_limit: 2, ..Plan::new(Kind::Exclusive, TTL) };
    let mut crew = Crew::new(BINS, &server.url(), plan.clone()).await;
    let proxies = [Proxy::to(server.port()), Proxy::to(server.port())];
    let pids: Vec<u32> = proxies.iter().map(|proxy| crew.start_at(&proxy.url())).collect();
    crew.settled().await;
    let count = AT_ONCE * u64::from(plan.partitions);
    let jobs: Vec<Job> = (0..count).map(|number| Job { hold: [true; 2], ..Job::new(number) }).collect();
    crew.send(&jobs).await;
    crew.until("all are begun", |crew| crew.starts.len() as u64 == count).await;
    for round in 0..4 {
        let (cut, stays) = (round % 2, 1 - round % 2);
        let theirs: Vec<u64> = {
            let last =
                crew.starts.iter().filter(|(_, starts)| starts.last().is_some_and(|it| it.pid == pids[cut]));
            last.map(|(number, _)| *number).collect()
        };
        let lines = crew.history.lines.len();
        proxies[cut].cut();
        let taken = |crew: &Crew| crew.terms.of_process(pids[stays]).len() == plan.partitions as usize;
        crew.until("the other one takes over", taken).await;
        let begun = |crew: &Crew| {
            theirs.iter().all(|number| crew.starts[number].last().is_some_and(|it| it.pid == pids[stays]))
        };
        let at_once = crew.within(HANG, begun).await;
        let again =
            theirs.iter().filter(|number| crew.starts[number].last().is_some_and(|it| it.pid == pids[stays]));
        let again = again.count();
        figure(
            "cut off alone",
            &format!("round {round}: {again} of {} go on at once with the other one", theirs.len()),
        );
        assert!(at_once, "round {round}: {again} of {} are begun, the others wait behind them", theirs.len());
        proxies[cut].heal();
        let lost = |line: &Line| line.pid == pids[cut] && matches!(line.what, What::Lost(..));
        let told = |crew: &Crew| crew.history.lines[lines..].iter().any(lost);
        crew.until("the one that was cut off learns of its loss", told).await;
        // It is a member again, which takes a heartbeat; not every kind reports it.
        let told = |crew: &Crew| {
            let back = |line: &Line| line.pid == pids[cut] && matches!(line.what, What::Rebalanced(2, _));
            let lines = &crew.history.lines[lines..];
            lines.iter().rposition(lost).is_some_and(|at| lines[at..].iter().any(back))
        };
        crew.within(plan.replaced_within() + TTL, told).await;
    }
    for process in crew.processes.values() {
        process.release();
    }
    let done = |crew: &Crew| {
        crew.processes.values().for_each(integration_tests::process::Process::release);
        crew.done.len() as u64 == count
    };
    crew.until("all are done", done).await;
    assert_eq!(crew.dead().await, [], "nobody died");
    crew.end().await;
}
