//! Idempotent calls on real servers: processes that die, and servers that stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use integration_tests::server::Server;
use millstream::{CallError, Error, Millstream};
use millstream_core::idempotency::{Begun, Operation};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(1);

/// Work that takes a time and returns how often it was done.
async fn work(done: &AtomicUsize, takes: Duration) -> Result<usize, io::Error> {
    sleep(takes).await;
    Ok(done.fetch_add(1, Ordering::SeqCst) + 1)
}

async fn run(
    mq: &Millstream,
    key: &str,
    done: &AtomicUsize,
    takes: Duration,
) -> (usize, bool, Option<Error>) {
    let calls = mq.idempotent("charges").lease_ttl(TTL);
    let called = calls.run(key.to_owned(), || work(done, takes)).await.expect("a result");
    (called.value, called.is_duplicate, called.not_kept)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_one_result_for_all_instances_and_a_dead_one_blocks_it_for_a_ttl() {
    let server = Server::start();
    let mut instances = Vec::new();
    for _ in 0..5 {
        instances.push(Millstream::connect(&server.url()).await.expect("connected"));
    }
    let done = Arc::new(AtomicUsize::new(0));
    // Longer than the ttl, by several instances at once.
    let calls = (0..50).map(|at| {
        let (mq, done) = (instances[at % 5].clone(), done.clone());
        tokio::spawn(async move { run(&mq, "key", &done, TTL * 2).await })
    });
    let mut first = 0;
    for call in calls.collect::<Vec<_>>() {
        let (value, is_duplicate, not_kept) = call.await.expect("no panic");
        assert!(value == 1 && not_kept.is_none(), "{value} {not_kept:?}");
        first += usize::from(!is_duplicate);
    }
    assert_eq!((first, done.load(Ordering::SeqCst)), (1, 1));

    // A process began and died.
    let role = instances[0].backend().idempotency().expect("the role");
    let operation = Operation::new("charges".parse().expect("name"), "_calls".parse().expect("name"), "dead");
    let begun = role.begin(&operation.expect("an operation"), "dead", "t", TTL).await.expect("begun");
    assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
    let impatient = instances[1].idempotent("charges").wait(Duration::ZERO);
    let refused = impatient.run("dead", || work(&done, Duration::ZERO)).await;
    assert!(matches!(&refused, Err(CallError::Running { holder, .. }) if holder == "dead"), "{refused:?}");
    let (value, is_duplicate, _) = run(&instances[2], "dead", &done, Duration::ZERO).await;
    assert_eq!((value, is_duplicate), (2, false));
    assert_eq!(run(&instances[3], "dead", &done, Duration::ZERO).await.0, 2);

    // A large result: the JSON of a NUL has six bytes.
    let large = instances[0].idempotent("charges");
    let text = "ü\0 ".repeat(7_000);
    let kept = large.run("large", async || Ok::<_, io::Error>(text.clone())).await.expect("a result");
    assert!(kept.not_kept.is_none(), "{:?}", kept.not_kept);
    let again = large.run("large", async || Ok::<_, io::Error>(String::new())).await.expect("a result");
    assert!(again.is_duplicate && again.value == text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_while_the_work_runs_costs_no_result() {
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    for outage in [TTL / 2, TTL, TTL * 2] {
        let (key, done) = (format!("{outage:?}"), AtomicUsize::new(0));
        let stops = async {
            sleep(TTL / 2).await;
            server.pause();
            sleep(outage).await;
            server.resume();
        };
        let (first, ()) = tokio::join!(run(&mq, &key, &done, TTL * 2), stops);
        assert!(first.0 == 1 && !first.1, "{outage:?}: {first:?}");
        let again = run(&mq, &key, &done, Duration::ZERO).await;
        assert!(again.0 == 1 && again.1, "{outage:?}: {again:?}");
    }
}
