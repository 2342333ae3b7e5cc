//! A private Redis Cluster for tests: primaries with replicas, on loopback ports.
//!
//! Only `std`, as [`server`](crate::server): `xtask` compiles this file as well.

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::server::{Builder, Server};

/// Maximum time for the nodes to agree.
const TIME_LIMIT: Duration = crate::server::HANG;
const POLL: Duration = Duration::from_millis(20);
/// Number of slots of every cluster.
const SLOTS: u32 = 16_384;
/// Keys of one `MIGRATE`.
const KEYS: &str = "100";

/// Returns the URL of a cluster that tests share: `MILLSTREAM_TEST_CLUSTER` if set, otherwise one for this process. Use a
/// unique namespace on it, and do not change its nodes.
#[must_use]
pub fn shared_url() -> String {
    static OWN: OnceLock<Cluster> = OnceLock::new();
    env::var("MILLSTREAM_TEST_CLUSTER").unwrap_or_else(|_| OWN.get_or_init(|| Cluster::start(3, 0)).url())
}

/// The nodes of a cluster. Dropping it kills them.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes: first the primaries of the beginning, then their replicas.
    pub nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts a cluster with this number of primaries, which share the slots, and of replicas for each of them.
    ///
    /// # Panics
    ///
    /// If a server does not start, or the nodes do not agree.
    #[must_use]
    pub fn start(primaries: usize, replicas: usize) -> Self {
        Self::start_with(primaries, replicas, |builder| builder)
    }

    /// The same, with settings for each server.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(primaries: usize, replicas: usize, settings: impl Fn(Builder) -> Builder) -> Self {
        Self::start_each(primaries, replicas, settings, |_| {})
    }

    /// The same; `started` is called with each node as soon as it runs, before the nodes know each other.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_each(
        primaries: usize,
        replicas: usize,
        settings: impl Fn(Builder) -> Builder,
        started: impl Fn(&Server),
    ) -> Self {
        let node = |_| {
            let builder =
                Server::builder().arg("--cluster-enabled", "yes").arg("--cluster-node-timeout", "1000");
            // A replica takes over however old its data is: tests write little and kill soon after the start.
            let builder =
                builder.arg("--cluster-replica-validity-factor", "0").arg("--repl-diskless-sync-delay", "0");
            let node = settings(builder).start();
            started(&node);
            node
        };
        let nodes: Vec<Server> = (0..primaries * (1 + replicas)).map(node).collect();
        let ids: Vec<String> = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids };
        for (at, node) in cluster.nodes.iter().enumerate() {
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for at in 0..primaries {
            let bound =
                |at: usize| u32::try_from(at).expect("few") * SLOTS / u32::try_from(primaries).expect("few");
            let (first, last) = (bound(at).to_string(), (bound(at + 1) - 1).to_string());
            cluster.nodes[at].cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for other in &cluster.nodes[1..] {
            cluster.nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port(other).to_string()]);
        }
        let known = format!("cluster_known_nodes:{}", cluster.nodes.len());
        cluster.wait("the nodes know each other", |cluster| {
            cluster.nodes.iter().all(|node| node.cli(&["CLUSTER", "INFO"]).contains(&known))
        });
        for at in primaries..cluster.nodes.len() {
            let primary = &cluster.ids[(at - primaries) % primaries];
            cluster.wait("a replica follows", |cluster| {
                cluster.nodes[at].try_cli(&["CLUSTER", "REPLICATE", primary]).is_ok()
            });
        }
        cluster.wait_ok();
        cluster
    }

    /// Starts a cluster whose nodes use TLS between each other, and offer it to clients on a second port. The files are
    /// those of [`Builder::tls`].
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_tls(
        primaries: usize,
        replicas: usize,
        folder: &Path,
        settings: impl Fn(Builder) -> Builder,
    ) -> Self {
        Self::start_with(primaries, replicas, |builder| settings(with_tls(builder, folder)))
    }

    /// Returns `redis+cluster://` with the addresses of all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.addresses(Server::port))
    }

    /// Returns `redis+cluster+tls://` with the addresses of all nodes.
    ///
    /// # Panics
    ///
    /// If the cluster does not use TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        let port = |node: &Server| node.tls_port().expect("a port with TLS");
        format!("redis+cluster+tls://{}", self.addresses(port))
    }

    fn addresses(&self, port: impl Fn(&Server) -> u16) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", port(node))).collect();
        nodes.join(",")
    }

    /// Waits until all nodes that run see all slots served, and each replica that runs follows its primary.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_ok(&self) {
        self.wait("the cluster is ok", |cluster| {
            cluster.running().all(|(_, node)| {
                let ok =
                    node.try_cli(&["CLUSTER", "INFO"]).is_ok_and(|info| info.contains("cluster_state:ok"));
                let role = node.try_cli(&["INFO", "replication"]).unwrap_or_default();
                ok && (role.contains("role:master") || role.contains("master_link_status:up"))
            })
        });
    }

    /// Waits until a node is a primary, in its own view and in that of all nodes that run.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_primary(&self, at: usize) {
        self.wait_primary_but(at, usize::MAX);
    }

    /// The same, without the view of one node.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_primary_but(&self, at: usize, silent: usize) {
        self.wait("a node is a primary", |cluster| {
            cluster.running().filter(|(other, _)| *other != silent).all(|(_, node)| {
                let nodes = node.try_cli(&["CLUSTER", "NODES"]).unwrap_or_default();
                let line = nodes.lines().find(|line| line.starts_with(&cluster.ids[at]));
                line.is_some_and(|line| line.contains("master"))
                    && node.try_cli(&["CLUSTER", "INFO"]).is_ok_and(|info| info.contains("cluster_state:ok"))
            })
        });
    }

    /// Returns the position of the node that serves a slot, as the nodes that run see it; `None` while they do not agree.
    #[must_use]
    pub fn owner(&self, slot: u16) -> Option<usize> {
        let mut owner = None;
        for (at, node) in self.running() {
            // A primary counts a slot as its own until it has learnt of the change.
            let mine = node.try_cli(&["CLUSTER", "NODES"]).ok()?;
            let mine = mine.lines().find(|line| line.contains("myself"))?.to_owned();
            if mine.contains("master") && has_slot(&mine, slot) && owner.replace(at).is_some() {
                return None;
            }
        }
        owner
    }

    /// Waits until this number of primaries have a replica, and returns the positions of these pairs.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    #[must_use]
    pub fn pairs(&self, count: usize) -> Vec<(usize, usize)> {
        self.wait_ok();
        let pairs =
            || (0..self.nodes.len()).filter_map(|at| Some((at, self.replica_of(at)?))).collect::<Vec<_>>();
        self.wait("primaries have replicas", |_| pairs().len() == count);
        pairs()
    }

    fn replica_of(&self, primary: usize) -> Option<usize> {
        let nodes = self.nodes[primary].try_cli(&["CLUSTER", "NODES"]).ok()?;
        let follows = |line: &&str| line.split(' ').nth(3) == Some(&self.ids[primary]);
        let id = nodes.lines().find(follows)?.split(' ').next()?;
        self.ids.iter().position(|known| known == id)
    }

    /// Returns the slot of a key.
    ///
    /// # Panics
    ///
    /// If no node answers.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let (_, node) = self.running().next().expect("a node runs");
        node.cli(&["CLUSTER", "KEYSLOT", key]).parse().expect("a slot")
    }

    /// Moves a slot with its keys to another node, as `redis-cli --cluster reshard` does. `between` is called while the
    /// slot is half-way: after its first keys have moved.
    ///
    /// # Panics
    ///
    /// If a step fails.
    pub fn migrate(&self, slot: u16, to: usize, mut between: impl FnMut()) {
        let from = self.owner(slot).expect("an owner");
        if from == to {
            return;
        }
        let (source, target, text) = (&self.nodes[from], &self.nodes[to], slot.to_string());
        target.cli(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &self.ids[from]]);
        source.cli(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &self.ids[to]]);
        let port = port(target).to_string();
        loop {
            let keys = source.cli(&["CLUSTER", "GETKEYSINSLOT", &text, KEYS]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                source.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000", "REPLACE"]);
                between();
            }
        }
        for node in [target, source].into_iter().chain(self.running().map(|(_, node)| node)) {
            // Replicas learn it from their primaries.
            let _ = node.try_cli(&["CLUSTER", "SETSLOT", &text, "NODE", &self.ids[to]]);
        }
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Server)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_running())
    }

    fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + TIME_LIMIT;
        while !done(self) {
            if Instant::now() >= deadline {
                let views = self.running().map(|(_, node)| told(node.try_cli(&["CLUSTER", "NODES"])));
                panic!("not in time: {what}:\n{}", views.collect::<Vec<_>>().join("\n"));
            }
            thread::sleep(POLL);
        }
    }
}

/// Adds what nodes need to use TLS between each other, and to offer it on a second port.
#[must_use]
pub fn with_tls(builder: Builder, folder: &Path) -> Builder {
    builder.tls(folder).arg("--tls-cluster", "yes").arg("--tls-replication", "yes")
}

/// The port that nodes use for each other.
fn port(node: &Server) -> u16 {
    node.tls_port().unwrap_or(node.port())
}

fn told(answer: io::Result<String>) -> String {
    answer.unwrap_or_else(|error| error.to_string())
}

/// Whether a line of `CLUSTER NODES` has a slot.
fn has_slot(line: &str, slot: u16) -> bool {
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((first.parse::<u16>(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    })
}
