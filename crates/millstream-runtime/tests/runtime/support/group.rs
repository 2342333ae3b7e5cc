//! A group of instances in one process: who owned what and when, and what each was given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::{Backend, Event, MessageId, Observer, Topic};
use millstream_memory::MemoryBackend;
use millstream_runtime::{Consumer, ConsumerBuilder, Delivery, ProducerBuilder, Record, Report};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::link::{Link, link};
use super::{MS, Told, eventually};

pub type Numbers = Topic<u64>;

/// Who owned what and when.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Changes>>);

#[derive(Default)]
struct Changes {
    owners: BTreeMap<u32, String>,
    /// Since when a partition has no owner; and the longest time that each was without.
    free: BTreeMap<u32, Instant>,
    gaps: Vec<(u32, Duration)>,
    moves: usize,
    overlaps: Vec<(u32, String, String)>,
}

impl History {
    pub fn observer(&self, name: &str, told: Told) -> impl Observer + use<> {
        let (history, name) = (self.clone(), name.to_owned());
        move |event: &Event<'_>| {
            told.observe(event);
            match event {
                Event::Assigned { topic_partition, .. } => history.taken(&name, topic_partition.partition.0),
                Event::Revoked { topic_partition, .. } | Event::LeaseLost { topic_partition, .. } => {
                    history.ended(&name, topic_partition.partition.0);
                }
                _ => {}
            }
        }
    }

    fn taken(&self, name: &str, partition: u32) {
        let mut changes = self.0.lock().expect("lock");
        changes.moves += 1;
        if let Some(before) = changes.owners.insert(partition, name.to_owned()) {
            changes.overlaps.push((partition, before, name.to_owned()));
        }
        if let Some(since) = changes.free.remove(&partition) {
            changes.gaps.push((partition, since.elapsed()));
        }
    }

    fn ended(&self, name: &str, partition: u32) {
        let mut changes = self.0.lock().expect("lock");
        if changes.owners.get(&partition).is_some_and(|owner| owner == name) {
            changes.owners.remove(&partition);
            changes.free.insert(partition, Instant::now());
        }
    }

    /// An instance that was cut off owns nothing any more, though it cannot say so.
    pub fn dead(&self, name: &str) {
        for partition in self.of(name) {
            self.ended(name, partition);
        }
    }

    pub fn owners(&self) -> BTreeMap<u32, String> {
        self.0.lock().expect("lock").owners.clone()
    }

    pub fn of(&self, name: &str) -> BTreeSet<u32> {
        self.owners().into_iter().filter(|(_, owner)| owner == name).map(|(partition, _)| partition).collect()
    }

    /// How many partitions each owner has, largest first.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes = BTreeMap::<String, usize>::new();
        self.owners().into_values().for_each(|owner| *sizes.entry(owner).or_default() += 1);
        let mut sizes: Vec<usize> = sizes.into_values().collect();
        sizes.sort_by_key(|size| std::cmp::Reverse(*size));
        sizes
    }

    /// How many partitions were taken since the last look.
    pub fn moves(&self) -> usize {
        std::mem::take(&mut self.0.lock().expect("lock").moves)
    }

    /// The longest time that a partition had no owner between two, since the last look.
    pub fn gap(&self) -> Duration {
        let gaps = std::mem::take(&mut self.0.lock().expect("lock").gaps);
        gaps.into_iter().map(|(_, gap)| gap).max().unwrap_or_default()
    }

    pub fn overlaps(&self) -> Vec<(u32, String, String)> {
        self.0.lock().expect("lock").overlaps.clone()
    }
}

/// What handlers were given: key, number and who.
pub type Given = Arc<Mutex<Vec<(u64, u64, String)>>>;

pub struct Group {
    pub memory: MemoryBackend,
    pub backend: Backend,
    pub topic: Numbers,
    pub history: History,
    pub told: Told,
    pub given: Given,
    /// How many milliseconds a request takes to get through, at most.
    pub latency: u64,
}

pub struct Instance {
    pub name: String,
    pub link: Arc<Link>,
    pub consumer: Consumer,
}

impl Instance {
    pub async fn leave(self) -> Report {
        self.consumer.shutdown().await
    }
}

pub fn group(partitions: u32) -> Group {
    let memory = MemoryBackend::new();
    let backend = Backend::from(memory.clone());
    let topic = Topic::new("orders").partitions(partitions);
    let (history, told, given) = (History::default(), Told::default(), Given::default());
    Group { memory, backend, topic, history, told, given, latency: 0 }
}

impl Group {
    /// One more instance, with a handler that notes what it is given and takes `takes`.
    pub async fn join(
        &self,
        name: &str,
        takes: Duration,
        set: impl FnOnce(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>,
    ) -> Instance {
        let (link, backend) = link(&self.backend);
        link.latency.store(self.latency, Ordering::Relaxed);
        let observer = Arc::new(self.history.observer(name, self.told.clone()));
        let builder = ConsumerBuilder::new(backend, self.topic.clone(), "g", observer).label(name);
        let (given, owner) = (self.given.clone(), name.to_owned());
        let consumer = set(builder).start(move |delivery: Delivery<u64>| {
            let key = delivery.key().and_then(|key| Some(u64::from_le_bytes(key[..].try_into().ok()?)));
            given.lock().expect("lock").push((key.expect("a key"), delivery.payload, owner.clone()));
            async move {
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
            }
        });
        Instance { name: name.to_owned(), link, consumer: consumer.await.expect("started") }
    }

    pub async fn balanced(&self, sizes: &[usize]) {
        let what = || format!("{sizes:?}, but {:?}: {:#?}", self.history.sizes(), self.told.all());
        eventually(|| self.history.sizes() == sizes, what).await;
    }

    /// Sends numbers under 50 keys, one per millisecond, until it is stopped; returns how many.
    pub async fn load(&self) -> Load {
        let observer = Arc::new(Told::default());
        let producer = ProducerBuilder::new(self.backend.clone(), self.topic.clone(), observer).await;
        let (producer, stop) = (producer.expect("a producer"), Arc::new(tokio::sync::Notify::new()));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let stopped = stopped.notified();
            tokio::pin!(stopped);
            for n in 0_u64.. {
                let record = Record::new(&n).key((n % 50).to_le_bytes());
                let sent: Vec<Result<MessageId, _>> = producer
                    .send_all([record])
                    .await
                    .into_iter()
                    .map(|sent| sent.map(|sent| sent.id))
                    .collect();
                assert!(sent.iter().all(Result::is_ok), "{sent:?}");
                tokio::select! {
                    biased;
                    () = &mut stopped => return n + 1,
                    () = tokio::time::sleep(MS(1)) => {}
                }
            }
            unreachable!("numbers do not end")
        });
        Load { stop, task }
    }

    pub fn count(&self) -> usize {
        self.given.lock().expect("lock").len()
    }

    /// Each number exactly once, and in the order of its key.
    pub fn assert_once_in_order(&self, sent: u64) {
        let given = self.given.lock().expect("lock");
        let mut last = BTreeMap::new();
        for (key, n, by) in &*given {
            if let Some(before) = last.insert(key, n) {
                assert!(before < n, "{n} came to {by} after {before}");
            }
        }
        assert_eq!(given.len() as u64, sent, "nothing twice, nothing lost");
    }

    pub fn distinct(&self) -> usize {
        self.given.lock().expect("lock").iter().map(|(_, n, _)| *n).collect::<BTreeSet<_>>().len()
    }
}

pub struct Load {
    stop: Arc<tokio::sync::Notify>,
    task: JoinHandle<u64>,
}

impl Load {
    pub async fn stop(self) -> u64 {
        self.stop.notify_one();
        self.task.await.expect("no panic")
    }
}
