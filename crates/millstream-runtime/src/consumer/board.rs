//! What is known of a running consumer: what it works on, and what it should own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::error::Result;
use millstream_core::{Partition, Start, TopicName, TopicPartition};
use tokio::sync::{mpsc, oneshot};

use super::in_flight::InFlight;

/// What is known of a running consumer, told by those who know.
#[derive(Default)]
pub(super) struct Board {
    /// Handlers that run now.
    running: AtomicUsize,
    topics: Mutex<BTreeMap<TopicName, Membership>>,
    /// What is read and not settled of topics that are shared.
    hands: Mutex<BTreeMap<TopicName, Count>>,
    workers: Mutex<BTreeMap<TopicPartition, Worker>>,
}

/// Says how many there are now.
pub(super) type Count = Box<dyn Fn() -> usize + Send + Sync>;

/// What is known of the group of one topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Membership {
    pub(super) members: u32,
    /// `None` while nobody has said.
    pub(super) assigned: Option<BTreeSet<Partition>>,
}

/// One partition that is worked on.
struct Worker {
    epoch: u64,
    in_flight: Arc<InFlight>,
    seeks: mpsc::UnboundedSender<Seek>,
}

/// Those that were asked for and not done yet, the first one first.
pub(super) type Seeks = VecDeque<Seek>;

/// Somebody wants to go on elsewhere.
pub(super) struct Seek {
    pub(super) start: Start,
    pub(super) answer: oneshot::Sender<Result<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// A handler runs until this is dropped.
    pub(super) fn handler(&self) -> RunningHandler<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningHandler(&self.running)
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// This topic is consumed.
    pub(super) fn consumes(&self, topic: &TopicName) {
        lock(&self.topics).entry(topic.clone()).or_default();
    }

    /// A heartbeat was answered.
    pub(super) fn heard(&self, topic: &TopicName, members: u32, assigned: Option<&BTreeSet<Partition>>) {
        let mut topics = lock(&self.topics);
        let known = topics.entry(topic.clone()).or_default();
        known.members = members;
        if let Some(assigned) = assigned
            && known.assigned.as_ref() != Some(assigned)
        {
            known.assigned = Some(assigned.clone());
        }
    }

    pub(super) fn topics(&self) -> BTreeMap<TopicName, Membership> {
        lock(&self.topics).clone()
    }

    /// A partition is worked on, until the entry is dropped.
    pub(super) fn works_on(
        self: &Arc<Self>,
        topic_partition: &TopicPartition,
        epoch: u64,
        in_flight: Arc<InFlight>,
    ) -> (Entry, mpsc::UnboundedReceiver<Seek>) {
        let (seeks, orders) = mpsc::unbounded_channel();
        lock(&self.workers).insert(topic_partition.clone(), Worker { epoch, in_flight, seeks });
        (Entry { board: self.clone(), topic_partition: topic_partition.clone(), epoch }, orders)
    }

    /// What is worked on.
    pub(super) fn owned(&self) -> BTreeSet<TopicPartition> {
        lock(&self.workers).keys().cloned().collect()
    }

    /// A topic is shared: this says how much of it is read and not settled.
    pub(super) fn shares(&self, topic: &TopicName, in_hand: Count) {
        lock(&self.hands).insert(topic.clone(), in_hand);
    }

    /// How many messages of a topic are read and not settled.
    pub(super) fn in_flight(&self, topic: &TopicName) -> usize {
        let workers = lock(&self.workers);
        let of_topic = workers.iter().filter(|(tp, _)| tp.topic == *topic);
        let owned: usize = of_topic.map(|(_, worker)| worker.in_flight.unsettled()).sum();
        owned + lock(&self.hands).get(topic).map_or(0, |in_hand| in_hand())
    }

    /// How many poison candidates of a topic are read and not settled.
    pub(super) fn candidates(&self, topic: &TopicName) -> usize {
        let workers = lock(&self.workers);
        let of_topic = workers.iter().filter(|(tp, _)| tp.topic == *topic);
        of_topic.map(|(_, worker)| worker.in_flight.inherited().1).sum()
    }

    /// Asks the worker of a partition. The answer never comes if the partition is given up before.
    pub(super) fn seek(
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

/// A handler that runs.
pub(super) struct RunningHandler<'a>(&'a AtomicUsize);

impl Drop for RunningHandler<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A partition that is worked on.
pub(super) struct Entry {
    board: Arc<Board>,
    topic_partition: TopicPartition,
    epoch: u64,
}

impl Entry {
    /// The work begins anew.
    pub(super) fn begins_anew(&self, in_flight: &Arc<InFlight>) {
        if let Some(worker) = lock(&self.board.workers).get_mut(&self.topic_partition)
            && worker.epoch == self.epoch
        {
            worker.in_flight = in_flight.clone();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut workers = lock(&self.board.workers);
        // The next worker of this partition may have begun before this one has ended.
        if workers.get(&self.topic_partition).is_some_and(|worker| worker.epoch == self.epoch) {
            workers.remove(&self.topic_partition);
        }
    }
}
