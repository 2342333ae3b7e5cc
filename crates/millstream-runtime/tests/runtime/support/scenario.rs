//! What handlers were given, when, and what ran beside what; and consumers that can be cut off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::catalog::PartitionStats;
use millstream_core::{Backend, ErrorKind, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{ConsumerBuilder, Delivery, Record};
use tokio::time::Instant;

use super::link::{Link, link};
use super::{Bench, NUMBERS, eventually};

/// One call of a handler.
#[derive(Clone, Debug)]
pub struct Call {
    pub value: u64,
    pub key: Option<String>,
    pub partition: u32,
    pub attempt: u32,
    pub began: Instant,
    pub ended: Option<Instant>,
}

/// All calls, in the order in which they began.
#[derive(Clone, Default)]
pub struct Scenario(Arc<Mutex<Vec<Call>>>);

/// A call that is under way. Dropped, it has ended.
pub struct Running(Scenario, usize);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.lock().expect("lock")[self.1].ended = Some(Instant::now());
    }
}

impl Scenario {
    pub fn begin(&self, delivery: &Delivery<u64>) -> Running {
        let mut calls = self.0.lock().expect("lock");
        calls.push(Call {
            value: delivery.payload,
            key: delivery.key().map(|key| String::from_utf8_lossy(key).into_owned()),
            partition: delivery.topic_partition().partition.0,
            attempt: delivery.attempt(),
            began: Instant::now(),
            ended: None,
        });
        Running(self.clone(), calls.len() - 1)
    }

    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().expect("lock").clone()
    }

    pub fn count(&self) -> usize {
        self.0.lock().expect("lock").len()
    }

    /// Value and attempt of every call.
    pub fn order(&self) -> Vec<(u64, u32)> {
        self.calls().iter().map(|call| (call.value, call.attempt)).collect()
    }

    /// The same, by key.
    pub fn by_key(&self) -> BTreeMap<String, Vec<(u64, u32)>> {
        let mut keys = BTreeMap::<String, Vec<_>>::new();
        for call in self.calls() {
            keys.entry(call.key.unwrap_or_default()).or_default().push((call.value, call.attempt));
        }
        keys
    }

    pub async fn until(&self, count: usize) {
        eventually(|| self.count() >= count, || format!("{count} calls of {:?}", self.order())).await;
    }

    /// The most calls that were under way at one moment, among those that are chosen.
    pub fn at_once(&self, choose: impl Fn(&Call) -> bool) -> usize {
        let calls: Vec<_> = self.calls().into_iter().filter(choose).collect();
        let running = |at: Instant| {
            let under_way = |call: &&Call| call.began <= at && call.ended.is_none_or(|ended| ended > at);
            calls.iter().filter(under_way).count()
        };
        calls.iter().map(|call| running(call.began)).max().unwrap_or(0)
    }
}

/// A builder over a link that can be cut, with a promoter.
pub fn linked(bench: &Bench, topic: Topic<u64>) -> (Arc<Link>, ConsumerBuilder<u64>) {
    let (link, backend) = link(&bench.backend);
    (link, over(bench, backend, topic))
}

fn over(bench: &Bench, backend: Backend, topic: Topic<u64>) -> ConsumerBuilder<u64> {
    let promoter = Promoter::new(&backend, PromoterConfig::default());
    ConsumerBuilder::new(backend, topic, "g", Arc::new(bench.told.clone())).upkeep(promoter)
}

/// Sends values under keys, in this order. An empty key is none.
pub async fn send(bench: &Bench, messages: &[(&str, u64)]) {
    let producer = bench.producer(NUMBERS).await;
    let record = |(key, value)| {
        let record = Record::new(value);
        if str::is_empty(key) { record } else { record.key(key) }
    };
    let sent = producer.send_all(messages.iter().map(|(key, value)| record((*key, value)))).await;
    assert!(sent.iter().all(Result::is_ok));
}

/// One that fails settlements from now on, so many times.
pub fn fail_settles(bench: &Bench, times: usize) {
    bench.log.settle_failures.lock().expect("lock").extend(vec![ErrorKind::Unavailable; times]);
}

pub async fn stats(bench: &Bench) -> PartitionStats {
    let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let mut stats = bench.backend.catalog().stats(&topic, &"g".parse().expect("name")).await.expect("stats");
    stats.remove(0)
}

/// Never ends.
pub async fn for_ever() {
    tokio::time::sleep(Duration::from_secs(1_000_000)).await;
}
