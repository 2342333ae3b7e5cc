//! What the runtime's tests share: a log that fails on command, and an observer that remembers.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses its part")]

pub mod group;
pub mod link;
pub mod scenario;
pub mod workers;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_admin::{Admin, DeadLetterQueue};
use millstream_core::log::ProgressRight;
use millstream_core::log::{Append, Appended, Entry, Fetched, Measured, Receipt, Settled, Trimmed};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::{
    Appender, Backend, Durability, Error, ErrorKind, Event, Lease, Log, MessageId, Observer, Reader, Result,
    Retention, Settlement, Start, Topic, TopicPartition,
};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery, Producer, ProducerBuilder, Record};
use tokio::time::Instant;

pub const MS: fn(u64) -> Duration = Duration::from_millis;

/// A log with scripted failures, which counts its requests.
pub struct Scripted {
    inner: Arc<dyn Log>,
    pub appends: Mutex<Vec<usize>>,
    /// How long an append takes.
    pub append_takes: Mutex<Duration>,
    pub append_failures: Mutex<VecDeque<ErrorKind>>,
    /// Appends are stored and then fail: a lost reply.
    pub lose_append_replies: Mutex<usize>,
    /// How often entries of this partition are refused, while others are stored.
    pub refused: Mutex<(u32, usize)>,
    /// Whether it has an appender: then requests overlap.
    pub ahead: Mutex<bool>,
    pub fetch_failures: Mutex<VecDeque<ErrorKind>>,
    pub settle_failures: Mutex<VecDeque<ErrorKind>>,
    /// How the next seeks end: `None` is a success.
    pub seek_results: Mutex<VecDeque<Option<ErrorKind>>>,
    /// Settlements other than an ack fail with this kind.
    pub dead_letters_fail: Mutex<Option<ErrorKind>>,
    /// Settles are applied and then fail: a lost reply.
    pub lose_settle_replies: Mutex<usize>,
    /// The answer to the next settlement arrives so much later.
    pub late_settle_reply: Mutex<Duration>,
    pub largest_fetch: Mutex<usize>,
    pub length_failures: Mutex<VecDeque<ErrorKind>>,
    /// How many poison candidates were noted as begun.
    pub candidates: Mutex<usize>,
    /// So often a reader starts over by itself, with a pending list that was read before what stands on it was settled.
    pub starts_over: Mutex<usize>,
    /// How many entries were settled.
    settled: Mutex<usize>,
}

/// A handle on it for the backend.
struct Shared(Arc<Scripted>);

impl std::ops::Deref for Shared {
    type Target = Arc<Scripted>;

    fn deref(&self) -> &Arc<Scripted> {
        &self.0
    }
}

fn failure(queue: &Mutex<VecDeque<ErrorKind>>) -> Option<Error> {
    queue.lock().expect("lock").pop_front().map(|kind| Error::new(kind, "scripted"))
}

#[async_trait]
impl Log for Shared {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        if batch.iter().any(|append| append.identity.is_repeatable()) {
            return self.inner.append(batch).await;
        }
        // A round trip takes time, so that others can join the next batch.
        let takes = *self.append_takes.lock().expect("lock");
        tokio::time::sleep(takes).await;
        self.store(batch).await
    }

    fn appender(&self, _: Durability) -> Option<Box<dyn Appender>> {
        let appender = ScriptedAppender { scripted: self.0.clone(), begun: VecDeque::new() };
        self.ahead.lock().expect("lock").then(|| Box::new(appender) as Box<dyn Appender>)
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        let inner = self.inner.reader(lease).await?;
        let (scripted, lease, read) = (self.0.clone(), lease.clone(), Vec::new());
        Ok(Box::new(ScriptedReader { scripted, lease, inner, read }))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        if let Some(error) = failure(&self.settle_failures) {
            return Err(error);
        }
        let fail = *self.dead_letters_fail.lock().expect("lock");
        if let Some(kind) = fail
            && batch.iter().any(|(_, settlement)| *settlement != Settlement::Ack)
        {
            return Err(Error::new(kind, "scripted"));
        }
        let settled = self.inner.settle(lease, batch).await?;
        let noted =
            |settlement: &Settlement| matches!(settlement, Settlement::Hold(note) if note.suspicions > 0);
        *self.candidates.lock().expect("lock") +=
            batch.iter().filter(|(_, settlement)| noted(settlement)).count();
        *self.settled.lock().expect("lock") += settled.applied;
        let late = std::mem::take(&mut *self.late_settle_reply.lock().expect("lock"));
        tokio::time::sleep(late).await;
        let mut lose = self.lose_settle_replies.lock().expect("lock");
        if *lose > 0 {
            *lose -= 1;
            return Err(Error::new(ErrorKind::Unconfirmed, "scripted"));
        }
        Ok(settled)
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        let refused = self.seek_results.lock().expect("lock").pop_front().flatten();
        match refused {
            Some(kind) => Err(Error::new(kind, "scripted")),
            None => self.inner.seek(lease, start).await,
        }
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.inner.trim(lease, retention).await
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let results = self.append(batch).await;
        let mut partitions: Vec<_> = batch.iter().map(|append| append.topic_partition.clone()).collect();
        partitions.dedup();
        let lengths = self.inner.lengths(&partitions).await.expect("lengths");
        Measured::new(results, partitions.into_iter().zip(lengths).collect())
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        match failure(&self.length_failures) {
            Some(error) => Err(error),
            None => self.inner.lengths(partitions).await,
        }
    }

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.inner.result(id, wait).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.inner.report_progress(right, report).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.inner.progress(id, above, wait).await
    }
}

impl Scripted {
    async fn store(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        self.appends.lock().expect("lock").push(batch.len());
        if let Some(error) = failure(&self.append_failures) {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        if one_less(&self.lose_append_replies) {
            let stored = self.inner.append(batch).await;
            let lost = || Err(Error::new(ErrorKind::Unconfirmed, "scripted"));
            return stored.into_iter().map(|_| lost()).collect();
        }
        let (partition, entries) = *self.refused.lock().expect("lock");
        if entries == 0 {
            return self.inner.append(batch).await;
        }
        let mut results = Vec::with_capacity(batch.len());
        for append in batch {
            let away = append.topic_partition.partition.0 == partition && one_less_of(&self.refused);
            results.push(match away {
                true => Err(Error::new(ErrorKind::Unavailable, "its server is away")),
                false => self.inner.append(std::slice::from_ref(append)).await.remove(0),
            });
        }
        results
    }
}

/// Whether a refusal is left, and takes it.
fn one_less_of(refused: &Mutex<(u32, usize)>) -> bool {
    let mut refused = refused.lock().expect("lock");
    let left = refused.1 > 0;
    refused.1 -= usize::from(left);
    left
}

struct ScriptedAppender {
    scripted: Arc<Scripted>,
    /// With the time of the answer.
    begun: VecDeque<(Instant, Arc<Vec<Append>>)>,
}

#[async_trait]
impl Appender for ScriptedAppender {
    fn begin(&mut self, batch: Arc<Vec<Append>>) {
        let takes = *self.scripted.append_takes.lock().expect("lock");
        self.begun.push_back((Instant::now() + takes, batch));
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        let Some((at, batch)) = self.begun.front().cloned() else { return Vec::new() };
        tokio::time::sleep_until(at).await;
        self.begun.pop_front();
        self.scripted.store(&batch).await
    }
}

struct ScriptedReader {
    scripted: Arc<Scripted>,
    lease: Lease,
    inner: Box<dyn Reader>,
    /// What it has read.
    read: Vec<Entry>,
}

#[async_trait]
impl Reader for ScriptedReader {
    fn start_over(&mut self) {
        self.inner.start_over();
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        if !self.read.is_empty() && one_less(&self.scripted.starts_over) {
            while *self.scripted.settled.lock().expect("lock") < self.read.len() {
                tokio::time::sleep(MS(1)).await;
            }
            // The answer to the last settlement arrives as well.
            tokio::time::sleep(MS(1)).await;
            let entries = std::mem::take(&mut self.read);
            let mut fetched = Fetched::of_pending();
            fetched.entries = entries;
            return Ok(fetched);
        }
        let fetched = self.inner.fetch(max, wait).await;
        if let Some(error) = failure(&self.scripted.fetch_failures) {
            // What was read is lost with the reply; the reader starts over.
            self.inner = self.scripted.inner.reader(&self.lease).await?;
            return Err(error);
        }
        if let Ok(fetched) = &fetched {
            let mut largest = self.scripted.largest_fetch.lock().expect("lock");
            *largest = (*largest).max(fetched.entries.len());
            self.read.extend(fetched.entries.iter().cloned());
        }
        fetched
    }
}

fn one_less(count: &Mutex<usize>) -> bool {
    let mut count = count.lock().expect("lock");
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}

/// All events, one line each.
#[derive(Clone, Default)]
pub struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub fn lines(&self, with: &str) -> usize {
        self.0.lock().expect("lock").iter().filter(|line| line.contains(with)).count()
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("lock").clone()
    }

    pub async fn wait_for_lines(&self, with: &str, count: usize) {
        eventually(|| self.lines(with) >= count, || format!("{count} x {with}: {:?}", self.all())).await;
    }

    pub async fn wait_for(&self, with: &str) {
        eventually(|| self.lines(with) > 0, || format!("{with:?} in {:#?}", self.all())).await;
    }
}

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        self.0.lock().expect("lock").push(format!("{event:?}"));
    }
}

/// Polls until it holds; time is paused in these tests, so the deadline costs nothing.
pub async fn eventually(holds: impl Fn() -> bool, what: impl Fn() -> String) {
    for _ in 0..120_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(MS(1)).await;
    }
    panic!("never came true: {}", what());
}

pub struct Bench {
    pub memory: MemoryBackend,
    pub backend: Backend,
    pub log: Arc<Scripted>,
    pub told: Told,
}

pub fn bench() -> Bench {
    let memory = MemoryBackend::new();
    let backend = Backend::from(memory.clone());
    let log = Arc::new(Scripted {
        inner: backend.log().clone(),
        appends: Mutex::default(),
        append_takes: Mutex::new(MS(1)),
        append_failures: Mutex::default(),
        lose_append_replies: Mutex::default(),
        refused: Mutex::default(),
        ahead: Mutex::default(),
        fetch_failures: Mutex::default(),
        settle_failures: Mutex::default(),
        seek_results: Mutex::default(),
        dead_letters_fail: Mutex::default(),
        lose_settle_replies: Mutex::default(),
        late_settle_reply: Mutex::default(),
        largest_fetch: Mutex::default(),
        length_failures: Mutex::default(),
        candidates: Mutex::default(),
        starts_over: Mutex::default(),
        settled: Mutex::default(),
    });
    let backend = backend.with_log(Arc::new(Shared(log.clone())));
    Bench { memory, backend, log, told: Told::default() }
}

impl Bench {
    pub fn producing<T>(&self, topic: Topic<T>) -> ProducerBuilder<T> {
        ProducerBuilder::new(self.backend.clone(), topic, Arc::new(self.told.clone()))
    }

    pub async fn producer<T: Sync>(&self, topic: Topic<T>) -> Producer<T> {
        self.producing(topic).await.expect("a producer")
    }

    pub fn consumer<T: Send>(&self, topic: Topic<T>, group: &str) -> ConsumerBuilder<T> {
        let promoter = Promoter::new(&self.backend, PromoterConfig::default());
        ConsumerBuilder::new(self.backend.clone(), topic, group, Arc::new(self.told.clone())).upkeep(promoter)
    }
}

pub const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);

pub type Seen = Arc<Mutex<Vec<(u64, u32)>>>;

pub async fn produce(bench: &Bench, count: u64) -> Vec<MessageId> {
    let producer = bench.producer(NUMBERS).await;
    let values: Vec<u64> = (0..count).collect();
    let sent = producer.send_all(values.iter().map(|n| Record::new(n).key(n.to_le_bytes()))).await;
    sent.into_iter().map(|sent| sent.expect("sent").id).collect()
}

pub fn note(seen: &Seen, delivery: &Delivery<u64>) {
    seen.lock().expect("lock").push((delivery.payload, delivery.attempt()));
}

pub fn count(seen: &Seen) -> usize {
    seen.lock().expect("lock").len()
}

pub async fn until(seen: &Seen, n: usize) {
    eventually(|| count(seen) >= n, || format!("{n} seen, of {:?}", seen.lock().expect("lock"))).await;
}

pub async fn dead(bench: &Bench, group: &str) -> DeadLetterQueue {
    let (topic, group) = ("numbers".parse().expect("name"), group.parse().expect("name"));
    Admin::new(bench.backend.clone()).dead_letters(&topic, &group).await.expect("a topic")
}

pub fn partition() -> TopicPartition {
    TopicPartition::new("numbers".parse().expect("name"), 0)
}
