//! A primary with two replicas, and three Sentinels. Replicas and Sentinels use the links too, since clients are told the
//! addresses that they know.

use std::thread;
use std::time::{Duration, Instant};

use super::Servers;
use crate::proxy::Proxy;
use crate::server::Server;

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// Time within which servers agree, unless something is wrong.
const LIMIT: Duration = crate::HANG;

struct Service {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    /// The ports of the links, by server.
    ports: Vec<u16>,
}

pub(super) fn start() -> (Box<dyn Servers>, Vec<Proxy>) {
    let links: Vec<Proxy> = (0..=REPLICAS).map(|_| Proxy::to(0)).collect();
    let ports: Vec<u16> = links.iter().map(Proxy::port).collect();
    let mut servers = Vec::new();
    for (at, link) in links.iter().enumerate() {
        let builder = Server::builder()
            .appendonly(true)
            .arg("--repl-diskless-sync-delay", "0")
            .arg("--replica-announce-ip", "127.0.0.1")
            .arg("--replica-announce-port", &link.port().to_string());
        let builder = match at {
            0 => builder,
            _ => builder.arg("--replicaof", &format!("127.0.0.1 {}", ports[0])),
        };
        let server = builder.start();
        link.lead_to(server.port());
        servers.push(server);
    }
    let sentinel = |_| {
        let lines = [
            &*format!("sentinel monitor main 127.0.0.1 {} 2", ports[0]),
            "sentinel down-after-milliseconds main 1500",
            "sentinel failover-timeout main 2000",
            "sentinel parallel-syncs main 2",
        ];
        Server::builder().sentinel(&lines).start()
    };
    let sentinels = (0..SENTINELS).map(sentinel).collect();
    let service = Service { servers, sentinels, ports };
    service.wait_whole();
    (Box::new(service), links)
}

impl Service {
    /// The position of the primary, if all Sentinels agree on it.
    fn primary(&self) -> Option<usize> {
        let mut known = self.sentinels.iter().map(|sentinel| {
            let address = sentinel.try_cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]).ok()?;
            let port = address.lines().last()?.parse::<u16>().ok()?;
            self.ports.iter().position(|known| *known == port)
        });
        let first = known.next()??;
        known.all(|other| other == Some(first)).then_some(first)
    }

    fn replication(&self, at: usize) -> String {
        if !self.servers[at].is_running() {
            return String::new();
        }
        self.servers[at].try_cli(&["INFO", "replication"]).unwrap_or_default()
    }

    fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() >= LIMIT {
                let views: Vec<String> = (0..self.servers.len()).map(|at| self.replication(at)).collect();
                panic!("never came true: {what}: {views:?}, {}", self.sentinels[0].log());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Servers for Service {
    fn nodes(&self) -> Vec<&Server> {
        self.servers.iter().collect()
    }

    fn nodes_mut(&mut self) -> Vec<&mut Server> {
        self.servers.iter_mut().collect()
    }

    fn url(&self, _links: &[Proxy]) -> String {
        let addresses: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/main", addresses.join(","))
    }

    fn primaries(&self) -> Vec<usize> {
        self.primary().into_iter().collect()
    }

    fn fail_over(&mut self, primary: usize) {
        // A Sentinel refuses one for a while after the last one.
        self.wait("a fail-over begins", |service| {
            service.sentinels[0].try_cli(&["SENTINEL", "FAILOVER", "main"]).is_ok()
        });
        self.wait_replaced(primary);
    }

    fn wait_replaced(&self, primary: usize) {
        self.wait("another server is the primary", |service| {
            service
                .primary()
                .is_some_and(|at| at != primary && service.replication(at).contains("role:master"))
        });
    }

    fn wait_whole(&self) {
        self.wait("all follow the primary, and the Sentinels know", |service| {
            let Some(primary) = service.primary() else { return false };
            let follows = |at: &usize| service.replication(*at).contains("master_link_status:up");
            let known = |sentinel: &Server| {
                let known = sentinel.try_cli(&["SENTINEL", "REPLICAS", "main"]).unwrap_or_default();
                let others = sentinel.try_cli(&["SENTINEL", "SENTINELS", "main"]).unwrap_or_default();
                let lines = |text: &str, line: &str| text.lines().filter(|other| *other == line).count();
                // Neither down nor about to be replaced.
                let main = sentinel.try_cli(&["SENTINEL", "MASTER", "main"]).unwrap_or_default();
                let is_up = main.lines().skip_while(|line| *line != "flags").nth(1) == Some("master");
                is_up
                    && lines(&known, "name") == REPLICAS
                    && lines(&others, "name") == SENTINELS - 1
                    && ["s_down", "disconnected", "o_down"].iter().all(|flag| !known.contains(flag))
            };
            (0..service.servers.len()).filter(|at| *at != primary).all(|at| follows(&at))
                && service.sentinels.iter().all(known)
        });
    }

    fn move_slot(&mut self, _slot: u16) {
        unreachable!("there are no slots");
    }
}
