//! How many connections a process with many producers and partitions has, and what those that share them cost.
//!
//! `MILLSTREAM_PARTITIONS`, `MILLSTREAM_PRODUCERS` and `MILLSTREAM_READERS` set the sizes, for figures by hand.

use std::env;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use integration_tests::eventually;
use integration_tests::history::{figure, quantiles};
use integration_tests::server::Server;
use millstream::{Delivery, Millstream, Topic};
use millstream_redis::{RedisBackend, RedisConfig};

/// Most connections of a process to a node.
const MOST: usize = 80;

fn size(name: &str, default: u32) -> u32 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Names of the connections of the process, sorted, with how many of each there are.
fn connections(server: &Server) -> Vec<(String, usize)> {
    let list = server.cli(&["CLIENT", "LIST"]);
    let mut names: Vec<String> = list
        .lines()
        .filter_map(|line| line.split(' ').find_map(|word| word.strip_prefix("name=millstream:")))
        .map(str::to_owned)
        .collect();
    names.sort();
    let mut counted: Vec<(String, usize)> = Vec::new();
    for name in names {
        match counted.last_mut().filter(|(last, _)| *last == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    counted
}

/// CPU time of the server, in microseconds.
fn cpu(server: &Server) -> f64 {
    let info = server.cli(&["INFO", "cpu"]);
    let read = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.trim().strip_prefix(name));
        line.and_then(|value| value.parse().ok()).expect("seconds")
    };
    (read("used_cpu_sys:") + read("used_cpu_user:")) * 1e6
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_producers_and_partitions_have_few_connections() {
    let (partitions, producers) = (size("MILLSTREAM_PARTITIONS", 200), size("MILLSTREAM_PRODUCERS", 100));
    let server = Server::start();
    let readers = size("MILLSTREAM_READERS", 64) as usize;
    let config = RedisConfig::new(server.url()).with_max_reader_connections(readers);
    let mq = Millstream::over(RedisBackend::connect(config).await.expect("connected").into());
    let topic = Topic::<(u32, u64)>::new("many").partitions(partitions);
    let begun = Instant::now();
    let handled = Arc::new(Mutex::new(Vec::new()));
    let log = handled.clone();
    let consumer = mq.consumer(topic.clone(), "g").start(move |message: Delivery<(u32, u64)>| {
        let (log, now) = (log.clone(), begun.elapsed());
        async move {
            let late = now.saturating_sub(Duration::from_micros(message.payload.1));
            log.lock().expect("lock").push((message.payload.0, late));
            Ok::<(), millstream::Error>(())
        }
    });
    let consumer = consumer.await.expect("a consumer");
    let mut senders = Vec::new();
    for _ in 0..producers {
        senders.push(mq.producer(topic.clone()).await.expect("a producer"));
    }
    let now = || u64::try_from(begun.elapsed().as_micros()).expect("soon");
    // All at once, to all partitions.
    let sends = (0..partitions.max(producers)).map(|number| {
        let (sender, at) = (&senders[number as usize % senders.len()], now());
        async move { sender.send(&(number, at)).partition(number % partitions).await }
    });
    for sent in join_all(sends).await {
        sent.expect("stored");
    }
    let all = partitions.max(producers) as usize;
    let count = || handled.lock().expect("lock").len();
    eventually(async || count() == all, "all are handled").await;
    let after_all = connections(&server);

    // One at a time, to partitions that were idle.
    handled.lock().expect("lock").clear();
    let alone = 300;
    for number in 0..alone {
        let partition = fastrand::u32(0..partitions);
        senders[0].send(&(number, now())).partition(partition).await.expect("stored");
        eventually(async || count() > number as usize, "it is handled").await;
    }
    let late: Vec<u64> = {
        let handled = handled.lock().expect("lock");
        handled.iter().map(|(_, late)| u64::try_from(late.as_micros()).expect("soon")).collect()
    };

    let (before, since) = (cpu(&server), Instant::now());
    tokio::time::sleep(Duration::from_secs(if env::var_os("MILLSTREAM_PARTITIONS").is_some() {
        30
    } else {
        1
    }))
    .await;
    let idle = (cpu(&server) - before) / since.elapsed().as_micros() as f64 * 100.0;
    let total: usize = after_all.iter().map(|(_, count)| count).sum();
    figure(
        "connections",
        &format!(
            "{partitions} partitions, {producers} producers: {total} connections {after_all:?}, idle {idle:.1} % of a core; one \
             message to an idle partition: {}",
            quantiles(&late)
        ),
    );
    assert!(total <= MOST || readers > 64, "{total} connections: {after_all:?}");
    consumer.shutdown().await;
}
