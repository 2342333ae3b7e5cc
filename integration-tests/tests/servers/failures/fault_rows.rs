//! Faults of servers, disks, links, clocks and other people, each on private servers with two consumers at work. Tests name
//! them by the numbers of `docs/faults.toml`.
//!
//! What must hold in all of them: what was confirmed is handled, no attempt is used up by what is nobody's fault, loops go
//! on, and connections do not pile up.

mod access;
mod clocks;
mod disk;
mod links;
mod mixed;
mod replicas;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use integration_tests::HANG;
use integration_tests::server::Server;
use millstream::{
    Concurrency, Consumer, Delivery, Error, Event, Fixed, MessageId, Millstream, Outcome, Producer, Record,
    Topic,
};
use serde::{Deserialize, Serialize};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const PARTITIONS: u32 = 4;
const TOPIC: Topic<Item> = Topic::new("items").partitions(PARTITIONS);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Item {
    number: u64,
    pad: String,
}

/// One handling of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    pub(crate) attempt: u32,
    pub(crate) epoch: u64,
}

type Handled = Arc<Mutex<BTreeMap<u64, Vec<Call>>>>;

/// A producer and two consumers, and all their events.
pub(crate) struct Pair {
    pub(crate) mq: Millstream,
    pub(crate) producer: Producer<Item>,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) handled: Handled,
    told: Arc<Mutex<Vec<String>>>,
    /// The numbers whose send was confirmed, with where they are.
    pub(crate) confirmed: BTreeMap<u64, (u32, MessageId)>,
    /// The sends that were not, and why.
    pub(crate) refused: Vec<(u64, Error)>,
    /// Every tenth message fails once, on purpose.
    pub(crate) failing: bool,
    next: u64,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} confirmed, {} refused", self.confirmed.len(), self.refused.len())
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) ttl: Duration,
    /// How long a handler takes.
    pub(crate) takes: Duration,
    /// Whether every tenth message fails once.
    pub(crate) failing: bool,
    /// For how long a send is tried.
    pub(crate) time_limit: Duration,
}

impl Default for Work {
    fn default() -> Self {
        Self { ttl: MS(2_000), takes: MS(2), failing: false, time_limit: MS(15_000) }
    }
}

impl Pair {
    pub(crate) async fn begin(url: &str, work: Work) -> Self {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let observer = {
            let told = told.clone();
            move |event: &Event<'_>| {
                if !matches!(event, Event::Handled { .. } | Event::Fetched { .. } | Event::Settled { .. }) {
                    told.lock().expect("lock").push(format!("{event:?}"));
                }
            }
        };
        let mq = Millstream::at(url).observer(observer).await.expect("connected");
        let producer = mq.producer(TOPIC).delivery_timeout(work.time_limit).await.expect("a producer");
        let handled = Handled::default();
        let mut consumers = Vec::new();
        for _ in 0..2 {
            let handled = handled.clone();
            let consumer = mq
                .consumer(TOPIC, "g")
                .concurrency(Concurrency::Unordered(8))
                // A second attempt only where one fails on purpose: then a fault that uses up attempts makes dead letters.
                .retry(Fixed::new(MS(20)).attempts(if work.failing { 2 } else { 1 }))
                .lease_ttl(work.ttl)
                .start(move |delivery: Delivery<Item>| {
                    let number = delivery.payload.number;
                    let call =
                        Call { at: Instant::now(), attempt: delivery.attempt(), epoch: delivery.epoch() };
                    handled.lock().expect("lock").entry(number).or_default().push(call);
                    async move {
                        tokio::time::sleep(work.takes).await;
                        let fails = work.failing && number % 10 == 3 && call.attempt == 1;
                        if fails { Outcome::retry("once") } else { Outcome::Ack }
                    }
                });
            consumers.push(consumer.await.expect("started"));
        }
        let (confirmed, refused, failing) = (BTreeMap::new(), Vec::new(), work.failing);
        let mut pair = Self { mq, producer, consumers, handled, told, confirmed, refused, failing, next: 0 };
        pair.send(40).await;
        pair.all_handled().await;
        pair
    }

    /// Sends numbers, all at once, and remembers those that were confirmed; how many.
    pub(crate) async fn send(&mut self, count: u64) -> usize {
        self.send_large(count, 0).await
    }

    /// The same with bodies of so many bytes.
    pub(crate) async fn send_large(&mut self, count: u64, bytes: usize) -> usize {
        let items: Vec<Item> =
            (self.next..self.next + count).map(|number| Item { number, pad: "x".repeat(bytes) }).collect();
        self.next += count;
        let records = items.iter().map(|item| {
            let partition = u32::try_from(item.number % u64::from(PARTITIONS)).expect("small");
            Record::new(item).partition(partition)
        });
        let mut confirmed = 0;
        for (item, sent) in items.iter().zip(self.producer.send_all(records).await) {
            match sent {
                Ok(sent) => {
                    confirmed += 1;
                    self.confirmed.insert(item.number, (sent.partition.0, sent.id));
                }
                Err(error) => self.refused.push((item.number, error)),
            }
        }
        confirmed
    }

    /// Confirmed numbers that were not handled.
    pub(crate) fn missing(&self) -> BTreeSet<u64> {
        let handled = self.handled.lock().expect("lock");
        self.confirmed.keys().filter(|number| !handled.contains_key(number)).copied().collect()
    }

    /// Waits until all that was confirmed is handled and nothing is left to do.
    pub(crate) async fn all_handled(&self) {
        self.all_handled_but(&BTreeSet::new()).await;
    }

    /// The same, of all but those that the server has lost.
    pub(crate) async fn all_handled_but(&self, lost: &BTreeSet<u64>) {
        let deadline = Instant::now() + HANG;
        loop {
            let missing: BTreeSet<u64> = self.missing().difference(lost).copied().collect();
            let left = match self.mq.stats(&TOPIC, "g").await {
                Ok(stats) => stats.iter().map(|p| p.pending + p.retrying).sum::<u64>(),
                Err(_) => 1,
            };
            if missing.is_empty() && left == 0 {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{} are not handled, {left} are left: {missing:?}; {:#?}",
                missing.len(),
                self.last_told()
            );
            tokio::time::sleep(MS(10)).await;
        }
    }

    pub(crate) fn told(&self, what: &str) -> usize {
        self.told.lock().expect("lock").iter().filter(|line| line.contains(what)).count()
    }

    pub(crate) fn last_told(&self) -> Vec<String> {
        let told = self.told.lock().expect("lock");
        told[told.len().saturating_sub(15)..].to_vec()
    }

    /// Waits until an event occurs.
    pub(crate) async fn tells(&self, what: &str) {
        let deadline = Instant::now() + HANG;
        while self.told(what) == 0 {
            assert!(Instant::now() < deadline, "{what:?} is not told: {:#?}", self.last_told());
            tokio::time::sleep(MS(10)).await;
        }
    }

    /// How often messages were handled more than their planned failures explain.
    pub(crate) fn doubled(&self) -> usize {
        let handled = self.handled.lock().expect("lock");
        let planned = |number: u64| if self.failing && number % 10 == 3 { 2 } else { 1 };
        handled.iter().map(|(number, calls)| calls.len().saturating_sub(planned(*number))).sum()
    }

    /// It works as before: everything is stored and handled, and the consumers end in order. No attempt was used up.
    pub(crate) async fn lives_on(self) {
        self.lives_on_but(&BTreeSet::new()).await;
    }

    /// The same, without what the server has lost.
    pub(crate) async fn lives_on_but(mut self, lost: &BTreeSet<u64>) {
        let deadline = Instant::now() + HANG;
        while self.send(8).await < 8 {
            assert!(Instant::now() < deadline, "sends are refused: {:?}", self.refused.last());
            tokio::time::sleep(MS(200)).await;
        }
        assert_eq!(self.send(100).await, 100, "{:?}", self.refused.last());
        self.all_handled_but(lost).await;
        let most = if self.failing { 2 } else { 1 };
        for (number, calls) in &*self.handled.lock().expect("lock") {
            assert!(calls.iter().all(|call| call.attempt <= most), "{number} has used attempts: {calls:?}");
        }
        for consumer in self.consumers {
            let report = consumer.shutdown().await;
            assert_eq!(report.dead, 0, "no fault of others uses up an attempt: {report:?}");
        }
    }
}

/// How many clients a server has, this question not among them.
pub(crate) fn clients(server: &Server) -> usize {
    server.cli(&["CLIENT", "LIST"]).lines().filter(|line| !line.trim().is_empty()).count() - 1
}
