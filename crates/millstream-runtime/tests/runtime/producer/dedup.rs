//! Sends with a dedup id: one entry for each, whatever is lost, repeated or grown meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::*;
use millstream_core::{Capability, Durability, ErrorKind, Topic, TopicPartition};
use millstream_memory::SuspendableClock;
use millstream_runtime::{OnFull, ProducerBuilder, Record};
use millstream_testkit::chaos::{Chaos, Faults};

const MANY: Topic<u64> = Topic::new("numbers").partitions(3);

async fn length(bench: &Bench, partitions: u32) -> u64 {
    let partitions: Vec<_> =
        (0..partitions).map(|n| TopicPartition::new("numbers".parse().expect("name"), n)).collect();
    bench.backend.log().lengths(&partitions).await.expect("lengths").iter().sum()
}

#[tokio::test(start_paused = true)]
async fn a_repetition_returns_the_first_place_until_the_window_is_over() {
    let bench = bench();
    let producer = bench.producing(MANY).dedup_window(Duration::from_secs(60)).await.expect("a producer");
    let first = producer.send(&1).dedup("order-7").await.expect("sent");
    assert!(!first.is_duplicate);
    tokio::time::sleep(Duration::from_secs(59)).await;
    let other = bench.producing(MANY).dedup_window(Duration::from_secs(60)).await.expect("a producer");
    let again = other.send(&2).dedup("order-7").await.expect("sent");
    assert_eq!((again.partition, again.id, again.is_duplicate), (first.partition, first.id, true));
    assert_eq!(length(&bench, 3).await, 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!producer.send(&3).dedup("order-7").await.expect("sent").is_duplicate);
    assert_eq!(length(&bench, 3).await, 2);
    assert_eq!((bench.told.lines("Produced"), bench.told.lines("Deduplicated")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn lost_answers_store_nothing_twice_and_keep_the_order() {
    for idempotent in [true, false] {
        let bench = bench();
        let chaos = Chaos::new(bench.backend.clone(), 7);
        let client = chaos.client();
        let producer = ProducerBuilder::new(client.backend(), MANY, std::sync::Arc::new(bench.told.clone()));
        let hour = Duration::from_secs(3_600);
        let producer = producer.idempotent(idempotent).max_batch(10);
        // A lost answer takes two seconds.
        let producer = producer.delivery_timeout(hour).dedup_window(2 * hour).await.expect("a producer");
        client.suffer(&Faults::none().lost_replies(0.3).lost_requests(0.1).refused(0.1));
        let values: Vec<u64> = (0..500).collect();
        let records = values.iter().map(|n| {
            let record = Record::new(n).key(format!("k{}", n % 5));
            if idempotent { record.into() } else { record.dedup(format!("id {n}")) }
        });
        let sent = producer.send_all(records).await;
        let sent: Vec<_> = sent.into_iter().map(|sent| sent.expect("sent in the end")).collect();
        assert_eq!(length(&bench, 3).await, 500, "idempotent: {idempotent}");
        let places: BTreeSet<_> = sent.iter().map(|sent| (sent.partition, sent.id)).collect();
        assert_eq!(places.len(), 500);
        for key in 0..5 {
            let of_key: Vec<_> = sent.iter().skip(key).step_by(5).collect();
            assert!(of_key.windows(2).all(|w| w[0].partition == w[1].partition && w[0].id < w[1].id));
        }
        // The producer's own repetitions with numbers are one send.
        assert_eq!(bench.told.lines("Deduplicated") > 0, !idempotent, "answers were lost");
        // One after the other, each until it is stored.
        for value in 500..550 {
            producer.send(&value).dedup(value.to_string()).await.expect("sent in the end");
        }
        assert_eq!(length(&bench, 3).await, 550);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_send_is_repeated_by_the_caller() {
    let bench = bench();
    let chaos = Chaos::new(bench.backend.clone(), 3);
    let client = chaos.client();
    let producer = ProducerBuilder::new(client.backend(), MANY, std::sync::Arc::new(bench.told.clone()));
    let producer = producer.delivery_timeout(MS(100)).await.expect("a producer");
    client.suffer(&Faults::none().lost_replies(1.0));
    let lost = producer.send(&1).dedup("x").await.expect_err("no answer comes");
    assert_eq!(lost.kind(), ErrorKind::Unconfirmed);
    assert_eq!(length(&bench, 3).await, 1, "tried several times, stored once");
    chaos.heal();
    assert!(producer.send(&1).dedup("x").await.expect("sent").is_duplicate);
    assert_eq!(length(&bench, 3).await, 1);
}

/// The server forgets the message meanwhile, so it would be stored again. The machine is suspended while an answer is awaited, and
/// while the producer pauses.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_again_behind_a_suspension_that_is_longer_than_its_time() {
    let minute = Duration::from_secs(60);
    for (at, idempotent) in (0..40).flat_map(|at| [(at, true), (at, false)]) {
        let (bench, machine) = (bench(), SuspendableClock::new());
        let chaos = Chaos::new(bench.backend.clone(), 7);
        let client = chaos.client();
        let backend = client.backend().with_boot_clock(machine.clone());
        let producer = ProducerBuilder::new(backend, MANY, std::sync::Arc::new(bench.told.clone()));
        let producer = producer.idempotent(idempotent).delivery_timeout(minute).dedup_window(2 * minute);
        let producer = producer.await.expect("a producer");
        // Each of them takes two seconds.
        client.suffer(&Faults::none().lost_replies(1.0));
        let sending = tokio::spawn(async move {
            let send = producer.send(&1);
            if idempotent { send.await } else { send.dedup("x").await }
        });
        tokio::time::sleep(MS(5_000 + 100 * at)).await;
        machine.suspend(3 * minute);
        chaos.heal();
        let sent = sending.await.expect("no panic").expect_err("nobody knows whether it is stored");
        assert_eq!(sent.kind(), ErrorKind::Unconfirmed, "{at}: {sent}");
        assert_eq!(length(&bench, 3).await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_stays_at_its_partition_while_the_topic_grows() {
    let bench = bench();
    let producing =
        || bench.producing(MANY).refresh(Duration::from_secs(1)).dedup_window(Duration::from_secs(60));
    let producer = producing().await.expect("a producer");
    let values: Vec<u64> = (0..50).collect();
    let records = || {
        values.iter().map(|n| match n % 2 {
            0 => Record::new(n).dedup(format!("id {n}")),
            _ => Record::new(n).key(format!("key {n}")).dedup(format!("id {n}")),
        })
    };
    let all = |sent: Vec<millstream_core::Result<millstream_runtime::Sent>>| -> Vec<_> {
        sent.into_iter().map(|sent| sent.expect("sent")).collect()
    };
    let first = all(producer.send_all(records()).await);
    bench.backend.catalog().expand(&"numbers".parse().unwrap(), 16).await.expect("grown");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(producer.partitions(), 16);
    let again = all(producer.send_all(records()).await);
    for (first, again) in first.iter().zip(&again) {
        assert_eq!((first.partition, first.id, true), (again.partition, again.id, again.is_duplicate));
    }
    assert_eq!(length(&bench, 16).await, 50);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let later = all(producer.send_all(records()).await);
    assert!(later.iter().all(|sent| !sent.is_duplicate));
    assert!(later.iter().any(|sent| sent.partition.0 >= 3), "the new partitions are used");
    assert_eq!(length(&bench, 16).await, 100);
}

#[tokio::test(start_paused = true)]
async fn plain_sends_and_those_with_an_id_keep_their_order_in_one_call() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let values: Vec<u64> = (0..30).collect();
    let records = values.iter().map(|n| match n % 3 {
        0 => Record::new(n).into(),
        _ => Record::new(n).dedup(n.to_string()),
    });
    let sent: Vec<_> =
        producer.send_all(records).await.into_iter().map(|sent| sent.expect("sent").id).collect();
    assert!(sent.is_sorted(), "{sent:?}");
    producer.close().await;
    assert_eq!(producer.send(&1).dedup("late").await.expect_err("closed").kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_full_partition_is_refused_with_an_id_too() {
    let bench = bench();
    let topic: Topic<u64> = Topic::new("numbers").partitions(1).max_length(2);
    let producer = bench.producing(topic).on_full(OnFull::Reject).await.expect("a producer");
    for id in ["a", "b"] {
        producer.send(&1).dedup(id).await.expect("room");
    }
    assert_eq!(producer.send(&1).dedup("c").await.expect_err("full").kind(), ErrorKind::Backpressure);
    assert_eq!(length(&bench, 1).await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recognised_is_refused() {
    let bench = bench();
    let producer = bench.producer(MANY).await;
    let kind = |error: millstream_core::Error| error.kind();
    assert_eq!(producer.send(&1).dedup("").await.map_err(kind), Err(ErrorKind::InvalidName));
    assert_eq!(producer.send(&1).dedup([0; 129]).await.map_err(kind), Err(ErrorKind::TooLarge));
    assert_eq!(length(&bench, 3).await, 0);
    let build = |builder: ProducerBuilder<u64>| async { builder.await.map(|_| ()).map_err(kind) };
    assert_eq!(
        build(bench.producing(MANY).dedup_window(Duration::ZERO)).await,
        Err(ErrorKind::InvalidConfig)
    );
    let short = bench.producing(MANY).idempotent(true).dedup_window(Duration::from_secs(30));
    assert_eq!(build(short).await, Err(ErrorKind::InvalidConfig));
    let durable = bench.producing(MANY).idempotent(true).durability(Durability::Fsynced);
    assert_eq!(build(durable).await, Err(ErrorKind::InvalidConfig));
    let lacking = bench.backend.clone().without(Capability::Dedup);
    let told = std::sync::Arc::new(bench.told.clone());
    let lacking = ProducerBuilder::new(lacking, MANY, told);
    assert_eq!(build(lacking.idempotent(true)).await, Err(ErrorKind::Unsupported));
}

#[tokio::test(start_paused = true)]
async fn of_throttled_messages_one_in_a_window_is_stored() {
    let bench = bench();
    let producer = bench.producer(MANY).await;
    let second = Duration::from_secs(1);
    let mut stored = Vec::new();
    // Ten in a second, for three seconds: each window begins with the message that is stored.
    for n in 0..30 {
        let sent = producer.send(&n).throttle("tenant 7", second).await.expect("sent");
        if !sent.is_duplicate {
            stored.push((n, sent.id));
        }
        assert_eq!(
            stored.last().map(|(_, id)| *id),
            Some(sent.id),
            "the place of the first one in the window"
        );
        tokio::time::sleep(MS(100)).await;
    }
    assert_eq!(stored.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 10, 20]);
    assert!(!producer.send(&0).throttle("tenant 8", second).await.expect("sent").is_duplicate, "another id");
    assert_eq!(length(&bench, 3).await, 4);
    let values = [1, 2, 3];
    let records = values.iter().map(|n| Record::new(n).throttle("tenant 9", second));
    let sent = producer.send_all(records).await.into_iter().map(|sent| sent.expect("sent").is_duplicate);
    assert_eq!(sent.collect::<Vec<_>>(), [false, true, true]);
    let never = producer.send(&1).throttle("x", Duration::ZERO).await.expect_err("no window");
    assert_eq!(never.kind(), ErrorKind::InvalidConfig);
}
