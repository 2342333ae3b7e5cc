//! Status of a running consumer: the partitions it works on, and those it should own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::error::Result;
use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::{Partition, Start, TopicName, TopicPartition};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::consumer::partition::in_flight::InFlightGauge;
use crate::consumer::partition::leases::entry_leases::EntryLeases;

/// Status of a running consumer, updated by its loops.
#[derive(Default)]
pub(in crate::consumer) struct Status {
    /// Number of handlers that run now.
    running: AtomicUsize,
    /// Number of tasks that were started with messages and have not ended: also of those in which no handler runs yet.
    tasks: AtomicUsize,
    /// Notified when the last of them ends.
    quiet: Notify,
    topics: Mutex<SortedMap<TopicName, TopicStatus>>,
    /// Messages in flight of topics in shared mode.
    shared: Mutex<SortedMap<TopicName, Arc<EntryLeases>>>,
    workers: Mutex<SortedMap<TopicPartition, Worker>>,
}

/// Status of the group of one topic.
#[derive(Clone, Debug, Default)]
pub(in crate::consumer) struct TopicStatus {
    pub(in crate::consumer) members: u32,
    /// `None` until the assignment is known.
    pub(in crate::consumer) assigned: Option<SortedSet<Partition>>,
}

/// A partition with a running worker.
struct Worker {
    epoch: u64,
    in_flight: Arc<InFlightGauge>,
    seeks: mpsc::UnboundedSender<Seek>,
}

/// Seeks that were requested and not done yet, oldest first.
pub(in crate::consumer) type Seeks = VecDeque<Seek>;

/// A request to move the group's position in a partition.
pub(in crate::consumer) struct Seek {
    pub(in crate::consumer) start: Start,
    pub(in crate::consumer) answer: oneshot::Sender<Result<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    /// Counts a running handler until the returned value is dropped.
    pub(in crate::consumer) fn handler(&self) -> RunningHandler<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningHandler(&self.running)
    }

    pub(in crate::consumer) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Counts a task with messages until the returned value is dropped. Whoever starts one checks after this that nothing is
    /// paused: then [`quiet`](Self::quiet) misses none that starts later.
    pub(in crate::consumer) fn task(self: &Arc<Self>) -> RunningTask {
        self.tasks.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        RunningTask(self.clone())
    }

    /// Waits until no task with messages runs.
    pub(in crate::consumer) async fn quiet(&self) {
        fence(Ordering::SeqCst);
        loop {
            let quiet = self.quiet.notified();
            if self.tasks.load(Ordering::SeqCst) == 0 {
                return;
            }
            quiet.await;
        }
    }

    /// Adds a consumed topic.
    pub(in crate::consumer) fn consumes(&self, topic: &TopicName) {
        lock(&self.topics).get_or_default(topic.clone());
    }

    /// Records the reply to a heartbeat.
    pub(in crate::consumer) fn heartbeat(
        &self,
        topic: &TopicName,
        members: u32,
        assigned: Option<&SortedSet<Partition>>,
    ) {
        let mut topics = lock(&self.topics);
        let known = topics.get_or_default(topic.clone());
        known.members = members;
        if let Some(assigned) = assigned
            && known.assigned.as_ref() != Some(assigned)
        {
            known.assigned = Some(assigned.clone());
        }
    }

    pub(in crate::consumer) fn topics(&self) -> SortedMap<TopicName, TopicStatus> {
        lock(&self.topics).clone()
    }

    /// Adds a partition with a running worker, until the returned entry is dropped.
    pub(in crate::consumer) fn works_on(
        self: &Arc<Self>,
        topic_partition: &TopicPartition,
        epoch: u64,
        in_flight: Arc<InFlightGauge>,
    ) -> (WorkerStatus, mpsc::UnboundedReceiver<Seek>) {
        let (seeks, orders) = mpsc::unbounded_channel();
        lock(&self.workers).insert(topic_partition.clone(), Worker { epoch, in_flight, seeks });
        (WorkerStatus { status: self.clone(), topic_partition: topic_partition.clone(), epoch }, orders)
    }

    /// Returns the partitions with a running worker.
    pub(in crate::consumer) fn owned(&self) -> SortedSet<TopicPartition> {
        lock(&self.workers).keys().cloned().collect()
    }

    /// Adds a topic in shared mode, with its entries in flight.
    pub(in crate::consumer) fn shares(&self, topic: &TopicName, leases: Arc<EntryLeases>) {
        lock(&self.shared).insert(topic.clone(), leases);
    }

    /// Returns how many messages of a topic are read and not settled.
    pub(in crate::consumer) fn in_flight(&self, topic: &TopicName) -> usize {
        let workers = lock(&self.workers);
        let of_topic = workers.iter().filter(|(tp, _)| tp.topic == *topic);
        let owned: usize = of_topic.map(|(_, worker)| worker.in_flight.unsettled()).sum();
        owned + lock(&self.shared).get(topic).map_or(0, |leases| leases.len())
    }

    /// Returns how many poison candidates of a topic are read and not settled.
    pub(in crate::consumer) fn candidates(&self, topic: &TopicName) -> usize {
        let workers = lock(&self.workers);
        let of_topic = workers.iter().filter(|(tp, _)| tp.topic == *topic);
        let owned: usize = of_topic.map(|(_, worker)| worker.in_flight.candidates()).sum();
        owned + lock(&self.shared).get(topic).map_or(0, |leases| leases.candidates())
    }

    /// Sends a seek to the worker of a partition. `None` if there is no worker. The answer never comes if the partition
    /// is released or lost before.
    pub(in crate::consumer) fn seek(
        &self,
        topic_partition: &TopicPartition,
        start: Start,
    ) -> Option<oneshot::Receiver<Result<()>>> {
        let (answer, answered) = oneshot::channel();
        let seeks = lock(&self.workers).get(topic_partition)?.seeks.clone();
        seeks.send(Seek { start, answer }).ok()?;
        Some(answered)
    }
}

/// Guard that counts a running handler.
pub(in crate::consumer) struct RunningHandler<'a>(&'a AtomicUsize);

impl Drop for RunningHandler<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Guard that counts a task with messages.
pub(in crate::consumer) struct RunningTask(Arc<Status>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        if self.0.tasks.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.quiet.notify_waiters();
        }
    }
}

/// Guard that keeps a partition in the status.
pub(in crate::consumer) struct WorkerStatus {
    status: Arc<Status>,
    topic_partition: TopicPartition,
    epoch: u64,
}

impl Drop for WorkerStatus {
    fn drop(&mut self) {
        let mut workers = lock(&self.status.workers);
        // The next worker of this partition may have begun before this one has ended.
        if workers.get(&self.topic_partition).is_some_and(|worker| worker.epoch == self.epoch) {
            workers.remove(&self.topic_partition);
        }
    }
}
