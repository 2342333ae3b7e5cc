//! A breaker while what handlers call is away, members are killed, and the server is away: nothing becomes a dead letter.

use std::time::Duration;

use integration_tests::fixture::{Fixture, To};
use integration_tests::history::What;
use integration_tests::member::{Job, Mode, OPEN, Setup};
use integration_tests::server::Server;

const CALLS: u32 = 10;
const PARTITIONS: u32 = 3;
const MESSAGES: u64 = 600;
const TTL: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_outage_with_kills_makes_no_dead_letters() {
    let server = Server::start();
    let unlimited = Setup::new(&server.url(), "broken", PARTITIONS);
    let setup = Setup {
        breaker: Some(CALLS),
        mode: Mode::Unordered(8),
        ttl_ms: TTL.as_millis() as u64,
        attempts: 3,
        crash_limit: 1_000,
        ..unlimited
    };
    let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let mut members = 3;
    (0..members).for_each(|_| _ = fixture.start());
    fixture.balanced().await;
    let job = |n| (Job { work_us: 5_000, ..Job::new(n) }, To::Partition(n as u32 % PARTITIONS));
    let jobs: Vec<_> = (0..MESSAGES).map(job).collect();
    let (before, meanwhile) = jobs.split_at(MESSAGES as usize / 2);
    fixture.send(before).await;
    fixture.until("it goes on", |it| it.done.len() >= before.len() / 2).await;
    let away = fixture.setup.away();
    std::fs::write(&away, "").expect("written");
    fixture.send(meanwhile).await;
    for round in 0..4 {
        // It is tried again, by whoever is there.
        let failed =
            |it: &Fixture| it.history.lines.iter().filter(|it| matches!(it.what, What::Failed(_))).count();
        let known = failed(&fixture);
        fixture.until("somebody tries", |it| failed(it) > known).await;
        if round == 2 {
            server.pause();
            tokio::time::sleep(TTL * 2).await;
            server.resume();
        } else {
            let pids = fixture.pids();
            fixture.kill(pids[fastrand::usize(0..pids.len())]);
            fixture.start();
            members += 1;
        }
    }
    let open = fixture.mq.admin().open_breakers().await.expect("an answer");
    assert!(open.len() == 1 && open[0].reason.contains("as planned"), "{open:?}");
    std::fs::remove_file(&away).expect("removed");
    fixture.until("all are done", |it| it.done.len() as u64 == MESSAGES).await;
    let lines = fixture.read();
    let failed: Vec<_> =
        lines.iter().filter(|line| matches!(line.what, What::Failed(_))).map(|it| it.at_us).collect();
    let attempt = |what: &What| if let What::Done(it) = what { it.attempt - 1 } else { 0 };
    let used: u32 = lines.iter().map(|line| attempt(&line.what)).sum();
    let time = Duration::from_micros(failed.last().unwrap_or(&0) - failed.first().unwrap_or(&0));
    let tries = (time.as_millis() / OPEN.as_millis()) as u32 + 1;
    println!("{used} attempts, {} failed calls, {tries} tries, {members} members", failed.len());
    assert!(used <= members * CALLS + tries, "{used} attempts, {tries} tries of {members} members");
    assert_eq!(fixture.dead().await, 0);
    fixture.end().await;
    assert_eq!(fixture.mq.admin().open_breakers().await.expect("an answer"), []);
}
