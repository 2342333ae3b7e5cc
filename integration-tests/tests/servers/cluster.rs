//! A Redis Cluster that changes under load: slots that move, primaries that die, fail-overs.

use std::time::{Duration, Instant};

use integration_tests::cluster::Cluster;

use crate::load::{Load, PARTITIONS, changes, log};

async fn start() -> (Cluster, Load) {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(3, 1)).await.expect("a cluster");
    let load = Load::start(&cluster.url()).await;
    (cluster, load)
}

fn entries(cluster: &Cluster, log: &str) -> String {
    let owner = cluster.owner(cluster.slot(log)).expect("an owner");
    cluster.nodes[owner].cli(&["XRANGE", log, "-", "+"])
}

/// Returns a primary and its replica: another one for each change.
fn primary(cluster: &Cluster, change: usize) -> (usize, usize) {
    let pairs = cluster.pairs(3);
    pairs[change % pairs.len()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_lose_nothing_and_turn_nothing_round() {
    let (cluster, load) = start().await;
    for change in 0..changes(12) {
        let partition = u32::try_from(change).expect("few") % PARTITIONS;
        let log = log(partition);
        tokio::task::block_in_place(|| {
            let slot = cluster.slot(&log);
            let owner = cluster.owner(slot).expect("an owner");
            // The primaries are the first nodes.
            cluster.migrate(slot, (owner + 1 + change % 2) % 3, || {
                std::thread::sleep(Duration::from_millis(20));
            });
        });
        load.goes_on("messages of all keys, after a slot has moved").await;
    }
    load.end(&[], |log| entries(&cluster, log)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_is_asked_for_loses_nothing() {
    let (cluster, load) = start().await;
    for change in 0..changes(3) {
        tokio::task::block_in_place(|| {
            let (_, replica) = primary(&cluster, change);
            cluster.nodes[replica].cli(&["CLUSTER", "FAILOVER"]);
            cluster.wait_primary(replica);
        });
        load.goes_on("messages of all keys, after a fail-over").await;
    }
    load.end(&[], |log| entries(&cluster, log)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_that_are_killed_lose_what_was_not_replicated_and_nothing_else() {
    let (mut cluster, load) = start().await;
    let mut lost = Vec::new();
    for change in 0..changes(2) {
        tokio::task::block_in_place(|| {
            let (primary, replica) = primary(&cluster, change);
            cluster.nodes[primary].kill();
            lost.push(Instant::now());
            cluster.wait_primary(replica);
        });
        load.goes_on("messages of all keys, after the death of a primary").await;
        tokio::task::block_in_place(|| {
            for node in &mut cluster.nodes {
                if !node.is_running() {
                    node.restart();
                }
            }
            cluster.wait_ok();
        });
    }
    load.end(&lost, |log| entries(&cluster, log)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_frozen_is_left() {
    let (cluster, load) = start().await;
    let (primary, replica) = tokio::task::block_in_place(|| primary(&cluster, 0));
    let frozen = Instant::now();
    tokio::task::block_in_place(|| {
        cluster.nodes[primary].pause();
        cluster.wait_primary_but(replica, primary);
    });
    let promoted = Instant::now();
    load.goes_on("messages of all keys, while a primary is frozen").await;
    println!("promoted after {:?}, went on {:?} later", promoted - frozen, promoted.elapsed());
    tokio::task::block_in_place(|| {
        cluster.nodes[primary].resume();
        cluster.wait_ok();
    });
    load.goes_on("messages of all keys, after it came back").await;
    load.end(&[frozen], |log| entries(&cluster, log)).await;
}
