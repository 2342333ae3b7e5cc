//! Series of events: found by topic, group and partition without an allocation, registered at their first use.

use std::collections::BTreeMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use metrics::{Counter, Histogram};
use millstream_core::schedule::Shard;
use millstream_core::{GroupName, Partition, QueueName, TopicName, TopicPartition};

use crate::metric::Metric;
use crate::registry::Registry;
use crate::table;

/// Counters that differ in the value of one label, each registered at its first use.
#[derive(Debug)]
pub(crate) struct Each<T, const N: usize>([OnceLock<T>; N]);

impl<T, const N: usize> Default for Each<T, N> {
    fn default() -> Self {
        Self([const { OnceLock::new() }; N])
    }
}

impl<T, const N: usize> Each<T, N> {
    /// Returns the one for the value at `index`; an index out of range selects the last one.
    pub(crate) fn get(&self, index: usize, register: impl FnOnce() -> T) -> Option<&T> {
        let cell = self.0.get(index).or(self.0.last())?;
        Some(cell.get_or_init(register))
    }
}

/// Counters of one partition in one group.
pub(crate) struct InPartition {
    pub(crate) delivered: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) acked: Counter,
    pub(crate) retried: Counter,
    pub(crate) discarded: Counter,
    pub(crate) snoozed: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) checked: Counter,
    pub(crate) markers_lost: Counter,
    pub(crate) late_acks: Counter,
    pub(crate) ghosts: Counter,
    pub(crate) crashed: Counter,
    pub(crate) lost: Counter,
    pub(crate) assigned: Counter,
    pub(crate) revoked: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) restored: Counter,
    pub(crate) tails_lost: Counter,
    pub(crate) failed: Each<Counter, 8>,
    pub(crate) dead: Each<Counter, 8>,
}

impl InPartition {
    fn new(registry: &Registry, topic: &TopicName, partition: Partition, group: &GroupName) -> Self {
        let partition = partition.0.to_string();
        let counter =
            |metric: &Metric| registry.counter(metric, &[topic.as_str(), &partition, group.as_str()]);
        Self {
            delivered: counter(&table::DELIVERED),
            reclaimed: counter(&table::RECLAIMED),
            acked: counter(&table::ACKED),
            retried: counter(&table::RETRIED),
            discarded: counter(&table::DISCARDED),
            snoozed: counter(&table::SNOOZED),
            duplicates: counter(&table::DUPLICATES),
            checked: counter(&table::CHECKED),
            markers_lost: counter(&table::MARKERS_LOST),
            late_acks: counter(&table::LATE_ACKS),
            ghosts: counter(&table::GHOSTS),
            crashed: counter(&table::CRASHED),
            lost: counter(&table::LOST),
            assigned: counter(&table::ASSIGNED),
            revoked: counter(&table::REVOKED),
            leases_lost: counter(&table::LEASES_LOST),
            restored: counter(&table::GROUPS_RESTORED),
            tails_lost: counter(&table::TAILS_LOST),
            failed: Each::default(),
            dead: Each::default(),
        }
    }
}

/// Series of one topic in one group.
pub(crate) struct InGroup {
    pub(crate) rebalances: Counter,
    pub(crate) fenced: Counter,
    pub(crate) queue_wait: Histogram,
    pub(crate) end_to_end: Histogram,
    pub(crate) settle: Histogram,
    pub(crate) fetch_batch: Histogram,
    pub(crate) settle_batch: Histogram,
    /// By result.
    pub(crate) handler: Each<Histogram, 7>,
    partitions: BTreeMap<Partition, Box<InPartition>>,
}

impl InGroup {
    fn new(registry: &Registry, topic: &TopicName, group: &GroupName) -> Self {
        let labels = [topic.as_str(), group.as_str()];
        let histogram = |metric: &Metric| registry.histogram(metric, &labels);
        Self {
            rebalances: registry.counter(&table::REBALANCES, &labels),
            fenced: registry.counter(&table::MEMBERS_FENCED, &labels),
            queue_wait: histogram(&table::QUEUE_WAIT_SECONDS),
            end_to_end: histogram(&table::END_TO_END_SECONDS),
            settle: histogram(&table::SETTLE_SECONDS),
            fetch_batch: histogram(&table::FETCH_BATCH),
            settle_batch: histogram(&table::SETTLE_BATCH),
            handler: Each::default(),
            partitions: BTreeMap::new(),
        }
    }
}

/// Counters of a partition that do not depend on a group.
pub(crate) struct OfPartition {
    pub(crate) promoted: Counter,
    pub(crate) orphans: Counter,
    pub(crate) trimmed: Counter,
}

/// Series of one topic.
pub(crate) struct OfTopic {
    /// Apart from the other counters of partitions, which a process that only sends does not need.
    produced: BTreeMap<Partition, Counter>,
    pub(crate) scheduled: Counter,
    pub(crate) fired: Counter,
    pub(crate) missed: Counter,
    pub(crate) delay_error: Histogram,
    partitions: BTreeMap<Partition, OfPartition>,
    groups: BTreeMap<GroupName, InGroup>,
}

/// Series of one delay queue.
pub(crate) struct OfQueue {
    pub(crate) fired: Counter,
    pub(crate) missed: Counter,
    pub(crate) delay_error: Histogram,
    /// By result.
    pub(crate) handler: Each<Histogram, 6>,
    shards: BTreeMap<u32, OfShard>,
}

/// Series of one shard of a delay queue.
pub(crate) struct OfShard {
    pub(crate) claimed: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) crashed: Counter,
    pub(crate) late_acks: Counter,
    pub(crate) claims_lost: Counter,
    /// By result.
    pub(crate) worked: Each<Counter, 6>,
}

/// All series of events that have names in their labels.
#[derive(Default)]
pub(crate) struct Series {
    topics: RwLock<BTreeMap<TopicName, OfTopic>>,
    queues: RwLock<BTreeMap<QueueName, OfQueue>>,
}

impl Series {
    /// Counts an event of a topic.
    pub(crate) fn topic(&self, registry: &Registry, topic: &TopicName, count: impl Fn(&OfTopic)) {
        if let Some(found) = self.topics.read().unwrap_or_else(PoisonError::into_inner).get(topic) {
            return count(found);
        }
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        count(topics.entry(topic.clone()).or_insert_with(|| of_topic(registry, topic)));
    }

    /// Counts messages that were appended to a partition.
    pub(crate) fn produced(&self, registry: &Registry, tp: &TopicPartition, messages: u64) {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counter) = topics.get(&tp.topic).and_then(|topic| topic.produced.get(&tp.partition)) {
            return counter.increment(messages);
        }
        drop(topics);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let topic = topics.entry(tp.topic.clone()).or_insert_with(|| of_topic(registry, &tp.topic));
        let counter = topic.produced.entry(tp.partition).or_insert_with(|| {
            registry.counter(&table::PRODUCED, &[tp.topic.as_str(), &tp.partition.0.to_string()])
        });
        counter.increment(messages);
    }

    /// Counts an event of a partition, independent of groups.
    pub(crate) fn partition(
        &self,
        registry: &Registry,
        tp: &TopicPartition,
        count: impl Fn(&OfTopic, &OfPartition),
    ) {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(&tp.topic)
            && let Some(partition) = topic.partitions.get(&tp.partition)
        {
            return count(topic, partition);
        }
        drop(topics);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let topic = topics.entry(tp.topic.clone()).or_insert_with(|| of_topic(registry, &tp.topic));
        topic.partitions.entry(tp.partition).or_insert_with(|| {
            let partition = tp.partition.0.to_string();
            let counter = |metric: &Metric| registry.counter(metric, &[tp.topic.as_str(), &partition]);
            OfPartition {
                promoted: counter(&table::PROMOTED),
                orphans: counter(&table::ORPHANS),
                trimmed: counter(&table::TRIMMED),
            }
        });
        if let Some(partition) = topic.partitions.get(&tp.partition) {
            count(topic, partition);
        }
    }

    /// Counts an event of a topic in a group.
    pub(crate) fn group(
        &self,
        registry: &Registry,
        topic: &TopicName,
        group: &GroupName,
        count: impl Fn(&InGroup),
    ) {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = topics.get(topic).and_then(|topic| topic.groups.get(group)) {
            return count(found);
        }
        drop(topics);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let of_topic = topics.entry(topic.clone()).or_insert_with(|| of_topic(registry, topic));
        count(of_topic.groups.entry(group.clone()).or_insert_with(|| InGroup::new(registry, topic, group)));
    }

    /// Counts an event of a partition in a group.
    pub(crate) fn in_group(
        &self,
        registry: &Registry,
        tp: &TopicPartition,
        group: &GroupName,
        count: impl Fn(&InGroup, &InPartition),
    ) {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = topics.get(&tp.topic).and_then(|topic| topic.groups.get(group))
            && let Some(partition) = found.partitions.get(&tp.partition)
        {
            return count(found, partition);
        }
        drop(topics);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let of_topic = topics.entry(tp.topic.clone()).or_insert_with(|| of_topic(registry, &tp.topic));
        let found =
            of_topic.groups.entry(group.clone()).or_insert_with(|| InGroup::new(registry, &tp.topic, group));
        found
            .partitions
            .entry(tp.partition)
            .or_insert_with(|| Box::new(InPartition::new(registry, &tp.topic, tp.partition, group)));
        if let Some(partition) = found.partitions.get(&tp.partition) {
            count(found, partition);
        }
    }

    /// Counts an event of a delay queue.
    pub(crate) fn queue(&self, registry: &Registry, queue: &QueueName, count: impl Fn(&OfQueue)) {
        if let Some(found) = self.queues.read().unwrap_or_else(PoisonError::into_inner).get(queue) {
            return count(found);
        }
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        count(queues.entry(queue.clone()).or_insert_with(|| of_queue(registry, queue)));
    }

    /// Counts an event of a shard.
    pub(crate) fn shard(&self, registry: &Registry, shard: &Shard, count: impl Fn(&OfQueue, &OfShard)) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&shard.queue)
            && let Some(found) = queue.shards.get(&shard.shard)
        {
            return count(queue, found);
        }
        drop(queues);
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(shard.queue.clone()).or_insert_with(|| of_queue(registry, &shard.queue));
        queue.shards.entry(shard.shard).or_insert_with(|| {
            let number = shard.shard.to_string();
            let counter = |metric: &Metric| registry.counter(metric, &[shard.queue.as_str(), &number]);
            OfShard {
                claimed: counter(&table::TASKS_CLAIMED),
                reclaimed: counter(&table::TASKS_RECLAIMED),
                crashed: counter(&table::TASKS_CRASHED),
                late_acks: counter(&table::TASKS_LATE_ACKS),
                claims_lost: counter(&table::TASK_CLAIMS_LOST),
                worked: Each::default(),
            }
        });
        if let Some(found) = queue.shards.get(&shard.shard) {
            count(queue, found);
        }
    }
}

fn of_topic(registry: &Registry, topic: &TopicName) -> OfTopic {
    let topic = topic.as_str();
    OfTopic {
        produced: BTreeMap::new(),
        scheduled: registry.counter(&table::SCHEDULED, &[topic]),
        fired: registry.counter(&table::FIRED, &[topic, ""]),
        missed: registry.counter(&table::MISSED, &[topic, ""]),
        delay_error: registry.histogram(&table::DELAY_ERROR_SECONDS, &[topic, ""]),
        partitions: BTreeMap::new(),
        groups: BTreeMap::new(),
    }
}

fn of_queue(registry: &Registry, queue: &QueueName) -> OfQueue {
    let queue = queue.as_str();
    OfQueue {
        fired: registry.counter(&table::FIRED, &["", queue]),
        missed: registry.counter(&table::MISSED, &["", queue]),
        delay_error: registry.histogram(&table::DELAY_ERROR_SECONDS, &["", queue]),
        handler: Each::default(),
        shards: BTreeMap::new(),
    }
}
