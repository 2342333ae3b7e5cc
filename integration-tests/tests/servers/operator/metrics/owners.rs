//! What happens to consumers and their partitions: leases that run out, names that are taken, groups and ends of logs that
//! are gone, processes that die over a message.

use integration_tests::fixture::{Fixture as Members, To};
use integration_tests::member::{End, GROUP, Job, Setup};
use millstream_core::Resource;
use millstream_core::leases::Acquired;

use super::*;

const BILLING: &[(&str, &str)] = &[("topic", "orders"), ("group", "billing")];

async fn quick(scene: &Fixture, name: &str) -> Consumer {
    let consumer = scene.mq.consumer(ORDERS, "billing").lease_ttl(Duration::from_secs(1)).member_id(name);
    consumer.start(async |_: Delivery<u64>| {}).await.expect("started")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_run_out_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let consumer = quick(&scene, "web-1").await;
    let owned = [("partitions_owned", BILLING, 4.0), ("consumer_ready", BILLING, 1.0)];
    scene.sees("it owns all", &owned).await;
    // Somebody else takes one.
    let backend = scene.mq.backend();
    let tp = TopicPartition::new("orders".parse().expect("name"), 1);
    let group = "billing".parse().expect("name");
    let (lease, hold) = (scene.keys.lease(&tp, &group), Duration::from_secs(20));
    let resource = Resource::partition(tp, group);
    let theirs = loop {
        redis.cli(&["DEL", lease.as_str()]);
        match backend
            .leases()
            .acquire(&resource, "thief", "once", hold, &millstream_core::Continuity::assured())
            .await
            .expect("asked")
        {
            Acquired::Granted(lease) => break lease,
            Acquired::Held(_) => {}
        }
    };
    let at = &[("topic", "orders"), ("group", "billing"), ("partition", "1")][..];
    let lost = [("leases_lost_total", at, 1.0), ("leases_lost_total", BILLING, 1.0)];
    scene.sees("one is lost", &lost).await;
    scene.sees("three are left", &[("partitions_owned", BILLING, 3.0)]).await;
    backend.leases().release(&theirs).await.expect("released");
    scene
        .sees(
            "it has all again",
            &[
                ("partitions_owned", BILLING, 4.0),
                ("partition_assignments_total", at, 2.0),
                ("partition_assignments_total", BILLING, 5.0),
                ("leases_lost_total", BILLING, 1.0),
                ("partition_revocations_total", BILLING, 0.0),
            ],
        )
        .await;
    // No client can learn of it.
    redis.pause();
    let ready = |scrape: &Scrape| scrape.sum("millstream_consumer_ready", BILLING);
    scene.until("it is not ready", |scrape| ready(scrape) == Some(0.0)).await;
    redis.resume();
    scene
        .sees("it is ready again, and was live", &[owned[0], owned[1], ("consumer_live", BILLING, 1.0)])
        .await;
    consumer.shutdown().await;
    scene.sees("four were given back", &[("partition_revocations_total", BILLING, 4.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_are_paused_are_shown() {
    let scene = Fixture::at(&shared_url()).await;
    let consumer = quick(&scene, "web-1").await;
    let (admin, topic) = (scene.mq.admin(), "orders".parse().expect("a name"));
    let group = "billing".parse().expect("a name");
    scene.sees("it is not paused", &[("group_paused", BILLING, 0.0)]).await;
    assert!(admin.pause_group(&topic, &group).await.expect("paused"));
    scene.sees("it is paused", &[("group_paused", BILLING, 1.0)]).await;
    assert!(admin.resume_group(&topic, &group).await.expect("resumed"));
    scene.sees("it goes on", &[("group_paused", BILLING, 0.0)]).await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_and_is_fenced_is_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let first = quick(&scene, "web-1").await;
    let alone = [("rebalances_total", BILLING, 1.0), ("members", BILLING, 1.0)];
    scene.sees("one is alone", &alone).await;
    let second = quick(&scene, "web-2").await;
    let of = |consumer| [("consumer", consumer)];
    scene
        .sees(
            "two share the partitions",
            &[
                ("members", BILLING, 2.0),
                ("partitions_owned", &of("web-1"), 2.0),
                ("partitions_owned", &of("web-2"), 2.0),
                ("partitions_assigned", &of("web-1"), 2.0),
                ("rebalances_total", BILLING, 3.0),
            ],
        )
        .await;
    // Somebody else has the name of the second.
    let third = quick(&scene, "web-2").await;
    scene
        .sees(
            "the second has ended by itself",
            &[
                ("members_fenced_total", BILLING, 1.0),
                ("consumer_live", &of("web-2"), 0.0),
                ("consumer_live", &of("web-1"), 1.0),
                ("partitions_owned", BILLING, 4.0),
                ("members", BILLING, 2.0),
            ],
        )
        .await;
    for consumer in [first, second, third] {
        consumer.shutdown().await;
    }
}

/// A policy of the user's that panics over the first failure and gives up after the second.
#[derive(Debug)]
struct Panics;

impl millstream_core::RetryPolicy for Panics {
    fn decide(&self, failure: &millstream_core::policy::Failure<'_>) -> millstream_core::policy::Decision {
        assert!(failure.attempt > 1, "on purpose");
        millstream_core::policy::Decision::GiveUp
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_of_user_code_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let consumer =
        scene.mq.consumer(ORDERS, "billing").retry(Panics).start(async |_: Delivery<u64>| Err::<(), _>("no"));
    let consumer = consumer.await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    producer.send(&1).await.expect("sent");
    scene
        .sees(
            "the default policy decides the first time, the user's the second",
            &[
                ("panics_total", &[("code", "retry_policy")], 1.0),
                ("retried_total", BILLING, 1.0),
                ("dead_total", BILLING, 1.0),
            ],
        )
        .await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_candidates_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    quick(&scene, "web-1").await.shutdown().await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for number in 0..2 {
        producer.send(&number).partition(1).await.expect("sent");
    }
    // Two owners read them and end.
    let backend = scene.mq.backend();
    let tp = TopicPartition::new("orders".parse().expect("name"), 1);
    let group = "billing".parse().expect("name");
    let lease_key = scene.keys.lease(&tp, &group);
    let resource = Resource::partition(tp, group);
    for nonce in ["first", "second"] {
        let assured = millstream_core::Continuity::assured();
        let hold = Duration::from_secs(20);
        let acquired = backend.leases().acquire(&resource, nonce, nonce, hold, &assured).await;
        let Ok(Acquired::Granted(lease)) = acquired else { panic!("{acquired:?}") };
        let mut reader = backend.log().reader(&lease).await.expect("a reader");
        let fetched = reader.fetch(10, Duration::ZERO).await.expect("fetched");
        assert_eq!(fetched.entries.len(), 2);
        redis.cli(&["DEL", lease_key.as_str()]);
    }
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let consumer = scene.mq.consumer(ORDERS, "billing").lease_ttl(Duration::from_secs(1)).start({
        let gate = gate.clone();
        move |_: Delivery<u64>| {
            let gate = gate.clone();
            async move { gate.acquire().await.expect("open").forget() }
        }
    });
    let consumer = consumer.await.expect("started");
    scene.sees("they are candidates", &[("poison_candidates", BILLING, 2.0)]).await;
    gate.add_permits(2);
    scene.sees("they are done", &[("poison_candidates", BILLING, 0.0), ("acked_total", BILLING, 2.0)]).await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_loses_is_counted() {
    let mut redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let consumer = scene.mq.consumer(ORDERS, "billing").start(async |_: Delivery<u64>| {}).await;
    let consumer = consumer.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for number in 0..4 {
        producer.send(&number).partition(number as u32).await.expect("sent");
    }
    scene.sees("all are done", &[("acked_total", BILLING, 4.0)]).await;
    let log = |partition| scene.keys.log(&TopicPartition::new("orders".parse().expect("name"), partition));
    assert_eq!(redis.cli(&["XGROUP", "DESTROY", log(2).as_str(), "billing"]), "1");
    producer.send(&4).partition(2).await.expect("sent");
    scene.sees("it is done", &[("acked_total", BILLING, 5.0), ("groups_restored_total", BILLING, 1.0)]).await;
    // A server that comes back with what it had some time ago.
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    producer.send(&5).partition(3).await.expect("sent");
    scene.sees("that too", &[("acked_total", BILLING, 6.0)]).await;
    redis.restart();
    let at = |partition| [("topic", "orders"), ("group", "billing"), ("partition", partition)];
    scene
        .sees(
            "a group and an end were lost",
            &[
                ("groups_restored_total", &at("2"), 1.0),
                ("groups_restored_total", BILLING, 1.0),
                ("tails_lost_total", &at("3"), 1.0),
                ("tails_lost_total", BILLING, 1.0),
                ("lag", BILLING, 0.0),
                ("pending", BILLING, 0.0),
            ],
        )
        .await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_which_processes_die_is_counted() {
    let redis = Redis::start();
    let setup = Setup { ttl_ms: 1_000, crash_limit: 2, ..Setup::new(&redis.url(), "jobs", 1) };
    let mut members = Members::new(env!("CARGO_BIN_EXE_member"), setup).await;
    let poison = Job { end: [End::Abort; 2], ..Job::new(0) };
    members.send(&[(poison, To::Partition(0)), (Job::new(1), To::Partition(0))]).await;
    for _ in 0..4 {
        let pid = members.start();
        assert!(!members.process(pid).ended().await, "it aborts");
    }
    let metrics = Metrics::new().expect("metrics");
    let config = ServerConfig::default().address(([127, 0, 0, 1], 0));
    let sampler = SamplerConfig::default().interval(Duration::from_millis(100));
    let mq = Millstream::at(redis.url()).namespace("members").metrics(&metrics).await.expect("connected");
    let server = metrics.serve(mq.backend(), config.sampler(sampler)).await.expect("served");
    let keys = Keys::within(&"members".parse().expect("a namespace"));
    let scene = Fixture { mq, metrics, server, keys };
    let ttl = Duration::from_secs(1);
    let consumer = scene.mq.consumer(members.topic.clone(), GROUP).crash_limit(2).lease_ttl(ttl);
    let consumer = consumer.start(async |_: Delivery<Job>| {}).await.expect("started");
    let of = &[("topic", "jobs"), ("group", GROUP)][..];
    scene
        .sees(
            "it is given up, and its neighbour is done",
            &[
                ("crashed_total", of, 1.0),
                ("failed_total", &[("kind", "crashed")], 1.0),
                ("dead_total", &[("reason", "crashed")], 1.0),
                ("dead_letters", of, 1.0),
                ("acked_total", of, 1.0),
                ("reclaimed_total", of, 2.0),
            ],
        )
        .await;
    consumer.shutdown().await;
}
