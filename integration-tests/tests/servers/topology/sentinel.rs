//! A primary and its replica under Sentinels: fail-overs under load.

use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::server::Server;

use crate::load::{Load, changes};

/// Two servers, the first of which is the primary in the beginning, and a Sentinel.
struct Service {
    servers: [Server; 2],
    sentinel: Server,
}

impl Service {
    fn start() -> Self {
        let settings = || Server::builder().arg("--repl-diskless-sync-delay", "0");
        let primary = settings().start();
        let replica = settings().arg("--replicaof", &format!("127.0.0.1 {}", primary.port())).start();
        let sentinel = Server::builder().sentinel(&[
            &format!("sentinel monitor main 127.0.0.1 {} 1", primary.port()),
            // A server that is only slow must not count as dead: that would be a fail-over of which the tests do not know.
            "sentinel down-after-milliseconds main 2000",
            "sentinel failover-timeout main 2000",
        ]);
        let service = Self { servers: [primary, replica], sentinel: sentinel.start() };
        service.wait("the replica follows", |service| {
            let known = service.sentinel.cli(&["SENTINEL", "REPLICAS", "main"]).contains("slave");
            known && service.servers[1].cli(&["INFO", "replication"]).contains("master_link_status:up")
        });
        service
    }

    /// Returns the position of the primary, as the Sentinel sees it.
    fn primary(&self) -> usize {
        let port = self.sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        usize::from(port.ends_with(&self.servers[1].port().to_string()))
    }

    /// Waits until a server is the primary, and says so itself.
    fn wait_primary(&self, at: usize) {
        self.wait("the other one is the primary", |service| {
            let info = service.servers[at].try_cli(&["INFO", "replication"]).unwrap_or_default();
            service.primary() == at && info.contains("role:master")
        });
    }

    /// Waits until the server that is not the primary follows. Returns the position of the primary.
    fn wait_replica(&self) -> usize {
        self.wait("the other one follows", |service| {
            let info = service.servers[1 - service.primary()].try_cli(&["INFO", "replication"]);
            let knows = service.sentinel.cli(&["SENTINEL", "REPLICAS", "main"]);
            info.unwrap_or_default().contains("master_link_status:up")
                && !knows.contains("s_down")
                && !knows.contains("disconnected")
        });
        self.primary()
    }

    fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() >= HANG {
                let views = self.servers.each_ref().map(|server| server.try_cli(&["INFO", "replication"]));
                panic!("never came true: {what}: {views:?}, {}", self.sentinel.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn entries(&self, log: &str) -> String {
        self.servers[self.primary()].cli(&["XRANGE", log, "-", "+"])
    }
}

async fn start() -> (Service, Load) {
    let service = tokio::task::spawn_blocking(Service::start).await.expect("servers");
    let load =
        Load::replicated(&format!("redis+sentinel://127.0.0.1:{}/main", service.sentinel.port())).await;
    (service, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demoted_primary_is_left() {
    let (service, load) = start().await;
    let mut lost = Vec::new();
    for _ in 0..changes(2) {
        tokio::task::block_in_place(|| {
            let primary = service.wait_replica();
            // A Sentinel may refuse a fail-over for a while after the last one.
            service.wait("a fail-over begins", |service| {
                service.sentinel.try_cli(&["SENTINEL", "FAILOVER", "main"]).is_ok()
            });
            service.wait_primary(1 - primary);
            // The previous primary takes writes for eight seconds more, until a Sentinel tells it otherwise, and loses
            // them. The change is announced up to two seconds after the other one was promoted.
            let announced = Instant::now() + Duration::from_millis(500);
            lost.extend((0..3).map(|seconds| announced - Duration::from_secs(seconds)));
            service.wait_replica();
        });
        load.goes_on("messages of all keys, after a fail-over").await;
    }
    load.end(&lost, |log| service.entries(log)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_replaced() {
    let (mut service, load) = start().await;
    let mut lost = Vec::new();
    let pace = load.pace(Duration::from_secs(1)).await;
    for _ in 0..changes(2) {
        tokio::task::block_in_place(|| {
            let primary = service.wait_replica();
            service.servers[primary].kill();
            lost.push(Instant::now());
            service.wait_primary(1 - primary);
        });
        load.recovers(pace, "messages of all keys, after the death of the primary").await;
        tokio::task::block_in_place(|| {
            let primary = service.primary();
            service.servers[1 - primary].restart();
        });
    }
    load.end(&lost, |log| service.entries(log)).await;
}
