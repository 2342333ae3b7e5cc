//! Messages that are stored once, handled once, or whose marker is lost.

use millstream::admin::CancelState;
use millstream::{Check, Idempotent, Record};
use millstream_core::idempotency::{Begun, Operation};
use millstream_core::{Error, ErrorKind};

use super::hands::Gate;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_that_are_not_stored_again_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for (number, id) in [(1, "a"), (2, "b"), (1, "a"), (1, "a"), (3, "c"), (2, "b")] {
        producer.send(&number).dedup(id).await.expect("sent");
    }
    let topic: [(&str, &str); 1] = [("topic", "orders")];
    scene
        .sees(
            "three of six are stored",
            &[("deduplicated_total", &topic, 3.0), ("produced_total", &topic, 3.0), ("length", &topic, 3.0)],
        )
        .await;
}

/// Batches have messages of several partitions, and one result for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_counted_in_their_partitions() {
    let scene = Fixture::at(&shared_url()).await;
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let numbers: Vec<u64> = (0..10).collect();
    let plain = numbers.iter().map(|number| Record::new(number).partition(*number as u32 % 4));
    assert!(producer.send_all(plain).await.iter().all(Result::is_ok));
    // Five ids, each in one partition and each sent twice.
    let ids =
        numbers.iter().map(|number| Record::new(number).partition(1).dedup(format!("id-{}", number % 5)));
    assert!(producer.send_all(ids).await.iter().all(Result::is_ok));
    let of: [[(&str, &str); 2]; 4] =
        ["0", "1", "2", "3"].map(|partition| [("topic", "orders"), ("partition", partition)]);
    let expected = [3.0, 8.0, 2.0, 2.0];
    let produced = of.iter().zip(expected).map(|(labels, count)| ("produced_total", &labels[..], count));
    let lengths = of.iter().zip(expected).map(|(labels, count)| ("length", &labels[..], count));
    let figures: Vec<figures::Figure<'_>> = produced.chain(lengths).collect();
    scene.sees("each in its partition", &figures).await;
}

/// Two operations, the first of them in three messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_whose_operation_is_done_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let truth = Arc::new(Truth::default());
    let handled = truth.clone();
    let consumer = scene.mq.consumer(ORDERS, "billing").idempotent(Idempotent::by_header("order-id"));
    let started = consumer.start(move |delivery: Delivery<u64>| {
        handled.calls.fetch_add(1, Ordering::SeqCst);
        *handled.attempts.lock().expect("lock").entry(delivery.payload).or_default() += 1;
        async {}
    });
    let consumer = started.await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for (partition, operation) in [(0, 1), (0, 1), (1, 2), (2, 1)] {
        let id = operation.to_string().into_bytes();
        producer.send(&operation).partition(partition).header("order-id", id).await.expect("sent");
    }
    let group: [(&str, &str); 2] = [("topic", "orders"), ("group", "billing")];
    scene
        .sees(
            "two of four are duplicates",
            &[
                ("duplicates_total", &group, 2.0),
                ("acked_total", &group, 2.0),
                ("markers_lost_total", &group, 0.0),
                ("handler_seconds_count", &group, 4.0),
                ("pending", &group, 0.0),
            ],
        )
        .await;
    assert_eq!(*truth.attempts.lock().expect("lock"), [(1, 1), (2, 1)].into());
    consumer.shutdown().await;
}

/// Each of three messages fails once; the check finds that two of them took effect all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_a_check_finds_done_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let consumer = scene.mq.consumer(ORDERS, "billing").retry(Fixed::new(Duration::from_millis(1)));
    let consumer = consumer.check(|delivery: Delivery<u64>| async move {
        if delivery.payload < 3 { Check::Complete } else { Check::Run }
    });
    let started = consumer.start(async |delivery: Delivery<u64>| match delivery.attempt() {
        1 => Err("the reply was lost"),
        _ => Ok(()),
    });
    let consumer = started.await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    for number in 1..=3 {
        producer.send(&number).await.expect("sent");
    }
    let group: [(&str, &str); 2] = [("topic", "orders"), ("group", "billing")];
    scene
        .sees(
            "two of three are done",
            &[
                ("checked_total", &group, 2.0),
                ("acked_total", &group, 1.0),
                ("retried_total", &group, 3.0),
                ("pending", &group, 0.0),
            ],
        )
        .await;
    consumer.shutdown().await;
}

/// Of two messages the first is cancelled while its handler runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_cancelled_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let consumer = scene.mq.consumer(ORDERS, "billing").start(async |order: Delivery<u64>| {
        if order.payload == 1 {
            order.cancelled().await;
            return Err("it stops");
        }
        Ok(())
    });
    let consumer = consumer.await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    let requested = producer.send(&1).reply::<()>().begin().await.expect("sent");
    producer.send(&2).await.expect("sent");
    let ends = scene.mq.cancel(&requested.id).await.expect("cancelled");
    assert!(matches!(ends[0].state, CancelState::Stopped | CancelState::Cancelled), "{ends:?}");
    let group: [(&str, &str); 2] = [("topic", "orders"), ("group", "billing")];
    scene
        .sees(
            "one of two is cancelled",
            &[("cancelled_total", &group, 1.0), ("acked_total", &group, 1.0), ("pending", &group, 0.0)],
        )
        .await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markers_that_are_lost_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let gate = Gate::new();
    let inside = gate.clone();
    let consumer = scene.mq.consumer(ORDERS, "billing").lease_ttl(Duration::from_secs(1));
    let consumer = consumer.idempotent(Idempotent::by_header("order-id")).start(move |_: Delivery<u64>| {
        let gate = inside.clone();
        async move { gate.pass().await }
    });
    let consumer = consumer.await.expect("started");
    let producer = scene.mq.producer(ORDERS).await.expect("a producer");
    producer.send(&1).header("order-id", "7").await.expect("sent");
    gate.came(1).await;
    // The marker is gone, as after a fail-over that lost it, and somebody else begins the operation.
    let (topic, group) = ("orders".parse().expect("name"), "billing".parse().expect("name"));
    let operation = Operation::new(topic, group, "7").expect("an operation");
    let marker = scene.keys.marker(&operation).to_string();
    let role = scene.mq.backend().idempotency().expect("the role");
    let taken = async || {
        redis.cli(&["DEL", &marker]);
        // An extension may have come in between.
        let begun = role.begin(&operation, "another", "its-token", Duration::from_secs(60)).await;
        matches!(begun, Ok(Begun::Started(_)))
    };
    eventually(taken, "another one begins the operation").await;
    let of: [(&str, &str); 2] = [("topic", "orders"), ("group", "billing")];
    scene.sees("the loss is counted, once", &[("markers_lost_total", &of, 1.0)]).await;
    gate.open.add_permits(1);
    scene
        .sees(
            "the handler ends, and the loss is not counted again",
            &[("markers_lost_total", &of, 1.0), ("pending", &of, 0.0), ("acked_total", &of, 1.0)],
        )
        .await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_markers_are_lost_are_counted() {
    let redis = Redis::start();
    let scene = Fixture::at(&redis.url()).await;
    let calls = scene.mq.idempotent("charges").lease_ttl(Duration::from_secs(60));
    let operation = Operation::new("charges".parse().expect("name"), "_calls".parse().expect("name"), "7");
    let operation = operation.expect("an operation");
    let marker = scene.keys.marker(&operation).to_string();
    let role = scene.mq.backend().idempotency().expect("the role");
    let work = async || {
        // The marker is gone, as after a fail-over that lost it, and somebody else begins the work.
        redis.cli(&["DEL", &marker]);
        let begun = role.begin(&operation, "another", "its-token", Duration::from_secs(60)).await;
        assert!(matches!(begun, Ok(Begun::Started(_))), "{begun:?}");
        Ok::<u64, Error>(7)
    };
    let called = calls.run("7", work).await.expect("the work was done");
    assert_eq!(called.not_kept.map(|error| error.kind()), Some(ErrorKind::Fenced));
    let of: [(&str, &str); 1] = [("calls", "charges")];
    scene.sees("the loss is counted", &[("call_markers_lost_total", &of, 1.0)]).await;
}
