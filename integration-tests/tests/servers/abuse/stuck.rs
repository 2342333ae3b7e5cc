//! A handler that never ends.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::{Concurrency, Consumer, Delivery, Millstream, Producer, Record, Topic};
use millstream_core::TopicPartition;
use millstream_core::keys::Keys;

const JOBS: Topic<u64> = Topic::new("jobs").partitions(2);
const PREFETCH: usize = 64;

/// Everything that a consumer of this group should do is to handle; what it has handled is counted.
async fn good(mq: &Millstream, group: &str) -> (Consumer, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let consumer = mq.consumer(JOBS, group).concurrency(Concurrency::Unordered(16));
    let consumer = consumer.start(move |_: Delivery<u64>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    (consumer.await.expect("started"), count)
}

async fn send(producer: &Producer<u64>, partition: u32, numbers: std::ops::Range<u64>) {
    let numbers: Vec<u64> = numbers.collect();
    let records = numbers.iter().map(|number| Record::new(number).partition(partition));
    for sent in producer.send_all(records).await {
        sent.expect("stored");
    }
}

/// Length of the log of a partition.
fn length(server: &Server, partition: u32) -> u64 {
    let log = Keys::new().log(&TopicPartition::new("jobs".parse().expect("a name"), partition));
    server.cli(&["XLEN", log.as_str()]).parse().expect("a number")
}

/// Its partition waits, and keeps its messages: no more than `prefetch` of them are with the consumer. Other partitions and
/// other groups go on, and are trimmed. A shutdown ends within its timeout, and the next consumer is handed everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_ends_keeps_its_partition_and_nothing_else() {
    const COUNT: u64 = 5_000;
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (other, others) = good(&mq, "other").await;
    let producer = mq.producer(JOBS).await.expect("a producer");
    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    let stuck = mq.consumer(JOBS, "g").prefetch(PREFETCH).shutdown_timeout(Duration::from_millis(200));
    let stuck = stuck.start(move |job: Delivery<u64>| {
        let handled = counted.clone();
        async move {
            if job.topic_partition().partition.0 == 0 {
                pending::<()>().await;
            }
            handled.fetch_add(1, Ordering::Relaxed);
        }
    });
    let stuck = stuck.await.expect("started");
    for from in (0..COUNT).step_by(500) {
        send(&producer, 0, from..from + 500).await;
        send(&producer, 1, from..from + 500).await;
    }
    eventually(async || handled.load(Ordering::Relaxed) == COUNT, "the other partition").await;
    eventually(async || others.load(Ordering::Relaxed) == 2 * COUNT, "the other group").await;
    eventually(async || length(&server, 1) == 0, "the other partition is trimmed").await;
    // The trims of its own group and of the other one have looked at both by now.
    assert_eq!(length(&server, 0), COUNT, "nothing of its partition is dropped");
    let of_stuck = async || {
        let stats = mq.stats(&JOBS, "g").await.expect("stats");
        (stats[0].pending, stats[0].lag, stats[0].retrying, stats[0].dead)
    };
    let (pending, lag, retrying, dead) = of_stuck().await;
    assert!((1..=PREFETCH as u64).contains(&pending), "{pending} are with the consumer");
    assert_eq!((lag, retrying, dead), (Some(COUNT - pending), 0, 0));
    // More messages and more time do not make them more.
    send(&producer, 0, COUNT..COUNT + 500).await;
    eventually(async || others.load(Ordering::Relaxed) == 2 * COUNT + 500, "the other group").await;
    assert!(of_stuck().await.0 <= PREFETCH as u64);

    let began = Instant::now();
    let report = stuck.shutdown().await;
    assert!(began.elapsed() < HANG, "it hangs: {:?}", began.elapsed());
    assert_eq!(report.acked, COUNT);
    let (next, handled) = good(&mq, "g").await;
    eventually(async || handled.load(Ordering::Relaxed) == COUNT + 500, "the next consumer has all of it")
        .await;
    eventually(async || length(&server, 0) == 0, "and it is trimmed").await;
    for consumer in [next, other] {
        let report = consumer.shutdown().await;
        assert_eq!((report.retried, report.dead), (0, 0));
    }
}
