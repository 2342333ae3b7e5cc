//! One key, or one topic, has far more messages than the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use integration_tests::delays::load::Probe;
use integration_tests::delays::{quantile, spread};
use integration_tests::eventually;
use integration_tests::history::{figure, quantiles};
use integration_tests::server::Server;
use millstream::{Concurrency, Consumer, Delivery, Millstream, Producer, Record, Topic};
use tokio::sync::watch;

const ORDERS: Topic<Order> = Topic::new("orders").partitions(2);
const HOT: &str = "hot";

/// A key, and the number among those of the key.
type Order = (String, u64);

/// A consumer whose handlers of the hot key do not end before the gate is open.
struct Gated {
    consumer: Consumer,
    producer: Producer<Order>,
    gate: watch::Sender<bool>,
    done: Arc<Mutex<Vec<(u32, Order)>>>,
    sent: BTreeMap<(u32, String), u64>,
    _server: Server,
}

impl Gated {
    async fn begin(concurrency: Concurrency, prefetch: usize) -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let (gate, opened) = watch::channel(false);
        let done: Arc<Mutex<Vec<(u32, Order)>>> = Arc::default();
        let log = done.clone();
        let consumer = mq.consumer(ORDERS, "g").concurrency(concurrency).prefetch(prefetch);
        let consumer = consumer.start(move |order: Delivery<Order>| {
            let (log, mut opened) = (log.clone(), opened.clone());
            async move {
                if order.payload.0 == HOT {
                    opened.wait_for(|open| *open).await.expect("the test goes on");
                }
                let partition = order.topic_partition().partition.0;
                log.lock().expect("lock").push((partition, order.payload.clone()));
                Ok::<(), millstream::Error>(())
            }
        });
        let consumer = consumer.await.expect("started");
        let producer = mq.producer(ORDERS).await.expect("a producer");
        Self { consumer, producer, gate, done, sent: BTreeMap::new(), _server: server }
    }

    /// Sends the next ones of a key to a partition.
    async fn send(&mut self, partition: u32, key: &str, count: u64) {
        let next = self.sent.entry((partition, key.to_owned())).or_default();
        let orders: Vec<Order> = (*next..*next + count).map(|number| (key.to_owned(), number)).collect();
        *next += count;
        let records = orders.iter().map(|order| Record::new(order).key(&order.0).partition(partition));
        for sent in self.producer.send_all(records).await {
            sent.expect("stored");
        }
    }

    fn count(&self, partition: u32, hot: bool) -> u64 {
        let done = self.done.lock().expect("lock");
        done.iter().filter(|(of, (key, _))| *of == partition && (key == HOT) == hot).count() as u64
    }

    /// Waits until everything that was sent to a partition under other keys is handled.
    async fn others_are_done(&self, partition: u32, what: &str) {
        let sent = self.sent.iter().filter(|((of, key), _)| *of == partition && key != HOT);
        let sent: u64 = sent.map(|(_, count)| count).sum();
        eventually(async || self.count(partition, false) == sent, what).await;
    }

    /// Opens the gate: everything is handled once, each key of a partition in its order.
    async fn end(self) {
        self.gate.send(true).expect("a handler waits");
        let all: u64 = self.sent.values().sum();
        eventually(async || self.done.lock().expect("lock").len() as u64 == all, "everything is handled")
            .await;
        let mut next: BTreeMap<(u32, String), u64> = BTreeMap::new();
        for (partition, (key, number)) in &*self.done.lock().expect("lock") {
            let expected = next.entry((*partition, key.clone())).or_default();
            assert_eq!(number, expected, "{key} of {partition}");
            *expected += 1;
        }
        let report = self.consumer.shutdown().await;
        assert_eq!((report.acked, report.retried, report.dead), (all, 0, 0));
    }
}

/// As long as it fills less than half of the prefetch, the other keys of its partition go on beside it. Other partitions do
/// so however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_floods_keeps_no_other_key_from_being_handled() {
    const PREFETCH: usize = 128;
    let mut scene = Gated::begin(Concurrency::PerKey(8), PREFETCH).await;
    scene.send(0, HOT, PREFETCH as u64 / 2 - 1).await;
    for round in 0..8 {
        for key in 0..10 {
            scene.send(0, &format!("k{key}"), 10).await;
        }
        scene.others_are_done(0, &format!("other keys of its partition, round {round}")).await;
    }
    // Now it fills the prefetch several times over.
    scene.send(0, HOT, 1_000).await;
    scene.send(0, "k1", 10).await;
    for key in 0..10 {
        scene.send(1, &format!("k{key}"), 100).await;
    }
    scene.others_are_done(1, "the other partition").await;
    assert_eq!(scene.count(0, true), 0, "its first handler has not ended");
    scene.end().await;
}

/// With one handler at a time everything of the partition waits behind a slow one: that is its order. Others do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_floods_a_serial_partition_keeps_no_other_partition_waiting() {
    let mut scene = Gated::begin(Concurrency::Serial, 128).await;
    scene.send(0, HOT, 1_000).await;
    scene.send(0, "k1", 10).await;
    scene.send(1, "k1", 1_000).await;
    scene.others_are_done(1, "the other partition").await;
    assert_eq!((scene.count(0, true), scene.count(0, false)), (0, 0));
    scene.end().await;
}

const QUIET: Topic<u64> = Topic::new("quiet").partitions(2);

/// Sends messages one after the other, each when the one before was handled: microseconds from each send to its handling.
async fn latencies(
    producer: &Producer<u64>,
    handled: &mut watch::Receiver<u64>,
    from: u64,
    count: u64,
) -> Vec<u64> {
    let mut took = Vec::new();
    for number in from..from + count {
        let began = Instant::now();
        producer.send(&number).await.expect("stored");
        handled.wait_for(|last| *last == number).await.expect("the consumer lives");
        took.push(u64::try_from(began.elapsed().as_micros()).expect("soon"));
    }
    took
}

/// A tenant on a thread of its own: it sends bodies of 16 KiB as fast as they are stored, and handles them, until it is told
/// to stop. How many it has sent.
fn flood(url: &str, stop: &AtomicBool, sent: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mq = Millstream::at(url).namespace("loud").await.expect("connected");
        let topic = Topic::raw("flood").partitions(4);
        let consumer = mq.consumer(topic.clone(), "g").concurrency(Concurrency::Unordered(16));
        let consumer = consumer.start(|_: Delivery<bytes::Bytes>| async {}).await.expect("started");
        let producer = mq.producer(topic).await.expect("a producer");
        let body = bytes::Bytes::from(vec![b'x'; 16 << 10]);
        while !stop.load(Ordering::Relaxed) {
            let results = producer.send_all((0..64).map(|_| Record::new(&body))).await;
            assert!(results.iter().all(Result::is_ok), "{:?}", results.iter().find(|sent| sent.is_err()));
            sent.fetch_add(64, Ordering::Relaxed);
        }
        // What is left is nobody's matter.
        consumer.shutdown_within(Duration::ZERO).await;
    });
}

/// The latency of a quiet topic on the same server grows by what the server needs for one request of the flood and no more:
/// it does not wait until the flood is over, and nothing of it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_floods_its_server_keeps_others_going() {
    const COUNT: u64 = 300;
    /// How many times as long as a `PING` at the same time half of the messages may take: they are several requests one after
    /// the other, and two threads that wake each other.
    const SLOWER: i64 = 10;
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (last, mut handled) = watch::channel(u64::MAX);
    let last = Arc::new(last);
    let consumer = mq.consumer(QUIET, "g").start(move |message: Delivery<u64>| {
        last.send_replace(message.payload);
        async {}
    });
    let consumer = consumer.await.expect("started");
    let producer = mq.producer(QUIET).await.expect("a producer");
    latencies(&producer, &mut handled, 0, 50).await;
    let calm = latencies(&producer, &mut handled, 50, COUNT).await;
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tenant = {
        let (url, stop, sent) = (server.url(), stop.clone(), Arc::clone(&sent));
        std::thread::spawn(move || flood(&url, &stop, &sent))
    };
    eventually(async || sent.load(Ordering::Relaxed) > 200, "the flood has begun").await;
    let before = sent.load(Ordering::Relaxed);
    let probe = Probe::start(server.port());
    let mut flooded = latencies(&producer, &mut handled, 50 + COUNT, COUNT).await;
    let during = sent.load(Ordering::Relaxed) - before;
    let mut pings = probe.stop();
    stop.store(true, Ordering::Relaxed);
    tokio::task::spawn_blocking(|| tenant.join().expect("the flood was stored")).await.expect("joined");
    figure(
        "abuse",
        &format!(
            "a quiet topic: {} calm, {} while another topic stored {during} messages of 16 KiB; PING then: {}",
            quantiles(&calm),
            quantiles(&flooded),
            spread(&pings)
        ),
    );
    flooded.sort_unstable();
    pings.sort_unstable();
    let (half, ping) = (flooded[flooded.len() / 2].cast_signed(), quantile(&pings, 0.5));
    assert!(during > COUNT, "{during} messages are no flood");
    assert!(half <= SLOWER * ping, "{half} µs, {ping} µs for a PING at the same time");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.retried, report.dead), (50 + 2 * COUNT, 0, 0));
}
