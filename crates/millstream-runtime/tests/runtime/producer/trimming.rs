//! A lossy retention holds where producers alone run; and nothing is asked for where it is not lossy.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::event::Ignore;
use millstream_core::{
    Backend, Event, Observer, Partition, Retention, Start, Topic, TopicChange, TopicPartition,
};
use millstream_memory::MemoryBackend;
use millstream_runtime::{Producer, ProducerBuilder, Record};
use tokio::time::sleep;

use crate::support::Told;
use crate::support::link::link;

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);
const SECOND: Duration = Duration::from_secs(1);

fn builder(backend: &Backend, retention: Retention, observer: Arc<dyn Observer>) -> ProducerBuilder<u64> {
    ProducerBuilder::new(backend.clone(), NUMBERS.retention(retention), observer)
}

async fn producer(backend: &Backend, retention: Retention) -> Producer<u64> {
    builder(backend, retention, Arc::new(Ignore)).await.expect("a producer")
}

async fn send(producer: &Producer<u64>, partition: u32, count: u64) {
    let values: Vec<u64> = (0..count).collect();
    let records = values.iter().map(|n| Record::new(n).partition(partition));
    assert!(producer.send_all(records).await.iter().all(Result::is_ok));
}

async fn lengths(backend: &Backend) -> Vec<u64> {
    let of = |number| TopicPartition::new("numbers".parse().expect("a name"), number);
    backend.log().lengths(&[of(0), of(1)]).await.expect("lengths")
}

#[tokio::test(start_paused = true)]
async fn a_bound_holds_without_any_group() {
    let backend = Backend::from(MemoryBackend::new());
    let told = Told::default();
    let observer = told.clone();
    let observer: Arc<dyn Observer> = Arc::new(move |event: &Event<'_>| observer.observe(event));
    let producer = builder(&backend, Retention::Length(100), observer).await.expect("a producer");
    send(&producer, 0, 1_000).await;
    send(&producer, 1, 30).await;
    sleep(2 * SECOND).await;
    assert_eq!(lengths(&backend).await, [100, 30]);
    assert_eq!((told.lines("Trimmed"), told.lines("Lost")), (1, 0), "{:#?}", told.all());
    // In a steady stream it is exceeded by the traffic of two seconds at most.
    for _ in 0..300 {
        send(&producer, 0, 10).await;
        sleep(SECOND / 10).await;
        let most = 100 + 2 * 10 * 10;
        assert!(lengths(&backend).await[0] <= most, "{:?}", lengths(&backend).await);
    }
}

/// Sends 100 messages a second for a minute, shared by the producers, and returns the greatest length of the partition.
async fn greatest_length(backend: &Backend, partition: u32, producers: &[Producer<u64>]) -> u64 {
    let mut greatest = 0;
    for _ in 0..600 {
        for producer in producers {
            send(producer, partition, 10 / producers.len() as u64).await;
        }
        sleep(SECOND / 10).await;
        greatest = greatest.max(lengths(backend).await[partition as usize]);
    }
    greatest
}

#[tokio::test(start_paused = true)]
async fn a_bound_holds_when_the_one_that_trims_ends() {
    let backend = Backend::from(MemoryBackend::new());
    let first = producer(&backend, Retention::Length(100)).await;
    assert!(greatest_length(&backend, 0, std::slice::from_ref(&first)).await <= 300);
    let second = producer(&backend, Retention::Length(100)).await;
    let mut both = vec![first, second];
    assert!(greatest_length(&backend, 0, &both).await <= 300);
    drop(both.remove(0));
    let greatest = greatest_length(&backend, 0, &both).await;
    assert!(greatest <= 300, "{greatest}");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_trimmed_does_not_hold_up_the_others() {
    let (link, backend) = link(&Backend::from(MemoryBackend::new()));
    let producer = producer(&backend, Retention::Length(100)).await;
    *link.not_trimmed.lock().expect("lock") = Some(Partition(1));
    send(&producer, 1, 1_000).await;
    let greatest = greatest_length(&backend, 0, std::slice::from_ref(&producer)).await;
    assert!(greatest <= 300, "{greatest}");
    assert_eq!(lengths(&backend).await[1], 1_000);
    *link.not_trimmed.lock().expect("lock") = None;
    sleep(2 * SECOND).await;
    assert_eq!(lengths(&backend).await, [100, 100]);
}

#[tokio::test(start_paused = true)]
async fn what_is_old_goes_also_while_nothing_is_sent() {
    let backend = Backend::from(MemoryBackend::new());
    let age = Retention::Age(10 * SECOND);
    let early = producer(&backend, age).await;
    send(&early, 1, 50).await;
    early.close().await;
    drop(early);
    // Another one, which never sends to that partition.
    let late = producer(&backend, age).await;
    send(&late, 0, 50).await;
    sleep(5 * SECOND).await;
    assert_eq!(lengths(&backend).await, [50, 50]);
    sleep(7 * SECOND).await;
    assert_eq!(lengths(&backend).await, [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_ends_at_once_has_trimmed_before() {
    let backend = Backend::from(MemoryBackend::new());
    for _ in 0..3 {
        let producer = producer(&backend, Retention::Length(100)).await;
        send(&producer, 0, 1_000).await;
        producer.close().await;
        drop(producer);
        assert_eq!(lengths(&backend).await[0], 100);
        sleep(2 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_group_loses_nothing_by_default_and_its_loss_is_told_otherwise() {
    for (retention, left, lost) in [(Retention::Consumed, 1_000, 0), (Retention::Length(100), 100, 900)] {
        let (link, backend) = link(&Backend::from(MemoryBackend::new()));
        let topic = NUMBERS.retention(retention).spec().expect("a topic");
        let topic = backend.catalog().create_topic(&topic).await.expect("created");
        let group = "stopped".parse().expect("a name");
        backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created");
        let told = Told::default();
        let observer = told.clone();
        let observer: Arc<dyn Observer> = Arc::new(move |event: &Event<'_>| observer.observe(event));
        let producer = builder(&backend, retention, observer).await.expect("a producer");
        send(&producer, 0, 1_000).await;
        sleep(300 * SECOND).await;
        assert_eq!(lengths(&backend).await[0], left, "{retention}");
        let calls = link.calls();
        assert_eq!(calls.contains_key("trim_unleased"), lost > 0, "{retention}: {calls:?}");
        assert_eq!(told.lines(&format!("unread: {lost},")) > 0, lost > 0, "{retention}: {:#?}", told.all());
    }
}

#[tokio::test(start_paused = true)]
async fn many_producers_of_a_partition_take_turns() {
    let (link, backend) = link(&Backend::from(MemoryBackend::new()));
    let mut producers = Vec::new();
    for _ in 0..20 {
        producers.push(producer(&backend, Retention::Length(100)).await);
    }
    let seconds = 40;
    for _ in 0..seconds * 10 {
        for producer in &producers {
            send(producer, 0, 1).await;
        }
        sleep(SECOND / 10).await;
        assert!(lengths(&backend).await[0] <= 100 + 2 * 200, "{:?}", lengths(&backend).await);
    }
    let calls = link.calls().remove("trim_unleased").unwrap_or_default();
    // One each second has its turn; the others come every two seconds, after a beginning in which they find that out.
    assert!((seconds * 9 / 10..=20 * (seconds / 2 + 3)).contains(&calls), "{calls} calls");
    drop(producers);
    sleep(10 * SECOND).await;
    assert_eq!(link.calls().get("trim_unleased"), None, "they ended");
}

#[tokio::test(start_paused = true)]
async fn a_retention_that_is_altered_is_noticed() {
    let backend = Backend::from(MemoryBackend::new());
    let builder = builder(&backend, Retention::Keep, Arc::new(Ignore));
    let producer = builder.refresh(SECOND).await.expect("a producer");
    let alter = async |retention| {
        let name = "numbers".parse().expect("a name");
        let change = TopicChange::new().retention(retention);
        backend.catalog().alter_topic(&name, &change).await.expect("altered");
        sleep(2 * SECOND).await;
    };
    send(&producer, 0, 500).await;
    alter(Retention::Length(100)).await;
    send(&producer, 0, 1).await;
    sleep(2 * SECOND).await;
    assert_eq!(lengths(&backend).await[0], 100);
    alter(Retention::Keep).await;
    send(&producer, 0, 500).await;
    sleep(10 * SECOND).await;
    assert_eq!(lengths(&backend).await[0], 600, "all is kept again");
}
