//! A server's clock that jumps an hour ahead while everybody works: 45.

use integration_tests::HANG;
use integration_tests::crew::{Crew, Kind, Plan};
use integration_tests::delays::clock::Clock;
use integration_tests::history::figure;
use integration_tests::member::{Job, Mode};
use integration_tests::server::Server;

use super::MS;
use crate::failures::crash_scenes::BINS;

/// All leases, claims and heartbeats seem to have expired at once. At most the messages in flight are handled again,
/// and no message is given up: no process has died.
async fn an_hour_ahead(kind: Kind) {
    let clock = Clock::new();
    let [(preload, library), (file, path)] = clock.env();
    let server = Server::builder().env(preload, library).env(file, path).start();
    let at_once = if kind == Kind::Exclusive { 4 } else { 12 };
    let plan =
        Plan { mode: Mode::Unordered(at_once), partitions: 4, crash_limit: 2, ..Plan::new(kind, MS(2_000)) };
    let mut crew = Crew::new(BINS, &server.url(), plan).await;
    crew.join(3).await;
    let jobs: Vec<Job> = (0..120).map(|number| Job { work_us: 1_500_000, ..Job::new(number) }).collect();
    crew.send(&jobs).await;
    let (mut in_hand, mut shift) = (0, 0);
    for round in 1..=2 {
        crew.until("it works", |crew| crew.done.len() >= round * 20).await;
        in_hand += crew.starts.len() - crew.done.len();
        shift += 3_600;
        clock.shift(shift);
        tokio::time::sleep(MS(500)).await;
    }
    let all = crew.within(HANG, |crew| crew.done.len() == jobs.len()).await;
    let (doubled, dead) = (crew.doubled().len(), crew.dead().await);
    let text =
        format!("an hour ahead twice, {kind:?}: {doubled} handled again of {in_hand} in hand, dead {dead:?}");
    figure("fault", &text);
    assert!(all, "{} of {} are done", crew.done.len(), jobs.len());
    assert!(doubled <= in_hand, "{doubled} handled again, {in_hand} in hand");
    assert_eq!(dead, [], "nobody has died");
    crew.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_under_a_clock_that_is_set_ahead() {
    an_hour_ahead(Kind::Exclusive).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shares_under_a_clock_that_is_set_ahead() {
    an_hour_ahead(Kind::Shared).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_under_a_clock_that_is_set_ahead() {
    an_hour_ahead(Kind::Queue).await;
}
