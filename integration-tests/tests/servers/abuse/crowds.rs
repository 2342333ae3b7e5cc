//! Many clients at once, and more of them than the server has places for.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use integration_tests::eventually;
use integration_tests::history::figure;
use integration_tests::server::Server;
use millstream::{Concurrency, Delivery, ErrorKind, Millstream, Topic};

const JOBS: Topic<u64> = Topic::new("jobs").partitions(8);

/// Number of connections that the server has accepted so far, this question's own among them.
fn accepted(server: &Server) -> u64 {
    let info = server.cli(&["INFO", "stats"]);
    let count = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// Number of connections that the server has, without this question's.
fn clients(server: &Server) -> usize {
    server.cli(&["CLIENT", "LIST"]).lines().filter(|line| !line.trim().is_empty()).count() - 1
}

/// Each client has its own connections, as those of separate processes. The server closes all of them at the same moment.
/// Each opens as many again as it had, and about as many are opened at all: nobody tries over and over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_that_are_cut_at_once_come_back_without_a_storm() {
    const CLIENTS: u64 = 200;
    const WORKERS: usize = 10;
    const CUTS: u64 = 3;
    let server = Server::start();
    let handled = Arc::new(AtomicU64::new(0));
    let mut consumers = Vec::new();
    let mut producers = Vec::new();
    for number in 0..CLIENTS as usize {
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        producers.push(mq.producer(JOBS).await.expect("a producer"));
        if number % (CLIENTS as usize / WORKERS) == 0 {
            let handled = handled.clone();
            let consumer = mq.consumer(JOBS, "g").concurrency(Concurrency::Unordered(8));
            let consumer = consumer.start(move |_: Delivery<u64>| {
                handled.fetch_add(1, Ordering::Relaxed);
                async {}
            });
            consumers.push(consumer.await.expect("started"));
        }
    }
    let round = async |number: u64| {
        let sends = producers.iter().map(|producer| async move { producer.send(&number).await });
        join_all(sends).await
    };
    let mut stored = 0;
    let mut seen = async |results: Vec<millstream::Result<millstream::Sent>>| {
        for sent in &results {
            match sent {
                Ok(_) => stored += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}"),
            }
        }
        eventually(async || handled.load(Ordering::Relaxed) >= stored, "all that is stored is handled").await;
        results.iter().filter(|sent| sent.is_ok()).count() as u64
    };
    assert_eq!(seen(round(0).await).await, CLIENTS);
    let settled = async || {
        // A hand-over opens and closes some.
        let count = clients(&server);
        tokio::time::sleep(Duration::from_millis(50)).await;
        clients(&server) == count
    };
    eventually(settled, "the number of connections stands still").await;
    let before = clients(&server) as u64;
    assert!(before >= CLIENTS, "{before} connections");
    let mut opened = Vec::new();
    for cut in 1..=CUTS {
        let from = accepted(&server);
        for kind in ["normal", "pubsub"] {
            server.cli(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
        }
        // All of them send at once. A send that had not reached the server goes over the next connection; one that may have
        // is unconfirmed.
        seen(round(2 * cut - 1).await).await;
        assert_eq!(seen(round(2 * cut).await).await, CLIENTS, "everybody is back");
        // Without the two kills and this question.
        opened.push((accepted(&server) - from).saturating_sub(3));
        let after = clients(&server) as u64;
        assert!(after <= before + WORKERS as u64, "{after} connections, {before} before");
    }
    figure(
        "abuse",
        &format!("{CLIENTS} clients with {before} connections were cut {CUTS} times: {opened:?} opened"),
    );
    for opened in &opened {
        assert!(*opened <= 2 * before, "{opened} connections were opened for {before}");
    }
    for consumer in consumers {
        let report = consumer.shutdown().await;
        assert_eq!((report.retried, report.dead), (0, 0));
    }
}

/// A client that finds the server full gets a typed error, which has the server's text if that arrives before the connection is
/// closed, and comes in when there is a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_finds_no_place_gets_a_typed_error_and_comes_in_later() {
    let server = Server::builder().arg("--maxclients", "20").start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(JOBS).delivery_timeout(Duration::from_secs(30)).await.expect("a producer");
    producer.send(&1).await.expect("stored");
    let mut others = Vec::new();
    while others.len() < 30 {
        others.push(TcpStream::connect(("127.0.0.1", server.port())).expect("connected"));
    }
    // Who is in stays in.
    producer.send(&2).await.expect("stored");
    let error = Millstream::connect(&server.url()).await.expect_err("there is no place");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_transient(), "{error}");
    drop(others);
    let late = async || Millstream::connect(&server.url()).await.is_ok();
    eventually(late, "there is a place").await;
    producer.send(&3).await.expect("stored");
}
