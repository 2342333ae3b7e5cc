//! Three primaries with a replica each. Nodes announce the ports of their links, so clients and replicas use them.

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::Servers;
use crate::cluster::{Cluster, with_tls};
use crate::proxy::Proxy;
use crate::server::{Builder, Server};

const PRIMARIES: usize = 3;
/// Time within which nodes agree, unless something is wrong.
const LIMIT: Duration = crate::HANG;

struct Nodes {
    cluster: Cluster,
    tls: bool,
}

pub(super) fn start(certificates: Option<&Path>) -> (Box<dyn Servers>, Vec<Proxy>) {
    let tls = certificates.is_some();
    let links: Mutex<Vec<Proxy>> = Mutex::default();
    // Nodes start one after the other, in the order of their positions.
    let settings = |builder: Builder| {
        let link = Proxy::to(0);
        let announced = if tls { "--cluster-announce-tls-port" } else { "--cluster-announce-port" };
        let builder = builder.arg(announced, &link.port().to_string()).appendonly(true);
        links.lock().expect("lock").push(link);
        match certificates {
            Some(folder) => with_tls(builder, folder),
            None => builder,
        }
    };
    let started = |node: &Server| {
        let links = links.lock().expect("lock");
        let link = links.last().expect("its link");
        link.lead_to(node.tls_port().unwrap_or(node.port()));
    };
    let cluster = Cluster::start_each(PRIMARIES, 1, settings, started);
    let links = links.into_inner().expect("lock");
    (Box::new(Nodes { cluster, tls }), links)
}

impl Nodes {
    fn role(&self, at: usize) -> String {
        let node = &self.cluster.nodes[at];
        if !node.is_running() {
            return String::new();
        }
        node.try_cli(&["INFO", "replication"]).unwrap_or_default()
    }

    /// The replica that follows a primary, by the view of the others.
    fn replica_of(&self, primary: usize) -> Option<usize> {
        self.cluster.pairs(PRIMARIES).into_iter().find(|(at, _)| *at == primary).map(|(_, replica)| replica)
    }
}

impl Servers for Nodes {
    fn nodes(&self) -> Vec<&Server> {
        self.cluster.nodes.iter().collect()
    }

    fn nodes_mut(&mut self) -> Vec<&mut Server> {
        self.cluster.nodes.iter_mut().collect()
    }

    fn url(&self, links: &[Proxy]) -> String {
        let addresses: Vec<String> = links.iter().map(|link| format!("127.0.0.1:{}", link.port())).collect();
        let scheme = if self.tls { "redis+cluster+tls" } else { "redis+cluster" };
        format!("{scheme}://{}", addresses.join(","))
    }

    fn primaries(&self) -> Vec<usize> {
        let all = 0..self.cluster.nodes.len();
        all.filter(|at| self.role(*at).contains("role:master")).collect()
    }

    fn fail_over(&mut self, primary: usize) {
        let Some(replica) = self.replica_of(primary) else { return };
        self.cluster.nodes[replica].cli(&["CLUSTER", "FAILOVER"]);
        self.cluster.wait_primary(replica);
    }

    fn wait_replaced(&self, primary: usize) {
        // The other primaries are the majority, and their replicas stay what they are.
        let deadline = Instant::now() + LIMIT;
        loop {
            let others = self.primaries().into_iter().filter(|at| *at != primary).count();
            if others == PRIMARIES {
                return;
            }
            assert!(Instant::now() < deadline, "no replica takes over from node {primary}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_whole(&self) {
        let _ = self.cluster.pairs(PRIMARIES);
    }

    fn move_slot(&mut self, slot: u16) {
        let from = self.cluster.owner(slot);
        let to = self.primaries().into_iter().find(|at| Some(*at) != from);
        if let (Some(_), Some(to)) = (from, to) {
            self.cluster.migrate(slot, to, || {});
        }
    }
}
