//! Sends with a unique id while workers are killed, answers are lost and the server is away: at most one message with an id is
//! unsettled, and no id stays in use.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use integration_tests::fixture::Fixture;
use integration_tests::history::{What, figure};
use integration_tests::member::{End, Job, Setup};
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::{Delivery, ErrorKind, Millstream, Record, Topic};
use millstream_redis::{RedisBackend, RedisConfig};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);
const LOG: &str = "stream:topic:{numbers:p:0}";

fn length(server: &Server) -> usize {
    server.cli(&["XLEN", LOG]).trim().parse().expect("a number")
}

/// Handlers settle each message before the producer repeats its send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_whose_answer_is_lost_returns_its_own_message_though_that_is_settled() {
    let server = tokio::task::spawn_blocking(|| Server::builder().start()).await.expect("a server");
    let proxy = Proxy::to(server.port());
    let config = RedisConfig::new(proxy.url()).with_response_timeout(Duration::from_secs(1));
    let mq = Millstream::over(RedisBackend::connect(config).await.expect("connected").into());
    let direct = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(NUMBERS).await.expect("a producer");
    let started = direct.consumer(NUMBERS, "group").start(async |_: Delivery<u64>| {});
    let consumer = started.await.expect("started");
    // The server knows the script from now on.
    producer.send(&0).unique("first").await.expect("sent");
    for n in 1..=5 {
        let id = format!("order-{n}");
        proxy.swallow(&id, 1);
        let sent = producer.send(&n).unique(&id).await.expect("repeated until it is answered");
        assert!(!sent.is_duplicate, "it is the message of this send: {sent:?}");
        assert_eq!(proxy.swallowed(), usize::try_from(n).expect("few"), "its answer was cut off");
        let stats = async || direct.stats(&NUMBERS, "group").await.expect("stats")[0].clone();
        eventually(async || stats().await.lag == Some(0) && stats().await.pending == 0, "it is settled")
            .await;
    }
    let appended = server.cli(&["XINFO", "STREAM", LOG]);
    let added = appended.lines().skip_while(|line| !line.contains("entries-added")).nth(1);
    assert_eq!(added.map(str::trim), Some("6"), "one entry for each send: {appended}");

    // What is sent arrives, and no answer comes back; the caller repeats it.
    consumer.shutdown().await;
    proxy.freeze(Way::Down);
    let hasty = mq.producer(NUMBERS).delivery_timeout(Duration::from_millis(1_500));
    let hasty = tokio::time::timeout(Duration::from_millis(1), hasty).await;
    assert!(hasty.is_err(), "it cannot be built while nothing is answered");
    proxy.thaw();
    let hasty =
        mq.producer(NUMBERS).delivery_timeout(Duration::from_millis(1_500)).await.expect("a producer");
    hasty.send(&7).unique("known").await.expect("sent");
    let before = length(&server);
    proxy.freeze(Way::Down);
    let stalled = hasty.send(&8).unique("stalled").await.expect_err("no answer in time");
    assert_eq!(stalled.kind(), ErrorKind::Unconfirmed, "{stalled}");
    proxy.reset();
    proxy.thaw();
    let mut again = producer.send(&8).unique("stalled").await;
    for _ in 0..9 {
        if again.is_ok() {
            break;
        }
        again = producer.send(&8).unique("stalled").await;
    }
    assert!(again.expect("sent").is_duplicate, "it waits for a consumer");
    assert_eq!(length(&server), before + 1);
}

/// One id, one message after the other, while processes die at any moment: before, in and behind the handler, and around the
/// acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_are_killed_leave_no_id_in_use_and_no_two_messages_at_once() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start();
    let setup =
        Setup { ttl_ms: 200, attempts: 3, crash_limit: 1_000, ..Setup::new(&server.url(), "jobs", 1) };
    let mut scene = Fixture::new(env!("CARGO_BIN_EXE_member"), setup).await;
    for _ in 0..2 {
        scene.start();
    }
    let (mut stored, mut kills, began) = (Vec::new(), 0_u32, Instant::now());
    let mut next_kill = Instant::now() + Duration::from_millis(300);
    for number in 0_u64.. {
        if stored.len() >= 60 && kills >= 12 {
            break;
        }
        assert!(began.elapsed() < 2 * HANG, "{} stored, {kills} kills", stored.len());
        let end = if number % 7 == 6 { End::DeadLetter } else { End::Ack };
        let job =
            Job { work_us: 2_000, fails: u32::from(number % 3 == 1), end: [end; 2], ..Job::new(number) };
        let sent = scene.producer.send(&job).unique("the job").await.expect("sent");
        if !sent.is_duplicate {
            stored.push(number);
        }
        if Instant::now() >= next_kill {
            let pids = scene.pids();
            scene.kill(pids[random.usize(..pids.len())]);
            scene.start();
            kills += 1;
            next_kill = Instant::now() + Duration::from_millis(random.u64(100..500));
        }
    }
    scene.at_rest().await;
    let last = Job::new(u64::MAX);
    assert!(
        !scene.producer.send(&last).unique("the job").await.expect("sent").is_duplicate,
        "the id is free"
    );
    scene.at_rest().await;
    scene.end().await;

    // All handlings of a message come before those of the next one.
    let mut spans: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for (at, line) in scene.read().iter().enumerate() {
        if let What::Started(handling) = &line.what {
            let span = spans.entry(handling.number).or_insert((at, at));
            span.1 = at;
        }
    }
    assert_eq!(spans.len(), stored.len() + 1, "each message that was stored was handled, and no other");
    let spans: Vec<_> = spans.into_iter().collect();
    for two in spans.windows(2) {
        assert!(two[0].1.1 < two[1].1.0, "{:?} and {:?} were unsettled at once", two[0], two[1]);
    }
    figure("unique: messages one after the other", &format!("{} with {kills} kills", stored.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_knows_what_is_in_use() {
    let mut server =
        tokio::task::spawn_blocking(|| Server::builder().appendonly(true).start()).await.expect("a server");
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(NUMBERS).await.expect("a producer");
    let values: Vec<u64> = (0..300).collect();
    let records = || values.iter().map(|n| Record::new(n).unique(format!("id {n}")));
    let first: Vec<_> =
        producer.send_all(records()).await.into_iter().map(|sent| sent.expect("sent").id).collect();
    for away in [300, 1_500] {
        server.kill();
        let waiting = {
            let producer = producer.clone();
            tokio::spawn(async move { producer.send(&0).unique("id 0").await })
        };
        tokio::time::sleep(Duration::from_millis(away)).await;
        server.restart();
        let sent = waiting.await.expect("a sender").expect("sent when the server is back");
        assert_eq!((sent.id, sent.is_duplicate), (first[0], true));
        let again = producer.send_all(records()).await;
        for (again, first) in again.into_iter().zip(&first) {
            let again = again.expect("sent");
            assert_eq!((again.id, again.is_duplicate), (*first, true));
        }
    }
    assert_eq!(length(&server), 300);
}
