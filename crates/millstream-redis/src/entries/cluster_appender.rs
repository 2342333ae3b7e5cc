//! What a producer appends with on a cluster: one appender to each node, behind one order per partition.
//!
//! A batch is split by node, and each part goes behind the earlier ones of its node. A partition whose slot has moved
//! goes to its new node only when its earlier entries were answered by the previous one. What a node refuses because a
//! slot moves is refused to the producer, which sends it again, in order.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::future::select_all;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Appended, Durability};
use millstream_core::topic::TopicPartition;

use crate::address::Address;
use crate::backend::Inner;
use crate::conn::appends::node_appender::NodeAppender;
use crate::conn::appends::part::{Part, PartEntries};
use crate::conn::cluster::servers::{Cluster, Hop};
use crate::conn::cluster::slots::slot_of;
use crate::conn::dial::Dial;
use crate::error::{redirect, unexpected};

pub(crate) struct ClusterAppender {
    inner: Arc<Inner>,
    cluster: Arc<Cluster>,
    durability: Durability,
    nodes: Vec<AppenderNode>,
    /// Batches that are not returned, the oldest first.
    batches: VecDeque<Batch>,
    /// Number of these that are split and begun.
    begun: usize,
    /// Number of batches returned so far.
    returned: u64,
    /// The node at which entries of a partition are under way, and in how many parts.
    busy: HashMap<TopicPartition, (usize, usize)>,
    /// Partitions of which an entry was refused. Later ones are refused too until all batches are returned: the producer may
    /// send the first one again, and must not find that others have overtaken it.
    refused: HashMap<TopicPartition, Error>,
    /// Nodes to which logs have moved before their slots.
    ahead: HashMap<TopicPartition, Address>,
}

/// One node, and the parts that it has not answered, the oldest first.
struct AppenderNode {
    dial: Arc<Dial>,
    asking: bool,
    appender: NodeAppender,
    parts: VecDeque<SentParts>,
}

/// The entries of a batch that go to one node.
struct SentParts {
    /// Number of the batch, counted from the first one.
    batch: u64,
    /// Positions of the entries in the batch.
    at: Arc<[usize]>,
    /// Their partitions, each once.
    partitions: Vec<TopicPartition>,
}

/// A partition of a batch.
struct Route<'a> {
    tp: &'a TopicPartition,
    node: Result<usize>,
    /// Positions of its entries in the batch.
    at: Vec<usize>,
}

struct Batch {
    entries: PartEntries,
    results: Vec<Option<Result<Appended>>>,
    missing: usize,
}

impl ClusterAppender {
    pub(crate) fn new(inner: Arc<Inner>, cluster: Arc<Cluster>, durability: Durability) -> Self {
        Self {
            inner,
            cluster,
            durability,
            nodes: Vec::new(),
            batches: VecDeque::new(),
            begun: 0,
            returned: 0,
            busy: HashMap::new(),
            refused: HashMap::new(),
            ahead: HashMap::new(),
        }
    }

    /// Begins the batches that are not, until one has to wait for entries that are under way to another node.
    fn begin_all(&mut self) {
        while let Some(batch) = self.batches.get(self.begun) {
            let entries = batch.entries.clone();
            let Some(routes) = self.routes(&entries) else { return };
            self.begin_at(&entries, routes);
            self.begun += 1;
        }
    }

    /// Finds the nodes of a batch's partitions. Returns `None` if entries of one are under way to another node.
    fn routes<'a>(&mut self, entries: &'a PartEntries) -> Option<Vec<Route<'a>>> {
        let (mut routes, mut known) = (Vec::<Route<'a>>::new(), HashMap::new());
        for at in 0..entries.len() {
            let tp = &entries.at(at).topic_partition;
            let route = match known.entry(tp) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    let node = self.hop(tp).and_then(|hop| self.node(hop));
                    if let (Some((busy, _)), Ok(node)) = (self.busy.get(tp), &node)
                        && busy != node
                    {
                        return None;
                    }
                    routes.push(Route { tp, node, at: Vec::new() });
                    *unknown.insert(routes.len() - 1)
                }
            };
            routes[route].at.push(at);
        }
        Some(routes)
    }

    fn hop(&mut self, tp: &TopicPartition) -> Result<Hop> {
        if let Some(error) = self.refused.get(tp) {
            let error = format!("not sent, an earlier append failed: {error}");
            return Err(Error::new(ErrorKind::Unavailable, error));
        }
        let hop = self.cluster.hop(slot_of(self.inner.keys.log(tp).as_str().as_bytes()))?;
        match self.ahead.get(tp) {
            Some(to) if hop.dial.address().as_ref() == Some(to) => {
                // The slot has followed.
                self.ahead.remove(tp);
                Ok(hop)
            }
            Some(to) => Ok(self.cluster.asked(to)),
            None => Ok(hop),
        }
    }

    /// Begins the next batch at the nodes of its partitions.
    fn begin_at(&mut self, entries: &PartEntries, routes: Vec<Route<'_>>) {
        let number = self.returned + self.begun as u64;
        let mut nodes: Vec<(usize, Vec<usize>, Vec<TopicPartition>)> = Vec::new();
        for Route { tp, node, at } in routes {
            let node = match node {
                Ok(node) => node,
                Err(error) => {
                    for at in at {
                        self.set(number, at, Err(error.clone()));
                    }
                    self.refused.entry(tp.clone()).or_insert(error);
                    continue;
                }
            };
            self.busy.entry(tp.clone()).or_insert((node, 0)).1 += 1;
            match nodes.iter_mut().find(|(known, ..)| *known == node) {
                Some((_, entries, partitions)) => {
                    entries.extend(at);
                    partitions.push(tp.clone());
                }
                None => nodes.push((node, at, vec![tp.clone()])),
            }
        }
        for (node, mut at, partitions) in nodes {
            // In the order of the batch: entries of a partition keep theirs.
            at.sort_unstable();
            let at: Arc<[usize]> = at.into();
            let node = &mut self.nodes[node];
            node.appender.begin_part(Part::of(entries.clone(), at.clone()));
            node.parts.push_back(SentParts { batch: number, at, partitions });
        }
    }

    fn node(&mut self, Hop { dial, asking }: Hop) -> Result<usize> {
        let known = |node: &AppenderNode| Arc::ptr_eq(&node.dial, &dial) && node.asking == asking;
        if let Some(known) = self.nodes.iter().position(known) {
            return Ok(known);
        }
        let appender = self.inner.appenders.line(&dial)?.appender(asking, self.durability);
        let node = AppenderNode { dial, asking, appender, parts: VecDeque::new() };
        // In the place of one that has left, so that positions stay.
        let gone = |node: &AppenderNode| node.parts.is_empty() && !self.cluster.is_primary(&node.dial);
        Ok(match self.nodes.iter().position(gone) {
            Some(free) => {
                self.nodes[free] = node;
                free
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        })
    }

    fn set(&mut self, batch: u64, at: usize, result: Result<Appended>) {
        let place = usize::try_from(batch - self.returned).ok();
        if let Some(batch) = place.and_then(|place| self.batches.get_mut(place)) {
            batch.results[at] = Some(result);
            batch.missing -= 1;
        }
    }

    /// Takes the answer of a node to its oldest part.
    fn answered(&mut self, node: usize, results: Vec<Result<Appended>>) {
        let Some(part) = self.nodes[node].parts.pop_front() else { return };
        for tp in &part.partitions {
            if let Some((_, parts)) = self.busy.get_mut(tp) {
                *parts -= 1;
                if *parts == 0 {
                    self.busy.remove(tp);
                }
            }
        }
        let place = usize::try_from(part.batch - self.returned).ok();
        let entries = place.and_then(|place| self.batches.get(place)).map(|batch| batch.entries.clone());
        let mut results = results.into_iter();
        for at in part.at.iter().copied() {
            let result = results.next().unwrap_or_else(|| Err(unexpected("no answer to an append")));
            if let (Err(error), Some(entries)) = (&result, &entries) {
                let tp = &entries.at(at).topic_partition;
                match redirect(error) {
                    Some(moved) if moved.ask => drop(self.ahead.insert(tp.clone(), moved.to.clone())),
                    // Whatever it is, the topology knows best from now on.
                    _ => drop(self.ahead.remove(tp)),
                }
                self.inner.servers.learn(error);
                if error.kind() == ErrorKind::Unavailable {
                    self.refused.entry(tp.clone()).or_insert_with(|| error.clone());
                }
            }
            self.set(part.batch, at, result);
        }
    }
}

impl ClusterAppender {
    /// Begins a batch behind the earlier ones: see [`Appender`](millstream_core::log::Appender).
    pub(crate) fn begin_entries(&mut self, entries: PartEntries) {
        let results = (0..entries.len()).map(|_| None).collect();
        self.batches.push_back(Batch { missing: entries.len(), entries, results });
        self.begin_all();
    }

    /// Waits for the results of the oldest batch.
    pub(crate) async fn finish(&mut self) -> Vec<Result<Appended>> {
        loop {
            let Some(oldest) = self.batches.front() else { return Vec::new() };
            if oldest.missing == 0 && self.begun > 0 {
                let Some(oldest) = self.batches.pop_front() else { return Vec::new() };
                (self.begun, self.returned) = (self.begun - 1, self.returned + 1);
                if self.batches.is_empty() {
                    self.refused.clear();
                }
                return oldest.results.into_iter().flatten().collect();
            }
            // A failure shows with the first request that it concerns.
            let _ = self.cluster.ready().await;
            self.begin_all();
            let busy = self.nodes.iter_mut().enumerate().filter(|(_, node)| !node.parts.is_empty());
            let answers: Vec<_> =
                busy.map(|(at, node)| Box::pin(async move { (at, node.appender.finish().await) })).collect();
            if answers.is_empty() {
                continue;
            }
            let ((node, results), ..) = select_all(answers).await;
            self.answered(node, results);
        }
    }
}
