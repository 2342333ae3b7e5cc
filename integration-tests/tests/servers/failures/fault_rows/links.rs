//! Links that are slow, late or gone for one, and servers with no place for more: 68, 73, 75, 76, 78.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use integration_tests::crew::{Crew, Kind, Plan};
use integration_tests::history::{What, figure};
use integration_tests::member::{Job, Mode};
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use millstream::{Concurrency, Consumer, Delivery, Millstream, Topic};

use super::{MS, Pair, Work};
use crate::failures::crash_scenes::BINS;

/// 68: the server has no place for more clients. Who is out waits for one, says so, and asks for no more than it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_of_clients_is_waited_for_and_connections_are_bounded() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let mut pair = Pair::begin(&proxy.url(), Work { time_limit: MS(1_500), ..Work::default() }).await;
    let before = proxy.connections();
    // Others take every place there is, and those of the consumers when these are cut.
    let limit = before + 10;
    server.cli(&["CONFIG", "SET", "maxclients", &limit.to_string()]);
    proxy.cut();
    let mut others = Vec::new();
    let mut admin = server_client(&server);
    let fill = |others: &mut Vec<TcpStream>, admin: &mut redis::Connection| {
        while others.len() < limit + 20 {
            others.push(TcpStream::connect(("127.0.0.1", server.port())).expect("connected"));
        }
        redis::cmd("PING").query::<()>(admin).expect("we are in");
    };
    fill(&mut others, &mut admin);
    proxy.heal();
    pair.tells("Failing").await;
    pair.send(4).await;
    let calls = proxy.accepted();
    tokio::time::sleep(MS(3_000)).await;
    let calls = proxy.accepted() - calls;
    drop(others);
    pair.all_handled().await;
    tokio::time::sleep(MS(1_000)).await;
    let after = proxy.connections();
    figure("fault", &format!("maxclients: {calls} calls in 3 s, {before} connections before, {after} after"));
    assert!(calls <= before as u64 * 40, "{calls} calls in 3 s for {before} connections");
    for _ in 0..5 {
        proxy.reset();
        pair.send(8).await;
    }
    pair.all_handled().await;
    tokio::time::sleep(MS(1_000)).await;
    assert!(proxy.connections() <= before + 2, "{} connections, {before} before", proxy.connections());
    pair.lives_on().await;
}

fn server_client(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).expect("a client").get_connection().expect("a connection")
}

/// 73: answers come later than the wait that was asked for. That is no error, and no reason for another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_late_by_the_way_they_have_are_no_error() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    // A renewal has a quarter of the ttl for its answer.
    let mut pair = Pair::begin(&proxy.url(), Work { ttl: MS(8_000), ..Work::default() }).await;
    proxy.delay(MS(300));
    pair.send(20).await;
    pair.all_handled().await;
    let (connections, failing) = (proxy.connections(), pair.told("Failing"));
    tokio::time::sleep(MS(9_000)).await;
    let began = Instant::now();
    pair.send(20).await;
    pair.all_handled().await;
    figure("fault", &format!("300 ms each way: 20 messages in {:.1?} after 9 s of silence", began.elapsed()));
    assert_eq!(pair.told("Failing"), failing, "{:#?}", pair.last_told());
    assert!(
        proxy.connections() <= connections + 4,
        "{} connections, {connections} before",
        proxy.connections()
    );
    assert_eq!((pair.told("LeaseLost"), pair.doubled()), (0, 0));
    proxy.delay(Duration::ZERO);
    pair.lives_on().await;
}

/// 75: a slow link that messages fill for longer than the lease lives. Renewals get through beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_full_of_messages_loses_no_lease() {
    const BYTES: usize = 16 << 10;
    const COUNT: u64 = 160;
    const RATE: u64 = 320 << 10;
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let mut pair = Pair::begin(&proxy.url(), Work { ttl: MS(2_000), ..Work::default() }).await;
    // They are there at once, and only the way to the consumers is slow.
    proxy.freeze(Way::Down);
    let direct = Millstream::connect(&server.url()).await.expect("connected");
    let producer =
        std::mem::replace(&mut pair.producer, direct.producer(super::TOPIC).await.expect("a producer"));
    assert_eq!(pair.send_large(COUNT, BYTES).await as u64, COUNT);
    proxy.rate(Some(RATE));
    proxy.thaw();
    let began = Instant::now();
    pair.all_handled().await;
    let took = began.elapsed();
    let ideal = Duration::from_secs_f64(COUNT as f64 * BYTES as f64 / RATE as f64);
    let text = format!(
        "{COUNT} of 16 KiB at 320 KiB/s: {took:.1?}, {ideal:.1?} at best; {} leases lost, {} handled again, {} KiB read",
        pair.told("LeaseLost"),
        pair.doubled(),
        proxy.bytes(Way::Down) >> 10
    );
    figure("fault", &text);
    assert_eq!((pair.told("LeaseLost"), pair.doubled()), (0, 0), "{:#?}", pair.last_told());
    proxy.rate(None);
    pair.producer = producer;
    pair.lives_on().await;
}

/// 76: one member is cut off silently and continues to work. Its handlers are notified before another member begins,
/// and a store that compares epochs accepts nothing from it afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_behind_a_dead_link_are_told_before_the_next_owner_begins() {
    let server = Server::start();
    let plan = Plan { mode: Mode::Unordered(4), partitions: 4, ..Plan::new(Kind::Exclusive, MS(2_000)) };
    let mut crew = Crew::new(BINS, &server.url(), plan).await;
    let proxy = Proxy::to(server.port());
    let cut = crew.start_at(&proxy.url());
    let other = crew.start();
    crew.settled().await;
    // On the first delivery a handler works until it is notified; on the next owner's it ends at once.
    let jobs: Vec<Job> = (0..16).map(|number| Job { hold: [true, false], ..Job::new(number) }).collect();
    crew.send(&jobs).await;
    crew.until("all are begun", |crew| crew.starts.len() == jobs.len()).await;
    let theirs: Vec<u64> = {
        let of_cut = crew.starts.iter().filter(|(_, starts)| starts[0].pid == cut);
        of_cut.map(|(number, _)| *number).collect()
    };
    assert!(!theirs.is_empty());
    proxy.freeze(Way::Up);
    proxy.freeze(Way::Down);
    let again = |crew: &Crew| theirs.iter().all(|number| crew.starts[number].len() == 2);
    crew.until("the other one has begun them", again).await;
    let lines = &crew.history.lines;
    let place = |pid: u32, number: u64, started: bool| {
        lines.iter().position(|line| {
            line.pid == pid
                && match &line.what {
                    What::Started(it) => started && it.number == number,
                    What::Cancelled(it) => !started && it.number == number,
                    _ => false,
                }
        })
    };
    for number in &theirs {
        let (told, begun) = (place(cut, *number, false), place(other, *number, true));
        assert!(told.is_some() && told < begun, "{number}: told at line {told:?}, begun again at {begun:?}");
    }
    proxy.heal();
    for process in crew.processes.values() {
        process.release();
    }
    crew.until("all are done", |crew| crew.done.len() == jobs.len()).await;
    // What a store does that refuses smaller epochs: the last word on each message is the newest owner's.
    let mut store: BTreeMap<u64, u64> = BTreeMap::new();
    for line in &crew.history.lines {
        if let What::Done(it) = &line.what {
            let newest = store.entry(it.partition.into()).or_default();
            if it.epoch < *newest {
                assert!(
                    crew.starts[&it.number].iter().any(|start| start.handling.epoch >= *newest),
                    "{it:?}"
                );
            }
            *newest = (*newest).max(it.epoch);
        }
    }
    assert_eq!(crew.dead().await, []);
    crew.end().await;
}

/// 78: a server that many wait for is not called by all of them at once and all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_wait_for_a_server_call_it_with_pauses() {
    const INSTANCES: usize = 25;
    const STEPS: usize = 200;
    const JOBS: Topic<u64> = Topic::new("jobs").partitions(8);
    let mut server = Server::builder().appendonly(true).start();
    let proxy = Proxy::to(server.port());
    let mut consumers: Vec<Consumer> = Vec::new();
    for _ in 0..INSTANCES {
        let mq = Millstream::connect(&proxy.url()).await.expect("connected");
        let consumer = mq.consumer(JOBS, "g").concurrency(Concurrency::Unordered(2)).lease_ttl(MS(3_000));
        consumers.push(consumer.start(|_: Delivery<u64>| async {}).await.expect("started"));
    }
    let producer = Millstream::connect(&proxy.url()).await.expect("connected");
    let producer = producer.producer(JOBS).await.expect("a producer");
    producer.send(&0).await.expect("sent");
    let connections = proxy.connections();
    server.kill();
    // The first calls come at once; it is the rest that matters.
    tokio::time::sleep(MS(1_500)).await;
    let mut steps = Vec::new();
    let began = Instant::now();
    for _ in 0..STEPS {
        let before = proxy.accepted();
        tokio::time::sleep(MS(20)).await;
        steps.push(proxy.accepted() - before);
    }
    let away = began.elapsed().as_secs_f64();
    let calls: u64 = steps.iter().sum();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    let most: u64 = steps[..STEPS / 10].iter().sum();
    server.restart();
    let before = proxy.accepted();
    let began = Instant::now();
    for number in 1..=50 {
        producer.send(&number).await.expect("sent");
    }
    let handled = || consumers.iter().map(|consumer| consumer.report().acked).sum::<u64>();
    integration_tests::eventually(async || handled() >= 51, "all is handled").await;
    let took = began.elapsed();
    tokio::time::sleep(MS(3_000)).await;
    let after = proxy.accepted() - before;
    let text = format!(
        "{connections} connections: {calls} calls in {away:.1} s while the server was away, {most} of them in the fullest \
         tenth of the time; {after} in 3 s after, {} then; all handled after {took:.1?}",
        proxy.connections()
    );
    figure("fault", &text);
    let often = connections as f64 * away * 6.0;
    assert!((calls as f64) < often, "{calls} calls in {away:.1} s for {connections} connections");
    // If all called at once, every 200 ms, the fullest tenth of the time would have all the calls.
    assert!(most * 2 < calls, "{most} of {calls} calls in a tenth of the time");
    assert!(after <= connections as u64 * 3, "{after} calls for {connections} connections");
    for consumer in consumers {
        consumer.shutdown().await;
    }
}
