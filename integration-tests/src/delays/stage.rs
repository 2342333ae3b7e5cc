//! Two instances that handle due items, in this process and on their own server, and the events that they emit. For
//! tests of faults, on both sides of the delay engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream::{
    Consumer, Delivery, Event, Exponential, Millstream, Outcome, Producer, Record, Result, Topic,
};
use millstream_core::keys::Keys;
use millstream_core::{Place, QueueName, Shard, Timestamp, TopicPartition};
use millstream_delay::{DelayQueue, Task, TaskRecord, Worker};
use serde::{Deserialize, Serialize};

use super::{Engine, wall_ms_in, wall_us};
use crate::server::Server;
use crate::{HANG, eventually};

const ITEMS: Topic<Item> = Topic::new("items").partitions(2);

/// The longest sleep of the workers of a queue in these tests; promoters of consumers have 15 s.
pub const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The time for which a producer retries.
pub const TIME_LIMIT: Duration = Duration::from_secs(2);

/// An item that becomes due.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Item {
    /// The number of the item.
    pub number: u64,
    /// The due time, in milliseconds since 1970.
    pub due_ms: u64,
}

/// The instances and their results.
pub struct Stage {
    /// Their server.
    pub server: Server,
    /// The side of the delay engine.
    pub engine: Engine,
    /// The connection of the test.
    pub mq: Millstream,
    /// The lateness of each item, in microseconds, once for each time that it was handled.
    pub came: Arc<Mutex<BTreeMap<u64, Vec<i64>>>>,
    /// While true, handlers fail.
    pub outage: Arc<Mutex<bool>>,
    told: Arc<Mutex<Vec<String>>>,
    producer: Producer<Item>,
    queue: DelayQueue<Item>,
    consumers: Vec<Consumer>,
    workers: Vec<Worker>,
    next: u64,
}

impl Stage {
    /// Starts two idle instances.
    ///
    /// # Panics
    /// If they do not start.
    pub async fn begin(server: Server, engine: Engine) -> Self {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let observer = {
            let told = told.clone();
            move |event: &Event<'_>| {
                if !matches!(event, Event::Handled { .. } | Event::Fetched { .. } | Event::Worked { .. }) {
                    told.lock().expect("lock").push(format!("{event:?}"));
                }
            }
        };
        let mq = Millstream::at(server.url()).observer(observer.clone()).await.expect("connected");
        let producer = mq.producer(ITEMS).delivery_timeout(TIME_LIMIT).await.expect("a producer");
        let queue = DelayQueue::<Item>::new("items").shards(2).observer(observer);
        let queue = queue.open(mq.backend()).await.expect("opened");
        let (came, outage) = (Arc::default(), Arc::default());
        let (consumers, workers) = (Vec::new(), Vec::new());
        let mut stage =
            Self { server, engine, mq, came, outage, told, producer, queue, consumers, workers, next: 0 };
        for _ in 0..2 {
            stage.join().await;
        }
        // Waits until an item is handled, so that every place has an owner and every connection exists.
        stage.schedule(&[Duration::from_millis(10); 20]).await;
        stage.all_came().await;
        stage
    }

    /// Starts another instance.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn join(&mut self) {
        let (came, outage) = (self.came.clone(), self.outage.clone());
        let handle = move |item: Item| {
            let late = wall_us() - item.due_ms.cast_signed() * 1_000;
            let failing = *outage.lock().expect("lock");
            if !failing {
                came.lock().expect("lock").entry(item.number).or_default().push(late);
            }
            async move { if failing { Outcome::retry("outage") } else { Outcome::Ack } }
        };
        let retry = Exponential::from(Duration::from_secs(1)).attempts(50);
        match self.engine {
            Engine::Topic => {
                let consumer = self.mq.consumer(ITEMS, "g").retry(retry).lease_ttl(Duration::from_secs(2));
                let consumer = consumer.start(move |it: Delivery<Item>| handle(it.payload)).await;
                self.consumers.push(consumer.expect("started"));
            }
            Engine::Queue => {
                let worker = self.queue.worker().retry(retry).hold(Duration::from_secs(2));
                let worker = worker.longest_sleep(LONGEST_SLEEP).concurrency(64);
                let worker = worker.start(move |it: Task<Item>| handle(it.payload)).await;
                self.workers.push(worker.expect("started"));
            }
        }
    }

    /// Schedules an item for each delay, and returns the numbers of the items with their results. A topic's producer
    /// gives up after [`TIME_LIMIT`].
    pub async fn try_schedule(&mut self, delays: &[Duration]) -> Vec<(u64, Result<()>)> {
        let items = self.items(delays);
        let done = self.send(&items).await;
        items.iter().map(|item| item.number).zip(done).collect()
    }

    /// Schedules an item for each delay, again if no reply arrived. That has no effect on stored items, as each has
    /// its id.
    ///
    /// # Panics
    /// If one is refused.
    pub async fn schedule(&mut self, delays: &[Duration]) {
        let items = self.items(delays);
        let again = |done: &[Result<()>]| {
            done.iter().any(|one| one.as_ref().is_err_and(millstream::Error::is_transient))
        };
        let mut done = self.send(&items).await;
        for _ in 0..5 {
            if again(&done) {
                done = self.send(&items).await;
            }
        }
        done.into_iter().for_each(|one| one.expect("scheduled"));
    }

    fn items(&mut self, delays: &[Duration]) -> Vec<Item> {
        let first = self.next;
        self.next += delays.len() as u64;
        (first..).zip(delays).map(|(number, delay)| Item { number, due_ms: wall_ms_in(*delay) }).collect()
    }

    async fn send(&self, items: &[Item]) -> Vec<Result<()>> {
        match self.engine {
            Engine::Topic => {
                let records = items.iter().map(|item| {
                    let partition = u32::from(item.number % 2 == 1);
                    Record::new(item)
                        .partition(partition)
                        .at(Timestamp::from_millis(item.due_ms))
                        .id(id(item.number))
                });
                let sent = self.producer.send_all_delayed(records).await;
                sent.into_iter().map(|sent| sent.map(drop)).collect()
            }
            Engine::Queue => {
                let records = items.iter().map(|item| {
                    TaskRecord::new(item).at(Timestamp::from_millis(item.due_ms)).id(id(item.number))
                });
                let scheduled = self.queue.schedule_all(records).await;
                scheduled.into_iter().map(|one| one.map(drop)).collect()
            }
        }
    }

    /// Returns the place of an item whose place follows from its number alone.
    ///
    /// # Panics
    /// If there is no such place.
    #[must_use]
    pub fn place(&self, number: u64) -> Place {
        match self.engine {
            Engine::Topic => {
                let topic = ITEMS.spec().expect("a topic").name;
                TopicPartition::new(topic, u32::from(number % 2 == 1)).into()
            }
            Engine::Queue => {
                let spec = millstream_core::QueueSpec::new(self.queue.name().clone(), 2);
                spec.shard_of(&id(number).parse().expect("an id")).into()
            }
        }
    }

    /// Returns all places.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        let topic = ITEMS.spec().expect("a topic").name;
        let queue = QueueName::new("items").expect("a name");
        (0..2)
            .map(|nth| match self.engine {
                Engine::Topic => TopicPartition::new(topic.clone(), nth).into(),
                Engine::Queue => Shard::new(queue.clone(), nth).into(),
            })
            .collect()
    }

    /// Returns the key names of the server's data.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys::new()
    }

    /// Waits until every scheduled item was handled, except those that a test excludes.
    ///
    /// # Panics
    /// If they are not, or if one was early.
    pub async fn all_came_but(&self, but: &[u64]) -> Vec<i64> {
        let missing = || {
            let came = self.came.lock().expect("lock");
            (0..self.next)
                .filter(|number| !came.contains_key(number) && !but.contains(number))
                .collect::<Vec<_>>()
        };
        let deadline = Instant::now() + HANG;
        while !missing().is_empty() {
            assert!(Instant::now() < deadline, "these did not come: {:?}; told {:?}", missing(), self.told());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let came = self.came.lock().expect("lock");
        let late: Vec<i64> = came.values().flatten().copied().collect();
        assert!(late.iter().all(|late| *late >= 0), "none is early: {came:?}");
        late
    }

    /// Waits until every scheduled item was handled. Returns the lateness in microseconds.
    ///
    /// # Panics
    /// As [`all_came_but`](Self::all_came_but).
    pub async fn all_came(&self) -> Vec<i64> {
        self.all_came_but(&[]).await
    }

    /// Returns the items that were handled more than once.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn doubled(&self) -> Vec<u64> {
        let came = self.came.lock().expect("lock");
        came.iter().filter(|(_, times)| times.len() > 1).map(|(number, _)| *number).collect()
    }

    /// Returns the events that were emitted.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        self.told.lock().expect("lock").clone()
    }

    /// Waits until an event is emitted.
    ///
    /// # Panics
    /// If it is not.
    pub async fn tells(&self, what: &str) {
        let told = async || self.told().iter().any(|line| line.contains(what));
        eventually(told, &format!("{what:?} is told")).await;
    }

    /// Returns the next number.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the queue, for tests of that side.
    #[must_use]
    pub fn queue(&self) -> &DelayQueue<Item> {
        &self.queue
    }

    /// Checks that everything works as before: items are handled without delay, and the instances shut down in an
    /// orderly way.
    ///
    /// # Panics
    /// If it does not.
    pub async fn lives_on(mut self) {
        let missing: Vec<u64> = (0..self.next).collect();
        self.schedule(&[Duration::from_millis(100); 50]).await;
        self.all_came_but(&missing).await;
        for consumer in self.consumers {
            consumer.shutdown().await;
        }
        for worker in self.workers {
            worker.shutdown().await;
        }
    }
}

/// Returns the id of an item.
#[must_use]
pub fn id(number: u64) -> String {
    format!("item-{number}")
}
