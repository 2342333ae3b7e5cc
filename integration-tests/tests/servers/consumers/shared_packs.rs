//! Packs in shared mode on Redis: packs that take long, and packs that cannot be read, beside other partitions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{eventually, server::Server};
use millstream::{
    Concurrency, Consumer, ConsumerBuilder, Delivery, Millstream, Packing, Record, Sharing, Topic,
};

/// Packs of 20 messages.
const JOBS: Topic<u64> =
    Topic::new("jobs").partitions(3).packed(Packing::new().min_messages(2).max_messages(20));

/// Which numbers were handled, in their order.
type Done = Arc<Mutex<Vec<u64>>>;

fn share(builder: ConsumerBuilder<u64>) -> ConsumerBuilder<u64> {
    builder.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(2)).prefetch(4)
}

async fn start(mq: &Millstream, done: &Done, takes: Duration) -> Consumer {
    let done = done.clone();
    let handler = move |delivery: Delivery<u64>| {
        let done = done.clone();
        async move {
            tokio::time::sleep(takes).await;
            done.lock().expect("lock").push(delivery.payload);
        }
    };
    share(mq.consumer(JOBS, "g")).start(handler).await.expect("started")
}

async fn send(mq: &Millstream, partition: u32, numbers: impl IntoIterator<Item = u64>) {
    let producer = mq.producer(JOBS).await.expect("a producer");
    let numbers: Vec<u64> = numbers.into_iter().collect();
    let records = numbers.iter().map(|number| Record::new(number).partition(partition));
    for sent in producer.send_all(records).await {
        sent.expect("sent");
    }
}

/// The first partition has packs for as long as the test takes, each larger than the prefetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_packs_of_one_partition_keep_no_other_from_being_read() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let done = Done::default();
    send(&mq, 0, 0..400).await;
    let consumer = start(&mq, &done, Duration::from_millis(25)).await;
    eventually(async || !done.lock().expect("lock").is_empty(), "the first is handled").await;
    send(&mq, 1, 1_000..1_005).await;
    send(&mq, 2, [2_000]).await;
    eventually(async || done.lock().expect("lock").len() >= 406, "all are handled").await;
    let order = done.lock().expect("lock").clone();
    let behind = |number: u64| {
        let at = order.iter().position(|done| *done == number).expect("handled");
        order[at..].iter().filter(|done| **done < 400).count()
    };
    for number in (1_000..1_005).chain([2_000]) {
        assert!(behind(number) > 200, "{number} came after {} of the first partition", 400 - behind(number));
    }
    consumer.shutdown().await;
}

/// A compression that is not known stands for one that is not built in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pack_that_cannot_be_read_keeps_no_other_partition_and_is_reported() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let done = Done::default();
    let consumer = start(&mq, &done, Duration::ZERO).await;
    send(&mq, 0, 0..10).await;
    eventually(async || done.lock().expect("lock").len() == 10, "they are handled").await;
    let log = "stream:topic:{jobs:p:0}";
    let fields = ["mq:form", "2", "mq:pack", "2 brotli 10", "mq:messages", "????"];
    let id = server.cli(&[&["XADD", log, "*"], &fields[..]].concat());
    let failing = || {
        let loops = consumer.health().loops;
        let of_first = loops.into_iter().filter(|it| it.partition.is_some_and(|partition| partition.0 == 0));
        of_first.filter_map(|it| it.failing).map(|failure| failure.error.clone()).next()
    };
    eventually(async || failing().is_some(), "it is reported").await;
    let error = failing().unwrap_or_default();
    assert!(error.contains("brotli"), "{error}");
    send(&mq, 1, 100..140).await;
    send(&mq, 2, 200..240).await;
    eventually(async || done.lock().expect("lock").len() == 90, "the others go on").await;
    // Nothing more of its log: another consumer may be able to read it.
    send(&mq, 0, [10]).await;
    send(&mq, 1, [140]).await;
    eventually(async || done.lock().expect("lock").contains(&140), "the others go on").await;
    assert!(!done.lock().expect("lock").contains(&10));
    assert!(failing().is_some());
    // It was not begun, and says so: whoever takes it does not take it for the cause of an end.
    let pending = server.cli(&["XPENDING", log, "g", "-", "+", "10"]);
    assert!(pending.contains(id.trim()), "{pending}");
    server.cli(&["XDEL", log, id.trim()]);
    eventually(async || done.lock().expect("lock").contains(&10), "its partition goes on").await;
    eventually(async || failing().is_none(), "and is not failing any more").await;
    consumer.shutdown().await;
}
