//! Messages that are pulled from shared partitions.

use std::time::Duration;

use crate::shared::quick;
use crate::support::workers::{TTL, Workers, few};
use crate::support::*;
use millstream_core::ErrorKind;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn what_is_pulled_is_kept_and_can_be_asked_for() {
    let team = Workers::new(2);
    let (link, builder) = team.builder("a");
    let puller = few(builder).pull().await.expect("a puller");
    team.send(0..3).await;
    let one = puller.next().await.expect("a message");
    let two = puller.next().await.expect("a message");
    assert_eq!((one.epoch(), two.deliveries()), (0, 1));
    let b = team.join("b", quick, few).await;
    tokio::time::sleep(2 * TTL).await;
    one.extend().await.expect("ours");
    link.freeze();
    tokio::time::sleep(2 * TTL).await;
    link.thaw();
    assert_eq!(one.extend().await.expect_err("claimed").kind(), ErrorKind::Fenced);
    eventually(|| two.is_cancelled(), || "the other one is cancelled without a call".into()).await;
    one.ack();
    two.ack();
    team.all_done(3).await;
    team.assert_at_rest().await;
    assert_eq!(team.calls().len(), 3, "b has done it");
    puller.shutdown().await;
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_pulled_yet_is_whole_after_a_time_in_which_it_was_not_certain() {
    let team = Workers::new(1);
    let (link, builder) = team.builder("a");
    let puller = few(builder).pull().await.expect("a puller");
    team.send([7]).await;
    eventually(|| team.told.lines("Fetched") == 1, || "it is read".into()).await;
    link.freeze();
    tokio::time::sleep(TTL * 9 / 10).await;
    link.thaw();
    tokio::time::sleep(TTL / 2).await;
    let one = puller.next().await.expect("a message");
    assert_eq!((one.payload, one.is_cancelled()), (7, false));
    one.ack();
    let report = puller.shutdown().await;
    assert_eq!((report.acked, report.dead), (1, 0));
    team.assert_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_pulled_goes_to_others_while_the_last_one_takes_long() {
    let team = Workers::new(1);
    let (_, builder) = team.builder("a");
    let puller = few(builder).shutdown_timeout(4 * TTL).pull().await.expect("a puller");
    team.send(0..2).await;
    let slow = puller.next().await.expect("a message");
    tokio::time::sleep(SECOND).await;
    let b = team.join("b", quick, few).await;
    let leaving = tokio::spawn(puller.shutdown());
    let left = Instant::now();
    eventually(|| team.calls().len() == 1, || "b has the other one".into()).await;
    assert!(left.elapsed() <= 2 * SECOND, "{:?}", left.elapsed());
    slow.ack();
    assert_eq!(leaving.await.expect("no panic").acked, 1);
    team.assert_at_rest().await;
    b.leave().await;
}
