//! Replicas that are promoted, and primaries that are demoted, under running consumers: 79, 80, 82, 83, 84, 89.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use integration_tests::history::figure;
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::{Delivery, ErrorKind, MessageId, Millstream};

use super::{MS, PARTITIONS, Pair, Work};

/// A primary and its replica, the link between them, and the address by which clients know the primary.
struct Replicated {
    primary: Server,
    replica: Server,
    link: Proxy,
    front: Proxy,
}

impl Replicated {
    async fn new() -> Self {
        let primary = Server::builder().appendonly(true).arg("--repl-diskless-sync-delay", "0").start();
        let replica = Server::builder().arg("--repl-diskless-sync-delay", "0").start();
        let link = Proxy::to(primary.port());
        let front = Proxy::to(primary.port());
        replica.cli(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
        let all = Self { primary, replica, link, front };
        let up = async || all.replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
        eventually(up, "the replica follows").await;
        all
    }

    /// Waits until the replica has what the primary has.
    async fn level(&self) {
        let level = async || ends(&self.primary) == ends(&self.replica);
        eventually(level, "the replica has everything").await;
    }
}

/// The newest id of each log.
fn ends(server: &Server) -> BTreeMap<u32, MessageId> {
    let mut ends = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let log = format!("stream:topic:{{items:p:{partition}}}");
        let text = server.try_cli(&["XINFO", "STREAM", &log]).unwrap_or_default();
        if let Some(id) = text.lines().skip_while(|line| *line != "last-generated-id").nth(1) {
            ends.insert(partition, id.parse().expect("an id"));
        }
    }
    ends
}

/// 79 and 82: a replica that was cut from its primary is promoted. What it never had is lost, and nothing else; what was
/// settled in that end comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_lacks_the_newest_and_repeats_what_it_did_not_hear_of() {
    let mut servers = Replicated::new().await;
    let mut pair = Pair::begin(&servers.front.url(), Work { takes: MS(60), ..Work::default() }).await;
    pair.send(200).await;
    // In the middle of the work, and with all that was sent so far: what the replica lacks is to be known.
    servers.level().await;
    let cut = Instant::now();
    servers.link.freeze(Way::Down);
    servers.link.freeze(Way::Up);
    let replicated = ends(&servers.replica);
    let before: BTreeSet<u64> = pair.confirmed.keys().copied().collect();
    pair.send(80).await;
    tokio::time::sleep(MS(400)).await;
    servers.replica.cli(&["REPLICAOF", "NO", "ONE"]);
    servers.front.lead_to(servers.replica.port());
    servers.primary.kill();
    let promoted = Instant::now();
    let lost: BTreeSet<u64> = {
        let gone = |(partition, id): &(u32, MessageId)| replicated.get(partition).is_none_or(|end| id > end);
        pair.confirmed.iter().filter(|(_, at)| gone(at)).map(|(number, _)| *number).collect()
    };
    assert!(!lost.is_empty() && lost.is_disjoint(&before), "only what came after the cut is lost: {lost:?}");
    pair.all_handled_but(&lost).await;
    let handled = pair.handled.lock().expect("lock").clone();
    let mut again = 0;
    for (number, calls) in &handled {
        let [first, .., last] = calls[..] else { continue };
        again += 1;
        assert!(last.at > promoted, "{number} came again before: {calls:?}");
        assert!(calls.len() == 2 && last.epoch >= first.epoch, "{number}: {calls:?}");
        // It was in flight, or settled, in the tail that the replica did not have.
        assert!(first.at + MS(3_000) > cut, "{number} was settled long before the cut: {calls:?}");
    }
    let never = pair.missing().len();
    let text =
        format!("promoted replica: {} lost ({never} never handled), {again} handled again", lost.len());
    figure("fault", &text);
    pair.lives_on_but(&lost).await;
}

/// 80: a primary that its replica does not reach takes no writes, if configured so. Senders get errors, consumers wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_its_replica_takes_no_writes_and_that_is_said() {
    let servers = Replicated::new().await;
    let mut pair = Pair::begin(&servers.front.url(), Work { time_limit: MS(1_500), ..Work::default() }).await;
    servers.primary.cli(&["CONFIG", "SET", "min-replicas-max-lag", "1"]);
    servers.primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    pair.send(50).await;
    pair.all_handled().await;
    servers.link.freeze(Way::Up);
    servers.link.freeze(Way::Down);
    let deadline = Instant::now() + HANG;
    while pair.refused.is_empty() {
        assert!(Instant::now() < deadline, "writes are refused when the replica is behind");
        pair.send(10).await;
    }
    for (number, error) in &pair.refused {
        let honest =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unconfirmed | ErrorKind::Backpressure);
        assert!(honest, "{number}: {error:?}");
    }
    pair.tells("NOREPLICAS").await;
    tokio::time::sleep(MS(2_500)).await;
    servers.link.thaw();
    pair.all_handled().await;
    servers.primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let text = format!("NOREPLICAS: {} sends refused, {} handled again", pair.refused.len(), pair.doubled());
    figure("fault", &text);
    pair.lives_on().await;
}

/// 83: the primary becomes the replica of its own, and the connections to it stay open. Writes go on at the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_primary_is_left_though_its_connections_stay() {
    let servers = Replicated::new().await;
    let mut pair = Pair::begin(&servers.front.url(), Work::default()).await;
    pair.send(100).await;
    pair.all_handled().await;
    servers.level().await;
    servers.replica.cli(&["REPLICAOF", "NO", "ONE"]);
    servers.front.lead_to(servers.replica.port());
    servers.primary.cli(&["REPLICAOF", "127.0.0.1", &servers.replica.port().to_string()]);
    let began = Instant::now();
    assert_eq!(pair.send(50).await, 50, "the address is asked again: {:?}", pair.refused.last());
    let stored = began.elapsed();
    pair.all_handled().await;
    let text =
        format!("demoted primary: sends go on after {stored:.1?}, all handled after {:.1?}", began.elapsed());
    figure("fault", &text);
    let role = servers.replica.cli(&["INFO", "replication"]);
    assert!(role.contains("role:master"), "{role}");
    pair.lives_on().await;
}

/// 84: readers that wait are thrown out when the server changes its role. They come again, and nobody loses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_wait_survive_a_change_of_the_servers_role() {
    let server = Server::start();
    let mut pair = Pair::begin(&server.url(), Work::default()).await;
    for _ in 0..3 {
        // They wait, and have nothing to do.
        tokio::time::sleep(MS(300)).await;
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        tokio::time::sleep(MS(300)).await;
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(pair.send(20).await, 20, "{:?}", pair.refused.last());
        pair.all_handled().await;
    }
    let text =
        format!("role changed 3 times: {} told as failing, {} again", pair.told("Failing {"), pair.doubled());
    figure("fault", &text);
    assert_eq!(pair.doubled(), 0, "nobody loses anything: {:#?}", pair.last_told());
    pair.lives_on().await;
}

/// 89: what a replica says is old. Nobody decides by it: on a replica nothing is begun, and the group is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_works_on_a_replica() {
    let servers = Replicated::new().await;
    let mut pair = Pair::begin(&servers.front.url(), Work::default()).await;
    servers.level().await;
    servers.link.freeze(Way::Down);
    let mq = Millstream::connect(&servers.replica.url()).await;
    let refused = match mq {
        Err(error) => error,
        Ok(mq) => {
            let consumer = mq.consumer(super::TOPIC, "g").start(|_: Delivery<super::Item>| async {});
            let consumer = tokio::time::timeout(HANG, consumer).await;
            match consumer {
                Ok(Err(error)) => error,
                Ok(Ok(consumer)) => {
                    // Allowed as well: it starts and waits for a primary.
                    tokio::time::sleep(MS(1_500)).await;
                    let report = consumer.report();
                    assert_eq!(report.acked, 0, "{report:?}");
                    millstream::Error::new(ErrorKind::Unavailable, "it waits")
                }
                Err(_) => panic!("who cannot work says so"),
            }
        }
    };
    assert!(refused.is_transient(), "{refused:?}");
    pair.send(40).await;
    pair.all_handled().await;
    assert_eq!((pair.told("LeaseLost"), pair.doubled()), (0, 0));
    servers.link.thaw();
    pair.lives_on().await;
}
