//! What is deleted while consumers run stays deleted: they end and say why. What is lost comes back.

use std::time::Duration;

use crate::support::*;
use millstream_core::catalog::REMEMBERED;
use millstream_core::{ErrorKind, GroupName, TopicName, TopicSpec};
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
        assert!(bench.backend.catalog().delete_topic(&topic()).await.expect("deleted"));
        ends(&bench, consumer, "numbers").await;
        let found = bench.backend.catalog().topic(&topic()).await;
        assert_eq!(found.expect_err("deleted").kind(), ErrorKind::NotFound);
        assert!(bench.backend.catalog().topics().await.expect("topics").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_deleted_stays_so_and_its_consumers_end() {
    for mode in MODES {
        let bench = bench();
        produce(&bench, 10).await;
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        assert!(bench.backend.catalog().delete_group(&topic(), &group()).await.expect("deleted"));
        ends(&bench, consumer, "group g").await;
        assert!(bench.backend.catalog().groups(&topic()).await.expect("groups").is_empty());
        // Who starts anew wants it.
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        consumer.shutdown().await;
    }
}

/// Running the consumer to its end returns the error.
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
        bench.backend.catalog().delete_topic(&topic()).await.expect("deleted")
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
        let catalog = bench.backend.catalog().clone();
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

/// The topic was deleted long ago and created again: the deletion is not reported any more.
#[tokio::test(start_paused = true)]
async fn a_topic_that_is_made_anew_is_consumed() {
    let bench = bench();
    produce(&bench, 1).await;
    bench.backend.catalog().delete_topic(&topic()).await.expect("deleted");
    produce(&bench, 10).await;
    let (consumer, seen) = start(&bench, MODES[0]).await;
    until(&seen, 10).await;
    sleep(Duration::from_secs(60)).await;
    assert!(consumer.cause().is_none());
    consumer.shutdown().await;
}

/// With more partitions than the constant says.
async fn wide(bench: &Bench) -> TopicSpec {
    let spec = TopicSpec::new(topic(), 4).expect("a topic");
    bench.backend.catalog().create_topic(&spec).await.expect("created")
}

/// Clients of the previous topic receive the deletion, however soon a new one has its name, and do not expand it.
#[tokio::test(start_paused = true)]
async fn a_consumer_has_no_part_in_a_topic_that_is_created_in_the_place_of_its_own() {
    for mode in MODES {
        let bench = bench();
        wide(&bench).await;
        produce(&bench, 10).await;
        let (consumer, seen) = start(&bench, mode).await;
        until(&seen, 10).await;
        let catalog = bench.backend.catalog();
        assert!(catalog.delete_topic(&topic()).await.expect("deleted"));
        let fewer = TopicSpec::new(topic(), 1).expect("a topic");
        let created = catalog.create_topic(&fewer).await.expect("created");
        ends(&bench, consumer, "numbers").await;
        assert_eq!(catalog.topic(&topic()).await.expect("the new one"), created);
        assert!(catalog.groups(&topic()).await.expect("groups").is_empty());
        let roster = bench.backend.members().roster(&topic(), &group()).await.expect("a roster");
        assert!(roster.members.is_empty(), "{roster:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_producer_is_refused_when_its_topic_was_deleted_until_there_is_another() {
    let bench = bench();
    let catalog = bench.backend.catalog();
    wide(&bench).await;
    let producer = bench.producing(NUMBERS).refresh(Duration::from_secs(1)).await.expect("a producer");
    producer.send(&1).await.expect("sent");
    assert_eq!(producer.partitions(), 4);
    assert!(catalog.delete_topic(&topic()).await.expect("deleted"));
    // For longer than anybody else remembers it.
    for wait in [Duration::from_secs(2), REMEMBERED, REMEMBERED] {
        sleep(wait).await;
        let refused = producer.send(&2).await.expect_err("deleted");
        assert_eq!(refused.kind(), ErrorKind::Deleted, "{refused}");
        let delayed = producer.send(&3).delay(MS(1)).await.expect_err("deleted");
        assert_eq!(delayed.kind(), ErrorKind::Deleted, "{delayed}");
        assert_eq!(catalog.topic(&topic()).await.expect_err("deleted").kind(), ErrorKind::NotFound);
    }
    catalog.create_topic(&TopicSpec::new(topic(), 1).expect("a topic")).await.expect("created");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(producer.send(&4).await.expect("sent").partition.0, 0);
    assert_eq!(producer.partitions(), 1);
}

/// It was deleted and created again between two looks of the producer.
#[tokio::test(start_paused = true)]
async fn a_producer_sends_to_the_partitions_of_the_topic_that_is_there() {
    let bench = bench();
    let catalog = bench.backend.catalog();
    wide(&bench).await;
    let producer = bench.producing(NUMBERS).refresh(Duration::from_secs(1)).await.expect("a producer");
    assert_eq!(producer.partitions(), 4);
    catalog.delete_topic(&topic()).await.expect("deleted");
    catalog.create_topic(&TopicSpec::new(topic(), 1).expect("a topic")).await.expect("created");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(producer.partitions(), 1);
    producer.send(&1).await.expect("sent");
}

/// The server lost everything: nobody has deleted it, and nobody consumes it who would restore it.
#[tokio::test(start_paused = true)]
async fn a_producer_restores_a_topic_that_was_lost() {
    let bench = bench();
    let empty = bench.memory.operator().snapshot();
    wide(&bench).await;
    let producer = bench.producing(NUMBERS).refresh(Duration::from_secs(1)).await.expect("a producer");
    let catalog = bench.backend.catalog();
    let spec = catalog.topic(&topic()).await.expect("a topic");
    bench.memory.operator().restore(&empty);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(catalog.topic(&topic()).await.expect("restored"), spec);
    producer.send(&1).await.expect("sent");
}
