//! The servers: one, or the primaries of a cluster. The only owner of a cluster's topology.
//!
//! The topology is read when connecting, and again, by a task beside, when something shows that it has changed: a
//! redirection, a server that cannot be reached, an answer that does not come. A redirection corrects its slot at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use redis::Pipeline;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use crate::address::{Address, Place};
use crate::config::RedisConfig;
use crate::conn::cluster::slots::{Topology, slot_of};
use crate::conn::dial::Dial;
use crate::conn::once::OneTask;
use crate::conn::replies::reply;
use crate::conn::request::Request;
use crate::conn::socket::Socket;
use crate::error::{Redirect, redirect, unchanged};

/// Minimum time between two readings of the topology: many callers notice the same change at once.
const PAUSE: Duration = Duration::from_millis(100);
/// Time after which the topology is read without a reason.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time for a node to report the topology, before another one is asked.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The servers behind a URL.
pub(crate) enum Servers {
    One(Arc<Dial>),
    Cluster(Arc<Cluster>),
}

/// The primaries of a cluster.
pub(crate) struct Cluster {
    template: Dial,
    seeds: Vec<Address>,
    state: Mutex<TopologyState>,
    /// Held while the topology is read.
    reading: tokio::sync::Mutex<TopologyReading>,
    /// Reads the topology.
    refresh: OneTask,
    /// Reads it from time to time.
    watch: OneTask,
    /// Changes when slots have other owners.
    moved: watch::Sender<u64>,
}

#[derive(Default)]
struct TopologyState {
    topology: Topology,
    /// One for each address of a primary, and of a former one while anything uses it: connections are compared by it.
    dials: HashMap<Address, Reached>,
    /// Nodes that were named by redirections lately. Others may learn of them later.
    redirected: HashMap<Address, Instant>,
    /// Time at which something last showed that the topology may have changed, and it was not read since.
    suspected: Option<Instant>,
}

/// A node that was named.
struct Reached {
    dial: Arc<Dial>,
    /// Name of its certificate. A redirection does not give it, the topology does.
    name: Option<String>,
    /// Changes when it ceases to be a primary: its connections end.
    number: watch::Sender<u64>,
}

#[derive(Default)]
struct TopologyReading {
    began: Option<Instant>,
    failed: Option<Error>,
    /// Connection to the node that answered last.
    socket: Option<(Address, Socket)>,
}

/// Where to send a command.
#[derive(Clone)]
pub(crate) struct Hop {
    pub(crate) dial: Arc<Dial>,
    /// Whether the key has moved to this node before its slot, so that an `ASKING` has to precede the command.
    ///
    /// True of that key alone: a key that has not moved yet would be created there, and overwritten when it moves.
    pub(crate) asking: bool,
}

impl Servers {
    /// Checks the configuration. Connects nowhere yet.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self> {
        let (dial, place) = Dial::new(config)?;
        Ok(match place {
            Place::One | Place::Sentinel(..) => Self::One(Arc::new(dial)),
            Place::Cluster(seeds) => Self::Cluster(Arc::new(Cluster {
                template: dial,
                seeds,
                state: Mutex::new(TopologyState {
                    suspected: Some(Instant::now()),
                    ..TopologyState::default()
                }),
                reading: tokio::sync::Mutex::default(),
                refresh: OneTask::default(),
                watch: OneTask::default(),
                moved: watch::Sender::new(0),
            })),
        })
    }

    /// Returns the server that serves a key.
    pub(crate) async fn of(&self, key: &Key) -> Result<Arc<Dial>> {
        match self {
            Self::One(dial) => Ok(dial.clone()),
            // Only commands follow a slot that is moving: a connection for long goes to its owner.
            Self::Cluster(cluster) => {
                cluster.ready().await?;
                cluster.owner(&mut cluster.state(), slot_of(key.as_str().as_bytes()))
            }
        }
    }

    /// Takes note of an error: a redirection, or a sign that the topology has changed.
    pub(crate) fn learn(&self, error: &Error) {
        let Self::Cluster(cluster) = self else { return };
        match redirect(error) {
            Some(redirect) => cluster.redirected(redirect),
            None if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unconfirmed) => {
                cluster.suspect();
            }
            None => {}
        }
    }

    /// Returns what changes when slots have other owners. `None` where one server has all keys.
    pub(crate) fn moves(&self) -> Option<watch::Receiver<u64>> {
        self.cluster().map(|cluster| cluster.moved.subscribe())
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster),
        }
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        match self {
            Self::One(dial) => dial.response_timeout,
            Self::Cluster(cluster) => cluster.template.response_timeout,
        }
    }
}

impl TopologyState {
    /// Takes a topology that was read. Connections to nodes that have ceased to be primaries end, and their dials go with the
    /// last one who uses them: a cluster whose nodes get new addresses would collect them.
    ///
    /// Returns whether slots have other owners.
    fn learn(&mut self, topology: Topology) -> bool {
        let before = std::mem::replace(&mut self.topology, topology);
        self.redirected.retain(|_, at| at.elapsed() < INTERVAL);
        let TopologyState { topology, redirected, dials, .. } = self;
        let stays = |address: &Address| {
            topology.primaries().iter().any(|it| it.address == *address) || redirected.contains_key(address)
        };
        for node in before.primaries() {
            if let Some(reached) = dials.get(&node.address).filter(|_| !stays(&node.address)) {
                reached.number.send_modify(|number| *number += 1);
            }
        }
        dials.retain(|address, reached| Arc::strong_count(&reached.dial) > 1 || stays(address));
        before != *topology
    }
}

impl Cluster {
    fn state(&self) -> MutexGuard<'_, TopologyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a sign that the topology has changed: it is read again before it is used again.
    pub(crate) fn suspect(&self) {
        self.state().suspected = Some(Instant::now());
    }

    pub(crate) fn redirected(&self, Redirect { slot, to, ask }: &Redirect) {
        if !ask {
            let mut state = self.state();
            state.topology.moved(*slot, to.clone());
            state.redirected.insert(to.clone(), Instant::now());
            // Other slots may have moved with it.
            state.suspected.get_or_insert_with(Instant::now);
            self.moved.send_modify(|number| *number += 1);
        }
    }

    /// Returns where a slot's commands go, as far as is known now.
    pub(crate) fn hop(&self, slot: u16) -> Result<Hop> {
        Ok(Hop { dial: self.owner(&mut self.state(), slot)?, asking: false })
    }

    /// Returns where a key's commands go that has moved to this node before its slot.
    pub(crate) fn asked(&self, to: &Address) -> Hop {
        let mut state = self.state();
        let known = state.topology.primaries().iter().find(|known| known.address == *to);
        let name = known.and_then(|known| known.name.clone());
        Hop { dial: self.dial(&mut state.dials, to, name.as_deref()), asking: true }
    }

    fn owner(&self, state: &mut TopologyState, slot: u16) -> Result<Arc<Dial>> {
        match state.topology.owner(slot) {
            Some(owner) => Ok(self.dial(&mut state.dials, &owner.address, owner.name.as_deref())),
            None => {
                state.suspected.get_or_insert_with(Instant::now);
                let why = format!("the server cannot be reached: no node of the cluster has slot {slot}");
                Err(Error::new(ErrorKind::Unavailable, why))
            }
        }
    }

    fn dial(&self, dials: &mut HashMap<Address, Reached>, to: &Address, name: Option<&str>) -> Arc<Dial> {
        let new =
            |number: &watch::Sender<u64>| Arc::new(self.template.at(to, name).until(number.subscribe()));
        let reached = dials.entry(to.clone()).or_insert_with(|| {
            let number = watch::Sender::new(0);
            Reached { dial: new(&number), name: name.map(str::to_owned), number }
        });
        if self.template.checks_names() && name.is_some() && reached.name.as_deref() != name {
            // Its connections failed, or were checked against another name.
            reached.number.send_modify(|number| *number += 1);
            (reached.dial, reached.name) = (new(&reached.number), name.map(str::to_owned));
        }
        reached.dial.clone()
    }

    /// Whether a server owns slots, as far as is known now.
    pub(crate) fn is_primary(&self, dial: &Arc<Dial>) -> bool {
        let state = self.state();
        let dials = state.topology.primaries().iter().filter_map(|primary| state.dials.get(&primary.address));
        dials.into_iter().any(|reached| Arc::ptr_eq(&reached.dial, dial))
    }

    /// Returns all primaries.
    pub(crate) async fn primaries(self: &Arc<Self>) -> Result<Vec<Arc<Dial>>> {
        self.ready().await?;
        let mut state = self.state();
        let TopologyState { topology, dials, .. } = &mut *state;
        let primaries = topology.primaries().iter();
        Ok(primaries.map(|it| self.dial(dials, &it.address, it.name.as_deref())).collect())
    }

    /// Makes sure that there is a topology. One that is suspect stays in use while a task reads a new one: most of it is
    /// still right, and who meets what is not pauses and comes back.
    pub(crate) async fn ready(self: &Arc<Self>) -> Result<()> {
        let (suspected, none) = {
            let state = self.state();
            (state.suspected, state.topology.primaries().is_empty())
        };
        self.watch.start(|| follow(Arc::downgrade(self)));
        let Some(suspected) = suspected else { return Ok(()) };
        if none {
            return self.refresh(suspected).await;
        }
        let cluster = self.clone();
        self.refresh.start(|| async move {
            if let Err(error) = cluster.refresh(suspected).await {
                tracing::debug!(%error, "the topology of the cluster cannot be read");
            }
        });
        Ok(())
    }

    /// Reads the topology, unless it was read since then.
    fn refresh(&self, suspected: Instant) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.refreshed(suspected))
    }

    async fn refreshed(&self, suspected: Instant) -> Result<()> {
        // One caller reads. The others wait here and use what it has read.
        let mut reading = self.reading.lock().await;
        if reading.began.is_none_or(|began| began < suspected) {
            if let Some(began) = reading.began {
                sleep_until((began + PAUSE).into()).await;
            }
            let began = Instant::now();
            reading.began = Some(began);
            let read = self.read(&mut reading.socket).await;
            match read {
                Ok(topology) => {
                    reading.failed = None;
                    let mut state = self.state();
                    tracing::debug!(primaries = ?topology.primaries(), "topology of the cluster");
                    if state.suspected.is_some_and(|suspected| suspected <= began) {
                        state.suspected = None;
                    }
                    if state.learn(topology) {
                        self.moved.send_modify(|number| *number += 1);
                    }
                }
                Err(error) => reading.failed = Some(error),
            }
        }
        reading.failed.clone().map_or(Ok(()), Err)
    }

    /// Asks the node that answered last; if it does not answer, or is cut off from the others, all known nodes at once.
    async fn read(&self, kept: &mut Option<(Address, Socket)>) -> Result<Topology> {
        let mut cut_off = None;
        if let Some((address, mut socket)) = kept.take()
            && let Ok(Ok((topology, joined))) = timeout(REPLY_TIMEOUT, slots(&mut socket, &address)).await
        {
            if joined {
                *kept = Some((address, socket));
                return Ok(topology);
            }
            cut_off = Some(topology);
        }
        let mut nodes: Vec<(Address, Option<String>)> = Vec::new();
        {
            let state = self.state();
            let known = state.topology.primaries().iter();
            nodes.extend(known.map(|primary| (primary.address.clone(), primary.name.clone())));
        }
        for seed in &self.seeds {
            if nodes.iter().all(|(address, _)| address != seed) {
                nodes.push((seed.clone(), None));
            }
        }
        let mut asked: FuturesUnordered<_> = nodes
            .into_iter()
            .map(|(address, name)| async move {
                let dial = self.template.at(&address, name.as_deref());
                let mut socket = dial.socket("topology").await.map_err(|error| error.during(&address))?;
                let slots = slots(&mut socket, &address).await;
                let (topology, joined) = slots.map_err(|error| error.during(&address))?;
                Ok((topology, joined, address, socket))
            })
            .collect();
        let mut failed: Option<Error> = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok((topology, true, address, socket)) => {
                    *kept = Some((address, socket));
                    return Ok(topology);
                }
                // Better than none: all nodes answer so while the cluster is down.
                Ok((topology, false, ..)) => cut_off = cut_off.or(Some(topology)),
                // A refusal says more than that another node is away.
                Err::<_, Error>(error) if failed.as_ref().is_none_or(Error::is_transient) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        let failed =
            failed.unwrap_or_else(|| Error::new(ErrorKind::InvalidConfig, "there is no node to ask"));
        cut_off.ok_or(failed)
    }
}

/// Reads the topology from time to time: a frozen node gives no sign that another one has taken its place.
async fn follow(cluster: Weak<Cluster>) {
    loop {
        sleep(INTERVAL).await;
        let Some(cluster) = cluster.upgrade() else { return };
        if let Err(error) = cluster.refresh(Instant::now()).await {
            tracing::debug!(%error, "the topology of the cluster cannot be read");
        }
    }
}

/// Returns what a node knows of the topology, and whether it is in touch with most others.
async fn slots(socket: &mut Socket, address: &Address) -> Result<(Topology, bool)> {
    let mut pipe = Pipeline::with_capacity(2);
    pipe.cmd("CLUSTER").arg("SLOTS");
    pipe.cmd("CLUSTER").arg("INFO");
    let mut request = Request::default();
    request.add_pipeline(&pipe);
    socket.ask(&request, Duration::ZERO, REPLY_TIMEOUT).await.map_err(unchanged)?;
    let mut replies = socket.replies();
    let (answer, info) = (replies.next()?.value()?, replies.next()?.value()?);
    let topology = Topology::parse(reply::ok(answer)?, address)?;
    if topology.primaries().is_empty() {
        let why = "the cluster cannot serve: no slot is assigned to a node";
        return Err(Error::new(ErrorKind::Unavailable, why));
    }
    // A user without the right to ask goes without the answer.
    let joined = !reply::text(info).is_ok_and(|info| info.contains("cluster_state:fail"));
    Ok((topology, joined))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> Address {
        Address::new("127.0.0.1", port)
    }

    fn topology(port: u16) -> Topology {
        let mut topology = Topology::default();
        topology.moved(0, node(port));
        topology
    }

    #[test]
    fn the_dial_of_a_node_that_has_left_goes_with_the_last_one_who_uses_it() {
        let config = RedisConfig::new("redis+cluster://127.0.0.1:7000");
        let Ok(Servers::Cluster(cluster)) = Servers::new(&config) else { panic!("it is a cluster") };
        let (reach, learn) =
            (|port| cluster.asked(&node(port)).dial, |port| cluster.state().learn(topology(port)));
        let used = reach(1);
        for port in 2..1_000 {
            learn(port);
            reach(port);
        }
        let known = cluster.state().dials.len();
        assert!(known <= 3, "{known} dials of 999 nodes");
        assert!(Arc::ptr_eq(&used, &reach(1)), "connections are compared by it");
        drop(used);
        learn(999);
        assert!(!cluster.state().dials.contains_key(&node(1)));
        let used = reach(999);
        learn(999);
        assert!(Arc::ptr_eq(&used, &reach(999)), "a primary stays");
    }
}
