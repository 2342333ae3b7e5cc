//! Which of the queues of a partition is next: by arrival, or by whose turn it is, and in which lane its first message is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use millstream_engine::Priorities;
use millstream_engine::fairness::{TenantId, TenantView, Tenants};
use millstream_engine::priorities::{Head, LaneQueues, Rank};
use tokio::time::Instant;

use crate::consumer::partition::dispatch::key_queues::Owner;

/// Queues by the number of their first item.
type Heap = BinaryHeap<Reverse<(u64, usize)>>;

/// Queues in which an item can start. Each is in it once.
#[derive(Debug)]
pub(in crate::consumer) enum Ready {
    /// The one whose item arrived first is next.
    ByArrival(Heap),
    /// The tenant that was served least is next, with the item of it that is first by its lane. Without fairness there is one tenant.
    Fair(Box<Fair>),
}

/// Queues by the tenant of their first item.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Fair {
    tenants: Tenants,
    /// By the index of their tenant.
    lanes: Vec<LaneQueues>,
    priorities: Option<Priorities>,
    /// Tenants whose messages may not start.
    held: HashSet<TenantId>,
}

impl Fair {
    fn make_ready(&mut self, tenant: TenantId) {
        if !self.lanes[tenant.index()].is_empty() && !self.held.contains(&tenant) {
            self.tenants.ready(tenant);
        }
    }
}

impl Default for Ready {
    fn default() -> Self {
        Self::ByArrival(Heap::new())
    }
}

impl Ready {
    pub(in crate::consumer) fn fair(priorities: Option<&Priorities>) -> Self {
        Self::Fair(Box::new(Fair { priorities: priorities.cloned(), ..Fair::default() }))
    }

    /// Adds an item that waits. Returns whose it is.
    pub(in crate::consumer) fn enter(
        &mut self,
        tenant: &Bytes,
        rank: Rank,
        weight: impl FnOnce() -> u32,
    ) -> TenantId {
        let Self::Fair(fair) = self else { return TenantId::default() };
        let id = fair.tenants.enter(tenant, Instant::now(), weight);
        fair.lanes.resize_with(fair.lanes.len().max(id.index() + 1), LaneQueues::default);
        fair.lanes[id.index()].enter(rank.lane);
        id
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::ByArrival(heap) => heap.is_empty(),
            Self::Fair(fair) => !fair.tenants.has_ready(),
        }
    }

    /// Adds a queue with the number and the owner of its first item.
    pub(super) fn push(&mut self, number: u64, queue: usize, owner: Owner) {
        match self {
            Self::ByArrival(heap) => heap.push(Reverse((number, queue))),
            Self::Fair(fair) => {
                let Rank { lane, came } = owner.rank;
                fair.lanes[owner.tenant.index()].push(lane, Head { number, at: queue, came });
                fair.make_ready(owner.tenant);
            }
        }
    }

    /// Lets nothing of a tenant start until it is [released](Self::release).
    pub(super) fn hold(&mut self, tenant: TenantId) {
        if let Self::Fair(fair) = self {
            fair.held.insert(tenant);
            fair.tenants.unready(tenant);
        }
    }

    /// Lets messages of a tenant start again.
    pub(super) fn release(&mut self, tenant: TenantId) {
        if let Self::Fair(fair) = self
            && fair.held.remove(&tenant)
        {
            fair.make_ready(tenant);
        }
    }

    /// Returns the tenant of which most messages wait.
    pub(super) fn largest(&self) -> Option<TenantView> {
        match self {
            Self::ByArrival(_) => None,
            Self::Fair(fair) => fair.tenants.views().max_by_key(|it| it.waiting),
        }
    }

    /// Returns how many messages of a tenant wait in a lane.
    pub(super) fn waiting(&self, tenant: TenantId, lane: usize) -> usize {
        match self {
            Self::ByArrival(_) => 0,
            Self::Fair(fair) => fair.lanes[tenant.index()].waiting(lane),
        }
    }

    /// Removes the next queue. Its first item [begins](Self::begin).
    pub(super) fn pop(&mut self) -> Option<usize> {
        match self {
            Self::ByArrival(heap) => Some(heap.pop()?.0.1),
            Self::Fair(fair) => {
                let id = fair.tenants.next(Instant::now())?;
                fair.lanes[id.index()].pop(fair.priorities.as_ref())
            }
        }
    }

    /// Records that an item is handed out. Returns what its lane is charged.
    pub(super) fn begin(&mut self, number: u64, owner: Owner) -> u64 {
        let Self::Fair(fair) = self else { return 0 };
        let charged = fair.lanes[owner.tenant.index()].begin(owner.rank, fair.priorities.as_ref());
        fair.tenants.begin(owner.tenant, number, owner.cost, Instant::now());
        fair.make_ready(owner.tenant);
        charged
    }

    /// Records that an item which was handed out waits again, after this time in its handler, if it ran.
    pub(super) fn undo(&mut self, number: u64, owner: Owner, charged: u64, elapsed: Option<Duration>) {
        if let Self::Fair(fair) = self {
            let given_back = if elapsed.is_none() { charged } else { 0 };
            fair.lanes[owner.tenant.index()].undo(owner.rank.lane, given_back);
            fair.tenants.undo(number, elapsed);
        }
    }

    /// Records that an item has ended, after this time in its handler, if it ran.
    pub(super) fn end(&mut self, number: u64, elapsed: Option<Duration>) {
        if let Self::Fair(fair) = self {
            fair.tenants.end(number, elapsed);
        }
    }

    /// Removes all queues: the items of these owners do not wait any more.
    pub(super) fn clear(&mut self, owners: impl Iterator<Item = Owner>) {
        match self {
            Self::ByArrival(heap) => heap.clear(),
            Self::Fair(fair) => {
                fair.lanes.iter_mut().for_each(LaneQueues::clear);
                fair.tenants.clear_ready();
                fair.held.clear();
                for Owner { tenant, rank, .. } in owners {
                    fair.lanes[tenant.index()].leave(rank.lane);
                    fair.tenants.leave(tenant);
                }
            }
        }
    }
}
