//! A rate while members are killed: in no window do more messages begin than it has, and it goes on.

use std::time::Duration;

use integration_tests::fixture::{Fixture, To};
use integration_tests::history::What;
use integration_tests::member::{Job, Mode, Setup};
use integration_tests::server::Server;

const RATE: u64 = 400;
const MEMBERS: usize = 8;
const MESSAGES: u64 = 16 * RATE;
const WINDOW: Duration = Duration::from_secs(10);

/// The calls of a script that no other part of the product resembles in this command.
fn reservations(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hrandfield:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn kills_never_let_more_begin_in_a_time() {
    let server = Server::start();
    let unlimited = Setup::new(&server.url(), "rated", MEMBERS as u32);
    let setup = Setup {
        rate: Some(RATE as u32),
        mode: Mode::Unordered(64),
        ttl_ms: 1_000,
        crash_limit: 1_000,
        ..unlimited
    };
    let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    (0..MEMBERS).for_each(|_| _ = fixture.start());
    fixture.balanced().await;
    let jobs: Vec<_> =
        (0..MESSAGES).map(|n| (Job::new(n), To::Partition(n as u32 % MEMBERS as u32))).collect();
    fixture.send(&jobs).await;
    for killed in 1..=3 {
        let goes_on = MESSAGES as usize / 5 * killed;
        fixture.until("it goes on", |it| it.done.len() >= goes_on).await;
        let pids = fixture.pids();
        fixture.kill(pids[fastrand::usize(0..pids.len())]);
    }
    fixture.until("all are done", |it| it.done.len() as u64 == MESSAGES).await;
    let mut started: Vec<u64> = fixture
        .read()
        .iter()
        .filter(|line| matches!(line.what, What::Started(_)))
        .map(|line| line.at_us)
        .collect();
    started.sort_unstable();
    let window = WINDOW.as_micros() as u64;
    let within = |from: u64| {
        started.partition_point(|at| *at < from + window) - started.partition_point(|at| *at < from)
    };
    let most = started.iter().map(|at| within(*at)).max().unwrap_or(0);
    let took = (started[started.len() - 1] - started[0]) as f64 / 1e6;
    let calls = reservations(&server);
    println!(
        "{} begun in {took:.1} s, {:.1} a second of {RATE}; at most {most} in {WINDOW:?}; {:.1} for a request",
        started.len(),
        started.len() as f64 / took,
        started.len() as f64 / calls as f64,
    );
    // Timers and machines are late, and handlers report later than they begin.
    let allowed = RATE * WINDOW.as_secs() * 103 / 100;
    assert!(took < 20.0 * MESSAGES as f64 / RATE as f64, "it goes on: {took} s");
    assert!(most as u64 <= allowed, "{most} in {WINDOW:?}, {allowed} are allowed");
    assert!(calls > 0 && calls < MESSAGES / 20, "{calls} requests for {MESSAGES} messages");
    fixture.at_rest().await;
    fixture.end().await;
}
