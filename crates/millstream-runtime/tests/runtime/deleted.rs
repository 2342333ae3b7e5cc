//! What is deleted while consumers run stays deleted: they end and say why. What is lost comes back.

use std::time::Duration;

use crate::support::*;
use millstream_core::{ErrorKind, GroupName, TopicName};
use millstream_runtime::{
    Concurrency, Consumer, ConsumerBuilder, ConsumerEvent, ConsumerState, Delivery, Sharing,
};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(9);

fn topic() -> TopicName {
    "numbers".parse().expect("name")
}

fn group() -> GroupName {
    "g".parse().expect("name")
}

async fn start(bench: &Bench, mode: Mode) -> (Consumer, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let builder = mode(bench.consumer(NUMBERS, "g").lease_ttl(TTL));
    let started = builder.start(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async {}
    });
    (started.await.expect("started"), seen)
}

type Mode = fn(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>;

/// With owners, and without.
const MODES: [Mode; 2] =
    [|builder| builder, |builder| builder.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(4))];

/// It ends by itself within a heartbeat, says why wherever one may look, and brings nothing back.
async fn ends(bench: &Bench, consumer: Consumer, what: &str) {
    let mut events = consumer.events();
    let since = Instant::now();
    timeout(Duration::from_secs(60), consumer.ended()).await.expect("it ends by itself");
    assert!(since.elapsed() <= TTL, "{:?}", since.elapsed());
    let cause = consumer.cause().expect("a cause");
    assert_eq!(cause.kind(), ErrorKind::Deleted);
    assert!(cause.to_string().contains(what), "{cause}");
    let health = consumer.health();
    assert_eq!((health.state, health.is_live(), health.is_ready()), (ConsumerState::Deleted, false, false));
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(event);
    }
    let deleted = told.iter().filter(|event| matches!(event, ConsumerEvent::Deleted { .. })).count();
    assert_eq!(deleted, 1, "{told:?}");
    assert_eq!(bench.told.lines("Deleted {"), 1);
    // A handler's report is still there, and nothing comes after it.
    consumer.shutdown().await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.told.lines("GroupRestored"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_deleted_stays_so_and_its_consumers_end() {
    for mode in MODES {
        let bench = bench();
        produce(&bench, 10).await;
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        assert!(bench.backend.catalog.delete_topic(&topic()).await.expect("deleted"));
        ends(&bench, consumer, "numbers").await;
        let found = bench.backend.catalog.topic(&topic()).await;
        assert_eq!(found.expect_err("deleted").kind(), ErrorKind::NotFound);
        assert!(bench.backend.catalog.topics().await.expect("topics").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_deleted_stays_so_and_its_consumers_end() {
    for mode in MODES {
        let bench = bench();
        produce(&bench, 10).await;
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        assert!(bench.backend.catalog.delete_group(&topic(), &group()).await.expect("deleted"));
        ends(&bench, consumer, "group g").await;
        assert!(bench.backend.catalog.groups(&topic()).await.expect("groups").is_empty());
        // Who starts anew wants it.
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        consumer.shutdown().await;
    }
}

/// Whoever waits for the end of the program hears of it there.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_run_ends_with_the_error() {
    let bench = bench();
    produce(&bench, 1).await;
    let seen = Seen::default();
    let noted = seen.clone();
    let run = bench.consumer(NUMBERS, "g").lease_ttl(TTL).run(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async {}
    });
    let delete = async {
        until(&seen, 1).await;
        bench.backend.catalog.delete_topic(&topic()).await.expect("deleted")
    };
    let (ended, deleted) = tokio::join!(run, delete);
    assert!(deleted);
    assert_eq!(ended.expect_err("deleted").kind(), ErrorKind::Deleted);
}

/// The server lost everything, in a fail-over to an empty replica: that nobody wanted.
#[tokio::test(start_paused = true)]
async fn what_was_lost_with_the_data_is_restored() {
    for mode in MODES {
        let bench = bench();
        let empty = bench.memory.operator().snapshot();
        produce(&bench, 10).await;
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        bench.memory.operator().restore(&empty);
        let catalog = bench.backend.catalog.clone();
        let restored = async {
            while catalog.groups(&topic()).await.expect("groups").is_empty() {
                sleep(MS(10)).await;
            }
        };
        timeout(Duration::from_secs(60), restored).await.expect("restored");
        produce(&bench, 10).await;
        until(&seen, 20).await;
        assert!(consumer.cause().is_none());
        consumer.shutdown().await;
    }
}

/// It was deleted long ago, and somebody made it again: nobody is told of the first time.
#[tokio::test(start_paused = true)]
async fn a_topic_that_is_made_anew_is_consumed() {
    let bench = bench();
    produce(&bench, 1).await;
    bench.backend.catalog.delete_topic(&topic()).await.expect("deleted");
    produce(&bench, 10).await;
    let (consumer, seen) = start(&bench, MODES[0]).await;
    until(&seen, 10).await;
    sleep(Duration::from_secs(60)).await;
    assert!(consumer.cause().is_none());
    consumer.shutdown().await;
}
