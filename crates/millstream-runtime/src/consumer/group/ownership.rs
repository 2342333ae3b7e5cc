//! The ownership loop: releases partitions that others should own, acquires ours, and runs one worker per partition.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use millstream_core::error::Result;
use millstream_core::leases::Acquired;
use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::{Partition, Resource, TopicPartition};
use tokio::sync::watch;
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::group::lease_table::LeaseTable;
use crate::consumer::group::membership::{Target, within};
use crate::consumer::group::pending_acquires::PendingAcquires;
use crate::consumer::partition::lifecycle::{self, CompletedSeek, SessionEnded};
use millstream_engine::LoopMonitor;

/// Maximum number of concurrent lease requests.
const AT_ONCE: usize = 32;
/// Pause before a partition is requested again after its worker has ended: the cause may end the next worker, too.
const NO_HURRY: Duration = Duration::from_millis(50);

/// Acquires and releases leases until the owned partitions are the assigned ones.
///
/// A member that should not own a partition any more stops reading it, waits for the handlers that have started, and
/// releases the lease. This has no deadline, and the lease is renewed meanwhile. The next owner requests the lease
/// repeatedly until then.
pub(in crate::consumer) struct Ownership {
    context: Arc<Subscription>,
    table: LeaseTable,
    target: watch::Receiver<Target>,
    /// The partitions that we should own.
    wanted: SortedSet<Partition>,
    pending_acquires: PendingAcquires,
    requests: FuturesUnordered<BoxFuture<'static, Option<Answer>>>,
    workers: JoinSet<SessionEnded>,
    /// The partition of each worker task. Needed because a task that panics returns no value.
    partitions: HashMap<task::Id, Partition>,
    /// Completed seeks whose partitions are being acquired again.
    moved: SortedMap<Partition, CompletedSeek>,
    /// Partitions with a worker, including those that are being released.
    owned: SortedMap<Partition, Arc<LeaseGuard>>,
    monitor: LoopMonitor,
    /// Partitions whose last request failed: the server of one may be away while others are not.
    failing: SortedSet<Partition>,
    /// When the consumer was asked to stop.
    stopping: Option<Instant>,
}

/// Reply to one lease request.
struct Answer {
    partition: Partition,
    answer: Result<Found>,
}

/// State of a requested partition.
enum Found {
    Free(Arc<LeaseGuard>),
    /// Somebody else has it, for this long unless the lease is renewed.
    Held(Duration),
}

impl Ownership {
    pub(in crate::consumer) fn new(
        context: Arc<Subscription>,
        table: LeaseTable,
        target: watch::Receiver<Target>,
    ) -> Self {
        Self {
            monitor: context.monitor("acquire"),
            failing: SortedSet::new(),
            context,
            table,
            target,
            wanted: SortedSet::new(),
            pending_acquires: PendingAcquires::default(),
            requests: FuturesUnordered::new(),
            workers: JoinSet::new(),
            partitions: HashMap::new(),
            moved: SortedMap::new(),
            owned: SortedMap::new(),
            stopping: None,
        }
    }

    /// Works until we have left the group; then waits for the workers, up to the shutdown timeout.
    pub(in crate::consumer) async fn run(mut self) {
        while self.run_once().await {}
        // We have left the group: revokes everything that is still owned.
        self.aim(SortedSet::new());
        let since = self.stopping.unwrap_or_else(Instant::now);
        let context = self.context.clone();
        let rest = context.handlers_timeout().saturating_sub(since.elapsed());
        if timeout(rest, self.drain()).await.is_err() {
            context.give_up(rest);
            if timeout(context.last_settlements(), self.drain()).await.is_err() {
                // The server is away, or a handler blocks its thread: that one keeps running.
                tracing::warn!(
                    partitions = self.workers.len(),
                    "partitions were not released in time: their leases expire"
                );
                context.hand_back(context.status.in_flight(&context.topic.name));
            }
        }
    }

    /// Sends requests that are due, and waits for the next event. False if we have left the group.
    async fn run_once(&mut self) -> bool {
        self.ask();
        let context = self.context.clone();
        let next = self.pending_acquires.next().filter(|_| self.requests.len() < AT_ONCE);
        let due = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = context.stop.cancelled(), if self.stopping.is_none() => {
                self.stopping = Some(Instant::now());
                // We keep our partitions until they are assigned to others, but take no more.
                self.pending_acquires.retain(|_| false);
                std::mem::take(&mut self.moved).into_values().for_each(CompletedSeek::answer);
            }
            changed = self.target.changed() => return self.retarget(changed.is_ok()).await,
            Some(ended) = self.workers.join_next_with_id(), if !self.workers.is_empty() => self.forget(ended),
            Some(answer) = self.requests.next(), if !self.requests.is_empty() => self.answered(answer),
            () = due => {}
        }
        true
    }

    async fn retarget(&mut self, is_open: bool) -> bool {
        if !is_open {
            tracing::error!("the membership loop ended abnormally: partitions are kept as they are");
            self.context.stop.cancelled().await;
            return false;
        }
        let target = self.target.borrow_and_update().clone();
        match target {
            Target::Unknown => {}
            Target::Own(wanted) => self.aim(wanted),
            Target::Left => return false,
        }
        true
    }

    /// Revokes partitions that are no longer wanted, and starts to acquire the missing ones.
    fn aim(&mut self, wanted: SortedSet<Partition>) {
        self.wanted = wanted;
        for (partition, guard) in &self.owned {
            if !self.wanted.contains(partition) {
                guard.revoke();
            }
        }
        self.pending_acquires.retain(|partition| self.wanted.contains(&partition));
        self.failing.retain(|partition| self.wanted.contains(partition));
        let unwanted = |partition: &Partition| !self.wanted.contains(partition);
        let gone: Vec<_> = self.moved.keys().copied().filter(unwanted).collect();
        for moved in gone.into_iter().filter_map(|partition| self.moved.remove(&partition)) {
            moved.answer();
        }
        let now = Instant::now();
        for partition in &self.wanted {
            if self.stopping.is_none() && !self.owned.contains_key(partition) {
                self.pending_acquires.start(*partition, now, now);
            }
        }
    }

    /// Sends lease requests that are due, up to the maximum number of concurrent ones.
    fn ask(&mut self) {
        while self.requests.len() < AT_ONCE
            && let Some((partition, nonce)) = self.pending_acquires.take(Instant::now())
        {
            let (context, table) = (self.context.clone(), self.table.clone());
            self.requests.push(Box::pin(async move {
                let answer = acquire(context, table, partition, nonce).await;
                Some(Answer { partition, answer })
            }));
        }
    }

    fn answered(&mut self, answer: Option<Answer>) {
        let Some(Answer { partition, answer }) = answer else { return };
        let now = Instant::now();
        match answer {
            Ok(found) => {
                self.failing.remove(&partition);
                if self.failing.is_empty() {
                    self.monitor.succeeded(&*self.context.observer);
                }
                match found {
                    Found::Free(guard) => self.granted(partition, guard),
                    Found::Held(expires_in) => {
                        self.is_moved(partition);
                        self.pending_acquires.held(partition, now, expires_in);
                    }
                }
            }
            Err(error) => {
                self.failing.insert(partition);
                let pause = self.monitor.failed(&error, &*self.context.observer);
                self.is_moved(partition);
                self.pending_acquires.failed(partition, now + pause);
            }
        }
    }

    fn granted(&mut self, partition: Partition, guard: Arc<LeaseGuard>) {
        let wanted = self.wanted.contains(&partition) && self.stopping.is_none();
        // Either the partition is no longer wanted, or the earlier worker has released its lease and has not ended yet.
        if !wanted || self.owned.contains_key(&partition) {
            let (context, table) = (self.context.clone(), self.table.clone());
            self.requests.push(Box::pin(async move {
                lifecycle::release(&context, guard.lease()).await;
                table.remove(partition, &guard);
                None
            }));
            return;
        }
        self.pending_acquires.end(partition);
        self.owned.insert(partition, guard.clone());
        // A worker exists again: it answers the seek that made us acquire the partition anew.
        let moved = self.moved.remove(&partition);
        let task = self.workers.spawn(lifecycle::run(self.context.clone(), guard, moved).boxed());
        self.partitions.insert(task.id(), partition);
    }

    /// Answers a completed seek now: it will take a while until the partition is ours again.
    fn is_moved(&mut self, partition: Partition) {
        self.moved.remove(&partition).into_iter().for_each(CompletedSeek::answer);
    }

    /// Waits until no worker runs and no lease can be granted any more.
    async fn drain(&mut self) {
        while !self.workers.is_empty() || !self.requests.is_empty() {
            tokio::select! {
                biased;
                Some(ended) = self.workers.join_next_with_id(), if !self.workers.is_empty() => self.forget(ended),
                Some(answer) = self.requests.next(), if !self.requests.is_empty() => self.answered(answer),
            }
        }
    }

    fn forget(&mut self, ended: std::result::Result<(task::Id, SessionEnded), task::JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(partition) = self.partitions.remove(&id) else { return };
        if let Some(guard) = self.owned.remove(&partition) {
            self.table.remove(partition, &guard);
        }
        let mut hurry = NO_HURRY;
        match ended {
            Ok((_, SessionEnded::Over)) => {}
            Ok((_, SessionEnded::Anew(moved))) => {
                self.moved.extend(moved.map(|moved| (partition, moved)));
                hurry = Duration::ZERO;
            }
            Err(error) => {
                tracing::error!(%partition, %error, "a worker ended abnormally and will be started again");
            }
        }
        if self.wanted.contains(&partition) && self.stopping.is_none() {
            let now = Instant::now();
            self.pending_acquires.start(partition, now, now + hurry);
        } else {
            self.is_moved(partition);
        }
    }
}

/// Requests the lease of one partition. A granted lease is renewed from then on, even if this runtime is blocked.
async fn acquire(
    context: Arc<Subscription>,
    table: LeaseTable,
    partition: Partition,
    nonce: String,
) -> Result<Found> {
    let topic_partition = TopicPartition { topic: context.topic.name.clone(), partition };
    let names = (topic_partition, context.group.clone());
    let resource = Resource::partition(names.0.clone(), names.1.clone());
    // On the control thread, and added to the table there: renewals must not wait for this runtime.
    let control = context.control.clone();
    let found = control.call(async move {
        let (leases, owner) = (context.backend.leases(), context.member.as_str());
        // Taken before the request: the ttl cannot have started earlier.
        let (asked, continuity) = (context.lease_clock.now(), context.continuity());
        let acquired = leases.acquire(&resource, owner, &nonce, context.lease_ttl, &continuity);
        Ok(match within(context.request_timeout(), acquired).await? {
            Acquired::Granted(lease) => {
                let guard = Arc::new(LeaseGuard::new(lease, names, asked, context.lease_clock.clone()));
                table.insert(partition, guard.clone());
                Found::Free(guard)
            }
            Acquired::Held(holder) => Found::Held(holder.expires_in),
        })
    });
    found.await
}
