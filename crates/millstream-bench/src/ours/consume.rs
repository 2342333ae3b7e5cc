//! Consuming with a handler that does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use millstream::layer::{Answer, Layer, Next};
use millstream::{
    Concurrency, Consumer, ConsumerBuilder, Delivery, Limit, Millstream, Outcome, Rate, Record, RetryOrder,
    Start,
};
use tokio::sync::Semaphore;

use super::produce::fill;
use super::{GROUP, PORTION, create_groups, groups, topic, until, until_acked, until_trimmed};
use crate::args::{Consume, PendingIn};
use crate::measure::{Measured, Stage};
use crate::work::AN_HOUR;

/// Number of concurrent handlers of a partition if messages have keys.
const HANDLERS: usize = 64;

/// Fills a topic and lets every group consume all of it.
pub(crate) async fn consume(stage: &Stage, of: &Consume) -> Result<Measured> {
    if of.pending > 0 {
        return match of.pending_in {
            PendingIn::Own => beside_own(stage, of).await,
            PendingIn::Other => beside_others(stage, of).await,
        };
    }
    let mq = stage.connect().await?;
    let topic = topic(of.spread, of.keep);
    fill(&mq, stage, topic.clone(), of.messages.messages, of.spread).await?;
    create_groups(mq.backend(), &topic, of.groups, Start::Earliest).await?;
    let meter = stage.meter().await?;
    let mut consumers = Vec::new();
    for group in groups(of.groups) {
        let mut consumer = with_prefetch(mq.consumer(topic.clone(), group), of).concurrency(of.concurrency);
        for _ in 0..of.layers {
            consumer = consumer.layer(PassOn);
        }
        for n in 0..of.limits {
            consumer = consumer.limit(Limit::by_key(format!("limit-{n}")).at_most(1_000_000));
        }
        if let Some(rate) = of.rate {
            consumer = consumer.limit(Limit::global("rate").rate(Rate::per_second(rate)));
        }
        consumers.push(consumer.start(|_: Delivery<Bytes>| async {}).await?);
    }
    for consumer in &consumers {
        until_acked(consumer, of.messages.messages).await?;
    }
    let took = meter.elapsed();
    if !of.keep {
        // Partitions are trimmed once per second; the cost of the last trim is part of the total.
        until_trimmed(&mq, &topic).await?;
    }
    let measured = meter.stop_after(of.messages.messages * u64::from(of.groups), took).await?;
    for consumer in consumers {
        consumer.shutdown().await;
    }
    Ok(measured)
}

/// Consumes while other messages of the same group wait behind a failed one.
async fn beside_own(stage: &Stage, of: &Consume) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, of.keep);
    // Not a pause: a reader that continues after a pause first reads the pending entries.
    let gate = Arc::new(Gate::default());
    let consumer = pend(&mq, stage, of, GROUP, &gate).await?;
    fill(&mq, stage, topic, of.messages.messages, of.spread).await?;
    let meter = stage.meter().await?;
    gate.open();
    until(&consumer, |it| it.report().acked >= of.messages.messages).await?;
    let measured = meter.stop(of.messages.messages).await?;
    consumer.shutdown().await;
    Ok(measured)
}

/// Consumes while messages of another group wait behind a failed one.
async fn beside_others(stage: &Stage, of: &Consume) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, of.keep);
    pend(&mq, stage, of, "other", &Arc::default()).await?.shutdown().await;
    // The group starts behind these messages, or it would have to consume them first.
    create_groups(mq.backend(), &topic, 1, Start::Latest).await?;
    fill(&mq, stage, topic.clone(), of.messages.messages, of.spread).await?;
    let meter = stage.meter().await?;
    let consumer = with_prefetch(mq.consumer(topic, GROUP), of).start(|_: Delivery<Bytes>| async {}).await?;
    until_acked(&consumer, of.messages.messages).await?;
    let measured = meter.stop(of.messages.messages).await?;
    consumer.shutdown().await;
    Ok(measured)
}

/// Stores messages of one key per partition and lets the first of each fail, so that it and all messages behind it
/// stay pending while this consumer, or a later one, is running.
async fn pend(
    mq: &Millstream,
    stage: &Stage,
    of: &Consume,
    group: &str,
    gate: &Arc<Gate>,
) -> Result<Consumer> {
    let (topic, partitions) = (topic(of.spread, of.keep), u64::from(of.spread.partitions));
    let producer = mq.producer(topic.clone()).await?;
    for first in (0..of.pending).step_by(PORTION as usize) {
        let records = (first..of.pending.min(first + PORTION)).map(|n| {
            let partition = (n % partitions) as u32;
            Record::new(&stage.payload).key(format!("pending-{partition}")).partition(partition)
        });
        for sent in producer.send_all(records).await {
            sent?;
        }
    }
    let failed = Arc::new(AtomicU64::new(0));
    let (gate, counted) = (gate.clone(), failed.clone());
    let handler = move |delivery: Delivery<Bytes>| {
        let pending = delivery.key().is_some_and(|key| key.starts_with(b"pending-"));
        let gate = gate.clone();
        if pending {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        async move {
            if pending {
                return Outcome::retry_after(AN_HOUR, "not before an hour has passed");
            }
            gate.pass().await;
            Outcome::Ack
        }
    };
    let consumer = with_prefetch(mq.consumer(topic.clone(), group), of)
        .concurrency(Concurrency::PerKey(HANDLERS))
        .retry_order(RetryOrder::BlockKey)
        .max_blocked(usize::MAX)
        .start(handler)
        .await?;
    // Read by this consumer, and by none before: the first message of each partition has failed, and the rest is
    // behind it.
    until(&consumer, |it| {
        failed.load(Ordering::Relaxed) >= partitions && it.health().in_flight as u64 >= of.pending
    })
    .await?;
    Ok(consumer)
}

/// A layer that does nothing.
struct PassOn;

#[async_trait]
impl Layer for PassOn {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        next.run(delivery).await
    }
}

/// Holds handlers until it is opened.
struct Gate {
    is_open: AtomicBool,
    /// A semaphore without permits: waiting ends when it is closed.
    opened: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self { is_open: AtomicBool::new(false), opened: Semaphore::new(0) }
    }
}

impl Gate {
    fn open(&self) {
        self.is_open.store(true, Ordering::Release);
        self.opened.close();
    }

    async fn pass(&self) {
        if !self.is_open.load(Ordering::Acquire) {
            // Returns an error when it is closed, which is the signal to continue.
            let _ = self.opened.acquire().await;
        }
    }
}

fn with_prefetch<T: Send + 'static>(consumer: ConsumerBuilder<T>, of: &Consume) -> ConsumerBuilder<T> {
    match of.prefetch {
        Some(prefetch) => consumer.prefetch(prefetch as usize),
        None => consumer,
    }
}
