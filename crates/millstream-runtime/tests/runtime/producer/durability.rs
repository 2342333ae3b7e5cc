//! Sends that wait for more than the server's memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::event::Ignore;
use millstream_core::log::{Append, Appended, Appender, Log, Reader, Receipt, Settled, Settlement, Trimmed};
use millstream_core::{
    Backend, Durability, Error, ErrorKind, Lease, Result, Retention, Topic, TopicPartition,
};
use millstream_memory::MemoryBackend;
use millstream_runtime::{OnFull, Producer, ProducerBuilder, Record};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);
const REPLICATED: Durability = Durability::Replicated(1);

/// A log in memory that notes by which way entries came.
#[derive(Clone)]
struct Ways {
    inner: MemoryBackend,
    /// The durability and the number of entries of each request.
    requests: Arc<Mutex<Vec<(Durability, usize)>>>,
    /// Whether nothing is confirmed.
    unconfirmed: Arc<Mutex<bool>>,
}

struct Way {
    ways: Ways,
    durability: Durability,
    begun: VecDeque<Arc<Vec<Append>>>,
}

#[async_trait]
impl Log for Ways {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        self.requests.lock().expect("lock").push((Durability::Stored, batch.len()));
        self.inner.append(batch).await
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        let way = Way { ways: self.clone(), durability, begun: VecDeque::new() };
        (durability == REPLICATED).then(|| Box::new(way) as Box<dyn Appender>)
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.inner.lengths(partitions).await
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        self.inner.reader(lease).await
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.inner.settle(lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.inner.trim(lease, retention).await
    }
}

#[async_trait]
impl Appender for Way {
    fn begin(&mut self, batch: Arc<Vec<Append>>) {
        self.begun.push_back(batch);
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        // A round trip takes time, so that others can join the next request.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let Some(batch) = self.begun.pop_front() else { return Vec::new() };
        self.ways.requests.lock().expect("lock").push((self.durability, batch.len()));
        let results = self.ways.inner.append(&batch).await;
        if *self.ways.unconfirmed.lock().expect("lock") {
            return results.iter().map(|_| Err(Error::new(ErrorKind::Unconfirmed, "no replica"))).collect();
        }
        results
    }
}

fn ways() -> (Ways, Backend) {
    let inner = MemoryBackend::new();
    let ways = Ways { inner: inner.clone(), requests: Arc::default(), unconfirmed: Arc::default() };
    let backend = Backend::from(inner).with_log(Arc::new(ways.clone()));
    (ways, backend)
}

fn builder(backend: &Backend) -> ProducerBuilder<u64> {
    ProducerBuilder::new(backend.clone(), NUMBERS, Arc::new(Ignore))
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

async fn stored(backend: &Backend) -> u64 {
    let tps: Vec<_> = (0..2).map(|n| TopicPartition::new("numbers".parse().expect("a name"), n)).collect();
    backend.log().lengths(&tps).await.expect("lengths").into_iter().sum()
}

impl Ways {
    fn requests(&self) -> Vec<(Durability, usize)> {
        std::mem::take(&mut self.requests.lock().expect("lock"))
    }
}

#[tokio::test(start_paused = true)]
async fn each_send_goes_the_way_that_it_asks_for() {
    let (ways, backend) = ways();
    let producer: Producer<u64> = builder(&backend).await.expect("a producer");
    producer.send(&1).await.expect("stored");
    producer.send(&2).durability(REPLICATED).await.expect("replicated");
    assert_eq!(ways.requests(), [(Durability::Stored, 1), (REPLICATED, 1)]);
    let by_default: Producer<u64> = builder(&backend).durability(REPLICATED).await.expect("a producer");
    by_default.send(&3).await.expect("replicated");
    by_default.send(&4).durability(Durability::Stored).await.expect("stored");
    assert_eq!(ways.requests(), [(REPLICATED, 1), (Durability::Stored, 1)]);
}

#[tokio::test(start_paused = true)]
async fn sends_that_wait_share_requests() {
    let (ways, backend) = ways();
    let producer: Producer<u64> = builder(&backend).durability(REPLICATED).await.expect("a producer");
    let sends = (0..100).map(|n| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&n).await })
    });
    for send in sends.collect::<Vec<_>>() {
        send.await.expect("a task").expect("replicated");
    }
    let requests = ways.requests();
    assert_eq!(requests.iter().map(|(_, entries)| entries).sum::<usize>(), 100);
    assert!(requests.len() <= 4, "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bulk_of_several_durabilities_keeps_its_order() {
    let (ways, backend) = ways();
    let producer: Producer<u64> = builder(&backend).await.expect("a producer");
    let values: Vec<u64> = (0..9).collect();
    let records = values.iter().map(|n| {
        let durability = if n % 4 == 3 {
            Durability::Fsynced
        } else if n / 3 == 1 {
            REPLICATED
        } else {
            Durability::Stored
        };
        Record::new(n).partition(0).durability(durability)
    });
    let sent = producer.send_all(records).await;
    let kinds: Vec<_> = sent.iter().map(|sent| sent.as_ref().err().map(Error::kind)).collect();
    let unsupported = Some(ErrorKind::Unsupported);
    let expected = [None, None, None, unsupported, None, None, None, unsupported, None];
    assert_eq!(kinds, expected, "what the log cannot give is refused by itself");
    let ids: Vec<_> = sent.into_iter().flatten().map(|sent| sent.id).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    let order = [(Durability::Stored, 3), (REPLICATED, 2), (Durability::Stored, 1), (Durability::Stored, 1)];
    assert_eq!(ways.requests(), order);
}

#[tokio::test(start_paused = true)]
async fn what_is_unconfirmed_is_told_and_keeps_nothing_back() {
    let (ways, backend) = ways();
    let producer: Producer<u64> = builder(&backend).durability(REPLICATED).await.expect("a producer");
    *ways.unconfirmed.lock().expect("lock") = true;
    assert_eq!(kind(producer.send(&1).await), Some(ErrorKind::Unconfirmed));
    *ways.unconfirmed.lock().expect("lock") = false;
    producer.send(&2).await.expect("confirmed");
    assert_eq!(stored(&backend).await, 2, "nothing is sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_bound_holds_for_sends_that_wait() {
    let (ways, backend) = ways();
    let topic = NUMBERS.max_length(5);
    let bounded = ProducerBuilder::new(backend.clone(), topic, Arc::new(Ignore)).on_full(OnFull::Reject);
    let producer: Producer<u64> = bounded.durability(REPLICATED).await.expect("a producer");
    let mut ends = Vec::new();
    for n in 0..7 {
        ends.push(kind(producer.send(&n).partition(0).await));
    }
    let full = Some(ErrorKind::Backpressure);
    assert_eq!(ends, [None, None, None, None, None, full, full]);
    assert_eq!(ways.requests(), [(REPLICATED, 1); 5]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_given_is_refused() {
    let (_, backend) = ways();
    let refused = builder(&backend).durability(Durability::Fsynced).await;
    assert_eq!(kind(refused), Some(ErrorKind::Unsupported), "when it is built");
    let refused = builder(&backend).durability(Durability::Replicated(0)).await;
    assert_eq!(kind(refused), Some(ErrorKind::InvalidConfig));
    let producer: Producer<u64> = builder(&backend).await.expect("a producer");
    let none = Durability::Replicated(0);
    assert_eq!(kind(producer.send(&1).durability(none).await), Some(ErrorKind::InvalidConfig));
    let durable: Producer<u64> = builder(&backend).durability(REPLICATED).await.expect("a producer");
    let later = durable.send(&1).delay(Duration::from_secs(1)).await;
    assert_eq!(kind(later), Some(ErrorKind::Unsupported), "delayed messages are only stored");
    assert_eq!(kind(durable.send(&1).dedup("a").await), Some(ErrorKind::Unsupported));
    assert_eq!(kind(durable.send(&1).unique("a").await), Some(ErrorKind::Unsupported));
    let together = durable.send_all([Record::new(&1).dedup("a"), Record::new(&1).unique("a")]).await;
    for refused in together.into_iter().chain([durable.send(&1).throttle("a", Duration::from_secs(1)).await])
    {
        let refused = refused.expect_err("only stored");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("use a producer whose durability is stored"), "{refused}");
    }
    let numbers: Producer<u64> = builder(&backend).idempotent(true).await.expect("a producer");
    let refused = numbers.send(&1).durability(REPLICATED).await.expect_err("only stored");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("a send of an idempotent producer"), "{refused}");
    producer.send(&1).delay(Duration::from_secs(1)).await.expect("scheduled");
    assert_eq!(stored(&backend).await, 0);
    producer.close().await;
    assert_eq!(
        kind(producer.send(&1).durability(REPLICATED).await),
        Some(ErrorKind::Closed),
        "also one never used"
    );
}
