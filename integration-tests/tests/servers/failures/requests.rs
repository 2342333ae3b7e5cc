//! Requests while members are killed, the server is away and connections break: each has its own reply, or is found by its id.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use integration_tests::delays::worker;
use integration_tests::eventually;
use integration_tests::fixture::Fixture;
use integration_tests::history::{History, Sink, What};
use integration_tests::member::{Job, Mode, Setup};
use integration_tests::process::Process;
use integration_tests::server::Server;
use millstream::{
    Concurrency, Delivery, Follow, Followed, MessageResult, Millstream, Packing, Reply, RequestError,
    ResultId, Topic,
};
use millstream_core::keys::Keys;
use millstream_delay::DelayQueue;
use tokio::task::JoinHandle;

const PARTITIONS: u32 = 3;
pub(super) const TTL: Duration = Duration::from_secs(1);
/// How many requests wait at the same time.
const AT_ONCE: u64 = 64;
/// How often members are killed and the server is away. `MILLSTREAM_ROUNDS` sets another number.
const ROUNDS: usize = 3;

pub(super) fn rounds() -> usize {
    std::env::var("MILLSTREAM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// How many were answered in time, and the ids and numbers of the others.
type Answers = (u64, Vec<(ResultId, u64)>);

/// Sends request after request until `stop` is set.
async fn ask<F>(request: impl Fn(Job) -> F, next: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Answers
where
    F: Future<Output = Result<u64, RequestError>>,
{
    let (mut answered, mut late) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        match request(Job { work_us: 2_000, ..Job::new(number) }).await {
            Ok(reply) => {
                assert_eq!(reply, number, "a reply to another request");
                answered += 1;
            }
            Err(RequestError::Timeout { id, .. }) => late.push((id, number)),
            // The server was away for too long: it is not stored.
            Err(RequestError::NotSent(error)) if error.is_transient() => {}
            Err(error) => panic!("request {number}: {error}"),
        }
    }
    (answered, late)
}

/// Tasks that ask until `stop` is set.
struct Asking {
    tasks: Vec<JoinHandle<Answers>>,
    stop: Arc<AtomicBool>,
}

impl Asking {
    fn begin<F>(request: impl Fn(Job) -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = Result<u64, RequestError>> + Send + 'static,
    {
        let (next, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let one = |_| tokio::spawn(ask(request.clone(), next.clone(), stop.clone()));
        Self { tasks: (0..AT_ONCE).map(one).collect(), stop }
    }

    /// Returns those that had no reply in time.
    async fn late(self) -> Vec<(ResultId, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let (mut answered, mut late) = (0, Vec::new());
        for task in self.tasks {
            let (in_time, not) = task.await.expect("no panic");
            answered += in_time;
            late.extend(not);
        }
        println!("{answered} answered in time, {} late", late.len());
        assert!(answered > 0);
        late
    }
}

/// What was late is found, unless the send failed and nothing is stored.
async fn all_found(mq: &Millstream, late: Vec<(ResultId, u64)>, handled: &BTreeSet<u64>) {
    let mut lost = 0;
    for (id, number) in late {
        match mq.result(&id).await.expect("a look") {
            Some(found) => assert_eq!(found.decode::<u64>().expect("a number"), number),
            None => {
                assert!(!handled.contains(&number), "{number} was handled, and has no result");
                lost += 1;
            }
        }
    }
    println!("{lost} were not stored");
}

/// Takes the server away, or kills one process and the connection on which all of them wait.
pub(super) async fn disturb(server: &Server, round: usize, kill: impl FnOnce()) {
    if round % 3 == 2 {
        server.pause();
        tokio::time::sleep(TTL * 2).await;
        server.resume();
    } else {
        kill();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
}

async fn under_fire(packed: Option<u32>) {
    let server = Server::start();
    let setup = Setup::new(&server.url(), "requests", PARTITIONS);
    let ttl_ms = u64::try_from(TTL.as_millis()).expect("small");
    let setup =
        Setup { mode: Mode::Unordered(16), ttl_ms, crash_limit: 1_000, attempts: 1_000, packed, ..setup };
    let topic = setup.topic();
    let mut fixture = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    (0..3).for_each(|_| _ = fixture.start());
    fixture.balanced().await;
    let producer = fixture.mq.producer(topic).await.expect("a producer");
    let asking = Asking::begin(move |job| {
        let producer = producer.clone();
        async move { producer.send(&job).key(job.number.to_string()).reply::<u64>().within(TTL * 2).await }
    });
    for round in 0..=rounds() {
        let before = fixture.done.len();
        fixture.until("requests are handled", |it| it.done.len() >= before + 200).await;
        if round < rounds() {
            disturb(&server, round, || {
                let pids = fixture.pids();
                fixture.kill(pids[fastrand::usize(0..pids.len())]);
                fixture.start();
            })
            .await;
        }
    }
    let late = asking.late().await;
    fixture.at_rest().await;
    all_found(&fixture.mq, late, &fixture.done).await;
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_has_its_own_reply_through_kills_and_outages() {
    under_fire(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_to_a_packed_topic_has_its_own_reply_through_kills_and_outages() {
    under_fire(Some(8)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_that_asks_has_its_own_reply_through_kills_and_outages() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let hold_ms = u64::try_from(TTL.as_millis()).expect("small");
    let setup = worker::Setup::new(&server.url(), "requests");
    let setup = worker::Setup { sink: folder.path().join("sink"), hold_ms, attempts: 1_000, ..setup };
    drop(Sink::open(&setup.sink).expect("a sink"));
    let mut history = History::open(&setup.sink).expect("a history");
    let start = || Process::start(env!("CARGO_BIN_EXE_worker"), &setup);
    let mq = Millstream::connect(&setup.url).await.expect("connected");
    let queue = DelayQueue::<Job>::new("requests").shards(PARTITIONS).open(mq.backend()).await;
    let queue = queue.expect("opened");
    let mut workers: Vec<Process> = (0..3).map(|_| start()).collect();
    let asked = queue.clone();
    let asking = Asking::begin(move |job| {
        let queue = asked.clone();
        async move { queue.schedule(&job).reply::<u64>().within(TTL * 2).await }
    });
    let mut done = BTreeSet::new();
    let mut read = |done: &mut BTreeSet<u64>| {
        done.extend(history.read().iter().filter_map(|line| match &line.what {
            What::Done(it) => Some(it.number),
            _ => None,
        }));
        done.len()
    };
    for round in 0..=rounds() {
        let before = read(&mut done);
        eventually(async || read(&mut done) >= before + 200, "requests are handled").await;
        if round < rounds() {
            disturb(&server, round, || {
                let one = fastrand::usize(0..workers.len());
                workers[one].kill();
                workers[one] = start();
            })
            .await;
        }
    }
    let late = asking.late().await;
    eventually(
        async || {
            let counts = queue.count().await.expect("counts");
            (counts.waiting.total, counts.claimed) == (0, 0)
        },
        "all is done",
    )
    .await;
    read(&mut done);
    all_found(&mq, late, &done).await;
    // Killed while there is nothing to lose: their reports are not of interest.
    workers.iter_mut().for_each(Process::kill);
}

const PRICES: Topic<u64> = Topic::new("prices").partitions(4);

async fn double(number: Delivery<u64>) -> Reply {
    Reply::json(&(number.payload * 2))
}

/// How often the server has done this command.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or(0)
}

fn connections(server: &Server, of: &str) -> usize {
    server.cli(&["CLIENT", "LIST"]).lines().filter(|line| line.contains(of)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_wait_on_one_connection_and_nothing_is_polled() {
    const MANY: u64 = 10_000;
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(PRICES).await.expect("a producer");
    let before = calls(&server, "get");
    let waiting: Vec<_> = (0..MANY)
        .map(|number| {
            let producer = producer.clone();
            let within = Duration::from_secs(120);
            tokio::spawn(async move { producer.send(&number).reply::<u64>().within(within).await })
        })
        .collect();
    eventually(async || calls(&server, "get") == before + MANY, "each has looked once").await;
    eventually(async || calls(&server, "xadd") == MANY, "each is stored").await;
    assert_eq!(connections(&server, "results"), 1);
    // Longer than any interval at which something could be polled.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(calls(&server, "get"), before + MANY, "nothing is polled");
    let consumer = mq.consumer(PRICES, "g").prefetch(1_000).start(double).await.expect("a consumer");
    for (number, reply) in (0..).zip(waiting) {
        assert_eq!(reply.await.expect("no panic").expect("a reply"), number * 2);
    }
    let looks = calls(&server, "get") - before;
    assert!(looks <= 2 * MANY + 10, "one more look each: {looks}");
    assert_eq!(connections(&server, "results"), 1);
    consumer.shutdown().await;
}

/// Follows to the result. Returns the texts of the lines, without those that came twice since the answer to a request was lost.
async fn texts_of(mut follow: Follow) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        match follow.next().await.expect("it goes on through an outage") {
            Some(Followed::Progress(line)) if !texts.contains(&line.text) => texts.push(line.text),
            Some(Followed::Progress(_)) => {}
            Some(Followed::Result(_)) => return texts,
            other => panic!("{other:?} before the result"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_follow_on_one_connection_through_outages_and_nothing_is_polled() {
    const LINES: u64 = 20;
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let requested: Vec<_> = {
        let producer = mq.producer(PRICES).await.expect("a producer");
        let ask = |number: u64| {
            let producer = producer.clone();
            async move { producer.send(&number).reply::<u64>().begin().await.expect("stored").id }
        };
        futures_util::future::join_all((0..10).map(ask)).await
    };
    let eyes = Millstream::connect(&server.url()).await.expect("connected");
    let following: Vec<_> =
        (0..1_000).map(|nth| tokio::spawn(texts_of(eyes.follow(&requested[nth % 10])))).collect();
    let looks = || (calls(&server, "get"), calls(&server, "hget"), calls(&server, "hmget"));
    eventually(async || looks().0 >= 1_000 && looks().1 >= 1_000, "each has looked").await;
    assert_eq!(connections(&server, "results"), 1);
    let before = looks();
    // Longer than any interval at which something could be polled.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(looks(), before, "nothing is polled");
    let work = async |number: Delivery<u64>| {
        for at in 0..LINES {
            number.progress(at as f64 / LINES as f64, &format!("{} line {at}", number.payload));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Reply::json(&number.payload)
    };
    let consumer = mq.consumer(PRICES, "g").concurrency(Concurrency::Unordered(16));
    let consumer = consumer.start(work).await.expect("a consumer");
    eventually(async || calls(&server, "hset") >= 30, "some of it is done").await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.pause();
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.resume();
    for (nth, follow) in (0_u64..).zip(following) {
        let expected: Vec<_> = (0..LINES).map(|at| format!("{} line {at}", nth % 10)).collect();
        assert_eq!(follow.await.expect("no panic"), expected);
    }
    consumer.shutdown().await;
}

/// A web server that restarts, or another one, finds the results of requests that it did not send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_outlive_whoever_asked_for_them() {
    let server = Server::start();
    let mut ids = Vec::new();
    {
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let producer = mq.producer(PRICES.packed(Packing::new().min_messages(2))).await.expect("a producer");
        let mut begun: FuturesUnordered<_> =
            (0..200)
                .map(|number| {
                    let producer = producer.clone();
                    async move {
                        (number, producer.send(&number).reply::<u64>().begin().await.expect("stored").id)
                    }
                })
                .collect();
        while let Some(id) = begun.next().await {
            ids.push(id);
        }
        producer.close().await;
    }
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let early: Vec<_> = ids
        .iter()
        .map(|(number, id)| {
            (*number, tokio::spawn(mq.result(id).within(Duration::from_secs(60)).into_future()))
        })
        .collect();
    let consumer = mq.consumer(PRICES, "g").start(double).await.expect("a consumer");
    for (number, found) in early {
        let found: MessageResult = found.await.expect("no panic").expect("a look").expect("a result");
        assert_eq!(found.decode::<u64>().expect("a number"), number * 2_u64);
    }
    for (number, id) in &ids {
        let found = mq.result(id).await.expect("a look").expect("a result");
        assert_eq!(found.decode::<u64>().expect("a number"), number * 2);
    }
    consumer.shutdown().await;
}

/// Somebody else's data under the key of a result, which is for whoever knows the number alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_put_there_is_an_error_until_the_message_is_settled() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(PRICES).await.expect("a producer");
    for (put, kind) in [(vec!["LPUSH", "x"], "wrong_type"), (vec!["SET", "{}"], "protocol")] {
        let requested = producer.send(&4).reply::<u64>().begin().await.expect("stored");
        let key = Keys::new().result(&requested.id);
        server.cli(&[put[0], key.as_str(), put[1]]);
        match requested.within(Duration::from_secs(20)).await {
            Err(RequestError::NotRead { error, .. }) => assert_eq!(error.kind().as_str(), kind),
            other => panic!("{other:?}"),
        }
        let consumer = mq.consumer(PRICES, "g").start(double).await.expect("a consumer");
        eventually(async || consumer.report().acked > 0, "it is handled").await;
        let reply = requested.within(Duration::from_secs(20)).await;
        assert_eq!(reply.expect("it replaced what was there"), 8);
        consumer.shutdown().await;
    }
}
