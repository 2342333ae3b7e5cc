//! The servers of a run, each behind a link of its own.

mod cluster;
mod one;
mod sentinel;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::setup::{keys, partition};
use crate::equipment::disk::Disk;
use crate::equipment::network::Network;
use crate::proxy::Proxy;
use crate::server::Server;

/// A way in which servers are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// One Redis with an append-only file.
    Standalone,
    /// One Valkey with an append-only file.
    Valkey,
    /// A primary with two replicas, and three Sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
    /// The same, with TLS between clients and nodes and between nodes.
    ClusterTls,
}

impl Topology {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Standalone, Self::Valkey, Self::Sentinel, Self::Cluster, Self::ClusterTls];

    /// Returns the number of replicas of each primary.
    #[must_use]
    pub fn replicas(self) -> u32 {
        match self {
            Self::Standalone | Self::Valkey => 0,
            Self::Sentinel => 2,
            Self::Cluster | Self::ClusterTls => 1,
        }
    }

    /// Returns whether there are replicas, and so fail-overs.
    #[must_use]
    pub fn has_replicas(self) -> bool {
        self.replicas() > 0
    }

    /// Returns whether slots can move between primaries.
    #[must_use]
    pub fn is_cluster(self) -> bool {
        matches!(self, Self::Cluster | Self::ClusterTls)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standalone => "standalone",
            Self::Valkey => "valkey",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::ClusterTls => "cluster-tls",
        })
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = Self::ALL.map(|one| one.to_string()).join(", ");
        Self::ALL.into_iter().find(|one| one.to_string() == text).ok_or(format!("not one of {all}: {text}"))
    }
}

/// Time in which servers that watch each other begin a fail-over, if they do.
const SETTLES: Duration = Duration::from_secs(2);

/// What only some topologies can do. Each method waits until the change is complete.
///
/// All methods are called from a thread that may block.
pub trait Servers: Send {
    /// The servers that hold data, in a fixed order.
    fn nodes(&self) -> Vec<&Server>;

    /// The same, to start and stop them.
    fn nodes_mut(&mut self) -> Vec<&mut Server>;

    /// The URL for clients that reach each server by the link at its position.
    fn url(&self, links: &[Proxy]) -> String;

    /// The positions of the servers that take writes.
    fn primaries(&self) -> Vec<usize>;

    /// Promotes a replica of a primary, in good order.
    fn fail_over(&mut self, primary: usize);

    /// Returns when a replica of this primary, which is away, has taken over.
    fn wait_replaced(&self, primary: usize);

    /// Returns when all servers run and follow each other as they should.
    fn wait_whole(&self);

    /// Returns when no fail-over follows any more from a fault that has ended: whoever watches a server may find only now that
    /// it did not answer for long, as TCP sends again what was dropped with pauses that grow.
    fn wait_settled(&self) {
        self.wait_whole();
        std::thread::sleep(SETTLES);
        self.wait_whole();
    }

    /// Moves a slot to another primary.
    fn move_slot(&mut self, slot: u16);
}

/// The servers and their links.
pub struct Deployment {
    /// The way in which they are set up.
    pub topology: Topology,
    /// The servers.
    pub servers: Box<dyn Servers>,
    /// The link to each server.
    pub links: Vec<Proxy>,
    /// The certificate of the authority, where there is TLS.
    pub ca: Option<PathBuf>,
    /// The disk of the data, where there is one server.
    pub disk: Option<Disk>,
    /// The network of this thread and of all that it starts, if it has one of its own.
    pub network: Option<Network>,
    _certificates: Option<TempDir>,
}

impl Deployment {
    /// Starts the servers, in a network of their own where the system allows it. `valkey` is the path of a Valkey server, for the topology that has one.
    ///
    /// # Panics
    /// If a server does not start.
    #[must_use]
    pub fn start(topology: Topology, valkey: Option<&Path>) -> Self {
        let network = Network::private();
        if let Err(error) = &network {
            println!("there are no faults of packets: {error}");
        }
        let certificates = (topology == Topology::ClusterTls).then(crate::equipment::certificates::folder);
        let disk = (!topology.has_replicas()).then(|| Disk::new("512m"));
        let folder = disk.as_ref().map(Disk::path).unwrap_or_default();
        let (servers, links): (Box<dyn Servers>, Vec<Proxy>) = match topology {
            Topology::Standalone => one::start(folder, None),
            Topology::Valkey => one::start(folder, Some(valkey.expect("the path of a Valkey server"))),
            Topology::Sentinel => sentinel::start(),
            Topology::Cluster | Topology::ClusterTls => {
                cluster::start(certificates.as_ref().map(TempDir::path))
            }
        };
        let ca = certificates.as_ref().map(|folder| folder.path().join("ca.pem"));
        Self { topology, servers, links, ca, disk, network: network.ok(), _certificates: certificates }
    }

    /// Returns the slot of a partition of the topic.
    ///
    /// # Panics
    /// If the servers are no cluster.
    #[must_use]
    pub fn slot_of(&self, number: u32) -> u16 {
        let log = keys().log(&partition(number));
        let node = self.servers.primaries()[0];
        let slot = self.servers.nodes()[node].cli(&["CLUSTER", "KEYSLOT", log.as_str()]);
        slot.parse().expect("a slot")
    }

    /// Returns another link for one process alone, behind the one that all share; `None` where there are several servers.
    #[must_use]
    pub fn link(&self) -> Option<Proxy> {
        (!self.topology.has_replicas()).then(|| Proxy::to(self.links[0].port()))
    }

    /// Returns the URL by the links.
    #[must_use]
    pub fn url(&self) -> String {
        self.servers.url(&self.links)
    }
}
