//! Consuming with a handler that does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;
use bytes::Bytes;
use millstream::{
    Concurrency, Consumer, ConsumerBuilder, Delivery, Millstream, Outcome, Record, RetryOrder, Start,
};
use tokio::sync::Semaphore;

use super::produce::fill;
use super::{GROUP, PORTION, create_groups, groups, topic, until, until_acked, until_trimmed};
use crate::bench::args::{Consume, PendingIn};
use crate::bench::measure::{Measured, Stage};
use crate::bench::work::AN_HOUR;

/// How many handlers of a partition run at once where messages have keys.
const HANDLERS: usize = 64;

/// Fills a topic and lets every group have all of it.
pub(in crate::bench) async fn consume(stage: &Stage, of: &Consume) -> Result<Measured> {
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
        let consumer = with_prefetch(mq.consumer(topic.clone(), group), of);
        consumers.push(consumer.start(|_: Delivery<Bytes>| async {}).await?);
    }
    for consumer in &consumers {
        until_acked(consumer, of.messages.messages).await?;
    }
    let took = meter.elapsed();
    if !of.keep {
        // Partitions are trimmed once a second: what the last trimming costs is part of the whole.
        until_trimmed(&mq, &topic).await?;
    }
    let measured = meter.stop_after(of.messages.messages * u64::from(of.groups), took).await?;
    for consumer in consumers {
        consumer.shutdown().await;
    }
    Ok(measured)
}

/// While others of the same group wait behind one that failed.
async fn beside_own(stage: &Stage, of: &Consume) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, of.keep);
    // Not a pause: a reader that goes on after one reads first what is pending.
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

/// While others of another group do.
async fn beside_others(stage: &Stage, of: &Consume) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(of.spread, of.keep);
    pend(&mq, stage, of, "other", &Arc::default()).await?.shutdown().await;
    // Behind them, or it would have to consume them first.
    create_groups(mq.backend(), &topic, 1, Start::Latest).await?;
    fill(&mq, stage, topic.clone(), of.messages.messages, of.spread).await?;
    let meter = stage.meter().await?;
    let consumer = with_prefetch(mq.consumer(topic, GROUP), of).start(|_: Delivery<Bytes>| async {}).await?;
    until_acked(&consumer, of.messages.messages).await?;
    let measured = meter.stop(of.messages.messages).await?;
    consumer.shutdown().await;
    Ok(measured)
}

/// Stores messages of one key per partition and lets the first of each fail, so that it and all behind it stay
/// pending as long as this consumer, or one after it, runs.
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
    // Read by it, and not by anybody before: each partition's first one has failed, and the rest is behind that.
    until(&consumer, |it| {
        failed.load(Ordering::Relaxed) >= partitions && it.health().in_flight as u64 >= of.pending
    })
    .await?;
    Ok(consumer)
}

/// Holds handlers up until it is opened.
struct Gate {
    is_open: AtomicBool,
    /// Never has a permit: it ends when it is closed.
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
            // It was closed, which is what was waited for.
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
