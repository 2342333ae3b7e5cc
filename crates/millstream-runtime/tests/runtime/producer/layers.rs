//! Layers of a producer that wait.

use std::future::IntoFuture;
use std::time::Duration;

use crate::support::{Bench, MS, bench};
use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, stream};
use millstream_core::error::Error;
use millstream_core::{BoxError, Envelope, ErrorKind, Topic};
use millstream_runtime::{AsyncProducerLayer, Delivery, ProducerBuilder, ProducerLayer, Record, Sent};
use tokio::time::Instant;

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(2);

fn number(message: &Envelope) -> u64 {
    std::str::from_utf8(&message.payload).expect("text").parse().expect("a number")
}

/// Waits as many milliseconds as a payload says; not at all for those below ten.
struct Waits;

#[async_trait]
impl AsyncProducerLayer for Waits {
    fn applies(&self, message: &Envelope) -> bool {
        number(message) >= 10
    }

    async fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        tokio::time::sleep(MS(number(message))).await;
        Ok(())
    }
}

/// Fails as a number says.
struct Fails;

#[async_trait]
impl AsyncProducerLayer for Fails {
    async fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        match number(message) {
            1 => Err("no reason".into()),
            2 => Err(Error::new(ErrorKind::Backpressure, "the store is full").into()),
            3 => Err(Error::new(ErrorKind::Unconfirmed, "no answer").into()),
            4 => panic!("broken"),
            5 => std::future::pending().await,
            _ => Ok(()),
        }
    }
}

fn waiting(bench: &Bench) -> ProducerBuilder<u64> {
    bench.producing(NUMBERS).async_layer(Waits)
}

/// Whether they are stored in this order.
fn in_order(sent: &[Sent]) -> bool {
    sent.iter().map(|sent| sent.id).is_sorted()
}

async fn stored(bench: &Bench) -> Vec<u64> {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let consumer = bench.consumer(NUMBERS, "all").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            seen.lock().expect("lock").push(delivery.into_payload());
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    seen.lock().expect("lock").clone()
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_partition_keep_the_order_of_their_sends_and_wait_at_the_same_time() {
    let bench = bench();
    let producer = waiting(&bench).await.expect("a producer");
    let values = [500, 1, 400, 2, 3, 300, 4];
    let began = Instant::now();
    let sent = join_all(values.iter().map(|value| producer.send(value).partition(0).into_future())).await;
    let sent: Vec<_> = sent.into_iter().map(|sent| sent.expect("stored")).collect();
    assert!(in_order(&sent), "{sent:?}");
    assert!(began.elapsed() < MS(600), "{:?} is the sum", began.elapsed());

    let began = Instant::now();
    let other = producer.send(&600).partition(0).into_future();
    let small = producer.send(&5).partition(1).into_future();
    let (_, elapsed) = tokio::join!(other, async {
        small.await.expect("stored");
        began.elapsed()
    });
    assert!(elapsed < MS(100), "another partition does not wait: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn many_sends_at_once_keep_their_order_and_their_results() {
    let bench = bench();
    let producer = waiting(&bench).max_batch(3).await.expect("a producer");
    let values = [50, 1, 40, 2, 30, 3];
    let sent = producer.send_all(values.iter().map(|value| Record::new(value).partition(0))).await;
    let sent: Vec<_> = sent.into_iter().map(|sent| sent.expect("stored")).collect();
    assert!(in_order(&sent), "{sent:?}");
    assert_eq!(stored(&bench).await, values);
    let delayed = producer.send_all_delayed(values.iter().map(|value| Record::new(value).delay(MS(1)))).await;
    assert!(delayed.iter().all(Result::is_ok), "{delayed:?}");

    let failing = bench.producing(NUMBERS).async_layer(Fails).await.expect("a producer");
    let sent = failing.send_all([0, 1, 6, 2].iter().map(Record::new)).await;
    let kinds: Vec<_> = sent.iter().map(|sent| sent.as_ref().err().map(Error::kind)).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Encode), None, Some(ErrorKind::Backpressure)]);
}

#[tokio::test(start_paused = true)]
async fn a_send_that_nobody_polls_any_more_goes_on_and_holds_nobody_up() {
    let bench = bench();
    let producer = waiting(&bench).await.expect("a producer");
    let mut parked = producer.send(&100).partition(0).into_future();
    assert!(parked.as_mut().now_or_never().is_none());
    let mut dropped = producer.send(&200).partition(0).into_future();
    assert!(dropped.as_mut().now_or_never().is_none());
    drop(dropped);
    producer.send(&1).partition(0).await.expect("stored");
    assert_eq!(stored(&bench).await, [100, 200, 1]);
    parked.await.expect("stored");
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_fails_has_a_kind_and_nothing_is_stored() {
    let bench = bench();
    let timeout = Duration::from_secs(2);
    let producer = bench.producing(NUMBERS).async_layer(Fails).delivery_timeout(timeout);
    let producer = producer.await.expect("a producer");
    let kinds = [
        (1, ErrorKind::Encode),
        (2, ErrorKind::Backpressure),
        (3, ErrorKind::Unavailable),
        (4, ErrorKind::Encode),
        (5, ErrorKind::Unavailable),
    ];
    for (value, kind) in kinds {
        let began = Instant::now();
        let error = producer.send(&value).await.expect_err("it fails");
        assert_eq!(error.kind(), kind, "{value}: {error}");
        assert!(began.elapsed() <= timeout);
    }
    let error = producer.send(&5).timeout(MS(10)).await.expect_err("it takes too long");
    assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
    producer.send(&6).await.expect("stored");
    assert_eq!(stored(&bench).await, [6]);
}

#[tokio::test(start_paused = true)]
async fn flush_and_close_wait_for_messages_that_wait_for_a_layer() {
    let bench = bench();
    let producer = waiting(&bench).await.expect("a producer");
    let mut first = producer.send(&1_000).into_future();
    assert!(first.as_mut().now_or_never().is_none());
    producer.flush().await;
    assert!(first.now_or_never().is_some_and(|sent| sent.is_ok()), "it has its result");
    let mut second = producer.send(&1_000).into_future();
    assert!(second.as_mut().now_or_never().is_none());
    producer.close().await;
    assert!(second.now_or_never().is_some_and(|sent| sent.is_ok()), "it has its result");
    for value in [1, 1_000] {
        assert_eq!(producer.send(&value).await.expect_err("closed").kind(), ErrorKind::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn layers_run_in_one_order_whether_they_wait_or_not() {
    struct Adds(&'static str);

    impl ProducerLayer for Adds {
        fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
            message.headers.append("trail", self.0);
            message.key = Some("another key".into());
            Ok(())
        }
    }

    #[async_trait]
    impl AsyncProducerLayer for Adds {
        async fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
            tokio::task::yield_now().await;
            ProducerLayer::send(self, message)
        }
    }

    let bench = bench();
    let layers = bench.producing(NUMBERS).layer(Adds("a")).async_layer(Adds("b")).layer(Adds("c"));
    let producer = layers.async_layer(Adds("d")).layer(Adds("e")).await.expect("a producer");
    producer.send(&1).key("key").await.expect("stored");
    producer.send(&2).key("key").dedup("id").await.expect("stored");
    producer.send(&3).key("key").unique("id").await.expect("stored");
    producer.send(&4).key("key").delay(MS(1)).await.expect("stored");
    let puller = bench.consumer(NUMBERS, "g").pull().await.expect("started");
    for _ in 0..4 {
        let pulled = puller.next().await.expect("a message");
        let trail: Vec<_> = pulled.headers().get_all("trail").cloned().collect();
        assert_eq!(
            (trail.concat(), pulled.key().map(|key| &key[..])),
            (b"abcde".to_vec(), Some(&b"key"[..]))
        );
        pulled.ack();
    }
    puller.shutdown().await;
}

/// The order holds with sends that end, fail and are given up in any order.
#[tokio::test(start_paused = true)]
async fn a_thousand_sends_keep_their_order() {
    let bench = bench();
    let producer = waiting(&bench).await.expect("a producer");
    let values: Vec<u64> = (0..1_000).map(|_| fastrand::u64(0..50)).collect();
    let sends = stream::iter(&values).map(|value| producer.send(value).partition(0).into_future());
    let sent: Vec<_> = sends.buffered(100).map(|sent| sent.expect("stored")).collect().await;
    assert!(in_order(&sent));
    assert_eq!(stored(&bench).await, values);
}
