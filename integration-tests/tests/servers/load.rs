//! Producers and consumers of one topic on servers that change, and what must hold in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use integration_tests::eventually;
use millstream::{ConsumerConfig, Delivery, Durability, ErrorKind, Millstream, Retention, Topic};
use millstream_core::TopicPartition;
use millstream_core::keys::Keys;

pub(crate) const PARTITIONS: u32 = 12;
const KEYS: u64 = 24;
const JOBS: Topic<(u64, u64)> = Topic::new("jobs").partitions(PARTITIONS).retention(Retention::Keep);

/// A message: its key, and its number among those of the key.
type Job = (u64, u64);

/// How the messages are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sends {
    Plain,
    /// Every other key waits for a replica with each send.
    Replicated,
    /// Each is stored once and repeated if its answer is lost: every other key with dedup ids, the others with numbers of
    /// the producer.
    Deduplicated,
}

/// Whether the sends of a key wait for a replica, where there are some.
fn is_replicated(key: u64) -> bool {
    key % 2 == 1
}

/// What became of the sends.
#[derive(Default)]
struct Sent {
    stored: Mutex<BTreeMap<Job, Instant>>,
    unconfirmed: Mutex<BTreeSet<Job>>,
    refused: Mutex<Vec<String>>,
}

/// Producers and consumers of one topic, in this process.
pub(crate) struct Load {
    mq: Millstream,
    sends: Sends,
    sent: Arc<Sent>,
    handled: Arc<Mutex<Vec<Job>>>,
    stop: Arc<AtomicBool>,
    senders: Vec<tokio::task::JoinHandle<()>>,
    consumers: Vec<millstream::Consumer>,
}

/// Messages of a while: how many were confirmed, and how many were handled in the same seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    confirmed: usize,
    handled: usize,
    time: Duration,
}

impl Pace {
    /// Whether it is worked off as fast as it comes. That compares nothing with another moment, in which the machine may have
    /// been faster or slower.
    fn keeps_up(self) -> bool {
        self.confirmed > KEYS as usize && self.handled * 5 >= self.confirmed * 4
    }

    /// Handled messages a second.
    fn rate(self) -> f64 {
        self.handled as f64 / self.time.as_secs_f64()
    }
}

impl Load {
    /// On servers with replicas: every other key waits for one with each send, and loses nothing.
    pub(crate) async fn replicated(url: &str) -> Self {
        Self::with(Millstream::connect(url).await.expect("connected"), Sends::Replicated).await
    }

    pub(crate) async fn on(mq: Millstream) -> Self {
        Self::with(mq, Sends::Plain).await
    }

    /// Each send is repeated by the producer and stored once.
    pub(crate) async fn deduplicated(url: &str) -> Self {
        Self::with(Millstream::connect(url).await.expect("connected"), Sends::Deduplicated).await
    }

    async fn with(mq: Millstream, sends: Sends) -> Self {
        let (sent, handled) = (Arc::new(Sent::default()), Arc::new(Mutex::new(Vec::new())));
        let mut consumers = Vec::new();
        for _ in 0..2 {
            let log = handled.clone();
            let mut config = ConsumerConfig::default();
            (config.lease_ttl, config.max_wait) = (Duration::from_secs(3), Duration::from_millis(500));
            let consumer = mq.consumer(JOBS, "g").config(config).start(move |job: Delivery<Job>| {
                let log = log.clone();
                async move {
                    log.lock().expect("lock").push(job.payload);
                    Ok::<(), millstream::Error>(())
                }
            });
            consumers.push(consumer.await.expect("a consumer"));
        }
        let producer = mq.producer(JOBS).idempotent(sends == Sends::Deduplicated).await.expect("a producer");
        let stop = Arc::new(AtomicBool::new(false));
        let senders = (0..KEYS).map(|key| {
            let (producer, sent, stop) = (producer.clone(), sent.clone(), stop.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let job = (key, n);
                    let waits = sends == Sends::Replicated && is_replicated(key);
                    let durability = if waits { Durability::Replicated(1) } else { Durability::Stored };
                    let send = producer.send(&job).key(key.to_string());
                    let stored = if sends == Sends::Deduplicated && key % 2 == 0 {
                        send.dedup(format!("{key}-{n}")).await
                    } else {
                        send.durability(durability).await
                    };
                    match stored {
                        Ok(_) => drop(sent.stored.lock().expect("lock").insert(job, Instant::now())),
                        Err(error) if error.kind() == ErrorKind::Unconfirmed => {
                            sent.unconfirmed.lock().expect("lock").insert(job);
                        }
                        Err(error) => sent.refused.lock().expect("lock").push(error.to_string()),
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        });
        let senders = senders.collect();
        let load = Self { mq, sends, sent, handled, stop, senders, consumers };
        load.goes_on("messages are handled").await;
        load
    }

    /// Number of sends of which it is not known whether they were stored.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.sent.unconfirmed.lock().expect("lock").len()
    }

    /// Waits until every key was sent and handled once more.
    pub(crate) async fn goes_on(&self, what: &str) {
        self.go_on(|_| true, what).await;
    }

    /// Waits until every one of these keys was sent and handled once more.
    async fn go_on(&self, these: impl Fn(u64) -> bool, what: &str) {
        let counts = || {
            let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
            self.handled
                .lock()
                .expect("lock")
                .iter()
                .for_each(|(key, _)| *counts.entry(*key).or_default() += 1);
            counts
        };
        let before = counts();
        eventually(
            async || {
                let now = counts();
                (0..KEYS).filter(|key| these(*key)).all(|key| now.get(&key) > before.get(&key))
            },
            what,
        )
        .await;
    }

    /// Whether the sends of a key wait for a replica.
    fn waits(&self, key: u64) -> bool {
        self.sends == Sends::Replicated && is_replicated(key)
    }

    /// Counts messages for this time; without those that wait for a replica, which the death of a primary takes away for
    /// longer.
    pub(crate) async fn pace(&self, time: Duration) -> Pace {
        let count = || {
            let handled = self.handled.lock().expect("lock");
            let handled = handled.iter().filter(|(key, _)| !self.waits(*key)).count();
            let stored = self.sent.stored.lock().expect("lock");
            (stored.keys().filter(|(key, _)| !self.waits(*key)).count(), handled)
        };
        let (before, begun) = (count(), Instant::now());
        tokio::time::sleep(time).await;
        let after = count();
        Pace { confirmed: after.0 - before.0, handled: after.1 - before.1, time: begun.elapsed() }
    }

    /// Waits until the keys that wait for no replica go on behind a change that ended now, and are handled as fast as they are
    /// sent; prints how long both took, and which share of the rate `before` that is. Then waits for the other keys.
    pub(crate) async fn recovers(&self, before: Pace, what: &str) {
        let ended = Instant::now();
        self.go_on(|key| !self.waits(key), what).await;
        let went_on = ended.elapsed();
        let mut rate = 0.0;
        eventually(
            async || {
                let pace = self.pace(Duration::from_secs(1)).await;
                rate = pace.rate();
                pace.keeps_up()
            },
            "what is sent is handled as fast",
        )
        .await;
        println!(
            "{what}: {went_on:?}; {:.0} % of {:.0}/s within {:?}",
            100.0 * rate / before.rate(),
            before.rate(),
            ended.elapsed()
        );
        self.goes_on(what).await;
    }

    /// Stops sending, waits until everything is handled, and checks it. `logs` returns what `XRANGE` prints for a key.
    /// `tail`: times at which a primary was lost; what was stored up to a second before that may be lost with it, unless
    /// a replica had confirmed it.
    pub(crate) async fn end(self, tail: &[Instant], logs: impl Fn(&str) -> String) {
        self.stop.store(true, Ordering::Relaxed);
        for sender in self.senders {
            sender.await.expect("a sender");
        }
        let refused = self.sent.refused.lock().expect("lock").clone();
        assert_eq!(refused, Vec::<String>::new(), "sends that failed without a doubt");
        let logged = logged(logs);
        let stored = self.sent.stored.lock().expect("lock").clone();
        let twice: Vec<_> = logged.iter().filter(|(_, times)| **times > 1).collect();
        assert_eq!(twice, [], "stored more than once");
        let unconfirmed = self.sent.unconfirmed.lock().expect("lock").clone();
        let strangers: Vec<_> =
            logged.keys().filter(|job| !stored.contains_key(job) && !unconfirmed.contains(job)).collect();
        assert_eq!(strangers, Vec::<&Job>::new(), "stored, and nobody was told");
        let replicated = self.sends == Sends::Replicated;
        let confirmed = stored.keys().filter(|(key, _)| is_replicated(*key)).count();
        assert!(confirmed > 0, "nothing that waits for a replica was ever confirmed");
        let in_tail = |key: u64, at: &Instant| {
            !(replicated && is_replicated(key))
                && tail.iter().any(|lost| *at <= *lost && lost.duration_since(*at) < Duration::from_secs(1))
        };
        let lost: Vec<_> =
            stored.iter().filter(|(job, at)| !logged.contains_key(job) && !in_tail(job.0, at)).collect();
        let ends = lost.iter().map(|(_, at)| *at).min().zip(lost.iter().map(|(_, at)| *at).max());
        assert!(
            lost.is_empty(),
            "{} of {} are lost, stored {:?} after the first one, which came {:?} before the changes; such as {:?}",
            lost.len(),
            stored.len(),
            ends.map(|(first, last)| *last - *first),
            ends.map(|(first, _)| tail.iter().map(|tail| *tail - *first).collect::<Vec<_>>()),
            lost.first(),
        );
        eventually(
            async || {
                let handled: BTreeSet<Job> = self.handled.lock().expect("lock").iter().copied().collect();
                logged.keys().all(|job| handled.contains(job))
            },
            "everything that is stored is handled",
        )
        .await;
        let (mut newest, mut seen) = (BTreeMap::<u64, u64>::new(), BTreeSet::new());
        for job in &*self.handled.lock().expect("lock") {
            if seen.insert(*job) {
                let last = newest.insert(job.0, job.1);
                assert!(last.is_none_or(|last| last < job.1), "{job:?} was first handled after {last:?}");
            }
        }
        println!("{} stored, {} unconfirmed, {} handled", stored.len(), unconfirmed.len(), seen.len());
        for consumer in self.consumers {
            consumer.shutdown().await;
        }
        drop(self.mq);
    }
}

/// How often each message is in the logs.
fn logged(logs: impl Fn(&str) -> String) -> BTreeMap<Job, usize> {
    let mut jobs = BTreeMap::new();
    for log in (0..PARTITIONS).map(log) {
        for line in logs(&log).lines().filter(|line| line.starts_with('[')) {
            let job: Job = serde_json::from_str(line).expect("a message");
            *jobs.entry(job).or_default() += 1;
        }
    }
    jobs
}

/// Returns the key of the log of a partition of the load.
pub(crate) fn log(partition: u32) -> String {
    log_of("jobs", partition)
}

/// Returns the key of a partition's log.
pub(crate) fn log_of(topic: &str, partition: u32) -> String {
    Keys::new().log(&TopicPartition::new(topic.parse().expect("a name"), partition)).to_string()
}

/// Number of changes of a kind: `MILLSTREAM_SERVER_CHANGES`, or few.
pub(crate) fn changes(few: usize) -> usize {
    std::env::var("MILLSTREAM_SERVER_CHANGES").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}
