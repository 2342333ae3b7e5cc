//! Consumers that share partitions on Redis: deaths, handlers that block every thread, names that are forgotten.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::equipment::baseline::Stalls;
use integration_tests::history::now_us;
use integration_tests::{eventually, server::Server};
use millstream::{
    Concurrency, Consumer, ConsumerBuilder, ConsumerState, Delivery, Millstream, Packing, Record, Sharing,
    Topic,
};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

const JOBS: Topic<u64> = Topic::new("jobs").partitions(2);
const TTL: Duration = Duration::from_millis(900);

/// Which numbers were begun and ended, and by whom.
type Calls = Arc<Mutex<Vec<(u64, String, bool)>>>;

/// An instance with threads of its own.
struct Instance {
    runtime: Runtime,
    consumer: Consumer,
}

impl Instance {
    fn start(
        url: &str,
        name: &str,
        calls: &Calls,
        threads: usize,
        takes: Duration,
        set: impl FnOnce(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .expect("threads");
        let (url, name, calls) = (url.to_owned(), name.to_owned(), calls.clone());
        let start = async move {
            let mq = Millstream::connect(&url).await.expect("connected");
            let builder = set(mq.consumer(JOBS, "g").label(&name).lease_ttl(TTL));
            let consumer = builder.start(move |delivery: Delivery<u64>| {
                let (calls, name) = (calls.clone(), name.clone());
                async move {
                    calls.lock().expect("lock").push((delivery.payload, name.clone(), false));
                    // It blocks its thread.
                    thread::sleep(takes);
                    calls.lock().expect("lock").push((delivery.payload, name, true));
                }
            });
            consumer.await.expect("started")
        };
        let consumer = runtime.block_on(start);
        Self { runtime, consumer }
    }

    /// Ends without a word.
    fn die(self) {
        self.runtime.shutdown_background();
        drop(self.consumer);
    }

    fn leave(self) {
        self.runtime.block_on(self.consumer.shutdown());
        self.runtime.shutdown_background();
    }
}

fn share(builder: ConsumerBuilder<u64>) -> ConsumerBuilder<u64> {
    builder.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(2)).prefetch(4)
}

async fn send(server: &Server, numbers: impl IntoIterator<Item = u64>) {
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(JOBS).await.expect("a producer");
    let numbers: Vec<u64> = numbers.into_iter().collect();
    for sent in producer.send_all(numbers.iter().map(Record::new)).await {
        sent.expect("sent");
    }
}

/// The numbers that were handled to the end, with how often.
fn done(calls: &Calls) -> BTreeMap<u64, usize> {
    let mut done = BTreeMap::new();
    for (number, _, _) in calls.lock().expect("lock").iter().filter(|(.., ended)| *ended) {
        *done.entry(*number).or_default() += 1;
    }
    done
}

/// The names of consumers on the log of a partition.
fn names(server: &Server, partition: u32) -> Vec<String> {
    let log = format!("stream:topic:{{jobs:p:{partition}}}");
    let text = server.cli(&["XINFO", "CONSUMERS", &log, "g"]);
    let mut lines = text.lines();
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        if line == "name" {
            names.extend(lines.next().map(str::to_owned));
        }
    }
    names
}

async fn all_done(calls: &Calls, count: usize) {
    eventually(async || done(calls).len() >= count, &format!("{count} are done")).await;
}

#[tokio::test]
async fn more_consumers_than_partitions_and_deaths_among_them() {
    let server = Server::start();
    let (url, calls) = (server.url(), Calls::default());
    let start = |name: &str| {
        let (url, name, calls) = (url.clone(), name.to_owned(), calls.clone());
        async move {
            let start = move || Instance::start(&url, &name, &calls, 2, Duration::from_millis(20), share);
            tokio::task::spawn_blocking(start).await.expect("started")
        }
    };
    let mut instances = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        instances.push(start(name).await);
    }
    send(&server, 0..300).await;
    all_done(&calls, 100).await;
    for _ in 0..2 {
        let victim = instances.remove(0);
        tokio::task::spawn_blocking(|| victim.die()).await.expect("dead");
        instances.push(start("next").await);
    }
    let (stalls, died, died_us) = (Stalls::start(), Instant::now(), now_us());
    all_done(&calls, 300).await;
    let (took, stalled) = (died.elapsed(), stalls.since(died_us));
    assert!(
        took < TTL + Duration::from_secs(3) + stalled,
        "after {took:?}; the machine stood still for {stalled:?}"
    );
    let workers: std::collections::BTreeSet<String> =
        calls.lock().expect("lock").iter().map(|(_, by, _)| by.clone()).collect();
    assert!(workers.len() >= 5, "everybody works: {workers:?}");
    let repeated: usize = done(&calls).values().map(|times| times - 1).sum();
    assert!(repeated <= 2 * 6, "at most what two had in hand: {repeated}");
    // The names of the dead are forgotten.
    let living = async || names(&server, 0).len() <= 5 && names(&server, 1).len() <= 5;
    eventually(living, "consumers do not pile up").await;
    tokio::task::spawn_blocking(|| instances.into_iter().for_each(Instance::leave)).await.expect("left");
    assert!(server.cli(&["XPENDING", "stream:topic:{jobs:p:0}", "g"]).starts_with('0'));
}

#[tokio::test]
async fn handlers_that_block_every_thread_keep_what_they_have() {
    let server = Server::start();
    let (url, calls) = (server.url(), Calls::default());
    let (of_a, of_b) = ((url.clone(), calls.clone()), (url, calls.clone()));
    let slow = 4 * TTL;
    // One thread: of two, one could stay free, since a task that a blocked thread was about to run waits for that
    // thread.
    let a = tokio::task::spawn_blocking(move || Instance::start(&of_a.0, "a", &of_a.1, 1, slow, share));
    let a = a.await.expect("started");
    send(&server, 0..4).await;
    eventually(async || !calls.lock().expect("lock").is_empty(), "its thread is blocked").await;
    let start = move || Instance::start(&of_b.0, "b", &of_b.1, 2, Duration::ZERO, share);
    let b = tokio::task::spawn_blocking(start);
    let b = b.await.expect("started");
    all_done(&calls, 4).await;
    let calls = calls.lock().expect("lock").clone();
    assert_eq!(calls.iter().filter(|(.., ended)| !ended).count(), 4, "nobody claimed what it had: {calls:?}");
    tokio::task::spawn_blocking(|| [a, b].into_iter().for_each(Instance::leave)).await.expect("left");
}

#[tokio::test]
async fn what_somebody_read_by_hand_is_handled_by_owners_in_the_end() {
    let server = Server::start();
    let (url, calls) = (server.url(), Calls::default());
    let of = (url.clone(), calls.clone());
    let first = tokio::task::spawn_blocking(move || {
        Instance::start(&of.0, "first", &of.1, 2, Duration::ZERO, |builder| builder).leave();
    });
    first.await.expect("left");
    send(&server, 0..10).await;
    for partition in [0, 1] {
        let log = format!("stream:topic:{{jobs:p:{partition}}}");
        server.cli(&["XREADGROUP", "GROUP", "g", "bob", "COUNT", "3", "STREAMS", &log, ">"]);
    }
    let of = calls.clone();
    let next = move || Instance::start(&url, "next", &of, 2, Duration::ZERO, |builder| builder);
    let next = tokio::task::spawn_blocking(next).await.expect("started");
    all_done(&calls, 10).await;
    assert!(done(&calls).values().all(|times| *times == 1));
    let forgotten = async || (0..2).all(|partition| !names(&server, partition).contains(&"bob".to_owned()));
    eventually(forgotten, "bob is removed").await;
    tokio::task::spawn_blocking(|| next.leave()).await.expect("left");
}

/// A pack is one consumer's. What it has not begun of it goes to others once what it has begun is settled, and not before: they
/// would get that too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_pack_goes_to_others_when_its_consumer_has_ended() {
    const PACKED: Topic<u64> = Topic::new("packed").packed(Packing::new());
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let (begun, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let gate = Arc::new(Semaphore::new(0));
    let start = async |name: &'static str| {
        let (begun, ended, gate) = (begun.clone(), ended.clone(), gate.clone());
        let handler = move |delivery: Delivery<u64>| {
            let (begun, ended, gate) = (begun.clone(), ended.clone(), gate.clone());
            async move {
                begun.lock().expect("lock").push((delivery.payload, name));
                gate.acquire().await.expect("open").forget();
                ended.lock().expect("lock").push(delivery.payload);
            }
        };
        let builder = mq.consumer(PACKED, "g").label(name).lease_ttl(Duration::from_secs(3));
        share(builder).start(handler).await.expect("started")
    };
    let a = start("a").await;
    let producer = mq.producer(PACKED).await.expect("a producer");
    let numbers: Vec<u64> = (0..20).collect();
    for sent in producer.send_all(numbers.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    let count = |of: &Mutex<Vec<u64>>| of.lock().expect("lock").len();
    eventually(async || begun.lock().expect("lock").len() == 2, "two are being handled").await;
    let health = a.health_check();
    let leaving = tokio::spawn(a.shutdown());
    // Before, it would begin a third one when one of the two ends.
    eventually(async || health.health().state == ConsumerState::Leaving, "the first one leaves").await;
    let b = start("b").await;
    gate.add_permits(1);
    eventually(async || count(&ended) == 1, "one has ended, and one goes on").await;
    assert!(!leaving.is_finished());
    gate.add_permits(numbers.len());
    eventually(async || count(&ended) == numbers.len(), "the rest is handled").await;
    leaving.await.expect("left");
    let mut of = begun.lock().expect("lock").clone();
    of.sort_unstable();
    assert_eq!(of.iter().map(|(number, _)| *number).collect::<Vec<_>>(), numbers, "each once: {of:?}");
    assert_eq!(of.iter().filter(|(_, by)| *by == "a").count(), 2);
    b.shutdown().await;
}
