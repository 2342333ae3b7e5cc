//! Consumers that have nothing to do, over a backend that ends with the process: hours pass with few requests, and what holds for
//! other backends holds too.

use std::sync::Arc;
use std::time::Duration;

use crate::support::link::link;
use crate::support::*;
use millstream_core::{Backend, GroupName, TopicName};
use millstream_runtime::{Consumer, ConsumerState, Delivery};
use tokio::time::{Instant, sleep};

const HOUR: Duration = Duration::from_secs(3_600);

fn lasting() -> Bench {
    let bench = bench();
    Bench { backend: bench.backend.clone().lasting(), ..bench }
}

async fn start(bench: &Bench, seen: &Seen) -> Consumer {
    let noted = seen.clone();
    let started = bench.consumer(NUMBERS.partitions(4), "g").start(move |delivery: Delivery<u64>| {
        note(&noted, &delivery);
        async {}
    });
    started.await.expect("started")
}

fn owned(consumer: &Consumer) -> usize {
    consumer.health().topics.iter().map(|topic| topic.owned.len()).sum()
}

async fn owns(consumer: &Consumer, partitions: usize) {
    eventually(|| owned(consumer) == partitions, || format!("{} instead of {partitions}", owned(consumer)))
        .await;
}

/// Returns how many requests an idle consumer of one partition makes in an hour.
async fn requests_an_hour(backend: &Backend) -> u64 {
    let (link, linked) = link(backend);
    let promoter = millstream_delay::PromoterConfig::default();
    let promoter = match linked.is_lasting() {
        true => promoter.with_longest_sleep(24 * HOUR),
        false => promoter,
    };
    let promoter = millstream_delay::Promoter::new(&linked, promoter);
    let observer = Arc::new(millstream_core::event::Ignore);
    let consumer = millstream_runtime::ConsumerBuilder::new(linked, NUMBERS, "g", observer)
        .upkeep(promoter)
        .start(async |_: Delivery<u64>| {})
        .await
        .expect("started");
    owns(&consumer, 1).await;
    sleep(HOUR).await;
    link.calls();
    sleep(24 * HOUR).await;
    let calls = link.calls();
    consumer.shutdown().await;
    calls.values().sum::<u64>() / 24
}

#[tokio::test(start_paused = true)]
async fn an_hour_costs_few_requests() {
    let backend = bench().backend;
    let (usual, lasting) = (requests_an_hour(&backend).await, requests_an_hour(&backend.lasting()).await);
    assert!(usual > 1_000, "{usual} where it renews: the figure counts");
    assert!(lasting <= 4, "{lasting} requests in an hour");
}

#[tokio::test(start_paused = true)]
async fn after_days_of_rest_it_has_its_partitions_and_works_at_once() {
    let (bench, seen) = (lasting(), Seen::default());
    let consumer = start(&bench, &seen).await;
    owns(&consumer, 4).await;
    sleep(240 * HOUR).await;
    let asked = Instant::now();
    produce(&bench, 10).await;
    until(&seen, 10).await;
    assert!(asked.elapsed() < MS(100), "{:?}", asked.elapsed());
    assert_eq!(
        (bench.told.lines("Assigned"), bench.told.lines("LeaseLost")),
        (4, 0),
        "{:#?}",
        bench.told.all()
    );
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn members_that_come_and_go_share_at_once() {
    let (bench, seen) = (lasting(), Seen::default());
    let one = start(&bench, &seen).await;
    owns(&one, 4).await;
    sleep(HOUR).await;
    let joined = Instant::now();
    let two = start(&bench, &seen).await;
    owns(&two, 2).await;
    owns(&one, 2).await;
    assert!(joined.elapsed() < Duration::from_secs(2), "{:?}", joined.elapsed());
    sleep(HOUR).await;
    // Dropped, and not shut down: it leaves all the same.
    drop(one);
    let left = Instant::now();
    owns(&two, 4).await;
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
    two.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn it_learns_at_once_of_a_pause_of_more_partitions_and_of_a_deletion() {
    let (bench, seen) = (lasting(), Seen::default());
    let consumer = start(&bench, &seen).await;
    owns(&consumer, 4).await;
    sleep(HOUR).await;
    let (topic, group): (TopicName, GroupName) =
        ("numbers".parse().expect("a name"), "g".parse().expect("a name"));
    let (started, catalog) = (Instant::now(), bench.backend.catalog());
    for (paused, state) in [(true, ConsumerState::Paused), (false, ConsumerState::Running)] {
        catalog.set_paused(&topic, &group, paused).await.expect("an answer");
        eventually(|| consumer.health().state == state, || format!("{state:?}")).await;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    let (admin, started) = (millstream_admin::Admin::new(bench.backend.clone()), Instant::now());
    assert_eq!(admin.pause_group_and_wait(&topic, &group, HOUR).await.expect("paused"), []);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    catalog.set_paused(&topic, &group, false).await.expect("an answer");
    catalog.expand(&topic, 6).await.expect("grown");
    owns(&consumer, 6).await;
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    catalog.delete_topic(&topic).await.expect("deleted");
    eventually(|| consumer.cause().is_some(), || "it runs on".to_owned()).await;
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
}
