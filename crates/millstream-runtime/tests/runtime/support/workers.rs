//! A team: instances that share the partitions of a topic, some of which die.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::{Backend, Outcome, PackCompression, Packing, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_memory::MemoryBackend;
use millstream_runtime::{
    Concurrency, Consumer, ConsumerBuilder, Delivery, ProducerBuilder, Record, Report, Sharing,
};
use tokio::time::Instant;

use super::link::{Link, link};
use super::{MS, Told, eventually};

pub const TTL: Duration = Duration::from_secs(10);

/// One call of a handler.
#[derive(Clone, Debug)]
pub struct Call {
    pub number: u64,
    pub by: String,
    pub attempt: u32,
    pub deliveries: u32,
    pub began: Instant,
    /// Its end, and whether it was cancelled by then; `None` if its instance died first.
    pub ended: Option<(Instant, bool)>,
}

pub struct Workers {
    pub memory: MemoryBackend,
    pub backend: Backend,
    pub topic: Topic<u64>,
    pub told: Told,
    pub calls: Arc<Mutex<Vec<Call>>>,
}

pub struct Mate {
    pub link: Arc<Link>,
    pub consumer: Consumer,
    dead: Arc<AtomicBool>,
}

impl Mate {
    /// From now on it does nothing, and reaches no other client.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.link.cut();
    }

    pub async fn leave(self) -> Report {
        self.consumer.shutdown().await
    }
}

/// What a handler does with a number: how long it takes, and what it says.
pub type Does = fn(&Delivery<u64>) -> (Duration, Outcome);

/// Two messages at once, and a prefetch of three.
pub fn few(builder: ConsumerBuilder<u64>) -> ConsumerBuilder<u64> {
    builder.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(2)).prefetch(3).lease_ttl(TTL)
}

impl Workers {
    pub fn new(partitions: u32) -> Self {
        let memory = MemoryBackend::new();
        let backend = Backend::from(memory.clone());
        let topic = Topic::new("orders").partitions(partitions);
        Self { memory, backend, topic, told: Told::default(), calls: Arc::default() }
    }

    /// Like [`new`](Self::new), with packs of 40 messages at the most.
    pub fn packed(partitions: u32) -> Self {
        let packing = Packing::new().compression(PackCompression::None).min_messages(2).max_messages(40);
        let team = Self::new(partitions);
        Self { topic: team.topic.packed(packing), ..team }
    }

    pub fn builder(&self, name: &str) -> (Arc<Link>, ConsumerBuilder<u64>) {
        let (link, backend) = link(&self.backend);
        let promoter = Promoter::new(&backend, PromoterConfig::default());
        let told = Arc::new(self.told.clone());
        let builder =
            ConsumerBuilder::new(backend, self.topic.clone(), "g", told).label(name).upkeep(promoter);
        (link, builder)
    }

    /// One more instance.
    pub async fn join(
        &self,
        name: &str,
        does: Does,
        set: impl FnOnce(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>,
    ) -> Mate {
        let (link, builder) = self.builder(name);
        let dead = Arc::new(AtomicBool::new(false));
        let (calls, by, gone, line) = (self.calls.clone(), name.to_owned(), dead.clone(), link.clone());
        let consumer = set(builder).start(move |delivery: Delivery<u64>| {
            let (calls, by, gone, line) = (calls.clone(), by.clone(), gone.clone(), line.clone());
            async move {
                let (number, attempt) = (delivery.payload, delivery.attempt());
                let deliveries = delivery.deliveries();
                let call = Call { number, by, attempt, deliveries, began: Instant::now(), ended: None };
                let place = {
                    let mut calls = calls.lock().expect("lock");
                    calls.push(call);
                    calls.len() - 1
                };
                let (takes, says) = does(&delivery);
                let told = tokio::select! {
                    biased;
                    () = delivery.cancelled() => true,
                    () = tokio::time::sleep(takes) => false,
                };
                line.awake().await;
                if gone.load(Ordering::Relaxed) {
                    return std::future::pending().await;
                }
                calls.lock().expect("lock")[place].ended = Some((Instant::now(), told));
                says
            }
        });
        Mate { link, consumer: consumer.await.expect("started"), dead }
    }

    /// Sends numbers, to one partition after the other.
    pub async fn send(&self, numbers: impl IntoIterator<Item = u64>) {
        let producer =
            ProducerBuilder::new(self.backend.clone(), self.topic.clone(), Arc::new(Told::default()));
        let producer = producer.await.expect("a producer");
        let numbers: Vec<u64> = numbers.into_iter().collect();
        for sent in producer.send_all(numbers.iter().map(Record::new)).await {
            sent.expect("sent");
        }
    }

    /// Sends numbers to one partition. On a packed topic they are packs.
    pub async fn send_to(&self, partition: u32, numbers: impl IntoIterator<Item = u64>) {
        let producer =
            ProducerBuilder::new(self.backend.clone(), self.topic.clone(), Arc::new(Told::default()));
        let producer = producer.await.expect("a producer");
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let records = numbers.iter().map(|number| Record::new(number).partition(partition));
        for sent in producer.send_all(records).await {
            sent.expect("sent");
        }
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("lock").clone()
    }

    /// The numbers whose handlers have ended, with how often they have.
    pub fn done(&self) -> BTreeMap<u64, usize> {
        let mut done = BTreeMap::new();
        for call in self.calls().iter().filter(|call| call.ended.is_some_and(|(_, told)| !told)) {
            *done.entry(call.number).or_default() += 1;
        }
        done
    }

    pub async fn all_done(&self, count: usize) {
        eventually(|| self.done().len() >= count, || format!("{count} done of {:#?}", self.calls())).await;
    }

    pub async fn begun(&self, by: &str, count: usize) -> Vec<Call> {
        let of = || -> Vec<Call> { self.calls().into_iter().filter(|call| call.by == by).collect() };
        eventually(|| of().len() >= count, || format!("{count} of {by} in {:#?}", self.calls())).await;
        of()
    }

    pub fn by(&self) -> BTreeSet<String> {
        self.calls().into_iter().map(|call| call.by).collect()
    }

    /// Nothing is pending, nothing unread.
    pub async fn assert_at_rest(&self) {
        let topic = self.backend.catalog().topic(&"orders".parse().expect("name")).await.expect("a topic");
        let group = "g".parse().expect("name");
        let settled = async || {
            let stats = self.backend.catalog().stats(&topic, &group).await.expect("stats");
            stats.iter().all(|stats| stats.pending == 0 && stats.lag == Some(0) && stats.retrying == 0)
        };
        for _ in 0..1_000 {
            if settled().await {
                return;
            }
            tokio::time::sleep(MS(1)).await;
        }
        panic!("{:#?}", self.backend.catalog().stats(&topic, &group).await);
    }
}
