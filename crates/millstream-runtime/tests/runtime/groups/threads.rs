//! Consumers in real time: what threads and runtimes have to do with leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use millstream_core::{Backend, GroupName, Resource, TopicName, TopicPartition};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery};

const SECOND: Duration = Duration::from_secs(1);

/// A runtime that is gone takes its consumers with it, on whichever thread they are renewed.
#[test]
fn a_consumer_whose_runtime_is_dropped_renews_nothing_any_more() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (outside, doomed) = (build(), build());
    let backend = {
        let _clock = outside.enter();
        Backend::new(MemoryBackend::new())
    };
    let told = Told::default();
    let topic = millstream_core::Topic::<u64>::new("orders").partitions(1);
    let consumer =
        ConsumerBuilder::new(backend.clone(), topic, "g", Arc::new(told.clone())).lease_ttl(MS(800));
    let consumer = doomed.block_on(async {
        let consumer = consumer.start(|_: Delivery<u64>| async {}).await.expect("started");
        told.wait_for("Assigned").await;
        tokio::time::sleep(MS(1_200)).await;
        consumer
    });
    let (orders, group): (TopicName, GroupName) =
        ("orders".parse().expect("name"), "g".parse().expect("name"));
    let resource = Resource::partition(TopicPartition::new(orders.clone(), 0), group.clone());
    let held = || outside.block_on(backend.leases().holder(&resource)).expect("holder").is_some();
    assert!(held(), "it was renewed");
    drop(doomed);
    let dropped = std::time::Instant::now();
    // The lease and the membership were renewed at different times: either may be the last to expire.
    let member = || {
        outside.block_on(backend.members().roster(&orders, &group)).expect("a roster").living().count() > 0
    };
    while held() || member() {
        assert!(dropped.elapsed() < 60 * SECOND, "renewed by nobody's order");
        std::thread::sleep(MS(5));
    }
    drop(consumer);
}

/// What is shown is that a thread of its own keeps the lease. The runtime
/// has one thread, and every handler blocks it for longer than the ttl.
#[tokio::test]
async fn handlers_that_block_every_thread_do_not_cost_the_lease() {
    const TTL: Duration = Duration::from_millis(1_500);
    let memory = MemoryBackend::new();
    let backend = Backend::new(memory);
    let topic = millstream_core::Topic::<u64>::new("orders").partitions(2);
    let told = Told::default();
    let producing =
        millstream_runtime::ProducerBuilder::new(backend.clone(), topic.clone(), Arc::new(told.clone()));
    let producer = producing.await.expect("a producer");
    let values = [0, 1];
    let records = values.iter().map(|n| millstream_runtime::Record::new(n).partition(*n as u32));
    assert!(producer.send_all(records).await.iter().all(Result::is_ok));

    let watching = Arc::new(AtomicBool::new(true));
    let watcher = std::thread::spawn({
        let (backend, watching) = (backend.clone(), watching.clone());
        move || watch(&backend, &watching)
    });
    let begun = Arc::new(AtomicUsize::new(0));
    let blocking = begun.clone();
    let consumer = ConsumerBuilder::new(backend, topic, "g", Arc::new(told.clone())).lease_ttl(TTL);
    let consumer = consumer
        .start(move |_: Delivery<u64>| {
            blocking.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(2 * TTL);
            async {}
        })
        .await
        .expect("started");
    while consumer.report().acked < 2 {
        tokio::time::sleep(MS(10)).await;
    }
    watching.store(false, Ordering::Relaxed);
    let (looks, epochs) = watcher.join().expect("no panic");
    assert!(looks > 20, "{looks}");
    assert_eq!(epochs.len(), 2, "each partition was owned once, and all the time: {epochs:?}");
    assert_eq!((begun.load(Ordering::Relaxed), told.lines("LeaseLost")), (2, 0));
    consumer.shutdown().await;
}

/// Reads the leases from outside until it is stopped: how often, and which partitions were held with which epoch.
fn watch(backend: &Backend, watching: &AtomicBool) -> (usize, std::collections::BTreeSet<(u32, u64)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (mut looks, mut epochs) = (0, std::collections::BTreeSet::new());
    while watching.load(Ordering::Relaxed) {
        for partition in 0..2 {
            let topic_partition = TopicPartition::new("orders".parse().expect("name"), partition);
            let resource = Resource::partition(topic_partition, "g".parse().expect("name"));
            match runtime.block_on(backend.leases().holder(&resource)).expect("holder") {
                Some(holder) => _ = epochs.insert((partition, holder.epoch)),
                None => {
                    assert!(epochs.iter().all(|(owned, _)| *owned != partition), "{partition} has run out");
                }
            }
        }
        looks += 1;
        std::thread::sleep(MS(10));
    }
    (looks, epochs)
}
