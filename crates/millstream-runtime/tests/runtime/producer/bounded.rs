//! Producers at the bound of a topic: they wait or are refused, and nothing is asked for without one.

use std::time::Duration;

use millstream_core::event::Ignore;
use millstream_core::{
    Backend, ErrorKind, GroupName, Lease, Resource, Retention, Start, Topic, TopicChange, TopicPartition,
};
use millstream_core::{leases::Acquired, log::Settlement};
use millstream_memory::MemoryBackend;
use millstream_runtime::{OnFull, Producer, ProducerBuilder, Record};
use tokio::time::{Instant, timeout};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2).max_length(10);
const SECOND: Duration = Duration::from_secs(1);

fn builder(backend: &Backend) -> ProducerBuilder<u64> {
    ProducerBuilder::new(backend.clone(), NUMBERS, std::sync::Arc::new(Ignore)).max_batch(4)
}

async fn fill(producer: &Producer<u64>, partition: u32, count: u64) -> Vec<Option<ErrorKind>> {
    let mut ends = Vec::new();
    for n in 0..count {
        let sent = producer.send(&n).partition(partition).await;
        ends.push(sent.err().map(|error| error.kind()));
    }
    ends
}

async fn length(backend: &Backend, partition: u32) -> u64 {
    let tp = TopicPartition::new("numbers".parse().expect("a name"), partition);
    backend.log().lengths(&[tp]).await.expect("a length")[0]
}

/// A group settles everything that there is, and its owner trims.
async fn consume(backend: &Backend, partition: u32) -> usize {
    let topic = backend.catalog().topic(&"numbers".parse().expect("a name")).await.expect("a topic");
    let group: GroupName = "group".parse().expect("a name");
    backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created");
    let resource = Resource::partition(TopicPartition::new(topic.name.clone(), partition), group);
    let nonce = format!("{}", fastrand::u64(..));
    let lease: Lease = match backend
        .leases()
        .acquire(&resource, "test", &nonce, SECOND, &millstream_core::Continuity::assured())
        .await
        .expect("answer")
    {
        Acquired::Granted(lease) => lease,
        Acquired::Held(holder) => panic!("{holder:?}"),
    };
    let mut reader = backend.log().reader(&lease).await.expect("a reader");
    let entries = reader.fetch(1_000, Duration::ZERO).await.expect("fetched").entries;
    let batch: Vec<_> = entries.iter().map(|entry| (entry.receipt, Settlement::Ack)).collect();
    backend.log().settle(&lease, &batch).await.expect("settled");
    let trimmed = backend.log().trim(&lease, Retention::Consumed).await.expect("trimmed");
    backend.leases().release(&lease).await.expect("released");
    trimmed.dropped
}

#[tokio::test(start_paused = true)]
async fn who_wants_no_wait_is_refused_where_it_is_full_and_only_there() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = builder(&backend).on_full(OnFull::Reject).await.expect("a producer");
    let ends = fill(&producer, 0, 13).await;
    assert!(ends[..10].iter().all(Option::is_none), "{ends:?}");
    assert_eq!(ends[10..], [Some(ErrorKind::Backpressure); 3]);
    assert_eq!(length(&backend, 0).await, 10);
    // In one request with messages that find room.
    let values: Vec<u64> = (0..4).collect();
    let records = values.iter().map(|n| Record::new(n).partition((*n % 2) as u32));
    let ends: Vec<_> =
        producer.send_all(records).await.into_iter().map(|sent| sent.err().map(|e| e.kind())).collect();
    let full = Some(ErrorKind::Backpressure);
    assert_eq!(ends, [full, None, full, None]);
    assert_eq!((length(&backend, 0).await, length(&backend, 1).await), (10, 2));
    assert_eq!(consume(&backend, 0).await, 10);
    assert_eq!(fill(&producer, 0, 1).await, [None], "there is room again");
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_when_there_is_room() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = builder(&backend).delivery_timeout(5 * SECOND).await.expect("a producer");
    assert_eq!(fill(&producer, 0, 10).await, [None; 10]);
    let send = producer.send(&10).partition(0).into_future();
    tokio::pin!(send);
    assert!(timeout(2 * SECOND, &mut send).await.is_err(), "it waits");
    assert_eq!(consume(&backend, 0).await, 10);
    let began = Instant::now();
    send.await.expect("sent");
    assert!(began.elapsed() <= Duration::from_millis(250), "noticed after {:?}", began.elapsed());

    assert_eq!(fill(&producer, 0, 9).await, [None; 9]);
    let began = Instant::now();
    let error = producer.send(&10).partition(0).await.expect_err("full for too long");
    assert_eq!(error.kind(), ErrorKind::Backpressure);
    assert_eq!((error.topic(), error.partition()), (Some("numbers"), Some(0)));
    assert!(began.elapsed() >= 4 * SECOND && began.elapsed() <= 5 * SECOND, "{:?}", began.elapsed());
}

/// Two producers that know nothing of each other: each may be too late by one request.
#[tokio::test(start_paused = true)]
async fn the_bound_is_exceeded_by_one_request_of_each_at_most() {
    let backend = Backend::from(MemoryBackend::new());
    let mut ends = Vec::new();
    let producers = [builder(&backend), builder(&backend), builder(&backend)];
    let mut running = Vec::new();
    for producer in producers {
        running.push(producer.on_full(OnFull::Reject).await.expect("a producer"));
    }
    for _ in 0..30 {
        for producer in &running {
            let values = [1, 2, 3, 4];
            let records = values.iter().map(|n| Record::new(n).partition(0));
            ends.extend(producer.send_all(records).await);
        }
    }
    let sent = ends.iter().filter(|end| end.is_ok()).count() as u64;
    assert_eq!(sent, length(&backend, 0).await);
    assert!((10..=10 + 3 * 4).contains(&sent), "{sent} entries at a bound of 10");
}

#[tokio::test(start_paused = true)]
async fn a_bound_that_is_altered_is_noticed() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = builder(&backend).on_full(OnFull::Reject).refresh(SECOND).await.expect("a producer");
    let alter = async |bound: Option<u64>| {
        let name = "numbers".parse().expect("a name");
        let change = TopicChange::new().max_length(bound);
        backend.catalog().alter_topic(&name, &change).await.expect("altered");
        tokio::time::sleep(2 * SECOND).await;
    };
    alter(None).await;
    assert_eq!(fill(&producer, 0, 20).await, [None; 20], "without a bound");
    alter(Some(21)).await;
    assert_eq!(fill(&producer, 0, 2).await, [None, Some(ErrorKind::Backpressure)], "with a bound again");
}

#[tokio::test(start_paused = true)]
async fn messages_that_were_sent_together_wait_for_room_together() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = builder(&backend).delivery_timeout(SECOND).await.expect("a producer");
    assert!(fill(&producer, 0, 10).await.iter().all(Option::is_none));
    let (started, values) = (Instant::now(), (0..20).collect::<Vec<u64>>());
    let sent = producer.send_all(values.iter().map(|n| Record::new(n).partition(0))).await;
    assert!(sent.iter().all(|sent| sent.as_ref().is_err_and(|e| e.kind() == ErrorKind::Backpressure)));
    // Five requests, and one second, not five.
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_learns_that_the_bound_was_raised() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = builder(&backend).refresh(SECOND).await.expect("a producer");
    assert!(fill(&producer, 0, 10).await.iter().all(Option::is_none));
    let waiting = tokio::spawn(async move { producer.send(&11).partition(0).await.map(drop) });
    tokio::time::sleep(3 * SECOND).await;
    assert!(!waiting.is_finished());
    let name = "numbers".parse().expect("a name");
    let change = TopicChange::default().max_length(Some(20));
    backend.catalog().alter_topic(&name, &change).await.expect("altered");
    timeout(5 * SECOND, waiting).await.expect("in time").expect("no panic").expect("sent");
}
