//! The work through Millstream.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use hdrhistogram::Histogram;
use integration_tests::server::Server;
use millstream::{Delivery, Millstream, Record, Retention, Topic};

use crate::{Options, PAYLOAD, RATE, Run, server_cpu};

const BYTES: Topic<Bytes> = Topic::raw("bytes");

/// Sends in bulk, and measures it.
pub(crate) async fn produce(server: &Server, options: &Options, partitions: u32, _: usize) -> Result<Run> {
    let mq = Millstream::connect(&server.url()).await?;
    fill(&mq, server, options, BYTES.partitions(partitions)).await
}

async fn fill(mq: &Millstream, server: &Server, options: &Options, topic: Topic<Bytes>) -> Result<Run> {
    let producer = mq.producer(topic).await?;
    let payload = Bytes::from_static(&PAYLOAD);
    let cpu = server_cpu(server);
    let started = Instant::now();
    let mut left = options.messages;
    while left > 0 {
        let count = left.min(20_000);
        for sent in producer.send_all((0..count).map(|_| Record::new(&payload))).await {
            sent?;
        }
        left -= count;
    }
    let took = started.elapsed();
    Ok(Run { messages: options.messages, took, server_cpu: server_cpu(server) - cpu })
}

/// Fills a topic, then consumes all of it with a handler that does nothing, and measures that.
pub(crate) async fn consume(server: &Server, options: &Options, partitions: u32, trim: bool) -> Result<Run> {
    let mq = Millstream::connect(&server.url()).await?;
    let retention = if trim { Retention::Consumed } else { Retention::Keep };
    let topic = BYTES.partitions(partitions).retention(retention);
    fill(&mq, server, options, topic.clone()).await?;
    let cpu = server_cpu(server);
    let started = Instant::now();
    let consumer = mq.consumer(topic, "g").start(|_: Delivery<Bytes>| async {}).await?;
    while consumer.report().acked < options.messages {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = started.elapsed();
    // The last settlements are on their way: shutdown waits for them, and their CPU counts.
    consumer.shutdown().await;
    Ok(Run { messages: options.messages, took, server_cpu: server_cpu(server) - cpu })
}

/// From the send of a message to its handler, at a fixed rate, whatever the answers.
pub(crate) async fn latency(server: &Server, options: &Options) -> Result<Histogram<u64>> {
    let mq = Millstream::connect(&server.url()).await?;
    let epoch = Instant::now();
    let histogram = Arc::new(Mutex::new(Histogram::<u64>::new(3)?));
    let consumer = mq
        .consumer(BYTES, "g")
        .start({
            let histogram = histogram.clone();
            move |delivery: Delivery<Bytes>| {
                let now = u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let sent = delivery.payload[..8].try_into().map_or(0, u64::from_le_bytes);
                // It grows by itself: only a lack of memory could keep it from recording.
                let recorded = histogram.lock().unwrap_or_else(PoisonError::into_inner).record(now - sent);
                async move { recorded }
            }
        })
        .await?;
    let producer = mq.producer(BYTES).await?;
    let total = RATE * options.seconds;
    for n in 0..total {
        let due = epoch + Duration::from_secs(1) * u32::try_from(n)? / u32::try_from(RATE)?;
        tokio::time::sleep_until(due.into()).await;
        let mut payload = PAYLOAD;
        payload[..8].copy_from_slice(&u64::try_from(epoch.elapsed().as_nanos())?.to_le_bytes());
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&Bytes::copy_from_slice(&payload)).await });
    }
    while consumer.report().acked < total {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    consumer.shutdown().await;
    Ok(histogram.lock().unwrap_or_else(PoisonError::into_inner).clone())
}
