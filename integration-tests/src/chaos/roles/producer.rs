//! A producer of messages and tasks. Each key has a task of its own, which awaits one send after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use millstream::delay::DelayQueue;
use millstream::{Durability, ErrorKind, Event, Producer};

use super::{Setup, Sink, What, retried};
use crate::chaos::record::{Fate, Message, Outcome};
use crate::chaos::setup::{Job, ORDERS, SHARDS, TASKS, orders};

/// Keys of a producer.
const KEYS: u64 = 20;

/// How long messages wait for others of their pack, if the topic is packed.
const LINGER: Duration = Duration::from_millis(50);

struct Sender {
    setup: Setup,
    sink: Arc<Sink>,
    producer: Producer<Job>,
    queue: DelayQueue<Job>,
    next: AtomicU64,
    ends: AtomicBool,
}

pub(super) async fn run(
    setup: &Setup,
    number: u32,
    sink: &Arc<Sink>,
    ended: impl Future<Output = ()>,
) -> Result<()> {
    let mq = retried(|| setup.connect(|_: &Event<'_>| {})).await;
    let producer = retried(async || {
        // A send that is not answered is not known to be stored: the run has to see that.
        let producer = mq.producer(orders(setup.packed)).delivery_timeout(Duration::from_secs(3));
        let linger = if setup.packed { LINGER } else { Duration::ZERO };
        let producer = producer.linger(linger);
        // Ten times that: so long ids are kept, and a run in which nothing grows begins after it.
        producer.dedup_window(Duration::from_secs(30)).await
    })
    .await;
    let queue = retried(async || DelayQueue::<Job>::new(TASKS).shards(SHARDS).open(mq.backend()).await).await;
    // Numbers of a key increase over the lives of the process.
    let first = u64::from(number) << 48 | u64::from(setup.life) << 32;
    let sender = Arc::new(Sender {
        setup: setup.clone(),
        sink: sink.clone(),
        producer,
        queue,
        next: AtomicU64::new(first),
        ends: AtomicBool::new(false),
    });
    let mut random = fastrand::Rng::with_seed(setup.seed);
    let keys = (0..KEYS).map(|key| {
        let (sender, random) = (sender.clone(), random.fork());
        tokio::spawn(async move { sender.send_key(u64::from(number) * KEYS + key, random).await })
    });
    let keys: Vec<_> = keys.collect();
    ended.await;
    sender.ends.store(true, Ordering::Relaxed);
    for key in keys {
        key.await?;
    }
    Ok(())
}

impl Sender {
    /// Sends until the process ends: messages of this key, and now and then a delayed one, or a task.
    async fn send_key(&self, key: u64, mut random: fastrand::Rng) {
        while !self.ends.load(Ordering::Relaxed) {
            let fate = match random.u32(..1_000) {
                0..50 => Fate::Fail(1),
                50..60 => Fate::Fail(2),
                60..75 if self.setup.steady => Fate::Ack,
                60..70 => Fate::Reject,
                70..75 => Fate::Hopeless,
                75..105 => Fate::Flaky,
                105..400 if self.setup.slow => Fate::Flaky,
                _ => Fate::Ack,
            };
            let work_ms = match random.u32(..1_000) {
                // Of these it matters which process fails: each takes long enough to be taken over.
                _ if self.setup.slow && fate == Fate::Flaky => {
                    random.u64(self.setup.ttl_ms / 4..self.setup.ttl_ms)
                }
                0..50 if self.setup.slow => random.u64(self.setup.ttl_ms / 5..self.setup.ttl_ms),
                0..2 => self.setup.ttl_ms * 3 / 2,
                2..20 => random.u64(50..300),
                _ => random.u64(..4),
            };
            let (number, delay_ms) = (self.next.fetch_add(1, Ordering::Relaxed), random.u64(50..2_000));
            match random.u32(..10) {
                0 => self.delayed(number, delay_ms, fate, work_ms, false).await,
                1 => self.delayed(number, delay_ms, fate, work_ms, true).await,
                2..5 if self.setup.slow => self.delayed(number, delay_ms, fate, work_ms, true).await,
                _ => self.plain(number, key, fate, work_ms).await,
            }
            let pause_ms = if self.setup.slow { 5 * self.setup.pause_ms } else { self.setup.pause_ms }.max(1);
            tokio::time::sleep(Duration::from_millis(random.u64(1..2 * pause_ms))).await;
        }
    }

    async fn plain(&self, number: u64, key: u64, fate: Fate, work_ms: u64) {
        // Every other key waits for replicas, where there are some; without, there is no fail-over. For all of them: one of two
        // may still follow a primary that the other one has replaced, and confirm what is lost then.
        let replicas = self.setup.replicas;
        let waits = replicas > 0 && key % 2 == 1;
        let safe = waits || replicas == 0;
        self.begin(number, ORDERS, Some(key), 0, fate, safe);
        let job = Job::new(number, 0, fate, work_ms);
        let durability = if waits { Durability::Replicated(replicas) } else { Durability::Stored };
        let send = self.producer.send(&job).key(key.to_string());
        // A quarter is sent by an id, so that a lost answer is repeated, and stored once. None of these waits.
        let sent = match key.is_multiple_of(4) {
            true => send.dedup(number.to_string()).await,
            false => send.durability(durability).await,
        };
        let sent = sent.map(|sent| Outcome::Stored { partition: sent.partition.0, id: sent.id.to_string() });
        self.end(number, sent);
    }

    async fn delayed(&self, number: u64, delay_ms: u64, fate: Fate, work_ms: u64, is_task: bool) {
        let due_ms = self.setup.true_ms().unsigned_abs() + delay_ms;
        let to = if is_task { TASKS } else { ORDERS };
        self.begin(number, to, None, due_ms, fate, self.setup.replicas == 0);
        let job = Job::new(number, due_ms, fate, work_ms);
        let delay = Duration::from_millis(delay_ms);
        let stored = |partition: u32| Outcome::Stored { partition, id: String::new() };
        // Relative to the server's clock: it is read after this one, so the message is due at `due_ms` or later.
        let sent = if is_task {
            self.queue.schedule(&job).delay(delay).id(number.to_string()).await.map(|_| stored(0))
        } else {
            self.producer.send(&job).delay(delay).await.map(|_| stored(0))
        };
        self.end(number, sent);
    }

    fn begin(&self, number: u64, to: &str, key: Option<u64>, due_ms: u64, fate: Fate, safe: bool) {
        let producer = self.setup.name.clone();
        let to = to.to_owned();
        self.sink.write(What::Sending(Message { number, to, producer, key, due_ms, fate, safe }));
    }

    fn end(&self, number: u64, sent: Result<Outcome, millstream::Error>) {
        let outcome = sent.unwrap_or_else(|error| match error.kind() {
            ErrorKind::Unconfirmed => Outcome::Unknown(error.to_string()),
            _ => Outcome::Refused(error.to_string()),
        });
        self.sink.write(What::Sent { number, outcome });
    }
}
