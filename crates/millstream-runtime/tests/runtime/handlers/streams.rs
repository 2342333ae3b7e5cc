//! Pulled messages and events as streams.

use std::time::Duration;

use super::support::*;
use futures_util::{FutureExt, StreamExt};
use millstream_runtime::{Concurrency, ConsumerEvent};

#[tokio::test(start_paused = true)]
async fn pulled_messages_are_a_stream_that_ends_with_the_consumer() {
    let bench = bench();
    bench.produce(20).await;
    let builder = bench.consumer(NUMBERS, "g").concurrency(Concurrency::Unordered(8));
    let puller = builder.pull().await.expect("started");
    let mut first: Vec<u64> = puller
        .stream()
        .take(10)
        .map(|message| {
            let number = message.payload;
            message.ack();
            number
        })
        .collect()
        .await;
    // A stream that is dropped while it waits has taken nothing with it.
    let mut stream = puller.stream();
    let message = stream.next().await.expect("a message");
    first.push(message.payload);
    message.ack();
    let mut idle = puller.stream();
    let mut rest = Vec::new();
    while rest.len() < 9 {
        let message = match idle.next().now_or_never() {
            Some(message) => message.expect("it goes on"),
            None => {
                drop(idle);
                idle = puller.stream();
                tokio::time::sleep(MS(1)).await;
                continue;
            }
        };
        rest.push(message.payload);
        message.ack();
    }
    first.append(&mut rest);
    first.sort_unstable();
    assert_eq!(first, (0..20).collect::<Vec<_>>(), "each one once");
    puller.stop();
    assert!(idle.next().await.is_none() && idle.next().await.is_none(), "also when it is asked again");
    drop((idle, stream));
    assert_eq!(puller.shutdown().await.acked, 20);
}

#[tokio::test(start_paused = true)]
async fn several_at_once_share_the_messages_of_a_stream() {
    let bench = bench();
    bench.produce(100).await;
    let builder = bench.consumer(NUMBERS, "g").concurrency(Concurrency::Unordered(8));
    let puller = builder.pull().await.expect("started");
    let handled = puller.stream().take(100).for_each_concurrent(8, async |message| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        message.ack();
    });
    let began = tokio::time::Instant::now();
    handled.await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "eight at a time: {took:?}");
    assert_eq!(puller.shutdown().await.acked, 100);
}

#[tokio::test(start_paused = true)]
async fn events_are_a_stream_that_ends() {
    let bench = bench();
    let consumer = bench.consumer(NUMBERS, "g").start(async |_: millstream_runtime::Delivery<u64>| {});
    let consumer = consumer.await.expect("started");
    let mut events = consumer.events().into_stream();
    let assigned = events.by_ref().filter_map(async |event| match event {
        ConsumerEvent::Assigned { topic_partition, .. } => Some(topic_partition.partition.0),
        _ => None,
    });
    assert_eq!(std::pin::pin!(assigned).next().await, Some(0));
    consumer.shutdown().await;
    let rest: Vec<_> = events.by_ref().collect().await;
    assert_eq!(rest.last(), Some(&ConsumerEvent::Ended));
    assert_eq!(events.next().await, None);
}
